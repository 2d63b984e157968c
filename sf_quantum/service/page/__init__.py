"""The page ``GET /``, and the activity it shows.

Imports: service/dialects, service/domain, service/http, service/queue, service/store.
"""

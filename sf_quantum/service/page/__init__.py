"""The page ``GET /``, and the activity it shows.

``activity`` puts together what the page shows, and ``routes`` serves both.

Imports: service/dialects, service/domain, service/http, service/queue, service/store.
"""

"""The page ``GET /``, and the activity it shows.

``activity`` collects the page's content, and ``routes`` serves both.

Imports: service/dialects, service/domain, service/http, service/queue, service/store.
"""

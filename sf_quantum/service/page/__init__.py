"""The page ``GET /``, and the activity that it shows.

``activity`` collects the content of the page; ``routes`` serves the page and the activity.

Imports: service/dialects, service/domain, service/http, service/queue, service/store.
"""

"""The service's own dialect, ``/v1``, described by ``/openapi.json``.

Each part of the API is one module: ``jobs``, ``leases``, ``device`` (state, availability,
health), ``admin`` (operations, maintenance windows, audit) and ``usage``. ``models`` defines
the parts that bodies share, and the body of a job. ``dialect`` is the dialect's class.
"""

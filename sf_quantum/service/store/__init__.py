"""The service's state on disk: one SQLite file, its schema, and what is read from it.

``store`` has the file, ``leases``, ``jobs``, ``progress`` and ``slices`` the queue's reads and
writes, ``recovery`` what follows a crash, ``schema`` the tables, ``usage`` and
``utilisation`` what was used, ``retention`` forgets, ``backup`` copies, ``audit`` records who
did what.

Imports: protocol, service/domain.
"""

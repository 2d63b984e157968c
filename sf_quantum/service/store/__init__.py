"""The service's state on disk: one SQLite file, its schema, and what is read from it.

``store`` is the state, ``file`` the database as a file, ``schema`` its tables, ``rows`` their
rows as leases and jobs. ``leases``, ``jobs``, ``progress`` and ``slices`` are the queue's
reads and writes, ``given_up`` keeps jobs that may still run at a vendor. ``recovery`` puts in
order what a crash left, ``retention`` forgets, ``audit`` records who did what, and
``reports`` adds up what was used.

Imports: protocol, service/domain.
"""

"""The service's state on disk: one SQLite file, its schema, and what is read from it.

``store`` is the state, ``file`` the database as a file, ``schema`` its tables, ``rows`` their
rows as leases and jobs. ``leases``, ``jobs``, ``progress`` and ``slices`` are the queue's
reads and writes, ``given_up`` keeps jobs that may still run at a vendor. ``recovery`` settles
jobs after a crash, ``retention`` deletes old jobs, ``audit`` records the actions of admins,
and ``reports`` adds up the usage.

Imports: protocol, service/domain.
"""

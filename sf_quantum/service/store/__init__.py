"""The service's state on disk: one SQLite file with leases, jobs and results.

- ``store``: the state, with the file and all parts that read and write it
- ``file``: the database as a file, without regard to its content
- ``schema``: the tables
- ``rows``: rows of the tables as leases and jobs
- ``leases``, ``jobs``, ``progress``, ``slices``: the queue's reads and writes
- ``given_up``: jobs that were given up and may still run at a vendor
- ``recovery``: jobs that the end of the previous service process interrupted
- ``retention``: deletes old jobs
- ``audit``: the actions of admins
- ``reports``: sums of the QPU's use

Imports: protocol, service/domain.
"""

"""The upkeep of the service: endless tasks, readiness, telemetry, device operations.

``supervisor`` runs the ``endless_tasks`` and restarts tasks that die, ``readiness`` checks
whether the service can accept work. ``slurm_watch`` ends leases whose Slurm jobs have ended,
``revocations`` the leases of users who lost their rights, ``given_up_search`` searches for
jobs that were given up. ``telemetry`` runs quality jobs and follows drift,
``device_operations`` runs an operator's changes between two jobs.
"""

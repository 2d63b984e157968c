"""What keeps the service sound: endless tasks, readiness, telemetry, device operations.

``supervisor`` runs the ``endless_tasks`` and starts again those that die, ``readiness`` says
whether the service can take work. ``slurm_watch`` and ``revocations`` end leases whose Slurm
jobs or rights are gone, ``given_up_search`` looks for jobs that were given up. ``telemetry``
runs quality jobs and follows drift, ``device_operations`` runs an operator's changes between
two jobs.
"""

"""The upkeep of the service: endless tasks, readiness, telemetry and device operations.

- ``supervisor``: runs endless tasks, and restarts tasks that die
- ``endless_tasks``: the tasks of the queue
- ``readiness``: whether the service can accept work
- ``slurm_watch``: ends leases whose Slurm jobs have ended
- ``revocations``: ends leases of users who may no longer use the QPU
- ``given_up_search``: searches the vendor for jobs that were given up
- ``telemetry``: runs quality jobs and watches the device for drift
- ``device_operations``: runs an operator's changes of the device between two jobs
"""

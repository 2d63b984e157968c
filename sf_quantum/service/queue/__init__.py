"""The job queue: jobs, leases, the QPU's availability, and upkeep.

- ``job_queue``: the queue as dialects see it; it connects all other parts
- ``jobs``, ``leases``: jobs and leases; each room has a state machine and one owner of it
- ``machine``: the base class of the state machines
- ``admission``, ``job_limits``: checks of new jobs
- ``availability``: the QPU's status and maintenance windows
- ``forecasts``: positions and ETAs of jobs
- ``reading``: jobs and results as users read them
- ``writing``: writes that are repeated until they are on disk
- ``long_work``, ``background``: threads and tasks
- ``events``, ``observations``: the log and the counters
- ``upkeep``: tasks that watch the device, Slurm, users' permissions and the service itself

Imports: protocol, qpu, samplers, service/device, service/domain, service/scheduling,
    service/store, slurm.
"""

"""The job queue at work: jobs, leases, availability, upkeep.

Dialects call ``job_queue``. ``jobs`` and ``leases`` each have a state machine (in the style
of ``machine``) and its one owner; ``admission`` checks submissions, also against
``job_limits``. ``availability`` has the QPU's status and maintenance windows, ``forecasts``
predicts positions and ETAs, ``reading`` shows users their jobs. ``writing`` repeats writes
until they are on disk, ``long_work`` and ``background`` run threads and tasks, ``events``
writes the log and ``observations`` the counters. ``upkeep`` watches the device, Slurm, the
permissions of users and the service itself.

Imports: protocol, qpu, samplers, service/device, service/domain, service/scheduling,
    service/store, slurm.
"""

"""The job queue at work: jobs, leases, availability, upkeep.

``job_queue`` is what dialects call. ``jobs`` and ``leases`` each have a state machine (in the
style of ``machine``) and its one owner; ``admission`` checks submissions, within
``job_limits``. ``availability`` says whether the QPU is open or in maintenance, ``forecasts``
predicts positions and ETAs, ``reading`` shows users their jobs. ``writing`` repeats writes
until they are on disk, ``long_work`` and ``background`` are threads and tasks, ``events`` and
``observations`` write the log and the counters. ``upkeep`` watches the device, Slurm, the
permissions of users and the service itself.

Imports: protocol, qpu, samplers, service/device, service/domain, service/scheduling,
    service/store, slurm.
"""

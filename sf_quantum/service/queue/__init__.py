"""The job queue at work: jobs, leases, availability, upkeep.

``job_queue`` is what dialects call. ``jobs`` and ``leases`` each have a state machine and its
one owner; ``admission`` checks submissions, ``availability`` says whether the QPU is open,
``forecasts`` predicts, ``upkeep`` watches the device, Slurm, the permissions of users and
the service itself.

Imports: protocol, qpu, samplers, service/device, service/domain, service/scheduling,
    service/store, slurm.
"""

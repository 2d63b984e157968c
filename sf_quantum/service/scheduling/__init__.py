"""Scheduling: policies, pending jobs and ETAs.

The room does no I/O, and callers pass the clock, so ``sfq plan`` simulates the same classes.

- ``work``: a pending job, as policies see it, and sums of work
- ``policies``: the scheduling policies
- ``pending``: the pending jobs in the order of the policy
- ``pace``: the expected run times of jobs, from completed jobs
- ``held``: the QPU seconds that held leases are still expected to submit
- ``estimator``: the ETA of each job, from ``pace``, ``held`` and the arrivals of jobs
- ``shares``: the shares of projects and users, and their usage

Imports: service/domain.
"""

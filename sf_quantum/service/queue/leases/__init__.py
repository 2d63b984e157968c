"""Leases: who may have a lease, which requests wait for a lease, and a lease's states.

- ``live_leases``: leases as dialects request, use and release them
- ``lease_states``: the state machine of a lease
- ``lease_table``: the leases in memory
- ``entitlements``: who may have a lease, and its class, project and share
- ``waiting_requests``: the requests that wait for a vQPU, in order
- ``vqpus``: the owner of the state machines; assigns free vQPUs to requests
- ``lease_ends``: when a lease ends although nobody releases it
- ``occupancy``: reports to policy and estimator which leases occupy a vQPU
- ``reservations``: the times for which a vendor has reserved the QPU
- ``slurm_jobs``: queries Slurm about a lease's job
"""

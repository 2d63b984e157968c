"""Leases: who may have a lease, the requests that wait for one, and a lease's states.

Dialects call ``live_leases``, which also limits each user's leases; ``lease_states`` is the
state machine, ``lease_table`` has the leases in memory. ``entitlements`` decides class,
project and share, ``waiting_requests`` the order of requests, ``vqpus`` which request gets a
free vQPU, ``lease_ends`` when a lease ends by itself. ``occupancy`` reports occupied vQPUs to
policy and estimator, ``reservations`` has the times for which a vendor has reserved the QPU.
``slurm_jobs`` queries Slurm for a lease's job.
"""

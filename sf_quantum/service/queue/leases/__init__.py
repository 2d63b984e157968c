"""Leases: who may have one, requests that wait for one, and a lease's states.

``live_leases`` is what users call, and bounds how many they have; ``lease_states`` is the
state machine, ``lease_table`` has the leases in memory. ``entitlements`` decides class,
project and share, ``waiting_requests`` the order of requests, ``vqpus`` who gets a free
vQPU, ``occupancy`` tells policy and estimator which are taken, ``reservations`` when a
vendor has reserved the QPU for one, ``lease_ends`` when a lease ends by itself.
``slurm_jobs`` asks Slurm whether a lease's job exists.
"""

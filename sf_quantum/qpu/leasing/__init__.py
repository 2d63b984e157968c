"""Leases from the client's side: their acquisition, renewal, release and accounting.

``held_leases`` waits for leases, renews them in a thread as often as the QPU's client requires
(for our service, ``qpu/sfq/service_leases``), and detects when a job must leave its QPU.
``supervision`` runs a command under leases, ``account`` reports the command's QPU jobs.
``batch_jobs`` requests and lists the leases of a batch system's jobs, ``qpu_limits`` limits
how many of these jobs have or request a lease at the same time. ``gating`` releases each held
job once it has a lease, and ``burst`` requests leases for Slurm's plug-ins.
"""

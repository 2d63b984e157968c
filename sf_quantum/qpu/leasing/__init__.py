"""Leases from the client's side: acquired, renewed, released and accounted for.

``held_leases`` waits for leases, renews them in a thread as often as the QPU's client requires
(for our service, ``qpu/sfq/service_leases``), and detects when a job must leave its QPU.
``supervision`` runs a command under leases, ``account`` reports the command's QPU jobs.
``batch_jobs`` requests and lists the leases of a batch system's jobs, ``places`` limits how
many of these jobs have or request a lease at a time. ``gating`` releases held jobs once they
have a lease, and ``burst`` requests leases for Slurm's plugins.
"""

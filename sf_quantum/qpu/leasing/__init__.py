"""Leases from the client's side: acquired, renewed, given back and accounted for.

``held_leases`` waits for leases, renews them in a thread as often as the QPU's client says
(for our service, ``qpu/sfq/service_leases``), and finds out when a QPU has to be left.
``supervision`` runs a command under leases, ``account`` says what it used. ``batch_jobs``
requests and lists the leases of a batch system's jobs, ``places`` bounds how many of them ask
at a time. ``gating`` releases held jobs once they have a lease, and ``burst`` is for Slurm's
plugins.
"""

"""Leases from the client's side: acquired, renewed, given back and accounted for.

``held_leases`` acquires and renews them, ``supervision`` runs a command under them, ``account``
says what it used. ``batch_jobs`` has what is asked for a job of a batch system, ``gating``
releases held jobs once they have a lease, and ``burst`` is for Slurm's plugins.
"""

"""Leases from the client's side: acquired, renewed, given back and accounted for.

``held_leases`` acquires and renews them, ``supervision`` runs a command under them, ``account``
says what it used, and ``burst`` has those of a site's Slurm jobs.
"""

"""Commands of a site's batch system: leases for its jobs, before they have nodes.

``slurm`` has the commands that Slurm's plugins call and its daemons, ``flux`` and ``pbs`` are
the gates of Flux and OpenPBS; ``gating`` has the options, clients and lock that these daemons
share. Their logic is in ``qpu/leasing``.
"""

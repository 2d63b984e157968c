"""Commands of a site's batch system: leases for its jobs, before they have nodes.

``slurm`` is what plugins and daemons of Slurm call, ``flux`` and ``pbs`` are the gates of Flux
and OpenPBS; ``gating`` has the options, clients and lock that these daemons share. What they
do is decided in ``qpu/leasing``.
"""

"""Commands for a site's batch system: they acquire leases for jobs, before these have nodes.

``slurm`` has the commands that Slurm's plugins call, and the daemons for Slurm. ``flux`` and
``pbs`` have the gates of Flux and OpenPBS: daemons that release held jobs once they have a
lease. ``gating`` has the options, clients and lock that all these daemons share. Their logic
is in ``qpu/leasing``.
"""

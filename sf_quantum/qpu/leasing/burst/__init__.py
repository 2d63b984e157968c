"""Leases for jobs of a site's Slurm, acquired before the jobs have nodes.

The plug-in ``deployments/slurm/burst_buffer.lua`` calls ``sfq slurm``, which uses this room.
``request`` makes the request for a job's lease and the variables that identify the job,
``classes`` gives the job a class by QOS, partition or priority, ``waiting`` requests the lease
until it is granted, and ``folder`` records on disk which jobs request leases. ``watch`` cleans
up after killed processes, with ``watch_processes``; ``forgotten`` requeues jobs that a killed
controller has lost, and ``places`` counts places that Slurm does not free. ``controller`` runs
Slurm's commands, and ``accounting`` writes QPU seconds to Slurm's accounting. Where Slurm has
no burst buffers, ``licenses`` withholds the licences of vQPUs that are not free.
"""

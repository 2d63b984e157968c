"""Leases for jobs of a site's Slurm, acquired before the jobs have nodes.

``deployments/slurm/burst_buffer.lua`` calls ``sfq slurm``, whose logic is here. ``request``
makes the request for a job's lease and says whose job it is, ``classes`` gives it a class by
QOS or partition, ``waiting`` asks the service until it is granted, ``folder`` keeps on disk
which jobs ask. ``watch`` frees what killed processes leave, with ``watch_processes``;
``forgotten`` queues jobs again that a dead controller has lost, ``places`` counts places that
Slurm does not free. ``controller`` runs Slurm's commands, ``accounting`` writes QPU seconds
into Slurm's. Where Slurm has no burst buffers, ``licenses`` withholds the licences of vQPUs
that are not free.
"""

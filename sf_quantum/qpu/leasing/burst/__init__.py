"""Leases for jobs of a site's Slurm, acquired before the jobs have nodes.

``deployments/slurm/burst_buffer.lua`` calls ``sfq slurm``, whose logic is here: ``waiting``
asks the service, ``watch`` frees what killed processes leave. Where Slurm has no burst buffers,
``licenses`` withholds the licences of vQPUs that are not free.
"""

"""Leases for jobs of a site's Slurm, acquired before the jobs have nodes.

``deployments/slurm/burst_buffer.lua`` calls ``sfq slurm``, whose logic is here: ``request``
is what is asked of the service, ``waiting`` how, ``watch`` frees what killed processes leave.
Where Slurm has no burst buffers, ``gate`` releases held jobs once they have a lease,
or ``licenses`` withholds the licences of vQPUs that are not free.
"""

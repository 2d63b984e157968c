"""Leases for jobs of a site's Slurm, acquired while it stages their burst buffers in.

``deployments/slurm/burst_buffer.lua`` calls ``sfq slurm``, whose logic is here: ``request``
is what is asked of the service, ``waiting`` how, ``watch`` frees what killed processes leave.
"""

"""Leases for jobs of a site's Slurm, acquired while it stages their burst buffers in."""

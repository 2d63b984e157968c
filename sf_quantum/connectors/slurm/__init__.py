"""``sfq.slurm``: jobs, allocations and QPU leases on a Slurm cluster."""

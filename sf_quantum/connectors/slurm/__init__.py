"""``sfq.slurm``: the partitions of a Slurm cluster, told truthfully and quickly."""

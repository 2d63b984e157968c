"""Deployments of type ``sfq.slurm``, and the partitions that their Slurm lists."""

"""How the driver reaches Slurm: commands on a login node, or ``slurmrestd``."""

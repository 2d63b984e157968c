"""Commands around a QPU and its service, for users, operators and a site's Slurm."""

"""Deployments of type ``sfq.slurm``: what they request, and what their Slurm has.

``services`` checks one service: its options, and what it requests of its partition.
``clusters`` checks the deployment as a whole: allocations, QPUs, and its services together.
``listings`` asks each Slurm for its partitions, or says why it cannot be asked.
"""

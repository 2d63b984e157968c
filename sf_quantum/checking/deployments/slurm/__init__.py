"""Checks of deployments of type ``sfq.slurm``, with the partitions of their Slurm.

``services`` checks one service: its options, and its requests to its partition.
``clusters`` checks the deployment as a whole: allocations, QPUs, and its services together.
``listings`` queries each Slurm for its partitions, or reports why this failed.
"""

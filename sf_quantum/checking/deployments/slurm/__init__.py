"""Checks of deployments of type ``sfq.slurm``, with the partitions of their Slurm.

``services`` checks one service: its options, and what it requests from its partition.
``clusters`` checks the deployment as a whole: allocations, QPUs, and its services together.
``listings`` queries the Slurm of each deployment for its partitions, and reports failures.
"""

"""Recorded load of a cluster's nodes and of QPUs.

Each format has one module: ``sacct`` and ``swf`` for jobs on nodes, which become a
``node_trace``; ``qpu`` for jobs of QPUs, ``usage`` for reports of ``sfq usage``.
``bounded_files`` opens the files. The workload file names the format of each file, and
``planning/workloads/reading`` chooses the module accordingly.
"""

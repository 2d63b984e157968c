"""Load that was recorded: of a cluster's nodes, and of QPUs.

Each format is one module: ``sacct`` and ``swf`` for jobs on nodes, which become a
``node_trace``; ``qpu`` for jobs of QPUs, ``usage`` for reports of ``sfq usage``.
``bounded_files`` opens the files. Which format a file has, its workload file says:
``planning/workloads/reading`` decides.
"""

"""Slurm's own language: what its commands print in every version, and typed rows of it.

A field that a version of Slurm adds, renames or spells in another way changes one module
here. ``squeue`` has the formats and rows of jobs in the queue, ``records`` the text of
``scontrol show job``, ``accounting`` the output of ``sacct``, ``partitions`` that of
``sinfo``, ``config`` that of ``scontrol show config``, ``burst`` and ``licenses`` those of
burst buffers and licences; ``tres`` reads requests for GPUs and other resources, ``ids`` the
ids of jobs, ``states`` their states, ``counts`` numbers and times, and ``components`` what a
heterogeneous job needs. It reads text that others have got, and starts one process itself:
``sinfo`` on this host.

Imports: nothing above the foundation.
"""

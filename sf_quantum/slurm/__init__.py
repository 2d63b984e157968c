"""Slurm's own language: the output of its commands in every version, as typed rows.

A field that a version of Slurm adds, renames or spells in another way changes one module
here. ``squeue`` has the formats and rows of jobs in the queue, ``records`` the text of
``scontrol show job``, ``accounting`` the output of ``sacct``, ``partitions`` that of
``sinfo``, ``config`` that of ``scontrol show config``, ``burst`` and ``licenses`` those of
burst buffers and licences; ``tres`` reads GPUs and other resources, requested, held or on a
node, ``ids`` the ids of jobs, ``states`` their states, ``counts`` numbers and times, and
``components`` the components of a heterogeneous job. Callers run the commands, except for
``sinfo`` on this host, which ``partitions`` can run.

Imports: nothing above the foundation.
"""

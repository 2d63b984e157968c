"""The output of Slurm's commands, in all supported versions, as typed rows.

If a version of Slurm adds, renames or respells a field, only one module here changes.
``squeue`` reads the rows of jobs in the queue and has their formats, ``records`` reads the
output of ``scontrol show job``, ``accounting`` the output of ``sacct``, ``partitions`` the
output of ``sinfo``, and ``config``, ``burst`` and ``licenses`` the output of ``scontrol
show`` about the configuration, burst buffers and licences. ``tres`` reads GPUs and other
resources of requests, jobs and nodes, ``counts`` reads numbers and times, ``ids`` reads job
ids, ``states`` lists the states of jobs, and ``components`` counts the nodes of a
heterogeneous job. Callers run the commands, except for ``sinfo`` on this host, which
``partitions`` can run.

Imports: nothing above the foundation.
"""

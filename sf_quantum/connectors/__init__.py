"""Where a step runs: one StreamFlow connector a file, its schema beside it.

``quantum`` gives each job of a step its lease; ``rest`` and ``emulator`` are its locations,
``ssh`` and ``nodes`` those of classical steps, and ``slurm`` has both. ``wrapper`` is the
base of connectors over others. ``hints`` passes a job's hints on to its connector,
``guardian`` ends what a killed driver leaves. ``streamflow_links`` mends how StreamFlow
connects steps, ``streamflow_outputs`` how it collects outputs, and ``tracebacks`` keeps its
errors to a few lines.

Imports: journal, net, protocol, qpu, slurm.
"""

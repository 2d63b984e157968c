"""Where a step runs: one StreamFlow connector a file, its schema beside it.

``quantum`` gives each job of a step its lease; ``rest`` and ``emulator`` are its locations,
``ssh`` and ``nodes`` those of classical steps, and ``slurm`` has both. ``leases`` keeps leases
without blocking the event loop, and ``guardian`` ends what a killed driver leaves.

Imports: journal, net, protocol, qpu, slurm.
"""

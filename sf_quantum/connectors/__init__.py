"""Where a step runs: StreamFlow connectors, each with its JSON schema.

``quantum`` acquires a lease for each job of a step; ``rest`` and ``emulator`` are locations
with a QPU, ``ssh`` and ``nodes`` locations of classical steps, and ``slurm`` is both.
``wrapper`` is the base of connectors over others. ``hints`` passes a job's hints to its
connector, ``exit_codes`` those of its tool, and ``guardian`` cleans up after a killed driver.
``streamflow_links`` fixes how StreamFlow connects steps, ``streamflow_commands`` how it writes
the commands of jobs, ``streamflow_names`` how it writes names of remote files,
``streamflow_outputs`` how it collects outputs, and ``tracebacks`` shortens its errors to a
few lines.

Imports: journal, net, protocol, qpu, slurm.
"""

"""StreamFlow connectors, which run steps on locations; each has a JSON schema.

``quantum`` acquires a lease for each job of a step. ``rest`` and ``emulator`` are connectors
to locations with a QPU, ``ssh`` and ``nodes`` to locations for classical steps, and ``slurm``
to both kinds. ``wrapper`` is the base of connectors that wrap other connectors. ``hints``
passes a job's hints to its connector, ``exit_codes`` the success codes of its tool, and
``guardian`` cleans up after a driver, even a killed one. ``streamflow_links`` fixes how
StreamFlow connects steps, ``streamflow_commands`` how it writes the commands of jobs,
``streamflow_names`` how it writes names of remote files, ``streamflow_outputs`` how it collects
outputs, and ``tracebacks`` shortens StreamFlow's errors to a few lines.

Imports: journal, net, protocol, qpu, slurm.
"""

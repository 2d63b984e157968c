"""Reports on runs from their journals: tables, progress, pictures, resource usage.

``runs`` reads a run from its journal, ``attempts`` collects the attempts of its jobs,
``report`` makes their table, and ``progress``, ``pictures`` and ``notebook`` show the attempts
in other forms; ``run_usage`` adds up nodes and QPU seconds. ``outputs`` finds the outputs of a
run in StreamFlow's log, and ``aligned`` formats columns.

Imports: journal.
"""

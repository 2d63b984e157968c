"""Reports on runs from their journals: tables, progress, pictures, resource usage.

``runs`` reads a run from its journal, ``attempts`` collects its attempts, ``report`` writes
their table, and ``progress``, ``pictures`` and ``notebook`` show them in other forms;
``run_usage`` adds up nodes and QPU seconds. ``outputs`` finds the outputs of a run in its
log, ``aligned`` writes columns.

Imports: journal.
"""

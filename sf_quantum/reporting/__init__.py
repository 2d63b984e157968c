"""Reports on runs from their journals: tables, progress, pictures, resource usage.

``runs`` finds journals, ``attempts`` makes rows of one, ``report`` has their columns, and
``progress``, ``pictures`` and ``notebook`` show them; ``run_usage`` adds up what was held.
``outputs`` finds the outputs of a run in its log, ``aligned`` writes columns.

Imports: journal.
"""

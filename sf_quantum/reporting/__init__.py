"""Reports on runs from their journals: tables, progress, pictures, resource usage.

``attempts`` makes rows of a journal, ``report``, ``progress`` and ``pictures`` show them,
``runs`` finds journals, ``run_usage`` adds up what was held.

Imports: journal.
"""

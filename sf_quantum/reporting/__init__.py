"""Reports on runs from their journals: tables, progress, pictures, resource usage.

``report`` makes rows of a journal, ``columns`` and ``pictures`` show them, ``runs`` finds
journals, ``usage`` adds up what was held.

Imports: journal.
"""

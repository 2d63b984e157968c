"""Commands that are steps of a workflow: each reads files and writes files.

Every command is one module: ``cluster``, ``qubo``, ``solve``, ``score`` and ``plot`` are the
steps of the loop, ``samplers`` lists the samplers that ``solve`` can use. The module
``samplers/problem`` reads and writes problems and samples, the room for clustering all other
files.
"""

"""Commands that are steps of a workflow: each reads files and writes files.

Every command is one module: ``cluster``, ``qubo``, ``solve``, ``score`` and ``plot`` are the
steps of the clustering workflow's loop, and ``samplers`` lists the samplers that ``solve``
can use. The module ``sf_quantum/samplers/problem`` reads and writes problems and samples;
``sf_quantum/clustering`` reads and writes all other files.
"""

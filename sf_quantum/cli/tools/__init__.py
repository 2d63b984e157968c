"""Commands that are steps of a workflow: each reads files and writes files.

Every command is one module: ``cluster``, ``qubo``, ``solve``, ``score`` and ``plot`` are the
steps of the loop, ``samplers`` lists what ``solve`` can use. The files are read and written
where their content is known: problems and samples in ``samplers/problem``, all others in
the room for clustering.
"""

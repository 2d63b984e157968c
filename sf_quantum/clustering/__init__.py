"""Clustering aggregation: the science of the example workflow.

``methods`` makes clusterings, ``qubo`` the QUBO of their consensus, ``consensus`` scores its
samples by ``silhouette``, and ``points``, ``result`` and ``samples`` read and write the files
between them. ``kernels`` calls the compiled ``_kernels.c``.

Imports: nothing above the foundation.
"""

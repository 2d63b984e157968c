"""Clustering aggregation: the science of the example workflow.

``methods`` makes clusterings, ``consensus_qubo`` the QUBO of their consensus, ``consensus``
scores its samples with ``silhouette`` and decides whether the loop continues; ``points``,
``result`` and ``samples`` read and write the files between them, ``picture`` draws the result.
``kernels`` calls the compiled loops of ``_kernels.c``: neighbours, spanning forests, k-means
and sums of distances.

Imports: nothing above the foundation.
"""

"""Clustering aggregation: the science of the example workflow.

``methods`` makes clusterings, ``consensus_qubo`` makes the QUBO of their consensus, and
``consensus`` scores the QUBO's samples with ``silhouette`` and decides whether the loop
continues. ``points``, ``result`` and ``samples`` read and write the files between these steps,
and ``picture`` draws the result. ``kernels`` calls the compiled loops of ``_kernels.c``:
neighbours, spanning forests, k-means and sums of distances.

Imports: nothing above the foundation.
"""

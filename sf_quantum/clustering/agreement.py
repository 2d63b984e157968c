"""The agreement of a partition with the ground truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sf_quantum.clustering.methods import Ints


def adjusted_rand(labels: Ints, truth: Sequence[str]) -> float:
    """Return the adjusted Rand index: 1 for equal, about 0 for unrelated partitions.

    L. Hubert and P. Arabie, Comparing partitions, Journal of Classification 2, 1985,
    eq. 5.

    :param labels: n labels
    :param truth: n names of known clusters
    """
    _, known = np.unique(np.asarray(truth), return_inverse=True)
    _, ours = np.unique(labels, return_inverse=True)
    table = np.zeros((int(ours.max()) + 1, int(known.max()) + 1), np.int64)
    np.add.at(table, (ours, known), 1)
    shared = _pairs(table)
    mine, theirs = _pairs(table.sum(axis=1)), _pairs(table.sum(axis=0))
    expected = mine * theirs / _pairs(np.array([len(labels)]))
    most = (mine + theirs) / 2
    return 1.0 if most == expected else (shared - expected) / (most - expected)


def _pairs(sizes: NDArray[np.integer]) -> float:
    return float((sizes * (sizes - 1) / 2).sum())

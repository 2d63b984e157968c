"""The QUBO of several clusterings, whose optimum is their consensus.

Every cluster of every clustering is a candidate; candidates that share a point overlap.
The consensus is the set of candidates without overlaps that has the greatest weight: a
maximum-weight independent set (N. Li and L. J. Latecki, Clustering aggregation as
maximum-weight independent set, NIPS 2012; as a QUBO: R. Rocco et al., QCE 2025, eq. 1).
"""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sf_quantum.clustering.kernels import Doubles, Ints
from sf_quantum.clustering.result import Clustering
from sf_quantum.errors import InputError

#: kinds of weights: ``size`` as in eq. 1 of Rocco et al.; ``quality`` is size times mean
#: silhouette (Li, Latecki)
WEIGHTS = ("quality", "size")
#: kinds of penalties: ``candidates`` as lambda in eq. 1; for ``tight``, see :func:`penalties`
PENALTIES = ("tight", "candidates")


@dataclass(frozen=True)
class Candidate:
    """A cluster that may become part of the consensus."""

    #: index of its clustering
    clustering: int
    method: str
    label: int
    size: int
    silhouette: float


@dataclass(frozen=True)
class Overlaps:
    """The candidates, and the points that they share.

    An atom is a set of points that have equal labels in every clustering. A candidate is a
    set of atoms, so computations on many points reduce to computations on a few atoms.
    """

    #: atom of each of the n points
    atoms: Ints
    candidates: list[Candidate]
    #: shape (candidates, atoms): whether the candidate contains the atom
    members: NDArray[np.bool_]

    @property
    def pairs(self) -> NDArray[np.bool_]:
        """Shape (candidates, candidates): whether two different candidates overlap."""
        shared = (self.members.astype(np.int64) @ self.members.T.astype(np.int64)) > 0
        np.fill_diagonal(shared, False)
        return shared


def overlaps(clusterings: list[Clustering]) -> Overlaps:
    """Find the candidates of several clusterings of the same points, and the atoms.

    :raises InputError: if the clusterings label different numbers of points
    """
    sizes = [clustering.size for clustering in clusterings]
    if len(set(sizes)) != 1:
        raise InputError(
            f"clusterings of {', '.join(map(str, sizes))} points: "
            "all must label the same points"
        )
    atoms = np.zeros(sizes[0], np.int64)
    for clustering in clusterings:
        mixed = atoms * (len(clustering.clusters) + 1) + clustering.labels + 1
        _, atoms = np.unique(mixed, return_inverse=True)
    count = int(atoms.max()) + 1
    representative = np.empty(count, np.int64)
    representative[atoms] = np.arange(len(atoms))
    candidates = [
        Candidate(index, c.method, cluster.label, cluster.size, cluster.silhouette)
        for index, c in enumerate(clusterings)
        for cluster in c.clusters
    ]
    members = np.array(
        [
            clusterings[c.clustering].labels[representative] == c.label
            for c in candidates
        ],
        bool,
    ).reshape(len(candidates), count)
    return Overlaps(atoms.astype(np.int32), candidates, members)


def identity(clusterings: list[Clustering]) -> str:
    """Return a hash of the clusterings, which depends on their order."""
    digest = hashlib.sha256()
    for clustering in clusterings:
        digest.update(clustering.labels.astype("<i4").tobytes())
    return digest.hexdigest()[:16]


def weights(candidates: list[Candidate], kind: str) -> Doubles:
    """Return the candidates' weights; the greatest weight is 1, unless all are 0 or less.

    Weights by size are multiples of a unit, so that selections with the same number of
    points have the same energy even in floating point. The greatest weight then differs
    from 1 by the rounding of the unit: less than 1e-9 for up to 4 million points in total
    candidates.

    :param kind: one of :data:`WEIGHTS`
    """
    size = np.array([c.size for c in candidates], float)
    if kind == "size":
        return size * _unit(float(size.max(initial=1)), int(size.sum()))
    raw = size * [c.silhouette for c in candidates]
    greatest = float(raw.max(initial=0))
    return raw / (greatest if greatest > 0 else float(size.max(initial=1)))


def _unit(greatest: float, most: int) -> float:
    """Return 1 / greatest, with so few bits that its multiples up to ``most`` are exact."""
    mantissa, exponent = math.frexp(1 / greatest)
    bits = sys.float_info.mant_dig - most.bit_length()
    return math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)


def penalties(weight: Doubles, pairs: NDArray[np.bool_], kind: str) -> Doubles:
    """Return the penalty of each overlapping pair, and 0 for other pairs.

    Removing the lighter of two overlapping candidates changes the energy by its weight
    minus the penalty, so any penalty above the lighter weight keeps the optimum free of
    overlaps. Smaller penalties give lower energy barriers, which an annealer must cross.

    :param weight: weights of C candidates
    :param pairs: whether pairs overlap, shape (C, C), symmetric
    :param kind: ``tight`` for 1.05 times the lighter weight, or ``candidates`` for C
    :returns: shape (C, C)
    """
    if kind == "candidates":
        return np.where(pairs, float(len(weight)), 0.0)
    lighter = np.minimum.outer(weight, weight)
    # a candidate of weight <= 0 is never in the optimum, but its overlaps need a penalty
    return np.where(pairs, 1.05 * np.where(lighter > 0, lighter, 0.05), 0.0)


class Qubo(NamedTuple):
    """A quadratic function of n binary variables; variable i is candidate i."""

    #: n factors of the variables
    linear: Doubles
    #: shape (m, 2): the variables of each product
    pairs: NDArray[np.int64]
    #: m factors of the products
    quadratic: Doubles


def qubo(overlap: Overlaps, weights_kind: str, penalty_kind: str) -> Qubo:
    """Build eq. 1 of Rocco et al. (2025): minimise -sum w_i x_i + sum l_ij x_i x_j."""
    weight = weights(overlap.candidates, weights_kind)
    pairs = overlap.pairs
    penalty = penalties(weight, pairs, penalty_kind)
    rows, columns = np.nonzero(np.triu(pairs))
    return Qubo(-weight, np.stack([rows, columns], axis=1), penalty[rows, columns])

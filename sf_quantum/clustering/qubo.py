"""From several clusterings to the QUBO whose optimum is their consensus.

Every cluster of every clustering is a candidate; candidates that share a point overlap.
A consensus is a set of candidates without overlap: an independent set, of greatest weight
(N. Li and L. J. Latecki, Clustering aggregation as maximum-weight independent set, NIPS
2012; as a QUBO: R. Rocco et al., QCE 2025, eq. 1).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from dimod import BinaryQuadraticModel
from numpy.typing import NDArray

from sf_quantum.clustering.methods import Doubles, Ints
from sf_quantum.clustering.result import Clustering
from sf_quantum.errors import InputError

#: ``size``: eq. 1 of Rocco et al.; ``quality``: size times mean silhouette (Li, Latecki)
WEIGHTS = ("quality", "size")
#: ``candidates``: eq. 1's lambda; ``tight``: see :func:`penalties`
PENALTIES = ("tight", "candidates")


@dataclass(frozen=True)
class Candidate:
    """A cluster that the consensus may take."""

    #: which of the clusterings it comes from, from 0
    clustering: int
    method: str
    label: int
    size: int
    silhouette: float


@dataclass(frozen=True)
class Overlaps:
    """Which points and which candidates meet.

    An atom is a set of points that every clustering labels alike; a candidate is a set of
    atoms, so whatever holds of points can be worked out on a handful of atoms.
    """

    #: n: the atom of each point
    atoms: Ints
    candidates: list[Candidate]
    #: candidates by atoms
    members: NDArray[np.bool_]

    @property
    def pairs(self) -> NDArray[np.bool_]:
        """Candidates by candidates: whether two different ones share a point."""
        shared = (self.members.astype(np.int64) @ self.members.T.astype(np.int64)) > 0
        np.fill_diagonal(shared, False)
        return shared


def overlaps(clusterings: list[Clustering]) -> Overlaps:
    """Find the candidates of several clusterings of the same points, and their atoms.

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
    """A text that differs for other clusterings, and for the same in another order."""
    digest = hashlib.sha256()
    for clustering in clusterings:
        digest.update(clustering.labels.astype("<i4").tobytes())
    return digest.hexdigest()[:16]


def weights(candidates: list[Candidate], kind: str) -> Doubles:
    """The candidates' weights, the greatest of which is 1 (or all are 0 or less).

    :param kind: one of :data:`WEIGHTS`
    """
    size = np.array([c.size for c in candidates], float)
    raw = size if kind == "size" else size * [c.silhouette for c in candidates]
    greatest = float(raw.max(initial=0))
    return raw / (greatest if greatest > 0 else float(size.max(initial=1)))


def penalties(weight: Doubles, pairs: NDArray[np.bool_], kind: str) -> Doubles:
    """The penalty of each overlapping pair, 0 elsewhere.

    Leaving out the lighter of two overlapping candidates changes the energy by its weight
    less the penalty, so any penalty above the lighter weight keeps the optimum free of
    overlaps; the smaller it is, the lower the barriers an annealer has to cross.

    :param weight: C weights
    :param pairs: C by C, symmetric
    :param kind: ``tight``: 1.05 times the lighter weight; ``candidates``: C for all
    :returns: C by C
    """
    if kind == "candidates":
        return np.where(pairs, float(len(weight)), 0.0)
    lighter = np.minimum.outer(weight, weight)
    # a weight of 0 or less is never worth taking, but must not make an overlap free
    return np.where(pairs, 1.05 * np.where(lighter > 0, lighter, 0.05), 0.0)


def qubo(found: Overlaps, weights_kind: str, penalty_kind: str) -> BinaryQuadraticModel:
    """Build eq. 1 of Rocco et al. (2025): minimise -sum w_i x_i + sum l_ij x_i x_j.

    :returns: a binary model whose variable i is candidate i
    """
    weight = weights(found.candidates, weights_kind)
    pairs = found.pairs
    penalty = penalties(weight, pairs, penalty_kind)
    rows, columns = np.nonzero(np.triu(pairs))
    model = BinaryQuadraticModel("BINARY")
    # all variables first, so that they are in the order of the candidates
    model.add_linear_from((i, -float(w)) for i, w in enumerate(weight))
    model.add_quadratic_from(
        (int(i), int(j), float(penalty[i, j]))
        for i, j in zip(rows, columns, strict=True)
    )
    return model

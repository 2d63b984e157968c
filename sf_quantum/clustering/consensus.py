"""From samples of the QUBO to consensus partitions, their scores and agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dimod import SampleSet
from numpy.typing import NDArray

from sf_quantum.clustering.methods import Doubles, Ints, canonical
from sf_quantum.clustering.qubo import Overlaps
from sf_quantum.clustering.silhouette import DistanceSums, Score

#: the score of a consensus with a single cluster, or of none
NO_SCORE = -1.0
UNSCORED = Score(NO_SCORE, 0.0, exact=True)
#: partitions scored in one pass; each takes memory for a label per point
BATCH = 32
#: groups of points in one pass; each takes memory for a sum per point
GROUPS = 64


@dataclass(frozen=True)
class Selection:
    """The samples that choose the same clusters, or equal clusters of other methods."""

    #: for each candidate, whether it is chosen
    chosen: NDArray[np.bool_]
    #: the lowest energy of the samples
    energy: float
    #: the number of reads
    reads: int


@dataclass(frozen=True)
class Consensus:
    """A selection, completed to a partition of all n points, and its score."""

    selection: Selection
    #: n labels, counted from 0
    labels: Ints
    score: Score


def feasible_selections(overlap: Overlaps, samples: SampleSet) -> list[Selection]:
    """Return the distinct selections without overlap, lowest energy first.

    Samples are the same selection if they partition the points alike, whichever of
    several equal clusters they choose.

    :param samples: variable i is candidate i
    """
    if not len(samples.variables) or not len(samples):
        return []
    columns = np.argsort([int(variable) for variable in samples.variables])
    chosen = samples.record.sample[:, columns] > 0
    covers = chosen.astype(np.int64) @ overlap.members.astype(np.int64)
    allowed = (covers.max(axis=1, initial=0) == 1) & chosen.any(axis=1)
    equal: dict[bytes, list[int]] = {}
    order = np.argsort(samples.record.energy, kind="stable")
    for row in order[allowed[order]]:
        key = canonical(atom_clusters(overlap, chosen[row])).tobytes()
        equal.setdefault(key, []).append(row)
    energies, reads = samples.record.energy, samples.record.num_occurrences
    return [
        Selection(chosen[rows[0]], float(energies[rows[0]]), int(reads[rows].sum()))
        for rows in equal.values()
    ]


def atom_clusters(overlap: Overlaps, chosen: NDArray[np.bool_]) -> Ints:
    """Return each atom's chosen candidate, counted from 0 among the chosen, or -1."""
    members = overlap.members[chosen]
    return np.where(members.any(axis=0), members.argmax(axis=0), -1).astype(np.int32)


def score_selections(
    points: Doubles, overlap: Overlaps, selections: list[Selection], exact_up_to: int
) -> list[Consensus]:
    """Complete each selection to all points and score it.

    Points in no chosen cluster join the cluster with the nearest centroid (Rocco et
    al., 2025). If there are none, a partition maps atoms to clusters, and a single pass
    over the pairs of points scores many partitions; else atoms are split first.

    :param points: shape (n, d)
    :param exact_up_to: above this number of points, scores are estimates
    :returns: the consensus of each selection, in the same order
    """
    results: list[Consensus] = []
    batch: list[tuple[Selection, Ints]] = []
    groups = overlap.atoms
    centred = points - points.mean(axis=0)  # sums far from 0 lose precision
    for selection in selections:
        labels, complete = _complete(centred, overlap, selection)
        finer = groups if complete else _refine(groups, labels)
        cut = finer.max() > groups.max() and finer.max() >= GROUPS
        if batch and (len(batch) == BATCH or cut):
            results += _score(points, groups, batch, exact_up_to)
            batch, groups = [], overlap.atoms
            finer = groups if complete else _refine(groups, labels)
        batch.append((selection, labels))
        groups = finer
    return results + _score(points, groups, batch, exact_up_to)


def _score(
    points: Doubles,
    groups: Ints,
    batch: list[tuple[Selection, Ints]],
    exact_up_to: int,
) -> list[Consensus]:
    if not batch:
        return []
    distances = DistanceSums(points, groups, exact_up_to)
    representative = np.empty(distances.count, np.int64)
    representative[groups] = np.arange(len(groups))
    all_silhouettes = distances.silhouettes(
        [labels[representative] for _, labels in batch]
    )
    return [
        Consensus(
            selection, labels, silhouettes.mean() if labels.max() > 0 else UNSCORED
        )
        for (selection, labels), silhouettes in zip(batch, all_silhouettes, strict=True)
    ]


def _complete(
    points: Doubles, overlap: Overlaps, selection: Selection
) -> tuple[Ints, bool]:
    """Return the labels of all points, and whether the selection covers them all."""
    labels = atom_clusters(overlap, selection.chosen)[overlap.atoms]
    left = np.flatnonzero(labels < 0)
    if not len(left):
        return canonical(labels), True
    held = labels >= 0
    size = np.bincount(labels[held])
    centroids = np.stack(
        [np.bincount(labels[held], f[held]) / size for f in points.T], axis=1
    )
    squares = np.stack(
        [((points[left] - centroid) ** 2).sum(axis=1) for centroid in centroids]
    )
    labels[left] = squares.argmin(axis=0)
    return canonical(labels), False


def _refine(groups: Ints, labels: Ints) -> Ints:
    mixed = groups.astype(np.int64) * (int(labels.max()) + 1) + labels
    refined: Ints = np.unique(mixed, return_inverse=True)[1].astype(np.int32)
    return refined


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

"""From samples of the QUBO to consensus partitions, all of them scored in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from dimod import SampleSet
from numpy.typing import NDArray

from sf_quantum.clustering.methods import Doubles, Ints, canonical
from sf_quantum.clustering.qubo import Overlaps
from sf_quantum.clustering.silhouette import DistanceSums, Score

#: the score of a consensus that says nothing: none, or one of a single cluster
NO_SCORE = -1.0
#: partitions scored in one pass; each more costs a label per point of memory
BATCH = 32
#: groups of points in one pass; each more costs a sum per point of memory
GROUPS = 64


@dataclass(frozen=True)
class Selection:
    """The samples that choose the same clusters, up to equal ones of other methods."""

    #: candidates by truth
    chosen: NDArray[np.bool_]
    #: the lowest energy among the samples
    energy: float
    #: how many reads chose it
    reads: int


@dataclass(frozen=True)
class Consensus:
    """A selection, completed to a partition of all points, and its score."""

    selection: Selection
    #: n labels from 0
    labels: Ints
    score: Score


def feasible_selections(found: Overlaps, samples: SampleSet) -> list[Selection]:
    """The distinct selections without overlap, lowest energy first.

    Two samples are one selection if they cut the points alike, whichever of several equal
    clusters they name.

    :param samples: variable i is candidate i
    """
    if not len(samples.variables) or not len(samples):
        return []
    columns = np.argsort([int(variable) for variable in samples.variables])
    chosen = samples.record.sample[:, columns] > 0
    covers = chosen.astype(np.int64) @ found.members.astype(np.int64)
    allowed = (covers.max(axis=1, initial=0) == 1) & chosen.any(axis=1)
    selections: dict[bytes, Selection] = {}
    order = np.argsort(samples.record.energy, kind="stable")
    for row in order[allowed[order]]:
        key = canonical(atom_clusters(found, chosen[row])).tobytes()
        reads = int(samples.record.num_occurrences[row])
        if key in selections:
            before = selections[key]
            selections[key] = Selection(
                before.chosen, before.energy, before.reads + reads
            )
        else:
            energy = float(samples.record.energy[row])
            selections[key] = Selection(chosen[row], energy, reads)
    return list(selections.values())


def atom_clusters(found: Overlaps, chosen: NDArray[np.bool_]) -> Ints:
    """For each atom the chosen candidate it belongs to (counted from 0), or -1."""
    members = found.members[chosen]
    return np.where(members.any(axis=0), members.argmax(axis=0), -1).astype(np.int32)


def score_selections(
    points: Doubles, found: Overlaps, selections: list[Selection], exact_up_to: int
) -> list[Consensus]:
    """Complete each selection to all points and score it.

    Points in no chosen cluster join the one whose centroid is nearest (Rocco et al.,
    2025). Where no point is left over, a partition is a map of atoms and a single pass
    over the pairs of points serves all; where some are, atoms are cut finer first.

    :param points: n by d
    :param exact_up_to: above so many points the scores are estimates
    :returns: one for each selection, in their order
    """
    results: list[Consensus] = []
    batch: list[Ints] = []
    groups = found.atoms
    centred = points - points.mean(axis=0)  # far from 0, sums lose their digits
    for selection in selections:
        labels, complete = _complete(centred, found, selection)
        finer = groups if complete else _refine(groups, labels)
        cut = finer.max() > groups.max() and finer.max() >= GROUPS
        if batch and (len(batch) == BATCH or cut):
            results += _score(
                points, groups, batch, exact_up_to, selections[len(results) :]
            )
            batch, groups = [], found.atoms
            finer = groups if complete else _refine(groups, labels)
        batch.append(labels)
        groups = finer
    return results + _score(
        points, groups, batch, exact_up_to, selections[len(results) :]
    )


def _score(
    points: Doubles,
    groups: Ints,
    batch: list[Ints],
    exact_up_to: int,
    selections: list[Selection],
) -> list[Consensus]:
    if not batch:
        return []
    distances = DistanceSums(points, groups, exact_up_to)
    representative = np.empty(distances.count, np.int64)
    representative[groups] = np.arange(len(groups))
    partitions = [labels[representative] for labels in batch]
    scores = [
        silhouettes.mean() if partition.max() > 0 else Score(NO_SCORE, 0.0, True)
        for silhouettes, partition in zip(
            distances.silhouettes(partitions), partitions, strict=True
        )
    ]
    return [
        Consensus(selection, labels, score)
        for selection, labels, score in zip(selections, batch, scores, strict=False)
    ]


def _complete(
    points: Doubles, found: Overlaps, selection: Selection
) -> tuple[Ints, bool]:
    """Labels of all points, and whether none of them was left over."""
    of_atom = atom_clusters(found, selection.chosen)
    labels = of_atom[found.atoms]
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

"""The best consensus from samples, and the state of the loop over iterations.

Points have shape (n, d). Variable i of the samples is candidate i. An atom is a set of points
that have equal labels in every clustering (see ``consensus_qubo``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sf_quantum import structs
from sf_quantum.clustering.consensus_qubo import Overlaps
from sf_quantum.clustering.kernels import Doubles, Ints
from sf_quantum.clustering.methods import canonical
from sf_quantum.clustering.result import Clustering, Seed, labels_array
from sf_quantum.clustering.samples import Samples
from sf_quantum.clustering.silhouette import EXACT_UP_TO, DistanceSums, Score
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, read_json

#: score of a consensus with a single cluster, or without a cluster
NO_SCORE = -1.0
UNSCORED = Score(NO_SCORE, 0.0, exact=True)
#: maximum number of partitions in one pass; each takes memory for a label per point
BATCH = 32
#: maximum number of groups of points in one pass, unless a single partition needs more; each
#: group takes memory for a sum per point
GROUPS = 64


@dataclass(frozen=True)
class Selection:
    """Samples that choose the same clusters, or equal clusters of other clusterings."""

    #: Whether each candidate is chosen.
    chosen: NDArray[np.bool_]
    #: the lowest energy of the samples
    energy: float
    #: the total number of reads of the samples
    reads: int


@dataclass(frozen=True)
class Consensus:
    """A selection, extended to a partition of all n points, and its score."""

    selection: Selection
    #: n labels, counted from 0
    labels: Ints
    score: Score


def _energy(value: JSON) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise structs.expected("a number", value)
    return value


_Energy: TypeAlias = Annotated[float, _energy]
_Labels: TypeAlias = Annotated[list[int], lambda value: labels_array(value).tolist()]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of one iteration.

    :param exact: whether the score is exact, not estimated from a sample
    :param energy: energy of the best consensus; ``None`` if no sample is feasible
    :param lowest_energy: lowest energy of the feasible samples
    :param reads_that_end_alone: reads of samples whose score alone ends the loop
    :param adjusted_rand: agreement with the known clusters, if there are any
    """

    score: float
    score_error: float
    exact: bool
    clusters: int
    energy: _Energy | None
    lowest_energy: _Energy | None
    candidates: int
    reads: int
    feasible_reads: int
    feasible_samples: int
    scored_samples: int
    scored_reads: int
    reads_that_end_alone: int
    adjusted_rand: float | None = None


@dataclass(frozen=True)
class Input:
    """A clustering of an iteration, and the number of its clusters and of points in none."""

    method: str
    parameters: dict[str, JSON]
    clusters: int
    noise: int


@dataclass(frozen=True)
class BestInput:
    """A clustering of the best iteration."""

    method: str
    parameters: dict[str, JSON]
    labels: _Labels


@dataclass(frozen=True, kw_only=True)
class SamplerInfo:
    """What the samples' ``info`` has about the sampler, as the sampler reports it."""

    sampler: JSON = None
    qpu: JSON = None
    technology: JSON = None
    calibration: JSON = None
    timing: JSON = None
    presolve: JSON = None
    optimum: JSON = None
    optimal_share: JSON = None
    feasible_share: JSON = None
    sampler_seed: JSON = None


@dataclass(frozen=True, kw_only=True)
class Iteration(SamplerInfo, Figures):
    """The record of an iteration.

    :param iteration: its number, from 1
    """

    iteration: int
    seed: Seed
    clusterings: list[Input]

    def to_json(self) -> JSON:
        """Return the record as it is in the files."""
        record = {"iteration": self.iteration, "seed": self.seed, **asdict(self)}
        if self.adjusted_rand is None:
            del record["adjusted_rand"]
        return record


@dataclass(frozen=True)
class Criteria:
    """The criteria for the end of the loop, and for the samples that are scored."""

    #: score at which the loop ends
    threshold: float = 0.8
    #: maximum number of iterations
    limit: int = 10
    #: maximum difference between a scored sample's energy and the lowest energy, as a fraction
    #: of the absolute value of the lowest energy
    window: float = 0.1
    #: number of points above which silhouettes are estimated from a sample
    exact_up_to: int = EXACT_UP_TO


def best_consensus(
    points: Doubles, overlap: Overlaps, samples: Samples, criteria: Criteria
) -> tuple[Consensus, Figures]:
    """Score the consensus of every distinct feasible low-energy sample.

    :returns: the consensus with the highest score (all points in one cluster, with
        score -1, if no sample is feasible), and the iteration's figures
    """
    selections = feasible_selections(overlap, samples)
    reads = int(samples.reads.sum())
    lowest = selections[0].energy if selections else 0.0
    # an infinite window includes all samples even if the lowest energy is 0
    reach = criteria.window * max(abs(lowest), sys.float_info.min)
    low = [s for s in selections if s.energy - lowest <= reach]
    scored = score_selections(points, overlap, low, criteria.exact_up_to)
    # max() takes the first of equal scores, which has the lowest energy.
    nothing = Selection(np.zeros(len(overlap.candidates), bool), 0.0, 0)
    one_cluster: Ints = np.zeros(len(overlap.atoms), np.int32)
    unscored = Consensus(nothing, one_cluster, UNSCORED)
    best = max(scored, key=lambda c: c.score.mean, default=unscored)
    ending = [c for c in scored if c.score.mean >= criteria.threshold]
    return best, Figures(
        score=best.score.mean,
        score_error=best.score.error,
        exact=best.score.exact,
        clusters=int(best.labels.max()) + 1,
        energy=best.selection.energy if scored else None,
        lowest_energy=lowest if selections else None,
        candidates=len(overlap.candidates),
        reads=reads,
        feasible_reads=sum(s.reads for s in selections),
        feasible_samples=len(selections),
        scored_samples=len(scored),
        scored_reads=sum(s.reads for s in low),
        reads_that_end_alone=sum(c.selection.reads for c in ending),
    )


def feasible_selections(overlap: Overlaps, samples: Samples) -> list[Selection]:
    """Return the distinct selections without overlap, lowest energy first.

    Samples are the same selection if they give the same partition of the points, regardless
    of which of several equal clusters they choose.
    """
    chosen = samples.chosen
    if not chosen.size:
        return []
    covers = chosen.astype(np.int64) @ overlap.members.astype(np.int64)
    allowed = (covers.max(axis=1, initial=0) == 1) & chosen.any(axis=1)
    equal: dict[bytes, list[int]] = {}
    order = np.argsort(samples.energies, kind="stable")
    for row in order[allowed[order]]:
        key = canonical(atom_clusters(overlap, chosen[row])).tobytes()
        equal.setdefault(key, []).append(row)
    return [
        Selection(
            chosen[rows[0]],
            float(samples.energies[rows[0]]),
            int(samples.reads[rows].sum()),
        )
        for rows in equal.values()
    ]


def atom_clusters(overlap: Overlaps, chosen: NDArray[np.bool_]) -> Ints:
    """Number the chosen candidates, and return the number of each atom's candidate, or -1."""
    members = overlap.members[chosen]
    return np.where(members.any(axis=0), members.argmax(axis=0), -1).astype(np.int32)


def score_selections(
    points: Doubles, overlap: Overlaps, selections: list[Selection], exact_up_to: int
) -> list[Consensus]:
    """Extend each selection to a partition of all points, and score it.

    Points in no chosen cluster join the cluster with the nearest centroid (Rocco et
    al., 2025). A single pass over the pairs of points scores many partitions, if each
    partition maps the same groups of points to clusters. The groups are the atoms, which are
    split if points of an atom have joined different clusters.

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
        # with more groups, memory would not suffice, so the batch is scored before this
        # selection is added
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
    """Score the selections of a batch in one pass over the pairs of points."""
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
    """Return the labels of all points, and whether the selection covers all points."""
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
    _, true_labels = np.unique(np.asarray(truth), return_inverse=True)
    _, found_labels = np.unique(labels, return_inverse=True)
    table = np.zeros(
        (int(found_labels.max()) + 1, int(true_labels.max()) + 1), np.int64
    )
    np.add.at(table, (found_labels, true_labels), 1)
    shared = _pairs(table)
    found_pairs, true_pairs = _pairs(table.sum(axis=1)), _pairs(table.sum(axis=0))
    expected = found_pairs * true_pairs / _pairs(np.array([len(labels)]))
    maximum = (found_pairs + true_pairs) / 2
    return 1.0 if maximum == expected else (shared - expected) / (maximum - expected)


def _pairs(sizes: NDArray[np.integer]) -> float:
    return float((sizes * (sizes - 1) / 2).sum())


@dataclass
class State:
    """The state of the loop: a record of each iteration, and the best consensus."""

    iterations: list[Iteration] = field(default_factory=list)
    #: the number (from 1) of the iteration with the best score
    best: int = 0
    labels: _Labels = field(default_factory=list)
    clusterings: list[BestInput] = field(default_factory=list)

    @property
    def best_iteration(self) -> Iteration:
        return self.iterations[self.best - 1]

    @property
    def score(self) -> float:
        """The best score so far."""
        return self.best_iteration.score

    def again(self, criteria: Criteria) -> bool:
        """Whether the loop continues."""
        return self.score < criteria.threshold and len(self.iterations) < criteria.limit


def advance(
    state: State,
    consensus: Consensus,
    figures: Figures,
    clusterings: list[Clustering],
    info: Mapping[str, JSON],
    seed: int,
) -> None:
    """Add an iteration to the state.

    :param figures: figures that :func:`best_consensus` returned
    :param info: ``info`` of the samples
    """
    about = structs.read(SamplerInfo, {**info, "sampler_seed": info.get("seed")})
    iteration = Iteration(
        **vars(figures),
        **vars(about),
        iteration=len(state.iterations) + 1,
        seed=seed,
        clusterings=[
            Input(c.method, c.parameters, len(c.clusters), int((c.labels < 0).sum()))
            for c in clusterings
        ],
    )
    state.iterations.append(iteration)
    if len(state.iterations) == 1 or figures.score > state.score:
        state.best = len(state.iterations)
        state.labels = consensus.labels.tolist()
        state.clusterings = [
            BestInput(c.method, c.parameters, c.labels.tolist()) for c in clusterings
        ]


def summary(state: State, criteria: Criteria, points: int, features: int) -> JSON:
    """Summarize the run for people and scripts."""
    best = state.best_iteration
    return {
        "type": "summary",
        "score": best.score,
        "score_error": best.score_error,
        "exact": best.exact,
        "reached": best.score >= criteria.threshold,
        "clusters": best.clusters,
        "adjusted_rand": best.adjusted_rand,
        "best_iteration": state.best,
        "iterations": len(state.iterations),
        "points": points,
        "features": features,
        "criteria": {
            # JSON has no infinity
            name: value if math.isfinite(value) else str(value)
            for name, value in asdict(criteria).items()
        },
        "per_iteration": [iteration.to_json() for iteration in state.iterations],
    }


def read_state(path: str | Path, points: int) -> State:
    """Read the state of the previous iteration.

    :raises InputError: if the file is not a state, or has another number of points
    """
    content = read_json(path, "state")
    try:
        state = structs.read(State, content)
        sizes = {len(state.labels), *(len(c.labels) for c in state.clusterings)}
        if (
            not 1 <= state.best <= len(state.iterations)
            or not state.clusterings
            or len(sizes) > 1
        ):
            raise ValueError("best, labels and clusterings do not agree")
    except ValueError as error:
        raise InputError(
            f"{path}: not a state as sfq score writes it ({error})"
        ) from error
    if len(state.labels) != points:
        raise InputError(
            f"{path}: {len(state.labels)} labels, but there are {points} points"
        )
    return state


def state_content(state: State) -> JSON:
    """Convert the state to the form that :func:`read_state` reads."""
    return {
        "type": "state",
        "iterations": [iteration.to_json() for iteration in state.iterations],
        "best": state.best,
        "labels": [*state.labels],
        "clusterings": [vars(clustering) for clustering in state.clusterings],
    }

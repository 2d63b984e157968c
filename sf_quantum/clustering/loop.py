"""The state that the loop passes from one iteration to the next, and when it ends."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from dimod import SampleSet

from sf_quantum.clustering.consensus import (
    UNSCORED,
    Consensus,
    Selection,
    feasible_selections,
    score_selections,
)
from sf_quantum.clustering.methods import Doubles, Ints
from sf_quantum.clustering.qubo import Overlaps
from sf_quantum.clustering.result import Clustering
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, lack, read_json

#: keys of the samples' ``info`` that the summary keeps
INFO_KEYS = (
    "sampler qpu technology calibration timing presolve "
    "optimum optimal_share feasible_share"
).split()


@dataclass(frozen=True)
class Criteria:
    """When the loop ends, and which samples are scored."""

    #: the score at which the loop ends
    threshold: float = 0.8
    #: maximum number of iterations
    limit: int = 10
    #: maximum energy of scored samples above the lowest energy, relative to it
    window: float = 0.1
    #: number of points above which silhouettes are estimated from a sample
    exact_up_to: int = 200_000


@dataclass
class State:
    """The loop so far: a record of each iteration, and the best consensus."""

    iterations: list[dict[str, JSON]] = field(default_factory=list)
    #: the number (from 1) of the iteration with the best score
    best: int = 0
    labels: list[int] = field(default_factory=list)
    #: the best iteration's clusterings: method, parameters and labels of each
    clusterings: list[dict[str, JSON]] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The best score so far."""
        return cast(float, self.iterations[self.best - 1]["score"])

    def again(self, criteria: Criteria) -> bool:
        """Whether the loop continues."""
        return self.score < criteria.threshold and len(self.iterations) < criteria.limit


def best_consensus(
    points: Doubles, overlap: Overlaps, samples: SampleSet, criteria: Criteria
) -> tuple[Consensus, dict[str, JSON]]:
    """Score the consensus of every distinct feasible low-energy sample.

    :param points: shape (n, d)
    :param samples: of the problem built from ``overlap``
    :returns: the consensus with the highest score (all points in one cluster, with
        score -1, if no sample is feasible), and the iteration's record
    """
    selections = feasible_selections(overlap, samples)
    reads = int(samples.record.num_occurrences.sum()) if len(samples) else 0
    lowest = selections[0].energy if selections else 0.0
    # an infinite window includes all samples even if the lowest energy is 0
    reach = criteria.window * max(abs(lowest), sys.float_info.min)
    low = [s for s in selections if s.energy - lowest <= reach]
    scored = score_selections(points, overlap, low, criteria.exact_up_to)
    # of equal scores, max() takes the first, which has the lowest energy
    nothing = Selection(np.zeros(len(overlap.candidates), bool), 0.0, 0)
    one_cluster: Ints = np.zeros(len(overlap.atoms), np.int32)
    unscored = Consensus(nothing, one_cluster, UNSCORED)
    best = max(scored, key=lambda c: c.score.mean, default=unscored)
    ending = [c for c in scored if c.score.mean >= criteria.threshold]
    return best, {
        "score": best.score.mean,
        "score_error": best.score.error,
        "exact": best.score.exact,
        "clusters": int(best.labels.max()) + 1,
        "energy": best.selection.energy if scored else None,
        "lowest_energy": lowest if selections else None,
        "candidates": len(overlap.candidates),
        "reads": reads,
        "feasible_reads": sum(s.reads for s in selections),
        "feasible_samples": len(selections),
        "scored_samples": len(scored),
        "scored_reads": sum(s.reads for s in low),
        "reads_that_end_alone": sum(c.selection.reads for c in ending),
    }


def advance(
    state: State,
    consensus: Consensus,
    record: dict[str, JSON],
    clusterings: list[Clustering],
    info: Mapping[str, JSON],
    seed: int,
) -> None:
    """Add an iteration to the state.

    :param record: from :func:`best_consensus`
    :param info: ``info`` of the samples
    """
    inputs: list[dict[str, JSON]] = [
        {"method": c.method, "parameters": c.parameters} for c in clusterings
    ]
    iteration: dict[str, JSON] = {
        "iteration": len(state.iterations) + 1,
        "seed": seed,
        **record,
        **{name: info.get(name) for name in INFO_KEYS},
        "sampler_seed": info.get("seed"),
        "clusterings": [
            {
                **each,
                "clusters": len(c.clusters),
                "noise": int((c.labels < 0).sum()),
            }
            for each, c in zip(inputs, clusterings, strict=True)
        ],
    }
    state.iterations.append(iteration)
    if len(state.iterations) == 1 or cast(float, record["score"]) > state.score:
        state.best = len(state.iterations)
        state.labels = consensus.labels.tolist()
        state.clusterings = [
            {**each, "labels": c.labels.tolist()}
            for each, c in zip(inputs, clusterings, strict=True)
        ]


def summary(state: State, criteria: Criteria, points: int, features: int) -> JSON:
    """Summarize the run for people and scripts."""
    best = state.iterations[state.best - 1]
    return {
        "type": "summary",
        "score": state.score,
        "score_error": best["score_error"],
        "exact": best["exact"],
        "reached": state.score >= criteria.threshold,
        "clusters": best["clusters"],
        "adjusted_rand": best.get("adjusted_rand"),
        "best_iteration": state.best,
        "iterations": len(state.iterations),
        "points": points,
        "features": features,
        "criteria": {
            # JSON has no infinity
            name: value if math.isfinite(value) else str(value)
            for name, value in asdict(criteria).items()
        },
        "per_iteration": cast(JSON, state.iterations),
    }


def read_state(path: str | Path, points: int) -> State:
    """Read the state of the previous iteration.

    :param points: the number of points
    :raises InputError: if the file is not a state, or for another number of points
    """
    content = read_json(path, "state")
    try:
        state = State(
            cast("list[dict[str, JSON]]", content["iterations"]),
            int(cast(int, content["best"])),
            cast("list[int]", content["labels"]),
            cast("list[dict[str, JSON]]", content["clusterings"]),
        )
        # fails unless every key that the next steps read is there
        summary(state, Criteria(), points, 0)
        inputs = [c["labels"] for c in state.clusterings]
        sizes = [
            np.bincount(np.asarray(labels) + 1).sum()
            for labels in (state.labels, *inputs)
        ]
        if state.best < 1 or not inputs or len({*sizes}) > 1:
            raise ValueError("best, labels and clusterings do not agree")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"{path}: not a state as sfq score writes it ({lack(error)})"
        ) from error
    if len(state.labels) != points:
        raise InputError(
            f"{path}: {len(state.labels)} labels, but there are {points} points"
        )
    return state


def state_content(state: State) -> JSON:
    """Convert the state to the form that :func:`read_state` reads."""
    return cast(JSON, {"type": "state", **vars(state)})

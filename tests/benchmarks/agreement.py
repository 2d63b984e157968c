"""The agreement of the consensus with known clusters: a table of docs/reference/figures.md.

    python tests/benchmarks/agreement.py --aggregation FILE

Each row is the median over ten runs of the whole loop (first seeds 0, 10 ... 90,
default weights, penalty, threshold and limit). The methods' figures are for the
clusterings of the run's best iteration, from which the consensus was made. FILE is the
"Aggregation" set of A. Gionis, H. Mannila and P. Tsaparas (ACM TKDD 1(1), 2007) as CSV
with columns x, y, label; it is not shipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_iris, load_wine
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import StandardScaler

from sf_quantum.clustering.consensus import Criteria, State, advance, best_consensus
from sf_quantum.clustering.consensus_qubo import PENALTIES, WEIGHTS, overlaps
from sf_quantum.clustering.methods import METHODS, Ranges, apply, draw
from sf_quantum.clustering.points import read_points
from sf_quantum.clustering.result import Clustering, assess
from sf_quantum.samplers.neal import NealSampler
from tests.support import qubos


class Set(NamedTuple):
    """A set of points with known clusters."""

    name: str
    points: NDArray[np.float64]
    truth: list[str]
    ranges: Ranges


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aggregation", type=Path, metavar="FILE")
    args = parser.parse_args()
    print(f"| set | consensus | {' | '.join(METHODS)} | silhouette | clusters |")
    print("|---|" + "---|" * (len(METHODS) + 3))
    for known in sets(args.aggregation):
        runs = np.array([run(known, seed) for seed in range(0, 100, 10)])
        consensus, *methods, score, clusters = np.median(runs, axis=0)
        middle = np.median(runs[:, 1 : 1 + len(METHODS)], axis=1)
        print(
            f"| {known.name} | **{consensus:.3f}** | "
            + " | ".join(f"{m:.3f}" for m in methods)
            + f" | {score:.3f} | {clusters:.0f} |",
            flush=True,
        )
        below = int((runs[:, 0] < middle - 1e-9).sum())
        if below:
            print(f"below the median method in {below} of {len(runs)} runs")


def sets(aggregation: Path | None) -> Iterator[Set]:
    """Return the sets, with ranges that suit the scale of their features."""
    if aggregation is not None:
        points = read_points(aggregation, "label")
        name = f"Aggregation ({len(points.values)} points, 2 features, 7 clusters)"
        yield Set(name, points.values, cast("list[str]", points.truth), Ranges())
    iris = load_iris()
    yield Set(
        "iris (150, 4, 3)",
        np.ascontiguousarray(iris.data),
        [str(t) for t in iris.target],
        Ranges(clusters=(2, 6), radius=(0.3, 1.0)),
    )
    wine = load_wine()
    yield Set(
        "wine (178, 13, 3), standardised",
        StandardScaler().fit_transform(wine.data),
        [str(t) for t in wine.target],
        Ranges(clusters=(2, 6), radius=(1.8, 3.0), least=5),
    )


def run(known: Set, seed: int) -> tuple[float, ...]:
    """Run the loop once.

    :returns: adjusted Rand index of the consensus and of each method, silhouette,
        clusters
    """
    state, criteria = State(), Criteria()
    while not state.iterations or state.again(criteria):
        now = seed + len(state.iterations)
        clusterings = [_cluster(known, method, now) for method in METHODS]
        found = overlaps(clusterings)
        model = qubos.model(found, WEIGHTS[0], PENALTIES[0])
        samples = NealSampler().sample(model, num_reads=1000, seed=now)
        consensus, record = best_consensus(
            known.points, found, qubos.samples_of(samples), criteria
        )
        advance(state, consensus, record, clusterings, {}, now)
    labels = [state.labels]
    labels += [clustering.labels for clustering in state.clusterings]
    indices = [float(adjusted_rand_score(known.truth, found)) for found in labels]
    return (*indices, state.score, max(state.labels) + 1)


def _cluster(known: Set, method: str, seed: int) -> Clustering:
    parameters = draw(method, len(known.points), known.ranges, seed)
    labels = apply(method, known.points, parameters)
    clusters, _ = assess(known.points, labels, Criteria().exact_up_to)
    return Clustering(method, parameters, seed, True, clusters, labels)


if __name__ == "__main__":
    main()

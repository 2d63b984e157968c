"""Every distinct feasible sample becomes a partition, and the best one leads the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from dimod import SampleSet
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_samples

from sf_quantum.clustering import consensus
from sf_quantum.clustering.consensus import (
    NO_SCORE,
    Criteria,
    Figures,
    Input,
    Selection,
    State,
    advance,
    best_consensus,
    feasible_selections,
    read_state,
    score_selections,
    state_content,
    summary,
)
from sf_quantum.clustering.consensus_qubo import Overlaps, overlaps
from sf_quantum.clustering.kernels import Doubles, Ints
from sf_quantum.clustering.methods import canonical
from sf_quantum.clustering.result import Cluster, Clustering
from sf_quantum.clustering.samples import Samples
from sf_quantum.clustering.silhouette import DistanceSums
from sf_quantum.files import JSON, write_json
from tests.support import qubos

# dimod has no types for them
from_bqm: Callable[..., SampleSet] = SampleSet.from_samples_bqm
from_samples: Callable[..., SampleSet] = SampleSet.from_samples

quick = settings(derandomize=True, deadline=None, max_examples=60)


def clustering(labels: list[int], method: str = "kmeans") -> Clustering:
    """A clustering made by hand; every cluster is as good as any other."""
    numbered = canonical(np.array(labels))
    sizes = np.bincount(numbered[numbered >= 0])
    clusters = [Cluster(i, int(size), 0.5, 0.0) for i, size in enumerate(sizes)]
    return Clustering(method, {}, 0, True, clusters, numbered)


def case(n: int, clusters: int, seed: int) -> tuple[Doubles, list[Clustering]]:
    """Points, and three clusterings of them that differ a little; noise in the second."""
    random = np.random.default_rng(seed)
    points = random.normal(size=(n, 2)) + 3 * random.integers(0, 3, (n, 2))
    places = random.choice(n, min(clusters, n), replace=False)
    nearest = cdist(points, points[places]).argmin(axis=1)
    clusterings = []
    for share, lowest in ((0.0, 0), (0.2, -1), (0.1, 0)):
        labels = nearest.copy()
        moved = random.random(n) < share
        labels[moved] = random.integers(lowest, clusters, moved.sum())
        clusterings.append(clustering(labels.tolist()))
    return points, clusterings


cases = st.builds(case, st.integers(3, 40), st.integers(2, 4), st.integers(0, 10_000))


def every_sample(found: Overlaps) -> Samples:
    """All selections of candidates with their energies, in a shuffled order."""
    count = len(found.candidates)
    model = qubos.model(found, "size", "tight")
    rows = np.random.default_rng(0).permutation(2**count)
    samples = (rows[:, None] >> np.arange(count) & 1).astype(np.int8)
    return qubos.samples_of(from_bqm((samples, range(count)), model))


def samples_of(rows: list[list[int]], energies: list[float], **more: object) -> Samples:
    return qubos.samples_of(from_samples(rows, "BINARY", energies, **more))


def partition(found: Overlaps, chosen: NDArray[np.bool_]) -> frozenset[frozenset[int]]:
    """The chosen clusters as sets of points."""
    members = found.members[:, found.atoms]
    return frozenset(
        frozenset(np.flatnonzero(members[c]).tolist()) for c in np.flatnonzero(chosen)
    )


def reference_score(points: Doubles, labels: Ints) -> float:
    """scikit-learn's mean silhouette, -1 for one cluster, 0 for only singletons."""
    count = len(set(labels.tolist()))
    if count == 1:
        return NO_SCORE
    if count == len(points):
        return 0.0
    apart = cdist(points, points)
    return float(silhouette_samples(apart, labels, metric="precomputed").mean())


class TestFeasibleSelections:
    @quick
    @given(cases)
    def test_all_sets_without_overlap_and_no_other(
        self, a_case: tuple[Doubles, list[Clustering]]
    ) -> None:
        found = overlaps(a_case[1])
        samples = every_sample(found)
        expected: dict[frozenset[frozenset[int]], int] = {}
        for row in samples.chosen:
            clusters = partition(found, found.members.any(axis=1) & row)
            free = not any(a & b for a, b in combinations(clusters, 2))
            # two equal clusters of different methods overlap, too
            if len(clusters) == row.sum() > 0 and free:
                expected[clusters] = expected.get(clusters, 0) + 1
        selections = feasible_selections(found, samples)
        result = {partition(found, s.chosen): s.reads for s in selections}
        assert len(result) == len(selections)
        assert result == expected
        energies = [s.energy for s in selections]
        assert energies == sorted(energies)
        assert energies == pytest.approx(
            [-sum(map(len, p)) / max(c.size for c in found.candidates) for p in result]
        )

    def test_equal_clusters_merge_and_their_reads_add_up(self) -> None:
        found = overlaps([clustering([0, 0, 1]), clustering([0, 0, 1], "dbscan")])
        rows = [[1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 1], [1, 0, 1, 0], [1, 0, 0, 0]]
        samples = samples_of(
            rows, [-1.5, -1.4, -1.3, 9, -1], num_occurrences=[2, 3, 4, 5, 6]
        )
        both, first = feasible_selections(found, samples)
        assert (both.energy, both.reads) == (-1.5, 9)
        assert (first.energy, first.reads) == (-1, 6)

    def test_variables_in_another_order_are_the_same_candidates(self) -> None:
        found = overlaps([clustering([0, 0, 1, 2])])
        other = from_samples(([[0, 1, 0]], [2, 0, 1]), "BINARY", [-1.0])
        (selection,) = feasible_selections(found, qubos.samples_of(other))
        assert selection.chosen.tolist() == [True, False, False]

    def test_spins_are_as_good_as_bits(self) -> None:
        found = overlaps([clustering([0, 0, 1])])
        spins = from_samples([[1, -1]], "SPIN", [-1.0])
        (selection,) = feasible_selections(found, qubos.samples_of(spins))
        assert selection.chosen.tolist() == [True, False]

    def test_no_sample_no_selection(self) -> None:
        found = overlaps([clustering([0, 0, 1])])
        empty = from_samples(([], [0, 1]), "BINARY", [])
        assert feasible_selections(found, qubos.samples_of(empty)) == []
        assert feasible_selections(found, samples_of([[0, 0]], [0.0])) == []


class TestScore:
    @quick
    @given(cases)
    def test_score_is_scikit_learns_of_the_completed_labels(
        self, a_case: tuple[Doubles, list[Clustering]]
    ) -> None:
        points, clusterings = a_case
        found = overlaps(clusterings)
        selections = feasible_selections(found, every_sample(found))[:40]
        for result in score_selections(points, found, selections, 1_000):
            expected = reference_score(points, result.labels)
            assert result.score.mean == pytest.approx(expected, abs=1e-9)
            assert result.score.exact

    @quick
    @given(cases)
    def test_points_left_over_join_the_nearest_centroid(
        self, a_case: tuple[Doubles, list[Clustering]]
    ) -> None:
        points, clusterings = a_case
        found = overlaps(clusterings)
        selections = feasible_selections(found, every_sample(found))[-10:]
        for result in score_selections(points, found, selections, 1_000):
            clusters = [sorted(c) for c in partition(found, result.selection.chosen)]
            centroids = np.array([points[c].mean(axis=0) for c in clusters])
            expected = cdist(points, centroids).argmin(axis=1)
            for label, cluster in enumerate(clusters):
                expected[cluster] = label
            assert np.array_equal(result.labels, canonical(expected))

    @quick
    @given(cases, st.integers(1, 4), st.integers(1, 12))
    def test_batches_change_no_score(
        self, a_case: tuple[Doubles, list[Clustering]], batch: int, groups: int
    ) -> None:
        points, clusterings = a_case
        found = overlaps(clusterings)
        selections = feasible_selections(found, every_sample(found))[:20]
        together = score_selections(points, found, selections, 1_000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(consensus, "BATCH", batch)
            patch.setattr(consensus, "GROUPS", groups)
            apart = score_selections(points, found, selections, 1_000)
        assert [c.selection for c in apart] == selections
        for one, other in zip(together, apart, strict=True):
            assert np.array_equal(one.labels, other.labels)
            assert one.score.mean == pytest.approx(other.score.mean, abs=1e-12)

    def test_many_atoms_still_take_one_pass(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        random = np.random.default_rng(0)
        points = random.normal(size=(400, 2))
        clusterings = [
            clustering(canonical(random.integers(0, 5, 400)).tolist()) for _ in range(3)
        ]
        found = overlaps(clusterings)
        assert found.atoms.max() >= consensus.GROUPS
        whole = [Selection(np.repeat(np.arange(3) == i, 5), -1.0, 1) for i in range(3)]
        passes = []
        sums = DistanceSums

        def counted(*arguments: object) -> object:
            passes.append(arguments)
            return sums(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(consensus, "DistanceSums", counted)
        assert len(score_selections(points, found, whole, 1_000)) == 3
        assert len(passes) == 1

    def test_a_consensus_of_one_cluster_scores_minus_1(self) -> None:
        found = overlaps([clustering([0, 0, 0, 1])])
        one = Selection(np.array([True, False]), -1.0, 1)
        points = np.arange(8.0).reshape(4, 2)
        (result,) = score_selections(points, found, [one], 1_000)
        assert result.score.mean == NO_SCORE == -1
        assert result.labels.tolist() == [0, 0, 0, 0]

    def test_above_the_bound_the_score_is_an_estimate(self) -> None:
        points, clusterings = case(40, 3, 0)
        found = overlaps(clusterings)
        selections = feasible_selections(found, every_sample(found))[:3]
        for result in score_selections(points, found, selections, 39):
            assert not result.score.exact
            # all 40 are in the sample, but it does not claim to be exact
            assert result.score.error == 0


# eight points: two pairs of pairs; four clusters are better than two
POINTS = np.array(
    [[0, 0], [0, 1], [5, 0], [5, 1], [50, 0], [50, 1], [55, 0], [55, 1]], float
)
TWO = [0, 0, 0, 0, 1, 1, 1, 1]
FOUR = [0, 0, 1, 1, 2, 2, 3, 3]
BAD = [0, 1, 0, 1, 0, 1, 0, 1]
NOISE = [-1] * 8


def iterate(
    state: State,
    labels: list[int],
    criteria: Criteria,
    seed: int,
    feasible: bool = True,
) -> Figures:
    """One iteration of one clustering, all or none of whose clusters are sampled."""
    clusterings = [clustering(labels), clustering(NOISE, "dbscan")]
    found = overlaps(clusterings)
    row = [int(feasible)] * len(found.candidates)
    result, record = best_consensus(POINTS, found, samples_of([row], [-1.0]), criteria)
    advance(state, result, record, clusterings, {"sampler": "test", "seed": 9}, seed)
    return record


class TestBestConsensus:
    def test_the_best_scored_sample_wins_not_the_lowest(self) -> None:
        found = overlaps([clustering(TWO), clustering(BAD)])
        samples = samples_of([[0, 0, 1, 1], [1, 1, 0, 0]], [-2.0, -1.9])
        best, record = best_consensus(POINTS, found, samples, Criteria())
        assert best.labels.tolist() == TWO
        assert record.score == pytest.approx(reference_score(POINTS, best.labels))
        assert (record.energy, record.lowest_energy) == (-1.9, -2.0)
        assert (record.reads, record.feasible_reads) == (2, 2)
        assert (record.clusters, record.candidates) == (2, 4)
        assert record.reads_that_end_alone == 1

    @pytest.mark.parametrize(
        ("window", "scored"), [(0, 1), (0.04, 1), (0.06, 2), (0.5, 3), (np.inf, 4)]
    )
    def test_the_window_is_relative_to_the_lowest_energy(
        self, window: float, scored: int
    ) -> None:
        found = overlaps([clustering(FOUR)])
        rows = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
        samples = samples_of(rows, [-2.0, -1.9, -1.0, 0.5])
        _, record = best_consensus(POINTS, found, samples, Criteria(window=window))
        assert record.scored_samples == scored
        assert record.feasible_samples == 4

    @pytest.mark.parametrize(("window", "scored"), [(0.1, 2), (np.inf, 3)])
    def test_the_window_also_opens_from_an_energy_of_0(
        self, window: float, scored: int
    ) -> None:
        found = overlaps([clustering(FOUR)])
        samples = samples_of(
            [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], [0.0, 0.0, 0.1]
        )
        _, record = best_consensus(POINTS, found, samples, Criteria(window=window))
        assert record.scored_samples == scored

    def test_the_lowest_energy_is_that_of_the_feasible_samples(self) -> None:
        found = overlaps([clustering(TWO), clustering(BAD)])
        samples = samples_of([[1, 1, 1, 1], [1, 1, 0, 0]], [-9.0, -1.0])
        _, record = best_consensus(POINTS, found, samples, Criteria(window=0))
        assert (record.lowest_energy, record.feasible_reads) == (-1.0, 1)

    def test_without_feasible_sample_there_is_one_cluster_of_minus_1(
        self,
    ) -> None:
        found = overlaps([clustering(TWO), clustering(BAD)])
        best, record = best_consensus(
            POINTS, found, samples_of([[1, 1, 1, 1]], [-9.0]), Criteria()
        )
        assert best.labels.tolist() == [0] * 8
        assert (record.score, record.energy, record.lowest_energy) == (
            -1,
            None,
            None,
        )
        assert (record.reads, record.feasible_reads) == (1, 0)

    @quick
    @given(cases)
    def test_reads_that_end_alone_are_those_at_the_threshold(
        self, a_case: tuple[Doubles, list[Clustering]]
    ) -> None:
        points, clusterings = a_case
        found = overlaps(clusterings)
        samples = every_sample(found)
        selections = feasible_selections(found, samples)
        scored = score_selections(points, found, selections, 1_000)
        scores = [c.score.mean for c in scored]
        criteria = Criteria(threshold=float(np.median(scores)), window=np.inf)
        assume(min(scores) < max(scores))
        best, record = best_consensus(points, found, samples, criteria)
        assert best.score.mean == max(scores)
        assert record.reads_that_end_alone == sum(
            c.selection.reads for c in scored if c.score.mean >= criteria.threshold
        )


class TestLoop:
    def test_three_iterations_keep_the_best_and_go_on_to_the_limit(self) -> None:
        state, criteria = State(), Criteria(threshold=2, limit=3)
        again = []
        for seed, labels in enumerate([BAD, TWO, FOUR], start=5):
            iterate(state, labels, criteria, seed)
            again.append(state.again(criteria))
        assert again == [True, True, False]
        assert (state.best, state.labels) == (2, TWO)
        assert [i.seed for i in state.iterations] == [5, 6, 7]
        assert [i.iteration for i in state.iterations] == [1, 2, 3]
        assert state.score == max(i.score for i in state.iterations)
        assert [c.labels for c in state.clusterings] == [TWO, NOISE]

    def test_the_threshold_itself_ends_the_loop(self) -> None:
        state = State()
        iterate(state, TWO, Criteria(), 0)
        assert not state.again(Criteria(threshold=state.score))
        assert state.again(Criteria(threshold=np.nextafter(state.score, 1)))

    def test_of_equal_scores_the_first_stays(self) -> None:
        state = State()
        iterate(state, TWO, Criteria(), 0)
        iterate(state, [1 - label for label in TWO], Criteria(), 1)
        assert state.best == 1
        assert state.iterations[0].score == state.iterations[1].score

    def test_an_iteration_without_feasible_sample_goes_on(self) -> None:
        state = State()
        iterate(state, TWO, Criteria(), 0, feasible=False)
        assert (state.score, state.again(Criteria())) == (-1, True)
        iterate(state, BAD, Criteria(), 1)
        assert (state.best, state.labels) == (2, BAD)

    def test_the_record_says_who_made_the_samples_and_from_what(self) -> None:
        state = State()
        iterate(state, TWO, Criteria(), 4)
        (record,) = state.iterations
        assert (record.sampler, record.sampler_seed, record.seed) == (
            "test",
            9,
            4,
        )
        assert record.clusterings == [
            Input("kmeans", {}, clusters=2, noise=0),
            Input("dbscan", {}, clusters=0, noise=8),
        ]

    def test_summary(self) -> None:
        state, criteria = State(), Criteria(threshold=0.8)
        for seed, labels in enumerate([BAD, TWO]):
            iterate(state, labels, criteria, seed)
        content = cast("dict[str, JSON]", summary(state, criteria, *POINTS.shape))
        assert content.pop("per_iteration") == [i.to_json() for i in state.iterations]
        assert content.pop("score") == pytest.approx(
            reference_score(POINTS, canonical(np.array(TWO)))
        )
        assert content == {
            "type": "summary",
            "score_error": 0,
            "exact": True,
            "reached": True,
            "clusters": 2,
            "adjusted_rand": None,
            "best_iteration": 2,
            "iterations": 2,
            "points": 8,
            "features": 2,
            "criteria": {
                "threshold": 0.8,
                "limit": 10,
                "window": 0.1,
                "exact_up_to": 200_000,
            },
        }

    def test_the_state_survives_its_file(self, tmp_path: Path) -> None:
        state = State()
        iterate(state, TWO, replace(Criteria(), limit=2), 0)
        path = tmp_path / "state.json"
        write_json(path, state_content(state))
        assert read_state(path, 8) == state

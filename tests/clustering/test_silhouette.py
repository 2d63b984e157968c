"""Silhouettes are scikit-learn's; estimates come with an error that means what it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_samples

from sf_quantum.clustering import silhouette
from sf_quantum.clustering.kernels import Doubles, Ints
from sf_quantum.clustering.methods import canonical
from sf_quantum.clustering.result import assess
from sf_quantum.clustering.silhouette import DistanceSums
from sf_quantum.errors import InputError

quick = settings(derandomize=True, deadline=None, max_examples=80)


def cloud(kind: str, n: int, d: int, seed: int) -> Doubles:
    """Points of a kind that is awkward in its own way."""
    random = np.random.default_rng(seed)
    if kind == "grid":
        return random.integers(0, 4, (n, d)).astype(float)
    points = (
        random.normal(size=(n, d))
        + 4 * random.normal(size=(4, d))[random.integers(0, 4, n)]
    )
    if kind == "duplicated":
        points = points[random.integers(0, (n + 1) // 2, n)]
    if kind == "far":
        points[0] += 1e6
    return points


clouds = st.builds(
    cloud,
    st.sampled_from(["random", "duplicated", "grid", "far"]),
    st.integers(2, 90),
    st.integers(1, 8),
    st.integers(0, 10_000),
)
seeds = st.integers(0, 10_000)


def some_labels(points: Doubles, seed: int, noise: bool = False) -> Ints:
    """The nearest of a few random places, with a few points moved at random."""
    random = np.random.default_rng(seed)
    places = points[random.integers(0, len(points), random.integers(2, 9))]
    labels = cdist(points, places).argmin(axis=1)
    moved = random.random(len(points)) < 0.1
    labels[moved] = random.integers(-1 if noise else 0, 9, moved.sum())
    return canonical(labels)


def reference(points: Doubles, labels: Ints) -> Doubles:
    """scikit-learn's silhouettes from exact distances, 0 for a single cluster."""
    if len(set(labels.tolist())) < 2:
        return np.zeros(len(points))
    if len(set(labels.tolist())) == len(points):  # refused by scikit-learn
        return np.zeros(len(points))
    apart = cdist(points, points)
    return np.asarray(silhouette_samples(apart, labels, metric="precomputed"))


def exact(points: Doubles, labels: Ints) -> Doubles:
    """Our silhouettes in the order of the points; noise is NaN."""
    distances = DistanceSums(points, labels)
    result = distances.silhouettes([np.arange(distances.count)])[0]
    values = np.full(len(points), np.nan)
    values[result.rows] = result.values
    return values


@quick
@given(clouds, seeds)
def test_silhouettes_equal_scikit_learns(points: Doubles, seed: int) -> None:
    labels = some_labels(points, seed)
    expected = reference(points, labels)
    assert exact(points, labels) == pytest.approx(expected, abs=1e-9)


@quick
@given(clouds, seeds)
def test_noise_counts_nowhere(points: Doubles, seed: int) -> None:
    labels = some_labels(points, seed, noise=True)
    inside = labels >= 0
    values = exact(points, labels)
    assert np.array_equal(np.isnan(values), ~inside)
    if inside.any():
        expected = reference(points[inside], labels[inside])
        assert values[inside] == pytest.approx(expected, abs=1e-9)


def test_a_point_alone_in_its_cluster_has_0() -> None:
    points = np.array([[0.0], [1.0], [5.0]])
    assert exact(points, np.array([0, 0, 1]))[2] == 0


def test_points_in_one_place_have_0() -> None:
    assert exact(np.ones((6, 2)), np.array([0, 0, 0, 1, 1, 1])).tolist() == [0] * 6


def test_clusters_of_several_tiles_equal_scikit_learns() -> None:
    points = cloud("random", 1_500, 2, 5)
    labels = canonical((points[:, 0] > np.median(points[:, 0])).astype(int))
    assert np.bincount(labels).max() > 2 * 256
    expected = reference(points, labels)
    assert exact(points, labels) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_no_digits_are_lost_to_a_far_point(seed: int) -> None:
    # the farther of two clusters by its mean is the nearer by its mean distance
    random = np.random.default_rng(seed)
    high = random.uniform(0.3, 0.9)
    near = np.hypot(1, high) * 0.99
    points = np.array(
        [[0, 1e-3], [0, -1e-3], [1, high], [1, -high], [-near, 0], [-near, 0], [0, 0]]
    )
    points += 1e8 * random.uniform(-1, 0.3, 2)
    points[6] = 1e8
    labels = np.array([0, 0, 1, 1, 2, 2, 3])
    assert exact(points, labels) == pytest.approx(reference(points, labels), abs=1e-9)


@quick
@given(clouds, seeds)
def test_many_partitions_at_once_equal_one_at_a_time(
    points: Doubles, seed: int
) -> None:
    groups = some_labels(points, seed)
    count = int(groups.max()) + 1
    random = np.random.default_rng(seed)
    partitions = [
        canonical(random.integers(0, random.integers(1, 6), count)) for _ in range(5)
    ]
    together = DistanceSums(points, groups).silhouettes(partitions)
    for partition, result in zip(partitions, together, strict=True):
        expected = reference(points, partition[groups])
        assert result.values == pytest.approx(expected[result.rows], abs=1e-9)
        score = result.mean()
        assert score.mean == pytest.approx(expected.mean(), abs=1e-9)
        assert (score.error, score.exact) == (0, True)


@quick
@given(clouds, seeds)
def test_each_clusters_quality_is_the_mean_of_its_points(
    points: Doubles, seed: int
) -> None:
    labels = some_labels(points, seed, noise=True)
    values = exact(points, labels)
    for cluster in assess(points, labels, exact_up_to=1_000)[0]:
        inside = values[labels == cluster.label]
        assert cluster.size == len(inside)
        assert cluster.silhouette == pytest.approx(inside.mean(), abs=1e-12)
        assert cluster.error == 0


@pytest.mark.parametrize("exact_up_to", [0, 1_000])
def test_all_noise_has_no_cluster(exact_up_to: int) -> None:
    points = cloud("random", 12, 2, 0)
    assert assess(points, np.full(12, -1, np.int32), exact_up_to)[0] == []


@pytest.mark.parametrize("exact_up_to", [0, 1_000])
@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_the_result_does_not_depend_on_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, threads: str, exact_up_to: int
) -> None:
    points = cloud("random", 800, 3, 1)
    labels = some_labels(points, 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = assess(points, labels, exact_up_to)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert assess(points, labels, exact_up_to) == before


class TestSampled:
    """With ``SAMPLE`` of 80 from 600 points in four unequal groups."""

    @pytest.fixture(autouse=True)
    def small_sample(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(silhouette, "SAMPLE", 80)

    @pytest.fixture
    def points(self) -> Doubles:
        random = np.random.default_rng(11)
        centres = np.array([[0, 0], [3, 0], [0, 4], [7, 7]])
        return np.repeat(centres, (300, 150, 100, 50), axis=0) + random.normal(
            size=(600, 2)
        )

    @pytest.fixture
    def labels(self) -> Ints:
        return np.repeat(np.arange(4, dtype=np.int32), (300, 150, 100, 50))

    def errors_in_standard_errors(
        self, points: Doubles, labels: Ints, chosen: NDArray[np.bool_] | None = None
    ) -> Doubles:
        """Over 60 seeds: how far the estimate is off, in its own standard errors."""
        partition = np.arange(4)
        truth = DistanceSums(points, labels).silhouettes([partition])[0].mean(chosen)
        scores = [
            DistanceSums(points, labels, 0, seed)
            .silhouettes([partition])[0]
            .mean(chosen)
            for seed in range(60)
        ]
        assert not any(score.exact for score in scores)
        return np.array([(s.mean - truth.mean) / s.error for s in scores])

    def test_the_standard_error_is_calibrated(
        self, points: Doubles, labels: Ints
    ) -> None:
        off = self.errors_in_standard_errors(points, labels)
        assert np.abs(off).max() < 4
        assert 0.87 <= (np.abs(off) < 2).mean() <= 1
        assert 0.75 <= off.std() <= 1.3
        # no bias: the mean of 60 is within three of its own standard errors
        assert abs(off.mean()) < 3 * off.std() / np.sqrt(60)

    def test_a_clusters_standard_error_is_calibrated(
        self, points: Doubles, labels: Ints
    ) -> None:
        off = self.errors_in_standard_errors(points, labels, np.arange(4) == 0)
        assert np.abs(off).max() < 4
        assert 0.85 <= (np.abs(off) < 2).mean() <= 1

    def test_each_sampled_value_is_exact(self, points: Doubles, labels: Ints) -> None:
        result = DistanceSums(points, labels, 0).silhouettes([np.arange(4)])[0]
        assert 80 <= len(result.rows) <= 84
        expected = reference(points, labels)
        assert result.values == pytest.approx(expected[result.rows], abs=1e-9)

    def test_a_sample_of_everything_has_no_error(
        self, points: Doubles, labels: Ints, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(silhouette, "SAMPLE", 600)
        score = DistanceSums(points, labels, 0).silhouettes([np.arange(4)])[0].mean()
        assert score.mean == pytest.approx(reference(points, labels).mean())
        assert score.error == 0

    def test_every_cluster_is_sampled_however_small(self, points: Doubles) -> None:
        labels = np.array([0] * 597 + [1, 1, 2], np.int32)
        clusters, _ = assess(points, labels, exact_up_to=599)
        values = exact(points, labels)
        assert clusters[1].silhouette == pytest.approx(values[597:599].mean())
        assert clusters[2].silhouette == 0
        assert clusters[0].error > 0
        assert clusters[1].error == clusters[2].error == 0

    def test_up_to_the_bound_itself_it_is_exact(
        self, points: Doubles, labels: Ints
    ) -> None:
        assert DistanceSums(points, labels, 600).exact
        assert not DistanceSums(points, labels, 599).exact


@pytest.mark.parametrize("far", [1e12, 1e17, 1e20, 1e100])
def test_an_outlier_at_any_distance_changes_no_other_point(far: float) -> None:
    random = np.random.default_rng(1)
    centres = random.uniform(-3, 3, (5, 2))
    points = np.concatenate([c + random.normal(size=(40, 2)) for c in centres])
    labels = np.repeat(np.arange(5, dtype=np.int32), 40)
    alone = exact(points, labels)
    with_far = exact(np.vstack([points, [far, far]]), np.append(labels, np.int32(5)))
    assert with_far[:-1] == pytest.approx(alone, abs=1e-9)


def test_more_clusters_than_memory_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = cloud("random", 60, 2, 0)
    labels = np.arange(60, dtype=np.int32) % 6
    monkeypatch.setattr(silhouette, "MOST_SUMS", 100)
    _, counted = assess(points, labels, exact_up_to=1_000)
    assert not counted
    monkeypatch.setattr(silhouette, "MOST_SUMS", 30)
    with pytest.raises(InputError) as caught:
        assess(points, labels, exact_up_to=1_000)
    assert str(caught.value) == (
        "6 clusters of 60 points: too many to score; "
        "choose parameters that give at most 5"
    )

"""The three methods give the clusters that scikit-learn and SciPy give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN, KMeans

from sf_quantum.clustering.kernels import Doubles, Ints
from sf_quantum.clustering.methods import (
    MOST_ITERATIONS,
    canonical,
    dbscan,
    kmeans,
    single_linkage,
)
from sf_quantum.errors import InputError

quick = settings(derandomize=True, deadline=None, max_examples=60)
seeds = st.integers(0, 10_000)
dimensions = st.integers(1, 8)


def cloud(n: int, d: int, seed: int, blobs: int = 4) -> Doubles:
    """Points around a few centres, no two distances equal."""
    random = np.random.default_rng(seed)
    centres = 3 * random.normal(size=(blobs, d))
    return centres[random.integers(0, blobs, n)] + random.normal(size=(n, d))


def grid(n: int, d: int, seed: int) -> Doubles:
    """Points with many equal distances and duplicates."""
    return np.random.default_rng(seed).integers(0, 4, (n, d)).astype(float)


def lloyd(points: Doubles, centres: list[int]) -> tuple[Ints, bool]:
    """Lloyd's algorithm as it is written down, and whether a cluster went empty."""
    positions = points[centres]
    labels = np.full(len(points), -1)
    empty = False
    for _ in range(MOST_ITERATIONS):
        before = labels
        squares = ((points[:, None] - positions[None]) ** 2).sum(axis=2)
        labels = squares.argmin(axis=1)
        for cluster in range(len(centres)):
            if (labels == cluster).any():
                inside = points[labels == cluster]
                positions[cluster] = inside.sum(axis=0) / len(inside)
            else:
                empty = True
        if np.array_equal(before, labels):
            break
    return canonical(labels), empty


@quick
@given(st.integers(2, 120), dimensions, seeds, st.data())
def test_kmeans_equals_scikit_learn_from_the_same_centres(
    n: int, d: int, seed: int, data: st.DataObject
) -> None:
    points = cloud(n, d, seed)
    k = data.draw(st.integers(1, min(n, 10)))
    centres = np.random.default_rng(seed).choice(n, k, replace=False).tolist()
    # scikit-learn moves a centre that lost its points elsewhere
    assume(not lloyd(points, centres)[1])
    model = KMeans(k, init=points[centres], n_init=1, tol=0, max_iter=200)
    expected = canonical(model.fit(points).labels_)
    assert np.array_equal(kmeans(points, centres), expected)


@quick
@given(st.integers(1, 30), st.integers(1, 2), seeds, st.data())
def test_kmeans_takes_the_first_equal_centre_keeping_empty_ones(
    n: int, d: int, seed: int, data: st.DataObject
) -> None:
    half = grid(n, d, seed)
    # The mean, which is subtracted first, is 0 here: rounding would make equal distances
    # differ.
    points = np.concatenate([half, 3 - half]) - 1.5
    k = data.draw(st.integers(1, min(2 * n, 10)))
    centres = np.random.default_rng(seed).choice(2 * n, k, replace=False).tolist()
    assert np.array_equal(kmeans(points, centres), lloyd(points, centres)[0])


def test_kmeans_of_one_place_is_one_cluster() -> None:
    assert kmeans(np.ones((5, 2)), [0, 3, 4]).tolist() == [0] * 5


def test_kmeans_leaves_the_points_alone() -> None:
    points = cloud(30, 2, 0)
    before = points.copy()
    kmeans(points, [0, 1, 2])
    assert np.array_equal(points, before)


def check_dbscan(points: Doubles, radius: float, least: int) -> Ints:
    """Compare with scikit-learn up to border points in reach of several clusters."""
    labels = dbscan(points, radius, least)
    reference = DBSCAN(eps=radius, min_samples=least).fit(points)
    core = np.asarray(reference.core_sample_indices_, int)
    expected = reference.labels_
    assert np.array_equal(labels < 0, expected < 0)
    assert np.array_equal(canonical(labels[core]), canonical(expected[core]))
    apart = cdist(points, points[core])
    for row in np.setdiff1d(np.flatnonzero(labels >= 0), core):
        own = apart[row, labels[core] == labels[row]].min()
        assert own <= radius
        assert own == pytest.approx(apart[row].min(), rel=1e-12)
    return labels


@quick
@given(st.integers(2, 120), dimensions, seeds, st.floats(0.1, 4), st.integers(1, 8))
def test_dbscan_equals_scikit_learn_up_to_border_ties(
    n: int, d: int, seed: int, radius: float, least: int
) -> None:
    check_dbscan(cloud(n, d, seed), radius, least)


@quick
@given(
    st.integers(2, 80), st.integers(1, 4), seeds, st.sampled_from([1.0, 1.5, 2.0]),
    st.integers(1, 8),
)  # fmt: skip
def test_dbscan_reaches_the_radius_itself(
    n: int, d: int, seed: int, radius: float, least: int
) -> None:
    check_dbscan(grid(n, d, seed), radius, least)


def test_dbscan_of_a_larger_set_equals_scikit_learn() -> None:
    labels = check_dbscan(cloud(2_000, 2, 3), 0.3, 10)
    assert labels.max() > 0
    assert labels.min() == -1


@pytest.mark.parametrize("least", [7, 10**30])
def test_dbscan_without_core_point_is_all_noise(least: int) -> None:
    assert dbscan(cloud(6, 2, 0), 1.0, least).tolist() == [-1] * 6


@quick
@given(st.integers(2, 120), dimensions, seeds, st.data())
def test_single_linkage_equals_scipy(
    n: int, d: int, seed: int, data: st.DataObject
) -> None:
    points = cloud(n, d, seed)
    k = data.draw(st.integers(1, min(n, 10)))
    expected = fcluster(linkage(points, "single"), k, "maxclust")
    assert np.array_equal(single_linkage(points, k), canonical(expected))


@quick
@given(st.integers(2, 80), dimensions, seeds, st.data())
def test_single_linkage_with_ties_cuts_no_nearer_pair(
    n: int, d: int, seed: int, data: st.DataObject
) -> None:
    points = grid(n, d, seed)
    k = data.draw(st.integers(1, min(n, 10)))
    labels = single_linkage(points, k)
    assert sorted(set(labels.tolist())) == list(range(k))
    apart = cdist(points, points)
    longest_kept = 0.0
    for cluster in range(k):
        inside = np.ix_(labels == cluster, labels == cluster)
        # one more for each edge: SciPy takes a length of 0 for no edge
        tree = minimum_spanning_tree(apart[inside] + 1).data - 1
        longest_kept = max(longest_kept, tree.max(initial=0))
    between = apart[labels[:, None] != labels[None]]
    assert between.min(initial=np.inf) >= longest_kept - 1e-9


def test_single_linkage_takes_as_many_clusters_as_points() -> None:
    assert single_linkage(np.zeros((3, 2)), 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("clusters", [0, 6])
def test_more_clusters_than_points_are_refused(clusters: int) -> None:
    with pytest.raises(InputError, match=f"{clusters} clusters of 5 points: .* 1 to 5"):
        single_linkage(cloud(5, 2, 0), clusters)


def test_a_centre_that_is_no_row_is_refused() -> None:
    for centre in (-1, 5):
        with pytest.raises(InputError, match=f"centre {centre}: no such point; .*to 4"):
            kmeans(cloud(5, 2, 0), [0, centre])


@quick
@given(st.lists(st.integers(-1, 5), max_size=20))
def test_canonical_numbers_clusters_by_first_appearance(labels: list[int]) -> None:
    given_: NDArray[np.int64] = np.array(labels, np.int64)
    result = canonical(given_)
    assert np.array_equal(result < 0, given_ < 0)
    seen = list(dict.fromkeys(label for label in result.tolist() if label >= 0))
    assert seen == list(range(len(seen)))
    pairs = set(zip(labels, result.tolist(), strict=True))
    assert len(pairs) == len(set(labels)) == len(set(result.tolist()))

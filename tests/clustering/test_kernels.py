"""The compiled loops give what the plain definitions give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist

from sf_quantum.clustering import kernels
from sf_quantum.clustering.kernels import Doubles

quick = settings(derandomize=True, deadline=None, max_examples=80)


def cloud(kind: str, n: int, d: int, seed: int) -> Doubles:
    """Points of a kind that is awkward in its own way."""
    random = np.random.default_rng(seed)
    if kind == "grid":
        return random.integers(0, 4, (n, d)).astype(float)
    points = random.normal(size=(n, d))
    if kind == "clustered":
        points = points * 1e-3 + 10 * random.normal(size=(3, d))[np.arange(n) % 3]
    if kind == "duplicated":
        points = points[random.integers(0, (n + 1) // 2, n)]
    return points


clouds = st.builds(
    cloud,
    st.sampled_from(["random", "clustered", "duplicated", "grid"]),
    st.integers(2, 90),
    st.integers(1, 8),
    st.integers(0, 10_000),
)


def tree_lengths(points: Doubles) -> Doubles:
    """Sorted edge lengths of SciPy's minimum spanning tree."""
    # one more for each edge: SciPy takes a length of 0 for no edge
    apart = cdist(points, points) + 1
    return np.sort(minimum_spanning_tree(apart).data) - 1


@quick
@given(clouds)
def test_spatial_order_is_a_permutation_split_at_the_median(points: Doubles) -> None:
    order = kernels.spatial_order(points)
    assert sorted(order) == list(range(len(points)))
    if len(points) > 16:
        widest = int(np.ptp(points, axis=0).argmax())
        sorted_by_leaf = points[order, widest]
        half = len(points) // 2
        assert sorted_by_leaf[:half].max() <= sorted_by_leaf[half:].min()


@quick
@given(clouds, st.floats(0.01, 5), st.integers(1, 12))
def test_core_points_are_those_with_enough_neighbours(
    points: Doubles, radius: float, least: int
) -> None:
    neighbours = (cdist(points, points) <= radius).sum(axis=1)
    assert np.array_equal(
        kernels.core_points(points, radius, least), neighbours >= least
    )


@quick
@given(clouds, st.integers(0, 1_000), st.floats(0.01, 5))
def test_nearest_is_the_least_distance_within_the_radius(
    points: Doubles, seed: int, radius: float
) -> None:
    queries = cloud("random", 20, points.shape[1], seed)
    apart = cdist(queries, points)
    found = kernels.nearest(points, queries, radius)
    inside = apart.min(axis=1) <= radius
    assert np.array_equal(found >= 0, inside)
    rows = np.flatnonzero(inside)
    assert apart[rows, found[rows]] == pytest.approx(apart[rows].min(axis=1), rel=1e-12)


def test_a_neighbour_at_the_radius_itself_is_within() -> None:
    points = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert kernels.core_points(points, 5, 2).all()
    assert kernels.nearest(points[1:], points[:1], 5).tolist() == [0]
    assert not kernels.core_points(points, np.nextafter(5, 0), 2).any()
    assert kernels.nearest(points[1:], points[:1], np.nextafter(5, 0)).tolist() == [-1]


@quick
@given(clouds)
def test_spanning_tree_is_as_short_as_scipys(points: Doubles) -> None:
    edges, lengths = kernels.spanning_forest(points)
    assert len(edges) == len(points) - 1
    ends = points[edges]
    assert lengths == pytest.approx(np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1))
    # all minimum spanning trees have the same lengths, not only the same sum
    assert np.sort(lengths) == pytest.approx(tree_lengths(points), abs=1e-9)


@quick
@given(clouds)
def test_spanning_tree_joins_all_points(points: Doubles) -> None:
    edges, _ = kernels.spanning_forest(points)
    group = np.arange(len(points))
    for a, b in edges:
        assert group[a] != group[b], "a cycle"
        group[group == group[a]] = group[b]
    assert len(set(group.tolist())) == 1


@quick
@given(st.integers(2, 90), st.integers(1, 8), st.integers(0, 10_000))
def test_forest_keeps_the_edges_up_to_the_longest_inclusive(
    n: int, d: int, seed: int
) -> None:
    points = cloud("grid", n, d, seed)
    lengths = tree_lengths(points)
    for longest in (0.0, 1.0, 2.0):
        _, kept = kernels.spanning_forest(points, longest)
        expected = lengths[lengths <= longest + 1e-9]
        assert np.sort(kept) == pytest.approx(expected, abs=1e-9)


def test_forest_of_a_larger_set_is_as_short_as_scipys() -> None:
    points = cloud("clustered", 1_500, 3, 0)
    _, lengths = kernels.spanning_forest(points)
    assert np.sort(lengths) == pytest.approx(tree_lengths(points), abs=1e-9)


def test_one_point_has_no_edge() -> None:
    edges, lengths = kernels.spanning_forest(np.zeros((1, 2)))
    assert len(edges) == len(lengths) == 0


def test_an_array_with_strides_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        kernels.spatial_order(np.zeros((4, 4))[:, ::2])


@quick
@given(st.integers(0, 10_000), st.integers(1, 8))
def test_sums_that_are_needed_are_complete(seed: int, d: int) -> None:
    random = np.random.default_rng(seed)
    points = cloud("random", 60, d, seed)
    starts = np.array([0, 5, 20, 21, 40, 60])
    group = np.array([0, 0, 1, 2, 2], np.int32)
    need = random.random((5, 3)) < 0.4
    sums = kernels.pair_sums(points, starts, group, need)
    expected = np.add.reduceat(cdist(points, points), [0, 20, 21], axis=1)
    wanted = np.repeat(need, np.diff(starts), axis=0)
    assert sums[wanted] == pytest.approx(expected[wanted], rel=1e-12)


@pytest.mark.parametrize("threads", ["1", "2", "3,2", " 7 ", "0", "many", ""])
def test_sums_do_not_depend_on_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    points = cloud("random", 700, 3, 1)
    starts = np.array([0, 100, 350, 600, 700])
    group = np.array([0, 0, 1, 2], np.int32)
    need = np.ones((4, 3), bool)
    offsets = np.array([0, 350, 600, 700])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pairs = kernels.pair_sums(points, starts, group, need)
    groups = kernels.group_sums(points, points, offsets)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert np.array_equal(kernels.pair_sums(points, starts, group, need), pairs)
    assert np.array_equal(kernels.group_sums(points, points, offsets), groups)
    apart = cdist(points, points)
    expected = np.add.reduceat(apart, offsets[:-1], axis=1)
    assert pairs == pytest.approx(expected)
    assert groups == pytest.approx(expected)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 255])
def test_distances_are_right_to_the_last_bits(size: int) -> None:
    random = np.random.default_rng(size)
    lengths = 10 ** random.uniform(-140, 140, size) * random.choice([-1, 1], size)
    lengths[::5] = 0
    ends, origin = lengths[:, None], np.zeros((1, 1))
    each = np.arange(size + 1, dtype=np.int64)
    (sums,) = kernels.group_sums(origin, ends, each)
    assert (np.abs(sums - np.abs(lengths)) <= 2 * np.spacing(np.abs(lengths))).all()
    together = np.array([0, size], dtype=np.int64)
    ((total,),) = kernels.group_sums(origin, ends, together)
    assert total == pytest.approx(np.abs(lengths).sum(), rel=1e-13, abs=0)

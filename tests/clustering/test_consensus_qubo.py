"""The QUBO is eq. 1, its optimum has no overlap, and the penalty does not change it."""

from __future__ import annotations

from itertools import combinations, compress, islice, product

import numpy as np
import pytest
from dimod import BinaryQuadraticModel
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.clustering.consensus_qubo import (
    PENALTIES,
    WEIGHTS,
    Overlaps,
    overlaps,
    weights,
)
from sf_quantum.clustering.kernels import Doubles
from sf_quantum.clustering.methods import canonical
from sf_quantum.clustering.result import Cluster, Clustering
from sf_quantum.errors import InputError
from tests.support import qubos

quick = settings(derandomize=True, deadline=None, max_examples=80)


def clustering(
    labels: list[int], qualities: list[float] | None = None, method: str = "kmeans"
) -> Clustering:
    """A clustering made by hand."""
    numbered = canonical(np.array(labels))
    sizes = np.bincount(numbered[numbered >= 0])
    values = qualities or [0.5] * len(sizes)
    clusters = [
        Cluster(label, int(size), values[label], 0.0)
        for label, size in enumerate(sizes)
    ]
    return Clustering(method, {}, 0, True, clusters, numbered)


def random_clusterings(
    n: int, clusters: int, seed: int, repeat: bool
) -> list[Clustering]:
    """Three clusterings, the second with noise, the third perhaps equal to the first."""
    random = np.random.default_rng(seed)

    def one(lowest: int) -> Clustering:
        labels = random.integers(lowest, clusters, n)
        return clustering(labels.tolist(), random.uniform(-1, 1, clusters).tolist())

    first, second, third = one(0), one(-1), one(0)
    return [first, second, first if repeat else third]


# at most 12 candidates, so that all selections can be tried
several = st.builds(
    random_clusterings,
    st.integers(2, 40),
    st.integers(1, 4),
    st.integers(0, 10_000),
    st.booleans(),
)


def points_of(found: Overlaps, clusterings: list[Clustering]) -> list[set[int]]:
    """The points in each candidate, straight from the labels."""
    return [
        set(np.flatnonzero(clusterings[c.clustering].labels == c.label).tolist())
        for c in found.candidates
    ]


def all_selections(count: int) -> Doubles:
    """Every choice of ``count`` candidates, one a row."""
    rows = np.arange(2**count)[:, None] >> np.arange(count)
    return (rows & 1).astype(float)


def optimum(model: BinaryQuadraticModel) -> tuple[float, Doubles]:
    """The lowest energy, and every selection that has it."""
    selections = all_selections(model.num_variables)
    energies = model.energies((selections, range(model.num_variables)))
    lowest = float(energies.min())
    return lowest, selections[energies < lowest + 1e-9]


@quick
@given(several)
def test_candidates_are_all_clusters_of_all_clusterings(
    clusterings: list[Clustering],
) -> None:
    found = overlaps(clusterings)
    expected = [
        (i, c.label, c.size, c.silhouette)
        for i, one in enumerate(clusterings)
        for c in one.clusters
    ]
    assert [
        (c.clustering, c.label, c.size, c.silhouette) for c in found.candidates
    ] == expected
    assert [len(p) for p in points_of(found, clusterings)] == [e[2] for e in expected]


@quick
@given(several)
def test_an_atom_is_the_points_that_all_clusterings_label_alike(
    clusterings: list[Clustering],
) -> None:
    found = overlaps(clusterings)
    labels = list(zip(*(c.labels.tolist() for c in clusterings), strict=True))
    atom_of = dict(zip(labels, found.atoms.tolist(), strict=True))
    assert [atom_of[label] for label in labels] == found.atoms.tolist()
    assert sorted(atom_of.values()) == list(range(found.members.shape[1]))


@quick
@given(several)
def test_members_and_pairs_are_set_intersections(clusterings: list[Clustering]) -> None:
    found = overlaps(clusterings)
    points = points_of(found, clusterings)
    for candidate, inside in enumerate(points):
        covered = found.members[candidate][found.atoms]
        assert set(np.flatnonzero(covered).tolist()) == inside
    expected = np.array(
        [[i != j and bool(a & b) for j, b in enumerate(points)]
         for i, a in enumerate(points)]
    )  # fmt: skip
    assert np.array_equal(found.pairs, expected)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("weights", WEIGHTS)
@quick
@given(several, st.integers(0, 10_000))
def test_energy_is_eq_1(
    weights: str, penalty: str, clusterings: list[Clustering], seed: int
) -> None:
    found = overlaps(clusterings)
    points = points_of(found, clusterings)
    worth = [
        c.size * (c.silhouette if weights == "quality" else 1) for c in found.candidates
    ]
    scale = max(worth) if max(worth) > 0 else max(c.size for c in found.candidates)
    weight = [w / scale for w in worth]
    count = len(weight)
    selection = np.random.default_rng(seed).integers(0, 2, count)
    expected = -sum(weight[i] for i in range(count) if selection[i])
    for i, j in combinations(np.flatnonzero(selection), 2):
        if points[i] & points[j]:
            lighter = min(weight[i], weight[j])
            tight = 1.05 * (lighter if lighter > 0 else 0.05)
            expected += tight if penalty == "tight" else count
    model = qubos.model(found, weights, penalty)
    assert set(model.variables) == set(range(count))
    assert model.energy(dict(enumerate(selection))) == pytest.approx(expected)


@quick
@given(several)
def test_the_papers_qubo_has_its_weights_and_lambda(
    clusterings: list[Clustering],
) -> None:
    found = overlaps(clusterings)
    model = qubos.model(found, "size", "candidates")
    greatest = max(c.size for c in found.candidates)
    assert [model.get_linear(i) for i in range(len(found.candidates))] == pytest.approx(
        [-c.size / greatest for c in found.candidates]
    )
    assert set(model.quadratic.values()) <= {len(found.candidates)}


@pytest.mark.parametrize("weights", WEIGHTS)
@quick
@given(several)
def test_no_optimum_overlaps_and_both_penalties_have_the_same(
    weights: str, clusterings: list[Clustering]
) -> None:
    found = overlaps(clusterings)
    energies = []
    for penalty in PENALTIES:
        energy, best = optimum(qubos.model(found, weights, penalty))
        energies.append(energy)
        for selection in best:
            assert not (found.pairs & np.outer(selection, selection).astype(bool)).any()
    assert energies[0] == pytest.approx(energies[1])


@quick
@given(several)
def test_by_size_a_whole_clustering_is_optimal(
    clusterings: list[Clustering],
) -> None:
    found = overlaps(clusterings)
    energy, _ = optimum(qubos.model(found, "size", "tight"))
    n = len(found.atoms)
    assert energy == pytest.approx(-n / max(c.size for c in found.candidates))


@quick
@given(several)
def test_selections_of_as_many_points_tie_exactly(
    clusterings: list[Clustering],
) -> None:
    found = overlaps(clusterings)
    sizes = [c.size for c in found.candidates]
    weight = weights(found.candidates, "size")
    by_points: dict[int, set[float]] = {}
    for selection in islice(product((0, 1), repeat=len(sizes)), 4096):
        points = sum(compress(sizes, selection))
        by_points.setdefault(points, set()).add(sum(compress(weight, selection)))
    assert all(len(totals) == 1 for totals in by_points.values())


def test_a_clustering_of_noise_alone_has_no_candidate() -> None:
    found = overlaps([clustering([-1, -1, -1])])
    assert found.candidates == []
    assert qubos.model(found, "quality", "tight").num_variables == 0


def test_clusterings_of_different_points_are_refused() -> None:
    with pytest.raises(InputError, match="clusterings of 3, 2 points"):
        overlaps([clustering([0, 0, 1]), clustering([0, 1])])

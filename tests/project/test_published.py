"""The generators of published problems, against what their authors publish."""

from __future__ import annotations

from tests.benchmarks.published import Flip, cut, random_graph


def test_random_numbers_are_those_of_the_stanford_graphbase() -> None:
    """The values are those of Knuth's own test."""
    flip = Flip(-314159)
    assert flip.below(2**31) == 119318998
    for _ in range(133):
        flip.below(2**31)
    assert flip.below(0x55555555) == 748103812


def test_a_graph_of_rudy_has_the_edges_of_g1() -> None:
    """The number is that of the published graph; the edges are the first and last drawn."""
    near = random_graph(800, 6, 8001)
    assert sum(map(len, near)) == 2 * 19176
    assert all(len({*others} - {u}) == len(others) for u, others in enumerate(near))
    assert (near[0][-1], near[0][-2]) == (559, 502)


def test_the_energy_of_a_cut_is_minus_its_weight() -> None:
    model = cut(20, 50, 3, signs=True)
    weights = {
        (u, v): float(2 * model.get_quadratic(u, v))
        for u, others in enumerate(random_graph(20, 50, 3))
        for v in others
        if u < v
    }
    assert {*weights.values()} == {-1.0, 1.0}
    sides = [1 if i % 3 else -1 for i in range(20)]
    weight = sum(w for (u, v), w in weights.items() if sides[u] != sides[v])
    assert model.energy(sides) == -weight

"""What every optimum agrees on, against all states of small problems."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.samplers import reduction
from sf_quantum.samplers.reduction import Quadratic, exclusions, reduce

# whole numbers make ties
BIASES = st.integers(-3, 3)
SCALES = st.sampled_from([1.0, 1e3, 1e6, 1e9, 1e10, 1e12, 1e15, 1e18])


@st.composite
def quadratics(draw: st.DrawFn) -> Quadratic:
    """Up to eight variables with biases of either sign."""
    size = draw(st.integers(1, 8))
    linear = draw(st.lists(BIASES, min_size=size, max_size=size))
    pairs = [(i, j, draw(BIASES)) for i in range(size) for j in range(i)]
    return Quadratic.of(linear, pairs)


@st.composite
def independent_sets(draw: st.DrawFn) -> Quadratic:
    """Weights of at least 1, and overlaps that cost just more than the lighter of two."""
    size = draw(st.integers(1, 9))
    weights = [draw(st.integers(1, 4)) for _ in range(size)]
    overlaps = draw(st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8))))
    pairs = [
        (i, j, 1.05 * min(weights[i], weights[j])) for i, j in overlaps if i < j < size
    ]
    return Quadratic.of([-w for w in weights], pairs)


@st.composite
def penalties(draw: st.DrawFn) -> Quadratic:
    """Costs from 1 to 9, and groups of which one has to be chosen, at any penalty."""
    size, penalty = draw(st.integers(2, 9)), draw(SCALES)
    linear = [draw(st.integers(1, 9)) - penalty for _ in range(size)]
    pairs = [
        (i, j, 2 * penalty if i // 3 == j // 3 else draw(BIASES))
        for i in range(size)
        for j in range(i)
    ]
    return Quadratic.of(linear, pairs)


@st.composite
def doubles(draw: st.DrawFn) -> Quadratic:
    """Doubles whose sums doubles round, so that many of them nearly tie."""
    size = draw(st.integers(1, 7))
    linear = [draw(BIASES) / 10 * draw(SCALES) for _ in range(size)]
    pairs = [(i, j, draw(BIASES) / 10) for i in range(size) for j in range(i)]
    return Quadratic.of(linear, pairs)


PROBLEMS = st.one_of(quadratics(), independent_sets(), penalties(), doubles())


def optima(problem: Quadratic) -> list[tuple[int, ...]]:
    states = [*product((0, 1), repeat=len(problem.linear))]
    energies = [problem.energy(state) for state in states]
    least = min(energies)
    return [s for s, e in zip(states, energies, strict=True) if e == least]


@settings(max_examples=300, deadline=None)
@given(PROBLEMS)
def test_the_optima_of_what_is_left_are_those_of_the_whole(problem: Quadratic) -> None:
    found = reduce(problem)
    whole = {*optima(problem)}
    blocks = [[dict(found.fixed)], *([{i: 0}, {i: 1}] for i in found.free)]
    for part in found.parts:
        states = optima(found.left.part(part))
        blocks.append([dict(zip(part, state, strict=True)) for state in states])
    together = set()
    for chosen in product(*blocks):
        values = {i: value for block in chosen for i, value in block.items()}
        together.add(tuple(values[i] for i in range(len(problem.linear))))
    assert together == whole


@settings(max_examples=200, deadline=None)
@given(PROBLEMS)
def test_no_optimum_has_both_of_a_pair_that_is_excluded(problem: Quadratic) -> None:
    for i, j in exclusions(problem):
        assert not any(state[i] and state[j] for state in optima(problem))


def test_pairs_with_a_penalty_above_a_weight_are_excluded() -> None:
    problem = Quadratic.of([-1, -2, -3], [(0, 1, 1.05), (1, 2, 1.5)])
    assert exclusions(problem) == [(0, 1)]


def test_a_heavier_pair_outdoes_the_candidate_that_covers_it() -> None:
    # 2 covers 0 and 1, as a cluster does that another method splits
    split = [(0, 2, 9.0), (1, 2, 9.0)]
    assert reduce(Quadratic.of([-2, -3, -4], split)).fixed == {0: 1, 1: 1, 2: 0}
    # as heavy as both together: a tie, and nothing may be fixed
    tied = reduce(Quadratic.of([-2, -3, -5], split))
    assert (tied.fixed, tied.parts) == ({}, [[0, 1, 2]])


def test_energies_of_doubles_tie_only_if_they_are_equal() -> None:
    near = Quadratic.of([-0.1, -0.2, -0.3], [(0, 2, 9.0), (1, 2, 9.0)])
    assert Fraction(0.1) + Fraction(0.2) > Fraction(0.3)
    assert reduce(near).fixed == {0: 1, 1: 1, 2: 0}
    tied = Quadratic.of([-0.125, -0.25, -0.375], [(0, 2, 1e300), (1, 2, 1e300)])
    assert reduce(tied).fixed == {}


def test_isolated_and_indifferent_variables() -> None:
    found = reduce(Quadratic.of([-1, 2, 0], []))
    assert found.fixed == {0: 1, 1: 0}
    assert found.free == [2]
    assert found.parts == []


def test_a_large_dense_problem_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 400
    pairs = [(i, j, 1.5) for i in range(size) for j in range(i)]
    problem = Quadratic.of([-1.0 - i / size for i in range(size)], pairs)
    compared = 0
    exclude = reduction._Reducer.exclude

    def counted(self: reduction._Reducer, i: int, j: int) -> bool:
        nonlocal compared
        compared += 1
        return exclude(self, i, j)

    monkeypatch.setattr(reduction._Reducer, "exclude", counted)
    found = reduce(problem)
    # rule 3 compares one variable with all others, at the cost of the square of their
    # number; without a limit it does so for each variable, 150,000 times in total
    assert 0 < compared < 10_000
    # what it has decided until then is right: the heaviest variables are not dropped
    assert set(found.fixed.values()) <= {0}
    assert {*range(size // 2, size)} <= {i for part in found.parts for i in part}

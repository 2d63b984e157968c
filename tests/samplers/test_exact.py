"""The true optimum, against every state and against the clock."""

from __future__ import annotations

import math
import random
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pytest
from dimod import BinaryQuadraticModel, ExactSolver, SampleSet
from highspy import Highs, HighsModelStatus
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.errors import InputError
from sf_quantum.samplers import exact
from sf_quantum.samplers.exact import ExactSampler
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.samplers.presolve import Presolve
from sf_quantum.samplers.reduction import Quadratic
from sf_quantum.samplers.states import all_energies
from tests.benchmarks.published import pardalos_rodgers


def mixed(seed: int, size: int) -> BinaryQuadraticModel:
    """Whole biases of either sign, and pairs that exclude each other among them."""
    draw = random.Random(seed)
    model = BinaryQuadraticModel("BINARY")
    model.add_linear_from((i, draw.randint(-4, 4)) for i in range(size))
    for i in range(size):
        for j in range(i):
            if draw.random() < 0.5:
                model.add_quadratic(i, j, draw.choice([-2, -1, 1, 2, 9]))
    model.offset = draw.randint(-5, 5)
    return model


@pytest.mark.parametrize("seed", range(15))
def test_every_optimum_and_no_other(seed: int) -> None:
    bqm = mixed(seed, size=3 + seed % 7)
    states = ExactSolver().sample(bqm)  # type: ignore[no-untyped-call]
    lowest = states.record.energy.min()
    optima = {
        tuple(int(bit) for bit in row)
        for row in states.record.sample[states.record.energy == lowest]
    }
    samples = ExactSampler().sample(bqm, seed=seed)
    assert {tuple(row) for row in samples.record.sample.tolist()} == optima
    assert len(samples) == len(optima)
    assert samples.info["proven"] is samples.info["complete"] is True
    assert samples.info["bound"] == pytest.approx(lowest)


def test_no_more_optima_than_asked_for() -> None:
    free = BinaryQuadraticModel({i: 0.0 for i in range(6)}, {}, 0.0, "BINARY")
    samples = ExactSampler().sample(free, num_reads=10, seed=1)
    assert len({tuple(row) for row in samples.record.sample.tolist()}) == 10
    assert samples.info["proven"] is True
    assert samples.info["complete"] is False


def test_small_biases_are_solved_as_large_ones_are() -> None:
    bqm = mixed(3, 9)
    tiny = mixed(3, 9)
    tiny.scale(2.0**-30)  # type: ignore[no-untyped-call]
    first, again = (ExactSampler().sample(model, seed=1) for model in (bqm, tiny))
    assert {tuple(row) for row in first.record.sample.tolist()} == {
        tuple(row) for row in again.record.sample.tolist()
    }


@pytest.mark.parametrize("penalty", [10.0, 1e9, 1e15])
def test_a_penalty_hides_no_difference_of_weights(penalty: float) -> None:
    bqm = BinaryQuadraticModel(
        {"a": -1.0, "b": -0.5, "c": 0.25, "d": penalty}, {"ab": penalty}, 0.0, "BINARY"
    )
    for sampler in (ExactSampler(), Presolve(ExactSampler())):
        samples = sampler.sample(bqm, seed=1)
        (found,) = samples.samples()  # type: ignore[no-untyped-call]
        assert dict(found) == {"a": 1, "b": 0, "c": 0, "d": 0}
        assert samples.info["proven"] is samples.info["complete"] is True


def test_without_gains_nothing_is_chosen() -> None:
    bqm = BinaryQuadraticModel({"a": 1e-9, "b": 1e9, "c": 0.0}, {}, 0.0, "BINARY")
    samples = ExactSampler().sample(bqm, seed=1)
    assert sorted(samples.record.sample.tolist()) == [[0, 0, 0], [0, 0, 1]]


def test_out_of_time_it_says_so() -> None:
    # couplings of either sign between all of 120 variables: no solver ends this soon
    draw = random.Random(1)
    model = BinaryQuadraticModel("BINARY")
    for i in range(120):
        for j in range(i):
            model.add_quadratic(i, j, draw.choice([-1.0, 1.0]))
    samples = ExactSampler().sample(model, seed=1, time_limit=0.3)
    assert len(samples) == 1
    assert samples.info["proven"] is samples.info["complete"] is False
    assert samples.info["bound"] < samples.first.energy
    assert samples.first.energy == model.energy(samples.first.sample)


def test_a_solver_that_gives_up_had_time_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as HiGHS does next to a bias that is 1e9 times as large as another
    monkeypatch.setattr(Highs, "getModelStatus", lambda _: HighsModelStatus.kUnknown)
    model = mixed(1, exact.ENUMERATED + 1)
    samples = ExactSampler().sample(model, seed=1, num_reads=5)
    assert samples.info["complete"] is False
    assert samples.info["incomplete"] == exact.UNSOLVED


@pytest.mark.parametrize("seed", range(4))
def test_all_of_thousands_of_ties_are_listed(seed: int) -> None:
    # half of the variables, whichever: the programs would have to find them one by one
    size = 15 + seed
    model = BinaryQuadraticModel("BINARY")
    model.add_linear_from((i, 1e10 * (1 - 2 * (size // 2))) for i in range(size))
    model.add_quadratic_from((i, j, 2e10) for i, j in combinations(range(size), 2))
    samples = ExactSampler().sample(model, num_reads=50_000, seed=1)
    assert len(samples) == math.comb(size, size // 2)
    assert samples.info["proven"] is samples.info["complete"] is True


def test_it_returns_nothing_worse_than_its_annealing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    annealed: list[float] = []

    class Noted(NealSampler):
        def sample(self, bqm: BinaryQuadraticModel, **options: Any) -> SampleSet:
            found = super().sample(bqm, **options)
            annealed.append(found.first.energy)
            return found

    monkeypatch.setattr(exact, "NealSampler", Noted)
    model = pardalos_rodgers(100, 1.0, 100, 50, seed=1)
    samples = ExactSampler().sample(model, seed=1, time_limit=1.0)
    assert len(annealed) == 2  # a short one, and one after the first tenth of the time
    assert samples.first.energy <= min(annealed)
    assert samples.info["incomplete"] == exact.OUT_OF_TIME
    gap = samples.first.energy - samples.info["bound"]
    assert gap > 0
    assert samples.info["gap"] == pytest.approx(gap)


def test_the_annealings_end_within_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, step = 0.0, 0.01

    class Slow(NealSampler):
        def sample(self, bqm: BinaryQuadraticModel, **options: Any) -> SampleSet:
            nonlocal now
            assert self._interrupted
            while not self._interrupted():
                now += step
            return super().sample(bqm, **{**options, "num_reads": 1})

    def solve(self: exact._Program, *_: object) -> tuple[None, None, bool]:
        nonlocal now
        now += 0.8  # of 1; the limit of the first solve is 0.1, which HiGHS may exceed
        self.out_of_time = True
        return None, None, False

    monkeypatch.setattr(exact, "NealSampler", Slow)
    monkeypatch.setattr(exact._Program, "solve", solve)
    monkeypatch.setattr(exact, "time", SimpleNamespace(monotonic=lambda: now))
    model = pardalos_rodgers(100, 1.0, 100, 50, seed=1)
    samples = ExactSampler().sample(model, seed=1, time_limit=1.0)
    assert samples.info["incomplete"] == exact.OUT_OF_TIME
    assert now <= 1.0 + 0.8 + 2 * step


WEIGHTS = st.sampled_from(
    [0, 1, 2, 3, 9, 10**4, 10**4 - 3, 10**9, 10**9 + 7, -(10**12)]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(WEIGHTS, min_size=1, max_size=6), st.lists(WEIGHTS, max_size=15))
def test_smaller_penalties_keep_the_order_of_all_states(
    linear: list[int], others: list[int]
) -> None:
    pairs = zip(combinations(range(len(linear)), 2), others, strict=False)
    problem = Quadratic.of(linear, [(i, j, bias) for (i, j), bias in pairs])
    order = exact._ordered(problem)
    before = all_energies(problem).tolist()
    after = all_energies(order.problem).tolist()
    ranks = [sorted({*energies}).index for energies in (before, after)]
    assert [*map(ranks[0], before)] == [*map(ranks[1], after)]
    for bound in {*after, *(energy + 1 for energy in after), min(after) - 5}:
        at_least = [b for a, b in zip(after, before, strict=True) if a >= bound]
        assert not at_least or order.bound(bound) <= min(at_least)
    # a bound that is reached is not weakened
    assert order.bound(min(after)) == min(before)


def test_equal_candidates_are_expanded() -> None:
    """Three times the same two clusterings, of two and of three clusters."""
    model = BinaryQuadraticModel("BINARY")
    candidates = [*product(range(5), "abcde")]
    for candidate in candidates:
        model.add_linear(candidate, -3.0 if candidate[1] in "ab" else -2.0)
    for one, other in combinations(candidates, 2):
        if one[1] == other[1] or (one[1] in "ab") != (other[1] in "ab"):
            model.add_quadratic(one, other, 6.5)
    samples = ExactSampler().sample(model, seed=1)
    assert len(model.variables) == 25
    assert {*samples.record.energy.tolist()} == {-6.0}
    assert len({tuple(row) for row in samples.record.sample.tolist()}) == 5**2 + 5**3
    assert samples.info["complete"] is True
    fewer = ExactSampler().sample(model, seed=1, num_reads=40)
    assert (len(fewer), fewer.info["incomplete"]) == (40, exact.MORE_OPTIMA)


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), True, "1"])
def test_wrong_time_limits(wrong: float) -> None:
    with pytest.raises(InputError, match=r"time_limit: .*: expected a number above 0"):
        ExactSampler().sample(mixed(1, 3), time_limit=wrong)


def test_more_reads_than_a_list_can_have_are_refused() -> None:
    bqm = BinaryQuadraticModel({"a": 1.0}, {}, 0.0, "BINARY")
    with pytest.raises(InputError, match="num_reads: 1000000000000000000000 is out"):
        Presolve(ExactSampler()).sample(bqm, num_reads=10**21)

"""Optima, ties and energies at penalties from 1 to 1e15, against rational arithmetic.

All states of small problems are evaluated with fractions, in the problem as it is given.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator
from fractions import Fraction
from itertools import combinations, product

import pytest
from dimod import SPIN, BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler

from sf_quantum import samplers
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers import exact, presolve
from sf_quantum.samplers.exact import ExactSampler
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.samplers.presolve import LeasedPresolve, Presolve
from tests.support.random_bqms import PENALTIES as RANDOM_PENALTIES
from tests.support.random_bqms import random_bqm

State = tuple[int, ...]
PENALTIES = (1.0, 10.0, 1e3, 1e6, 1e9, 1e10, 1e10 / 3, 1e12, 1e15)
#: up to which biases are as published QUBOs have them
LARGEST = 1e18
READS = 50
#: parameters with which a sampler is quick; it need not find an optimum
QUICK: dict[str, dict[str, JSON]] = {
    "exact": {},
    "neal": {"num_sweeps": 20},
    "neutral-atom": {"duration": 1000},
    "qaoa": {"depth": 1, "optimiser": "none"},
}


def one_hot(draw: random.Random, penalty: float) -> BinaryQuadraticModel:
    """Choose one of each three, at the least cost."""
    size = draw.choice([3, 5, 6, 8])
    model = costs(draw, size)
    for start in range(0, size, 3):
        group = range(start, min(start + 3, size))
        add_square(model, [*group], 1, penalty)
    return model


def cardinality(draw: random.Random, penalty: float) -> BinaryQuadraticModel:
    """Choose a number of all, at the least cost."""
    size = draw.randint(4, 8)
    model = costs(draw, size)
    add_square(model, [*range(size)], draw.randint(1, size - 1), penalty)
    return model


def costs(draw: random.Random, size: int) -> BinaryQuadraticModel:
    """Costs with ties, some of them between the parts of a problem."""
    model = BinaryQuadraticModel("BINARY")
    model.add_linear_from((i, float(draw.randint(3, 9))) for i in range(size))
    for i, j in combinations(range(size), 2):
        if draw.random() < 0.3:
            model.add_quadratic(i, j, float(draw.randint(-2, 2)))
    return model


def add_square(
    model: BinaryQuadraticModel, group: list[int], count: int, penalty: float
) -> None:
    """Add penalty * (sum of the group - count)**2, as users do: with doubles."""
    for i in group:
        model.add_linear(i, penalty * (1 - 2 * count))
    for i, j in combinations(group, 2):
        model.add_quadratic(i, j, 2 * penalty)
    model.offset += penalty * count**2


def overlaps(draw: random.Random, penalty: float) -> BinaryQuadraticModel:
    """A ring of candidates with equal and nearly equal weights, and two of its chords."""
    size = draw.randint(4, 8)
    model = BinaryQuadraticModel("BINARY")
    for i in range(size):
        model.add_linear(i, -draw.choice([0.1, 0.2, 0.3, 0.1 + 0.2]))
    for i in range(size):
        model.add_quadratic(i, (i + 1) % size, penalty)
    return model


def near_ties(draw: random.Random, scale: float) -> BinaryQuadraticModel:
    """Decimal biases of two sizes, whose sums doubles round, between spins."""
    size = draw.randint(2, 7)
    model = BinaryQuadraticModel("SPIN")
    for i in range(size):
        model.add_linear(i, draw.randint(-3, 3) / 10 * draw.choice([1.0, scale]))
    for i, j in combinations(range(size), 2):
        model.add_quadratic(i, j, draw.randint(-3, 3) / 10)
    model.offset = draw.randint(-3, 3) / 10
    return model


def large(draw: random.Random, scale: float) -> BinaryQuadraticModel:
    """Whole biases up to 1e18, some of which differ by the least that doubles allow."""
    model = BinaryQuadraticModel("BINARY")
    size = draw.randint(2, 7)
    near = [LARGEST, LARGEST - 128.0, LARGEST / 2, scale, -LARGEST, 0.0]
    model.add_linear_from((i, -draw.choice(near)) for i in range(size))
    for i, j in combinations(range(size), 2):
        model.add_quadratic(i, j, draw.choice(near))
    return model


KINDS = (one_hot, cardinality, overlaps, near_ties, large)


def problems(kinds: tuple[object, ...] = KINDS) -> Iterator[BinaryQuadraticModel]:
    """One of each kind at each penalty, every other one in spins."""
    for number, (kind, penalty) in enumerate(product(KINDS, PENALTIES)):
        if kind in kinds:
            model = kind(random.Random(number), penalty)
            if number % 2 and model.vartype is not SPIN:
                # dimod rounds here; what comes of it is the problem as it is given
                model.change_vartype(SPIN, inplace=True)
            yield model


def energies(model: BinaryQuadraticModel) -> dict[State, Fraction]:
    """Evaluate all states."""
    labels = [*model.variables]
    states = product(sorted(model.vartype.value), repeat=len(labels))
    return {state: energy(model, labels, state) for state in states}


def energy(
    model: BinaryQuadraticModel, labels: list[Hashable], state: State
) -> Fraction:
    """Evaluate a state with fractions."""
    values = dict(zip(labels, state, strict=True))
    total = Fraction(float(model.offset))
    for label, bias in model.iter_linear():
        total += Fraction(float(bias)) * values[label]
    for one, other, bias in model.iter_quadratic():
        total += Fraction(float(bias)) * values[one] * values[other]
    return total


def rows(samples: SampleSet, model: BinaryQuadraticModel) -> list[State]:
    columns = [samples.variables.index(label) for label in model.variables]
    return [tuple(row) for row in samples.record.sample[:, columns].tolist()]


def assert_right(
    samples: SampleSet, model: BinaryQuadraticModel, *, distinct: bool
) -> None:
    """Compare samples and what is said of them with all states."""
    every = energies(model)
    lowest = min(every.values())
    optima = {state for state, each in every.items() if each == lowest}
    found, info = rows(samples, model), samples.info
    assert samples.record.energy.tolist() == [float(every[state]) for state in found]
    assert info["energy"] == min(float(every[state]) for state in found)
    assert info["optimum"] == float(lowest)
    reads = samples.record.num_occurrences.tolist()
    hits = sum(n for n, state in zip(reads, found, strict=True) if state in optima)
    assert info["optimal_share"] == hits / sum(reads)
    if distinct:
        assert info["proven"] is info["complete"] is True
        assert info["incomplete"] is None
        assert info["gap"] == 0.0
        assert (len(found), {*found}) == (len(optima), optima)


def assert_bounded(samples: SampleSet, lowest: Fraction) -> None:
    """Compare a lower bound and its gap with the lowest energy, without rounding."""
    bound, gap = (Fraction(samples.info[key]) for key in ("bound", "gap"))
    assert bound <= lowest
    assert min(samples.record.energy) - gap <= float(lowest)
    if samples.info["proven"]:
        # the largest double that is no higher
        assert math.nextafter(samples.info["bound"], math.inf) > lowest
        assert gap == 0


def test_a_bound_is_never_above_the_lowest_energy() -> None:
    rounded_up = 0
    for number, penalty in product(range(10), RANDOM_PENALTIES):
        model = random_bqm(number, penalty=penalty)
        lowest = min(energies(model).values())
        rounded_up += float(lowest) > lowest
        for sampler in (ExactSampler(), Presolve(ExactSampler())):
            assert_bounded(sampler.sample(model, seed=1), lowest)
    assert rounded_up


@pytest.mark.parametrize("name", samplers.names())
@pytest.mark.parametrize("composite", [Presolve, LeasedPresolve])
def test_samplers_tell_what_is_true(name: str, composite: type[Presolve]) -> None:
    if (why := samplers.obstacle(name)) is not None:
        pytest.skip(why)
    sampler = samplers.load(name)()
    known = sampler.parameters.keys()
    parameters = QUICK.get(name, {})
    assert parameters.keys() <= known
    checked = 0
    for model in problems() if name in ("exact", "neal") else few():
        try:
            samples = composite(sampler).sample(
                model,
                num_reads=READS if name != "exact" else 1000,
                seed=1,
                **parameters,
            )
        except InputError:  # neutral atoms find independent sets only
            assert name == "neutral-atom"
            continue
        checked += 1
        assert_right(samples, model, distinct=name == "exact")
    assert checked > 2


def few() -> Iterator[BinaryQuadraticModel]:
    """Three independent sets, for slow samplers."""
    yield from [*problems((overlaps, one_hot))][::5]


class Coarse(ExactSampler):
    """A sampler of distinct states that takes doubles only."""

    more = {"distinct": True}  # noqa: RUF012


def rounded_part() -> BinaryQuadraticModel:
    """A ring next to a variable that every optimum chooses, and whose biases are rounded.

    With it, the bias of a is -1 - 2**-60, which is no double, and decides between the
    ring's two optima.
    """
    model = BinaryQuadraticModel("BINARY")
    model.add_linear_from((label, -1.0) for label in "abcd")
    model.add_quadratic_from({("a", "b"): 2.0, ("b", "d"): 2.0})
    model.add_quadratic_from({("d", "c"): 2.0, ("c", "a"): 2.0})
    model.add_linear("x", -9.0)
    model.add_quadratic("a", "x", -(2.0**-60))
    return model


def test_parts_beyond_doubles_are_solved_with_fractions() -> None:
    samples = Presolve(ExactSampler()).sample(rounded_part(), seed=1)
    assert samples.info["presolve"]["parts"] == [4]
    assert_right(samples, rounded_part(), distinct=True)
    assert [dict(row) for row in samples.samples()] == [  # type: ignore[no-untyped-call]
        {"a": 1, "b": 0, "c": 0, "d": 1, "x": 1}
    ]


def test_of_a_rounded_part_nothing_counts_as_proven() -> None:
    samples = Presolve(Coarse()).sample(rounded_part(), seed=1)
    assert samples.info["proven"] is samples.info["complete"] is False
    assert samples.info["incomplete"] == presolve.ROUNDED
    # the presolve enumerates the part itself
    assert samples.info["optimal_share"] == 1 / len(samples)


class Plain(Sampler):
    """neal, whose energies are those that dimod adds up."""

    @property
    def parameters(self) -> dict[str, list[str]]:
        """See the base."""
        return {"num_reads": [], "seed": []}

    @property
    def properties(self) -> dict[str, JSON]:
        """See the base."""
        return {"num_reads": READS}

    def sample(self, bqm: BinaryQuadraticModel, **parameters: int) -> SampleSet:
        """See the base."""
        samples = NealSampler().sample(bqm, num_sweeps=2, **parameters)
        samples.record.energy[:] = bqm.energies(samples)
        return samples


def test_energies_are_those_of_the_problem_whoever_sampled() -> None:
    for model in problems():
        assert_right(
            Presolve(Plain()).sample(model, num_reads=READS, seed=2),
            model,
            distinct=False,
        )


def test_neal_adds_up_energies_without_rounding() -> None:
    for model in problems():
        samples = NealSampler().sample(model, num_reads=READS, num_sweeps=5, seed=3)
        every = energies(model)
        exact_energies = [float(every[state]) for state in rows(samples, model)]
        assert samples.record.energy.tolist() == exact_energies


@pytest.mark.parametrize("composite", [False, True])
def test_programs_find_what_enumeration_finds(
    monkeypatch: pytest.MonkeyPatch, composite: bool
) -> None:
    """HiGHS solves what is enumerated otherwise."""
    monkeypatch.setattr(exact, "ENUMERATED", 0)
    monkeypatch.setattr(presolve, "MAX_ENUMERATED", 0)
    unproven = []
    for model in problems():
        sampler = Presolve(ExactSampler()) if composite else ExactSampler()
        samples = sampler.sample(model, seed=1)
        every = energies(model)
        lowest = min(every.values())
        optima = {state for state, each in every.items() if each == lowest}
        found = {*rows(samples, model)}
        assert_bounded(samples, lowest)
        if samples.info["complete"]:
            assert found == optima
            assert samples.info["proven"] is True
        elif samples.info["proven"]:
            assert found <= optima
        if not samples.info["complete"]:
            unproven.append((model, samples.info["incomplete"]))
    assert unproven == []

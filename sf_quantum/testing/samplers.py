"""The contract tests of samplers, run for each registered sampler that is usable here.

The command for a site's own sampler is::

    pytest --pyargs sf_quantum.testing.samplers -k NAME

If a test is skipped, the reason explains why the sampler cannot be used here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product

import pytest
from dimod import SPIN, BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler
from dimod.testing import assert_response_energies, assert_sampler_api

from sf_quantum import samplers
from sf_quantum.errors import InputError
from sf_quantum.samplers.presolve import Presolve
from sf_quantum.samplers.states import bits_of

#: number of reads, enough for any working sampler to find the optimum of four candidates
READS = 200
SEED = 3


def problem() -> BinaryQuadraticModel:
    """Return a ring of four overlapping candidates, which the presolve cannot decide.

    The optima are 0110 and 1001. Every sampler accepts this problem: neutral atoms can
    embed a ring.
    """
    model = BinaryQuadraticModel("BINARY")
    model.add_linear_from((label, -1.0) for label in "abcd")
    model.add_quadratic_from({("a", "b"): 2.0, ("b", "d"): 2.0})
    model.add_quadratic_from({("d", "c"): 2.0, ("c", "a"): 2.0})
    model.offset = 0.5
    return model


def independent_sets() -> list[BinaryQuadraticModel]:
    """Return edge cases: one variable, no interaction, equal weights, spins."""
    ring = problem()
    single = BinaryQuadraticModel({"x": -1.0}, {}, 0.0, "BINARY")
    apart = BinaryQuadraticModel({0: -1.0, 1: -2.0, 2: 1.0}, {}, 3.0, "BINARY")
    pair = BinaryQuadraticModel({0: -1.0, 1: -1.0}, {(0, 1): 2.0}, 0.0, "BINARY")
    return [single, apart, pair, ring.change_vartype(SPIN, inplace=False)]


def lowest(bqm: BinaryQuadraticModel) -> float:
    """Find the lowest energy by enumeration."""
    labels = [*bqm.variables]
    states = [*product(sorted(bqm.vartype.value), repeat=len(labels))]
    return float(min(bqm.energies((states, labels))))


@pytest.fixture(scope="module", params=samplers.names())
def sampler(request: pytest.FixtureRequest) -> Sampler:
    """Return each registered sampler that is usable here."""
    name = str(request.param)
    if (why := samplers.obstacle(name)) is not None:
        pytest.skip(f"{name}: {why}")
    return samplers.load(name)()


@pytest.fixture(scope="module")
def answers(sampler: Sampler) -> Answers:
    """Return the sampler's samples; each problem is sampled once, since this may be slow."""
    return Answers(sampler)


class Answers:
    """Samples of the problems of these tests."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._known: dict[int, SampleSet] = {}
        self.problems = [problem(), *independent_sets()]

    def __iter__(self) -> Iterator[tuple[BinaryQuadraticModel, SampleSet]]:
        for number, bqm in enumerate(self.problems):
            if number not in self._known:
                self._known[number] = sampled(self._sampler, bqm)
            yield bqm, self._known[number]

    @property
    def first(self) -> SampleSet:
        """Samples of the first problem."""
        return next(iter(self))[1]


def sampled(sampler: Sampler, bqm: BinaryQuadraticModel) -> SampleSet:
    """Sample with the parameters that ``sfq solve`` passes to every sampler."""
    samples: SampleSet = sampler.sample(bqm, num_reads=READS, seed=SEED)
    return samples


def test_it_is_a_dimod_sampler(sampler: Sampler) -> None:
    assert_sampler_api(sampler)  # type: ignore[no-untyped-call]
    for name in ("num_reads", "seed"):
        lacks = f"parameters lacks {name!r}, which sfq solve passes to every sampler"
        assert name in sampler.parameters, lacks
    wrong = "properties['num_reads'], the default number of reads, is not an int"
    assert isinstance(sampler.properties.get("num_reads"), int), wrong
    json.dumps([sampler.parameters, sampler.properties])


def test_energies_and_labels_are_those_of_the_problem(answers: Answers) -> None:
    for bqm, samples in answers:
        assert len(samples) > 0, f"no samples of {bqm}"
        same = f"{samples.vartype}, though the problem has {bqm.vartype}"
        assert samples.vartype is bqm.vartype, same
        assert set(samples.variables) == set(bqm.variables)
        assert_response_energies(samples, bqm)  # type: ignore[no-untyped-call]


def test_it_finds_the_optimum_of_small_problems(answers: Answers) -> None:
    for bqm, samples in answers:
        missed = f"{READS} reads do not have the optimum of {bqm}"
        assert samples.first.energy == pytest.approx(lowest(bqm)), missed


def test_same_seed_same_answer(sampler: Sampler, answers: Answers) -> None:
    first, again = answers.first, sampled(sampler, problem())
    assert first == again, "the same seed gives other samples"
    assert first.info == again.info, "the same seed gives another info"
    seed = first.info.get("seed")
    assert seed == SEED, f"info['seed'] is {seed}, not the given seed"


def test_no_more_reads_than_asked_for(sampler: Sampler, answers: Answers) -> None:
    reads = int(answers.first.record.num_occurrences.sum())
    distinct = sampler.properties.get("distinct") is True
    wanted = "a sample for each read; with properties['distinct'], at most so many"
    assert reads <= READS if distinct else reads == READS, wanted


def test_the_answer_travels_as_json(answers: Answers) -> None:
    samples = answers.first
    text = json.dumps(samples.to_serializable(), allow_nan=False)  # type: ignore[no-untyped-call]
    assert SampleSet.from_serializable(json.loads(text)) == samples  # type: ignore[no-untyped-call]


def test_the_problem_is_left_as_it_was(answers: Answers) -> None:
    for (bqm, _), before in zip(answers, [problem(), *independent_sets()], strict=True):
        assert bqm == before, "sample() changes the problem that it is given"


def test_a_wrong_parameter_is_refused(sampler: Sampler) -> None:
    with pytest.raises((InputError, ValueError)):
        sampler.sample(problem(), num_reads=0)
    with pytest.raises(TypeError):
        sampler.sample(problem(), no_such_parameter=1)


def test_under_presolve_both_optima_are_found(sampler: Sampler) -> None:
    samples = sampled(Presolve(sampler), problem())
    low = samples.record.energy == -1.5
    best = {tuple(row) for row in bits_of(samples, [*"abcd"])[low].tolist()}
    assert best == {(0, 1, 1, 0), (1, 0, 0, 1)}
    info = samples.info
    assert info["energy"] == pytest.approx(-1.5)
    assert info["optimum"] == pytest.approx(-1.5)
    assert 0 < info["optimal_share"] <= info["feasible_share"] <= 1

"""The contract tests of samplers, run for each registered sampler that is usable here.

For a site's own sampler::

    pytest --pyargs sf_quantum.testing.samplers -k NAME

The reason of a skipped test is why its sampler cannot be used here.
"""

from __future__ import annotations

import json
from itertools import product

import pytest
from dimod import SPIN, BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler
from dimod.testing import assert_response_energies, assert_sampler_api

from sf_quantum import samplers
from sf_quantum.errors import InputError
from sf_quantum.samplers.presolve import Presolve
from sf_quantum.samplers.states import bits_of

#: enough reads for any working sampler to find the optimum of four candidates
READS = 200


def problem() -> BinaryQuadraticModel:
    """Return a ring of four overlapping candidates, which the presolve cannot decide.

    The optima are 0110 and 1001. Every sampler accepts it: neutral atoms can embed a
    ring.
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
    one = BinaryQuadraticModel({"x": -1.0}, {}, 0.0, "BINARY")
    apart = BinaryQuadraticModel({0: -1.0, 1: -2.0, 2: 1.0}, {}, 3.0, "BINARY")
    pair = BinaryQuadraticModel({0: -1.0, 1: -1.0}, {(0, 1): 2.0}, 0.0, "BINARY")
    return [one, apart, pair, ring.change_vartype(SPIN, inplace=False)]


def lowest(bqm: BinaryQuadraticModel) -> float:
    """Find the lowest energy by enumeration."""
    labels = [*bqm.variables]
    states = [*product(sorted(bqm.vartype.value), repeat=len(labels))]
    return float(min(bqm.energies((states, labels))))


@pytest.fixture(params=samplers.names())
def sampler(request: pytest.FixtureRequest) -> Sampler:
    """Each registered sampler."""
    name = str(request.param)
    if (why := samplers.obstacle(name)) is not None:
        pytest.skip(f"{name}: {why}")
    return samplers.load(name)()


def sampled(sampler: Sampler, bqm: BinaryQuadraticModel, seed: int = 3) -> SampleSet:
    """Sample with the parameters that every sampler accepts."""
    samples: SampleSet = sampler.sample(bqm, num_reads=READS, seed=seed)
    return samples


def test_it_is_a_dimod_sampler(sampler: Sampler) -> None:
    assert_sampler_api(sampler)  # type: ignore[no-untyped-call]
    for name in ("num_reads", "seed"):
        lacks = f"parameters lacks {name!r}, which sfq solve passes to every sampler"
        assert name in sampler.parameters, lacks
    wrong = "properties['num_reads'], the default number of reads, is not an int"
    assert isinstance(sampler.properties.get("num_reads"), int), wrong
    json.dumps([sampler.parameters, sampler.properties])


def test_energies_and_labels_are_those_of_the_problem(sampler: Sampler) -> None:
    for bqm in [problem(), *independent_sets()]:
        samples = sampled(sampler, bqm)
        assert len(samples) > 0
        assert samples.vartype is bqm.vartype
        assert set(samples.variables) == set(bqm.variables)
        assert_response_energies(samples, bqm)  # type: ignore[no-untyped-call]


def test_it_finds_the_optimum_of_small_problems(sampler: Sampler) -> None:
    for bqm in [problem(), *independent_sets()]:
        assert sampled(sampler, bqm).first.energy == pytest.approx(lowest(bqm))


def test_same_seed_same_answer(sampler: Sampler) -> None:
    first, again = sampled(sampler, problem()), sampled(sampler, problem())
    assert first == again
    assert first.info == again.info
    seed = first.info.get("seed")
    assert seed == 3, f"info['seed'] is {seed}, not the given seed"


def test_no_more_reads_than_asked_for(sampler: Sampler) -> None:
    samples = sampled(sampler, problem())
    reads = int(samples.record.num_occurrences.sum())
    distinct = sampler.properties.get("distinct") is True
    assert reads <= READS if distinct else reads == READS


def test_the_answer_travels_as_json(sampler: Sampler) -> None:
    samples = sampled(sampler, problem())
    text = json.dumps(samples.to_serializable(), allow_nan=False)  # type: ignore[no-untyped-call]
    assert SampleSet.from_serializable(json.loads(text)) == samples  # type: ignore[no-untyped-call]


def test_the_problem_is_left_as_it_was(sampler: Sampler) -> None:
    bqm = problem()
    sampled(sampler, bqm)
    assert bqm == problem()


def test_a_wrong_parameter_is_refused(sampler: Sampler) -> None:
    with pytest.raises((InputError, ValueError)):
        sampler.sample(problem(), num_reads=0)
    with pytest.raises(TypeError):
        sampler.sample(problem(), no_such_parameter=1)


def test_under_presolve_both_optima_are_found(sampler: Sampler) -> None:
    samples = sampled(Presolve(sampler), problem())
    low = samples.record.energy < -1.5 + 1e-9
    best = {tuple(row) for row in bits_of(samples, [*"abcd"])[low].tolist()}
    assert best == {(0, 1, 1, 0), (1, 0, 0, 1)}
    info = samples.info
    assert info["energy"] == pytest.approx(-1.5)
    assert info["optimum"] == pytest.approx(-1.5)
    assert 0 < info["optimal_share"] <= info["feasible_share"] <= 1

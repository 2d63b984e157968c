"""The registry, the annealer, and what a problem must be."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from typing import cast

import pytest
from dimod import BinaryQuadraticModel, SampleSet
from dimod.testing import assert_sampler_api

from sf_quantum import samplers
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers import problem
from sf_quantum.samplers.defaults import READS
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.samplers.presolve import Presolve
from tests.support.service import example_bqm


@pytest.fixture
def bqm() -> dict[str, JSON]:
    return example_bqm()


def test_registry_knows_neal() -> None:
    assert "neal" in samplers.names()
    assert samplers.load("neal") is NealSampler


def test_unknown_sampler_is_told_the_closest_and_the_known() -> None:
    with pytest.raises(
        InputError, match=r"'nael', did you mean 'neal'\? \(known: .*neal"
    ):
        samplers.load("nael")


def test_neal_is_a_dimod_sampler() -> None:
    assert_sampler_api(NealSampler())  # type: ignore[no-untyped-call]


class _Passing(NealSampler):
    """A site's own, which names no parameter of what it extends."""

    def sample(self, bqm: BinaryQuadraticModel, **parameters: JSON) -> SampleSet:
        return super().sample(bqm, **parameters)  # type: ignore[arg-type]


def test_a_sampler_that_extends_ours_has_its_defaults(bqm: dict[str, JSON]) -> None:
    extended = _Passing()
    assert extended.properties == NealSampler().properties
    model = BinaryQuadraticModel.from_serializable(bqm)
    assert Presolve(extended).sample(model).record.num_occurrences.sum() == READS


def test_same_seed_same_samples_also_after_serialization(bqm: dict[str, JSON]) -> None:
    model = BinaryQuadraticModel.from_serializable(bqm)
    again = BinaryQuadraticModel.from_serializable(model.to_serializable())
    first = NealSampler().sample(model, num_reads=50, seed=7)
    assert first == NealSampler().sample(again, num_reads=50, seed=7)
    assert first.info == {
        "sampler": "neal",
        "seed": 7,
        "reads": 50,
        "num_sweeps": 100,
    }
    assert first.first.sample == {"a": 1, "b": 0, "c": 1}


def test_without_a_seed_the_one_drawn_is_told(bqm: dict[str, JSON]) -> None:
    model = BinaryQuadraticModel.from_serializable(bqm)
    drawn = NealSampler().sample(model, num_reads=5)
    assert drawn == NealSampler().sample(model, num_reads=5, seed=drawn.info["seed"])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"num_reads": 0}, "num_reads: 0"),
        ({"num_sweeps": -1}, "num_sweeps: -1"),
        ({"seed": -1}, "seed: -1 is out of range, expected from 0 to 2147483647"),
        ({"seed": 2**31}, "seed: 2147483648"),
        ({"num_read": 5}, "num_read: not a parameter of NealSampler"),
    ],
)
def test_wrong_parameters(
    bqm: dict[str, JSON], parameters: dict[str, int | None], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        problem.sample(NealSampler(), bqm, parameters)


def test_flat_problem_is_sampled_without_a_warning() -> None:
    flat = BinaryQuadraticModel({"a": 0.0, "b": 0.0}, {}, 1.5, "BINARY")
    assert set(NealSampler().sample(flat, num_reads=4).record.energy) == {1.5}


def test_interrupted_sampling_ends(bqm: dict[str, JSON]) -> None:
    model = BinaryQuadraticModel.from_serializable(bqm)
    answers = iter([False, True])
    samples = NealSampler(lambda: next(answers)).sample(model, num_reads=10**6)
    assert len(samples) == 2


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("type", "CQM", "bqm: expected a BQM"),
        ("use_bytes", True, "bqm.use_bytes: expected false"),
        ("variable_type", "DISCRETE", "bqm.variable_type: expected BINARY or SPIN"),
        ("version", {"bqm_schema": "2.0.0"}, "bqm.version: expected bqm_schema 3.x"),
        ("variable_labels", [], "bqm.variable_labels: the problem has no variable"),
        ("variable_labels", ["a", "b", "a"], "two variables have the same label"),
        ("variable_labels", ["a", "b", {}], "a label is neither a string nor a number"),
        (
            "variable_labels",
            ["a", "b", None],
            "a label is neither a string nor a number",
        ),
        ("variable_labels", [1, 1.0, "b"], "two variables have the same label"),
        ("variable_labels", [1, "a", True], "a label is neither a string nor a number"),
        ("variable_labels", [[False], "b", "c"], "neither a string nor a number"),
        (
            "variable_labels",
            [["a", 1], ["a", 1.0], 1],
            "two variables have the same label",
        ),
        ("variable_labels", [[["a"]], "b", "c"], "dimod reads one level"),
        ("variable_labels", [2**63, "b", "c"], "does not fit into 64 bits"),
        ("variable_labels", [1e30, "b", "c"], "does not fit into 64 bits"),
        ("variable_labels", [-math.inf, "b", "c"], "does not fit into 64 bits"),
        ("variable_labels", [math.nan, "b", "c"], "does not fit into 64 bits"),
        ("variable_labels", "abc", "bqm.variable_labels: expected a list"),
        ("linear_biases", [1.0], "bqm.linear_biases: has 1 entries, expected 3"),
        ("linear_biases", [1, math.nan, 1], r"linear_biases\[1\]: .* finite .* nan"),
        ("linear_biases", [1, 10**400, 1], r"linear_biases\[1\]: 10* is too large"),
        (
            "linear_biases",
            [1.0, 1e101, 1.0],
            r"linear_biases\[1\]: 1e.101 is too large",
        ),
        ("offset", -1e101, "offset: -1e.101 is too large: at most 1e.100"),
        (
            "linear_biases",
            [1, 2**53 + 1, 1],
            r"linear_biases\[1\]: 9007199254740993 is r",
        ),
        (
            "quadratic_biases",
            [-(10**18) - 1, 1],
            r"quadratic_biases\[0\]: -1.*001 is ro",
        ),
        ("offset", 10**22, r"offset: 10{22} does not fit into 64 bits: write 1e\+22"),
        ("linear_biases", [1, 2**63, 1], r"linear_biases\[1\]: .* fit into 64 bits"),
        ("offset", 2**64 + 1, r"offset: 18446744073709551617 .* 18446744073709551616"),
        ("linear_biases", [1, True, 1], r"linear_biases\[1\]: .* finite .* True"),
        ("quadratic_biases", [1, math.inf], r"quadratic_biases\[1\]: .* inf"),
        ("quadratic_head", [0], "bqm.quadratic_head: has 1 entries, expected 2"),
        ("quadratic_head", [0, 3], r"quadratic_head\[1\]: .* from 0 to 2"),
        ("quadratic_tail", [0, 2], "a variable interacts with itself"),
        ("offset", None, "bqm.offset: expected a finite number, not None"),
    ],
)
def test_wrong_problem(bqm: dict[str, JSON], key: str, value: JSON, words: str) -> None:
    with pytest.raises(problem.FieldError, match=words):
        problem.check({**bqm, key: value})


def test_whole_numbers_that_are_doubles_are_kept(bqm: dict[str, JSON]) -> None:
    biases = [-(2**63), 10**18, 1]
    kept: dict[str, JSON] = {**bqm, "linear_biases": [*biases], "offset": 2**62}
    model = BinaryQuadraticModel.from_serializable(problem.check(kept))
    assert [int(model.linear[label]) for label in "abc"] == biases
    assert int(model.offset) == 2**62


def test_biases_of_a_pair_are_added_exactly_or_refused(bqm: dict[str, JSON]) -> None:
    refused = 0
    for number in range(300):
        random = Random(number)
        sizes = random.choice(
            [(1, -3, 0.5), (1e16, -1e16, 3.0, 1.0), (0.1, 0.2, 5e-324)]
        )
        biases = random.choices(sizes, k=random.randint(2, 8))
        pairs = [frozenset(random.sample(range(3), 2)) for _ in biases]
        heads, tails = (cast(JSON, [*column]) for column in zip(*pairs, strict=True))
        repeated: dict[str, JSON] = {
            **bqm,
            "quadratic_head": heads,
            "quadratic_tail": tails,
            "quadratic_biases": [*biases],
        }
        by_pair: dict[frozenset[int], list[Fraction]] = {}
        for ends, bias in zip(pairs, biases, strict=True):
            by_pair.setdefault(ends, []).append(Fraction(bias))
        try:
            model = BinaryQuadraticModel.from_serializable(problem.check(repeated))
        except problem.FieldError:
            refused += 1
            assert 0.5 not in sizes
            continue
        for ends, summands in by_pair.items():
            first, second = ("abc"[position] for position in ends)
            assert Fraction(model.get_quadratic(first, second)) == sum(summands)
    assert 50 < refused < 250


def test_inexact_sums_of_a_pair_name_the_pair(bqm: dict[str, JSON]) -> None:
    ends: dict[str, JSON] = {"quadratic_head": [0, 2, 2], "quadratic_tail": [2, 0, 0]}
    words = "quadratic_biases: variables 0 and 2 interact 3 times, .* give one bias"
    with pytest.raises(problem.FieldError, match=words):
        problem.check({**bqm, **ends, "quadratic_biases": [1e20, 3.0, -1e20]})


@pytest.mark.parametrize("wrong", [None, [], "bqm", 3])
def test_no_problem_at_all(wrong: JSON) -> None:
    with pytest.raises(problem.FieldError, match="expected a BQM"):
        problem.check(wrong)


def test_what_dimod_writes_is_right() -> None:
    for labels in (["a", "b"], [0, 1], [("a", 0), ("a", 1)]):
        model = BinaryQuadraticModel(
            dict.fromkeys(labels, 1.0), {(labels[0], labels[1]): 2.0}, 0.5, "SPIN"
        )
        serialized = cast("dict[str, JSON]", model.to_serializable())
        serialized["variable_labels"] = [
            list(label) if isinstance(label, tuple) else label for label in labels
        ]
        assert problem.size(problem.check(serialized)) == 2

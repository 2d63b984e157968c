"""Sample sets are read as dimod reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dimod import SampleSet
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.clustering.samples import read_samples
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from tests.support import qubos

# dimod has no types for it
from_samples: Callable[..., SampleSet] = SampleSet.from_samples


def made(rows: int, variables: int, seed: int, vartype: str) -> SampleSet:
    """Random samples, whose variables are in a random order."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2, (rows, variables), np.int8)
    samples = bits if vartype == "BINARY" else 2 * bits - 1
    return from_samples(
        (samples, random.permutation(variables).tolist()),
        vartype,
        energy=random.normal(size=rows),
        num_occurrences=random.integers(1, 9, rows),
        info={"sampler": "a"},
    )


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 40),
    st.integers(1, 70),
    st.integers(0, 1000),
    st.sampled_from(["BINARY", "SPIN"]),
    st.booleans(),
)
def test_a_sample_set_is_what_dimod_reads(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    variables: int,
    seed: int,
    vartype: str,
    packed: bool,
) -> None:
    file = tmp_path_factory.mktemp("samples") / "s.json"
    expected = made(rows, variables, seed, vartype)
    told = expected.to_serializable(pack_samples=packed)  # type: ignore[no-untyped-call]
    file.write_text(json.dumps(told))
    found, wanted = read_samples(str(file), variables), qubos.samples_of(expected)
    assert np.array_equal(found.chosen, wanted.chosen)
    assert np.array_equal(found.energies, wanted.energies)
    assert np.array_equal(found.reads, wanted.reads)
    assert found.info == wanted.info


Change = Callable[[dict[str, JSON]], object]


def vector(told: dict[str, JSON], name: str) -> dict[str, JSON]:
    vectors = told["vectors"]
    assert isinstance(vectors, dict)
    found = told[name] if name in told else vectors[name]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("version"),
        lambda told: told.update(version={"sampleset_schema": "2.0"}),
        lambda told: told.pop("variable_labels"),
        lambda told: told.update(variable_labels=["a", 1, None]),
        lambda told: told.update(variable_labels=[[0], [1], [2]]),
        lambda told: told.update(sample_packed=False),
        lambda told: vector(told, "sample_data").update(shape=[9]),
        lambda told: vector(told, "sample_data").update(shape=[2, 3]),
        lambda told: vector(told, "sample_data").update(data=[["a"]]),
        lambda told: vector(told, "sample_data").update(data_type="nothing"),
        lambda told: vector(told, "energy").update(data=[1.0], shape=[1]),
        lambda told: vector(told, "energy").update(data=[1e999] * 3),
        lambda told: vector(told, "num_occurrences").update(shape=None),
        lambda told: vector(told, "num_occurrences").update(data=[1, -1, 1]),
        lambda told: vector(told, "num_occurrences").update(data_type="float64"),
        lambda told: vector(told, "energy").update(data=[[1.0]] * 3, shape=[3, 1]),
        lambda told: told.update(vectors=[]),
    ],
)
def test_a_damaged_one_is_refused_in_one_line(tmp_path: Path, change: Change) -> None:
    file = tmp_path / "s.json"
    told = made(3, 3, 1, "BINARY").to_serializable()  # type: ignore[no-untyped-call]
    change(told)
    file.write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"s\.json: not a dimod SampleSet|s\.json"):
        read_samples(str(file), 3)


def test_samples_of_another_problem_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    told = made(3, 4, 1, "BINARY").to_serializable()  # type: ignore[no-untyped-call]
    file.write_text(json.dumps(told))
    with pytest.raises(InputError, match="samples of 4 variables"):
        read_samples(str(file), 3)

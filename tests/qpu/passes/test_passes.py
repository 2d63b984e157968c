"""Passes: what is done to circuits and their counts, and what it gains."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sf_quantum.errors import InputError
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.qpu import passes
from sf_quantum.qpu.passes import Counts, Pass, Passes, whole
from sf_quantum.qpu.passes.readout import MOST_STRINGS, Readout, nearest_distribution


def described(**values: float) -> Description:
    return Description(
        "superconducting",
        5,
        ("circuit",),
        calibration=CalibrationData("c", values=values),
    )


ERRORS = described(readout_false_one=0.1, readout_false_zero=0.2)


class Twice(Pass):
    """Runs a circuit twice, and adds up."""

    seen: ClassVar[list[str]] = []

    def circuits(self, circuit: str) -> Sequence[str]:
        self.seen.append(circuit)
        return [f"{circuit}a", f"{circuit}b"]

    def counts(self, counts: Sequence[Counts]) -> Counts:
        first, second = counts
        return {bits: first[bits] + second[bits] for bits in first}


def test_passes_are_nested_in_the_order_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = EntryPoint("twice", f"{__name__}:Twice", "sf_quantum.passes")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Twice)
    monkeypatch.setattr(passes._registry, "_registered", lambda: {"twice": entry})
    made, combine = Passes("twice, twice", ERRORS).expanded("c")
    assert made == ["caa", "cab", "cba", "cbb"]
    counts = iter([{"0": n} for n in (1, 2, 3, 4, 100)])
    assert combine(counts) == {"0": 10}
    assert next(counts) == {"0": 100}
    many = Passes(",".join(["twice"] * 10), ERRORS)
    with pytest.raises(InputError, match="1,024 circuits for one; at most 1,000"):
        many.expanded("c")


def test_without_passes_nothing_changes() -> None:
    made, combine = Passes("", ERRORS).expanded("c")
    assert (made, combine(iter([{"0": 1}]))) == (["c"], {"0": 1})


def test_an_unknown_pass_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown pass 'readuot'.*readout"):
        Passes("readuot", ERRORS)


def test_known_read_out_errors_are_divided_out() -> None:
    """Of one bit that is always 0, a tenth is read as 1."""
    assert Readout(ERRORS).counts([{"0": 900, "1": 100}]) == pytest.approx({"0": 1000})
    # of two bits, both errors in the ratio in which they come
    true, p, q = {"00": 0.5, "11": 0.5}, 0.1, 0.2
    read = {
        "00": 0.5 * (1 - p) ** 2 + 0.5 * q**2,
        "01": 0.5 * p * (1 - p) + 0.5 * q * (1 - q),
        "10": 0.5 * p * (1 - p) + 0.5 * q * (1 - q),
        "11": 0.5 * p**2 + 0.5 * (1 - q) ** 2,
    }
    mitigated = Readout(ERRORS).counts([{bits: 1e6 * x for bits, x in read.items()}])
    assert {bits: mitigated.get(bits, 0.0) for bits in read} == pytest.approx(
        {bits: 1e6 * true.get(bits, 0.0) for bits in read}, abs=1e-3
    )


def test_without_read_out_errors_there_is_nothing_to_divide() -> None:
    ideal = Readout(described(readout_false_one=0.0, readout_false_zero=0.0))
    assert ideal.counts([{"01": 3, "10": 4}]) == {"01": 3, "10": 4}
    assert ideal.counts([{}]) == {}
    with pytest.raises(InputError, match="tells no read-out errors"):
        Readout(described(gate_error=0.1))
    with pytest.raises(InputError, match="tells no read-out errors"):
        Readout(Description("superconducting", 5, ("circuit",)))


def test_the_matrix_has_a_bound() -> None:
    many = {format(n, "013b"): 1 for n in range(MOST_STRINGS + 1)}
    with pytest.raises(InputError, match="4,097 different bit strings; at most 4,096"):
        Readout(ERRORS).counts([many])


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_the_nearest_distribution_is_one(values: list[float]) -> None:
    shifted = np.array(values) + (1 - sum(values)) / len(values)
    nearest = nearest_distribution(shifted)
    assert nearest.min() >= 0
    assert nearest.sum() == pytest.approx(1)
    # no step from one entry to another comes closer
    distance = np.linalg.norm(nearest - shifted)
    for here in range(len(values)):
        for there in range(len(values)):
            moved = nearest.copy()
            step = min(0.01, moved[here])
            moved[here] -= step
            moved[there] += step
            assert np.linalg.norm(moved - shifted) >= distance - 1e-9


@given(st.dictionaries(st.text("01", min_size=3, max_size=3), st.integers(0, 50)))
def test_whole_counts_keep_their_sum(counts: dict[str, int]) -> None:
    total = sum(counts.values())
    scaled = {bits: n * 0.7 for bits, n in counts.items()}
    scaled["rest"] = total - sum(scaled.values())
    assert sum(whole(scaled).values()) == total

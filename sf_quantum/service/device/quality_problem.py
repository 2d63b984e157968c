"""The problem of the quality jobs: its optimum is known, and an error shows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import fsum, isclose

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import document
from sf_quantum.service.device.noise import FIELD_RANGE

SPINS = 12
# One field fills the device's range and all else uses a tenth of it: the control errors,
# which are parts of the range, are large for these.
WEAK = 0.1


def problem(qubits: int) -> dict[str, JSON]:
    """Write a chain whose lowest state is planted: a BQM, serialized.

    All its terms are lowest in the planted state, which is therefore the only optimum,
    and has as many spins up as down, so that both errors of read-out show.
    """
    spins = _planted(qubits)
    fields = [FIELD_RANGE, *[WEAK] * (len(spins) - 1)]
    return document(
        [f"s{place}" for place in range(len(spins))],
        [-size * spin for size, spin in zip(fields, spins, strict=True)],
        [*pairwise(range(len(spins)))],
        [-WEAK * low * high for low, high in pairwise(spins)],
        "SPIN",
    )


def optimum(bqm: Mapping[str, JSON]) -> float:
    """Tell the energy of the planted state: every bias counts as much as it can."""
    biases = [_floats(bqm[f"{name}_biases"]) for name in ("linear", "quadratic")]
    return -fsum(abs(bias) for vector in biases for bias in vector)


def hits(result: JSON, energy: float) -> tuple[int, int]:
    """Count the reads of a sample set, serialized, and those that have an energy.

    :returns: both, those that have it first
    """
    vectors = result.get("vectors") if isinstance(result, dict) else None
    told = vectors if isinstance(vectors, dict) else {}
    energies, counts = (_data(told.get(name)) for name in ("energy", "num_occurrences"))
    good = sum(
        count
        for found, count in zip(energies, counts, strict=True)
        if isclose(found, energy, abs_tol=1e-6)
    )
    return int(good), int(sum(counts))


def _planted(qubits: int) -> list[int]:
    # pairs of pairs: neighbours agree and disagree as often
    return [1 if place % 4 < 2 else -1 for place in range(min(SPINS, qubits))]


def _data(vector: JSON) -> list[float]:
    return _floats(vector.get("data")) if isinstance(vector, dict) else []


def _floats(values: JSON) -> list[float]:
    if not isinstance(values, list):
        return []
    return [float(value) for value in values if isinstance(value, int | float)]

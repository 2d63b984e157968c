"""The problem of the quality jobs, whose optimum is known."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import fsum, isclose

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import document
from sf_quantum.service.device.noise import FIELD_RANGE

SPINS = 12
# One field fills the device's range, the other terms a tenth of it: control errors are
# parts of the range, and therefore large beside these terms.
WEAK = 0.1


def problem(qubits: int) -> dict[str, JSON]:
    """Return a chain with a planted ground state: a BQM, serialized.

    Every term is lowest in the planted state, which is therefore the only optimum. It has
    as many spins up as down, so that both read-out errors show.
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
    """Return the energy of the planted state, in which every term is at its lowest."""
    biases = [_floats(bqm[f"{name}_biases"]) for name in ("linear", "quadratic")]
    return -fsum(abs(bias) for vector in biases for bias in vector)


def hits(result: JSON, energy: float) -> tuple[int, int]:
    """Count the reads of a serialized sample set.

    :returns: those with an energy, and all
    """
    vectors = result.get("vectors") if isinstance(result, dict) else None
    found = vectors if isinstance(vectors, dict) else {}
    energies, counts = (
        _data(found.get(name)) for name in ("energy", "num_occurrences")
    )
    good = sum(
        count
        for value, count in zip(energies, counts, strict=True)
        if isclose(value, energy, abs_tol=1e-6)
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

"""The problem of quality jobs, with a known optimum."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import fsum, isclose

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import document
from sf_quantum.service.device.emulator.device_errors import FIELD_RANGE

# Largest number of spins in the problem.
SPINS = 12
# Strength of all terms except the first field, which has the full range of the device.
# Control errors are relative to this range, and therefore large compared with the weak terms.
WEAK = 0.1


def problem(qubits: int) -> dict[str, JSON]:
    """Return a chain with a planted ground state, as a serialized BQM.

    The planted state minimizes every term and is therefore the unique optimum. Half of its
    spins are up, so the number of hits depends on both kinds of read-out errors.

    :param qubits: number of qubits of the device; 0 if unknown
    """
    # neighbouring spins are alternately equal and different
    spins = [1 if place % 4 < 2 else -1 for place in range(min(SPINS, qubits or SPINS))]
    fields = [FIELD_RANGE, *[WEAK] * (len(spins) - 1)]
    return document(
        [f"s{place}" for place in range(len(spins))],
        [-size * spin for size, spin in zip(fields, spins, strict=True)],
        [*pairwise(range(len(spins)))],
        [-WEAK * low * high for low, high in pairwise(spins)],
        "SPIN",
    )


def optimum(bqm: Mapping[str, JSON]) -> float:
    """Return the energy of the planted state."""
    biases = [*_numbers(bqm["linear_biases"]), *_numbers(bqm["quadratic_biases"])]
    return -fsum(map(abs, biases))


def hits(result: JSON, energy: float) -> tuple[int, int]:
    """Count the reads of a serialized sample set.

    :returns: the number of reads with the given energy, and of all reads
    """
    vectors = result.get("vectors") if isinstance(result, dict) else None
    if not isinstance(vectors, dict):
        return 0, 0
    energies = _numbers(vectors.get("energy"))
    counts = _numbers(vectors.get("num_occurrences"))
    good = sum(
        count
        for value, count in zip(energies, counts, strict=True)
        if isclose(value, energy, abs_tol=1e-6)
    )
    return int(good), int(sum(counts))


def _numbers(vector: JSON) -> list[float]:
    values = vector.get("data") if isinstance(vector, dict) else vector
    if not isinstance(values, list):
        return []
    return [float(value) for value in values if isinstance(value, int | float)]

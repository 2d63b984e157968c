"""Custom annealing on an emulated annealer, for problems that set more than its duration.

As in :mod:`sf_quantum.samplers.neal`, the inverse temperature at the fraction s of the
annealing follows a geometric schedule. A custom schedule may pass through the fractions in
another order, even backwards from a given state. Parts of the problem may be weaker or
stronger meanwhile: a gain scales the linear biases, and an offset puts a qubit's fraction
ahead of the other qubits' fractions, or behind them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from pydantic import TypeAdapter

from sf_quantum.service.device.emulator.device_errors import FIELD_RANGE

if TYPE_CHECKING:
    from dimod import BinaryQuadraticModel

Points: TypeAlias = list[list[float]]
# the range of negative couplers (extended_j_range) relative to that of positive couplers
NEGATIVE = 2.0
# the range of the sum of a qubit's couplers, negative and positive (Advantage_system4.1)
COUPLING = (18.0, 15.0)


@dataclass(frozen=True)
class Annealing:
    """The annealing of a problem, whose variables are qubits.

    :param schedule: points of time in microseconds and fraction; by default, the fraction
        rises from 0 to 1
    :param initial_state: initial value of each qubit, from the values of the problem's
        variables
    :param reinitialize_state: whether each read starts from ``initial_state``, not from
        the last read
    :param gains: points of time in microseconds and gain of the linear biases
    :param flux_biases: flux bias of each qubit, in flux quanta
    :param offsets: offset of each qubit, added to its fraction
    :param flux_drift_compensation: whether the drift of the qubits' fluxes is corrected
    :param auto_scale: whether the biases are scaled to the whole range of the device
    """

    schedule: Points | None = None
    initial_state: list[int] | None = None
    reinitialize_state: bool = True
    gains: Points | None = None
    flux_biases: list[float] | None = None
    offsets: list[float] | None = None
    auto_scale: bool = True
    flux_drift_compensation: bool = True

    def drifted(self, drift: Sequence[float]) -> Annealing:
        """Return the annealing on qubits with drifted fluxes, unless drift is corrected."""
        if self.flux_drift_compensation:
            return self
        biases = self.flux_biases or [0.0] * len(drift)
        sums = [bias + more for bias, more in zip(biases, drift, strict=False)]
        return replace(self, flux_biases=sums)


ANNEALING: TypeAdapter[Annealing] = TypeAdapter(Annealing)


def strength(ising: BinaryQuadraticModel) -> float:
    """Return the largest bias or sum of a qubit's couplers, relative to the device's range."""
    fields = [abs(bias) / FIELD_RANGE for bias in ising.linear.values()]
    couplings = [max(bias, -bias / NEGATIVE) for bias in ising.quadratic.values()]
    sums = Counter[Hashable]()
    for pair, bias in ising.quadratic.items():
        for qubit in pair:
            sums[qubit] += bias
    negative, positive = COUPLING
    totals = [max(total / positive, -total / negative) for total in sums.values()]
    return float(max(fields + couplings + totals, default=0.0))

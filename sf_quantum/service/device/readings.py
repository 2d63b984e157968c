"""Calibrations of a device, and its readings of its own errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from sf_quantum.files import JSON

# factor on the errors of a faulty calibration
FAULT_FACTOR = 20.0
# readings per calibration
READINGS = 100
# relative standard deviation of a reading; an assumption
READING_ERROR = 0.05


@dataclass(frozen=True)
class Calibration:
    """A calibration of a device at a point in time.

    :param age: age from 0 (new) to 1 (about to be renewed)
    :param faulty: whether it has larger errors; not visible to users
    :param seed: seed of random draws that change with each calibration
    :param drifts: whether it gradually becomes faulty; not visible to users
    """

    id: str
    made: datetime
    age: float
    faulty: bool
    seed: int
    drifts: bool = False

    @property
    def summary(self) -> dict[str, JSON]:
        """Id and time, as JSON."""
        return {"id": self.id, "time": self.made.isoformat(timespec="seconds")}

    @property
    def excess(self) -> float:
        """Factor on the errors of a good calibration of the same age."""
        if self.faulty:
            return FAULT_FACTOR
        return 1.0 + self.age * (FAULT_FACTOR - 1.0) if self.drifts else 1.0


@dataclass(frozen=True)
class Reading:
    """A device's measurement of its own errors.

    :param number: number of the reading within its calibration, from 0
    :param values: measured values by name
    :param expected: values of a good calibration of this age
    """

    calibration: Calibration
    number: int
    values: dict[str, float]
    expected: dict[str, float]

    @property
    def summary(self) -> dict[str, JSON]:
        """Id and time of the calibration, and the values, as JSON."""
        return {**self.calibration.summary, "values": {**self.values}}

    @property
    def deviations(self) -> dict[str, float]:
        """Deviations of the values from the expected ones, in standard deviations."""
        return {
            name: math.log(value / self.expected[name]) / READING_ERROR
            for name, value in self.values.items()
        }

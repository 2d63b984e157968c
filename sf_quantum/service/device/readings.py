"""Calibrations of a device, and its readings of its own errors."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sf_quantum.protocol.calibrations import CalibrationData

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
    :param faulty: whether its errors are larger than usual; not visible to users
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
    def data(self) -> CalibrationData:
        """The calibration and the values, as users see them."""
        made = self.calibration.made.isoformat(timespec="seconds")
        return CalibrationData(self.calibration.id, made, self.values)

    @property
    def deviations(self) -> dict[str, float]:
        """Deviations from the expected values, in standard deviations."""
        return {
            name: math.log(value / self.expected[name]) / READING_ERROR
            for name, value in self.values.items()
        }


@dataclass(frozen=True)
class CalibrationHistory:
    """The latest calibrations of a device; times are seconds since the epoch.

    :param made: time of the present calibration
    :param times: times at which the values were measured
    :param renewals: times of calibrations, within the range of ``times``
    :param values: values at each of ``times``, by name
    """

    id: str
    made: float
    times: Sequence[float]
    renewals: Sequence[float]
    values: Mapping[str, Sequence[float]]


class Calibrations:
    """The calibrations of a device as of now, as far as they are known.

    A device with data beyond its present calibration uses a subclass.

    :param data: the present calibration
    """

    def __init__(self, data: CalibrationData) -> None:
        self._data = data

    @property
    def data(self) -> CalibrationData:
        """The present calibration, as users see it."""
        return self._data

    @property
    def made(self) -> float | None:
        """Time of the present calibration, if known, in seconds since the epoch."""
        return self.data.seconds

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the present calibration, if its time is known."""
        made = self.made
        return None if made is None else max(0.0, time.time() - made)

    @property
    def wear(self) -> float:
        """Age of the present calibration, from 0 (new) to 1 (about to be renewed)."""
        return 0.0

    @property
    def reading(self) -> Reading | None:
        """The latest reading, if the device measures its own errors."""
        return None

    @property
    def until_next_reading(self) -> float:
        """Seconds until the next reading."""
        return 60.0

    def readings(self, after: Reading | None) -> Sequence[Reading]:
        """List the readings after a given reading, oldest first."""
        return ()

    def history(self) -> CalibrationHistory | None:
        """Return the latest calibrations; may take a moment."""
        data, made = self.data, self.made
        if made is None:
            return None
        values = {name: [value] for name, value in data.values.items()}
        return CalibrationHistory(data.id, made, [made], [], values)

"""The calibrations of an emulated device: renewed periodically, drifting in between."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sf_quantum.files import JSON
from sf_quantum.service.device.technologies import Errors

# factor on the errors of a faulty calibration
FAULT_FACTOR = 20.0
# readings per calibration
READINGS = 100
# relative standard deviation of a reading; an assumption
READING_ERROR = 0.05


@dataclass(frozen=True)
class Calibration:
    """A calibration of a device at a point in time.

    :param id: identifier; a function of the device and its seed
    :param age: from 0 (new) to 1 (about to be renewed)
    :param faulty: whether it has larger errors; not visible to users
    :param seed: of random draws that change with each calibration
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

    @property
    def factor(self) -> float:
        """Factor on the errors of a good, new calibration."""
        return (1.0 + self.age) * self.excess


@dataclass(frozen=True)
class Reading:
    """A device's measurement of its own errors.

    :param number: of the reading within its calibration, from 0
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


@dataclass(frozen=True)
class Calibrations:
    """The sequence of calibrations of a device.

    :param device: identifies the device
    :param root: seed of all random draws
    :param period_seconds: lifetime of a calibration
    :param fault_probability: probability that a calibration is faulty
    :param started: time of the first calibration, by the clock
    :param drift_probability: probability that a calibration gradually becomes faulty
    :param first: number of calibrations before ``started``
    """

    device: str
    root: int
    period_seconds: float
    fault_probability: float = 0.0
    clock: Callable[[], float] = time.time
    started: float = field(default_factory=time.time)
    drift_probability: float = 0.0
    first: int = 0

    def now(self) -> Calibration:
        """Return the present calibration."""
        return self._at(*self._position())

    def reading(self, errors: Errors) -> Reading:
        """Return the latest reading.

        :param errors: errors of a good, new calibration
        """
        number, age = self._position()
        return self._read(errors, number, _slot(age))

    def readings(self, errors: Errors, after: Reading | None) -> list[Reading]:
        """List the readings of the present calibration after a given one, oldest first.

        :param errors: errors of a good, new calibration
        """
        number, age = self._position()
        first = 0
        if after is not None and after.calibration.id == self._at(number, 0.0).id:
            first = after.number + 1
        slots = range(first, _slot(age) + 1)
        return [self._read(errors, number, slot) for slot in slots]

    @property
    def age_seconds(self) -> float:
        """Age of the present calibration."""
        return (self.clock() - self.started) % self.period_seconds

    @property
    def until_next(self) -> float:
        """Seconds until the next reading."""
        interval = self.period_seconds / READINGS
        return interval - self.age_seconds % interval

    def _position(self) -> tuple[int, float]:
        """Return the number and the relative age of the present calibration."""
        number, rest = divmod(self.clock() - self.started, self.period_seconds)
        return int(number), rest / self.period_seconds

    def _read(self, errors: Errors, number: int, slot: int) -> Reading:
        calibration = self._at(number, slot / READINGS)
        expected = errors.aged(calibration.age)
        draws = random.Random(f"{calibration.seed}/reading/{slot}")
        values = {
            name: value * math.exp(draws.gauss(0.0, READING_ERROR))
            for name, value in errors.aged(calibration.age, calibration.excess).items()
        }
        return Reading(calibration, slot, values, expected)

    def _at(self, number: int, age: float) -> Calibration:
        name = f"{self.device}/{self.root}/{self.first + number}"
        draws = random.Random(f"{self.root}/calibration/{self.first + number}")
        made = datetime.fromtimestamp(self.started + number * self.period_seconds, UTC)
        faulty, seed = draws.random() < self.fault_probability, draws.getrandbits(64)
        return Calibration(
            id=f"emulated-{hashlib.sha256(name.encode()).hexdigest()[:12]}",
            made=made,
            age=age,
            faulty=faulty,
            seed=seed,
            # drawn last, so that the other draws do not depend on it
            drifts=draws.random() < self.drift_probability,
        )


def _slot(age: float) -> int:
    return min(int(age * READINGS), READINGS - 1)

"""The calibration of an emulated device: renewed now and then, drifting in between."""

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

# factor on the errors of a calibration that went wrong
WRONG = 20.0
# readings of its own errors that a device makes per calibration
READINGS = 100
# relative standard deviation of a reading; our assumption
READING_ERROR = 0.05


@dataclass(frozen=True)
class Calibration:
    """A calibration of a device, at one moment.

    :param id: the same for the same device with the same seed
    :param age: from 0, just made, to 1, about to be renewed
    :param wrong: whether it went wrong, which the device does not show
    :param drifts: whether it goes as wrong little by little, which it does not show either
    :param seed: for what is drawn anew with each calibration
    """

    id: str
    made: datetime
    age: float
    wrong: bool
    seed: int
    drifts: bool = False

    @property
    def summary(self) -> dict[str, JSON]:
        """Its id and time, for answers."""
        return {"id": self.id, "time": self.made.isoformat(timespec="seconds")}

    @property
    def excess(self) -> float:
        """Factor on the errors of a good calibration of its age."""
        if self.wrong:
            return WRONG
        return 1.0 + self.age * (WRONG - 1.0) if self.drifts else 1.0

    @property
    def factor(self) -> float:
        """Factor on the errors of a good, new calibration."""
        return (1.0 + self.age) * self.excess


@dataclass(frozen=True)
class Reading:
    """Measurements by a device of its own errors.

    :param number: of the calibration's readings, from 0
    :param values: as measured, by name
    :param expected: of a good calibration of this age
    """

    calibration: Calibration
    number: int
    values: dict[str, float]
    expected: dict[str, float]

    @property
    def summary(self) -> dict[str, JSON]:
        """The calibration's id and time and the values, for answers."""
        return {**self.calibration.summary, "values": {**self.values}}

    @property
    def deviations(self) -> dict[str, float]:
        """The values' deviations from the expected ones, in standard deviations."""
        return {
            name: math.log(value / self.expected[name]) / READING_ERROR
            for name, value in self.values.items()
        }


@dataclass(frozen=True)
class Calibrations:
    """The calibrations of one device, one after the other.

    :param what: names the device
    :param root: the seed of all random draws
    :param period_seconds: by the clock
    :param wrong: probability that one goes wrong
    :param drifts: probability that one drifts until it is as wrong
    :param first: how many there were before ``started``
    """

    what: str
    root: int
    period_seconds: float
    wrong: float = 0.0
    clock: Callable[[], float] = time.time
    started: float = field(default_factory=time.time)
    drifts: float = 0.0
    first: int = 0

    def now(self) -> Calibration:
        """Return the present calibration."""
        number, age = self._position()
        return self._at(number, age)

    def reading(self, errors: Errors) -> Reading:
        """Return the latest reading.

        :param errors: of a good, new calibration
        """
        number, age = self._position()
        return self._read(errors, number, _slot(age))

    def readings(self, errors: Errors, after: Reading | None) -> list[Reading]:
        """List the present calibration's readings after another one, oldest first.

        :param errors: of a good, new calibration
        """
        number, age = self._position()
        first = 0
        if after is not None and after.calibration.id == self._at(number, 0.0).id:
            first = after.number + 1
        slots = range(first, _slot(age) + 1)
        return [self._read(errors, number, slot) for slot in slots]

    @property
    def age_seconds(self) -> float:
        """The age of the present calibration."""
        return (self.clock() - self.started) % self.period_seconds

    @property
    def until_next(self) -> float:
        """Seconds until the next reading."""
        every = self.period_seconds / READINGS
        return every - self.age_seconds % every

    def _position(self) -> tuple[int, float]:
        """Return the number of the present calibration since ``started``, and its age."""
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
        name = f"{self.what}/{self.root}/{self.first + number}"
        draws = random.Random(f"{self.root}/calibration/{self.first + number}")
        made = datetime.fromtimestamp(self.started + number * self.period_seconds, UTC)
        wrong, seed = draws.random() < self.wrong, draws.getrandbits(64)
        return Calibration(
            id=f"emulated-{hashlib.sha256(name.encode()).hexdigest()[:12]}",
            made=made,
            age=age,
            wrong=wrong,
            seed=seed,
            # drawn last: the other draws do not depend on it
            drifts=draws.random() < self.drifts,
        )


def _slot(age: float) -> int:
    return min(int(age * READINGS), READINGS - 1)

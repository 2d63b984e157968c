"""The calibration of an emulated device: renewed at times, drifting between them."""

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

# one that went wrong is off by so much more
WRONG = 20.0
# how often, in one period, a device measures its own errors
READINGS = 100
# the relative error of one such measurement, one standard deviation; our assumption
READING_ERROR = 0.05


@dataclass(frozen=True)
class Calibration:
    """What a device was set to at one moment.

    :param id: tells calibrations apart; the same device with the same seed has the same
    :param made: when
    :param age: from 0, just made, to 1, about to be renewed
    :param wrong: whether it went wrong, which nobody is told before it is renewed
    :param drifts: whether it goes as wrong little by little, which nobody is told either
    :param seed: for what is drawn anew with each calibration
    """

    id: str
    made: datetime
    age: float
    wrong: bool
    seed: int
    drifts: bool = False

    @property
    def told(self) -> dict[str, JSON]:
        """Which one it is, for an answer."""
        return {"id": self.id, "time": self.made.isoformat(timespec="seconds")}

    @property
    def excess(self) -> float:
        """How many times the errors of one of its age that is as it should be."""
        if self.wrong:
            return WRONG
        return 1.0 + self.age * (WRONG - 1.0) if self.drifts else 1.0

    @property
    def factor(self) -> float:
        """How many times the errors of a good, new one."""
        return (1.0 + self.age) * self.excess


@dataclass(frozen=True)
class Reading:
    """What a device measured of its own errors.

    :param number: of the calibration's readings, from 0
    :param values: as measured, by name
    :param expected: as they are to be at this age
    """

    calibration: Calibration
    number: int
    values: dict[str, float]
    expected: dict[str, float]

    @property
    def told(self) -> dict[str, JSON]:
        """What an answer says of it."""
        return {**self.calibration.told, "values": {**self.values}}

    @property
    def deviations(self) -> dict[str, float]:
        """How far off each value is, in standard deviations of its measurement."""
        return {
            name: math.log(value / self.expected[name]) / READING_ERROR
            for name, value in self.values.items()
        }


@dataclass(frozen=True)
class Calibrations:
    """The calibrations of one device, one after the other.

    :param what: names the device
    :param root: what all is drawn from
    :param period_seconds: of real time
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
        """Tell the present one."""
        number, rest = divmod(self.clock() - self.started, self.period_seconds)
        return self._at(int(number), rest / self.period_seconds)

    def reading(self, errors: Errors) -> Reading:
        """Tell the latest reading.

        :param errors: of a good, new calibration
        """
        number, slot = self._slot()
        return self._read(errors, number, slot)

    def readings(self, errors: Errors, after: Reading | None) -> list[Reading]:
        """Tell the readings of the present calibration since another, oldest first.

        :param errors: of a good, new calibration
        """
        number, latest = self._slot()
        calibration = self._at(number, 0.0)
        same = after is not None and after.calibration.id == calibration.id
        first = after.number + 1 if after is not None and same else 0
        return [self._read(errors, number, slot) for slot in range(first, latest + 1)]

    @property
    def age_seconds(self) -> float:
        """Tell how old the present one is."""
        return (self.clock() - self.started) % self.period_seconds

    @property
    def until_next(self) -> float:
        """Seconds from now until the next reading."""
        every = self.period_seconds / READINGS
        return every - self.age_seconds % every

    def _slot(self) -> tuple[int, int]:
        number, rest = divmod(self.clock() - self.started, self.period_seconds)
        slot = int(rest / self.period_seconds * READINGS)
        return int(number), min(slot, READINGS - 1)

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
            # drawn last: what the others are does not depend on it
            drifts=draws.random() < self.drifts,
        )

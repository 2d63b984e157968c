"""The calibrations of an emulated device, drawn from its seed, and readings of its errors."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime

from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.device.emulator.technologies import Errors
from sf_quantum.service.device.readings import (
    READING_ERROR,
    READINGS,
    Calibration,
    CalibrationHistory,
    Calibrations,
    Reading,
)

# The history covers PERIODS calibrations, with one reading out of EVERY.
PERIODS, EVERY = 3, 4


@dataclass(frozen=True, kw_only=True)
class EmulatedCalibrations(Calibrations):
    """Consecutive calibrations; times are seconds since the epoch.

    :param device: text that distinguishes the device, for the ids of calibrations
    :param errors: errors of a good, new calibration
    :param faults: probabilities of faulty calibrations
    :param period: lifetime of a calibration in seconds
    :param started: time of the first calibration
    :param first: number of calibrations before ``started``
    :param changed: time of the last change of the settings
    :param now: the present time
    """

    device: str
    seed: int
    errors: Errors
    faults: Faults
    period: float
    started: float
    first: int
    changed: float
    now: float

    @property
    def data(self) -> CalibrationData:
        """See :attr:`Calibrations.data`: the latest reading."""
        return self.reading.data

    @property
    def made(self) -> float:
        """See :attr:`Calibrations.made`."""
        return self.present.made.timestamp()

    @property
    def age_seconds(self) -> float:
        """See :attr:`Calibrations.age_seconds`."""
        return (self.now - self.started) % self.period

    @property
    def wear(self) -> float:
        """See :attr:`Calibrations.wear`."""
        return self.present.age

    @property
    def present(self) -> Calibration:
        """The present calibration, including what users do not see."""
        return self._calibration(*self._number_and_age(self.now))

    @property
    def number(self) -> int:
        """Number of the present calibration since ``started``, from 0."""
        return self._number_and_age(self.now)[0]

    @property
    def reading(self) -> Reading:
        """See :attr:`Calibrations.reading`."""
        return self._reading_at(self.now)

    @property
    def until_next_reading(self) -> float:
        """See :attr:`Calibrations.until_next_reading`."""
        interval = self.period / READINGS
        return interval - self.age_seconds % interval

    def readings(self, after: Reading | None) -> list[Reading]:
        """See :meth:`Calibrations.readings`; only of the present calibration."""
        number, age = self._number_and_age(self.now)
        first = 0
        if after and after.calibration.id == self._calibration(number, 0.0).id:
            first = after.number + 1
        return [self._read(number, slot) for slot in range(first, _slot(age) + 1)]

    def history(self) -> CalibrationHistory:
        """See :meth:`Calibrations.history`; a selection of the readings since ``changed``."""
        slot = self.period / READINGS
        last = max(0, int((self.now - self.started) / slot))
        changed_slot = math.ceil((self.changed - self.started) / slot)
        # always the same readings, so that points do not move between two responses
        first = -(-max(0, last - PERIODS * READINGS, changed_slot) // EVERY) * EVERY
        numbers = [*range(first, last, EVERY), last]
        # The readings are taken in the middle of a slot: rounding at its border could
        # yield the neighbouring slot.
        readings = [self._reading_at(self.started + (n + 0.5) * slot) for n in numbers]
        renewed = range(-(-first // READINGS) * READINGS, last + 1, READINGS)
        latest = readings[-1]
        return CalibrationHistory(
            latest.calibration.id,
            latest.calibration.made.timestamp(),
            [self.started + number * slot for number in numbers],
            [self.started + number * slot for number in renewed],
            {name: [one.values[name] for one in readings] for name in latest.values},
        )

    def _number_and_age(self, moment: float) -> tuple[int, float]:
        """Return the number and the relative age of the calibration at a time."""
        number, rest = divmod(moment - self.started, self.period)
        return int(number), rest / self.period

    def _reading_at(self, moment: float) -> Reading:
        number, age = self._number_and_age(moment)
        return self._read(number, _slot(age))

    def _read(self, number: int, slot: int) -> Reading:
        calibration = self._calibration(number, slot / READINGS)
        expected = self.errors.aged(calibration.age)
        actual = self.errors.aged(calibration.age, calibration.excess)
        draws = random.Random(f"{calibration.seed}/reading/{slot}")
        values = {
            name: value * math.exp(draws.gauss(0.0, READING_ERROR))
            for name, value in actual.items()
        }
        return Reading(calibration, slot, values, expected)

    def _calibration(self, number: int, age: float) -> Calibration:
        serial = self.first + number
        name = f"{self.device}/{self.seed}/{serial}"
        draws = random.Random(f"{self.seed}/calibration/{serial}")
        made = self.started + number * self.period
        faulty, seed = draws.random() < self.faults.calibration, draws.getrandbits(64)
        return Calibration(
            id=f"emulated-{hashlib.sha256(name.encode()).hexdigest()[:12]}",
            made=datetime.fromtimestamp(made, UTC),
            age=age,
            faulty=faulty,
            seed=seed,
            # drawn last, so that the other draws do not depend on this setting
            drifts=draws.random() < self.faults.drift,
        )


def _slot(age: float) -> int:
    return min(int(age * READINGS), READINGS - 1)

"""The present calibration of a device, and the history of its errors."""

from __future__ import annotations

import math
from dataclasses import replace

from sf_quantum.service.api.page.models import CalibrationShown, CalibrationValue
from sf_quantum.service.device.calibration import READINGS, Reading
from sf_quantum.service.queue.job_queue import JobQueue

# length of the history, in calibrations
PERIODS = 3
# readings per point of the history
EVERY = 4


def describe(queue: JobQueue) -> CalibrationShown:
    """Describe the errors that the device measured over its last calibrations.

    The history begins anew when an admin changes the device.
    """
    device = queue.device
    calibrations, errors = device.calibrations, device.errors
    period, started = calibrations.period_seconds, calibrations.started
    slot = period / READINGS

    def reading(number: int) -> Reading:
        # in the middle of its slot, where rounding cannot yield a neighbour
        time = started + (number + 0.5) * slot
        return replace(calibrations, clock=lambda: time).reading(errors)

    last = max(0, int((calibrations.clock() - started) / slot))
    known = math.ceil(((device.changed or started) - started) / slot)
    # always the same readings, so that points do not move from answer to answer
    first = -(-max(0, last - PERIODS * READINGS, known) // EVERY) * EVERY
    numbers = [*range(first, last, EVERY), last]
    readings = [*map(reading, numbers)]
    renewed = range(-(-first // READINGS) * READINGS, last + 1, READINGS)
    return CalibrationShown(
        id=readings[-1].calibration.id,
        made=readings[-1].calibration.made.timestamp(),
        times=[started + number * slot for number in numbers],
        renewals=[started + number * slot for number in renewed],
        values=[
            CalibrationValue(
                name=name,
                value=value,
                history=[reading.values[name] for reading in readings],
            )
            for name, value in readings[-1].values.items()
        ],
        alarms=[*queue.drift.alarms],
    )

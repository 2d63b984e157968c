"""The present calibration of a device, and how it came to be what it is."""

from __future__ import annotations

import math
from dataclasses import replace

from sf_quantum.service.api.page.models import CalibrationShown, CalibrationValue
from sf_quantum.service.device.calibration import READINGS, Reading
from sf_quantum.service.queue.job_queue import JobQueue

# how far back, in calibrations
PERIODS = 3
# of the readings, every so manyth is shown
EVERY = 4


def tell(queue: JobQueue) -> CalibrationShown:
    """Tell the errors of the device, as it measured them over its last calibrations.

    What was before an admin changed the device is not known any more.
    """
    device = queue.device
    calibrations, errors = device.calibrations, device.errors
    period, started = calibrations.period_seconds, calibrations.started
    slot = period / READINGS

    def reading(number: int) -> Reading:
        # in its middle, where no rounding makes it a neighbour
        time = started + (number + 0.5) * slot
        return replace(calibrations, clock=lambda: time).reading(errors)

    last = max(0, int((calibrations.clock() - started) / slot))
    known = math.ceil(((device.changed or started) - started) / slot)
    # always the same ones, so that what was told once stays where it was
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

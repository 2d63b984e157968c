"""Whether the device drifts: a CUSUM alarm over what it and its quality jobs tell."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

from sf_quantum.service.device.calibration import Reading
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.domain.settings import DriftSettings

logger = logging.getLogger(__name__)


@dataclass
class Cusum:
    """The two-sided tabular CUSUM of standardized values.

    Page, "Continuous inspection schemes", Biometrika 41, 1954, p. 100; in this form
    Montgomery, Introduction to Statistical Quality Control, chapter 9.

    :param above: the sum of what exceeded the reference value
    :param below: the same downwards
    """

    settings: DriftSettings
    above: float = 0.0
    below: float = 0.0

    def observe(self, deviation: float) -> bool:
        """Take a value.

        :param deviation: from what is expected, in standard deviations
        :returns: whether there is an alarm
        """
        k = self.settings.reference
        self.above = max(0.0, self.above + deviation - k)
        self.below = max(0.0, self.below - deviation - k)
        return max(self.above, self.below) > self.settings.threshold


def run_length(settings: DriftSettings, shift: float) -> float:
    """Expect how many values there are until the alarm, that which raises it included.

    Siegmund's approximation (Sequential Analysis, 1985, chapter 2), for both sides
    together as Montgomery gives it.

    :param shift: of the values' mean, in standard deviations; 0 tells how many there are
        between two false alarms
    """
    sides = (one_sided(settings, shift), one_sided(settings, -shift))
    return 1 / sum(1 / length for length in sides)


def one_sided(settings: DriftSettings, shift: float) -> float:
    """Expect the same for the sum upwards alone."""
    delta, width = shift - settings.reference, settings.threshold + 1.166
    if delta == 0:
        return width**2
    product = 2 * delta * width
    if product < -700:
        return math.inf
    return (math.exp(-product) + product - 1) / (2 * delta**2)


@dataclass
class DriftWatch:
    """The CUSUMs of one device, by the names of what they watch.

    An alarm stays until the calibration is renewed, which also clears all sums.

    :param name: of the device, for the log
    """

    name: str
    settings: DriftSettings = field(default_factory=DriftSettings)
    sums: dict[str, Cusum] = field(default_factory=dict)
    #: what drifts, in the order it was found
    alarms: list[str] = field(default_factory=list)
    _calibration: str = ""
    _last: Reading | None = None

    def look(self, device: Device) -> None:
        """Take note of what a device has measured of itself since the last look."""
        self.renewed(device.calibration.id)
        for reading in device.calibrations.readings(device.errors, self._last):
            self._last = reading
            for name, deviation in reading.deviations.items():
                self.observe(name, deviation)

    def renewed(self, calibration: str) -> None:
        """Begin anew if the calibration is another than the last.

        :param calibration: its id
        """
        if calibration == self._calibration:
            return
        if self.alarms:
            logger.warning("%s: calibrated, the drift alarm is over", self.name)
        self._calibration = calibration
        self.sums.clear()
        self.alarms.clear()

    def observe(self, series: str, deviation: float) -> None:
        """Take a value of the present calibration.

        :param deviation: from what is expected, in standard deviations
        """
        cusum = self.sums.setdefault(series, Cusum(self.settings))
        if cusum.observe(deviation) and series not in self.alarms:
            self.alarms.append(series)
            way = "above" if cusum.above > cusum.below else "below"
            logger.warning(
                "%s: drift alarm: %s is %s what is usual; calibrate it",
                *(self.name, series, way),
            )

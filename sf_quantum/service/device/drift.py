"""The drift alarm: CUSUMs over the device's readings and its quality jobs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from sf_quantum.service.device.calibration import Reading
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.domain.settings import DriftSettings

logger = logging.getLogger(__name__)


@dataclass
class Cusum:
    """The two-sided tabular CUSUM of standardized values.

    Page, "Continuous inspection schemes", Biometrika 41, 1954, p. 100; in the form of
    Montgomery, Introduction to Statistical Quality Control, chapter 9.

    :param above: upper cumulative sum
    :param below: lower cumulative sum
    """

    settings: DriftSettings
    above: float = 0.0
    below: float = 0.0

    def observe(self, deviation: float) -> bool:
        """Add a value and return whether there is an alarm.

        :param deviation: from the expected value, in standard deviations
        """
        k = self.settings.reference
        self.above = max(0.0, self.above + deviation - k)
        self.below = max(0.0, self.below - deviation - k)
        return max(self.above, self.below) > self.settings.threshold


@dataclass
class DriftWatch:
    """The CUSUMs of a device, by name of the series.

    When the calibration is renewed, all alarms and sums are cleared.

    :param name: name of the device, for the log
    """

    name: str
    settings: DriftSettings = field(default_factory=DriftSettings)
    sums: dict[str, Cusum] = field(default_factory=dict)
    #: the series with an alarm, oldest first
    alarms: list[str] = field(default_factory=list)
    _calibration: str = ""
    _last: Reading | None = None

    def look(self, device: Device) -> None:
        """Add the device's readings since the last call."""
        self.renewed(device.calibration.id)
        for reading in device.calibrations.readings(device.errors, self._last):
            self._last = reading
            for name, deviation in reading.deviations.items():
                self.observe(name, deviation)

    def renewed(self, calibration: str) -> None:
        """Clear all alarms and sums if the calibration is new.

        :param calibration: id of the present calibration
        """
        if calibration == self._calibration:
            return
        if self.alarms:
            logger.warning("%s: calibration renewed, drift alarm cleared", self.name)
        self._calibration = calibration
        self.sums.clear()
        self.alarms.clear()

    def observe(self, series: str, deviation: float) -> None:
        """Add a value of a series.

        :param deviation: from the expected value, in standard deviations
        """
        cusum = self.sums.setdefault(series, Cusum(self.settings))
        if cusum.observe(deviation) and series not in self.alarms:
            self.alarms.append(series)
            side = "above" if cusum.above > cusum.below else "below"
            message = (
                "%s: drift alarm: %s is %s its usual value; recalibrate the device"
            )
            logger.warning(message, self.name, series, side)

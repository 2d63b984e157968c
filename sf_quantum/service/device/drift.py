"""The drift alarm: CUSUMs of the device's readings and of its quality jobs."""

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

    Page, "Continuous inspection schemes", Biometrika 41, 1954, p. 100; in this form
    Montgomery, Introduction to Statistical Quality Control, chapter 9.

    :param above: the sum of what exceeded the reference value
    :param below: the same downwards
    """

    settings: DriftSettings
    above: float = 0.0
    below: float = 0.0

    def observe(self, deviation: float) -> bool:
        """Add a value, and return whether there is an alarm.

        :param deviation: from the expected value, in standard deviations
        """
        k = self.settings.reference
        self.above = max(0.0, self.above + deviation - k)
        self.below = max(0.0, self.below - deviation - k)
        return max(self.above, self.below) > self.settings.threshold


@dataclass
class DriftWatch:
    """The CUSUMs of one device, by the name of the series that each watches.

    An alarm stays until the calibration is renewed, which also clears all sums.

    :param name: of the device, for the log
    """

    name: str
    settings: DriftSettings = field(default_factory=DriftSettings)
    sums: dict[str, Cusum] = field(default_factory=dict)
    #: the series with an alarm, the oldest first
    alarms: list[str] = field(default_factory=list)
    _calibration: str = ""
    _last: Reading | None = None

    def look(self, device: Device) -> None:
        """Add the readings that a device has made since the last look."""
        self.renewed(device.calibration.id)
        for reading in device.calibrations.readings(device.errors, self._last):
            self._last = reading
            for name, deviation in reading.deviations.items():
                self.observe(name, deviation)

    def renewed(self, calibration: str) -> None:
        """Start again if the calibration is not the last one.

        :param calibration: its id
        """
        if calibration == self._calibration:
            return
        if self.alarms:
            logger.warning("%s: calibrated, the drift alarm has ended", self.name)
        self._calibration = calibration
        self.sums.clear()
        self.alarms.clear()

    def observe(self, series: str, deviation: float) -> None:
        """Add a value of the present calibration.

        :param deviation: from the expected value, in standard deviations
        """
        cusum = self.sums.setdefault(series, Cusum(self.settings))
        if cusum.observe(deviation) and series not in self.alarms:
            self.alarms.append(series)
            side = "above" if cusum.above > cusum.below else "below"
            words = "%s: drift alarm: %s is %s its usual value; recalibrate the device"
            logger.warning(words, self.name, series, side)

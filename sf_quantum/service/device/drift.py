"""The drift alarm: CUSUMs over the device's readings and its quality jobs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.readings import Reading
from sf_quantum.service.domain.settings import DriftSettings

logger = logging.getLogger(__name__)


@dataclass
class Cusum:
    """A two-sided tabular CUSUM (cumulative sum) of standardized values.

    From Page, "Continuous inspection schemes", Biometrika 41, 1954, p. 100, in the form of
    Montgomery, Introduction to Statistical Quality Control, chapter 9.
    """

    settings: DriftSettings
    above: float = 0.0
    below: float = 0.0

    def observe(self, deviation: float) -> bool:
        """Add a deviation, in standard deviations; return whether there is an alarm."""
        k = self.settings.reference
        self.above = max(0.0, self.above + deviation - k)
        self.below = max(0.0, self.below - deviation - k)
        return max(self.above, self.below) > self.settings.threshold


@dataclass
class DriftWatch:
    """The CUSUMs of a device, by series name."""

    name: str
    settings: DriftSettings = field(default_factory=DriftSettings)
    sums: dict[str, Cusum] = field(default_factory=dict)
    #: the series with an alarm, oldest first
    alarms: list[str] = field(default_factory=list)
    _calibration: str = ""
    _last: Reading | None = None

    def add_readings(self, device: Device) -> None:
        """Add the device's readings since the last call."""
        calibrations = device.calibrations
        if device.description.calibration is not None:
            self.renewed(calibrations.data.id)
        for reading in calibrations.readings(self._last):
            self._last = reading
            for name, deviation in reading.deviations.items():
                self.observe(name, deviation)

    def renewed(self, calibration: str) -> None:
        """Clear all alarms and sums if the calibration, given by its id, is new."""
        if calibration == self._calibration:
            return
        if self.alarms:
            logger.warning("%s: calibration renewed, drift alarm cleared", self.name)
        self._calibration = calibration
        self.sums.clear()
        self.alarms.clear()

    def observe(self, series: str, deviation: float) -> None:
        """Add a value's deviation from the expected value, in standard deviations."""
        cusum = self.sums.setdefault(series, Cusum(self.settings))
        if cusum.observe(deviation) and series not in self.alarms:
            self.alarms.append(series)
            side = "above" if cusum.above > cusum.below else "below"
            state = f"{series} is {side} its usual value; recalibrate the device"
            logger.warning("%s: drift alarm: %s", self.name, state)

"""What an operator may set on a device while it serves: named, bounded, between jobs.

A device lists its operations (:attr:`~sf_quantum.service.device.emulated.Device.controls`); each
is declared once, here for the emulated one, and gives a device with other settings, so
that a job has all of the old ones or all of the new.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from sf_quantum.files import JSON
from sf_quantum.samplers import unknown
from sf_quantum.samplers.problem import FieldError

if TYPE_CHECKING:
    from sf_quantum.service.device.emulated import Device

Values: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class Parameter:
    """A number that an operation sets.

    :param unit: empty for a mere factor or a probability
    :param least: the smallest value that is let pass
    :param most: the largest
    """

    name: str
    what: str
    unit: str
    least: float
    most: float

    def within(self, bounds: Sequence[float] | None) -> Parameter:
        """Take other bounds: the smallest value and the largest."""
        if bounds is None:
            return self
        least, most = bounds
        return replace(self, least=least, most=most)

    def checked(self, value: JSON) -> float:
        """Read a value.

        :raises FieldError: unless it is a number within the bounds
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FieldError(f"parameters.{self.name}", "expected a number")
        if not self.least <= value <= self.most:
            detail = f"expected {self.least:g} to {self.most:g}"
            raise FieldError(f"parameters.{self.name}", detail)
        return float(value)


@dataclass(frozen=True)
class Operation:
    """One thing that can be done to a device.

    :param change: makes a device with other settings; the old one stays as it is
    :param shown: the settings that it changes, by name, for the audit
    :param drained: whether the QPU must be drained first
    """

    name: str
    what: str
    change: Callable[[Device, Values], Device]
    shown: Callable[[Device], Mapping[str, JSON]]
    parameters: Sequence[Parameter] = ()
    drained: bool = False

    def within(self, bounds: Mapping[str, Sequence[float]]) -> Operation:
        """Take a site's bounds, by parameter: the smallest value and the largest."""
        narrowed = [one.within(bounds.get(one.name)) for one in self.parameters]
        return replace(self, parameters=narrowed)

    def values(self, given: Mapping[str, JSON]) -> dict[str, float]:
        """Read values; a parameter that is not given stays as it is.

        :raises FieldError: naming the parameter that is unknown or wrong
        """
        known = {one.name: one for one in self.parameters}
        for name in given:
            if name not in known:
                words = unknown("parameter", name, [*known])
                raise FieldError(f"parameters.{name}", words)
        if known and not given:
            words = f"expected at least one of {', '.join(known)}"
            raise FieldError("parameters", words)
        return {name: known[name].checked(value) for name, value in given.items()}


def _recalibrated(device: Device, _: Values) -> Device:
    calibrations = device.calibrations
    number = int((device.clock() - device.started) // calibrations.period_seconds)
    first = device.first_calibration + number + 1
    return replace(device, started=device.clock(), first_calibration=first)


def _scaled(device: Device, values: Values) -> Device:
    """Keep the calibration and its age, whose time passes at another speed."""
    scaled = replace(device, time_scale=values["time_scale"])
    period = scaled.calibrations.period_seconds / device.calibrations.period_seconds
    now = device.clock()
    return replace(scaled, started=now - (now - device.started) * period)


def _probability(name: str, what: str) -> Parameter:
    return Parameter(name, f"Probability that {what}.", "", 0.0, 1.0)


EMULATED = (
    Operation(
        "recalibrate",
        "Renew the calibration now instead of when it is due.",
        _recalibrated,
        lambda device: {"calibration": device.calibration.id},
    ),
    Operation(
        "set-noise",
        "Multiply the technology's errors.",
        lambda device, values: replace(device, noise=values["noise"]),
        lambda device: {"noise": device.noise},
        [Parameter("noise", "0 is an ideal device, 1 a real one.", "", 0.0, 100.0)],
    ),
    Operation(
        "set-faults",
        "Let things go wrong on purpose.",
        lambda device, values: replace(device, faults=replace(device.faults, **values)),
        lambda device: asdict(device.faults),
        [
            _probability("fail", "a job takes its time and fails"),
            Parameter("slow", "Factor on every job's time.", "", 1.0, 1000.0),
            _probability("offline", "a job finds the QPU offline"),
            _probability("calibration", "a calibration goes wrong"),
            _probability("drift", "a calibration goes wrong little by little"),
        ],
    ),
    Operation(
        "set-time-scale",
        "Set how long the service waits for what real hardware would take.",
        _scaled,
        lambda device: {"time_scale": device.time_scale},
        [Parameter("time_scale", "0 does not wait.", "s/s", 0.0, 1000.0)],
        drained=True,
    ),
)


def check_bounds(bounds: Mapping[str, Sequence[float]]) -> None:
    """Check a site's own bounds for the emulated device.

    :raises ValueError: in words, if one names no parameter, or lets pass what the
        service itself does not
    """
    known = {one.name: one for made in EMULATED for one in made.parameters}
    for name, pair in bounds.items():
        if name not in known:
            raise ValueError(unknown("parameter", name, [*known]))
        one = known[name]
        pair = [value for value in pair if math.isfinite(value)]
        if len(pair) != 2 or not one.least <= pair[0] <= pair[1] <= one.most:
            least, most = f"{one.least:g}", f"{one.most:g}"
            raise ValueError(f"{name}: expected [least, most] within [{least}, {most}]")

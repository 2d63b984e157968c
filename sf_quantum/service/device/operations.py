"""Operations: what an operator may set on a device while it serves, between jobs.

A device lists its operations; each returns a device with other settings, so that a job
has all of the old ones or all of the new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

from sf_quantum.files import JSON
from sf_quantum.samplers import unknown
from sf_quantum.samplers.problem import FieldError

Values: TypeAlias = Mapping[str, float]
D = TypeVar("D")


@dataclass(frozen=True)
class Parameter:
    """A number that an operation sets.

    :param unit: empty for a factor or a probability
    :param least: the smallest value allowed
    :param most: the largest
    """

    name: str
    what: str
    unit: str
    least: float
    most: float

    def within(self, bounds: Sequence[float] | None) -> Parameter:
        """Return it with other bounds: the smallest value and the largest."""
        if bounds is None:
            return self
        least, most = bounds
        return replace(self, least=least, most=most)

    def parse(self, value: JSON) -> float:
        """Check and read a value.

        :raises FieldError: unless it is a number within the bounds
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FieldError(f"parameters.{self.name}", "expected a number")
        if not self.least <= value <= self.most:
            detail = f"expected {self.least:g} to {self.most:g}"
            raise FieldError(f"parameters.{self.name}", detail)
        return float(value)


@dataclass(frozen=True)
class Operation(Generic[D]):
    """One thing that can be done to a device.

    :param change: returns a device with other settings and leaves the old one as it is
    :param shown: the settings that it changes, by name, for the audit
    :param drained: whether the QPU must be drained first
    """

    name: str
    what: str
    change: Callable[[D, Values], D]
    shown: Callable[[D], Mapping[str, JSON]]
    parameters: Sequence[Parameter] = ()
    drained: bool = False

    def within(self, bounds: Mapping[str, Sequence[float]]) -> Operation[D]:
        """Return it with a site's bounds, by parameter: the smallest value, the largest."""
        narrowed = [one.within(bounds.get(one.name)) for one in self.parameters]
        return replace(self, parameters=narrowed)

    def values(self, given: Mapping[str, JSON]) -> dict[str, float]:
        """Check and read values; a parameter that is not given stays as it is.

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
        return {name: known[name].parse(value) for name, value in given.items()}

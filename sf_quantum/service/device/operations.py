"""Operations: changes of a device's settings by an operator while the service runs.

An operation returns a modified copy of the device and is applied between jobs, so that no
job runs with a mixture of old and new settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.text import unknown

Values: TypeAlias = Mapping[str, float]
D = TypeVar("D")


@dataclass(frozen=True)
class Parameter:
    """A number that an operation sets, from ``least`` to ``most``.

    :param unit: empty for a factor or a probability
    """

    name: str
    what: str
    unit: str
    least: float
    most: float

    def parse(self, value: JSON) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FieldError(f"parameters.{self.name}", "expected a number")
        if not self.least <= value <= self.most:
            detail = f"expected {self.least:g} to {self.most:g}"
            raise FieldError(f"parameters.{self.name}", detail)
        return float(value)


@dataclass(frozen=True)
class Operation(Generic[D]):
    """An operation on a device.

    :param change: function that returns a modified copy of the device
    :param settings: function that returns the settings to be changed, by name, for the audit
    :param drained: whether the QPU must be drained first
    """

    name: str
    what: str
    change: Callable[[D, Values], D]
    settings: Callable[[D], Mapping[str, JSON]]
    parameters: Sequence[Parameter] = ()
    drained: bool = False

    def within(self, bounds: Mapping[str, Sequence[float]]) -> Operation[D]:
        """Return the operation with a site's bounds: minimum and maximum by parameter name."""
        narrowed = []
        for parameter in self.parameters:
            present = (parameter.least, parameter.most)
            least, most = bounds.get(parameter.name, present)
            narrowed.append(replace(parameter, least=least, most=most))
        return replace(self, parameters=narrowed)

    def values(self, given: Mapping[str, JSON]) -> dict[str, float]:
        """Validate values; parameters that are not given remain unchanged.

        :raises FieldError: if a parameter is unknown or invalid; the error names the parameter
        """
        parameters = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in parameters:
                detail = unknown("parameter", name, [*parameters])
                raise FieldError(f"parameters.{name}", detail)
        if parameters and not given:
            detail = f"expected at least one of {', '.join(parameters)}"
            raise FieldError("parameters", detail)
        return {name: parameters[name].parse(value) for name, value in given.items()}

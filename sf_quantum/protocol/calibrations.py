"""A calibration as its vendor reports it, read once from the vendor's JSON."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from sf_quantum.files import JSON, mapping


@dataclass(frozen=True)
class CalibrationData:
    """The data of a calibration that its vendor reports.

    :param id: id of the calibration; empty if unknown
    :param time: time in ISO 8601; empty if unknown
    :param values: calibration data by name; values that are not finite numbers are left out
    """

    id: str = ""
    time: str = ""
    values: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        finite = {
            name: float(value)
            for name, value in self.values.items()
            # JSON has no NaN, and other types are not floats
            if isinstance(value, int | float) and abs(value) <= sys.float_info.max
        }
        object.__setattr__(self, "values", finite)

    @classmethod
    def read(cls, content: JSON) -> CalibrationData | None:
        """Read a vendor's calibration; ``None`` if there is none."""
        if not isinstance(content, dict) or not content:
            return None
        values = cast("dict[str, float]", mapping(content.get("values")))
        id_, time = content.get("id"), content.get("time")
        return cls(str(id_ or ""), str(time or ""), values)

    def completed(self, other: CalibrationData) -> CalibrationData:
        """Return this calibration, with a missing time or missing values from another."""
        return CalibrationData(
            self.id, self.time or other.time, self.values or other.values
        )

    @property
    def seconds(self) -> float | None:
        """The time in seconds since the epoch; ``None`` if unknown or not in ISO 8601."""
        try:
            return datetime.fromisoformat(self.time).timestamp()
        except ValueError:
            return None

    def to_json(self) -> dict[str, JSON]:
        """Return the calibration as the service reports it."""
        time: dict[str, JSON] = {"time": self.time} if self.time else {}
        return {"id": self.id, **time, "values": {**self.values}}


def calibration_id(calibration: CalibrationData | None) -> str:
    """Return the id of a calibration; empty if the id is unknown, or for ``None``."""
    return calibration.id if calibration else ""

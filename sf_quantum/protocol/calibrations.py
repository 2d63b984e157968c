"""What a vendor tells of a calibration, read once from its JSON."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from sf_quantum.files import JSON, mapping


@dataclass(frozen=True)
class CalibrationData:
    """A calibration, as far as its vendor tells of it.

    :param id: empty if unknown
    :param time: in ISO 8601; empty if unknown
    :param values: by name; those that are not finite numbers are left out
    """

    id: str = ""
    time: str = ""
    values: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        finite = {
            name: float(value)
            for name, value in self.values.items()
            # JSON does not know NaN, and other types are not floats
            if isinstance(value, int | float) and abs(value) <= sys.float_info.max
        }
        object.__setattr__(self, "values", finite)

    @classmethod
    def read(cls, content: JSON) -> CalibrationData | None:
        """Read what a vendor tells; ``None`` if that is nothing."""
        if not isinstance(content, dict) or not content:
            return None
        values = cast("dict[str, float]", mapping(content.get("values")))
        id_, time = content.get("id"), content.get("time")
        return cls(str(id_ or ""), str(time or ""), values)

    def completed(self, other: CalibrationData) -> CalibrationData:
        """Return it, with the time and the values of another where it has none."""
        return CalibrationData(
            self.id, self.time or other.time, self.values or other.values
        )

    @property
    def seconds(self) -> float | None:
        """Its time in seconds since the epoch; ``None`` if unknown or not ISO 8601."""
        try:
            return datetime.fromisoformat(self.time).timestamp()
        except ValueError:
            return None

    def to_json(self) -> dict[str, JSON]:
        """What the service tells of it."""
        time: dict[str, JSON] = {"time": self.time} if self.time else {}
        return {"id": self.id, **time, "values": {**self.values}}


def calibration_id(calibration: CalibrationData | None) -> str:
    """Return the id of a calibration; empty if it is unknown, or there is none."""
    return calibration.id if calibration else ""

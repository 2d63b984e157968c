"""What a vendor tells of a calibration, read once from its JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sf_quantum.files import JSON, mapping


@dataclass(frozen=True)
class CalibrationData:
    """A calibration, as far as its vendor tells of it.

    :param id: empty if unknown
    :param time: in ISO 8601; empty if unknown
    :param values: the numbers among its values, by name
    """

    id: str = ""
    time: str = ""
    values: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, content: Mapping[str, JSON] | None) -> CalibrationData:
        """Read the calibration of a description or of a result, if there is one."""
        content = content or {}
        return cls(
            str(content.get("id") or ""),
            str(content.get("time") or ""),
            {
                name: float(value)
                for name, value in mapping(content.get("values")).items()
                # JSON does not know NaN, and other types are not floats
                if isinstance(value, int | float) and abs(value) <= sys.float_info.max
            },
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

"""What is read of a calibration, whatever its vendor tells."""

from __future__ import annotations

import pytest

from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData


@pytest.mark.parametrize(
    "content",
    [{"a": 1}, {"id": None, "time": "", "values": [1]}, {"values": {"a": "x"}}],
)
def test_what_a_vendor_does_not_tell_is_empty(content: JSON) -> None:
    data = CalibrationData.read(content)
    assert data == CalibrationData()
    assert data.seconds is None
    assert data.to_json() == {"id": "", "values": {}}


@pytest.mark.parametrize("content", [None, {}, [], "c1"])
def test_no_calibration_is_none(content: JSON) -> None:
    assert CalibrationData.read(content) is None


def test_only_numbers_that_json_knows_are_values() -> None:
    values: dict[str, JSON] = {"a": 1, "b": float("nan"), "c": "1", "d": 10**400}
    time = "1970-01-01T00:00:09Z"
    data = CalibrationData.read({"id": 7, "time": time, "values": values})
    assert data is not None
    assert (data.id, data.seconds, data.values) == ("7", 9.0, {"a": 1.0})

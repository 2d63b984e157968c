"""Calibrations that a device reports and does not measure itself."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.service.device.readings import Calibrations


def test_a_reported_calibration_is_the_whole_history() -> None:
    made = time.time() - 100
    text = datetime.fromtimestamp(made, UTC).isoformat()
    calibrations = Calibrations(CalibrationData("c1", text, {"t1": 5e-5}))
    assert calibrations.age_seconds == pytest.approx(100, abs=10)
    history = calibrations.history()
    assert history is not None
    assert (history.id, history.values) == ("c1", {"t1": [5e-5]})
    assert [*history.times] == pytest.approx([made])
    assert calibrations.readings(None) == ()


def test_a_calibration_without_a_time_has_no_age() -> None:
    calibrations = Calibrations(CalibrationData("c1", "", {"t1": 5e-5}))
    assert (calibrations.made, calibrations.age_seconds) == (None, None)
    assert calibrations.history() is None

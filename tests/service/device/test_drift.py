"""The drift alarm: its sums, what it makes of a device's readings, when it is over."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.drift import Cusum, DriftWatch
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.device.readings import READINGS, Reading
from sf_quantum.service.domain.settings import DriftSettings
from tests.benchmarks.drift import run_length
from tests.support.service import running_service

# Montgomery, Introduction to Statistical Quality Control, table 9.1: mean 10, deviation 1,
# from the 21st on mean 11
MONTGOMERY = """
9.45 7.99 9.29 11.66 12.16 10.18 8.04 11.46 9.20 10.34 9.03 11.47 10.51 9.40 10.08 9.37
10.62 10.31 8.52 10.84 10.90 9.33 12.29 11.50 10.60 11.08 10.38 11.62 11.31 10.52
"""


class Clock:
    """A time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def readings(device: EmulatedDevice, clock: Clock, periods: int) -> Iterator[Reading]:
    """Every reading of some calibrations, one after the other."""
    last = None
    for _ in range(periods * READINGS):
        for reading in device.calibrations.readings(last):
            yield reading
            last = reading
        clock.now += device.calibrations.until_next_reading


def watched(faults: Faults, seed: int = 1) -> list[tuple[float, list[str]]]:
    """The ages at which a device's calibrations raised an alarm, and which."""
    clock = Clock()
    device = EmulatedDevice(
        technology="superconducting",
        noise=1,
        seed=seed,
        faults=faults,
        clock=clock,
        started=clock.now,
    )
    watch, found = DriftWatch("q"), []
    for reading in readings(device, clock, periods=3):
        watch.renewed(reading.calibration.id)
        before = len(watch.alarms)
        for name, deviation in reading.deviations.items():
            watch.observe(name, deviation)
        if watch.alarms and not before:
            found.append((reading.calibration.age, [*watch.alarms]))
    return found


def test_sums_are_those_of_the_textbook() -> None:
    cusum = Cusum(DriftSettings(reference=0.5, threshold=5))
    alarms, above = [], []
    for text in MONTGOMERY.split():
        alarms.append(cusum.observe(float(text) - 10))
        above.append(round(cusum.above, 2))
    assert above[3:5] == [1.16, 2.82]
    assert above[-2:] == [5.28, 5.30]
    assert alarms.index(True) == 28


def test_a_drift_downwards_is_one_too() -> None:
    cusum = Cusum(DriftSettings(reference=0.5, threshold=5))
    assert [cusum.observe(-1.5) for _ in range(6)] == [*[False] * 5, True]
    assert (cusum.above, cusum.below) == (0.0, 6.0)


@pytest.mark.parametrize(
    ("threshold", "shift", "length"), [(5, 0, 469.1), (5, 1, 10.34), (4, 0.5, 26.68)]
)
def test_run_lengths_are_siegmunds(
    threshold: float, shift: float, length: float
) -> None:
    settings = DriftSettings(reference=0.5, threshold=threshold)
    assert run_length(settings, shift) == pytest.approx(length, rel=2e-3)


def test_only_a_device_that_is_wrong_raises_an_alarm() -> None:
    # 3000 values, and a false alarm in 57,000
    assert [watched(Faults(), seed) for seed in range(5)] == [[]] * 5
    wrong = watched(Faults(calibration=1))
    assert [age for age, _ in wrong] == [0.0, 0.0, 0.0]


def test_a_calibration_that_drifts_is_found_while_it_drifts() -> None:
    found = watched(Faults(drift=1))
    assert len(found) == 3
    # by then the errors are less than twice what they should be
    assert all(0 < age < 0.05 for age, _ in found)


def test_the_log_says_it_once_and_a_renewed_calibration_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = DriftWatch("q", DriftSettings(threshold=3))
    with caplog.at_level(logging.INFO):
        watch.renewed("a")
        for _ in range(20):
            watch.observe("readout", 2.0)
            watch.renewed("a")
        assert watch.alarms == ["readout"]
        watch.renewed("b")
    assert (watch.alarms, watch.sums) == ([], {})
    assert [record.getMessage() for record in caplog.records] == [
        "q: drift alarm: readout is above its usual value; recalibrate the device",
        "q: calibration renewed, drift alarm cleared",
    ]


def test_the_service_shows_the_alarm_and_its_end() -> None:
    clock = Clock()
    device = EmulatedDevice(
        noise=1,
        seed=1,
        time_scale=0,
        faults=Faults(calibration=1),
        clock=clock,
        started=clock.now,
    )
    with running_service(device) as service:
        told = json.loads(service.ask("GET", "/v1/device").body)
        assert told["drift"] == {
            "alarms": ["control_error"],
            "sums": {"control_error": pytest.approx(60, abs=5)},
            "threshold": 5.0,
        }
        text = service.ask("GET", "/metrics").body.decode()
        assert 'sfq_drift_alarm{series="control_error"} 1.0' in text
        # what an operator does about it
        steps: dict[str, JSON] = {"set-faults": {"calibration": 0}, "recalibrate": {}}
        for name, values in steps.items():
            path = f"/v1/admin/operations/{name}"
            assert service.ask("POST", path, {"parameters": values}).status == 200
        told = json.loads(service.ask("GET", "/v1/device").body)
        assert told["drift"]["alarms"] == []
        text = service.ask("GET", "/metrics").body.decode()
        assert 'sfq_drift_alarm{series="control_error"} 0.0' in text

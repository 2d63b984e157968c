"""The device: time scales, faults, interruption."""

from __future__ import annotations

import json
import threading

import pytest

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Task
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.samplers.problem import sample
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
from tests.support.service import example_bqm


@pytest.fixture
def bqm() -> dict[str, JSON]:
    return example_bqm()


def _task(bqm: dict[str, JSON], seed: int | None = 1, number: int = 1) -> Task:
    parameters = {"num_reads": 10, "seed": seed, "num_sweeps": 20}
    return Task("t", "problem", json.dumps(bqm), parameters, number)


def _failures(
    device: EmulatedDevice, bqm: dict[str, JSON], jobs: int = 40
) -> list[str | None]:
    stop = threading.Event()
    tasks = [_task(bqm, number=number) for number in range(jobs)]
    return [device.run(task, stop).failure for task in tasks]


def test_time_scales_are_those_of_the_papers() -> None:
    shots = {"num_reads": 1000}
    seconds = {name: kind.job_seconds(shots) for name, kind in TECHNOLOGIES.items()}
    assert 0.05 < seconds["annealer"] < 0.5
    assert seconds["superconducting"] == pytest.approx(10)
    assert 2 * 60 < seconds["neutral-atom"] < 30 * 60


def test_samples_are_those_of_neal(bqm: dict[str, JSON]) -> None:
    device = EmulatedDevice(name="q", time_scale=0)
    outcome = device.run(_task(bqm), threading.Event())
    assert outcome.result is not None
    local = sample(NealSampler(), bqm, dict(_task(bqm).parameters))
    info = outcome.result.info
    assert (info["qpu"], info["technology"]) == ("q", "annealer")
    assert (info["sampler"], info["seed"], info["reads"]) == ("emulated", 1, 10)
    assert info["calibration"] == device.calibrations.data.to_json()
    local.pop("info")
    assert json.loads(outcome.result.text) == json.loads(json.dumps(local))
    # 20 sweeps stand for 4 us of annealing, not 20
    expected = device.hardware.timing.job_seconds(10) - 10 * 16e-6
    assert outcome.qpu_seconds == pytest.approx(expected)


def test_waits_for_the_scaled_time(bqm: dict[str, JSON]) -> None:
    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    waited = list[float]()
    device = EmulatedDevice(technology="superconducting", time_scale=100.0)
    outcome = device.run(_task(bqm), Stop())
    assert outcome.qpu_seconds == pytest.approx(9.7525)
    # less what it took to sample
    (seconds,) = waited
    assert seconds <= 975.25 <= seconds + (outcome.seconds or 0.0)


def test_stops_at_once_and_bills_what_was_used(bqm: dict[str, JSON]) -> None:
    device = EmulatedDevice(technology="superconducting", time_scale=1)
    stop = threading.Event()
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    outcome = device.run(_task(bqm), stop)
    timer.join()
    assert outcome.result is None
    assert outcome.seconds is not None
    assert outcome.seconds < device.cost({}).qpu_seconds
    assert outcome.failure is None
    assert outcome.qpu_seconds == pytest.approx(outcome.seconds)


def test_seed_of_the_device_stands_in(bqm: dict[str, JSON]) -> None:
    first, again, other = (
        EmulatedDevice(time_scale=0, seed=seed).run(_task(bqm, None), threading.Event())
        for seed in (5, 5, 6)
    )
    results = [outcome.result for outcome in (first, again, other)]
    seeds = [result.info["seed"] for result in results if result]
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize(
    ("key", "words"), [("fail", "the QPU failed"), ("offline", "the QPU is offline")]
)
def test_faults_come_as_often_as_asked_and_repeat(
    bqm: dict[str, JSON], key: str, words: str
) -> None:
    device = EmulatedDevice(
        time_scale=0, seed=1, faults=Faults.model_validate({key: 0.5})
    )
    failures = _failures(device, bqm)
    assert failures == _failures(device, bqm)
    assert set(failures) == {None, words}
    assert 10 < failures.count(words) < 30
    always = EmulatedDevice(time_scale=0, faults=Faults.model_validate({key: 1}))
    assert set(_failures(always, bqm, 3)) == {words}


def test_slow_stretches_the_time(bqm: dict[str, JSON]) -> None:
    plain, slow = (
        EmulatedDevice(time_scale=0, faults=Faults(slow=factor)).run(
            _task(bqm), threading.Event()
        )
        for factor in (1.0, 3.0)
    )
    assert slow.qpu_seconds == pytest.approx(3 * (plain.qpu_seconds or 0.0))

"""The contract of devices fails on a device that breaks it."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from sf_quantum.errors import QpuError
from sf_quantum.protocol.tasks import Outcome, Progress, Task
from sf_quantum.service.device.emulator import emulated_jobs
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.emulated_jobs import EmulatedJobs
from sf_quantum.service.device.interface import Device, DeviceStatus
from sf_quantum.testing import devices
from sf_quantum.testing.devices import VendorContract, closing
from sf_quantum.testing.qpus import Lie

CONTRACT = VendorContract()


class Restless(EmulatedJobs):
    """Does not wait for a job that runs."""

    def poll(self, job_id: str, task: Task) -> Progress:
        done = self.threads[job_id].outcome.done()
        return super().poll(job_id, task) if done else Progress("Running")


class Deaf(EmulatedJobs):
    """Waits for as long after a cancellation."""

    def poll(self, job_id: str, task: Task) -> Progress:
        if not self.threads[job_id].outcome.done():
            time.sleep(devices.WORTH_ENDING)
        done = self.threads[job_id].outcome.done()
        return super().poll(job_id, task) if done else Progress("Running")


class Talkative(EmulatedJobs):
    """Leaves ``info`` in the text of results."""

    def result(self, job_id: str, task: Task) -> Outcome:
        outcome = super().result(job_id, task)
        assert outcome.result is not None
        text = json.dumps(json.loads(outcome.result.text) | {"info": {}})
        return replace(outcome, result=replace(outcome.result, text=text))


class NeverAsked(EmulatedDevice):
    """Is never refreshed, since it tells no interval."""

    def refresh(self) -> None:
        pass


class AskedInVain(EmulatedDevice):
    """Is refreshed, which does nothing."""

    @property
    def refresh_seconds(self) -> float:
        return 1.0


class Numbering(EmulatedJobs):
    """Counts its jobs."""

    def submit(self, task: Task) -> str:
        super().submit(task)
        return cast("str", 1)


class Doubting(EmulatedJobs):
    """Takes a refused connection for an answer that was lost."""

    def submit(self, task: Task) -> str:
        try:
            socket.create_connection(("127.0.0.1", 9)).close()
        except OSError as error:
            raise QpuError(str(error)) from error
        return super().submit(task)


class Mutant(EmulatedDevice):
    """An emulated device with jobs that break the contract."""

    mutation: type[EmulatedJobs] = EmulatedJobs

    @property
    def jobs(self) -> EmulatedJobs:
        return self.mutation(self.run, self.threads)


class GullibleJobs(EmulatedJobs):
    """Believes whatever its vendor says of jobs."""

    lie = ""

    def submit(self, task: Task) -> str:
        job_id = super().submit(task)
        if self.lie == "one id":
            self.threads["the same"] = self.threads[job_id]
            return "the same"
        return job_id

    def result(self, job_id: str, task: Task) -> Outcome:
        outcome = super().result(job_id, task)
        assert outcome.result is not None
        told = json.loads(outcome.result.text)
        match self.lie:
            case "energies":
                told["vectors"]["energy"]["data"][0] = -1000
            case "times":
                return replace(outcome, qpu_seconds=1e9)
            case "texts":
                return Outcome(failure="\x1b[2J")
            case _:
                told["variable_labels"] = ["somebody", "else"]
        return replace(outcome, result=replace(outcome.result, text=json.dumps(told)))


class Gullible(EmulatedDevice):
    """Believes whatever its vendor says."""

    lie: str = ""

    @property
    def jobs(self) -> GullibleJobs:
        jobs = GullibleJobs(self.run, self.threads)
        jobs.lie = self.lie
        return jobs

    @property
    def status(self) -> DeviceStatus:
        return DeviceStatus(eta_seconds=math.nan)


@pytest.mark.process
@pytest.mark.parametrize(
    ("lie", "test"),
    [
        ("energies", CONTRACT.test_energies_are_those_of_the_samples),
        ("one id", CONTRACT.test_one_id_for_two_jobs_fails_the_second),
        ("times", CONTRACT.test_no_more_time_counts_than_has_passed),
        ("texts", CONTRACT.test_texts_are_short_and_printable),
        ("status", CONTRACT.test_it_has_no_numbers_that_cannot_be),
    ],
)
def test_a_device_that_believes_a_lie_is_found(
    lie: Lie, test: Callable[[Callable[[Lie], Device | None]], None]
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(lambda told: Gullible(time_scale=0, lie=told))


def test_a_device_that_believes_a_result_is_found() -> None:
    with pytest.raises(AssertionError, match="'variables' is taken for one of its job"):
        CONTRACT.test_a_result_that_is_not_one_of_its_job_is_none(
            lambda told: Gullible(time_scale=0, lie=told), "variables"
        )


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated_jobs, "POLL_SECONDS", 1.2 * devices.WORTH_ENDING)


def lasting(mutation: type[EmulatedJobs]) -> Callable[[], Mutant]:
    return lambda: Mutant(time_scale=1e6, mutation=mutation)


def test_a_busy_loop_is_found() -> None:
    with pytest.raises(AssertionError, match="does not wait"):
        CONTRACT.test_a_poll_waits_for_the_job_or_its_cancellation(lasting(Restless))


def test_a_poll_that_ignores_cancel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "TRIES", 1)
    with pytest.raises(AssertionError, match="does not end the wait"):
        CONTRACT.test_a_poll_waits_for_the_job_or_its_cancellation(lasting(Deaf))


def test_info_in_the_text_is_found() -> None:
    with (
        closing(Mutant(time_scale=0, mutation=Talkative)) as device,
        pytest.raises(AssertionError, match="info is a field"),
    ):
        CONTRACT.test_each_kind_of_job_runs(device)


@pytest.mark.parametrize("kind", [NeverAsked, AskedInVain])
def test_half_of_a_refresh_is_found(kind: type[Device]) -> None:
    device = kind.from_config({})
    with closing(device), pytest.raises(AssertionError):
        CONTRACT.test_it_is_asked_how_it_is_if_that_can_change(device)


def test_an_id_that_is_no_text_is_found() -> None:
    with (
        closing(Mutant(time_scale=0, mutation=Numbering)) as device,
        pytest.raises(AssertionError, match="is a text"),
    ):
        CONTRACT.test_as_many_jobs_as_it_takes(device)


def test_a_refused_connection_that_leaves_doubt_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: str) -> None:
        raise ConnectionRefusedError

    def cut_off() -> None:
        monkeypatch.setattr(socket.socket, "connect", refused)

    with closing(EmulatedDevice()) as device, pytest.raises(QpuError):
        CONTRACT.test_a_submission_that_cannot_be_made_has_made_no_job(
            lambda: Mutant(mutation=Doubting), device, cut_off
        )


def test_a_device_that_keeps_the_contract_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    CONTRACT.test_a_poll_waits_for_the_job_or_its_cancellation(lasting(EmulatedJobs))
    with closing(EmulatedDevice(time_scale=0)) as device:
        CONTRACT.test_it_is_asked_how_it_is_if_that_can_change(device)
        CONTRACT.test_as_many_jobs_as_it_takes(device)
        CONTRACT.test_a_submission_that_cannot_be_made_has_made_no_job(
            EmulatedDevice, device, lambda: None
        )

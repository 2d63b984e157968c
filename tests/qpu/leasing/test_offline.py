"""When a job that can run elsewhere leaves its QPU, against a real service."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from sf_quantum.connectors import hints
from sf_quantum.connectors.hints import JobHints
from sf_quantum.files import JSON
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu.leasing import held_leases
from sf_quantum.qpu.leasing.held_leases import LeaseProblem, QpuLoss, QpuMonitor
from sf_quantum.qpu.sfq.credentials import Credentials
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import SECONDS


@pytest.fixture
def service() -> Iterator[RunningService]:
    """A service whose jobs take minutes."""
    with running_service(EmulatedDevice(technology="neutral-atom"), vqpus=2) as running:
        yield running


@pytest.fixture
def qpu(service: RunningService) -> SfqQpu:
    return SfqQpu("q", service.url, credentials=Credentials(retry_seconds=0))


def submit(service: RunningService, lease: str, key: str) -> str:
    """Submit a QPU job under a lease.

    :returns: its id
    """
    body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": key}
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    assert answer.status == 201
    return str(answer.json()["id"])


def shut(service: RunningService, how: str = "close") -> None:
    service.ask("POST", f"/v1/device/{how}", {"message": "helium"})


def watch(qpu: SfqQpu, lease: str, wait_seconds: float | None = None) -> QpuMonitor:
    return QpuMonitor(qpu, lambda: qpu.jobs(lease) or [], wait_seconds)


def test_a_qpu_that_goes_offline_is_lost(service: RunningService, qpu: SfqQpu) -> None:
    waits = QpuMonitor(qpu)
    assert waits.check() is None
    shut(service)
    loss = waits.check()
    assert loss == QpuLoss(LeaseProblem.OFFLINE, "q", "the QPU is closed: helium")
    assert str(loss) == "the QPU is offline (the QPU is closed: helium)"


@pytest.mark.process
def test_a_job_that_waits_for_a_qpu_that_was_closed_is_lost(
    service: RunningService, qpu: SfqQpu
) -> None:
    lease = service.acquire()
    submit(service, lease, "a")
    service.until(lease, "Running")
    shut(service)  # which puts the running job back into the queue
    service.until(lease, "Queued")
    loss = watch(qpu, lease).check()
    assert loss is not None
    assert loss.problem is LeaseProblem.OFFLINE


@pytest.mark.process
def test_a_job_that_runs_while_the_qpu_is_drained_is_not(
    service: RunningService, qpu: SfqQpu
) -> None:
    runs, waits = service.acquire(), service.acquire()
    submit(service, runs, "a")
    service.until(runs, "Running")
    submit(service, waits, "b")
    shut(service, "drain")
    loss = watch(qpu, waits).check()
    assert loss is not None
    assert loss.detail == "the QPU is being drained: helium"
    assert watch(qpu, runs).check() is None


@pytest.mark.process
def test_a_job_that_waits_longer_than_it_may_is_lost(
    service: RunningService, qpu: SfqQpu
) -> None:
    first, second = service.acquire(), service.acquire()
    submit(service, first, "first")
    service.until(first, "Running")
    submit(service, second, "second")
    patient, impatient = watch(qpu, second, 60), watch(qpu, second, 0.0)
    assert impatient.check() is None  # sees the job for the first time
    loss = impatient.check()
    assert loss == QpuLoss(LeaseProblem.QUEUE_WAIT, "q", seconds=0.0)
    assert str(loss) == "a QPU job waited in its queue for more than 0 s"
    assert patient.check() is None
    assert patient.check() is None


@pytest.mark.process
def test_a_job_that_has_begun_may_wait_again(
    service: RunningService, qpu: SfqQpu
) -> None:
    lease, other = service.acquire(), service.acquire()
    job = submit(service, lease, "a")
    service.until(lease, "Running")
    watched = watch(qpu, lease, 0.0)
    assert watched.check() is None
    submit(service, other, "b")
    submit(service, lease, "more")
    service.ask("DELETE", f"/v1/jobs/{job}", lease=lease)
    service.until(other, "Running")
    assert [job.state for job in qpu.jobs(lease) or []] == ["Cancelled", "Queued"]
    assert watched.check() is None
    assert watched.check() is None


def test_a_silent_service_is_left_to_the_jobs_client() -> None:
    credentials = Credentials(retry_seconds=0)
    nobody = SfqQpu("q", "http://127.0.0.1:1", credentials=credentials)
    assert QpuMonitor(nobody).check() is None
    assert QpuMonitor(nobody, wait_seconds=0.0).check() is None


def test_a_loss_is_reported_once(
    service: RunningService, qpu: SfqQpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_leases, "POLL_SECONDS", 0.01)
    lost, losses = threading.Event(), list[QpuLoss]()

    def leave(loss: QpuLoss) -> None:
        losses.append(loss)
        lost.set()

    with held_leases.monitoring([QpuMonitor(qpu).check, QpuMonitor(qpu).check], leave):
        shut(service)
        assert lost.wait(SECONDS)
    assert [loss.qpu for loss in losses] == ["q"]


def test_the_wait_counts_from_when_the_hints_were_given() -> None:
    given = partial(JobHints, since=time.monotonic() - 20.0)
    left = given(wait_seconds=60.0).seconds_left
    assert left is not None
    assert 0 < left <= 40
    assert given(wait_seconds=1.0).seconds_left == 0.0
    assert JobHints().seconds_left is None


def test_hints_are_for_one_job() -> None:
    given = JobHints(LeaseHints(pattern="balanced"), 3.0, True)
    hints.put("/s/0", given)
    assert hints.of("/s/0") == given
    assert hints.of("/s/1") == JobHints()
    hints.discard("/s/0")
    assert hints.of("/s/0") == JobHints()

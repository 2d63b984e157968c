"""The system's clock is set while the service runs, or while it is down."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    Lease,
    LeaseRequest,
    Submission,
)
from sf_quantum.service.store import accounting, clock
from sf_quantum.service.store.accounting import Filter, Page
from sf_quantum.service.store.retention import purge
from sf_quantum.service.store.store import Store
from sf_quantum.service.store.utilisation import UtilisationHistory
from tests.service import example_bqm, running_queue, running_service
from tests.waiting import SECONDS

HOUR = 3600.0
ANN = Identity("ann", admin=True)


class Clocks:
    """The two clocks of a machine: one may be set, the other goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.monotonic = 1.8e9, 5000.0
        monkeypatch.setattr(time, "time", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic", lambda: self.monotonic)

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def _queued(store: Store, key: str = "k") -> Job:
    lease = Lease(f"lease of {key}", "ann", "test")
    store.add_lease(lease).result()
    asked = Submission("problem", {}, {"num_reads": 1}, key)
    return store.add_job(lease, asked, 1.0).result()[0]


def _run(store: Store, job: Job, clocks: Clocks, seconds: float) -> None:
    store.start(job.number).result()
    clocks.pass_(seconds)
    used = (seconds, seconds)
    store.finish(job.number, "Completed", note=None, used=used).result()


@pytest.mark.parametrize("step", [-HOUR, HOUR, -0.5])
@pytest.mark.parametrize("restarted", [False, True])
def test_waits_and_leases_last_as_long_as_they_do(
    tmp_path: Path, clocks: Clocks, step: float, restarted: bool
) -> None:
    store = Store(tmp_path / "s")
    job, cancelled = _queued(store), _queued(store, "cancelled")
    clocks.pass_(20.0)
    clocks.wall += step
    if restarted:
        store.close()
        clocks.pass_(5.0)
        store = Store(tmp_path / "s")
    waited = 25.0 if restarted else 20.0
    store.cancel_waiting(cancelled.number, "cancelled").result()
    _run(store, job, clocks, 30.0)
    ended = store.job(job.number)
    assert ended is not None
    assert ended.queued_seconds == pytest.approx(waited)
    # the times of day are those of the system
    assert ended.started == pytest.approx(1.8e9 + waited + step)
    for row in accounting.jobs(store, Filter("jobs.ended"), Page(9, 0))[1]:
        assert row["wait"] == pytest.approx(waited)
    total = accounting.usage(store, "user", Filter("ended"), Page(9, 0)).total
    assert total["longest_wait_seconds"] == pytest.approx(waited)
    store.close_lease(job.lease, "released", "").result()
    (session,) = accounting.leases(store, Filter("closed"), Page(9, 0))[1]
    assert session["total_duration"] == pytest.approx(waited + 30.0)
    (user,) = accounting.users(store, Filter("closed"), Page(9, 0))[1]
    assert user["seconds"] == pytest.approx(waited + 30.0)
    store.close()


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_utilisation_is_of_the_hour_that_passed(
    tmp_path: Path, clocks: Clocks, step: float
) -> None:
    store = Store(tmp_path / "s")
    history = UtilisationHistory(store)
    _run(store, _queued(store, "before"), clocks, 300.0)
    clocks.wall += step
    running = _queued(store, "stepped")
    store.start(running.number).result()
    clocks.pass_(60.0)
    clocks.wall += step
    clocks.pass_(60.0)
    store.finish(running.number, "Completed", note=None, used=(1, 120)).result()
    _run(store, _queued(store, "after"), clocks, 180.0)
    minutes = history.minutes(store.clock())
    assert sum(minute.busy for minute in minutes) == pytest.approx(600.0)
    (last,) = store.last_ended(1, None)
    assert last.key == "after"
    store.close()


@pytest.mark.parametrize("step", [-400 * 24 * HOUR, 400 * 24 * HOUR])
def test_jobs_are_kept_for_as_long_as_configured(
    tmp_path: Path, clocks: Clocks, step: float
) -> None:
    store = Store(tmp_path / "s")
    _run(store, _queued(store), clocks, 1.0)
    clocks.wall += step
    clocks.pass_(10.0)
    assert purge(store, store.clock() - 11.0).result() == 0
    assert purge(store, store.clock() - 9.0).result() == 1
    store.close()


def test_after_a_boot_the_clock_is_the_systems(
    tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot"
    monkeypatch.setattr(clock, "_BOOT", boot)
    boot.write_text("first\n")
    store = Store(tmp_path / "s")
    job = _queued(store)
    clocks.wall -= HOUR
    store.close()
    boot.write_text("second\n")
    clocks.monotonic = 1.0
    store = Store(tmp_path / "s")
    assert store.clock() == clocks.wall
    _run(store, job, clocks, 1.0)
    ended = store.job(job.number)
    assert ended is not None
    # unknown, but never less than nothing
    assert ended.queued_seconds == 0.0
    total = accounting.usage(store, "user", Filter("ended"), Page(9, 0)).total
    assert total["wait_seconds"] == 0.0
    store.close()


async def test_what_samples_and_metrics_tell_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_queue(tmp_path, Device(time_scale=0)) as queue:
        await queue.availability.set_status("open")
        real, request = time.time, LeaseRequest(job="j")
        lease = await queue.leases.acquire(ANN, request)
        steps = iter(range(10**6))
        monkeypatch.setattr(time, "time", lambda: real() - HOUR * next(steps))
        asked = Submission("problem", example_bqm(), {"num_reads": 1}, "k")
        job, _ = await queue.submit(ANN, lease.id, asked)
        job = await queue.wait(ANN, job.id, SECONDS)
        assert job.state == "Completed"
        assert job.started is not None
        assert job.started < job.submitted
        assert job.queued_seconds is not None
        assert 0.0 <= job.queued_seconds < SECONDS
        result = json.loads(await queue.result(ANN, job.id))
        assert result["info"]["timing"]["queued_seconds"] == job.queued_seconds
        assert queue.observations.waits["development"].total == job.queued_seconds


def test_the_page_tells_when_a_running_job_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_service(Device(technology="neutral-atom")) as service:
        lease = service.acquire()
        body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "k"}
        service.ask("POST", "/v1/jobs", body, lease=lease)
        job = service.until(lease, "Running")
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + HOUR)
        shown = service.ask("GET", "/v1/activity").json()["running"]
        told = service.ask("GET", f"/v1/jobs/{job}").json()
        assert isinstance(shown, dict)
        assert shown["started"] == pytest.approx(real() + HOUR, abs=SECONDS)
        assert shown["ends"] == pytest.approx(
            float(str(shown["started"])) + float(str(told["expected_seconds"])), abs=0.1
        )
        service.ask("DELETE", f"/v1/jobs/{job}")

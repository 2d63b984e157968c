"""The system's clock is set while the service runs, or while it is down."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    Lease,
    LeaseRequest,
    Submission,
)
from sf_quantum.service.domain.settings import (
    LeaseSettings,
    PolicyChoice,
    QualitySettings,
    ServiceSettings,
)
from sf_quantum.service.queue import availability
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.upkeep.telemetry import Telemetry
from sf_quantum.service.scheduling.policies.fair_share import FairShare
from sf_quantum.service.store.file import clock
from sf_quantum.service.store.reports import operation, usage
from sf_quantum.service.store.reports.usage import Filter, Page
from sf_quantum.service.store.reports.utilisation import UtilisationHistory
from sf_quantum.service.store.retention import purge
from sf_quantum.service.store.store import Store
from tests.support.service import example_bqm, running_queue, running_service
from tests.support.waiting import SECONDS, until_async

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")

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
    store.leases.add(lease).result()
    asked = Submission("problem", {}, {"num_reads": 1}, key)
    return store.jobs.add(lease, asked, 1.0).result()[0]


def _run(store: Store, job: Job, clocks: Clocks, seconds: float) -> None:
    store.progress.start(job.number).result()
    clocks.pass_(seconds)
    used = (seconds, seconds)
    store.progress.finish(job.number, "Completed", note=None, used=used).result()


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
    store.progress.cancel_waiting(cancelled.number, "cancelled").result()
    _run(store, job, clocks, 30.0)
    ended = store.jobs.get(job.number)
    assert ended is not None
    assert ended.queued_seconds == pytest.approx(waited)
    # the times of day are those of the system
    assert ended.started == pytest.approx(1.8e9 + waited + step)
    for row in usage.jobs(store, Filter("jobs.ended"), Page(9, 0))[1]:
        assert row["wait"] == pytest.approx(waited)
    total = usage.usage_report(store, "user", Filter("ended"), Page(9, 0)).total
    assert total.longest_wait_seconds == pytest.approx(waited)
    store.leases.close(job.lease, "released", "").result()
    (session,) = usage.leases(store, Filter("closed"), Page(9, 0))[1]
    assert session["total_duration"] == pytest.approx(waited + 30.0)
    (user,) = usage.users(store, Filter("closed"), Page(9, 0))[1]
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
    store.progress.start(running.number).result()
    clocks.pass_(60.0)
    clocks.wall += step
    clocks.pass_(60.0)
    store.progress.finish(
        running.number, "Completed", note=None, used=(1, 120)
    ).result()
    _run(store, _queued(store, "after"), clocks, 180.0)
    minutes = history.minutes(store.clock())
    assert sum(minute.busy for minute in minutes) == pytest.approx(600.0)
    (last,) = store.jobs.last_ended(1, None)
    assert last.key == "after"
    store.close()


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_shares_decay_by_the_time_that_passes(
    tmp_path: Path, clocks: Clocks, step: float
) -> None:
    fair = PolicyChoice("fair-share", {"half_life_seconds": HOUR})
    store = Store(tmp_path / "s")
    policy = JobQueue(store, EmulatedDevice(), ServiceSettings(policy=fair)).policy
    assert isinstance(policy, FairShare)
    clocks.wall += step
    policy.usage.charge(("user", "ann"), "ann", 1.0)
    assert policy.usage.weight == pytest.approx(1.0)
    clocks.pass_(HOUR)
    policy.usage.charge(("user", "ann"), "ann", 1.0)
    assert policy.usage.weight == pytest.approx(2.0)
    # as after a restart, also of what has been deleted
    _run(store, _queued(store), clocks, 10.0)
    clocks.wall += step
    clocks.pass_(20.0)
    for _ in range(2):
        (used,) = usage.recent_use(store, store.clock() - 30.0)
        assert (used.qpu_seconds, store.clock() - used.when) == (10.0, 20.0)
        assert usage.recent_use(store, store.clock() - 10.0) == []
        purge(store, store.clock()).result()
    store.close()


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_calibration_ages_as_time_passes(clocks: Clocks, step: float) -> None:
    device = EmulatedDevice(started=clocks.wall)
    clocks.wall += step
    clocks.pass_(100.0)
    assert device.calibrations.age_seconds == pytest.approx(100.0)


@pytest.mark.parametrize("step", [-HOUR, HOUR])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_lease_ends_after_its_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: float,
    restarted: bool,
) -> None:
    caplog.set_level(logging.INFO, "sf_quantum.service.queue.events")
    real, settings = time.time, LeaseSettings(total_seconds=1000.0)
    device, limited = EmulatedDevice(time_scale=0), ServiceSettings(leases=settings)
    async with AsyncExitStack() as stack:
        start = partial(running_queue, tmp_path, device, limited)
        queue = await stack.enter_async_context(start())
        lease = await queue.leases.acquire(ANN, LeaseRequest())
        monkeypatch.setattr(time, "time", lambda: real() + step)
        if restarted:
            await stack.aclose()
            queue = await stack.enter_async_context(start())
        left = queue.leases.seconds_left(lease)
        assert left is not None
        assert 1000.0 - SECONDS < left <= 1000.0
        await queue.leases.release(ANN, lease.id)
        (ended,) = [one for one in caplog.records if one.msg == "lease %s"][1:]
        assert 0.0 <= vars(ended)["fields"]["seconds"] < SECONDS


async def test_a_lease_ends_though_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, settings = time.time, LeaseSettings(total_seconds=0.2)
    device, limited = EmulatedDevice(time_scale=0), ServiceSettings(leases=settings)
    async with running_queue(tmp_path, device, limited) as queue:
        lease = await queue.leases.acquire(ANN, LeaseRequest())
        monkeypatch.setattr(time, "time", lambda: real() - HOUR)
        await until_async(lambda: not queue.leases.is_active(lease.id), "its end")


async def test_a_window_is_kept_by_a_service_whose_clock_is_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, device = time.time, EmulatedDevice(time_scale=0)
    async with running_queue(tmp_path, device) as queue:
        now = real()
        await queue.availability.announce("ann", now + HOUR, now + 3 * HOUR, "laser")
    monkeypatch.setattr(time, "time", lambda: real() + 24 * HOUR)
    async with running_queue(tmp_path, device) as queue:
        assert queue.availability.windows == []
        monkeypatch.setattr(time, "time", lambda: real() + 2 * HOUR)
        assert queue.availability.status == "draining"
        assert queue.availability.message == "laser"


async def test_a_window_that_is_over_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    async with running_queue(tmp_path, EmulatedDevice(time_scale=0)) as queue:
        now = real()
        await queue.availability.announce("ann", now - HOUR, now + HOUR, "laser")
        monkeypatch.setattr(time, "time", lambda: real() + 2 * HOUR)
        await queue.availability.announce("ann", now, now + 3 * HOUR, "longer")
        assert queue.availability.message == "longer"
        with pytest.raises(Refused, match="it overlaps with window 2"):
            await queue.availability.announce("ann", now, now + 4 * HOUR, "again")


def test_usage_has_all_jobs_after_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_service(EmulatedDevice(time_scale=0)) as service:
        lease = service.acquire()
        body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "k"}
        service.ask("POST", "/v1/jobs", body, lease=lease)
        service.until(lease, "Completed")
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - HOUR)
        for purge_first in (False, True):
            if purge_first:
                store = service.queue.store
                purge(store, store.clock() + 1.0).result()
            report = service.ask("GET", "/v1/accounting").json()
            total = report["total"]
            assert isinstance(total, dict)
            assert total["jobs"] == 1
            # The next pages are of the same period.
            path = f"/v1/accounting?until={report['until']}"
            assert service.ask("GET", path).json()["total"] == total


@pytest.mark.parametrize("step", [-HOUR, HOUR])
async def test_a_restart_keeps_the_order_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    real, device = time.time, EmulatedDevice(time_scale=0)
    async with running_queue(tmp_path, device) as queue:
        await queue.leases.acquire(ANN, LeaseRequest())
        waiting = []
        for number in range(4):
            monkeypatch.setattr(time, "time", lambda n=number: real() + n * step)
            asked = LeaseRequest(key=f"{number}")
            waiting.append((await queue.leases.request(ANN, asked)).id)
        assert queue.leases.waiting_on_disk == waiting
    async with running_queue(tmp_path, device) as queue:
        assert queue.leases.waiting_on_disk == waiting


async def test_no_lease_is_granted_late_after_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    async with running_queue(tmp_path, EmulatedDevice(time_scale=0)) as queue:
        held = await queue.leases.acquire(ANN, LeaseRequest())
        asked = LeaseRequest(key="k", latest_start=real() + HOUR)
        client = asyncio.create_task(
            queue.leases.acquire(ANN, replace(asked, key="client"), 3600.0)
        )
        stored = await queue.leases.request(ANN, asked)
        later = await queue.leases.request(
            ANN, LeaseRequest(key="later", latest_start=real() + 3 * HOUR)
        )
        await until_async(lambda: queue.leases.waiting == 3)
        monkeypatch.setattr(time, "time", lambda: real() + 2 * HOUR)
        await queue.leases.release(ANN, held.id)
        with pytest.raises(Refused, match="not granted by") as refused:
            await client
        assert (refused.value.status, refused.value.field) == (409, "latest_start")
        await until_async(lambda: queue.leases.find(ANN, stored.id).reason)
        assert "not granted by" in str(queue.leases.find(ANN, stored.id).reason)
        await until_async(lambda: queue.leases.find(ANN, later.id).held)


# an annealer's jobs end before the maintenance
@pytest.mark.process
@pytest.mark.devices("sfq", "acme")
async def test_maintenance_follows_the_calendar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "CLOCK_CHECK_SECONDS", 0.01)
    real, step = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + step[0])
    async with running_queue(
        tmp_path, EmulatedDevice(technology="neutral-atom")
    ) as queue:
        lease = await queue.leases.acquire(ANN, LeaseRequest())
        starts = real() + 60.0
        await queue.availability.announce("ann", starts, starts + 7200.0, "laser")
        # it would run into the maintenance, and waits
        asked = Submission("problem", example_bqm(), {"num_reads": 1000}, "k")
        job, _ = await queue.submit(ANN, lease.id, asked)
        waiting = asyncio.create_task(queue.leases.acquire(ANN, LeaseRequest(), 60.0))
        await until_async(lambda: queue.leases.waiting)
        step[0] = HOUR
        with pytest.raises(Refused, match=r"the QPU is in maintenance until .*: laser"):
            await waiting
        assert queue.running is None
        # an announcement in the meantime does not make it forgotten
        step[0] = 3 * HOUR
        later = real() + 9 * HOUR
        await queue.availability.announce("ann", later, later + 60.0, "cleaning")
        step[0] = -HOUR
        await until_async(lambda: queue.running, "the job's start")
        assert [w.message for w in queue.availability.windows] == ["laser", "cleaning"]
        await queue.cancel(ANN, job.id)


async def _quality_after(folder: Path, before: float) -> None:
    settings = ServiceSettings(quality=QualitySettings(every_seconds=0.01))
    async with running_queue(folder, EmulatedDevice(time_scale=0), settings) as queue:
        telemetry = Telemetry(queue)
        telemetry.start()
        quality = telemetry.quality
        assert quality is not None
        await until_async(lambda: quality.last and quality.last.time < before)


async def test_quality_jobs_go_on_after_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + HOUR)
        await _quality_after(tmp_path, real() + 2 * HOUR)
    await _quality_after(tmp_path, real() + HOUR / 2)


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


def _boot(
    folder: Path, clocks: Clocks, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = folder / "boot"
    monkeypatch.setattr(clock, "_BOOT", boot)
    boot.write_text(f"{number}\n")
    clocks.monotonic = 1.0


def test_after_a_boot_the_clock_is_the_systems(
    tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    _boot(tmp_path, clocks, 1, monkeypatch)
    store = Store(tmp_path / "s")
    job = _queued(store)
    store.close()
    clocks.wall += HOUR
    _boot(tmp_path, clocks, 2, monkeypatch)
    store = Store(tmp_path / "s")
    assert store.clock() == clocks.wall
    _run(store, job, clocks, 1.0)
    ended = store.jobs.get(job.number)
    assert ended is not None
    assert ended.queued_seconds == HOUR
    store.close()


@pytest.mark.parametrize("back", [0.5, HOUR, 1.7e9])
@pytest.mark.parametrize("seed", range(4))
def test_no_boot_sets_the_clock_back(
    tmp_path: Path,
    clocks: Clocks,
    monkeypatch: pytest.MonkeyPatch,
    back: float,
    seed: int,
) -> None:
    steps = random.Random(seed)
    began, last, waits = clocks.wall, 0.0, dict[str, float]()
    for number in range(10):
        clocks.wall = began - back * steps.randint(0, 1)
        _boot(tmp_path, clocks, number, monkeypatch)
        store = Store(tmp_path / "s")
        assert store.clock() >= last
        for job in store.jobs.live():
            _run(store, job, clocks, 1.0)
            ended = store.jobs.get(job.number)
            assert ended is not None
            assert ended.queued_seconds is not None
            waits[job.key] = ended.queued_seconds
        clocks.pass_(steps.uniform(0, 20))
        match steps.randint(0, 2):
            case 0:
                _queued(store, f"{number}")
            case 1:
                operation.record(store, "open", starts=True).result()
            case _:
                store.leases.add(Lease(f"{number}", "ann", "test")).result()
        last = store.clock()
        store.close()
    assert all(0.0 <= wait <= HOUR for wait in waits.values())


async def test_a_boot_with_a_late_clock_prolongs_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot, real = tmp_path / "boot", time.time
    monkeypatch.setattr(clock, "_BOOT", boot)
    boot.write_text("first\n")
    settings = ServiceSettings(leases=LeaseSettings(total_seconds=1000.0))
    device = EmulatedDevice(time_scale=0)
    async with running_queue(tmp_path, device, settings) as queue:
        lease = await queue.leases.acquire(ANN, LeaseRequest())
    boot.write_text("second\n")
    monkeypatch.setattr(time, "time", lambda: real() - HOUR)
    async with running_queue(tmp_path, device, settings) as queue:
        left = queue.leases.seconds_left(lease)
        assert left is not None
        assert left <= 1000.0


# its clock is the emulated device's
@pytest.mark.devices("sfq")
async def test_what_samples_and_metrics_tell_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_queue(tmp_path, EmulatedDevice(time_scale=0)) as queue:
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
        result = json.loads((await queue.reader.result(ANN, job.id)).part(0, 10**6))
        assert result["info"]["timing"]["queued_seconds"] == job.queued_seconds
        assert queue.observations.waits["development"].total == job.queued_seconds


def test_the_page_tells_when_a_running_job_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_service(EmulatedDevice(technology="neutral-atom")) as service:
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
            float(str(shown["started"])) + float(str(told["expected_run_seconds"])),
            abs=0.1,
        )
        service.ask("DELETE", f"/v1/jobs/{job}")

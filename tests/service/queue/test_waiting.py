"""Leases on disk that wait for a vQPU, and the jobs that wait with them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.errors import QpuError
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    JobClass,
    Lease,
    LeaseRequest,
    Submission,
)
from sf_quantum.service.domain.reasons import RELEASED
from sf_quantum.service.domain.settings import (
    LeaseSettings,
    ServiceSettings,
    UserLimits,
)
from sf_quantum.service.page.activity import Activity
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.scheduling.work import PendingJob
from tests.support.service import example_bqm, running_queue
from tests.support.vendor_device import Vendor, VendorDevice
from tests.support.waiting import SECONDS
from tests.support.waiting import until_async as until

pytestmark = pytest.mark.devices("sfq", "dwave", "acme", always=["acme"])

ANN, BOB, CAROL = (Identity(name, admin=False) for name in ("ann", "bob", "carol"))
ADMIN = Identity("root", admin=True, root=True)


def device() -> EmulatedDevice:
    return EmulatedDevice(time_scale=0)


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[JobQueue]:
    async with running_queue(tmp_path, device()) as queue:
        yield queue


async def acquire(queue: JobQueue, who: Identity = BOB, wait: float = 0.0) -> Lease:
    return await queue.leases.acquire(who, LeaseRequest(), wait)


async def request(
    queue: JobQueue, who: Identity = ANN, job_class: JobClass = "test"
) -> Lease:
    asked = LeaseRequest(job_class=job_class, key="sapi")
    return await queue.leases.request(who, asked)


async def submit(
    queue: JobQueue, lease: Lease, key: str = "a", dialect: str = "sapi"
) -> Job:
    asked = Submission(
        "problem",
        example_bqm(),
        {"num_reads": 1},
        key,
        dialect=dialect,
        implicit_lease=dialect != "v1",
    )
    return (await queue.submit(ADMIN, lease.id, asked))[0]


async def over(queue: JobQueue, job: Job) -> Job:
    return await queue.wait(ADMIN, job.id, SECONDS)


def ids(queue: JobQueue) -> list[str]:
    return [lease.id for lease in queue.leases.held]


async def test_a_free_vqpu_is_granted_at_once(queue: JobQueue) -> None:
    lease = await request(queue)
    assert (lease.held, lease.waiting) == (True, False)
    assert await request(queue) == lease
    assert (await over(queue, await submit(queue, lease))).state == "Completed"


async def test_jobs_wait_with_their_lease_and_run_when_it_is_granted(
    queue: JobQueue,
) -> None:
    first = await acquire(queue)
    lease = await request(queue)
    assert (lease.held, lease.waiting) == (False, True)
    # to the user's next request too, but to nobody who needs a lease that is held
    assert await request(queue) == lease
    assert queue.store.leases.get(lease.id) == lease
    assert (queue.leases.waiting, ids(queue)) == (1, [first.id])
    jobs = [await submit(queue, lease, f"{number}") for number in range(120)]
    assert {job.state for job in jobs} == {"Queued"}
    assert len(queue.jobs.pending) == 0
    with pytest.raises(Refused) as refused:
        await submit(queue, lease, "v1", "v1")
    assert (refused.value.status, refused.value.detail) == (
        403,
        "the lease waits for a vQPU",
    )
    await queue.leases.release(BOB, first.id)
    for job in jobs:
        assert (await over(queue, job)).state == "Completed"
    granted = queue.leases.find(ANN, lease.id)
    assert (granted.held, granted.waiting) == (True, False)
    assert granted.opened >= lease.opened
    assert queue.store.leases.get(lease.id) == granted
    assert ids(queue) == [lease.id]
    assert not any(True for _ in queue.forecasts.waiting())


async def test_jobs_of_a_waiting_lease_have_position_and_eta(
    tmp_path: Path,
) -> None:
    slow = EmulatedDevice(technology="superconducting", time_scale=1000.0)
    async with running_queue(tmp_path, slow) as queue:
        first = await acquire(queue)
        running = await submit(queue, first, "running", "v1")
        await until(lambda: queue.running is not None)
        pending = await submit(queue, first, "pending", "v1")
        leases = [
            await request(queue, ANN, "development"),
            await request(queue, CAROL, "development"),
        ]
        jobs = [await submit(queue, leases[n // 2], f"{n}") for n in range(4)]
        shown = [queue.forecasts.of(job) for job in (running, pending, *jobs)]
        forecasts = [one for one in shown if one is not None]
        assert [one.position for one in forecasts] == [0, 1, 2, 3, 4, 5]
        etas = [one.eta_seconds or 0.0 for one in forecasts]
        each = forecasts[0].expected_run_seconds
        assert each > 1000
        # each after the one before, whose beginning it follows by its run time
        for before, after in pairwise(etas[1:]):
            assert after - before == pytest.approx(each, rel=0.1)
        assert [one.reason for one in forecasts] == [
            "",
            "",
            *["waits for a vQPU: not before another lease ends"] * 4,
        ]
        listed = (await queue.forecasts.of_all([running, *jobs]))()
        assert [f.position for _, f in listed if f] == [0, 2, 3, 4, 5]
        activity = Activity(queue)
        told = json.loads(await activity.answer(CAROL))
        assert told["waiting"] == {"development": 5}
        rows = [
            (row.get("id"), row.get("jobs"), row.get("position"))
            for row in told["line"]
        ]
        own = [
            (job.id, None, position)
            for job, position in zip(jobs[2:], (4, 5), strict=True)
        ]
        assert rows == [(None, 3, None), *own]
        assert told["line"][-1]["note"].startswith("waits for a vQPU")
        assert told["line"][-1]["starts"] is not None
        await queue.cancel(ADMIN, running.id)


async def test_it_waits_in_the_order_of_all_requests(queue: JobQueue) -> None:
    first = await acquire(queue)
    lease = await request(queue)
    later = asyncio.create_task(acquire(queue, CAROL, SECONDS))
    await until(lambda: queue.leases.waiting == 2)
    urgent = await request(queue, BOB, "production")
    await queue.leases.release(BOB, first.id)
    await until(lambda: ids(queue) == [urgent.id])
    await until(lambda: queue.leases.find(ADMIN, urgent.id).held)
    await queue.leases.release(BOB, urgent.id)
    await until(lambda: ids(queue) == [lease.id])
    assert not later.done()
    await queue.leases.release(ANN, lease.id)
    assert ids(queue) == [(await later).id]


async def test_a_waiting_job_can_be_cancelled(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await acquire(queue)
    lease = await request(queue)
    one, other = [await submit(queue, lease, key) for key in "ab"]
    failed: Future[Job] = Future()
    failed.set_exception(sqlite3.OperationalError("disk I/O error"))
    with monkeypatch.context() as patch:
        patch.setattr(queue.store.progress, "cancel_waiting", lambda *_: failed)
        with pytest.raises(sqlite3.OperationalError):
            await queue.cancel(ANN, one.id)
    assert queue.find(ANN, one.id).state == "Queued"
    assert (await queue.cancel(ANN, one.id)).state == "Cancelled"
    await queue.leases.release(BOB, first.id)
    assert (await over(queue, other)).state == "Completed"
    assert queue.find(ANN, one.id).attempt == 1


async def test_a_lease_ends_while_it_waits(queue: JobQueue) -> None:
    first = await acquire(queue)
    lease = await request(queue)
    jobs = [await submit(queue, lease, key) for key in "ab"]
    ended = await queue.leases.release(ADMIN, lease.id)
    assert (ended.held, ended.reason) == (False, "released")
    for job in jobs:
        found = queue.find(ANN, job.id)
        assert (found.state, found.note) == ("Cancelled", RELEASED.note)
    ((held,),) = queue.store.read(
        "SELECT closed_steady - opened_steady FROM leases WHERE id = ?", lease.id
    )
    assert (held, queue.leases.waiting, [*queue.forecasts.waiting()]) == (0.0, 0, [])
    with pytest.raises(Refused) as refused:
        await submit(queue, lease)
    assert refused.value.detail == "the lease was released"
    again = await request(queue)
    assert again.id != lease.id
    await queue.leases.release(BOB, first.id)
    await until(lambda: queue.leases.find(ANN, again.id).held)


async def test_jobs_that_wait_survive_a_restart(tmp_path: Path) -> None:
    settings = ServiceSettings(leases=LeaseSettings(total_seconds=3600.0))
    async with running_queue(tmp_path, device(), settings) as queue:
        first = await acquire(queue)
        leases = [await request(queue, who) for who in (ANN, CAROL)]
        jobs = [await submit(queue, lease) for lease in leases]
        await queue.leases.release(ADMIN, leases[0].id)
        leases[0] = await request(queue, ANN, "production")
        jobs[0] = await submit(queue, leases[0], "b")
    async with running_queue(tmp_path, device(), settings) as queue:
        assert (queue.leases.waiting, ids(queue)) == (2, [first.id])
        assert [lease.id for lease in queue.leases.on_disk[1:]] == [
            leases[1].id,
            leases[0].id,
        ]
        assert {queue.find(ADMIN, job.id).state for job in jobs} == {"Queued"}
        # those of the user count for his bounds, too
        assert await request(queue, CAROL) == leases[1]
        await queue.leases.release(BOB, first.id)
        assert (await over(queue, jobs[0])).state == "Completed"
        assert queue.find(ADMIN, jobs[1].id).state == "Queued"
        await queue.leases.release(ADMIN, leases[0].id)
        assert (await over(queue, jobs[1])).state == "Completed"
        expires = queue.leases.find(ADMIN, leases[1].id).expires
        assert expires is not None
        assert expires > leases[1].opened + 3600.0


async def test_a_user_has_so_many_waiting_jobs_only(tmp_path: Path) -> None:
    settings = ServiceSettings(limits=UserLimits(jobs=2, leases=1))
    async with running_queue(tmp_path, device(), settings) as queue:
        await acquire(queue)
        lease = await request(queue)
        jobs = [await submit(queue, lease, key) for key in "ab"]
        with pytest.raises(Refused) as refused:
            await submit(queue, lease, "c")
        assert refused.value.status == 429
        await queue.cancel(ANN, jobs[0].id)
        await submit(queue, lease, "c")
        with pytest.raises(Refused) as refused:
            await acquire(queue, ANN)
        assert "holds or waits for 1 lease," in refused.value.detail


async def test_a_closed_qpu_refuses_no_lease_that_waits_on_disk(
    queue: JobQueue,
) -> None:
    await acquire(queue)
    lease = await request(queue)
    job = await submit(queue, lease)
    waiting = asyncio.create_task(acquire(queue, CAROL, SECONDS))
    await until(lambda: queue.leases.waiting == 2)
    await queue.availability.set_status("closed")
    with pytest.raises(Refused) as refused:
        await waiting
    assert refused.value.status == 503
    with pytest.raises(Refused):
        await request(queue, CAROL)
    queue.vqpus.resize(2)
    assert queue.find(ANN, job.id).state == "Queued"
    await queue.availability.set_status("open")
    assert (await over(queue, job)).state == "Completed"


@contextmanager
def failing_grants(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Lease]]:
    """No grant can be written meanwhile; the leases that were tried."""
    failed: Future[None] = Future()
    failed.set_exception(sqlite3.OperationalError("disk I/O error"))
    failures = list[Lease]()

    def fail(lease: Lease) -> Future[None]:
        failures.append(lease)
        return failed

    with monkeypatch.context() as patch:
        patch.setattr(queue.store.leases, "grant", fail)
        yield failures


async def test_a_grant_that_cannot_be_written_is_tried_again(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "DATABASE", Backoff(0.01, 0.01))
    first = await acquire(queue)
    lease = await request(queue)
    job = await submit(queue, lease)
    with failing_grants(queue, monkeypatch) as failures:
        await queue.leases.release(BOB, first.id)
        await until(lambda: len(failures) > 1)
        assert queue.find(ANN, job.id).state == "Queued"
        # its end waits for the grant
        ending = asyncio.create_task(queue.leases.release(ADMIN, lease.id))
        await asyncio.sleep(0)
    assert not (await ending).held
    assert queue.find(ANN, job.id).final


@pytest.mark.parametrize("ends", [True, False])
async def test_a_lease_that_cannot_be_put_on_disk_does_not_wait(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    first = await acquire(queue)
    written: Future[None] = Future()
    add: Callable[[Lease], Future[None]] = queue.store.leases.add
    asked = list[Lease]()

    def slow(lease: Lease) -> Future[None]:
        asked.append(lease)
        return written

    monkeypatch.setattr(queue.store.leases, "add", slow)
    waiting = asyncio.create_task(request(queue))
    await until(lambda: bool(asked))
    same = asyncio.create_task(request(queue))
    await queue.leases.release(BOB, first.id)
    monkeypatch.setattr(queue.store.leases, "add", add)
    if ends:
        written.set_exception(sqlite3.OperationalError("disk I/O error"))
        with pytest.raises(sqlite3.OperationalError):
            await waiting
    else:  # its client is gone before it knows of it; another request goes on
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wrap_future(add(asked[0]))
        written.set_result(None)
    granted = await same
    await until(lambda: queue.leases.find(ADMIN, granted.id).held)
    assert ends == (granted.id != asked[0].id)


@pytest.mark.parametrize("running", [True, False])
async def test_a_job_moved_to_a_waiting_lease_waits_with_it(
    tmp_path: Path, running: bool
) -> None:
    slow = EmulatedDevice(technology="superconducting", time_scale=1000.0)
    async with running_queue(tmp_path, slow) as queue:
        first = await acquire(queue, ANN)
        ahead = await submit(queue, first, "a", "v1")
        behind = await submit(queue, first, "b", "v1")
        await until(lambda: queue.find(ANN, ahead.id).state == "Running")
        lease, job = await request(queue), ahead if running else behind
        await submit(queue, lease, "a" if running else "b")
        assert queue.find(ANN, job.id).lease == lease.id
        if running:  # it runs on, and waits when it is put back
            assert not queue.jobs.waiting_with(lease.id)
            await queue.availability.set_status("closed")
            await until(lambda: queue.find(ANN, job.id).state == "Queued")
            await until(lambda: bool(queue.jobs.waiting_with(lease.id)))
        assert [*queue.jobs.waiting_with(lease.id)] == [job.number]
        assert queue.jobs.pending.get(job.number) is None
        await queue.availability.set_status("open")
        await queue.leases.release(ANN, first.id)
        await until(lambda: queue.find(ANN, job.id).state == "Running")
        for one in (ahead, behind):
            await queue.cancel(ADMIN, one.id)


async def test_the_estimator_counts_a_waiting_submission_once(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator, counted = queue.jobs.estimator, list[int]()
    submitted = estimator.submitted

    def count(job: PendingJob) -> None:
        counted.append(job.number)
        submitted(job)

    monkeypatch.setattr(estimator, "submitted", count)
    first = await acquire(queue)
    lease = await request(queue)
    job = await submit(queue, lease)
    failed: Future[Job] = Future()
    failed.set_exception(sqlite3.OperationalError("disk I/O error"))
    with monkeypatch.context() as patch:  # it is withdrawn, and waits again
        patch.setattr(queue.store.progress, "cancel_waiting", lambda *_: failed)
        with pytest.raises(sqlite3.OperationalError):
            await queue.cancel(ANN, job.id)
    assert counted == []
    await queue.leases.release(BOB, first.id)
    assert (await over(queue, job)).state == "Completed"
    assert counted == [job.number]


@pytest.mark.parametrize("restarts", [True, False])
async def test_a_place_is_kept_for_a_lease_that_waited_on_disk(
    tmp_path: Path, restarts: bool
) -> None:
    async with running_queue(tmp_path, device()) as queue:
        first = await acquire(queue)
        leases = [await request(queue, who) for who in (ANN, CAROL)]
        if not restarts:
            await place_is_kept(queue, first, leases)
    if restarts:
        async with running_queue(tmp_path, device()) as queue:
            await place_is_kept(queue, first, leases)


async def place_is_kept(queue: JobQueue, first: Lease, leases: list[Lease]) -> None:
    """Release the first of two waiting leases twice: as it waits, and when held."""
    ann, carol = leases
    await queue.leases.release(ADMIN, ann.id, keep_position=True)
    ann = await request(queue, ANN)
    assert queue.leases.waiting_on_disk == [ann.id, carol.id]
    await queue.leases.release(BOB, first.id)
    await until(lambda: queue.leases.find(ANN, ann.id).held)
    bob = await request(queue, BOB)
    await queue.leases.release(ADMIN, ann.id, keep_position=True)
    await until(lambda: ids(queue) == [carol.id])
    again = await request(queue, ANN)
    assert queue.leases.waiting_on_disk == [again.id, bob.id]


@pytest.mark.parametrize("written", [True, False])
async def test_acquire_waits_for_the_grant_with_its_key(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    monkeypatch.setattr(backoff, "DATABASE", Backoff(0.01, 0.01))
    first = await acquire(queue)
    lease = await request(queue)
    with failing_grants(queue, monkeypatch) as failures:
        await queue.leases.release(BOB, first.id)
        await until(lambda: bool(failures))
        asked = LeaseRequest(job_class="test", key="sapi")
        same = asyncio.create_task(queue.leases.acquire(ANN, asked))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not same.done()
        if not written:  # the grant is left to the next service
            queue.request_stop()
            with pytest.raises(Refused, match="being stopped"):
                await same
            return
    granted = await same
    assert (granted.id, granted.held) == (lease.id, True)
    assert queue.store.leases.get(lease.id) == granted


async def test_a_job_that_runs_under_a_waiting_lease_is_recovered(
    tmp_path: Path,
) -> None:
    vendor = Vendor()
    async with running_queue(tmp_path, VendorDevice(vendor)) as queue:
        first = await acquire(queue, ANN)
        job = await submit(queue, first, "a", "v1")
        await until(lambda: queue.find(ANN, job.id).state == "Running")
        lease = await request(queue)
        await submit(queue, lease, "a")
    async with running_queue(tmp_path, VendorDevice(vendor)) as queue:
        assert queue.leases.waiting_on_disk == [lease.id]
        vendor.end("v1")
        done = await over(queue, job)
        assert (done.state, done.attempt) == ("Completed", 1)
        assert len(vendor.jobs) == 1


async def test_a_job_left_to_the_next_service_can_be_cancelled(
    tmp_path: Path,
) -> None:
    vendor = Vendor()
    async with running_queue(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, await acquire(queue, ANN), "a", "v1")
        await until(lambda: queue.find(ANN, job.id).state == "Running")
        queue.request_stop()
        await queue.finished()
        vendor.trouble["cancel"] = [QpuError("no answer")] * 9
        async with asyncio.timeout(SECONDS):
            left = await queue.cancel(ANN, job.id)
        assert (left.state, left.cancelling) == ("Running", "cancelled")
    vendor.trouble.clear()
    async with running_queue(tmp_path, VendorDevice(vendor)) as queue:
        done = await over(queue, job)
        assert (done.state, done.note) == ("Cancelled", "cancelled")
        assert vendor.jobs["v1"].state == "Cancelled"


async def test_a_cancelled_job_does_not_run_again_on_a_closed_qpu(
    tmp_path: Path,
) -> None:
    vendor = Vendor()
    async with running_queue(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, await acquire(queue, ANN), "a", "v1")
        await until(lambda: queue.find(ANN, job.id).state == "Running")
        queue.request_stop()
        await queue.finished()
        # the service dies before the vendor is asked
        queue.store.progress.note_cancellation(job.number, "cancelled").result()
        await queue.availability.set_status("closed")
    async with running_queue(tmp_path, VendorDevice(vendor)) as queue:
        assert queue.availability.status == "closed"
        done = await over(queue, job)
        assert (done.state, done.note, done.attempt) == ("Cancelled", "cancelled", 1)


async def test_a_waiting_job_ends_with_the_lease_it_moves_to(queue: JobQueue) -> None:
    first, lease = await acquire(queue, ANN), await request(queue)
    job = await submit(queue, lease)
    moving = asyncio.create_task(submit(queue, first, "a"))
    for _ in range(2):
        await asyncio.sleep(0)
    # nothing that the loop does now comes between the two writes
    await queue.leases.release(ANN, first.id)
    assert (await moving).state == "Cancelled"
    assert queue.jobs.get(job.number) is None
    assert not queue.jobs.waiting_with(lease.id)
    assert not queue.jobs.counts._jobs

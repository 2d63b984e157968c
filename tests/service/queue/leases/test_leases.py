"""Who gets a lease, in which order and class, and what ends it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from starlette.requests import HTTPConnection

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.files import JSON
from sf_quantum.net.transport import Response
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    JobClass,
    Lease,
    LeaseRequest,
    Submission,
    UserClass,
)
from sf_quantum.service.domain.reasons import RELEASED
from sf_quantum.service.domain.settings import (
    ClassSettings,
    LeaseSettings,
    ServiceSettings,
    UserLimits,
)
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.jobs import worker
from sf_quantum.service.queue.leases import live_leases as leases
from sf_quantum.service.queue.leases import slurm_jobs, vqpus
from sf_quantum.service.queue.leases.entitlements import lease_class
from sf_quantum.service.queue.leases.lease_states import Ending, Held
from sf_quantum.service.queue.leases.slurm_jobs import QUERIES_AT_ONCE
from sf_quantum.service.queue.leases.waiting_requests import WaitingRequest
from sf_quantum.text import utc
from tests.support.service import (
    RunningService,
    example_bqm,
    running_queue,
    running_service,
)
from tests.support.waiting import SECONDS
from tests.support.waiting import until_async as until

pytestmark = pytest.mark.devices("sfq", "dwave", "acme", always=["acme"])

ANN, BOB = Identity("ann", admin=False), Identity("bob", admin=False)
ADMIN = Identity("root", admin=True, root=True)
HOUR = 3600.0


def test_the_id_of_a_lease_is_no_option_of_a_command() -> None:
    waiting = WaitingRequest("ann", "test", LeaseRequest("solve"), 1, 0)
    ids = [waiting.new_lease(ServiceSettings()).id for _ in range(1000)]
    assert [one for one in ids if not one[0].isalnum()] == []


def running(
    path: Path, settings: ServiceSettings | None = None
) -> AbstractAsyncContextManager[JobQueue]:
    """A queue whose jobs take minutes."""
    return running_queue(path, EmulatedDevice(technology="neutral-atom"), settings)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk or a device may be slow to let a job go."""
    monkeypatch.setattr(leases, "RELEASE_SECONDS", SECONDS)
    monkeypatch.setattr(worker, "INTERRUPT_SECONDS", SECONDS)


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[JobQueue]:
    async with running(tmp_path) as queue:
        yield queue


async def acquire(
    queue: JobQueue,
    wait: float = 0.0,
    *,
    who: Identity = ANN,
    job_class: JobClass = "test",
    key: str | None = None,
) -> Lease:
    request = LeaseRequest(job_class=job_class, key=key)
    return await queue.leases.acquire(who, request, wait)


async def submit(queue: JobQueue, lease: Lease, key: str = "a") -> Job:
    asked = Submission("problem", example_bqm(), {"num_reads": 1}, key)
    return (await queue.submit(ADMIN, lease.id, asked))[0]


def held(queue: JobQueue, lease: Lease) -> bool:
    return queue.leases.find(ADMIN, lease.id).held


def ended(queue: JobQueue, lease: Lease) -> str | None:
    return queue.leases.find(ADMIN, lease.id).reason


def pass_time(queue: JobQueue, *leases: Lease, seconds: float = HOUR) -> None:
    """Let time pass for some leases, of which the queue's clock knows nothing."""
    for lease in leases:
        live = queue.vqpus.table.get(lease.id)
        assert live is not None
        live.last_used -= seconds
        held = live.expect(Held)
        if held.vqpu_use.expires is not None:
            vqpu_use = dataclasses.replace(
                held.vqpu_use, expires=held.vqpu_use.expires - seconds
            )
            live.state = dataclasses.replace(held, vqpu_use=vqpu_use)
    # their timers are of that clock
    queue.reconfigure(queue.settings)


async def test_as_many_as_vqpus_and_no_more(queue: JobQueue) -> None:
    first = await acquire(queue)
    with pytest.raises(Refused) as refused:
        await acquire(queue)
    assert refused.value.status == 409
    assert refused.value.detail == "the only vQPU is held, try again later"
    queue.vqpus.resize(2)
    second = await acquire(queue)
    queue.vqpus.resize(1)  # revokes nothing
    assert queue.leases.held == [first, second]
    await queue.leases.release(ANN, first.id)
    with pytest.raises(Refused):
        await acquire(queue)
    await queue.leases.release(ANN, second.id)
    await acquire(queue)


async def test_a_user_holds_and_waits_for_so_many_only(tmp_path: Path) -> None:
    settings = ServiceSettings(vqpus=3, limits=UserLimits(leases=2))
    ann, bob = (Identity(name, admin=False) for name in ("ann", "bob"))
    async with running_queue(tmp_path, EmulatedDevice(), settings) as queue:
        first = await queue.leases.acquire(ann, LeaseRequest(key="a"))
        await queue.leases.acquire(ann, LeaseRequest())
        with pytest.raises(Refused, match="holds or waits for 2 leases") as refused:
            await queue.leases.acquire(ann, LeaseRequest())
        assert refused.value.status == 409
        assert await queue.leases.acquire(ann, LeaseRequest(key="a")) == first
        await queue.leases.acquire(bob, LeaseRequest())
        waiting = asyncio.create_task(queue.leases.acquire(bob, LeaseRequest(), 60))
        await until(lambda: queue.leases.waiting)
        with pytest.raises(Refused, match="holds or waits for 2 leases"):
            await queue.leases.acquire(bob, LeaseRequest(), 60)
        await queue.leases.release(ann, first.id)
        await waiting


async def test_many_at_once_get_no_more_than_there_are(queue: JobQueue) -> None:
    queue.vqpus.resize(3)
    outcomes = await asyncio.gather(
        *(acquire(queue) for _ in range(20)), return_exceptions=True
    )
    assert len([one for one in outcomes if isinstance(one, Lease)]) == 3
    assert len(queue.store.leases.held()) == 3


async def test_those_who_wait_are_served_by_class_then_by_coming(
    queue: JobQueue,
) -> None:
    first = await acquire(queue)
    order: list[str] = []

    def queued_after(before: int) -> bool:
        return queue.leases.waiting == before + 1

    async def wait(name: str, job_class: JobClass) -> None:
        lease = await acquire(queue, 60, job_class=job_class)
        order.append(name)
        await queue.leases.release(ANN, lease.id)

    asked: list[tuple[str, JobClass]] = [
        *(("d1", "development"), ("t1", "test"), ("p1", "production")),
        *(("d2", "development"), ("t2", "test"), ("p2", "production")),
    ]
    async with asyncio.TaskGroup() as group:
        for name, job_class in asked:
            before = queue.leases.waiting
            group.create_task(wait(name, job_class))
            await until(partial(queued_after, before))
        assert order == []
        await queue.leases.release(ANN, first.id)
    assert order == ["p1", "p2", "t1", "t2", "d1", "d2"]


async def test_requests_of_a_class_are_served_by_priority(tmp_path: Path) -> None:
    classes = ClassSettings(priorities={"ann": 5})
    order: list[str] = []
    async with running(tmp_path, ServiceSettings(classes=classes)) as queue:
        first = await acquire(queue)

        def queued_after(before: int) -> bool:
            return queue.leases.waiting == before + 1

        async def wait(name: str, job_class: JobClass, priority: int) -> None:
            request = LeaseRequest(job_class=job_class, priority=priority)
            lease = await queue.leases.acquire(ANN, request, 60)
            order.append(name)
            await queue.leases.release(ANN, lease.id)

        asked: list[tuple[str, JobClass, int]] = [
            *(("t0", "test", 0), ("d5", "development", 5), ("t5", "test", 5)),
            *(("t1", "test", 1), ("later t5", "test", 5), ("p0", "production", 0)),
        ]
        async with asyncio.TaskGroup() as group:
            for one in asked:
                before = queue.leases.waiting
                group.create_task(wait(*one))
                await until(partial(queued_after, before))
            await queue.leases.release(ANN, first.id)
    assert order == ["p0", "t5", "later t5", "t1", "t0", "d5"]


async def test_a_lease_on_disk_keeps_its_priority(tmp_path: Path) -> None:
    settings = ServiceSettings(classes=ClassSettings(priorities={"ann": 1}))
    async with running(tmp_path, settings) as queue:
        first = await acquire(queue, who=BOB)
        low = await queue.leases.request(BOB, LeaseRequest(key="l"))
        request = LeaseRequest(key="h", priority=1)
        high = await queue.leases.request(ANN, request)
    async with running(tmp_path, settings) as queue:
        assert queue.leases.waiting_on_disk == [high.id, low.id]
        await queue.leases.release(BOB, first.id)
        await until(lambda: held(queue, high))


@pytest.mark.parametrize(("who", "highest"), [(ANN, 2), (BOB, 0), (ADMIN, 1000)])
async def test_a_priority_above_the_users_is_refused(
    tmp_path: Path, who: Identity, highest: int
) -> None:
    settings = ServiceSettings(classes=ClassSettings(priorities={"ann": 2}))
    async with running(tmp_path, settings) as queue:
        request = LeaseRequest(priority=highest + 1)
        with pytest.raises(Refused, match=f"may request priorities up to {highest}$"):
            await queue.leases.acquire(who, request)
        allowed = dataclasses.replace(request, priority=highest)
        assert (await queue.leases.acquire(who, allowed)).priority == highest


async def test_a_lease_is_not_granted_after_its_latest_start(queue: JobQueue) -> None:
    async def ask(latest_start: float, wait: float = 60.0) -> Lease:
        request = LeaseRequest(key="late", latest_start=latest_start)
        return await queue.leases.acquire(ANN, request, wait)

    soon = time.time() + 0.05
    with pytest.raises(Refused, match=r"^not granted by 1970-01-01T00:00:09Z$") as past:
        await ask(9.0)
    assert (past.value.status, past.value.field) == (409, "latest_start")
    other = await acquire(queue, who=BOB)
    with pytest.raises(Refused, match="not granted by") as late:
        await ask(soon)
    assert late.value.field == "latest_start"
    assert not queue.leases.waiting
    with pytest.raises(Refused, match="held, try again later"):
        await ask(time.time() + HOUR, 0.0)
    await queue.leases.release(BOB, other.id)
    granted = await ask(latest := time.time() + HOUR)
    assert granted.latest_start == latest
    # a repeated request gets the lease that was granted in time
    assert await ask(soon) == granted


async def test_a_latest_start_in_maintenance_is_refused_at_once(
    queue: JobQueue,
) -> None:
    now = time.time()
    later = now + 2 * HOUR
    availability = queue.availability
    await availability.announce("root", now + HOUR, later, "pumps")
    await availability.announce("root", now - 1, now + HOUR, "filters")
    for latest, status, said in (
        (later - 1, 409, r"cannot be granted by \S+Z: the QPU is in maintenance until"),
        (later + 1, 503, "the QPU is in maintenance until"),
    ):
        request = LeaseRequest(latest_start=latest)
        with pytest.raises(Refused, match=said) as refused:
            await queue.leases.acquire(ANN, request, 60)
        assert refused.value.status == status
    # it may be opened at any time, which ends the maintenance
    await availability.set_status("closed", user="root")
    with pytest.raises(Refused, match="the QPU is closed") as closed:
        await queue.leases.acquire(ANN, LeaseRequest(latest_start=later - 1))
    assert closed.value.status == 503


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_lease_on_disk_ends_at_its_latest_start(
    tmp_path: Path, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = LeaseRequest(key="k", latest_start=(latest := time.time() + HOUR))

    def hour_passes() -> None:
        monkeypatch.setattr(vqpus, "seconds_until", lambda _: 0.0)

    async with running(tmp_path) as queue:
        await acquire(queue, who=BOB)
        if not restarted:
            hour_passes()
        waiting = await queue.leases.request(ANN, asked)
        assert not restarted or ended(queue, waiting) is None
        hour_passes()
        if not restarted:
            await until(lambda: ended(queue, waiting))
    async with running(tmp_path) as queue:
        await until(lambda: ended(queue, waiting))
        assert ended(queue, waiting) == f"not granted by {utc(latest)}"
        assert queue.leases.waiting == 0


async def test_a_wait_ends_in_time_and_has_a_bound(queue: JobQueue) -> None:
    lease = await acquire(queue)
    waiting = asyncio.create_task(acquire(queue, 0.05))
    await until(lambda: queue.leases.waiting == 1)
    with pytest.raises(Refused) as refused:
        await waiting
    assert refused.value.status == 409
    assert queue.leases.waiting == 0
    with pytest.raises(Refused) as refused:
        await acquire(queue, 3601)
    assert (refused.value.status, refused.value.field) == (422, "wait")
    # nobody waits any more, so nothing is granted to one who left
    await queue.leases.release(ANN, lease.id)
    assert queue.leases.held == []


async def test_those_who_wait_are_told_that_the_qpu_closes(queue: JobQueue) -> None:
    await acquire(queue)
    waiting = asyncio.create_task(acquire(queue, 60))
    await until(lambda: queue.leases.waiting == 1)
    await queue.availability.set_status("closed", "helium")
    with pytest.raises(Refused) as refused:
        await waiting
    assert (refused.value.status, refused.value.detail) == (
        503,
        "the QPU is closed: helium",
    )


async def test_a_key_is_one_lease_and_keeps_its_place(queue: JobQueue) -> None:
    first = await acquire(queue, key="k")
    assert await acquire(queue, key="k") == first
    with pytest.raises(Refused):
        await acquire(queue, key="k", who=BOB)
    with pytest.raises(Refused):
        await acquire(queue, 0.01, key="early")
    late = asyncio.create_task(acquire(queue, 60, key="late"))
    await until(lambda: queue.leases.waiting == 1)
    # comes again, and stands before the one who came in between
    early = asyncio.create_task(acquire(queue, 60, key="early"))
    await until(lambda: queue.leases.waiting == 2)
    await queue.leases.release(ANN, first.id)
    got = await early
    assert not late.done()
    await queue.leases.release(ANN, got.id)
    assert (await late).key == "late"
    # released: the key asks for a new one
    queue.vqpus.resize(2)
    assert (await acquire(queue, key="k")).id != first.id


async def test_an_admin_has_the_place_of_a_released_lease_kept(
    queue: JobQueue,
) -> None:
    first = await acquire(queue, key="first")
    second = asyncio.create_task(acquire(queue, 60, key="second"))
    await until(lambda: queue.leases.waiting == 1)
    third = asyncio.create_task(acquire(queue, 60, key="third"))
    await until(lambda: queue.leases.waiting == 2)
    with pytest.raises(Refused, match="only an admin"):
        await queue.leases.release(ANN, first.id, keep_position=True)
    assert held(queue, first)
    await queue.leases.release(ADMIN, first.id, keep_position=True)
    lease = await second
    again = asyncio.create_task(acquire(queue, 60, key="first"))
    await until(lambda: queue.leases.waiting == 2)
    await queue.leases.release(ANN, lease.id)
    await queue.leases.release(ANN, (await again).id)
    assert (await third).key == "third"


async def test_one_who_went_away_gets_nothing(queue: JobQueue) -> None:
    first = await acquire(queue)
    gone = asyncio.Event()
    waiting = asyncio.create_task(
        queue.leases.acquire(ANN, LeaseRequest(), 60, gone=gone)
    )
    await until(lambda: queue.leases.waiting == 1)
    gone.set()
    with pytest.raises(Refused):
        await waiting
    await queue.leases.release(ANN, first.id)
    assert queue.leases.held == []


@pytest.mark.parametrize("seed", range(8))
async def test_requests_that_come_and_go_are_served_by_rank(
    tmp_path: Path, seed: int
) -> None:
    random_, admin = random.Random(seed), ADMIN
    device, settings = EmulatedDevice(time_scale=0), ServiceSettings(vqpus=1)
    async with running_queue(tmp_path, device, settings) as queue:
        held = await queue.leases.acquire(admin, LeaseRequest())
        tasks = asyncio.all_tasks()
        waiting = dict[str, asyncio.Task[Lease]]()
        # Class, priority and position; a request that is repeated keeps its position.
        ranks, kept = dict[str, tuple[int, int, int]](), dict[str, int]()
        for number in range(40):
            key = f"{random_.randint(0, 12)}"
            if random_.random() < 0.6 and key not in waiting:
                class_, priority = random_.choice(get_args(UserClass)), number % 3
                rank = get_args(UserClass).index(class_), -priority
                ranks[key] = (*rank, kept.pop(key, number))
                asked = LeaseRequest(key=key, job_class=class_, priority=priority)
                acquiring = queue.leases.acquire(admin, asked, 60.0)
                waiting[key] = asyncio.create_task(acquiring)
                await until(lambda: queue.leases.waiting == len(waiting))
            elif waiting:
                key = random_.choice([*waiting])
                waiting[key].cancel()
                await asyncio.wait([waiting.pop(key)])
                kept[key] = ranks[key][-1]
        for key in sorted(waiting, key=ranks.__getitem__):
            await queue.leases.release(admin, held.id)
            held = await waiting[key]
            assert held.key == key
        # Nobody waits any more for the clients that went.
        assert not [
            one for one in asyncio.all_tasks() - tasks if "Event.wait" in repr(one)
        ]


async def test_releasing_cancels_the_jobs_on_the_device_too(queue: JobQueue) -> None:
    lease = await acquire(queue)
    jobs = [await submit(queue, lease, key) for key in "abc"]
    await until(lambda: queue.find(ANN, jobs[0].id).state == "Running")
    await queue.leases.release(ANN, lease.id)
    for job in jobs:
        found = queue.find(ANN, job.id)
        assert found.state == "Cancelled"
        assert found.note == "cancelled: its lease was released"
    assert queue.length == 0
    with pytest.raises(Refused) as refused:
        await submit(queue, lease, "d")
    assert (refused.value.status, refused.value.field) == (403, "X-SFQ-Lease")
    assert refused.value.detail == "the lease was released"


async def test_submitting_and_releasing_at_once_leaves_nothing_behind(
    queue: JobQueue,
) -> None:
    lease = await acquire(queue)
    outcomes = await asyncio.gather(
        *(submit(queue, lease, str(n)) for n in range(20)),
        queue.leases.release(ANN, lease.id),
        *(submit(queue, lease, str(n)) for n in range(20, 40)),
        return_exceptions=True,
    )
    jobs = [one for one in outcomes if isinstance(one, Job)]
    states = {queue.find(ANN, job.id).state for job in jobs}
    assert states <= {"Cancelled"}
    assert queue.length == 0
    assert queue.store.jobs.live() == []


async def test_an_idle_lease_ends(tmp_path: Path) -> None:
    settings = ServiceSettings(vqpus=3, leases=LeaseSettings(idle_seconds=HOUR))
    async with running(tmp_path, settings) as queue:
        idle, renewed, busy = [await acquire(queue) for _ in range(3)]
        job = await submit(queue, busy)
        pass_time(queue, idle, renewed, busy, seconds=HOUR / 2)
        queue.leases.renew(ANN, renewed.id)
        pass_time(queue, idle, renewed, busy, seconds=HOUR / 2)
        await until(lambda: not held(queue, idle))
        assert [held(queue, one) for one in (idle, renewed, busy)] == [
            *(False, True, True)
        ]
        assert ended(queue, idle) == "it was idle for 3600 seconds"
        with pytest.raises(Refused) as refused:
            queue.leases.renew(ANN, idle.id)
        assert refused.value.status == 403
        assert "has ended: it was idle for" in refused.value.detail
        queue.leases.renew(ANN, renewed.id)
        before = time.time()
        expires = queue.leases.idle_expires_at(renewed)
        assert expires is not None
        assert before <= expires <= time.time() + HOUR
        # from the end of its last job on
        await queue.cancel(ANN, job.id)
        assert held(queue, busy)
        pass_time(queue, busy)
        await until(lambda: not held(queue, busy))


async def test_an_idle_limit_that_is_reloaded_applies_to_held_leases(
    tmp_path: Path,
) -> None:
    endless = ServiceSettings(leases=LeaseSettings(idle_seconds=None))
    async with running(tmp_path, endless) as queue:
        lease = await acquire(queue)
        limited = LeaseSettings(idle_seconds=0.1)
        queue.reconfigure(ServiceSettings(leases=limited))
        await until(lambda: not held(queue, lease))
        assert ended(queue, lease) == "it was idle for 0.1 seconds"


async def test_a_lease_ends_when_its_time_is_over(tmp_path: Path) -> None:
    async with running(
        tmp_path, ServiceSettings(leases=LeaseSettings(total_seconds=HOUR))
    ) as queue:
        lease = await acquire(queue)
        assert lease.expires == pytest.approx(time.time() + HOUR, abs=SECONDS)
        job = await submit(queue, lease)
        pass_time(queue, lease)
        await until(lambda: not held(queue, lease))
        found = await queue.wait(ANN, job.id, SECONDS)
        assert found.state == "Cancelled"
        assert found.note == "cancelled: its lease has ended: its time is over"


async def test_leases_and_their_clocks_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as queue:
        lease = await acquire(queue)
    settings = ServiceSettings(leases=LeaseSettings(idle_seconds=HOUR))
    async with running(tmp_path, settings) as queue:
        assert queue.leases.held == [lease]
        with pytest.raises(Refused):
            await acquire(queue)
        pass_time(queue, lease)
        await acquire(queue, SECONDS)
        assert ended(queue, lease) == "it was idle for 3600 seconds"


@pytest.mark.parametrize(
    ("user", "asked", "partition", "given"),
    [
        ("ann", None, None, "development"),
        ("ann", "production", None, "test"),
        ("bob", "production", None, "production"),
        ("cat", "production", None, "test"),
        ("bob", None, "quantum", "production"),
        ("ann", None, "quantum", "test"),
        ("bob", "production", "qdev", "development"),
        ("bob", "test", "quantum", "test"),
        ("bob", None, "unknown", "development"),
        # of a pending job, which may run in each of them
        ("bob", None, "quantum,unknown", "development"),
        ("bob", "production", "quantum,unknown", "production"),
        ("bob", "production", "unknown,qdev", "development"),
        ("bob", None, "quantum,qdev", "development"),
    ],
)
def test_class_of_a_lease(
    user: str, asked: JobClass | None, partition: str | None, given: JobClass
) -> None:
    settings = ServiceSettings(
        classes=ClassSettings(
            highest="test",
            users={"bob": "production"},
            partitions={"quantum": "production", "qdev": "development"},
        )
    )
    request = LeaseRequest(job_class=asked, partition=partition)
    assert lease_class(settings, user, request) == given


async def test_who_may_acquire(tmp_path: Path) -> None:
    async with running(
        tmp_path, ServiceSettings(vqpus=5, leases=LeaseSettings(by="root"))
    ) as queue:
        with pytest.raises(Refused) as refused:
            await acquire(queue)
        assert refused.value.status == 403
        lease = await queue.leases.acquire(ADMIN, LeaseRequest(user="ann"))
        assert lease.user == "ann"
        assert queue.leases.list(ANN) == [lease]
        assert queue.leases.list(BOB) == []
        for call in (queue.leases.find, queue.leases.renew):
            with pytest.raises(Refused) as refused:
                call(BOB, lease.id)
            assert refused.value.status == 404
        with pytest.raises(Refused) as refused:
            await queue.leases.release(BOB, lease.id)
        assert refused.value.status == 404
    async with running(tmp_path) as queue:
        with pytest.raises(Refused) as refused:
            await queue.leases.acquire(ANN, LeaseRequest(user="bob"))
        assert (refused.value.status, refused.value.field) == (403, "user")


async def test_a_lease_is_listed_until_its_vqpu_is_free(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full keeps the end of a lease from being written."""
    lease = await acquire(queue)
    live = queue.vqpus.table.get(lease.id)
    assert live is not None

    def close(*_: object) -> Lease:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(queue.store.leases, "close", close)
        releasing = asyncio.create_task(queue.leases.release(ANN, lease.id))
        await until(lambda: isinstance(live.state, Ending))
        for waiting in (False, True):
            listed = queue.leases.list(ANN, waiting=waiting)
            assert [one.id for one in listed] == [lease.id]
    await releasing
    assert queue.leases.list(ANN, waiting=True) == []


SQUEUE = """#!/bin/sh
case "$(cat "{folder}/says")" in
there)
    case "$*" in
    *%u*) echo 'ann|quantum|physics|N/A|(null)'; echo "$*" >> "{folder}/asked_about";;
    *) echo 12;;
    esac;;
gone) ;;
forgotten) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;;
down)
    echo "$*" >> "{folder}/down"
    echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1;;
hangs)
    echo "$*" >> "{folder}/asked"
    until [ -e "{folder}/go" ]; do sleep 0.02; done;;
esac
echo "$*" >> "{folder}/asked"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A Slurm of one answer, which can be changed."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    cluster = "#!/bin/sh\necho 'Configuration data'; echo 'ClusterName   = here'\n"
    for name, script in (("squeue", SQUEUE), ("scontrol", cluster)):
        command = folder / name
        command.write_text(script.format(folder=folder))
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def says(what: str) -> None:
        new = folder / "new"
        new.write_text(what)
        new.rename(folder / "says")

    says("there")
    return says


@pytest.mark.parametrize("clear", ["gone", "forgotten"])
async def test_a_lease_ends_with_its_slurm_job(
    tmp_path: Path, slurm: Callable[[str], None], clear: str
) -> None:
    settings = ServiceSettings(vqpus=3, slurm_poll_seconds=0.01)
    asked = tmp_path / "slurm" / "asked"
    async with running(tmp_path, settings) as queue:
        leases = [
            await queue.leases.acquire(ANN, LeaseRequest(slurm_job_id=job))
            for job in ("12", None, "no number; rm -rf")
        ]
        await until(lambda: asked.exists() and len(asked.read_text()) > 50)
        slurm("down")
        down = tmp_path / "slurm" / "down"
        await until(lambda: down.exists() and len(down.read_text()) > 50)
        assert all(held(queue, lease) for lease in leases)
        slurm(clear)
        await until(lambda: not held(queue, leases[0]))
        assert [held(queue, lease) for lease in leases] == [False, True, True]
        assert ended(queue, leases[0]) == "Slurm job 12 is gone"
        assert set(asked.read_text().splitlines()) <= {"-h -j 12 -o %i"}


@pytest.mark.parametrize("configured", [None, "here", "there"])
async def test_a_lease_outlives_a_job_of_its_number_elsewhere(
    tmp_path: Path, slurm: Callable[[str], None], configured: str | None
) -> None:
    slurm("gone")
    settings = ServiceSettings(
        vqpus=3, slurm_poll_seconds=0.01, slurm_cluster=configured
    )
    async with running(tmp_path, settings) as queue:
        here, there, unnamed = [
            await queue.leases.acquire(
                ANN, LeaseRequest(slurm_job_id="12", slurm_cluster=cluster)
            )
            for cluster in ("Here", "there", None)
        ]
        own, other = (there, here) if configured == "there" else (here, there)
        await until(lambda: not held(queue, own) and not held(queue, unnamed))
        assert held(queue, other)


async def test_the_account_of_a_slurm_job_is_the_one_that_slurm_says(
    tmp_path: Path, slurm: Callable[[str], None]
) -> None:
    async with running(tmp_path, ServiceSettings(vqpus=9)) as queue:

        async def account(
            user: Identity, job: str | None, cluster: str | None = None
        ) -> str | None:
            request = LeaseRequest(
                account="mine", slurm_job_id=job, slurm_cluster=cluster
            )
            return (await queue.leases.acquire(user, request)).slurm_account

        assert await account(ANN, "12") == "physics"
        # clients that wait for a lease ask repeatedly
        assert await account(ANN, "12") == "physics"
        asked = tmp_path / "slurm" / "asked_about"
        assert len(asked.read_text().splitlines()) == 1
        # of which Slurm knows nothing here
        assert await account(ANN, "12", "there") == "mine"
        assert await account(BOB, "12") is None
        slurm("forgotten")
        assert await account(ANN, "13") is None
        slurm("down")
        assert await account(ANN, "13") == "mine"
        assert await account(ANN, None) is None


async def test_a_slurm_that_hangs_keeps_no_other_thread_waiting(
    tmp_path: Path, slurm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_jobs, "KEYLESS_SECONDS", 0.0)
    folder = tmp_path / "slurm"

    def asked() -> int:
        return len((folder / "asked").read_text().splitlines())

    settings = ServiceSettings(
        vqpus=50, classes=ClassSettings(partitions={"quantum": "production"})
    )
    request = LeaseRequest(slurm_job_id="12", key="k")
    async with running(tmp_path, settings) as queue:
        first = await queue.leases.acquire(ANN, request)
        slurm("hangs")
        before = asked()
        # the same lease again, of which Slurm has nothing to say
        assert await queue.leases.acquire(ANN, request) == first
        others = [
            asyncio.create_task(
                queue.leases.acquire(ANN, dataclasses.replace(request, key=f"{key}"))
            )
            for key in range(40)
        ]
        await until(lambda: asked() == before + QUERIES_AT_ONCE)
        # where credentials are checked, for example
        async with asyncio.timeout(SECONDS):
            await asyncio.to_thread(time.time)
        assert not any(other.done() for other in others)
        assert asked() == before + QUERIES_AT_ONCE
        (folder / "go").touch()
        slurm("there")
        assert len({lease.id for lease in await asyncio.gather(*others)}) == 40


async def by_header(connection: HTTPConnection) -> Identity:
    name = connection.headers.get("x-user", "ann")
    return Identity(name, admin=name == "admin")


class Service:
    """What users and admins ask over HTTP."""

    def __init__(self, running: RunningService) -> None:
        self.running = running

    def __call__(
        self, user: str, method: str, path: str, body: dict[str, JSON] | None = None
    ) -> Response:
        return self.running.ask(method, f"/v1{path}", body, headers={"X-User": user})


@pytest.fixture
async def ask() -> AsyncIterator[Service]:
    async with AsyncExitStack() as stack:
        device = EmulatedDevice(technology="neutral-atom")
        settings = ServiceSettings(vqpus=1, leases=LeaseSettings(idle_seconds=60))
        context = running_service(device, settings=settings, authenticate=by_header)
        yield Service(stack.enter_context(context))


async def test_leases_over_http(ask: Service) -> None:
    body: dict[str, JSON] = {
        **{"job": "why", "class": "production", "pattern": "qc-heavy"},
        **{"slurm_job_id": "12", "partition": "p", "expected_seconds": 5, "key": "k"},
    }
    made = ask("ann", "POST", "/leases", body)
    assert made.status == 201
    lease = made.json()
    assert {key: lease[key] for key in body} == body
    assert (lease["user"], lease["held"], lease["jobs"]) == ("ann", True, [])
    assert isinstance(lease["idle_expires"], float)
    assert isinstance(lease["idle_seconds_left"], float)
    assert ask("ann", "POST", "/leases", body).json()["id"] == lease["id"]
    path = f"/leases/{lease['id']}"
    for method, of in (("GET", path), ("DELETE", path), ("POST", f"{path}/renew")):
        assert ask("bob", method, of).status == 404
    assert ask("ann", "POST", f"{path}/renew").status == 200
    shown = [json.loads(ask(who, "GET", "/leases").body) for who in ("ann", "bob")]
    assert [len(leases) for leases in shown] == [1, 0]
    wrong = ask("ann", "POST", "/leases", {"class": "urgent"})
    assert (wrong.status, wrong.json()["field"]) == (422, "class")
    wrong = ask("ann", "POST", "/leases", {"wait": -1})
    assert (wrong.status, wrong.json()["field"]) == (422, "wait")
    assert ask("ann", "DELETE", path).status == 200
    refused = ask("ann", "POST", f"{path}/renew")
    assert refused.status == 403
    listed = json.loads(ask("ann", "GET", "/leases?closed=true").body)
    assert [entry["reason"] for entry in listed] == ["released"]


async def test_the_operator_over_http(ask: Service) -> None:
    for method, path, body in (
        ("PATCH", "/device", {"vqpus": 2}),
        ("POST", "/device/close", {}),
        ("POST", "/device/drain", {}),
        ("POST", "/device/open", None),
    ):
        refused = ask("ann", method, path, body)  # type: ignore[arg-type]
        assert (refused.status, refused.json()["detail"]) == (
            403,
            "only admins may do this",
        )
    assert ask("admin", "PATCH", "/device", {"vqpus": 2}).json()["vqpus"] == 2
    assert ask("admin", "PATCH", "/device", {"vqpus": 0}).status == 422
    for verb, status, words in (
        ("drain", "draining", "the QPU is being drained: x"),
        ("close", "closed", "the QPU is closed: x"),
    ):
        told = ask("admin", "POST", f"/device/{verb}", {"message": "x"}).json()
        assert (told["status"], told["reason"]) == (status, words)
        assert ask("ann", "GET", "/device").json()["eta_seconds"] is None
        refused = ask("ann", "POST", "/leases", {})
        assert (refused.status, refused.json()["detail"]) == (503, words)
    assert ask("admin", "POST", "/device/open").json()["status"] == "online"
    assert ask("ann", "POST", "/leases", {}).status == 201
    told = ask("ann", "GET", "/device?class=production").json()
    assert (told["class"], told["position"], told["eta_seconds"]) == (
        "production",
        0,
        0,
    )


async def test_a_client_that_hangs_up_leaves_the_line(ask: Service) -> None:
    first = ask("ann", "POST", "/leases", {}).json()["id"]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(ask.running.url.removeprefix("unix:"))
        client.sendall(
            b"POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 13\r\n\r\n{"wait": 100}'
        )
        await until(lambda: ask.running.queue.leases.waiting == 1)
    await until(lambda: ask.running.queue.leases.waiting == 0)
    ask("ann", "DELETE", f"/leases/{first}")
    assert ask("ann", "GET", "/device").json()["leases"] == 0


async def test_an_end_that_cannot_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "DATABASE", Backoff(0.01, 0.01))
    settings = ServiceSettings(leases=LeaseSettings(total_seconds=HOUR))
    async with running(tmp_path, settings) as queue:
        lease = await acquire(queue)
        jobs = [await submit(queue, lease, key) for key in "ab"]
        failed: Future[Lease] = Future()
        failed.set_exception(sqlite3.OperationalError("database is locked"))
        close, fails = queue.store.leases.close, [failed, failed]
        monkeypatch.setattr(
            *(queue.store.leases, "close"),
            lambda *asked: fails.pop() if fails else close(*asked),
        )
        pass_time(queue, lease)
        await until(lambda: len(fails) < 2)
        with pytest.raises(Refused):
            await submit(queue, lease, "c")
        await until(lambda: not held(queue, lease))
        assert ended(queue, lease) == "its time is over"
        for job in jobs:
            over = await queue.wait(ADMIN, job.id, SECONDS)
            assert over.state == "Cancelled"
        await acquire(queue)


async def test_a_release_is_answered_while_the_disk_fails(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "DATABASE", Backoff(0.01, 0.01))
    monkeypatch.setattr(leases, "RELEASE_SECONDS", 0.05)
    lease = await acquire(queue)
    failed: Future[Lease] = Future()
    failed.set_exception(sqlite3.OperationalError("disk I/O error"))
    with monkeypatch.context() as patch:
        patch.setattr(queue.store.leases, "close", lambda *_: failed)
        with pytest.raises(Refused) as refused:
            await queue.leases.release(ANN, lease.id)
        assert (refused.value.status, refused.value.field) == (503, None)
        assert "not on disk yet" in refused.value.detail
        with pytest.raises(Refused):
            await submit(queue, lease, "a")
    # it ends as soon as it can, whether or not anybody asks again
    await until(lambda: not held(queue, lease))
    assert (await queue.leases.release(ANN, lease.id)).reason == "released"


async def test_the_same_lease_is_told_when_it_is_on_disk(queue: JobQueue) -> None:
    first = asyncio.create_task(acquire(queue, key="a"))
    await asyncio.sleep(0)  # it is granted, and on its way to the disk
    assert queue.leases.held
    same = await acquire(queue, key="a")
    assert queue.store.leases.get(same.id) == same
    assert await first == same


async def test_a_lease_that_cannot_be_written_is_nobodys(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: Future[None] = Future()
    with monkeypatch.context() as patch:
        patch.setattr(queue.store.leases, "add", lambda _: written)
        first = asyncio.create_task(acquire(queue, key="a"))
        await until(lambda: bool(queue.leases.held))
        second = asyncio.create_task(acquire(queue, key="a"))
        finished, _ = await asyncio.wait({second}, timeout=0.05)
        assert not finished
    written.set_exception(sqlite3.OperationalError("database is locked"))
    with pytest.raises(sqlite3.OperationalError):
        await first
    lease = await second
    assert queue.store.leases.held() == [lease]


async def test_a_request_cancelled_as_it_is_granted_holds_nothing(
    queue: JobQueue,
) -> None:
    first = await acquire(queue)
    waiting = asyncio.create_task(acquire(queue, 5))
    await until(lambda: queue.leases.waiting == 1)
    queue.vqpus.resize(2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: queue.leases.held == [first])


async def test_a_lease_of_two_requests_outlives_the_client_of_one(
    queue: JobQueue,
) -> None:
    await acquire(queue)
    request, gone = LeaseRequest(key="k"), asyncio.Event()
    left = asyncio.create_task(queue.leases.acquire(ANN, request, 5, gone=gone))
    stays = asyncio.create_task(queue.leases.acquire(ANN, request, 5))
    await until(lambda: queue.leases.waiting == 2)
    queue.vqpus.resize(2)
    gone.set()
    assert queue.leases.is_active((await stays).id)
    assert await left == await stays
    assert queue.leases.is_active((await stays).id)


async def test_a_grant_is_answered_while_the_service_stops(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_lease, written = queue.store.leases.add, Future[None]()
    monkeypatch.setattr(queue.store.leases, "add", lambda _: written)
    granted = asyncio.create_task(acquire(queue))
    await until(lambda: bool(queue.leases.held))
    queue.vqpus.stop()
    written.set_result(add_lease(queue.leases.held[0]).result())
    async with asyncio.timeout(SECONDS):
        lease = await granted
    assert queue.store.leases.held() == [lease]
    with pytest.raises(Refused) as refused:
        await acquire(queue, 5)
    assert refused.value.status == 503


async def test_a_lease_that_nobody_knows_cannot_end(queue: JobQueue) -> None:
    with pytest.raises(Refused) as refused:
        await queue.leases.end("unknown", RELEASED)
    assert refused.value.status == 404

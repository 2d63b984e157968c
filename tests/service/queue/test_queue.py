"""Who runs when: classes, pre-emption, limits, users, the operator's switch."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from dimod import BinaryQuadraticModel, SampleSet

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Result
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.computation import Computation
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    JobClass,
    Lease,
    LeaseRequest,
    Size,
    Submission,
)
from sf_quantum.service.domain.reasons import CANCELLED, RELEASED
from sf_quantum.service.domain.settings import (
    ClassLimits,
    ClassSettings,
    PolicyChoice,
    ServiceSettings,
    UserLimits,
)
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.jobs import worker
from sf_quantum.service.queue.jobs.job_states import LiveJob
from sf_quantum.service.queue.leases import live_leases as leases
from sf_quantum.service.scheduling.held import HeldLeases
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies.classes import Classes
from sf_quantum.service.scheduling.policies.fair_share import FairShare
from sf_quantum.service.scheduling.work import PendingJob
from sf_quantum.service.store.reports.usage import recent_use
from sf_quantum.service.store.store import Store
from tests.support.service import example_bqm, problem, running_queue
from tests.support.waiting import SECONDS
from tests.support.waiting import until_async as until

pytestmark = pytest.mark.devices("sfq", always=["sfq"])

ANN, BOB = Identity("ann", admin=False), Identity("bob", admin=False)
ADMIN = Identity("root", admin=True, root=True)
SETTINGS = ServiceSettings(vqpus=20)
# those that users may ask for
CLASSES: tuple[JobClass, ...] = ("production", "test", "development")
Run = Callable[..., Awaitable[JobQueue]]


class Gate:
    """Runs each job until it is let through, and remembers who came when."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.through: set[str] = set()
        self.all = False

    def check(self, content: JSON, *, qubits: int) -> Size:
        if content == {}:
            raise FieldError("problem", "empty")
        return Size()

    def run(self, computation: Computation, interrupted: Callable[[], bool]) -> Result:
        name = str(json.loads(computation.payload)["info"]["name"])
        self.order.append(name)
        while not (self.heeds(interrupted) or self.all or name in self.through):
            time.sleep(0.001)
        if name == "breaks":
            raise LookupError("what no device should do")
        return Result(json.dumps({**_samples(computation), **self.result(name)}))

    def heeds(self, interrupted: Callable[[], bool]) -> bool:
        return interrupted()

    def result(self, name: str) -> dict[str, JSON]:
        """Return what the result has besides its samples."""
        return {}


def _samples(computation: Computation) -> dict[str, JSON]:
    """Return reads of one state; of a vendor, others would be turned down."""
    model = BinaryQuadraticModel.from_serializable(json.loads(computation.payload))
    state = dict.fromkeys(model.variables, min(model.vartype.value))
    reads = [state] * (computation.parameters.get("num_reads") or 1)
    answer: SampleSet = SampleSet.from_samples_bqm(reads, model)  # type: ignore[no-untyped-call]
    return dict(answer.to_serializable())  # type: ignore[no-untyped-call]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may be slow to let a job go."""
    monkeypatch.setattr(leases, "RELEASE_SECONDS", SECONDS)
    monkeypatch.setattr(worker, "INTERRUPT_SECONDS", SECONDS)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def running(
    path: Path, device: EmulatedDevice, settings: ServiceSettings = SETTINGS
) -> AbstractAsyncContextManager[JobQueue]:
    return running_queue(path, device, settings)


@pytest.fixture
def device(gate: Gate) -> EmulatedDevice:
    return EmulatedDevice(time_scale=0, runners={"problem": gate})


@pytest.fixture
async def queue(tmp_path: Path, device: EmulatedDevice) -> AsyncIterator[JobQueue]:
    async with running(tmp_path, device) as queue:
        yield queue


async def lease(
    queue: JobQueue, job_class: JobClass = "test", who: Identity = ANN
) -> str:
    request = LeaseRequest(job_class=job_class)
    return (await queue.leases.acquire(who, request)).id


async def submit(
    queue: JobQueue, lease_id: str, name: str, shots: int = 1, who: Identity = ANN
) -> Job:
    asked = Submission("problem", problem(name), {"num_reads": shots}, name)
    return (await queue.submit(who, lease_id, asked))[0]


def state(queue: JobQueue, job: Job) -> str:
    return queue.find(ADMIN, job.id).state


async def over(queue: JobQueue, job: Job) -> Job:
    found = await queue.wait(ADMIN, job.id, SECONDS)
    assert found.final
    return found


@pytest.mark.none_ahead
async def test_classes_in_order_and_each_in_its_own(
    queue: JobQueue, gate: Gate
) -> None:
    leases = {name: await lease(queue, name) for name in CLASSES}
    first = await submit(queue, leases["production"], "first")
    await until(lambda: gate.order == ["first"])
    names = [f"{name}{n}" for n in range(3) for name in reversed(CLASSES)]
    jobs = [await submit(queue, leases[_class(name)], name) for name in names]
    ordered = [f"{name}{n}" for name in CLASSES for n in range(3)]
    positions = {}
    for name, job in zip(names, jobs, strict=True):
        forecast = queue.forecasts.of(job)
        assert forecast is not None
        positions[name] = forecast.position
    assert sorted(positions, key=lambda name: positions[name]) == ordered
    assert sorted(positions.values()) == [*range(1, 10)]
    gate.all = True
    for job in [first, *jobs]:
        assert (await over(queue, job)).state == "Completed"
    assert gate.order == ["first", *ordered]


def _class(name: str) -> JobClass:
    return next(known for known in CLASSES if name.startswith(known))


@pytest.fixture
async def low(queue: JobQueue, gate: Gate) -> Job:
    """A job of class test that runs."""
    job = await submit(queue, await lease(queue), "low")
    await until(lambda: gate.order == ["low"])
    return job


@pytest.fixture
async def production(queue: JobQueue) -> str:
    """A lease of class production."""
    return await lease(queue, "production")


async def test_production_preempts_and_what_ran_comes_back_first(
    queue: JobQueue, gate: Gate, low: Job, production: str
) -> None:
    behind = await submit(queue, low.lease, "behind")
    high = await submit(queue, production, "high")
    await until(lambda: gate.order == ["low", "high"])
    again = queue.find(ANN, low.id)
    assert (again.state, again.attempt) == ("Queued", 2)
    assert again.note == "pre-empted by a production job during attempt 1"
    forecasts = [queue.forecasts.of(job) for job in (high, low, behind)]
    assert [forecast and forecast.position for forecast in forecasts] == [0, 1, 2]
    gate.all = True
    for job in (low, behind, high):
        await over(queue, job)
    assert gate.order == ["low", "high", "low", "behind"]
    assert queue.find(ANN, low.id).note == again.note


@pytest.mark.none_ahead
async def test_a_lost_attempt_is_not_charged(tmp_path: Path, gate: Gate) -> None:
    settings = ServiceSettings(vqpus=20, policy=PolicyChoice("fair-share"))
    # an interrupted attempt has used all of the modelled time
    device = EmulatedDevice(
        time_scale=1e-9, runners={"problem": gate}, cost_per_second=2.0
    )
    async with running(tmp_path, device, settings) as queue:
        low = await submit(queue, await lease(queue), "low", shots=1000)
        await until(lambda: gate.order == ["low"])
        high = await submit(
            queue, await lease(queue, "production", BOB), "high", who=BOB
        )
        await until(lambda: gate.order == ["low", "high"])
        assert isinstance(queue.policy, FairShare)
        used = queue.policy.usage
        once = device.cost({"num_reads": 1000}).qpu_seconds
        # but for what it has decayed meanwhile
        assert used.of((("user", "ann"), None)) == pytest.approx(0.0, abs=once / 100)
        gate.all = True
        jobs = [await over(queue, job) for job in (low, high)]
        assert jobs[0].qpu_seconds == jobs[0].lost_qpu_seconds == once
        assert jobs[0].cost == 2.0 * once
        assert (jobs[1].attempt, jobs[1].lost_qpu_seconds) == (1, 0.0)
        # what the next service would charge
        assert [one.qpu_seconds for one in recent_use(queue.store, 0.0)] == [
            once,
            jobs[1].qpu_seconds,
        ]
        assert used.of((("user", "ann"), None)) == pytest.approx(once, rel=1e-2)


@pytest.mark.none_ahead
async def test_nobody_else_preempts(queue: JobQueue, gate: Gate) -> None:
    leases = {name: await lease(queue, name) for name in CLASSES}
    running = await submit(queue, leases["development"], "development")
    await until(lambda: state(queue, running) == "Running")
    await until(lambda: gate.order == ["development"])
    waiting = await submit(queue, leases["test"], "test")
    assert [state(queue, job) for job in (running, waiting)] == ["Running", "Queued"]
    first = await submit(queue, leases["production"], "first")
    await until(lambda: gate.order[-1:] == ["first"])
    second = await submit(queue, leases["production"], "second")
    gate.all = True
    jobs = [await over(queue, job) for job in (running, waiting, first, second)]
    # the first of production is the only one that interrupted another
    assert [job.attempt for job in jobs] == [2, 1, 1, 1]
    assert gate.order[:3] == ["development", "first", "second"]


async def test_cancelled_while_preempted_is_cancelled(
    queue: JobQueue, gate: Gate, low: Job, production: str
) -> None:
    _, cancelled = await asyncio.gather(
        submit(queue, production, "high"), queue.cancel(ANN, low.id)
    )
    assert cancelled.state == "Cancelled"
    await until(lambda: gate.order == ["low", "high"])


async def test_released_while_preempted_is_cancelled(
    queue: JobQueue, low: Job, production: str
) -> None:
    await asyncio.gather(
        submit(queue, production, "high"), queue.leases.release(ANN, low.lease)
    )
    ended = await over(queue, low)
    assert (ended.state, ended.note) == (
        "Cancelled",
        "cancelled: its lease was released",
    )


async def test_the_waiting_part_of_a_job_stops_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, EmulatedDevice(technology="neutral-atom")) as queue:
        id_ = await lease(queue)
        asked = Submission("problem", example_bqm(), {"num_reads": 1}, "a")
        job, _ = await queue.submit(ANN, id_, asked)
        await until(lambda: state(queue, job) == "Running")
        cancelled = await queue.cancel(ANN, job.id)
        assert cancelled.state == "Cancelled"
        # it takes minutes, of which it has used next to none
        assert cancelled.qpu_seconds < queue.device.cost({}).qpu_seconds / 2


async def test_what_breaks_fails_and_the_next_one_runs(
    queue: JobQueue, gate: Gate
) -> None:
    gate.all = True
    id_ = await lease(queue)
    bad, good = [await submit(queue, id_, name) for name in ("breaks", "good")]
    failed = await over(queue, bad)
    assert failed.state == "Failed"
    assert failed.note == "LookupError: what no device should do"
    assert (await over(queue, good)).state == "Completed"
    with pytest.raises(Refused) as refused:
        await queue.reader.result(ANN, bad.id)
    assert refused.value.status == 409


async def test_the_key_is_the_users_whatever_becomes_of_the_lease(
    queue: JobQueue, gate: Gate
) -> None:
    first = await lease(queue)
    running = await submit(queue, first, "running")
    waiting = await submit(queue, first, "waiting")
    second = await lease(queue)
    for job in (running, waiting):
        asked = Submission("problem", problem(job.key), {"num_reads": 1}, job.key)
        moved, new = await queue.submit(ANN, second, asked)
        assert (moved.id, moved.lease, new) == (job.id, second, False)
    await queue.leases.release(ANN, first)
    await until(lambda: state(queue, running) == "Running")
    assert state(queue, waiting) == "Queued"
    gate.all = True
    for job in (running, waiting):
        assert (await over(queue, job)).state == "Completed"
    await queue.leases.release(ANN, second)
    third = await lease(queue)
    found = await submit(queue, third, "running")
    assert (found.id, found.state, found.lease) == (running.id, "Completed", third)
    other = await submit(queue, await lease(queue, who=BOB), "running", who=BOB)
    assert other.id != running.id


@pytest.mark.parametrize(
    ("limits", "shots", "status", "field"),
    [
        (ClassLimits(shots=10), 11, 422, "parameters.num_reads"),
        (ClassLimits(seconds=0.0184), 11, 422, "parameters.num_reads"),
        (ClassLimits(jobs=2), 1, 429, "X-SFQ-Lease"),
    ],
)
async def test_limits_of_a_class(
    tmp_path: Path,
    device: EmulatedDevice,
    limits: ClassLimits,
    shots: int,
    status: int,
    field: str,
) -> None:
    settings = ServiceSettings(vqpus=9, classes=ClassSettings(limits={"test": limits}))
    async with running(tmp_path, device, settings) as queue:
        id_ = await lease(queue)
        jobs = [await submit(queue, id_, name, 1) for name in "ab"]
        with pytest.raises(Refused) as refused:
            await submit(queue, id_, "c", shots)
        assert (refused.value.status, refused.value.field) == (status, field)
        # another class, another user, and room again
        await submit(queue, await lease(queue, "development"), "d", 11)
        bobs = await lease(queue, who=BOB)
        await submit(queue, bobs, "a", 1, who=BOB)
        await queue.cancel(ANN, jobs[1].id)
        await submit(queue, id_, "e", 1)


async def test_limit_of_a_user_holds_for_many_at_once(
    tmp_path: Path, device: EmulatedDevice
) -> None:
    async with running(
        tmp_path, device, ServiceSettings(vqpus=3, limits=UserLimits(jobs=5))
    ) as queue:
        leases = [await lease(queue, name) for name in ("test", "development")]
        outcomes = await asyncio.gather(
            *(submit(queue, leases[n % 2], str(n)) for n in range(12)),
            return_exceptions=True,
        )
        refused = [one for one in outcomes if isinstance(one, Refused)]
        assert [error.status for error in refused] == 7 * [429]
        assert queue.length == 5


async def test_what_cannot_run_is_not_queued(queue: JobQueue) -> None:
    id_ = await lease(queue)
    with pytest.raises(Refused) as refused:
        await queue.submit(ANN, id_, Submission("problem", {}, {}, "a"))
    assert (refused.value.status, refused.value.field) == (422, "problem")
    with pytest.raises(Refused) as refused:
        await queue.submit(ANN, id_, Submission("circuit", "x", {}, "a"))
    assert refused.value.detail == "this device runs problem only"
    assert queue.length == 0


async def test_users_see_their_own(queue: JobQueue) -> None:
    anns, bobs = await lease(queue), await lease(queue, who=BOB)
    mine = await submit(queue, anns, "a")
    theirs = await submit(queue, bobs, "b", who=BOB)
    for look in (theirs.id, theirs.number):
        with pytest.raises(Refused) as refused:
            queue.find(ANN, look)
        assert refused.value.status == 404
    for call in (queue.cancel(ANN, theirs.id), queue.wait(ANN, theirs.id, 1)):
        with pytest.raises(Refused) as refused:
            await call
        assert refused.value.status == 404
    with pytest.raises(Refused) as refused:
        await queue.reader.page(ANN, list, lease=bobs)
    assert refused.value.status == 404
    with pytest.raises(Refused) as refused:
        await submit(queue, bobs, "c")
    assert refused.value.status == 403
    assert [job.id for job in queue.reader.latest(ANN)] == [mine.id]
    assert [job.id for job in queue.reader.latest(ADMIN)] == [mine.id, theirs.id]
    assert queue.find(ADMIN, theirs.number) == queue.find(BOB, theirs.id)
    assert (await queue.cancel(ADMIN, theirs.id)).state == "Cancelled"
    # an admin works under anybody's lease, in that user's name
    assert (await submit(queue, bobs, "d", who=ADMIN)).user == "bob"


@pytest.mark.none_ahead
async def test_draining_lets_the_running_job_end(queue: JobQueue, gate: Gate) -> None:
    id_ = await lease(queue)
    running, waiting = [await submit(queue, id_, name) for name in "ab"]
    await until(lambda: gate.order == ["a"])
    await queue.availability.set_status("draining", "back at noon")
    for refused_call in (submit(queue, id_, "c"), lease(queue)):
        with pytest.raises(Refused) as refused:
            await refused_call
        assert refused.value.status == 503
        assert refused.value.detail == "the QPU is being drained: back at noon"
    # what is known is still told
    assert (await submit(queue, id_, "a")).id == running.id
    gate.all = True
    assert (await over(queue, running)).state == "Completed"
    assert state(queue, waiting) == "Queued"
    forecast = queue.forecasts.of(waiting)
    assert forecast is not None
    assert (forecast.position, forecast.eta_seconds) == (0, None)
    assert gate.order == ["a"]
    await queue.availability.set_status("open")
    assert (await over(queue, waiting)).state == "Completed"


async def test_closing_puts_the_running_job_back(
    tmp_path: Path, device: EmulatedDevice, gate: Gate
) -> None:
    async with running(tmp_path, device) as queue:
        job = await submit(queue, await lease(queue, "production"), "a")
        await until(lambda: state(queue, job) == "Running" and gate.order == ["a"])
        await queue.availability.set_status("closed")
        await until(lambda: state(queue, job) == "Queued")
        assert queue.availability.reason == "the QPU is closed"
    # also for a service that is started again
    async with running(tmp_path, device) as queue:
        assert state(queue, job) == "Queued"
        gate.all = True
        assert gate.order == ["a"]
        await queue.availability.set_status("open")
        done = await over(queue, job)
        assert (done.state, done.attempt) == ("Completed", 2)
        assert done.note == "interrupted: the QPU was closed during attempt 1"


@pytest.mark.none_ahead
async def test_stopping_with_patience_lets_the_running_job_end(
    tmp_path: Path, device: EmulatedDevice, gate: Gate
) -> None:
    async with running(tmp_path, device) as queue:
        id_ = await lease(queue)
        first, second = [await submit(queue, id_, name) for name in "ab"]
        await until(lambda: gate.order == ["a"])
        waiting = asyncio.create_task(queue.wait(ANN, first.id, SECONDS))
        queue.request_stop(60)
        await until(lambda: queue.failure is not None)
        with pytest.raises(Refused) as refused:
            await submit(queue, id_, "c")
        assert refused.value.status == 503
        gate.all = True
        await asyncio.wait_for(queue.finished(), 60)
        assert (await waiting).state == "Completed"
        assert state(queue, second) == "Queued"


# elsewhere, the job on the device goes on over a restart
@pytest.mark.devices
async def test_asked_again_it_stops_without_patience(
    tmp_path: Path, device: EmulatedDevice, gate: Gate
) -> None:
    async with running(tmp_path, device) as queue:
        job = await submit(queue, await lease(queue), "a")
        await until(lambda: gate.order == ["a"])
        queue.request_stop(3600)
        await until(lambda: queue.failure is not None)
        queue.request_stop()
        # the job, whose gate is shut, runs on no more
        await asyncio.wait_for(queue.finished(), 60)
        assert state(queue, job) == "Queued"


# elsewhere, the job on the device goes on over a restart
@pytest.mark.devices
async def test_order_and_shares_survive_a_restart(
    tmp_path: Path, device: EmulatedDevice, gate: Gate
) -> None:
    settings = ServiceSettings(vqpus=3, limits=UserLimits(jobs=5))
    async with running(tmp_path, device, settings) as queue:
        leases = {name: await lease(queue, name) for name in CLASSES}
        for name in ("development0", "test0", "production0", "test1", "production1"):
            await submit(queue, leases[_class(name)], name)
        await until(lambda: "production0" in gate.order)
    gate.order.clear()
    async with running(tmp_path, device, settings) as queue:
        with pytest.raises(Refused) as refused:
            await submit(queue, leases["test"], "more")
        assert refused.value.status == 429
        gate.all = True
        jobs = queue.reader.latest(ADMIN)
        for job in jobs:
            await over(queue, job)
        expected = ["production0", "production1", "test0", "test1", "development0"]
        assert gate.order == expected
        # of those that ran: the first one was pre-empted, the third one was stopped
        assert {job.key for job in jobs if job.note} >= {"production0"}


async def test_no_job_precedes_its_lease(queue: JobQueue) -> None:
    acquiring = asyncio.create_task(lease(queue))
    for _ in range(100):
        await asyncio.sleep(0)
        if held := queue.leases.held:
            break
    with pytest.raises(Refused) as refused:
        await submit(queue, held[0].id, "a")
    assert refused.value.status == 403
    await submit(queue, await acquiring, "a")


async def test_limit_of_the_payloads_of_a_user(
    tmp_path: Path, device: EmulatedDevice
) -> None:
    size = len(Submission("problem", problem("a"), {}, "a").payload)
    limits = UserLimits(pending_mib=2.5 * size / 2**20)
    settings = ServiceSettings(vqpus=3, limits=limits)
    async with running(tmp_path, device, settings) as queue:
        held = await lease(queue)
        first = await submit(queue, held, "a")
        await submit(queue, held, "b")
    # those of the previous service count as well
    async with running(tmp_path, device, settings) as queue:
        with pytest.raises(Refused) as refused:
            await submit(queue, held, "c")
        assert refused.value.status == 429
        assert "MiB" in refused.value.detail
        bobs = await lease(queue, who=BOB)
        await submit(queue, bobs, "c", who=BOB)
        await queue.cancel(ANN, first.id)
        await submit(queue, held, "c")
        with pytest.raises(Refused) as refused:
            await submit(queue, held, "d" * 3 * size)
        assert refused.value.status == 413


# elsewhere, the job on the device goes on over a restart
@pytest.mark.devices
async def test_while_nothing_runs_nobody_asks_who_would_preempt_it(
    tmp_path: Path, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, device) as queue:
        held = await lease(queue)
        for name in "abc":
            await submit(queue, held, name)
        await until(lambda: queue.running is not None)
    asked = list[int]()

    def first(line: PendingJobs) -> PendingJob | None:
        asked.append(len(line))
        return None

    monkeypatch.setattr(PendingJobs, "first", first)
    store = Store(tmp_path / "service.sqlite")
    queue = JobQueue(store, device, SETTINGS)
    # with maintenance ahead each question looks at many jobs
    queue.start()
    assert (queue.length, asked) == (3, [])
    queue.request_stop()
    await asyncio.sleep(0)
    await queue.stopped()
    store.close()


async def test_jobs_that_ended_are_forgotten_after_a_while(
    tmp_path: Path, device: EmulatedDevice, gate: Gate
) -> None:
    gate.all = True
    async with running(tmp_path, device) as queue:
        job = await over(queue, await submit(queue, await lease(queue), "a"))
    settings = ServiceSettings(retention_seconds=1e-6)
    async with running(tmp_path, device, settings) as queue:
        await until(lambda: queue.store.jobs.get(job.id) is None)


def test_what_is_ahead_of_a_job_among_ten_thousand() -> None:
    line = PendingJobs(Classes())
    entries = [
        PendingJob(n, str(n), "u", f"l{n % 7}", CLASSES[n % 3], "problem", 0.5)
        for n in range(10_000)
    ]
    for entry in entries:
        line.add(entry)
    work_by_kind, _ = line.work_ahead(entries[3001], HeldLeases())
    assert work_by_kind["problem"].jobs == 3334 + 1000
    assert work_by_kind["problem"].seconds == pytest.approx(0.5 * 4334)
    assert line.of_lease("l1")[:2] == [1, 8]
    popped = [line.pop() for _ in range(len(line))]
    ranks = [(CLASSES.index(one.job_class), one.number) for one in popped if one]
    assert ranks == sorted(ranks)
    assert line.pop() is None


async def test_a_device_that_does_not_let_go_does_not_keep_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Gate):
        def heeds(self, _: Callable[[], bool]) -> bool:
            return False

    gate = Stubborn()
    device = EmulatedDevice(time_scale=0, runners={"problem": gate})
    monkeypatch.setattr("sf_quantum.service.queue.job_queue.STOP_SECONDS", 0.05)
    monkeypatch.setattr(worker, "INTERRUPT_SECONDS", 0.05)
    async with running(tmp_path, device) as queue:
        job = await submit(queue, await lease(queue), "a")
        await until(lambda: gate.order == ["a"])
        await until(lambda: state(queue, job) == "Running")
        assert (await queue.cancel(ANN, job.id)).state == "Running"
    gate.all = True
    async with running(tmp_path, device) as queue:
        again = await over(queue, job)
        assert (again.state, again.note) == ("Cancelled", "cancelled")
        assert gate.order == ["a"]


@pytest.fixture
async def before(queue: JobQueue, gate: Gate) -> Job:
    """A job that runs."""
    job = await submit(queue, await lease(queue), "before")
    await until(lambda: gate.order == ["before"])
    return job


@pytest.fixture
async def waiting(queue: JobQueue, before: Job) -> Job:
    """A job that waits behind it, under the same lease."""
    return await submit(queue, before.lease, "job")


async def _moving(queue: JobQueue, lease_id: str, name: str) -> asyncio.Task[Job]:
    """Let a job be on its way to another lease."""
    moving = asyncio.create_task(submit(queue, lease_id, name))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return moving


async def _never_ran(queue: JobQueue, gate: Gate, job: Job) -> None:
    """Let all that waits run, and find that a job was not among it."""
    gate.all = True
    await over(queue, await submit(queue, await lease(queue), "after"))
    assert gate.order == ["before", "after"]
    assert state(queue, job) == "Cancelled"
    assert not queue.jobs.counts._jobs


@pytest.mark.none_ahead
async def test_cancelled_while_it_moves_it_never_runs(
    queue: JobQueue, gate: Gate, waiting: Job
) -> None:
    moving = await _moving(queue, await lease(queue), "job")
    assert (await queue.cancel(ANN, waiting.id)).state == "Cancelled"
    assert (await moving).state == "Cancelled"
    await _never_ran(queue, gate, waiting)


async def test_a_moved_jobs_use_is_expected_of_its_new_lease(
    queue: JobQueue, waiting: Job
) -> None:
    held, second = queue.jobs.estimator.held._leases, await lease(queue)
    both = held[waiting.lease].submitted
    await submit(queue, second, "job")
    submitted = held[waiting.lease].submitted, held[second].submitted
    assert submitted == pytest.approx((both / 2, both / 2))
    await queue.cancel(ANN, waiting.id)
    assert held[second].submitted == pytest.approx(0.0)


@pytest.mark.none_ahead
async def test_a_job_in_the_line_that_is_over_is_not_started(
    queue: JobQueue, gate: Gate, waiting: Job
) -> None:
    queue.store.progress.cancel_waiting(waiting.number, "behind its back").result()
    await _never_ran(queue, gate, waiting)


@pytest.mark.parametrize("name", ["job", "before"])
async def test_released_while_a_job_moves_to_it_it_takes_the_job_along(
    queue: JobQueue, gate: Gate, before: Job, waiting: Job, name: str
) -> None:
    second, jobs = await lease(queue), {"before": before, "job": waiting}
    moving = await _moving(queue, second, name)
    await queue.leases.release(ANN, second)
    moved = await moving
    assert (moved.state, moved.note) == (
        "Cancelled",
        "cancelled: its lease was released",
    )
    gate.all = True
    await over(queue, await submit(queue, before.lease, "after"))
    left = ({"before", "job"} - {name}).pop()
    assert state(queue, jobs[left]) == "Completed"
    assert state(queue, jobs[name]) == "Cancelled"
    assert ("job" in gate.order) == (name == "before")
    assert not queue.jobs.counts._jobs


async def test_a_job_that_is_being_cancelled_ends_before_it_moves(
    tmp_path: Path,
) -> None:
    read = threading.Event()

    class Slow(Gate):
        def result(self, name: str) -> dict[str, JSON]:
            read.wait(SECONDS)  # the read under way
            return super().result(name)

    gate = Slow()
    device = EmulatedDevice(time_scale=0, runners={"problem": gate})
    async with running(tmp_path, device, ServiceSettings(vqpus=1)) as queue:
        first = await lease(queue)
        job = await submit(queue, first, "job")
        await until(lambda: gate.order == ["job"])
        releasing = asyncio.create_task(queue.leases.release(ANN, first))
        await until(lambda: not queue.leases.held)
        second = await lease(queue)
        moving = asyncio.create_task(submit(queue, second, "job"))
        finished, _ = await asyncio.wait({moving}, timeout=0.05)
        assert not finished
        read.set()
        found = await moving
        assert (found.id, found.state) == (job.id, "Cancelled")
        await releasing
        assert not queue.jobs.counts._jobs


@pytest.mark.none_ahead
async def test_a_cancel_that_cannot_be_written_keeps_the_job_queued(
    queue: JobQueue, gate: Gate, waiting: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(queue.store.progress, "cancel_waiting", lambda *_: locked())
        with pytest.raises(sqlite3.OperationalError):
            await queue.cancel(ANN, waiting.id)
    assert queue.forecasts.of(waiting) is not None
    assert (await queue.cancel(ANN, waiting.id)).state == "Cancelled"
    await _never_ran(queue, gate, waiting)


@pytest.mark.parametrize("name", ["start", "finish"])
async def test_a_write_that_fails_for_a_moment_is_tried_again(
    queue: JobQueue, gate: Gate, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    gate.all = True
    write, fails = getattr(queue.store.progress, name), [locked(), locked()]
    monkeypatch.setattr(
        *(queue.store.progress, name),
        lambda *a, **k: fails.pop() if fails else write(*a, **k),
    )
    job = await submit(queue, await lease(queue), "job")
    assert (await over(queue, job)).state == "Completed"
    assert (fails, gate.order, queue.failure) == ([], ["job"], None)


async def test_a_result_that_is_not_json_fails_its_job_only(tmp_path: Path) -> None:
    class Odd(Gate):
        def result(self, _: str) -> dict[str, JSON]:
            return {"odd": object()}  # type: ignore[dict-item]

    gate = Odd()
    gate.all = True
    device = EmulatedDevice(time_scale=0, runners={"problem": gate})
    async with running(tmp_path, device) as queue:
        job = await submit(queue, await lease(queue), "job")
        failed = await over(queue, job)
        assert failed.state == "Failed"
        assert (failed.note or "").startswith("TypeError")
        assert queue.failure is None


async def test_a_cancellation_during_a_submission_is_final(
    queue: JobQueue, before: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, added = queue.store, Future[tuple[Job, bool]]()
    on_disk = list[tuple[Job, bool]]()
    add_job, cancel_waiting = store.jobs.add, store.progress.cancel_waiting

    def add(
        lease: Lease,
        job: Submission,
        seconds: float,
        compute: float,
        *,
        is_stored: bool,
    ) -> Future[tuple[Job, bool]]:
        on_disk.append(
            add_job(lease, job, seconds, compute, is_stored=is_stored).result()
        )
        return added

    def cancel(number: int, note: str) -> Future[Job]:
        cancelled = cancel_waiting(number, note)
        cancelled.result()
        if not added.done():
            added.set_result(on_disk[0])
        return cancelled

    monkeypatch.setattr(store.jobs, "add", add)
    monkeypatch.setattr(store.progress, "cancel_waiting", cancel)
    submitting = asyncio.create_task(submit(queue, before.lease, "job"))
    await until(lambda: bool(on_disk))
    job = on_disk[0][0]
    assert (await queue.cancel(ANN, job.id)).state == "Cancelled"
    assert (await submitting).id == job.id
    assert queue.length == 1
    assert queue.forecasts.of(job) is None


@pytest.mark.none_ahead
async def test_cancelled_twice_while_its_new_lease_ends(
    queue: JobQueue, waiting: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, second = queue.store, await lease(queue)
    added, closed = Future[tuple[Job, bool]](), Future[Lease]()
    on_disk, writes = list[tuple[Job, bool]](), list[Future[Job]]()
    add_job, close_lease = store.jobs.add, store.leases.close

    def add(
        lease: Lease,
        job: Submission,
        seconds: float,
        compute: float,
        *,
        is_stored: bool,
    ) -> Future[tuple[Job, bool]]:
        on_disk.append(
            add_job(lease, job, seconds, compute, is_stored=is_stored).result()
        )
        return added

    def cancel(number: int, note: str) -> Future[Job]:
        writes.append(Future())
        return writes[-1]

    with monkeypatch.context() as patch:
        patch.setattr(store.jobs, "add", add)
        patch.setattr(store.progress, "cancel_waiting", cancel)
        patch.setattr(store.leases, "close", lambda *_: closed)
        moving = asyncio.create_task(submit(queue, second, "job"))
        await until(lambda: bool(on_disk))
        releasing = asyncio.create_task(queue.leases.release(ANN, second))
        await until(lambda: not queue.leases.is_active(second))
        added.set_result(on_disk[0])
        await until(lambda: bool(writes))
        cancelling = asyncio.create_task(queue.cancel(ANN, waiting.id))
        for _ in range(5):
            await asyncio.sleep(0)
    closed.set_result(close_lease(second, RELEASED.reason, RELEASED.note).result())
    found = queue.find(ANN, waiting.id)
    for write in writes:
        write.set_result(found)
    await releasing
    assert (await cancelling).state == (await moving).state == "Cancelled"
    assert queue.length == 1


async def test_cancelled_twice_while_the_service_stops(
    queue: JobQueue, waiting: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Future[Job]()
    with monkeypatch.context() as patch:
        patch.setattr(queue.store.progress, "cancel_waiting", lambda *_: write)
        first = asyncio.create_task(queue.cancel(ANN, waiting.id))
        await until(lambda: queue.forecasts.of(waiting) is None)
    queue.request_stop()
    await queue.finished()
    rounds = list[int]()
    get = dict[int, LiveJob].get

    class Bounded(dict[int, LiveJob]):
        """Ends a loop that would keep the event loop from running."""

        def get(self, number: int) -> LiveJob | None:  # type: ignore[override]
            rounds.append(number)
            assert len(rounds) < 100
            return get(self, number)

    monkeypatch.setattr(queue.jobs, "_jobs", Bounded(queue.jobs._jobs))
    second = asyncio.create_task(queue.cancel(ANN, waiting.id))
    for _ in range(5):
        await asyncio.sleep(0)
    done = queue.store.progress.cancel_waiting(
        waiting.number, CANCELLED.note()
    ).result()
    write.set_result(done)
    assert (await first).state == (await second).state == "Cancelled"


@pytest.mark.none_ahead
async def test_a_quality_job_whose_cancellation_fails_stays_pending(
    queue: JobQueue, gate: Gate, before: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = dataclasses.replace(
        queue.leases.list(ANN)[0], id="quality-1", job_class="quality", closed=1.0
    )
    asked = Submission("problem", problem("quality"), {"num_reads": 1}, "quality")
    job = await queue.submit_service_job(closed, asked)
    with monkeypatch.context() as patch:
        patch.setattr(queue.store.progress, "cancel_waiting", lambda *_: locked())
        with pytest.raises(sqlite3.OperationalError):
            await queue.cancel(ADMIN, job.id)
    assert queue.forecasts.of(job) is not None
    gate.all = True
    assert (await over(queue, job)).state == "Completed"


async def test_a_wait_for_a_job_that_is_being_written_lets_others_run(
    queue: JobQueue,
) -> None:
    held = await lease(queue)
    asked = Submission("problem", problem("job"), {}, "job")
    adding = queue.store.jobs.add(queue.leases.find(ANN, held), asked, 1.0)
    job, _ = adding.result()
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    assert not (await queue.wait(ANN, job.id, 5)).final
    assert ran.is_set()


def locked() -> Future[Job]:
    future: Future[Job] = Future()
    future.set_exception(sqlite3.OperationalError("database is locked"))
    return future

"""The state machines of jobs and leases, under any order of what moves them."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pydantic import SkipValidation

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.files import JSON
from sf_quantum.qpu.jobs import Outcome, Result, Task
from sf_quantum.service.device.emulated import EmulatedDevice
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    JobClass,
    Kind,
    Lease,
    LeaseRequest,
    Size,
    Submission,
)
from sf_quantum.service.domain.reasons import (
    RELEASED,
    Cause,
    Interruption,
    LeaseEnd,
    LeaseEndCause,
)
from sf_quantum.service.domain.settings import LeaseSettings, ServiceSettings
from sf_quantum.service.queue import leases as leases_module
from sf_quantum.service.queue import live_jobs
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.leases import LeaseState, LiveLease
from sf_quantum.service.queue.live_jobs import JobState, LiveJob
from sf_quantum.service.scheduling.work import PendingJob
from sf_quantum.service.store.store import Store
from tests.waiting import SECONDS

T = TypeVar("T")
ANN = Identity("ann", admin=False)
ADMIN = Identity("operator", admin=True, root=True)
CLASSES: tuple[JobClass, ...] = ("production", "test", "development")
VQPUS = 2
STATEFUL = settings(
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[*HealthCheck],
)


class Script:
    """What happens on a device: nothing, until an attempt is ended or is to leave."""

    def __init__(self) -> None:
        self.attempts: list[tuple[int, int]] = []
        self.current: Task | None = None
        self._outcome: Literal["completed", "failed"] | None = None
        self._stop = threading.Event()

    def run(self, task: Task, stop: threading.Event) -> Outcome:
        assert self.current is None, "two jobs on one device"
        self.attempts.append((task.number, task.attempt))
        self._outcome, self._stop, self.current = None, stop, task
        assert stop.wait(SECONDS)
        self.current = None
        if self._outcome == "completed":
            return Outcome(Result(), None, 1.0, 0.0)
        return Outcome(None, "it failed" if self._outcome else None, 0.5, 0.0)

    def end(self, outcome: Literal["completed", "failed"] | None) -> None:
        """End the attempt that is on the device, if there is one."""
        if self.current is not None:
            self._outcome = outcome
            self._stop.set()


class ScriptedDevice(EmulatedDevice):
    """A device that does what its script says."""

    script: SkipValidation[Script]

    def check(self, kind: Kind, content: JSON, parameters: object) -> Size:
        """Take anything."""
        return Size()

    def run(self, task: Task, stop: threading.Event) -> Outcome:
        """Do what the script says."""
        return self.script.run(task, stop)


class FailingStore(Store):
    """A store some of whose writes fail: as many as are to, by their names."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.failures: Counter[str] = Counter()

    def _fails(self, name: str, write: Callable[[], Future[T]]) -> Future[T]:
        if not self.failures[name]:
            return write()
        self.failures[name] -= 1
        failed: Future[T] = Future()
        failed.set_exception(sqlite3.OperationalError("database is locked"))
        return failed

    def cancel_waiting(self, number: int, note: str) -> Future[Job]:
        return self._fails(
            "cancel_waiting",
            lambda: super(FailingStore, self).cancel_waiting(number, note),
        )

    def add_lease(self, lease: Lease) -> Future[None]:
        return self._fails(
            "add_lease", lambda: super(FailingStore, self).add_lease(lease)
        )

    def close_lease(
        self,
        lease_id: str,
        reason: str,
        note: str,
        also: Callable[[sqlite3.Connection], None] | None = None,
    ) -> Future[Lease]:
        return self._fails(
            "close_lease",
            lambda: super(FailingStore, self).close_lease(lease_id, reason, note, also),
        )


class Machine(RuleBasedStateMachine):
    """A queue that can be stopped, killed and started again over its file."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(backoff, "DATABASE", Backoff(1e-6, 1e-6))
        self.tasks: list[asyncio.Task[None]] = []
        self.attempts: list[tuple[int, int]] = []
        self.errors: list[str] = []

    @initialize()
    def start(self) -> None:
        self.script = Script()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(
            lambda _, context: self.errors.append(repr(context))
        )
        self.store = FailingStore(Path(self.folder.name) / "state")
        device = ScriptedDevice(script=self.script, time_scale=0)
        lasting = LeaseSettings(idle_seconds=None)
        self.queue = JobQueue(
            self.store, device, ServiceSettings(vqpus=VQPUS, leases=lasting)
        )
        self.loop.run_until_complete(self._start())
        self.settle()

    async def _start(self) -> None:
        self.queue.start()

    def stop(self, *, kill: bool) -> None:
        """End the service, in order or as if it had been killed."""
        if not kill:
            self.loop.run_until_complete(self._stop())
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks))
        while self.script.current is not None:
            self.script.end(None)
            self.store.change(lambda _: None).result()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.store.close()
        self.attempts += self.script.attempts
        self.tasks.clear()

    async def _stop(self) -> None:
        self.queue.request_stop()
        await self.queue.finished()
        await self.queue.stopped()

    def teardown(self) -> None:
        self.stop(kill=False)
        self.folder.cleanup()
        self.patch.undo()

    def at_once(self, *works: Coroutine[None, None, None]) -> None:
        """Begin some works, none of which waits for another."""
        self.tasks += [self.loop.create_task(work) for work in works]

    def step(self, times: int) -> None:
        """Let the event loop go round a few times."""
        for _ in range(times):
            self.loop.run_until_complete(asyncio.sleep(0))

    def settle(self) -> None:
        """Let all that is under way end, but for requests that wait for a lease."""
        self.loop.run_until_complete(self._settled())
        assert self.errors == []
        for task in [task for task in self.tasks if task.done()]:
            task.result()
            self.tasks.remove(task)

    async def _settled(self) -> None:
        quiet = 0
        async with asyncio.timeout(SECONDS):
            while quiet < 5:
                await asyncio.wrap_future(self.store.change(lambda _: None))
                quiet = quiet + 1 if self._quiet() else 0

    def _quiet(self) -> bool:
        jobs, leases = self.queue.jobs, self.queue.leases
        on_device = self.script.current
        running = jobs.running
        idle = running is None and not jobs.changed.is_set() and on_device is None
        busy = (
            running is not None
            and running.state is JobState.RUNNING
            and on_device is not None
            and on_device.number == running.number
        )
        waiting = {request.granted for request in leases._waiting}
        return (
            (idle or busy)
            and all(live.state is LeaseState.HELD for live in leases._leases.values())
            and sum(not task.done() for task in self.tasks) <= len(waiting)
        )


Op = tuple[str, int, int]
OPS = st.tuples(
    st.sampled_from(
        "submit submit submit cancel release open drain close end fail_cancel".split()
    ),
    st.integers(0, 5),
    st.integers(0, 5),
)


class Jobs(Machine):
    """No job is lost, none runs twice in silence, none is in two places."""

    def __init__(self) -> None:
        super().__init__()
        # by number: jobs that were acknowledged, and how those ended that did
        self.acknowledged: set[int] = set()
        self.ended: dict[int, tuple[str, int]] = {}

    @rule(ops=st.lists(OPS, min_size=1, max_size=5), times=st.integers(0, 6))
    def act(self, ops: list[Op], times: int) -> None:
        """Do several things at once, some of which may have begun before."""
        for op in ops:
            self.at_once(self._try(op))
            self.step(times)
        self.settle()

    @rule(ops=st.lists(OPS, max_size=4), times=st.integers(0, 6), kill=st.booleans())
    def restart(self, ops: list[Op], times: int, kill: bool) -> None:
        """End the service in the midst of something, and start the next."""
        self.at_once(*(self._try(op) for op in ops))
        self.step(times)
        self.stop(kill=kill)
        self.start()

    async def _try(self, op: Op) -> None:
        with suppress(Refused, sqlite3.Error):
            await self._do(*op)

    async def _do(self, name: str, first: int, second: int) -> None:
        queue = self.queue
        if name == "submit":
            await self._submit(first, second)
        elif name == "cancel" and self.acknowledged:
            numbers = sorted(self.acknowledged)[-6:]
            await queue.cancel(ADMIN, numbers[first % len(numbers)])
        elif name == "release" and queue.leases.held:
            held = queue.leases.held
            await queue.leases.release(ADMIN, held[first % len(held)].id)
        elif name in ("open", "drain", "close"):
            words = {"open": "open", "drain": "draining", "close": "closed"}
            status: Literal["open", "draining", "closed"] = words[name]  # type: ignore[assignment]
            await queue.availability.set_status(status)
        elif name == "end":
            self.script.end("completed" if first else "failed")
        elif name == "fail_cancel":
            self.store.failures["cancel_waiting"] = 1

    async def _submit(self, key: int, job_class: int) -> None:
        held, name = self.queue.leases.held, CLASSES[job_class % 3]
        lease = next((one for one in held if one.job_class == name), None)
        if lease is None:
            lease = await self.queue.leases.acquire(ANN, LeaseRequest(job_class=name))
        submission = Submission("problem", {}, {}, f"{key}")
        job, _ = await self.queue.submit(ADMIN, lease.id, submission)
        self.acknowledged.add(job.number)

    @invariant()
    def no_job_is_lost_or_in_two_places(self) -> None:
        queue = self.queue
        disk = {job.number: job for job in self.store.live()}
        live = queue.jobs._jobs
        pending = {entry.number for entry in queue.jobs.pending}
        running = queue.jobs.running
        assert live.keys() == disk.keys()
        assert pending == {n for n, job in disk.items() if job.state == "Queued"}
        assert pending == {
            n for n, one in live.items() if one.state is JobState.PENDING
        }
        on_device = {n for n, job in disk.items() if job.state == "Running"}
        assert on_device == ({running.number} if running else set())
        for number in self.acknowledged:
            job = self.store.job(number)
            assert job is not None
            if job.final:
                ending = job.state, job.attempt
                assert self.ended.setdefault(number, ending) == ending
            else:
                assert number not in self.ended

    @invariant()
    def none_runs_twice_in_silence(self) -> None:
        attempts = self.attempts + self.script.attempts
        assert len(attempts) == len(set(attempts))
        for number, attempt in attempts:
            job = self.store.job(number)
            assert job is not None
            assert job.attempt >= attempt
            assert job.attempt == 1 or job.note

    @invariant()
    def the_device_is_used_as_the_policy_says(self) -> None:
        queue = self.queue
        running, first = queue.jobs.running, queue.jobs.pending.first()
        status = queue.availability.status
        if status == "closed":
            assert running is None
        if status == "open" and first is not None:
            assert running is not None
            assert not queue.policy.preempts(first, running.entry)

    @invariant()
    def jobs_are_counted_and_under_leases_that_are_held(self) -> None:
        queue, disk = self.queue, self.store.live()
        counts = Counter((job.user, job.job_class) for job in disk)
        assert queue.jobs.counts._jobs == counts
        sizes = Counter[str]()
        for job in disk:
            sizes[job.user] += job.bytes
        assert queue.jobs.counts._bytes == sizes
        held = {lease.id for lease in queue.leases.held}
        assert {job.lease for job in disk} <= held
        assert {lease.id for lease in self.store.held()} == held
        assert len(held) <= VQPUS


class Leases(Machine):
    """At most as many leases as vQPUs, in the order of class and request."""

    def __init__(self) -> None:
        super().__init__()
        self.vqpus = VQPUS
        self.most = VQPUS
        self.requests = itertools.count()
        # by request: what became of it, while the service was the same
        self.got: dict[int, Lease] = {}
        self.gone: dict[int, asyncio.Event] = {}
        self.order: list[tuple[int, int]] = []

    @rule(
        requests=st.lists(
            st.tuples(st.sampled_from(CLASSES), st.sampled_from([None, "a", "b"])),
            min_size=1,
            max_size=4,
        ),
        times=st.integers(0, 4),
    )
    def acquire(self, requests: list[tuple[JobClass, str | None]], times: int) -> None:
        self.at_once(*(self._acquire(*request) for request in requests))
        self.step(times)
        self.settle()

    @rule(index=st.integers(0, 5), cause=st.sampled_from(LeaseEndCause))
    def end(self, index: int, cause: LeaseEndCause) -> None:
        if held := self.queue.leases.held:
            lease = held[index % len(held)]
            self.at_once(self._end(lease, cause), self._end(lease, cause))
            self.settle()
            assert (
                self.queue.leases.find(ADMIN, lease.id).reason == LeaseEnd(cause).reason
            )

    @rule(vqpus=st.integers(1, 3))
    def resize(self, vqpus: int) -> None:
        self.most = max(vqpus, len(self.queue.leases.held))
        self.vqpus = vqpus
        self.loop.run_until_complete(self._resize(vqpus))
        self.settle()

    @rule(status=st.sampled_from(["open", "open", "draining", "closed"]))
    def set_status(self, status: Literal["open", "draining", "closed"]) -> None:
        self.loop.run_until_complete(self.queue.availability.set_status(status))
        self.settle()
        assert status == "open" or not self.queue.leases.waiting

    @rule()
    def clients_go_away(self) -> None:
        for gone in self.gone.values():
            gone.set()
        self.settle()
        assert self.queue.leases.waiting == 0

    @rule(name=st.sampled_from(["add_lease", "close_lease"]), times=st.integers(1, 3))
    def fail(self, name: str, times: int) -> None:
        self.store.failures[name] = times

    @rule(kill=st.booleans(), times=st.integers(0, 4))
    def restart(self, kill: bool, times: int) -> None:
        known = {lease.id for lease in self.queue.leases.held}
        self.at_once(self._acquire("test", None))
        self.step(times)
        self.stop(kill=kill)
        self.got.clear()
        self.gone.clear()
        self.most = max(VQPUS, self.most)
        self.start()
        self.vqpus = VQPUS
        assert known <= {lease.id for lease in self.queue.leases.held}

    async def _acquire(self, job_class: JobClass, key: str | None) -> None:
        number = next(self.requests)
        gone = self.gone[number] = asyncio.Event()
        request = LeaseRequest(job_class=job_class, key=key)
        try:
            lease = await self.queue.leases.acquire(ANN, request, 1000, gone)
        except (Refused, sqlite3.Error):
            return
        finally:
            self.gone.pop(number, None)
        if not gone.is_set():
            self.got[number] = lease

    async def _end(self, lease: Lease, cause: LeaseEndCause) -> None:
        await self.queue.leases.end(lease.id, LeaseEnd(cause))

    async def _resize(self, vqpus: int) -> None:
        self.queue.leases.resize(vqpus)

    @invariant()
    def no_more_than_there_are_vqpus(self) -> None:
        leases = self.queue.leases
        held = {lease.id for lease in leases.held}
        assert len(held) <= self.most
        self.most = max(self.vqpus, len(held))
        assert held == {lease.id for lease in self.store.held()}
        if leases.waiting:
            assert len(held) >= self.vqpus
            assert leases._waiting == sorted(leases._waiting)

    @invariant()
    def a_lease_is_of_one_request_or_of_one_key(self) -> None:
        got = Counter(lease.id for lease in self.got.values())
        keys = {lease.id: lease.key for lease in self.got.values()}
        assert all(count == 1 or keys[id_] for id_, count in got.items())
        held = self.queue.leases.held
        named = [lease.key for lease in held if lease.key]
        assert len(named) == len(set(named))


TestJobs = Jobs.TestCase
TestJobs.settings = STATEFUL
TestLeases = Leases.TestCase
TestLeases.settings = STATEFUL


def test_only_what_the_table_says_moves_a_job() -> None:
    entry = PendingJob(1, "1", "ann", "l", "test", "problem", 1.0)
    for state, to, cause in itertools.product([None, *JobState], JobState, Cause):
        live = LiveJob(entry, state)
        if cause in live_jobs.TRANSITIONS.get((state, to), ()):
            live.move(to, cause)
            assert live.state is to
        else:
            with pytest.raises(RuntimeError, match="cannot move it"):
                live.move(to, cause)
    assert not any(before is JobState.DONE for before, _ in live_jobs.TRANSITIONS)


def test_only_what_the_table_says_moves_a_lease() -> None:
    lease = Lease("l", "ann", "test", *6 * (None,), 0.0, None)
    for state, to in itertools.product([None, *LeaseState], LeaseState):
        live = LiveLease(lease, 0.0, state)
        if to in leases_module.TRANSITIONS[state]:
            live.move(to)
        else:
            with pytest.raises(RuntimeError, match="cannot move"):
                live.move(to)


@pytest.mark.parametrize(
    ("interruption", "note", "cancels"),
    [
        (
            Interruption(Cause.PREEMPTION, "production"),
            "pre-empted by a production job during attempt 2",
            False,
        ),
        (
            Interruption(Cause.QPU_CLOSED),
            "interrupted: the QPU was closed during attempt 2",
            False,
        ),
        (
            Interruption(Cause.SERVICE_STOP),
            "interrupted: the service was stopped during attempt 2",
            False,
        ),
        (
            Interruption(Cause.RESTART),
            "interrupted: the service died during attempt 2",
            False,
        ),
        (Interruption(Cause.CANCELLATION), "cancelled", True),
        (
            Interruption(Cause.LEASE_END, lease_end=RELEASED),
            "cancelled: its lease was released",
            True,
        ),
        (
            Interruption(
                Cause.LEASE_END, lease_end=LeaseEnd(LeaseEndCause.IDLE, idle_seconds=9)
            ),
            "cancelled: its lease has ended: it was idle for 9 seconds",
            True,
        ),
    ],
)
def test_notes_are_made_from_reasons(
    interruption: Interruption, note: str, cancels: bool
) -> None:
    assert (interruption.note(2), interruption.cancels) == (note, cancels)

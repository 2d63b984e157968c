"""The state machines of jobs and leases, under any order of what moves them."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pydantic import SkipValidation

from docs.generate import transitions
from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Outcome, Progress, Result, Task
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.interface import Device
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    JobClass,
    Kind,
    Lease,
    LeaseRequest,
    Size,
    Submission,
)
from sf_quantum.service.domain.reasons import (
    CANCELLED,
    RELEASED,
    Cause,
    Interruption,
    LeaseEnd,
    LeaseEndCause,
)
from sf_quantum.service.domain.settings import (
    ClassSettings,
    LeaseSettings,
    ServiceSettings,
)
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.jobs import job_states
from sf_quantum.service.queue.jobs.job_states import (
    Dispatched,
    Done,
    LiveJob,
    Pending,
    Running,
    Stage,
    Starting,
    State,
    Taken,
    Withdrawn,
)
from sf_quantum.service.queue.jobs.job_states import Waiting as WaitingJob
from sf_quantum.service.queue.leases import lease_states
from sf_quantum.service.queue.leases.lease_states import (
    Ended,
    Failed,
    Held,
    LiveLease,
    Opening,
    Waiting,
)
from sf_quantum.service.queue.machine import Machine as StateMachine
from sf_quantum.service.scheduling.work import PendingJob
from sf_quantum.service.store.store import Store
from tests.support.service import problem
from tests.support.vendor_device import Vendor, VendorDevice
from tests.support.waiting import SECONDS, until

T = TypeVar("T")
ANN = Identity("ann", admin=False)
ADMIN = Identity("operator", admin=True, root=True)
CLASSES: tuple[JobClass, ...] = ("production", "test", "development")
VQPUS = 2
# writes that may be made to fail
WRITES = ("add", "grant", "close", "cancel_waiting")
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
        for part in (self.leases, self.progress):
            for name in {*WRITES} & {*dir(part)}:
                write = partial(self._fails, name, getattr(part, name))
                setattr(part, name, write)

    def _fails(
        self, name: str, write: Callable[..., Future[T]], *values: object
    ) -> Future[T]:
        if not self.failures[name]:
            return write(*values)
        self.failures[name] -= 1
        failed: Future[T] = Future()
        failed.set_exception(sqlite3.OperationalError("database is locked"))
        return failed


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
        device = self.make_device()
        lasting = LeaseSettings(idle_seconds=None)
        classes = ClassSettings(priorities={ANN.user: PRIORITY})
        settings = ServiceSettings(vqpus=VQPUS, leases=lasting, classes=classes)
        self.queue = JobQueue(self.store, device, settings)
        self.loop.run_until_complete(self._start())
        self.settle()

    def make_device(self) -> Device:
        return ScriptedDevice(script=self.script, time_scale=0)

    async def _start(self) -> None:
        self.queue.start()

    def stop(self, *, kill: bool) -> None:
        """End the service, in order or as if it had been killed."""
        if kill:
            # what it had begun is not begun any more
            self.loop.set_exception_handler(lambda *_: None)
        else:
            self.loop.run_until_complete(self._stop())
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.end_threads()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.store.close()
        self.attempts += self.script.attempts
        self.tasks.clear()

    def end_threads(self) -> None:
        """Have all threads of attempts end."""
        while self.script.current is not None:
            self.script.end(None)
            self.store.change(lambda _: None).result()

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
        vqpus = self.queue.vqpus
        clients = len(vqpus.requests) - len(vqpus.requests.leases)
        return (
            self.device_is_quiet()
            and all(isinstance(live.state, Held | Waiting) for live in vqpus.table)
            and sum(not task.done() for task in self.tasks) <= clients
        )

    def device_is_quiet(self) -> bool:
        """Whether nothing moves on its way to the device or back."""
        jobs, on_device = self.queue.jobs, self.script.current
        running = first_of(jobs.on_device)
        idle = running is None and not jobs.changed.is_set() and on_device is None
        busy = (
            running is not None
            and isinstance(running.state, Running)
            and on_device is not None
            and on_device.number == running.number
        )
        return idle or busy


Op = tuple[str, int, int]
OPS = st.tuples(
    st.sampled_from(
        "submit submit submit request cancel release open drain close end "
        "fail_cancel".split()
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
        # those that a user has cancelled, or tried to
        self.cancelled: set[int] = set()
        # Submissions that the estimator of the present service has counted, by number.
        self.counted = Counter[int]()

    async def _start(self) -> None:
        self.counted.clear()
        estimator = self.queue.jobs.estimator
        submitted = estimator.submitted

        def count(job: PendingJob) -> None:
            self.counted[job.number] += 1
            submitted(job)

        self.patch.setattr(estimator, "submitted", count)
        await super()._start()

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
        elif name == "request":
            await self._submit_waiting(first, second)
        elif name == "cancel" and self.acknowledged:
            numbers = sorted(self.acknowledged)[-6:]
            number = numbers[first % len(numbers)]
            self.cancelled.add(number)
            await queue.cancel(ADMIN, number)
        elif name == "release" and queue.leases.on_disk:
            held = queue.leases.on_disk
            await queue.leases.release(ADMIN, held[first % len(held)].id)
        elif name in ("open", "drain", "close"):
            words = {"open": "open", "drain": "draining", "close": "closed"}
            status: Literal["open", "draining", "closed"] = words[name]  # type: ignore[assignment]
            await queue.availability.set_status(status)
        elif name == "end":
            self.end_attempt("completed" if first else "failed")
        elif name == "fail_cancel":
            self.store.failures["cancel_waiting"] = 1

    def end_attempt(self, outcome: Literal["completed", "failed"]) -> None:
        self.script.end(outcome)

    async def _submit(self, key: int, job_class: int) -> None:
        held, name = self.queue.leases.held, CLASSES[job_class % 3]
        lease = next((one for one in held if one.job_class == name), None)
        if lease is None:
            lease = await self.queue.leases.acquire(ANN, LeaseRequest(job_class=name))
        submission = Submission("problem", problem(None), {}, f"{key}")
        job, _ = await self.queue.submit(ADMIN, lease.id, submission)
        self.acknowledged.add(job.number)

    async def _submit_waiting(self, key: int, job_class: int) -> None:
        """Submit as SAPI does, under a lease that may wait for a vQPU."""
        name = CLASSES[job_class % 3]
        request = LeaseRequest(job_class=name, key=name)
        lease = await self.queue.leases.request(ANN, request)
        asked = Submission("problem", problem(None), {}, f"{key}", dialect="sapi")
        job, _ = await self.queue.submit(ADMIN, lease.id, asked)
        self.acknowledged.add(job.number)

    def waiting(self) -> set[int]:
        """The jobs that wait with their lease for a vQPU, as the leases have it."""
        leases = {lease.id for lease in self.queue.leases.held}
        live = {one for one in self.queue.jobs if not isinstance(one.state, Dispatched)}
        waiting = {one.number for one in live if isinstance(one.state, WaitingJob)}
        assert waiting == {one.number for one in live if one.entry.lease not in leases}
        return waiting

    @invariant()
    def no_job_is_lost_or_in_two_places(self) -> None:
        queue = self.queue
        disk = {job.number: job for job in self.store.jobs.live()}
        live = {one.number: one for one in queue.jobs}
        pending = {entry.number for entry in queue.jobs.pending}
        running = first_of(queue.jobs.on_device)
        assert live.keys() == disk.keys()
        queued = {n for n, job in disk.items() if job.state == "Queued"}
        assert pending == queued - self.waiting()
        assert pending == {
            n for n, one in live.items() if isinstance(one.state, Pending)
        }
        on_device = {n for n, job in disk.items() if job.state == "Running"}
        assert on_device == ({running.number} if running else set())
        self.they_end_once()

    def they_end_once(self) -> None:
        for number in self.acknowledged:
            job = self.store.jobs.get(number)
            assert job is not None
            if job.final:
                ending = job.state, job.attempt
                assert self.ended.setdefault(number, ending) == ending
                if job.note == CANCELLED.note():
                    assert number in self.cancelled
            else:
                assert number not in self.ended

    @invariant()
    def none_runs_twice_in_silence(self) -> None:
        attempts = self.attempts + self.script.attempts
        assert len(attempts) == len(set(attempts))
        for number, attempt in attempts:
            job = self.store.jobs.get(number)
            assert job is not None
            assert job.attempt >= attempt
            assert job.attempt == 1 or job.note

    @invariant()
    def the_device_is_used_as_the_policy_says(self) -> None:
        queue = self.queue
        running = first_of(queue.jobs.on_device)
        first = queue.jobs.pending.first()
        status = queue.availability.status
        if status == "closed":
            assert running is None
        if status == "open" and first is not None:
            assert running is not None
            assert not queue.policy.preempts(first, running.entry)

    @invariant()
    def jobs_are_counted_and_under_leases_that_are_held(self) -> None:
        queue, disk = self.queue, self.store.jobs.live()
        counts = Counter((job.user, job.job_class) for job in disk)
        assert queue.jobs.counts._jobs == counts
        sizes = Counter[str]()
        for job in disk:
            sizes[job.user] += job.bytes
        assert queue.jobs.counts._bytes == sizes
        on_disk = {lease.id for lease in queue.leases.on_disk}
        assert {job.number: job.lease for job in disk} == {
            live.number: live.entry.lease for live in queue.jobs
        }
        assert {job.lease for job in disk} <= on_disk
        assert {lease.id for lease in self.store.leases.held()} == on_disk
        assert len(queue.leases.held) <= VQPUS

    @invariant()
    def the_estimator_counts_each_submission_once(self) -> None:
        assert max(self.counted.values(), default=1) == 1
        assert self.counted.keys() <= self.acknowledged | {
            job.number for job in self.store.jobs.latest()
        }


def first_of(jobs: list[LiveJob]) -> LiveJob | None:
    return jobs[0] if jobs else None


class Killed(BaseException):
    """Ends a thread of a service that is gone."""


class KeepingDevice(VendorDevice):
    """A client of a vendor that keeps its jobs; it dies with its service.

    :param fatal: the request that kills the service when it has had its effect
    """

    fatal = ""

    def __init__(self, vendor: Vendor) -> None:
        super().__init__(vendor, depth=2)
        self.killed = threading.Event()
        self._gone = threading.Event()

    @property
    def refresh_seconds(self) -> None:
        return None

    def submit(self, task: Task) -> str:
        return self._ask("submit", lambda: self.vendor.submit(task))

    def find(self, tag: str) -> str | None:
        return self._ask("find", lambda: super(KeepingDevice, self).find(tag))

    def poll(self, job_id: str, task: Task) -> Progress:
        return self._ask("poll", lambda: super(KeepingDevice, self).poll(job_id, task))

    def result(self, job_id: str, task: Task) -> Outcome:
        return self._ask(
            "result", lambda: super(KeepingDevice, self).result(job_id, task)
        )

    def cancel(self, job_id: str) -> None:
        self._ask("cancel", lambda: super(KeepingDevice, self).cancel(job_id))

    def end_threads(self) -> None:
        """End all threads that make requests, now or later."""
        self.killed.set()
        self._gone.set()

    def _ask(self, request: str, call: Callable[[], T]) -> T:
        answer = None if self.killed.is_set() else [call()]
        if request == self.fatal:
            self.killed.set()
        if answer is None or self.killed.is_set():
            self._gone.wait()
            raise Killed
        return answer[0]


class KeptJobs(Jobs):
    """The same where the vendor keeps the jobs, and takes the next one ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.patch.setattr(backoff, "VENDOR", Backoff(1e-3, 1e-3))
        self.vendor = Vendor()
        self.threads: set[threading.Thread] = set()

    def make_device(self) -> Device:
        self.threads = {*threading.enumerate()}
        self.device = KeepingDevice(self.vendor)
        return self.device

    def end_threads(self) -> None:
        self.device.end_threads()
        until(lambda: not self._new_threads(), "the threads of the service end")

    def _new_threads(self) -> list[threading.Thread]:
        known = threading.enumerate()
        return [one for one in known if one.daemon and one not in self.threads]

    def device_is_quiet(self) -> bool:
        jobs = self.queue.jobs
        settled = not jobs.changed.is_set() and not self._takes_another()
        return settled and all(map(self._as_told, jobs.on_device))

    def _takes_another(self) -> bool:
        """Whether the worker is about to take a job, which it prepares in a thread."""
        jobs, is_open = self.queue.jobs, self.queue.availability.status == "open"
        has_room = len(jobs.on_device) < self.device.depth
        return is_open and has_room and jobs.pending.first() is not None

    def _as_told(self, live: LiveJob) -> bool:
        """Whether a job is in the same state here and at the vendor."""
        job = self.store.jobs.get(live.number)
        assert job is not None
        if job.device_job is None:
            return False
        running = self.vendor.jobs[job.device_job].state == "Running"
        queued = self.vendor.jobs[job.device_job].state == "Queued"
        return (
            running and isinstance(live.state, Running) and job.state == "Running"
        ) or (queued and isinstance(live.state, Starting) and job.state == "Queued")

    def end_attempt(self, outcome: Literal["completed", "failed"]) -> None:
        for job in [*self.vendor.jobs.values()]:
            if job.state == "Running":
                self.vendor.end(
                    job.id, "Completed" if outcome == "completed" else "Failed"
                )
                return

    @rule(
        ops=st.lists(OPS, min_size=1, max_size=4),
        fatal=st.sampled_from(["submit", "cancel", "poll", "result"]),
    )
    def die(self, ops: list[Op], fatal: str) -> None:
        """Kill the service as soon as the vendor has done what it was asked."""
        self.device.fatal = fatal
        self.at_once(*(self._try(op) for op in ops))
        self.loop.run_until_complete(self._dead_or_settled())
        self.stop(kill=True)
        self.start()

    async def _dead_or_settled(self) -> None:
        quiet = 0
        async with asyncio.timeout(SECONDS):
            while quiet < 5 and not self.device.killed.is_set():
                await asyncio.wrap_future(self.store.change(lambda _: None))
                quiet = quiet + 1 if self._quiet() else 0

    @rule(times=st.integers(1, 2), late=st.booleans())
    def lose_answers(self, times: int, late: bool) -> None:
        """The next submissions are not answered, whether they arrive or not."""
        lost: list[Exception] = [QpuError("no answer") for _ in range(times)]
        (self.vendor.late if late else self.vendor.trouble)["submit"] = lost

    @invariant()
    def no_job_is_lost_or_in_two_places(self) -> None:
        disk = {job.number: job for job in self.store.jobs.live()}
        jobs = self.queue.jobs
        pending = {entry.number for entry in jobs.pending}
        on_device = {live.number for live in jobs.on_device}
        assert {live.number for live in jobs} == disk.keys()
        waiting = self.waiting()
        assert pending | on_device | waiting == disk.keys()
        assert not pending & on_device
        assert not waiting & (pending | on_device)
        assert {number for number in disk if disk[number].device} == on_device
        self.they_end_once()

    @invariant()
    def none_is_submitted_twice_or_left_at_the_vendor(self) -> None:
        vendor = [*self.vendor.jobs.values()]
        assert max(Counter(job.tag for job in vendor).values(), default=1) == 1
        left = {job.id for job in vendor if job.state in ("Queued", "Running")}
        disk = {job.device_job for job in self.store.jobs.live() if job.device_job}
        assert left == disk

    @invariant()
    def none_runs_twice_in_silence(self) -> None:
        ran = Counter(
            job.task.number
            for job in self.vendor.jobs.values()
            if job.billed or job.state == "Running"
        )
        for number, times in ran.items():
            job = self.store.jobs.get(number)
            assert job is not None
            assert job.attempt >= times
            assert times == 1 or job.note

    @invariant()
    def the_device_is_used_as_the_policy_says(self) -> None:
        queue = self.queue
        on_device, first = queue.jobs.on_device, queue.jobs.pending.first()
        status = queue.availability.status
        assert len(on_device) <= self.device.depth
        if status == "closed":
            assert not on_device
        if status == "open" and first is not None:
            assert len(on_device) == self.device.depth
            assert not any(queue.policy.preempts(first, one.entry) for one in on_device)


# Latest starts of requests.
PAST, FUTURE = 1.0, 1e11
# Highest priority of requests.
PRIORITY = 2


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
            st.tuples(
                st.sampled_from(CLASSES),
                st.sampled_from([None, "a", "b"]),
                st.sampled_from([None, PAST, FUTURE]),
                st.integers(0, PRIORITY),
            ),
            min_size=1,
            max_size=4,
        ),
        times=st.integers(0, 4),
    )
    def acquire(
        self, requests: list[tuple[JobClass, str | None, float | None, int]], times: int
    ) -> None:
        self.at_once(*(self._acquire(*request) for request in requests))
        self.step(times)
        self.settle()

    @rule(
        requests=st.lists(
            st.tuples(
                st.sampled_from(CLASSES),
                st.sampled_from(["c", "d"]),
                st.sampled_from([None, PAST, FUTURE]),
                st.integers(0, PRIORITY),
            ),
            min_size=1,
            max_size=3,
        ),
        times=st.integers(0, 4),
    )
    def request(
        self, requests: list[tuple[JobClass, str, float | None, int]], times: int
    ) -> None:
        self.at_once(*(self._request(*request) for request in requests))
        self.step(times)
        self.settle()

    @rule(index=st.integers(0, 5), cause=st.sampled_from(LeaseEndCause))
    def end(self, index: int, cause: LeaseEndCause) -> None:
        if held := self.queue.leases.on_disk:
            lease = held[index % len(held)]
            self.at_once(self._end(lease, cause), self._end(lease, cause))
            self.settle()
            assert (
                self.queue.leases.find(ADMIN, lease.id).reason == LeaseEnd(cause).reason
            )

    @rule(times=st.integers(0, 4))
    def latest_starts_pass(self, times: int) -> None:
        """Those that wait on disk end, unless one is granted first."""
        waiting = [*self.queue.leases.waiting_on_disk]
        self.loop.run_until_complete(self._pass_latest_starts())
        self.step(times)
        self.settle()
        for lease in map(partial(self.queue.leases.find, ADMIN), waiting):
            late = lease.latest_start is not None
            assert not (late and lease.waiting and lease.closed is None)
            assert late or lease.reason is None

    async def _pass_latest_starts(self) -> None:
        for live in self.queue.vqpus.table:
            if live.lease.latest_start is not None:
                self.queue.vqpus._end_late(live)

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
        assert status == "open" or not self.clients_waiting

    @rule()
    def clients_go_away(self) -> None:
        for gone in self.gone.values():
            gone.set()
        self.settle()
        assert not self.clients_waiting

    @property
    def clients_waiting(self) -> bool:
        requests = self.queue.vqpus.requests
        return len(requests) > len(requests.leases)

    @rule(
        name=st.sampled_from(["add", "grant", "close"]),
        times=st.integers(1, 3),
    )
    def fail(self, name: str, times: int) -> None:
        self.store.failures[name] = times

    @rule(kill=st.booleans(), times=st.integers(0, 4))
    def restart(self, kill: bool, times: int) -> None:
        known = {lease.id for lease in self.queue.leases.on_disk}
        self.at_once(self._acquire("test", None))
        self.step(times)
        self.stop(kill=kill)
        self.got.clear()
        self.gone.clear()
        self.most = max(VQPUS, self.most)
        self.start()
        self.vqpus = VQPUS
        assert known <= {lease.id for lease in self.queue.leases.on_disk}

    async def _acquire(
        self,
        job_class: JobClass,
        key: str | None,
        latest: float | None = None,
        priority: int = 0,
    ) -> None:
        number = next(self.requests)
        gone = self.gone[number] = asyncio.Event()
        request = LeaseRequest(
            job_class=job_class, key=key, latest_start=latest, priority=priority
        )
        try:
            lease = await self.queue.leases.acquire(ANN, request, 1000, gone)
        except (Refused, sqlite3.Error):
            return
        finally:
            self.gone.pop(number, None)
        if not gone.is_set():
            self.got[number] = lease

    async def _request(
        self, job_class: JobClass, key: str, latest: float | None, priority: int
    ) -> None:
        request = LeaseRequest(
            job_class=job_class, key=key, latest_start=latest, priority=priority
        )
        with suppress(Refused, sqlite3.Error):
            lease = await self.queue.leases.request(ANN, request)
            assert self.store.leases.get(lease.id)

    async def _end(self, lease: Lease, cause: LeaseEndCause) -> None:
        await self.queue.leases.end(lease.id, LeaseEnd(cause))

    async def _resize(self, vqpus: int) -> None:
        self.queue.vqpus.resize(vqpus)

    @invariant()
    def no_more_than_there_are_vqpus(self) -> None:
        leases = self.queue.leases
        held = {lease.id for lease in leases.held}
        assert len(held) <= self.most
        self.most = max(self.vqpus, len(held))
        on_disk = {lease.id for lease in self.store.leases.held()}
        assert on_disk == {lease.id for lease in leases.on_disk}
        assert on_disk - held == {*leases.waiting_on_disk}
        assert PAST not in {lease.latest_start for lease in leases.on_disk}
        if leases.waiting and self.queue.availability.accepts_work:
            assert len(held) >= self.vqpus
            orders = [one.order for one in self.queue.vqpus.requests]
            assert orders == sorted(orders)

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
TestKeptJobs = KeptJobs.TestCase
TestKeptJobs.settings = STATEFUL
TestLeases = Leases.TestCase
TestLeases.settings = STATEFUL


JOB_STATES = tuple(job_states.TRANSITIONS)
LEASE_STATES = tuple(lease_states.TRANSITIONS)


def test_the_table_of_jobs_has_all_states_and_events() -> None:
    states: set[type] = {
        kind
        for kind in vars(job_states).values()
        if isinstance(kind, type) and is_dataclass(kind) and issubclass(kind, State)
    }
    assert states == {*JOB_STATES}
    for state in JOB_STATES:
        events = transitions(state, job_states)
        assert {*events.values()} - {Stage} == job_states.TRANSITIONS[state]
    assert reached({WaitingJob}, job_states.TRANSITIONS) == states
    on_device = {one for one in states if issubclass(one, Dispatched)}
    assert {one for one, to in job_states.TRANSITIONS.items() if not to} == {Done}
    ends = {one for one, to in job_states.TRANSITIONS.items() if Done in to}
    assert ends == on_device | {Withdrawn}


def test_the_table_of_leases_has_all_states_and_events() -> None:
    assert {*LEASE_STATES} == {*get_args(lease_states.LeaseState)}
    for state in LEASE_STATES:
        events = transitions(state, lease_states)
        assert {*events.values()} == lease_states.TRANSITIONS[state]
    begins = {lease_states.Registering, lease_states.Opening}
    restored = {Waiting, Held}
    assert restored <= reached(begins, lease_states.TRANSITIONS) == {*LEASE_STATES}
    ends = {one for one, to in lease_states.TRANSITIONS.items() if not to}
    assert ends == {Ended, Failed}


def reached(
    begins: Collection[type], table: Mapping[type, Collection[type]]
) -> set[type]:
    """The states that may follow some states, and these."""
    found = {*begins}
    while new := {to for one in found for to in table[one]} - found:
        found |= new
    return found


def made(kind: type[T]) -> T:
    """An object of a state, whose data do not matter."""
    return kind.__new__(kind)


@pytest.mark.parametrize("before", JOB_STATES)
@pytest.mark.parametrize("after", JOB_STATES)
def test_a_job_moves_only_as_the_table_says(
    before: type[State], after: type[State]
) -> None:
    live = LiveJob(made(PendingJob), None)
    live.state, new = made(before), made(after)
    assert moves(live, new) == (after in job_states.TRANSITIONS[before])


@pytest.mark.parametrize("before", LEASE_STATES)
@pytest.mark.parametrize("after", LEASE_STATES)
def test_a_lease_moves_only_as_the_table_says(
    before: type[lease_states.LeaseState], after: type[lease_states.LeaseState]
) -> None:
    live = LiveLease(made(Lease), made(before))
    assert moves(live, made(after)) == (after in lease_states.TRANSITIONS[before])


def moves(machine: StateMachine[T], after: T) -> bool:
    """Whether a machine moves to a state; else its state and waiters are unchanged."""
    before, moved = machine.state, machine.moved
    try:
        machine.move(after)
    except RuntimeError:
        assert machine.state is before
        assert not moved.is_set()
        return False
    assert machine.state is after
    assert moved.is_set()
    return True


@pytest.mark.parametrize("cause", Cause)
def test_a_cancellation_replaces_other_interruptions(cause: Cause) -> None:
    other = Taken().interrupted(Interruption(cause))
    after = other.interrupted(CANCELLED)
    assert after.interruption.cancels
    # nothing replaces a cancellation
    assert after.interrupted(Interruption(cause)) is after


async def test_an_event_in_another_state_is_an_error() -> None:
    lease = Lease("l", "ann", "test", *6 * (None,), 0.0, None)
    live = LiveLease(lease, Waiting())
    with pytest.raises(RuntimeError, match="it is Waiting"):
        live.expect(Opening)
    assert live.expect(Waiting) is live.state


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

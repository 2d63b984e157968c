"""The life of a job, from when it is on disk until it is over, and the worker.

::

     submission, restart
            |
            v          worker               worker
     +-> PENDING ------------> STARTING --------------> RUNNING
     |     ^  |                 |  |                    |   |
     |     |  | cancellation,   |  | any interruption   |   |
     |     |  | lease end       |  | (*)                |   |
     |     |  v                 |  |                    |   |
     |     | INTERRUPTED <------|--+------- (*) --------+   |
     |     |  |  |  |           |                           |
     |     +--+  |  |           |                           |
     +-----------+  |           |                           |
     worker: it     v           v                           v
     runs again    DONE <-----(cancelled)-------- worker: it ended by itself

``WAITING``
    on disk as ``Queued``, with a lease that waits for a vQPU; becomes ``PENDING`` when that
    is granted, and ``INTERRUPTED`` as a pending one does.
``PENDING``
    on disk as ``Queued``, and among the scheduling policy's jobs.
``STARTING``
    taken by the worker; ``Running`` is being written to disk, or the job is submitted to
    its vendor and waits in the vendor's queue.
``RUNNING``
    on disk as ``Running``; the device has it, or its outcome is being written.
``INTERRUPTED``
    interrupted on the device, or cancelled while it was pending or waiting; its next
    state is being written. It returns to ``PENDING`` if it was pre-empted, the QPU was closed, the service
    stops or its vendor has ended it with the vendor's lease, if its cancellation could not
    be written, or if it was moved to another
    lease before the end of its own was on disk; else it is ``DONE``.
``DONE``
    on disk as ``Completed``, ``Failed`` or ``Cancelled``, and no longer in memory.

(*) A pre-emption, a cancellation, the end of its lease, the closing of the QPU, the stop
of the service, or one of these that the former service had begun, or the end of the lease
at the device's vendor; a cancellation takes precedence. :data:`TRANSITIONS` is the whole table. The jobs that a service leaves on its
device when it is killed go on there, are run again, or have failed:
:meth:`~sf_quantum.service.store.store.Store.recover`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import islice
from typing import TypeAlias, TypeVar

from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import Result
from sf_quantum.service.device.protocol import Cost, Device
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Job,
    Kind,
    Lease,
    Recovery,
    State,
    Submission,
)
from sf_quantum.service.domain.reasons import (
    CANCELLED,
    RELEASED,
    Cause,
    Interruption,
    LeaseEnd,
)
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.availability import Availability
from sf_quantum.service.queue.events import log_done, log_interrupted, log_job
from sf_quantum.service.queue.jobs.attempt import Attempt, Ended
from sf_quantum.service.queue.jobs.device_job import (
    Detached,
    GivenUp,
    Interrupt,
    runs_again,
    written,
)
from sf_quantum.service.queue.jobs.observations import DeviceState, Observations
from sf_quantum.service.queue.leases.entitlements import JobCounts
from sf_quantum.service.queue.leases.lease_table import LeaseTable
from sf_quantum.service.scheduling.eta import Estimator
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies import make
from sf_quantum.service.scheduling.work import PendingJob
from sf_quantum.service.store import given_up
from sf_quantum.service.store.store import Store
from sf_quantum.threads import in_thread

_T = TypeVar("_T")
# what a job is checked against: kinds, qubits, shots and qubits out of service
Fitting: TypeAlias = tuple[tuple[Kind, ...], int, int | None, frozenset[int]]
logger = logging.getLogger(__name__)
# for the device to interrupt a job
LET_GO_SECONDS = 5.0
# for all jobs on the device to be interrupted, or left, when the service stops
STOP_SECONDS = 8.0
# jobs that end with their lease, before other requests have their turn
DONE_AT_ONCE = 50
# for a write, before the disk is read again
WRITE_SECONDS = 0.1


class JobState(Enum):
    """See the module."""

    WAITING = auto()
    PENDING = auto()
    STARTING = auto()
    RUNNING = auto()
    INTERRUPTED = auto()
    DONE = auto()


_W, _P, _S, _R, _I, _D = JobState
_INTERRUPTIONS = {
    Cause.PREEMPTION,
    Cause.CANCELLATION,
    Cause.LEASE_END,
    Cause.QPU_CLOSED,
    Cause.SERVICE_STOP,
    Cause.RESTART,
    Cause.VENDOR,
}
#: who may move a job from one state to another; ``None`` is before it is on disk
TRANSITIONS: Mapping[tuple[JobState | None, JobState], set[Cause]] = {
    (None, _W): {Cause.SUBMISSION, Cause.RESTART},
    (None, _P): {Cause.SUBMISSION, Cause.RESTART},
    (_W, _P): {Cause.LEASE_GRANT, Cause.SUBMISSION},
    (_W, _I): {Cause.CANCELLATION, Cause.LEASE_END},
    (_P, _S): {Cause.WORKER},
    (_P, _I): {Cause.CANCELLATION, Cause.LEASE_END},
    (_S, _R): {Cause.WORKER},
    (_S, _I): _INTERRUPTIONS,
    (_S, _D): {Cause.WORKER},
    (_R, _I): _INTERRUPTIONS,
    (_R, _D): {Cause.WORKER},
    (_I, _I): _INTERRUPTIONS - {Cause.PREEMPTION, Cause.RESTART, Cause.VENDOR},
    (_I, _W): {Cause.CANCELLATION},
    (_I, _P): {Cause.WORKER, Cause.CANCELLATION, Cause.SUBMISSION},
    (_I, _D): {Cause.WORKER, Cause.CANCELLATION, Cause.LEASE_END},
}


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job that is not over.

    :param interruption: of the current attempt
    """

    entry: PendingJob
    state: JobState | None = None
    interruption: Interruption | None = None
    #: on the device
    attempt: Attempt | None = None
    #: whether the former service had given it to the device
    recovered: bool = False
    #: the write that says that the device runs it
    starting: asyncio.Task[None] | None = None
    #: when the device began to run it, by the store's clock
    started: float | None = None
    #: the device that it was checked against
    fits: Fitting | None = None
    #: how often its vendor has ended it with its lease
    losses: int = 0
    # made by the first waiter, set at the next transition
    moved: asyncio.Event | None = None

    @property
    def number(self) -> int:
        return self.entry.number

    @property
    def submitted(self) -> bool:
        """Whether the device has it."""
        return self.attempt is not None and self.attempt.submitted

    @property
    def ends_with_lease(self) -> bool:
        """Whether the end of its lease, which is being written, cancels it."""
        interruption = self.interruption
        ends = interruption is not None and interruption.cause is Cause.LEASE_END
        return ends and self.state is _I

    def move(self, state: JobState, cause: Cause) -> None:
        """Change the state, as :data:`TRANSITIONS` allows."""
        if cause not in TRANSITIONS.get((self.state, state), ()):
            raise RuntimeError(
                f"job {self.number}: {cause.name} cannot move it from "
                f"{self.state} to {state}"
            )
        self.state = state
        self.wake()

    def wake(self) -> None:
        if self.moved is not None:
            self.moved.set()
            self.moved = None

    async def wait(self) -> None:
        """Wait for the next transition, or for :meth:`wake`."""
        self.moved = self.moved or asyncio.Event()
        await self.moved.wait()


class LiveJobs:
    """The jobs that are not over, and the worker that runs one at a time.

    Belongs to the event loop's thread.
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        settings: ServiceSettings,
        leases: LeaseTable,
    ) -> None:
        self.store = store
        self.device = device
        chosen = settings.policy
        self.policy = make(chosen.type, chosen.options, settings.shares, store.clock)
        self.availability = Availability(store)
        self.observations = Observations()
        self._slice_seconds = settings.slice_seconds
        self._most_losses = settings.service_deaths
        self.pending = PendingJobs(self.policy, may_start=self._ends_before_maintenance)
        self.counts = JobCounts(settings)
        self.estimator = Estimator(self.policy, store.clock)
        #: ``STARTING``, ``RUNNING`` or ``INTERRUPTED``; all but the first wait in the
        #: vendor's queue
        self.on_device: list[LiveJob] = []
        #: whether the service is stopping; no job starts then
        self.stopping = False
        # when the worker ends in any case, by the monotonic clock
        self._ends_by = math.inf
        #: whether no pending job could start when the worker last looked
        self.none_may_start = False
        #: held while a job runs; the device is replaced under it
        self.between_jobs = asyncio.Lock()
        #: set when the worker has ended
        self.finished = asyncio.Event()
        #: set when a job may have become the next to run
        self.changed = asyncio.Event()
        self._jobs: dict[int, LiveJob] = {}
        # by lease
        self._waiting: defaultdict[str, dict[int, LiveJob]] = defaultdict(dict)
        # the last write of a new job of each lease
        self._adding: dict[str, asyncio.Future[tuple[Job, bool]]] = {}
        self._leases = leases
        self._taking: asyncio.Task[None] | None = None

    def resume(self) -> None:
        """Load the unfinished jobs of the previous service."""
        for job in self.store.live():
            self.counts.take(job.user, job.job_class, job.bytes)
            live = self._add(job, Cause.RESTART)
            if job.device is not None:
                self.pending.remove(job.number)
                live.recovered = True
                self._give(live)

    async def lease_granted(self, lease_id: str) -> None:
        """Make the jobs pending that waited with their lease."""
        while waiting := self._waiting.get(lease_id):
            for live in [*islice(waiting.values(), DONE_AT_ONCE)]:
                self._pend(live, Cause.LEASE_GRANT)
            await asyncio.sleep(0)

    async def submit(
        self, lease: Lease, submission: Submission, cost: Cost, *, known: bool = False
    ) -> tuple[Job, bool]:
        """Add a job; it is on disk when this returns.

        The write is queued before the first ``await``, so that the end of the lease is
        written after it.

        :param known: see :meth:`.Store.add_job`
        :returns: the job, and whether it is new; an unfinished job with the same key is
            moved to this lease
        """
        seconds = cost.qpu_seconds, cost.compute_seconds
        adding = asyncio.wrap_future(
            self.store.add_job(lease, submission, *seconds, known=known)
        )
        self._adding[lease.id] = adding
        fits = _fitting(self.device.description)
        counted = lease.user, lease.job_class, len(submission.payload)
        self.counts.take(*counted)
        # in a callback: a caller that is cancelled must not leave a job on disk only
        cancelling: list[asyncio.Task[None]] = []

        def added(written: asyncio.Future[tuple[Job, bool]]) -> None:
            if self._adding.get(lease.id) is written:
                del self._adding[lease.id]
            if written.exception() is None:
                job, new = written.result()
                if new:
                    log_job("submitted", job)
                accepted = self._leases.accepting(job.lease) or lease.closed is not None
                if new and accepted:
                    self._add(job, Cause.SUBMISSION).fits = fits
                    return
                if new:  # its lease has ended, and cancelled the job on disk
                    self.observations.jobs[job.job_class, "Cancelled"] += 1
                    log_job("cancelled", job, reason="its lease has ended")
                else:
                    cancelling.extend(self._move_to_lease(job.number))
            self.counts.give_back(*counted)

        adding.add_done_callback(added)
        job, new = await asyncio.shield(adding)
        if not new:
            for task in cancelling:
                await asyncio.shield(task)
            await self.settled(job.number)
            job = self.store.job(job.number) or job
        return job, new

    async def added(self, lease_id: str) -> None:
        """Wait until all jobs of a lease that were submitted are on disk."""
        while (adding := self._adding.get(lease_id)) is not None:
            await asyncio.wait([adding])

    async def settled(self, number: int) -> None:
        """Wait for the end of a cancellation; refuse with 503 if that takes too long."""
        live = self._jobs.get(number)
        if live is None or live.interruption is None or not live.interruption.cancels:
            return
        if not await self._until(live, {_W, _P, _S, _R, _D}, LET_GO_SECONDS):
            detail = "the job is being cancelled, try again later"
            raise Refused(503, detail, headers={"Retry-After": "1"})

    async def wait(self, number: int, seconds: float) -> None:
        """Wait for the end of a job, for a limited time."""
        live = self._jobs.get(number)
        if live is not None and seconds > 0:
            await self._until(live, {_D}, seconds)
        elif seconds > 0:  # its submission or the end of its lease is being written
            await asyncio.sleep(min(seconds, WRITE_SECONDS))

    def next_change(self, number: int) -> asyncio.Event | None:
        """Return what is set when a job changes, or begins its next slice.

        :returns: ``None`` if it is over, or has not been noticed yet
        """
        if (live := self._jobs.get(number)) is None:
            return None
        live.moved = live.moved or asyncio.Event()
        return live.moved

    async def cancel(self, number: int, interruption: Interruption) -> None:
        """Cancel a job, and wait until the device has interrupted it.

        :raises sqlite3.Error: if it cannot be written; the job is then pending or runs on
        """
        while True:
            live = self._jobs.get(number)
            if live is None:
                note = interruption.note()
                await asyncio.wrap_future(self.store.cancel_waiting(number, note))
                if number not in self._jobs:
                    return
                # its submission has been noticed only now
            elif live in self.on_device:
                # on disk first: the service may die before the device lets go
                note = interruption.note()
                await asyncio.wrap_future(self.store.note_cancellation(number, note))
                if live in self.on_device:
                    self.interrupt(live, interruption)
                    await self._until(live, {_D}, LET_GO_SECONDS)
                    return
            elif live.state in (_W, _P) or live.ends_with_lease:
                await self._cancel_pending(live, interruption)
                return
            else:  # another cancellation is being written, with or without a worker
                await live.wait()

    def interrupt_all(self, interruption: Interruption) -> None:
        """Interrupt the jobs on the device."""
        for live in self.on_device:
            self.interrupt(live, interruption)

    def interrupt(self, live: LiveJob, interruption: Interruption) -> None:
        """Interrupt a job on the device; a cancellation replaces another reason."""
        known = live.interruption
        # a pause would end too late
        ends = interruption.cause in (Cause.SERVICE_STOP, Cause.QPU_CLOSED)
        paused = known is not None and known.cause is Cause.PREEMPTION and ends
        if known is None or paused or (interruption.cancels and not known.cancels):
            live.interruption = interruption
            live.move(_I, interruption.cause)
            if live.attempt is not None:
                how = self._how(live.attempt, interruption)
                live.attempt.interrupt(how, interruption)
        elif (
            live.attempt is not None
            and self._how(live.attempt, interruption) is Interrupt.DETACH
        ):
            live.attempt.leave()  # its cancellation is on disk

    def interrupt_lease(self, lease_id: str, end: LeaseEnd) -> list[LiveJob]:
        """Interrupt the pending and running jobs of a lease, which takes no more jobs.

        The caller cancels the pending ones on disk, then calls :meth:`end_lease`.
        """
        interruption = Interruption(Cause.LEASE_END, lease_end=end)
        interrupted = []
        numbers = [*self._waiting.get(lease_id, ()), *self.pending.of_lease(lease_id)]
        for number in numbers:
            live = self._jobs[number]
            self._take_out(live)
            live.interruption = interruption
            live.move(_I, Cause.LEASE_END)
            interrupted.append(live)
        for live in self.on_device:
            if live.entry.lease == lease_id:
                self.interrupt(live, interruption)
                interrupted.append(live)
        return interrupted

    async def end_lease(self, lease_id: str, interrupted: Collection[LiveJob]) -> None:
        """Forget an ended lease and its pending jobs; wait for its running job."""
        for index, live in enumerate(interrupted):
            if index % DONE_AT_ONCE == 0:
                await asyncio.sleep(0)
            if live in self.on_device:
                await self._until(live, {_D}, LET_GO_SECONDS)
            # not if another submission has moved it to another lease
            elif live.ends_with_lease and live.entry.lease == lease_id:
                self._done(live, "Cancelled", Cause.LEASE_END)

    def waiting_with(self, lease_id: str) -> Mapping[int, LiveJob]:
        """The jobs that wait with a lease, by number, in their order."""
        return self._waiting.get(lease_id, {})

    def busy(self, lease_id: str) -> bool:
        runs = any(live.entry.lease == lease_id for live in self.on_device)
        waits = lease_id in self._waiting
        return runs or waits or bool(self.pending.of_lease(lease_id))

    @property
    def may_start(self) -> bool:
        return self.availability.works and not self.stopping

    def look(self) -> None:
        """Wake the worker, and pre-empt jobs on the device if the policy says so."""
        self.changed.set()
        self.none_may_start = False
        if not self.on_device or not self.may_start:
            return
        if (first := self.pending.first()) is None:
            return
        preempts = self.policy.preempts
        taken = [live for live in self.on_device if preempts(first, live.entry)]
        if not self._taking_back:
            self.take_back(taken, Interruption(Cause.PREEMPTION, first.job_class))

    def take_back(self, taken: Sequence[LiveJob], interruption: Interruption) -> None:
        """Interrupt jobs on the device, the last one first, so that none of them starts."""
        paused = [live for live in taken if self._pauses(live, interruption)]
        for live in paused:  # at once, so that no other slice is submitted
            self.interrupt(live, interruption)
        taken = [live for live in taken if live not in paused]
        if len(taken) < 2 or self._taking_back:
            for live in taken:
                self.interrupt(live, interruption)
        else:
            self._taking = asyncio.create_task(self._take_back(taken, interruption))

    def _pauses(self, live: LiveJob, interruption: Interruption) -> bool:
        attempt = live.attempt
        return (
            attempt is not None and self._how(attempt, interruption) is Interrupt.PAUSE
        )

    @property
    def _taking_back(self) -> bool:
        return self._taking is not None and not self._taking.done()

    async def _take_back(
        self, taken: Sequence[LiveJob], interruption: Interruption
    ) -> None:
        for live in reversed(taken):
            if live in self.on_device:
                self.interrupt(live, interruption)
                await self._until(live, {_P, _D}, LET_GO_SECONDS)

    def stop(self, drain_seconds: float) -> None:
        """Start no more jobs, and interrupt the running one after a while."""
        self.stopping = True
        self._ends_by = time.monotonic() + drain_seconds + STOP_SECONDS
        self.changed.set()
        stopped = Interruption(Cause.SERVICE_STOP)
        if drain_seconds <= 0:
            self.interrupt_all(stopped)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(drain_seconds, self.interrupt_all, stopped)

    def replace_device(self, device: Device) -> None:
        self.device = device
        for entry in self.pending.order():
            self.pending.remove(entry.number)
            entry.seconds = self._seconds(entry.qpu_seconds, entry.compute_seconds)
            self.pending.add(entry)
        self.look()

    # the worker

    @property
    def running(self) -> LiveJob | None:
        """The job that the device runs, or runs next."""
        return self.on_device[0] if self.on_device else None

    @property
    def device_state(self) -> DeviceState:
        if any(live.attempt is not None for live in self.on_device):
            return "busy"
        if self.finished.is_set() or self.stopping or self.availability.device_reason:
            return "offline"
        status = self.availability.status
        if status != "open":
            return status
        held_back = self.none_may_start and len(self.pending) > 0
        return "held" if held_back else "idle"

    async def work(self) -> None:
        """Give jobs to the device until the service stops."""
        attempts = set[asyncio.Task[None]]()
        if self.on_device:  # from the former service
            await self.between_jobs.acquire()
        for former in self.on_device:
            attempts.add(asyncio.create_task(self._attempt(former)))
        try:
            while not self.stopping:
                self.changed.clear()
                for ended in [one for one in attempts if one.done()]:
                    attempts.remove(ended)
                    ended.result()
                if (live := await self._take()) is not None:
                    attempts.add(asyncio.create_task(self._attempt(live)))
                    continue
                self.observations.enter(self.device_state)
                await self.changed.wait()
            await self._let_end(attempts)
        finally:
            for one in attempts:
                one.cancel()
            self.finished.set()
            for live in self._jobs.values():  # none will run any more
                live.wake()

    async def _let_end(self, attempts: set[asyncio.Task[None]]) -> None:
        """Wait for the attempts under way when the service stops, but not for long.

        Of one that waits for its vendor, all that the next service needs is on disk.
        """
        while attempts:
            left = max(0.0, self._ends_by - time.monotonic())
            ended, attempts = await asyncio.wait(attempts, timeout=left)
            for one in ended:
                one.result()
            if not ended:
                text = "%d jobs on the device are left to the next service as they are"
                logger.warning(text, len(attempts))
                for one in attempts:
                    one.cancel()
                return

    async def _take(self) -> LiveJob | None:
        """Take the next job for the device, unless it has enough."""
        if len(self.on_device) >= self.device.depth:
            return None
        if self.on_device and not self.on_device[-1].submitted:
            return None  # which could else overtake it
        if not self.on_device:
            await self.between_jobs.acquire()
        entry = self.pending.pop() if self.may_start else None
        self.none_may_start = entry is None
        if entry is None:
            if not self.on_device:
                self.between_jobs.release()
            return None
        live = self._jobs[entry.number]
        live.interruption = None
        self._give(live)
        return live

    def _give(self, live: LiveJob) -> None:
        live.move(_S, Cause.WORKER)
        self.on_device.append(live)
        self.estimator.began(live.entry)
        self.policy.began(live.entry)

    async def _attempt(self, live: LiveJob) -> None:
        try:
            await self._run(live)
        finally:
            self.on_device.remove(live)
            live.attempt = None
            if not self.on_device:
                self.between_jobs.release()
            self.observations.enter(self.device_state)
            self.changed.set()

    async def _run(self, live: LiveJob) -> None:
        number, device = live.number, self.device
        if device.recovery is Recovery.AGAIN:
            # on disk before the device has it, so that no attempt goes unrecorded
            job = await _written(lambda: self.store.start(number))
        elif (known := self.store.job(number)) is None:
            raise RuntimeError(f"job {number} is not on disk")
        else:
            job = known
        if job.final:  # cancelled meanwhile
            self._end_attempt(live, job, 0.0)
            return
        if live.interruption is None and (former := _interruption(job)) is not None:
            # the former service may not have got round to it
            live.interruption = former
            live.move(_I, former.cause)
        if job.state == "Running":
            self._runs(live, job)
        attempt = live.attempt = self._new_attempt(live, job)
        if live.interruption is not None:
            how = self._how(attempt, live.interruption)
            attempt.interrupt(how, live.interruption)
        self.observations.enter("busy")
        try:
            ended, result = await asyncio.wrap_future(
                in_thread(lambda: self._ended(attempt, job))
            )
        except Detached:
            return
        await self._settled(live, job, ended, result)

    def _new_attempt(self, live: LiveJob, job: Job) -> Attempt:
        loop = asyncio.get_running_loop()

        def submitted() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self.changed.set)
                # a slice that is over is on disk
                loop.call_soon_threadsafe(live.wake)

        def running() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._seen_running, live)

        live.entry.stays = not runs_again(self.device, job)
        fits = live.fits == _fitting(self.device.description)
        return Attempt(
            self.store,
            self.device,
            job,
            submitted,
            running,
            slice_seconds=self._slice_seconds,
            check=not fits,
            unsure=live.recovered and job.device_job is None,
        )

    def _ended(self, attempt: Attempt, job: Job) -> tuple[Ended, str | None]:
        ended = attempt.run()
        if ended.outcome.result is None:
            return ended, None
        started = self.store.job(job.number) or job
        return ended, _with_timing(started, ended, ended.outcome.result).whole

    async def _settled(
        self, live: LiveJob, job: Job, ended: Ended, result: str | None
    ) -> None:
        ended = self._unless_lost(live, ended)
        number, outcome = job.number, ended.outcome
        if live.starting is not None:
            await live.starting
        elif job.started is None and (outcome.result or outcome.failure):
            # it was over before it was seen running
            await self._write_running(live, outcome.seconds or 0.0)
        self.observations.qpu_seconds[job.job_class] += ended.spent
        if ended.given_up is not None:
            await _written(self._given_up(job, ended, ended.given_up))
        settled = await _written(lambda: self._settle(live, job, ended, result))
        if not settled.final and live.interruption is not None:
            if live.interruption.cancels:
                # cancelled while its return to the queue was written
                note = live.interruption.note()
                settled = await _written(
                    lambda: self.store.cancel_waiting(number, note)
                )
            else:
                now = self.store.clock()
                times = live.started or now, now
                cause = live.interruption.cause
                self.observations.attempt_interrupted(job.job_class, cause, *times)
        # as in the accounting: who is interrupted has no result for the slice that ran,
        # and would else wait longer for having been interrupted
        lost = 0.0 if settled.final else ended.last[0]
        live.entry.seconds = self._seconds_left(settled)
        self._end_attempt(live, settled, ended.spent - lost)

    def _given_up(
        self, job: Job, ended: Ended, lost: GivenUp
    ) -> Callable[[], Future[None]]:
        entry = given_up.Entry(
            0,
            job.number,
            self.device.identity,
            lost.device_job,
            lost.tag,
            lost.why,
            self.store.clock(),
            ended.last[0],
            self.device.price,
        )
        return lambda: given_up.record(self.store, job, entry)

    def _unless_lost(self, live: LiveJob, ended: Ended) -> Ended:
        """Have a job run again that its vendor has ended, but not for ever."""
        outcome = ended.outcome
        if outcome.lost is None or live.interruption is not None:
            return ended
        live.losses += 1
        if live.losses < self._most_losses:
            live.interruption = Interruption(Cause.VENDOR, lost=outcome.lost)
            live.move(_I, Cause.VENDOR)
            return ended
        failure = f"{outcome.lost} ({live.losses} times)"
        return replace(ended, outcome=replace(outcome, failure=failure))

    def _seen_running(self, live: LiveJob) -> None:
        """Note that the device runs a job, which was in the vendor's queue until now."""
        if live.attempt is not None and live.starting is None and not live.started:
            live.starting = asyncio.create_task(self._write_running(live, 0.0))

    async def _write_running(self, live: LiveJob, seconds_ago: float) -> None:
        started = await _written(lambda: self.store.start(live.number, seconds_ago))
        self._runs(live, started)

    def _runs(self, live: LiveJob, job: Job) -> None:
        if live.state is _S:  # not interrupted meanwhile
            live.move(_R, Cause.WORKER)
        live.started = job.started_steady
        log_job("started", job, attempt=job.attempt, waited=job.queued_seconds)
        self.observations.attempt_started(job)

    def _settle(
        self, live: LiveJob, job: Job, ended: Ended, result: str | None
    ) -> Future[Job]:
        outcome, used = ended.outcome, ended.used
        note = outcome.failure
        state: State = "Completed" if note is None else "Failed"
        if note is None and result is None:
            interruption = live.interruption or CANCELLED
            note = job.cancelling or interruption.note(job.attempt)
            if not interruption.cancels:
                note = _noted(job.interrupting or note, ended) or note
                return self.store.put_back(job.number, note, ended.last)
            state = "Cancelled"
        price = self.device.price
        return self.store.finish(
            job.number,
            state,
            note=_noted(note, ended, job.note),
            used=used,
            cost=None if price is None else price * ended.last[0],
            result=result,
            calibration=outcome.calibration,
        )

    def _end_attempt(self, live: LiveJob, job: Job, qpu_seconds: float) -> None:
        """Record that the end of an attempt is on disk."""
        completed = job.state == "Completed"
        self.estimator.ended(live.entry, completed=completed)
        self.policy.ended(live.entry, qpu_seconds)
        live.started = live.starting = None
        live.recovered = False
        if job.final:
            self._done(live, job.state, Cause.WORKER, job)
        else:
            log_interrupted(job, live.interruption)
            self.pending.add(live.entry)
            live.move(_P, Cause.WORKER)
            self._leases.touch(live.entry.lease)

    def _how(self, attempt: Attempt, interruption: Interruption) -> Interrupt:
        """Return what an interruption does to the job on the device."""
        if interruption.cause is Cause.PREEMPTION and attempt.pauses:
            return Interrupt.PAUSE
        goes_on = self.device.recovery in (Recovery.BY_TAG, Recovery.BY_ID)
        stops = interruption.cause is Cause.SERVICE_STOP
        return Interrupt.DETACH if stops and goes_on else Interrupt.CANCEL

    # transitions

    def _add(self, job: Job, cause: Cause) -> LiveJob:
        live_lease = self._leases.accepting(job.lease)
        lease = None if live_lease is None else live_lease.lease
        entry = PendingJob.of(job, self._seconds_left(job), lease)
        live = self._jobs[job.number] = LiveJob(entry)
        if live_lease is not None and live_lease.jobs_wait:
            self._wait_with_lease(live, cause)
        else:
            self._pend(live, cause)
        return live

    def _wait_with_lease(self, live: LiveJob, cause: Cause) -> None:
        live.move(_W, cause)
        self._waiting[live.entry.lease][live.number] = live

    def _pend(self, live: LiveJob, cause: Cause) -> None:
        self._take_out(live)
        live.move(_P, cause)
        self.estimator.submitted(live.entry)
        self.pending.add(live.entry)
        self.look()

    def _take_out(self, live: LiveJob) -> None:
        """Take a job out of the pending ones, or of those that wait with their lease."""
        self.pending.remove(live.number)
        waiting = self._waiting.get(live.entry.lease, {})
        if waiting.pop(live.number, None) and not waiting:
            del self._waiting[live.entry.lease]

    async def _cancel_pending(self, live: LiveJob, interruption: Interruption) -> None:
        self._take_out(live)
        live.interruption = interruption
        live.move(_I, interruption.cause)
        note = interruption.note()
        try:
            await asyncio.wrap_future(self.store.cancel_waiting(live.number, note))
        except sqlite3.Error:
            # the end of its lease cancels it on disk; the lease of a quality job takes no
            # vQPU, and is not among these
            accepted = self._leases.accepting(live.entry.lease) is not None
            if accepted or live.entry.job_class == "quality":
                self._pend_again(live, Cause.CANCELLATION)
            else:
                self._done(live, "Cancelled", interruption.cause)
            raise
        self._done(live, "Cancelled", interruption.cause)

    def _move_to_lease(self, number: int) -> list[asyncio.Task[None]]:
        """Move a job to its lease on disk; return what cancels it if that has ended."""
        job, live = self.store.job(number), self._jobs.get(number)
        if job is None or job.final:
            return []
        if live is None:  # it has just ended with its former lease
            self.counts.take(job.user, job.job_class, job.bytes)
            live = self._add(job, Cause.SUBMISSION)
        if (live_lease := self._leases.accepting(job.lease)) is None:
            if live in self.on_device:
                live.entry.lease = job.lease
            ended = Interruption(Cause.CANCELLATION, lease_end=RELEASED)
            return [asyncio.create_task(self.cancel(number, ended))]
        lease = live_lease.lease
        self.estimator.moved(live.entry, lease)
        if live in self.on_device:  # its use is charged to the new lease
            self.policy.ended(live.entry, 0.0)
            live.entry.move_to(lease)
            self.policy.began(live.entry)
        elif live.state is _W:
            self._take_out(live)
            live.entry.move_to(lease)
            self._pend(live, Cause.SUBMISSION)
        elif live.state is _P:
            self.pending.move(number, lease)
        else:
            live.entry.move_to(lease)
            if live.ends_with_lease:  # not on disk, where it has the new lease
                self._pend_again(live, Cause.SUBMISSION)
        return []

    def _seconds_left(self, job: Job) -> float:
        """Return how long the rest of a job is expected to occupy the device."""
        whole = self._seconds(job.model_seconds, job.compute_seconds)
        return whole * (1 - job.shots_done / job.shots)

    def _seconds(self, qpu_seconds: float, compute_seconds: float) -> float:
        cost = Cost(qpu_seconds, compute_seconds=compute_seconds)
        return self.device.elapsed_seconds(cost)

    def _pend_again(self, live: LiveJob, cause: Cause) -> None:
        live.interruption = None
        lease = self._leases.accepting(live.entry.lease)
        if lease is not None and lease.jobs_wait:
            self._wait_with_lease(live, cause)
            return
        live.move(_P, cause)
        self.pending.add(live.entry)
        self.look()

    def _done(
        self, live: LiveJob, state: State, cause: Cause, job: Job | None = None
    ) -> None:
        """:param job: as it is on disk, if it is known"""
        live.move(_D, cause)
        del self._jobs[live.number]
        entry, interruption = live.entry, live.interruption
        if job is not None:
            log_done(job)
        elif interruption is not None:
            log_job(state.lower(), entry, reason=interruption.note())
        if state == "Cancelled":
            self.estimator.cancelled(entry)
        self.counts.give_back(entry.user, entry.job_class, entry.payload_bytes)
        self.observations.jobs[entry.job_class, state] += 1
        self._leases.job_ended(entry.lease)

    async def _until(
        self, live: LiveJob, states: Collection[JobState | None], seconds: float
    ) -> bool:
        """Wait until a job is in one of the states, and return whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while live.state not in states and not self.finished.is_set():
                    await live.wait()
        return live.state in states

    def _ends_before_maintenance(self, entry: PendingJob) -> bool:
        before = self.estimator.left(self.on_device[-1].entry) if self.on_device else 0
        end = time.time() + before + self.estimator.run_seconds(entry)
        return end <= (self.availability.next_maintenance or math.inf)


def _interruption(job: Job) -> Interruption | None:
    """Return what the former service was interrupting a job for."""
    if job.cancelling is not None:
        return CANCELLED
    return None if job.interrupting is None else Interruption(Cause.RESTART)


def _noted(note: str | None, ended: Ended, former: str | None = None) -> str | None:
    if not ended.surplus:
        return note
    return "; ".join(filter(None, (note or former, ended.surplus)))


def _fitting(told: Description) -> Fitting:
    return told.kinds, told.qubits, told.shots, told.out_of_service


async def _written(write: Callable[[], Future[_T]]) -> _T:
    try:
        return await asyncio.wrap_future(write())
    except sqlite3.OperationalError as error:
        logger.warning("a write failed, trying again: %s", error)
    return await asyncio.wrap_future(in_thread(lambda: written(write)))


def _with_timing(job: Job, ended: Ended, result: Result) -> Result:
    queued = job.queued_seconds
    timing: dict[str, JSON] = {
        "queued_seconds": 0.0 if queued is None else queued,
        "qpu_seconds": ended.used[0],
        "seconds": ended.used[1],
    }
    ours: dict[str, JSON] = {"job": job.id, "attempt": job.attempt, "timing": timing}
    return replace(result, info={**result.info, **ours})

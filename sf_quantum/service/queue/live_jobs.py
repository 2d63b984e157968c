"""The life of a job, from when it is on disk until it is over.

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

``PENDING``
    on disk as ``Queued``, and among the scheduling policy's jobs.
``STARTING``
    taken by the worker; ``Running`` is being written to disk.
``RUNNING``
    on disk as ``Running``; the device has it, or its outcome is being written.
``INTERRUPTED``
    it is to leave the device, or was pending and is cancelled; what becomes of it is
    being written. From here it goes back to ``PENDING`` if it was pre-empted, the QPU was
    closed or the service stops, if its cancellation could not be written, or if it was
    moved to another lease before the end of its own was on disk; else it is ``DONE``.
``DONE``
    on disk as ``Completed``, ``Failed`` or ``Cancelled``, and forgotten here.

(*) A pre-emption, a cancellation, the end of its lease, the closing of the QPU, the stop
of the service; of two, a cancellation counts. :data:`TRANSITIONS` is the whole table. A
service that was killed leaves jobs on disk as ``Running``; the next one finds them there
and lets them run again, which their notes say.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from sf_quantum.service.device.emulated import Device
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Lease, State, Submission
from sf_quantum.service.domain.reasons import (
    RELEASED,
    Cause,
    Interruption,
    LeaseEnd,
)
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.availability import Availability
from sf_quantum.service.queue.entitlements import JobCounts
from sf_quantum.service.queue.observations import Observations
from sf_quantum.service.scheduling.eta import Arrivals, Pace
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies.base import Policy
from sf_quantum.service.scheduling.work import PendingJob
from sf_quantum.service.store.store import Store

# how long to wait for the device to let go of a job: one read of a large problem may
# take seconds
LET_GO_SECONDS = 5.0
# how long to wait for a write before the disk is read again
WRITE_SECONDS = 0.1


class JobState(Enum):
    """Where a job is; see the module."""

    PENDING = auto()
    STARTING = auto()
    RUNNING = auto()
    INTERRUPTED = auto()
    DONE = auto()


_P, _S, _R, _I, _D = JobState
_SETTLED = {_P, _S, _R, _D}
_INTERRUPTIONS = {
    Cause.PREEMPTION,
    Cause.CANCELLATION,
    Cause.LEASE_END,
    Cause.QPU_CLOSED,
    Cause.SERVICE_STOP,
}
#: who may move a job from one state to another; ``None`` is before it is on disk
TRANSITIONS: Mapping[tuple[JobState | None, JobState], set[Cause]] = {
    (None, _P): {Cause.SUBMISSION, Cause.RESTART},
    (_P, _S): {Cause.WORKER},
    (_P, _I): {Cause.CANCELLATION, Cause.LEASE_END},
    (_S, _R): {Cause.WORKER},
    (_S, _I): _INTERRUPTIONS,
    (_S, _D): {Cause.WORKER},
    (_R, _I): _INTERRUPTIONS,
    (_R, _D): {Cause.WORKER},
    (_I, _I): {Cause.CANCELLATION, Cause.LEASE_END},
    (_I, _P): {Cause.WORKER, Cause.CANCELLATION, Cause.SUBMISSION},
    (_I, _D): {Cause.WORKER, Cause.CANCELLATION, Cause.LEASE_END},
}


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job that is not over.

    :param interruption: why it is, or was during this attempt, ``INTERRUPTED``
    :param began: when the worker took it, by the monotonic clock
    """

    entry: PendingJob
    state: JobState | None = None
    interruption: Interruption | None = None
    began: float = 0.0
    # made by who waits, set at the next transition
    moved: asyncio.Event | None = None

    @property
    def number(self) -> int:
        """The job's number."""
        return self.entry.number

    @property
    def leaves_with_lease(self) -> bool:
        """Whether the end of its lease, which is being written, cancels it."""
        interruption = self.interruption
        ends = interruption is not None and interruption.cause is Cause.LEASE_END
        return ends and self.state is _I

    def move(self, state: JobState, cause: Cause) -> None:
        """Go to another state.

        :raises RuntimeError: if that cause may not move it there
        """
        if cause not in TRANSITIONS.get((self.state, state), ()):
            raise RuntimeError(
                f"job {self.number}: {cause.name} cannot move it from "
                f"{self.state} to {state}"
            )
        self.state = state
        self.wake()

    def wake(self) -> None:
        """Wake those who wait for a transition."""
        if self.moved is not None:
            self.moved.set()
            self.moved = None

    async def wait(self) -> None:
        """Wait for the next transition, or for :meth:`wake`."""
        self.moved = self.moved or asyncio.Event()
        await self.moved.wait()


class LiveJobs:
    """The jobs that are not over; belongs to the event loop's thread.

    The worker takes one of them at a time, and says how its attempt ended.

    :param device: that they run on; see :meth:`replace_device`
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        settings: ServiceSettings,
        *,
        policy: Policy,
        availability: Availability,
        observations: Observations,
    ) -> None:
        self.device = device
        self.policy = policy
        self.pending = PendingJobs(policy, may_start=self._ends_before_maintenance)
        self.counts = JobCounts(settings)
        self.pace = Pace()
        self.arrivals = Arrivals(time.monotonic)
        #: the one that is on the device, or on its way there or away
        self.running: LiveJob | None = None
        #: whether the service is being stopped: no job starts any more
        self.stopping = False
        #: set when the job on the device is to leave it; made anew for each attempt
        self.leave = threading.Event()
        #: whether no pending job could start when the worker last looked
        self.none_may_start = False
        #: set when a job may have become the next to run
        self.changed = asyncio.Event()
        self._store = store
        self._availability = availability
        self._observations = observations
        self._jobs: dict[int, LiveJob] = {}
        # by id: the leases that take jobs, and when the last job of each was over, by the
        # monotonic clock
        self._leases: dict[str, Lease] = {}
        self._last_done: dict[str, float] = {}
        self._abandoned = False

    def resume(self) -> None:
        """Go on with the jobs that the service before this one left."""
        for job in self._store.live():
            self.counts.take(job.user, job.job_class)
            self._add(job, Cause.RESTART)

    def open_lease(self, lease: Lease) -> None:
        """Take jobs under a lease."""
        self._leases[lease.id] = lease
        self._last_done[lease.id] = time.monotonic()

    async def submit(self, lease: Lease, submission: Submission) -> tuple[Job, bool]:
        """Add a job; it is on disk when this returns.

        The write is under way before this first awaits anything: a lease that ends does
        so after it.

        :returns: the job, and whether it is new; one whose key was used before is moved
            to this lease if it is not over
        """
        seconds = self.device.model_seconds(submission.parameters)
        adding = asyncio.wrap_future(self._store.add_job(lease, submission, seconds))
        self.counts.take(lease.user, lease.job_class)
        # a caller who gives up waiting must not leave a job on disk that is not pending
        cancelling: list[asyncio.Task[None]] = []

        def added(written: asyncio.Future[tuple[Job, bool]]) -> None:
            if written.exception() is None:
                job, new = written.result()
                if new and (job.lease in self._leases or not lease.held):
                    self._add(job, Cause.SUBMISSION)
                    return
                if new:  # its lease has ended, and cancelled the job on disk
                    self._observations.job_ended(job.job_class, "Cancelled")
                else:
                    cancelling.extend(self._move_to_lease(job.number))
            self.counts.give_back(lease.user, lease.job_class)

        adding.add_done_callback(added)
        job, new = await asyncio.shield(adding)
        if not new:
            for task in cancelling:
                await asyncio.shield(task)
            await self.settled(job.number)
            job = self._store.job(job.number) or job
        return job, new

    async def settled(self, number: int) -> None:
        """Wait until a job that is being cancelled is over, or pending again.

        :raises Refused: 503 if the device does not let go of it
        """
        live = self._jobs.get(number)
        if live is None or live.interruption is None or not live.interruption.cancels:
            return
        if not await self._until(live, _SETTLED, LET_GO_SECONDS):
            detail = "the job is being cancelled, try again later"
            raise Refused(503, detail, headers={"Retry-After": "1"})

    async def wait(self, number: int, seconds: float) -> None:
        """Wait until a job is over, at most so long."""
        live = self._jobs.get(number)
        if live is not None and seconds > 0:
            await self._until(live, {_D}, seconds)
        elif seconds > 0:  # its submission or the end of its lease is being written
            await asyncio.sleep(min(seconds, WRITE_SECONDS))

    async def cancel(self, number: int, interruption: Interruption) -> None:
        """Cancel a job that is not over; one that runs has left the device after this.

        :raises sqlite3.Error: if it cannot be written down; the job is pending then
        """
        while True:
            live = self._jobs.get(number)
            if live is None:
                note = interruption.note()
                await asyncio.wrap_future(self._store.cancel_waiting(number, note))
                if number not in self._jobs:
                    return
                # it was on disk, and has been added only now
            elif live is self.running:
                self.interrupt(interruption)
                await self._until(live, {_D}, LET_GO_SECONDS)
                return
            elif live.state is _P or live.leaves_with_lease:
                await self._cancel_pending(live, interruption)
                return
            else:
                # its cancellation is being written, even if the worker has ended
                await live.wait()

    def interrupt(self, interruption: Interruption) -> None:
        """Stop the job on the device; of two interruptions a cancellation counts."""
        live = self.running
        if live is None:
            return
        known = live.interruption
        if known is None or (interruption.cancels and not known.cancels):
            live.interruption = interruption
            live.move(_I, interruption.cause)
        self.leave.set()

    def interrupt_lease(self, lease_id: str, end: LeaseEnd) -> list[LiveJob]:
        """Let no job of a lease start any more, and stop the one that runs.

        It is for the caller to write down that those that were pending are cancelled, and
        to call :meth:`end_lease` then.

        :returns: the jobs that leave
        """
        interruption = Interruption(Cause.LEASE_END, lease_end=end)
        self._leases.pop(lease_id, None)
        leaving = []
        for number in self.pending.of_lease(lease_id):
            self.pending.remove(number)
            live = self._jobs[number]
            live.interruption = interruption
            live.move(_I, Cause.LEASE_END)
            leaving.append(live)
        running = self.running
        if running is not None and running.entry.lease == lease_id:
            self.interrupt(interruption)
            leaving.append(running)
        return leaving

    async def end_lease(self, lease_id: str, leaving: Collection[LiveJob]) -> None:
        """Forget an ended lease and its jobs; the device has let go of them after this."""
        for live in leaving:
            if live is self.running:
                await self._until(live, {_D}, LET_GO_SECONDS)
            # one that another submission has moved to another lease lives on
            elif live.leaves_with_lease and live.entry.lease == lease_id:
                self._done(live, "Cancelled", Cause.LEASE_END)
        self._last_done.pop(lease_id, None)

    def busy(self, lease_id: str) -> bool:
        """Whether a lease has jobs that are not over."""
        running = self.running
        if running is not None and running.entry.lease == lease_id:
            return True
        return bool(self.pending.of_lease(lease_id))

    def last_done(self, lease_id: str) -> float:
        """When the last job of a lease was over, by the monotonic clock."""
        return self._last_done.get(lease_id, 0.0)

    @property
    def may_start(self) -> bool:
        """Whether jobs start now."""
        return self._availability.is_open and not self.stopping

    def look(self) -> None:
        """Look for the next job again: one came, or the QPU was opened.

        The next job interrupts the one that runs if the policy says so.
        """
        self.changed.set()
        self.none_may_start = False
        running = self.running
        if running is None or not self.may_start:
            return
        first = self.pending.first()
        if first is not None and self.policy.preempts(first, running.entry):
            self.interrupt(Interruption(Cause.PREEMPTION, first.job_class))

    def stop(self, drain_seconds: float) -> None:
        """Start no job any more, and put the running one back if it does not end soon."""
        self.stopping = True
        self.changed.set()
        stopped = Interruption(Cause.SERVICE_STOP)
        if drain_seconds <= 0:
            self.interrupt(stopped)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(drain_seconds, self.interrupt, stopped)

    def abandon(self) -> None:
        """Wake everybody who waits for a job: none will run any more."""
        self._abandoned = True
        for live in self._jobs.values():
            live.wake()

    def replace_device(self, device: Device) -> None:
        """Run the next jobs on a device whose settings were changed."""
        self.device = device
        for entry in self.pending.order():
            self.pending.remove(entry.number)
            entry.seconds = entry.qpu_seconds * device.time_scale
            self.pending.add(entry)
        self.look()

    # what the worker does

    def take(self) -> LiveJob | None:
        """Take the job that runs next; ``None`` if none may start."""
        entry = self.pending.pop() if self.may_start else None
        self.none_may_start = entry is None
        if entry is None:
            return None
        live = self.running = self._jobs[entry.number]
        live.move(_S, Cause.WORKER)
        live.began, live.interruption = time.monotonic(), None
        self.leave = threading.Event()
        self.arrivals.began()
        self.policy.began(entry)
        return live

    def started(self, live: LiveJob) -> None:
        """Note that it is on disk that a job runs."""
        if live.state is _S:  # else it was interrupted meanwhile
            live.move(_R, Cause.WORKER)

    def end_attempt(self, live: LiveJob, job: Job, qpu_seconds: float) -> None:
        """Note that it is on disk how an attempt ended.

        :param job: as it is then
        """
        self.arrivals.ended()
        self.policy.ended(live.entry, qpu_seconds)
        self.running = None
        if job.final:
            self._done(live, job.state, Cause.WORKER)
        else:
            self.pending.add(live.entry)
            live.move(_P, Cause.WORKER)
            self._note_done(live.entry.lease)

    # transitions

    def _add(self, job: Job, cause: Cause) -> LiveJob:
        lease = self._leases.get(job.lease)
        entry = PendingJob.of(job, self.device.time_scale, lease)
        live = self._jobs[job.number] = LiveJob(entry)
        live.move(_P, cause)
        self.arrivals.submitted(entry.job_class, self.expected_seconds(entry))
        self.pending.add(entry)
        self.look()
        return live

    async def _cancel_pending(self, live: LiveJob, interruption: Interruption) -> None:
        self.pending.remove(live.number)
        live.interruption = interruption
        live.move(_I, interruption.cause)
        try:
            note = interruption.note()
            await asyncio.wrap_future(self._store.cancel_waiting(live.number, note))
        except sqlite3.Error:
            # its lease may have ended meanwhile, which cancels it on disk; that of a
            # quality job takes no vQPU and is not among the leases
            if live.entry.lease in self._leases or live.entry.job_class == "quality":
                self._pend_again(live, Cause.CANCELLATION)
            else:
                self._done(live, "Cancelled", interruption.cause)
            raise
        self._done(live, "Cancelled", interruption.cause)

    def _move_to_lease(self, number: int) -> list[asyncio.Task[None]]:
        """Follow a job that is on disk under another lease now.

        :returns: what cancels it, if that lease has ended before it knew of the job
        """
        job, live = self._store.job(number), self._jobs.get(number)
        if job is None or job.final:
            return []
        if live is None:  # its former lease has just let it go
            self.counts.take(job.user, job.job_class)
            live = self._add(job, Cause.SUBMISSION)
        if (lease := self._leases.get(job.lease)) is None:
            if live is self.running:
                live.entry.lease = job.lease
            ended = Interruption(Cause.CANCELLATION, lease_end=RELEASED)
            return [asyncio.create_task(self.cancel(number, ended))]
        if live is self.running:  # whose share it uses, as the accounts will say
            self.policy.ended(live.entry, 0.0)
            live.entry.move_to(lease)
            self.policy.began(live.entry)
        elif live.state is _P:
            self.pending.move(number, lease)
        else:
            live.entry.move_to(lease)
            if live.leaves_with_lease:  # the end of its former lease misses it
                self._pend_again(live, Cause.SUBMISSION)
        return []

    def _pend_again(self, live: LiveJob, cause: Cause) -> None:
        live.interruption = None
        live.move(_P, cause)
        self.pending.add(live.entry)
        self.look()

    def _done(self, live: LiveJob, state: State, cause: Cause) -> None:
        live.move(_D, cause)
        del self._jobs[live.number]
        entry = live.entry
        self.counts.give_back(entry.user, entry.job_class)
        self._observations.job_ended(entry.job_class, state)
        self._note_done(entry.lease)

    def _note_done(self, lease_id: str) -> None:
        if lease_id in self._last_done:
            self._last_done[lease_id] = time.monotonic()

    async def _until(
        self, live: LiveJob, states: Collection[JobState | None], seconds: float
    ) -> bool:
        """Wait until a job is in one of some states, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while live.state not in states and not self._abandoned:
                    await live.wait()
        return live.state in states

    def expected_seconds(self, entry: PendingJob) -> float:
        return self.pace.job_seconds(entry.kind, entry.seconds)

    def _ends_before_maintenance(self, entry: PendingJob) -> bool:
        seconds = self.expected_seconds(entry)
        return self._availability.ends_before_maintenance(seconds)

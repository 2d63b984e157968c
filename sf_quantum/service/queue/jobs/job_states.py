"""The states of a job, from its submission on disk until its end.

::

    submission, restart           put back
            |   +---------------------------------- Interrupted ---------+
            v   v                                        ^               |
           Waiting <--------------> Pending        +-----+-----+         |
              |    -> lease granted    |   worker  |   Taken   |         |
              |    <- moved to         +---------->|     v     |         |
              |    another lease       |           | Starting  |         |
              |                        |           |     v     |         |
              | cancellation,          |           |  Running  |         |
              v end of its lease       |           +-----+-----+         |
          Withdrawn <------------------+                 |               |
              | on disk                                  | on disk       | on disk
              v                                          v               |
             Done <--------------------------------------+---------------+

A ``Taken``, ``Starting`` or ``Running`` job is interrupted by a pre-emption, a cancellation,
the end of its lease, the closing of the QPU, the stop of the service or a loss at the
device's vendor. The service also completes an interruption that the previous service process
had begun. A cancellation takes precedence over other reasons.

A ``Withdrawn`` job is ``Waiting`` again if its cancellation could not be written, or if the
job was moved to another lease before the end of its previous lease was on disk. A ``Waiting``
job becomes ``Pending`` immediately unless its lease waits for a vQPU. Jobs of the previous
service process that may be on the device are ``Taken`` immediately. :data:`TRANSITIONS` lists
all transitions.

Jobs that are on the device when the service is killed continue there, are queued again, fail
or are cancelled: see :func:`~sf_quantum.service.store.recovery.recover`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from sf_quantum.protocol.descriptions import Description
from sf_quantum.service.domain.jobs import Kind
from sf_quantum.service.domain.reasons import Cause, Interruption
from sf_quantum.service.queue.jobs.attempt import Attempt
from sf_quantum.service.queue.machine import Machine
from sf_quantum.service.scheduling.work import PendingJob

# Properties of a device that a job must fit: kinds of jobs, number of qubits, maximum number
# of shots, and qubits out of service. If they change, jobs are checked again.
Fitting: TypeAlias = tuple[tuple[Kind, ...], int, int | None, frozenset[int]]


def fitting(description: Description) -> Fitting:
    """Return the properties of a device that a job must fit."""
    return (
        description.kinds,
        description.qubits,
        description.shots,
        description.out_of_service,
    )


class State:
    """A state of a job."""


@dataclass(frozen=True)
class Done(State):
    """On disk as ``Completed``, ``Failed`` or ``Cancelled``; not in the job table."""


class Undispatched(State):
    """Not taken by the worker, so certainly not on the device."""

    def withdrawn(self, interruption: Interruption) -> Withdrawn:
        return Withdrawn(interruption)


@dataclass(frozen=True)
class Withdrawn(Undispatched):
    """Cancelled before the worker took it; the cancellation is being written."""

    interruption: Interruption

    def restored(self) -> Waiting:
        return Waiting()

    def written(self) -> Done:
        return Done()


class Queued(Undispatched):
    """On disk as ``Queued``, and may run."""


@dataclass(frozen=True)
class Waiting(Queued):
    """On disk as ``Queued``; waits with its lease for a vQPU."""

    def lease_granted(self) -> Pending:
        return Pending()

    def recovered(self) -> Taken:
        """The previous service process may have given the job to the device."""
        return Taken(recovered=True)


@dataclass(frozen=True)
class Pending(Queued):
    """On disk as ``Queued``, and among the jobs of the scheduling policy."""

    def taken(self) -> Taken:
        return Taken()

    def moved(self) -> Waiting:
        """The job was submitted again under another lease."""
        return Waiting()


class Dispatched(State):
    """Taken by the worker, but perhaps not yet submitted; the attempt's end is not on disk."""

    def interrupted(self, interruption: Interruption) -> Interrupted:
        raise NotImplementedError

    def ended(self) -> Done:
        return Done()


class Stage(Dispatched):
    """A stage of an attempt that has not been interrupted."""

    def interrupted(self, interruption: Interruption) -> Interrupted:
        return Interrupted(interruption, self)


@dataclass(frozen=True)
class Taken(Stage):
    """Taken by the worker, which reads the job, or writes its start to disk.

    :param recovered: whether the previous service process may have given the job to the device
    """

    recovered: bool = False

    def begun(self, attempt: Attempt) -> Starting:
        return Starting(attempt)


@dataclass(frozen=True)
class Starting(Stage):
    """Being submitted to the device, or waiting in its vendor's queue."""

    attempt: Attempt

    def seen_running(self, started: float | None) -> Running:
        return Running(self.attempt, started)


@dataclass(frozen=True)
class Running(Stage):
    """On disk as ``Running``; the device has the job, or its outcome is being written.

    :param started: time when the device began to run the job, by the store's clock
    """

    attempt: Attempt
    started: float | None


@dataclass(frozen=True)
class Interrupted(Dispatched):
    """Being interrupted on the device; or interrupted, and the next state is being written.

    :param stage: stage that the attempt had reached, or has reached despite the interruption
    """

    interruption: Interruption
    stage: Stage

    def interrupted(self, interruption: Interruption) -> Interrupted:
        """Return this state, with the new interruption if it takes precedence."""
        cause = interruption.cause
        # a pre-empted slice may finish, unless the service stops or the QPU is closed
        must_end = cause in (Cause.SERVICE_STOP, Cause.QPU_CLOSED)
        cuts_pause = self.interruption.cause is Cause.PREEMPTION and must_end
        if cuts_pause or (interruption.cancels and not self.interruption.cancels):
            return replace(self, interruption=interruption)
        return self

    def advanced(self, stage: Stage) -> Interrupted:
        """The attempt has begun, or is seen running, despite the interruption."""
        return replace(self, stage=stage)

    def put_back(self) -> Waiting:
        return Waiting()


TRANSITIONS: Mapping[type[State], frozenset[type[State]]] = {
    Waiting: frozenset({Pending, Taken, Withdrawn}),
    Pending: frozenset({Waiting, Taken, Withdrawn}),
    Withdrawn: frozenset({Withdrawn, Waiting, Done}),
    Taken: frozenset({Starting, Interrupted, Done}),
    Starting: frozenset({Running, Interrupted, Done}),
    Running: frozenset({Interrupted, Done}),
    Interrupted: frozenset({Interrupted, Waiting, Done}),
    Done: frozenset(),
}


class LiveJob(Machine[State]):
    """A job that has not ended.

    :param checked_for: properties of the device for which the job was checked; ``None``
        after a restart
    :ivar counted: id of the lease under which the estimator of waits counts the job;
        ``None`` if it does not count the job yet
    :ivar losses: number of times that the vendor has lost the job, for example because the
        vendor's lease ended
    :ivar is_left: whether the worker has ended, so the job stays in its state
    """

    transitions = TRANSITIONS

    def __init__(self, entry: PendingJob, checked_for: Fitting | None) -> None:
        super().__init__(Waiting())
        self.entry = entry
        self.checked_for = checked_for
        self.counted: str | None = None
        self.losses = 0
        self.is_left = False

    @property
    def number(self) -> int:
        return self.entry.number

    @property
    def interruption(self) -> Interruption | None:
        """The reason why the job is being interrupted or withdrawn."""
        if isinstance(self.state, Interrupted | Withdrawn):
            return self.state.interruption
        return None

    @property
    def ends_with_lease(self) -> bool:
        """Whether the end of the job's lease, which is being written, cancels the job."""
        state = self.state
        cause = state.interruption.cause if isinstance(state, Withdrawn) else None
        return cause is Cause.LEASE_END

    @property
    def stage(self) -> Stage | None:
        """The stage that the attempt has reached, even if it is interrupted."""
        state = self.state
        if isinstance(state, Interrupted):
            return state.stage
        return state if isinstance(state, Stage) else None

    @property
    def attempt(self) -> Attempt | None:
        stage = self.stage
        return stage.attempt if isinstance(stage, Starting | Running) else None

    @property
    def started(self) -> float | None:
        return self.stage.started if isinstance(self.stage, Running) else None

    def begin(self, attempt: Attempt) -> None:
        """Note that the attempt begins, even if it is interrupted."""
        if isinstance(stage := self.stage, Taken):
            self._advance(stage.begun(attempt))

    def see_running(self, started: float | None) -> None:
        """Note that the device runs the job; does nothing if this has been noted."""
        if isinstance(stage := self.stage, Starting):
            self._advance(stage.seen_running(started))

    def _advance(self, stage: Stage) -> None:
        state = self.expect(Dispatched)
        self.move(state.advanced(stage) if isinstance(state, Interrupted) else stage)

    def interrupt(self, interruption: Interruption) -> None:
        """Interrupt the attempt; of several interruptions, a cancellation takes precedence."""
        before = self.expect(Dispatched)
        after = before.interrupted(interruption)
        if after is not before:
            self.move(after)
            if self.attempt is not None:
                self.attempt.interrupt(interruption)
        elif self.attempt is not None and self.attempt.detaches(interruption):
            # the next service process completes the interruption, which is on disk
            self.attempt.leave()

    def leave_as_is(self) -> None:
        """Leave the job in its state to the next service process; end all waits for a move."""
        self.is_left = True
        self.wake()

    async def until(
        self, kinds: type[State] | tuple[type[State], ...], seconds: float
    ) -> bool:
        """Wait until the job is in a state of these kinds.

        The wait also ends after ``seconds``, and if the job is left to the next process.

        :returns: whether the job is in such a state
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not isinstance(self.state, kinds) and not self.is_left:
                    await self.moved.wait()
        return isinstance(self.state, kinds)


def device_state(on_device: Iterable[LiveJob]) -> Literal["busy", "waiting"] | None:
    """Return the state of a device with these jobs; ``None`` if it has no submitted job."""
    stages = [live.stage for live in on_device]
    if any(isinstance(stage, Running) for stage in stages):
        return "busy"
    return "waiting" if any(isinstance(stage, Starting) for stage in stages) else None

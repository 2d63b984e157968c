"""The states of a job, from when it is on disk until it is over.

::

    submission, restart
            |
            v  its lease is granted          worker
         Waiting <--------------> Pending ----------> Taken
          | ^    moved to another   |                   |
          | |    lease, which waits |                   v
          | +-------------------+   |                Starting
          |                     |   |                   |
          | cancellation,       |   |                   v
          | end of its lease    |   |                Running
          v                     |   |                   |
        Withdrawn <-------------|---+                   | (from any of the three)
          |                     | put back              v
          | on disk             +----------------- Interrupted
          v                                             |
         Done <-----------------------------------------+  its end is on disk

A job is interrupted for a pre-emption, a cancellation, the end of its lease, the closing of
the QPU, the stop of the service, the end of the lease at the device's vendor, or for one
of these that the former service had begun. A cancellation takes precedence. A ``Withdrawn``
job is ``Waiting`` again if its cancellation could not be written, or if it was moved to
another lease before the end of its own was on disk. A ``Waiting`` job becomes ``Pending``
immediately unless its lease waits for a vQPU. Jobs of the former service that may be on
the device are ``Taken`` at once. :data:`TRANSITIONS` is the whole table.

Jobs that a service leaves on its device when it is killed continue there, run again, or
have failed: see :func:`~sf_quantum.service.store.recovery.recover`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from sf_quantum.protocol.descriptions import Description
from sf_quantum.service.domain.jobs import Kind
from sf_quantum.service.domain.reasons import Cause, Interruption
from sf_quantum.service.queue.jobs.attempt import Attempt
from sf_quantum.service.queue.machine import Machine
from sf_quantum.service.scheduling.work import PendingJob

# What a job is checked against: kinds, qubits, shots and qubits out of service.
Fitting: TypeAlias = tuple[tuple[Kind, ...], int, int | None, frozenset[int]]


def fitting(description: Description) -> Fitting:
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
    """On disk as ``Completed``, ``Failed`` or ``Cancelled``; no longer in memory."""


class OffDevice(State):
    """Not taken by the worker."""

    def withdrawn(self, interruption: Interruption) -> Withdrawn:
        return Withdrawn(interruption)


@dataclass(frozen=True)
class Withdrawn(OffDevice):
    """Cancelled before the worker took it; this is being written."""

    interruption: Interruption

    def restored(self) -> Waiting:
        return Waiting()

    def written(self) -> Done:
        return Done()


class Queued(OffDevice):
    """On disk as ``Queued``, and may run."""


@dataclass(frozen=True)
class Waiting(Queued):
    """On disk as ``Queued``; waits with its lease for a vQPU."""

    def lease_granted(self) -> Pending:
        return Pending()

    def recovered(self) -> Taken:
        """The former service had given it to the device."""
        return Taken(recovered=True)


@dataclass(frozen=True)
class Pending(Queued):
    """On disk as ``Queued``, and among the jobs of the scheduling policy."""

    def taken(self) -> Taken:
        return Taken()

    def moved(self) -> Waiting:
        """It was submitted again under another lease."""
        return Waiting()


class OnDevice(State):
    """Taken by the worker; the end of the attempt is not on disk."""

    def interrupted(self, interruption: Interruption) -> Interrupted:
        raise NotImplementedError

    def ended(self) -> Done:
        return Done()


class Stage(OnDevice):
    """A stage of an attempt that nothing has interrupted."""

    def interrupted(self, interruption: Interruption) -> Interrupted:
        return Interrupted(interruption, self)


@dataclass(frozen=True)
class Taken(Stage):
    """The worker has taken it, and reads it or notes on disk that it runs.

    :param recovered: whether the former service had given it to the device
    """

    recovered: bool = False

    def begun(self, attempt: Attempt) -> Starting:
        return Starting(attempt)


@dataclass(frozen=True)
class Starting(Stage):
    """It is being submitted to the device, or waits in its vendor's queue."""

    attempt: Attempt

    def seen_running(self, started: float | None) -> Running:
        return Running(self.attempt, started)


@dataclass(frozen=True)
class Running(Stage):
    """On disk as ``Running``; the device has it, or its outcome is being written.

    :param started: when the device began to run it, by the store's clock
    """

    attempt: Attempt
    started: float | None


@dataclass(frozen=True)
class Interrupted(OnDevice):
    """It is being interrupted on the device, or its next state is being written.

    :param stage: how far the attempt is
    """

    interruption: Interruption
    stage: Stage

    def interrupted(self, interruption: Interruption) -> Interrupted:
        """Return this state, unless the other interruption takes precedence."""
        cause = interruption.cause
        # a pause would end too late
        ends = cause in (Cause.SERVICE_STOP, Cause.QPU_CLOSED)
        paused = self.interruption.cause is Cause.PREEMPTION and ends
        if paused or (interruption.cancels and not self.interruption.cancels):
            return replace(self, interruption=interruption)
        return self

    def advanced(self, stage: Stage) -> Interrupted:
        """The attempt has begun, or is seen running, in spite of the interruption."""
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
    """A job that is not over.

    :param checked_for: the device that it was checked against; ``None`` after a restart
    :ivar counted: the lease under which the estimator counts it; ``None``: not yet
    :ivar losses: how often its vendor has ended it with the vendor's lease
    :ivar is_left: whether the worker has ended, so that the job stays as it is
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
        """The reason why it is being interrupted or withdrawn."""
        if isinstance(self.state, Interrupted | Withdrawn):
            return self.state.interruption
        return None

    @property
    def ends_with_lease(self) -> bool:
        """Whether the end of its lease, which is being written, cancels it."""
        state = self.state
        ends = isinstance(state, Withdrawn) and state.interruption.cause
        return ends is Cause.LEASE_END

    @property
    def stage(self) -> Stage | None:
        """How far its attempt is, interrupted or not."""
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
        """Note that its attempt begins, interrupted or not."""
        if isinstance(stage := self.stage, Taken):
            self._advance(stage.begun(attempt))

    def see_running(self, started: float | None) -> None:
        """Note that the device runs it, unless that is known already."""
        if isinstance(stage := self.stage, Starting):
            self._advance(stage.seen_running(started))

    def _advance(self, stage: Stage) -> None:
        state = self.expect(OnDevice)
        self.move(state.advanced(stage) if isinstance(state, Interrupted) else stage)

    def interrupt(self, interruption: Interruption) -> None:
        """Interrupt its attempt; a cancellation replaces another reason."""
        before = self.expect(OnDevice)
        after = before.interrupted(interruption)
        if after is not before:
            self.move(after)
            if self.attempt is not None:
                self.attempt.interrupt(interruption)
        elif self.attempt is not None and self.attempt.detaches(interruption):
            self.attempt.leave()  # its cancellation is on disk

    def leave(self) -> None:
        """Leave it to the next service as it is; nobody waits for it any more."""
        self.is_left = True
        self.wake()

    async def until(
        self, kinds: type[State] | tuple[type[State], ...], seconds: float
    ) -> bool:
        """Wait until it is in a state of some kinds, and return whether it is.

        It does not move any more once it is left to the next service.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not isinstance(self.state, kinds) and not self.is_left:
                    await self.moved.wait()
        return isinstance(self.state, kinds)

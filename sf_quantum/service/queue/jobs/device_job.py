"""A job on the device: submit it, follow it, read its result; cancel it at any time.

All of it blocks. What is known of the job when the service dies depends on where it is::

    to be submitted    on disk: the device's identity, which says that there may be a job
    submitted          on disk: the job's id on the device as well
    over               on disk: how the job ended; then the device may forget it

The next service goes on from there (:func:`~sf_quantum.service.store.recovery.recover`).
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import islice
from typing import TypeVar

from sf_quantum import backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.tasks import (
    OVER,
    NotAccepted,
    Outcome,
    Progress,
    Task,
    UnknownJob,
)
from sf_quantum.qpu import AuthenticationError
from sf_quantum.service.device.protocol import Device
from sf_quantum.service.domain.jobs import Job, Recovery
from sf_quantum.service.domain.reasons import MAY_RUN_ON, NOT_FOUND_AGAIN, VANISHED
from sf_quantum.service.queue.jobs.giving_up import (
    GivenUp,
    Hope,
    Hopeless,
    abandon,
)
from sf_quantum.service.store.store import Store
from sf_quantum.text import one_line

logger = logging.getLogger(__name__)
# Tries to read the result of a finished job, if the device answers other requests.
RESULT_TRIES = 8
# Tries to find and cancel duplicate submissions of a finished job.
SURPLUS_TRIES = 4
# the longest pause before a submission is tried again: a device that was asked to wait for
# longer is not asked by that
SUBMISSION_SECONDS = 60.0
# letters of the reason why a job is given up
MOST_WHY = 300
UNREAD = "its result cannot be read"
T = TypeVar("T")


class Interrupt(Enum):
    """How an attempt is interrupted."""

    #: the job is cancelled on the device
    CANCEL = auto()
    #: what is on the device ends, and nothing more is submitted
    PAUSE = auto()
    #: the job goes on, for the next service
    DETACH = auto()


class Detached(Exception):
    """The job was left to the next service."""


def written(write: Callable[[], Future[T]]) -> T:
    """Write to disk; repeated for as long as the disk is full, for example. Blocks."""
    pauses = backoff.DATABASE.pauses()
    while True:
        try:
            return write().result()
        except sqlite3.OperationalError as error:
            logger.warning("a write failed, trying again: %s", error)
        time.sleep(next(pauses))


def runs_again(device: Device, job: Job) -> bool:
    """Whether a job may run again that has been killed on the device.

    Where nothing can be learnt of it afterwards, it may still run there.
    """
    return device.recovery is not Recovery.LOST or job.repeatable


@dataclass
class Control:
    """What is asked of an attempt from other threads."""

    interrupt: Interrupt | None = None
    #: the service stops: what the device has is left to the next one, even if it is to end
    leave: bool = False
    #: Note of a job that is to be queued again; on disk before the device is told to
    #: stop it.
    note: str | None = None
    wake: threading.Event = field(default_factory=threading.Event)


class DeviceJob:
    """A job, or a slice of one, on the device.

    :param job: job as it is on disk
    :param submitted: called when it is there
    :param running: called when the device is seen to run it, perhaps again
    :param job_id: its id on the device, if it is there already
    :param began: time when a previous service saw it run, on the monotonic clock
    :param unsure: whether a previous service may have submitted it
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        job: Job,
        task: Task,
        control: Control,
        submitted: Callable[[], None],
        running: Callable[[], None],
        *,
        job_id: str | None = None,
        began: float | None = None,
        unsure: bool = False,
    ) -> None:
        self.id = job_id
        self.progress = Progress("Queued")
        self._store = store
        self._device = device
        self._job = job
        self._task = task
        self._control = control
        self._submitted_there = submitted
        self._running = running
        self._unsure = unsure
        # whether it may have been submitted twice, here or by a former service
        self._perhaps_twice = unsure or job_id is not None
        #: what became of jobs beside it, of submissions that arrived late; for users
        self.surplus = ""
        self._cancelling = threading.Lock()
        self._cancelling_sent = False
        self._cancelled = False
        # Time since when the job is on the device, and time when it was first seen
        # running.
        self._submitted_at: float | None = None
        self._began = began
        self._overdue = False
        #: set when it is followed no longer
        self.given_up: GivenUp | None = None
        self._hope = Hope(device)

    @property
    def _asked(self) -> Interrupt | None:
        return self._control.interrupt

    @property
    def _is_to_end(self) -> bool:
        return self._asked is Interrupt.CANCEL or self._overdue

    def run(self) -> Outcome | None:
        """Run it until it is over.

        :returns: how it ended; ``None`` if it was interrupted before it was submitted
        :raises InputError: if it is refused, or cannot be found again
        :raises Detached: if it was left to the next service
        """
        try:
            job_id = self.id = self.id or self._submitted()
            if job_id is None:
                return None
            self._submitted_there()
            outcome = self._followed_to_end(job_id)
        except Hopeless as error:
            return self._abandoned(str(error))
        self._cancel_surplus(job_id)
        return outcome if outcome.result is not None else self._explained(outcome)

    def _check_hope(self, error: QpuError | InputError | None) -> None:
        self._hope.check(error, self.progress.state, is_to_end=self._is_to_end)

    def _abandoned(self, why: str) -> Outcome:
        """Return the end of a job that is given up.

        It is not run again, since it may run on, unless it is repeatable.
        """
        why = one_line(why)[:MOST_WHY]
        device, job_id, note = self._device, self.id, self._control.note
        self.given_up = GivenUp(job_id, self._task.tag, why)
        self.surplus = f"{MAY_RUN_ON}: {why}"
        logger.warning("job %s: %s", self._job.id, self.surplus)
        abandon(device, job_id, cancel=not self._is_to_end)
        if self._asked is Interrupt.CANCEL:
            again = note is None or self._job.repeatable
            return Outcome(failure=None if again else note)
        ran = f"it ran for more than {device.longest_seconds or 0.0:g} s"
        return Outcome(failure=ran if self._overdue else "its fate is unknown")

    # submission

    def _submitted(self) -> str | None:
        """Submit the job; ``None`` if it was interrupted before that."""
        unsure = self._unsure
        for pause in backoff.VENDOR.pauses():
            try:
                if unsure and (job_id := self._arrived()) is not None:
                    return self._kept(job_id)
                self._perhaps_twice = self._perhaps_twice or unsure
                unsure = False
                if self._asked is not None or not self._sent():
                    return None
                return self._kept(self._device.submit(self._task))
            except NotAccepted as error:
                trouble: QpuError | AuthenticationError = error
                self._note(error)
                self._not_sent(unsure)
                pause = max(pause, min(error.retry_seconds or 0.0, SUBMISSION_SECONDS))
            except AuthenticationError as error:
                # the site's credentials, no mistake of the job
                trouble = error
                self._note(error)
                self._not_sent(unsure)
            except QpuError as error:
                unsure = self._may_have_run(error)
                text = "job %s: it is not known whether it was submitted: %s"
                logger.warning(text, self._job.id, error)
                trouble = error
            if unsure:
                self._check_hope(trouble)
                pause = self._hope.pause(pause)
            self._pause(pause)
            if self._leaves and unsure:
                raise Detached
        return None

    def _sent(self) -> bool:
        """Note that the device may have the job from now on; not if it is over."""
        if self._device.recovery is Recovery.AGAIN:
            return True
        number, identity = self._job.number, self._device.identity
        return not written(lambda: self._store.progress.send(number, identity)).final

    def _not_sent(self, unsure: bool) -> None:
        """Note that the device has no such job."""
        if self._device.recovery is not Recovery.AGAIN and not unsure:
            written(lambda: self._store.progress.not_sent(self._job.number))

    def _arrived(self) -> str | None:
        """Look for the job of a submission without an answer while it may arrive."""
        deadline = backoff.Deadline(self._device.late_seconds)
        for pause in backoff.VENDOR.pauses():
            job_id = self._device.find(self._task.tag)
            if job_id is not None or not deadline.left:
                return job_id
            self._pause(min(pause, deadline.left))
            if self._leaves:
                raise Detached
        return None

    def _may_have_run(self, error: QpuError) -> bool:
        """Whether the device is asked for the job, after a submission without an answer.

        :raises InputError: if it cannot be, and the job must not run twice
        """
        recovery = self._device.recovery
        if recovery is Recovery.BY_TAG:
            return True
        if recovery is Recovery.AGAIN or self._job.repeatable:
            return False
        raise InputError(f"{error}; {NOT_FOUND_AGAIN}")

    def _kept(self, job_id: str) -> str:
        if self._device.recovery is Recovery.AGAIN:
            return job_id
        # The vendor's id is on disk before anything else is done with the job.
        written(lambda: self._store.progress.submitted(self._job.number, job_id))
        return job_id

    # the job on the device

    def _followed_to_end(self, job_id: str) -> Outcome:
        try:
            return self._followed(job_id)
        except UnknownJob as error:
            return self._vanished(error)

    def _followed(self, job_id: str) -> Outcome:
        device, task = self._device, self._task
        self._submitted_at = time.monotonic()
        pauses = backoff.VENDOR.pauses()
        while self.progress.state not in OVER:
            trouble: QpuError | AuthenticationError | None = None
            try:
                self.cancel_if_asked()
                self.progress = device.poll(job_id, task)
                pauses = backoff.VENDOR.pauses()
            except UnknownJob:
                raise
            except (QpuError, AuthenticationError) as error:
                trouble = error
                self._note(error)
                self._pause(self._hope.pause(next(pauses)))
            if self.progress.state == "Running":
                self._began = self._began or time.monotonic()
                self._running()
                self._check_duration()
            if self._leaves:
                raise Detached
            if self.progress.state not in OVER:
                self._check_hope(trouble)
        return self._read(job_id, pauses)

    def _explained(self, outcome: Outcome) -> Outcome:
        """Say why a job has failed that the service has stopped."""
        device, note = self._device, self._control.note
        if self._overdue and self._asked is None:
            failure = f"it ran for more than {device.longest_seconds:g} s"
            # nor would it be shorter if it ran again
            return replace(outcome, failure=failure, lost=None)
        if outcome.failure is None and note and not runs_again(device, self._job):
            return replace(outcome, failure=f"{note}; {NOT_FOUND_AGAIN}")
        return outcome

    def _cancel_surplus(self, job_id: str) -> None:
        """Cancel what a submission that arrived after all has left beside a job."""
        device = self._device
        if not self._perhaps_twice or device.recovery is not Recovery.BY_TAG:
            return
        for pause in islice(backoff.VENDOR.pauses(), SURPLUS_TRIES):
            try:
                if not (others := device.others(self._task.tag, job_id)):
                    return
                late = (
                    f"a submission arrived late, as {', '.join(others)} on the device"
                )
                self.surplus = f"{late}, and could not be cancelled"
                for other in others:
                    device.cancel(other)
                self.surplus = f"{late}, and was cancelled: it may have been billed"
                return
            except (QpuError, AuthenticationError) as error:
                self._note(error)
            self._pause(pause)

    def _check_duration(self) -> None:
        longest = self._device.longest_seconds
        self._overdue = longest is not None and self.seconds(False) > longest

    def seconds(self, completed: bool) -> float:
        """Return for how long it has been seen to run.

        :param completed: whether it has run, even if it was not seen
        """
        began = self._began or (self._submitted_at if completed else None)
        return 0.0 if began is None else time.monotonic() - began

    def give_up(self) -> None:
        """Cancel the job on the device, whose fate cannot be followed any more."""
        with suppress(Exception):
            job_id = self.id
            if job_id is None and self._device.recovery is Recovery.BY_TAG:
                job_id = self._device.find(self._task.tag)
            if job_id is not None:
                self._device.cancel(job_id)

    def _read(self, job_id: str, pauses: Iterator[float]) -> Outcome:
        failed = 0
        while True:
            try:
                return self._device.result(job_id, self._task)
            except UnknownJob:
                raise
            except AuthenticationError as error:
                trouble: QpuError | AuthenticationError = error
            except QpuError as error:
                trouble = error
            if self._leaves:
                raise Detached
            self._note(trouble)
            try:
                self._check_hope(trouble)
            except Hopeless as error:  # it has ended, which is all that is known
                return Outcome(
                    failure=None if self._is_to_end else f"{UNREAD}: {error}"
                )
            self._pause(self._hope.pause(next(pauses)))
            # a vendor that does not answer at all is waited for
            failed += self._is_answered(job_id)
            if failed == RESULT_TRIES:
                return Outcome(failure=f"{UNREAD}: {trouble}")

    def _is_answered(self, job_id: str) -> bool:
        with suppress(QpuError, AuthenticationError):
            self._device.poll(job_id, self._task)
            return True
        return False

    def _vanished(self, error: UnknownJob) -> Outcome:
        if self._cancelling_sent:
            return Outcome()
        # a job that waited for its turn ended with its lease, and has cost nothing
        waited = error.lease_lost and self._began is None
        if waited or self._job.repeatable:
            return Outcome(lost=str(error))
        return Outcome(failure=f"{error}; {VANISHED}")

    def cancel_if_asked(self) -> None:
        """Cancel the job on the device, if that was asked for and it is there."""
        with self._cancelling:
            job_id = self.id
            if job_id is None or self._cancelled or not self._is_to_end:
                return
            self._note_interruption()
            # the device may forget the job before it has answered
            self._cancelling_sent = True
            with suppress(QpuError, InputError):
                self._device.cancel(job_id)
                self._cancelled = True

    def _note_interruption(self) -> None:
        job, note = self._job, self._control.note
        if note is None or self._device.recovery is Recovery.AGAIN:
            return
        try:
            written(
                lambda: self._store.progress.note_interruption(
                    job.number, job.attempt, note
                )
            )
        except sqlite3.OperationalError as error:
            # only a crash in the next moments would make it matter
            self._note(error)

    @property
    def _leaves(self) -> bool:
        return self._control.leave or self._asked is Interrupt.DETACH

    def _pause(self, seconds: float) -> None:
        if self._control.wake.wait(seconds):
            # once; after that, at the vendor's pace again
            self._control.wake.clear()

    def _note(self, error: Exception) -> None:
        logger.warning("job %s: %s", self._job.id, error)

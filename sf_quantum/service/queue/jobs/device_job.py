"""A job on the device: follows the job, reads its result, and cancels it at any time.

All functions block. If the service dies, the disk has the following about the job, and the
next service process continues there (:func:`~sf_quantum.service.store.recovery.recover`)::

    to be submitted    the device's identity, which shows that the device may have the job
    submitted          also the job's id on the device
    ended              how the job ended; the device may now forget the job
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from sf_quantum import backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.tasks import (
    OVER,
    Outcome,
    Progress,
    Task,
    UnknownJob,
)
from sf_quantum.qpu import AuthenticationError
from sf_quantum.service.device.interface import Device, DeviceJobs
from sf_quantum.service.domain.jobs import Job, Recovery
from sf_quantum.service.domain.reasons import MAY_RUN_ON, NOT_FOUND_AGAIN, VANISHED
from sf_quantum.service.queue.jobs.attempt_control import Control, Detached, Interrupt
from sf_quantum.service.queue.jobs.device_submission import DeviceSubmission
from sf_quantum.service.queue.jobs.giving_up import (
    GivenUp,
    Hope,
    Hopeless,
    abandon,
)
from sf_quantum.service.queue.writing import written
from sf_quantum.service.store.store import Store
from sf_quantum.text import one_line

logger = logging.getLogger(__name__)
# number of attempts to read the result of a finished job while the device responds to other
# requests
RESULT_TRIES = 8
# maximum length of the reason why a job is given up
MOST_WHY = 300
UNREAD = "its result cannot be read"


def runs_again(device_jobs: DeviceJobs, job: Job) -> bool:
    """Return whether a job that was interrupted on the device may run again.

    If the outcome of the job cannot be determined, it may still run on the device.
    """
    return device_jobs.recovery is not Recovery.LOST or job.repeatable


class DeviceJob:
    """A job, or a slice of a job, on the device.

    :param job: job as stored on disk
    :param submitted: called when the device has the job
    :param running: called when the device is seen to run the job, perhaps repeatedly
    :param job_id: id of the job on the device, if the device has it already
    :param began: time from which a previous service process saw the job run, by the monotonic
        clock
    :param unsure: whether a previous service process may have submitted the job
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
        self._device_jobs = device.jobs
        self._job = job
        self._task = task
        self._control = control
        self._on_submitted = submitted
        self._on_running = running
        #: remark for the job's note: about duplicates of the job on the device, if a lost
        #: submission arrived late, or about the given-up job
        self.surplus = ""
        self._cancel_lock = threading.Lock()
        self._cancelling_sent = False
        self._cancelled = False
        # when the job was submitted, and when it was first seen running
        self._submitted_at: float | None = None
        self._began = began
        self._overdue = False
        #: set when the job is no longer followed
        self.given_up: GivenUp | None = None
        self._hope = Hope(device.jobs)
        self._submission = DeviceSubmission(
            store,
            device,
            job,
            task,
            control,
            self._hope,
            unsure=unsure,
            perhaps_twice=unsure or job_id is not None,
        )

    @property
    def _is_to_end(self) -> bool:
        return self._control.interrupt is Interrupt.CANCEL or self._overdue

    def run(self) -> Outcome | None:
        """Run the job until it has ended.

        :returns: how the job ended; ``None`` if it was interrupted before it was submitted
        :raises InputError: if the device rejects the job, or if the job may have run, cannot
            be found and must not run twice
        :raises Detached: if the job was left to the next service process
        """
        try:
            job_id = self.id = self.id or self._submission.run()
            if job_id is None:
                return None
            self._on_submitted()
            outcome = self._follow_to_end(job_id)
        except Hopeless as error:
            return self._abandon(str(error))
        self.surplus = self._submission.cancel_surplus(job_id)
        return outcome if outcome.result is not None else self._explain(outcome)

    def _check_hope(self, error: QpuError | InputError | None) -> None:
        self._hope.check(error, self.progress.state, is_to_end=self._is_to_end)

    def _abandon(self, why: str) -> Outcome:
        """Return the outcome of a job that is given up.

        The job may still run, so it is not run again unless it is repeatable.
        """
        why = one_line(why)[:MOST_WHY]
        device_jobs, job_id, note = self._device_jobs, self.id, self._control.note
        self.given_up = GivenUp(job_id, self._task.tag, why)
        self.surplus = f"{MAY_RUN_ON}: {why}"
        logger.warning("job %s: %s", self._job.id, self.surplus)
        abandon(device_jobs, job_id, cancel=not self._is_to_end)
        if self._control.interrupt is Interrupt.CANCEL:
            may_repeat = note is None or self._job.repeatable
            return Outcome(failure=None if may_repeat else note)
        overrun = f"it ran for more than {device_jobs.longest_seconds or 0.0:g} s"
        return Outcome(failure=overrun if self._overdue else "its fate is unknown")

    def _follow_to_end(self, job_id: str) -> Outcome:
        try:
            return self._follow(job_id)
        except UnknownJob as error:
            return self._outcome_of_unknown(error)

    def _follow(self, job_id: str) -> Outcome:
        task = self._task
        self._submitted_at = time.monotonic()
        pauses = backoff.VENDOR.pauses()
        while self.progress.state not in OVER:
            request_error: QpuError | AuthenticationError | None = None
            try:
                self.cancel_if_asked()
                self.progress = self._device_jobs.poll(job_id, task)
                pauses = backoff.VENDOR.pauses()
            except UnknownJob:
                raise
            except (QpuError, AuthenticationError) as error:
                request_error = error
                self._log(error)
                self._control.pause(self._hope.pause(next(pauses)))
            if self.progress.state == "Running":
                self._began = self._began or time.monotonic()
                self._on_running()
                self._check_duration()
            if self._control.leaves:
                raise Detached
            if self.progress.state not in OVER:
                self._check_hope(request_error)
        return self._read_result(job_id, pauses)

    def _explain(self, outcome: Outcome) -> Outcome:
        """Add the reason to the outcome of a job that the service itself has stopped."""
        device_jobs, note = self._device_jobs, self._control.note
        if self._overdue and self._control.interrupt is None:
            failure = f"it ran for more than {device_jobs.longest_seconds:g} s"
            # not lost: the job would take just as long if it ran again
            return replace(outcome, failure=failure, lost=None)
        if outcome.failure is None and note and not runs_again(device_jobs, self._job):
            return replace(outcome, failure=f"{note}; {NOT_FOUND_AGAIN}")
        return outcome

    def _check_duration(self) -> None:
        longest = self._device_jobs.longest_seconds
        self._overdue = longest is not None and self.seconds(False) > longest

    def seconds(self, completed: bool) -> float:
        """Return for how long the job has been seen to run.

        :param completed: whether the job has completed; if it was never seen running, its
            submission counts as the start
        """
        began = self._began or (self._submitted_at if completed else None)
        return 0.0 if began is None else time.monotonic() - began

    def give_up(self) -> None:
        """Cancel the job on the device after an unexpected error."""
        with suppress(Exception):
            job_id = self.id
            if job_id is None and self._device_jobs.recovery is Recovery.BY_TAG:
                job_id = self._device_jobs.find(self._task.tag)
            if job_id is not None:
                self._device_jobs.cancel(job_id)

    def _read_result(self, job_id: str, pauses: Iterator[float]) -> Outcome:
        failures = 0
        while True:
            try:
                return self._device_jobs.result(job_id, self._task)
            except UnknownJob:
                raise
            except AuthenticationError as error:
                request_error: QpuError | AuthenticationError = error
            except QpuError as error:
                request_error = error
            if self._control.leaves:
                raise Detached
            self._log(request_error)
            try:
                self._check_hope(request_error)
            except Hopeless as error:  # not given up: the job has certainly ended
                return Outcome(
                    failure=None if self._is_to_end else f"{UNREAD}: {error}"
                )
            self._control.pause(self._hope.pause(next(pauses)))
            # an attempt counts only if the vendor responds to other requests
            failures += self._is_answered(job_id)
            if failures == RESULT_TRIES:
                return Outcome(failure=f"{UNREAD}: {request_error}")

    def _is_answered(self, job_id: str) -> bool:
        with suppress(QpuError, AuthenticationError):
            self._device_jobs.poll(job_id, self._task)
            return True
        return False

    def _outcome_of_unknown(self, error: UnknownJob) -> Outcome:
        if self._cancelling_sent:
            return Outcome()
        # a job that had not run when the vendor's lease ended has cost nothing
        had_not_run = error.lease_lost and self._began is None
        if had_not_run or self._job.repeatable:
            return Outcome(lost=str(error))
        return Outcome(failure=f"{error}; {VANISHED}")

    def cancel_if_asked(self) -> None:
        """Cancel the job on the device, if the job is to end and the device has it."""
        with self._cancel_lock:
            job_id = self.id
            if job_id is None or self._cancelled or not self._is_to_end:
                return
            self._note_interruption()
            # the device may forget the job before it responds to the cancellation
            self._cancelling_sent = True
            with suppress(QpuError, InputError):
                self._device_jobs.cancel(job_id)
                self._cancelled = True

    def _note_interruption(self) -> None:
        job, note = self._job, self._control.note
        if note is None or self._device_jobs.recovery is Recovery.RERUN:
            return
        try:
            written(
                lambda: self._store.progress.note_interruption(
                    job.number, job.attempt, note
                )
            )
        except sqlite3.OperationalError as error:
            # the note is needed only if the service crashes within the next moments
            self._log(error)

    def _log(self, error: Exception) -> None:
        logger.warning("job %s: %s", self._job.id, error)

"""One attempt at a job on the device: submit, follow, read the result; cancel at any time.

It runs in a thread of its own and blocks there. What happens to it when the service dies
depends on where it is::

    to be submitted    on disk: the device's identity, which says that there may be a job
    submitted          on disk: the job's id on the device as well
    over               on disk: how the job ended; then the device may forget it

The next service goes on from there (:meth:`~sf_quantum.service.store.store.Store.recover`).
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from itertools import islice

from sf_quantum import backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import AuthenticationError
from sf_quantum.qpu.jobs import OVER, NotAccepted, Outcome, Progress, Task, UnknownJob
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.protocol import Device
from sf_quantum.service.domain.jobs import Job, Recovery
from sf_quantum.service.domain.reasons import NOT_FOUND_AGAIN, VANISHED
from sf_quantum.service.store.store import Store
from sf_quantum.threads import in_thread

logger = logging.getLogger(__name__)
# of an answer of the device about a job that is over
RESULT_TRIES = 6
# of the id of a submitted job
WRITE_TRIES = 5


class Interrupt(Enum):
    """How an attempt is interrupted."""

    #: the job is cancelled on the device
    CANCEL = auto()
    #: the job goes on, for the next service
    DETACH = auto()


class Detached(Exception):
    """The attempt was left to the next service."""


class Attempt:
    """One attempt at a job; :meth:`run` blocks, the others may be called from any thread.

    :param job: as on disk; with the job's id on the device if it is there already
    :param running: called once, when the device is seen to run the job
    :param check: whether the device has changed since the job was checked against it
    :param unsure: whether a former service may have submitted it
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        job: Job,
        running: Callable[[], None],
        *,
        check: bool = False,
        unsure: bool = False,
    ) -> None:
        self.progress = Progress("Queued")
        self._store = store
        self._device = device
        self._job = job
        self._running = running
        self._seen_running = False
        self._check = check
        self._id = job.device_job
        self._interrupt: Interrupt | None = None
        self._wake = threading.Event()
        self._cancelling = threading.Lock()
        self._cancelled = False
        # the former service may have submitted it, and lost the answer
        self._unsure = unsure

    def interrupt(self, how: Interrupt) -> None:
        """Interrupt the attempt; a cancellation takes precedence. Returns at once."""
        if self._interrupt is not Interrupt.CANCEL:
            self._interrupt = how
        self._wake.set()
        # beside the thread of run(), which may be waiting for the device
        in_thread(self._cancel_if_asked)

    def run(self) -> Outcome:
        """Run the job until it is over.

        :returns: how it ended, with all its times; without result and failure if it was
            cancelled
        :raises Detached: if it was left to the next service
        """
        begin = time.monotonic()
        calibration = self._device.description.calibration
        try:
            outcome = self._run()
        except InputError as error:
            outcome = Outcome(failure=str(error))
        except Detached:
            raise
        except Exception as error:  # noqa: BLE001 - no job's content ends the service
            outcome = Outcome(failure=f"{type(error).__name__}: {error}")
        told = outcome.calibration
        if told is None and self._id and calibration is not None:
            # unless it has been renewed meanwhile
            same = self._device.description.calibration == calibration
            told = calibration if same else None
        outcome = replace(outcome, calibration=told and _summary(told))
        return self._timed(outcome, time.monotonic() - begin)

    def _run(self) -> Outcome:
        job = self._job
        payload = self._store.payload(job.number)
        tag = f"sfq-{job.id}-{job.attempt}"
        task = Task(tag, job.kind, payload, job.parameters, job.number, job.attempt)
        if self._id is None:
            self._id = self._submitted(task)
        if self._id is None:
            return Outcome(qpu_seconds=0.0)
        return self._followed(self._id, task)

    # submission

    def _submitted(self, task: Task) -> str | None:
        """Submit the job; ``None`` if it was interrupted before that."""
        device, unsure = self._device, self._unsure
        for pause in backoff.VENDOR.pauses():
            if self._interrupt is not None and not unsure:
                return None
            try:
                if unsure and (job_id := device.find(task.tag)) is not None:
                    return self._kept(job_id)
                unsure = False
                if self._interrupt is None:
                    self._check_again(task)
                    return self._kept(device.submit(task))
            except NotAccepted as error:
                self._note(error)
                pause = max(pause, error.retry_seconds or 0.0)
            except AuthenticationError as error:
                # the site's credentials, no mistake of the job
                self._note(error)
            except QpuError as error:
                self._note(error)
                unsure = self._may_have_run(error)
            self._pause(pause)
            if self._interrupt is Interrupt.DETACH and unsure:
                raise Detached
        return None

    def _check_again(self, task: Task) -> None:
        """Refuse a job that no longer fits the device, before it costs anything."""
        if not self._check:
            return
        try:
            self._device.check(task.kind, json.loads(task.payload), task.parameters)
        except FieldError as error:
            what = f"{error.field}: {error.detail}"
            text = f"the device has changed since the job was submitted: {what}"
            raise InputError(text) from error

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
        # before anything else is done with it
        for pause in islice(backoff.DATABASE.pauses(), WRITE_TRIES):
            try:
                self._store.submitted(self._job.number, job_id).result()
            except sqlite3.OperationalError as error:
                self._note(error)
                time.sleep(pause)
            else:
                return job_id
        # after a crash, it may be found by its tag
        return job_id

    # the job on the device

    def _followed(self, job_id: str, task: Task) -> Outcome:
        device = self._device
        pauses = backoff.VENDOR.pauses()
        while self.progress.state not in OVER:
            try:
                self._cancel_if_asked()
                self.progress = device.poll(job_id, task)
                pauses = backoff.VENDOR.pauses()
            except UnknownJob as error:
                return self._vanished(error)
            except (QpuError, AuthenticationError) as error:
                self._note(error)
                self._pause(next(pauses))
            if self.progress.state == "Running" and not self._seen_running:
                self._seen_running = True
                self._running()
            if self._interrupt is Interrupt.DETACH:
                raise Detached
        return self._read(job_id, task, pauses)

    def _read(self, job_id: str, task: Task, pauses: Iterator[float]) -> Outcome:
        for _ in range(RESULT_TRIES):
            try:
                return self._device.result(job_id, task)
            except UnknownJob as error:
                return self._vanished(error)
            except AuthenticationError as error:
                trouble: Exception = error
            except QpuError as error:
                trouble = error
            if self._interrupt is Interrupt.DETACH:
                raise Detached
            self._note(trouble)
            self._pause(next(pauses))
        return Outcome(failure=f"its result cannot be read: {trouble}")

    def _vanished(self, error: UnknownJob) -> Outcome:
        if self._cancelled:
            return Outcome()
        return Outcome(failure=f"{error}; {VANISHED}")

    def _cancel_if_asked(self) -> None:
        with self._cancelling:
            job_id, asked = self._id, self._interrupt is Interrupt.CANCEL
            if job_id is None or self._cancelled or not asked:
                return
            with suppress(QpuError, InputError):
                self._device.cancel(job_id)
                self._cancelled = True

    def _pause(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            # once; after that, at the vendor's pace again
            self._wake.clear()

    def _note(self, error: Exception) -> None:
        logger.warning("job %s: %s", self._job.id, error)

    def _timed(self, outcome: Outcome, seconds: float) -> Outcome:
        """Fill in the times that the device does not tell."""
        job = self._job
        if outcome.seconds is None:
            outcome = replace(outcome, seconds=seconds if self._id else 0.0)
        if outcome.qpu_seconds is None:
            modelled = job.model_seconds if self._id else 0.0
            if outcome.result is None:
                modelled = min(modelled, outcome.seconds or 0.0)
            outcome = replace(outcome, qpu_seconds=modelled)
        return outcome


def _summary(calibration: dict[str, JSON]) -> dict[str, JSON]:
    """Return what the service tells of a calibration, whatever its vendor tells."""
    known = calibration.get("values")
    values: dict[str, JSON] = {
        name: value
        for name, value in (known if isinstance(known, dict) else {}).items()
        if isinstance(value, int | float)
    }
    id_, made = calibration.get("id"), calibration.get("time")
    return {
        "id": str(id_ or ""),
        **({"time": str(made)} if made else {}),
        "values": values,
    }

"""One run of a job: its attempt on the device, and the writes to disk about the attempt."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Result
from sf_quantum.service.domain.jobs import Job, Recovery
from sf_quantum.service.domain.jobs import State as StoredState
from sf_quantum.service.domain.reasons import CANCELLED, Cause, Interruption
from sf_quantum.service.queue.events import log_job
from sf_quantum.service.queue.jobs.attempt import Attempt, Ended
from sf_quantum.service.queue.jobs.attempt_control import Detached
from sf_quantum.service.queue.jobs.device_job import runs_again
from sf_quantum.service.queue.jobs.giving_up import GivenUp
from sf_quantum.service.queue.jobs.job_states import (
    Dispatched,
    LiveJob,
    Starting,
    Taken,
    device_state,
    fitting,
)
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.service.queue.writing import written
from sf_quantum.service.store import given_up
from sf_quantum.threads import in_thread

T = TypeVar("T")
logger = logging.getLogger(__name__)


class JobRun:
    """A run of a job that the worker has taken; belongs to the event loop's thread.

    :param slice_seconds: see :class:`.Attempt`
    :param max_losses: number of losses at the vendor after which a job fails
    """

    def __init__(
        self,
        table: JobTable,
        live: LiveJob,
        slice_seconds: float | None,
        max_losses: int,
    ) -> None:
        self._table = table
        self._store = table.store
        self._device = table.device
        self._live = live
        self._slice_seconds = slice_seconds
        self._max_losses = max_losses
        # the task that writes that the device runs the job
        self._starting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run an attempt until its end is on disk, or leave the job to the next process."""
        live, number = self._live, self._live.number
        if self._device.jobs.recovery is Recovery.RERUN:
            # on disk before the device has the job, so that no attempt is unrecorded
            job = await _write(lambda: self._store.progress.start(number))
        elif (stored := self._store.jobs.get(number)) is None:
            raise RuntimeError(f"job {number} is not on disk")
        else:
            job = stored
        if job.final:  # cancelled meanwhile
            self._table.attempt_ended(live, job, 0.0)
            return
        if (earlier := _interruption(job)) is not None:
            # The previous service process may have died before it interrupted the job.
            # A cancellation also takes precedence if the QPU was closed meanwhile.
            live.interrupt(earlier)
        attempt = self._begin(job)
        if job.state == "Running":
            self._note_running(job)
        if live.interruption is not None:
            attempt.interrupt(live.interruption)
        self._note_device_state()
        try:
            ended, result = await asyncio.wrap_future(
                in_thread(lambda: self._run_attempt(attempt, job))
            )
        except Detached:
            return
        await self._finish(job, self._retry_if_lost(ended), result)

    def _begin(self, job: Job) -> Attempt:
        live, loop = self._live, asyncio.get_running_loop()

        def submitted() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._table.changed.set)
                # a finished slice may be on disk
                loop.call_soon_threadsafe(live.wake)

        def running() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_running)

        live.entry.preemptible = runs_again(self._device.jobs, job)
        stage = live.stage
        recovered = isinstance(stage, Taken) and stage.recovered
        attempt = Attempt(
            self._store,
            self._device,
            job,
            submitted,
            running,
            slice_seconds=self._slice_seconds,
            check=live.checked_for != fitting(self._device.description),
            unsure=recovered and job.device_job is None,
        )
        live.begin(attempt)
        return attempt

    def _on_running(self) -> None:
        """Write that the device runs the job, which was in the vendor's queue until now."""
        if isinstance(self._live.stage, Starting) and self._starting is None:
            self._starting = asyncio.create_task(self._write_running(0.0))

    async def _write_running(self, seconds_ago: float) -> None:
        number = self._live.number
        self._note_running(
            await _write(lambda: self._store.progress.start(number, seconds_ago))
        )

    def _note_running(self, job: Job) -> None:
        """Note that the job is on disk as ``Running``."""
        self._live.see_running(job.started_steady)
        self._note_device_state()
        log_job("started", job, attempt=job.attempt, waited=job.queued_seconds)
        self._table.observations.attempt_started(job)

    def _note_device_state(self) -> None:
        if (state := device_state(self._table.on_device)) is not None:
            self._table.observations.enter(state)

    def _run_attempt(self, attempt: Attempt, job: Job) -> tuple[Ended, str | None]:
        """Run the attempt, and make the job's result; blocks."""
        ended = attempt.run()
        if ended.outcome.result is None:
            return ended, None
        started = self._store.jobs.get(job.number) or job
        return ended, _with_timing(started, ended, ended.outcome.result).whole

    def _retry_if_lost(self, ended: Ended) -> Ended:
        """Run a job again if the vendor has lost it, unless this has happened too often."""
        live, outcome = self._live, ended.outcome
        if outcome.lost is None or live.interruption is not None:
            return ended
        live.losses += 1
        if live.losses < self._max_losses:
            lost = Interruption(Cause.VENDOR, lost=outcome.lost)
            live.move(live.expect(Dispatched).interrupted(lost))
            return ended
        failure = f"{outcome.lost} ({live.losses} times)"
        return replace(ended, outcome=replace(outcome, failure=failure))

    async def _finish(self, job: Job, ended: Ended, result: str | None) -> None:
        """Write the end of the attempt."""
        table, number, outcome = self._table, job.number, ended.outcome
        if self._starting is not None:
            await self._starting
        elif job.started is None and (outcome.result or outcome.failure):
            # the job ended before it was seen running
            await self._write_running(outcome.seconds or 0.0)
        table.observations.qpu_seconds[job.job_class] += ended.spent
        if ended.given_up is not None:
            await _write(self._given_up_record(job, ended, ended.given_up))
        settled = await _write(lambda: self._write_end(job, ended, result))
        interruption = self._live.interruption
        if not settled.final and interruption is not None:
            if (
                interruption.cancels
            ):  # the job was cancelled while its return to the queue was written
                note = interruption.note()
                settled = await _write(
                    lambda: self._store.progress.cancel_waiting(number, note)
                )
            else:
                now = self._store.clock()
                times = self._live.started or now, now
                cause = interruption.cause
                table.observations.attempt_interrupted(job.job_class, cause, *times)
        # Neither the accounting nor the policy charges an interrupted slice: it has no
        # result, and its charge would delay the user's next jobs.
        uncharged = 0.0 if settled.final else ended.last[0]
        table.attempt_ended(self._live, settled, ended.spent - uncharged)

    def _write_end(self, job: Job, ended: Ended, result: str | None) -> Future[Job]:
        outcome, note = ended.outcome, ended.outcome.failure
        state: StoredState = "Completed" if note is None else "Failed"
        if note is None and result is None:
            interruption = self._live.interruption or CANCELLED
            note = job.cancelling or interruption.note(job.attempt)
            if not interruption.cancels:
                note = _with_remark(job.interrupting or note, ended) or note
                return self._store.progress.put_back(job.number, note, ended.last)
            state = "Cancelled"
        price = self._device.price
        return self._store.progress.finish(
            job.number,
            state,
            note=_with_remark(note, ended, job.note),
            used=ended.used,
            cost=None if price is None else price * ended.last[0],
            result=result,
            calibration=outcome.calibration,
        )

    def _given_up_record(
        self, job: Job, ended: Ended, lost: GivenUp
    ) -> Callable[[], Future[None]]:
        entry = given_up.Entry(
            0,
            job.number,
            self._device.identity,
            lost.device_job,
            lost.tag,
            lost.why,
            self._store.clock(),
            ended.last[0],
            self._device.price,
            job.attempt,
        )
        return lambda: given_up.record(self._store, job, entry)


def _interruption(job: Job) -> Interruption | None:
    """Return how the previous service process was interrupting a job; else ``None``."""
    if job.cancelling is not None:
        return CANCELLED
    return None if job.interrupting is None else Interruption(Cause.RESTART)


def _with_remark(
    note: str | None, ended: Ended, earlier: str | None = None
) -> str | None:
    if not ended.surplus:
        return note
    return "; ".join(filter(None, (note or earlier, ended.surplus)))


async def _write(write: Callable[[], Future[T]]) -> T:
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
    service_info: dict[str, JSON] = {
        "job": job.id,
        "attempt": job.attempt,
        "timing": timing,
    }
    return replace(result, info={**result.info, **service_info})

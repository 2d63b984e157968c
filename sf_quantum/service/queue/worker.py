"""Runs jobs on the device, one after the other, and stores their outcomes."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

from sf_quantum import backoff
from sf_quantum.files import JSON
from sf_quantum.service.device.emulated import Outcome, Task
from sf_quantum.service.domain.jobs import Job, State
from sf_quantum.service.domain.reasons import CANCELLED
from sf_quantum.service.queue.live_jobs import LiveJob, LiveJobs
from sf_quantum.service.queue.observations import DeviceState
from sf_quantum.threads import in_thread

_T = TypeVar("_T")
logger = logging.getLogger(__name__)
# of a failed write
RETRIES = 4


class Worker:
    """The one worker of a device; belongs to the event loop's thread."""

    def __init__(self, jobs: LiveJobs) -> None:
        #: held while a job runs; the device is changed under it
        self.between_jobs = asyncio.Lock()
        #: set when the worker has ended
        self.finished = asyncio.Event()
        self._jobs = jobs
        self._store = jobs.store
        self._observations = jobs.observations
        self._on_device = False

    @property
    def device_state(self) -> DeviceState:
        if self._on_device:
            return "busy"
        if self.finished.is_set() or self._jobs.stopping:
            return "offline"
        status = self._jobs.availability.status
        if status != "open":
            return status
        held_back = self._jobs.none_may_start and len(self._jobs.pending) > 0
        return "held" if held_back else "idle"

    async def work(self) -> None:
        try:
            while not self._jobs.stopping:
                self._jobs.changed.clear()
                async with self.between_jobs:
                    live = self._jobs.take()
                    if live is not None:
                        await self._run(live)
                if live is None:
                    self._observations.enter(self.device_state)
                    await self._jobs.changed.wait()
        finally:
            self.finished.set()
            self._jobs.abandon()

    async def _run(self, live: LiveJob) -> None:
        number, leave = live.number, self._jobs.leave
        # on disk before the device starts, so that no attempt goes unrecorded
        started = await _written(lambda: self._store.start(number))
        if started.state != "Running":  # cancelled meanwhile
            self._jobs.end_attempt(live, started, 0.0)
            return
        self._jobs.started(live)
        self._observations.attempt_started(started)
        self._enter(on_device=True)
        outcome, result = await asyncio.wrap_future(
            in_thread(lambda: self._attempt(started, leave))
        )
        self._observations.qpu_seconds[started.job_class] += outcome.qpu_seconds
        self._enter(on_device=False)
        job = await _written(lambda: self._settle(live, started, outcome, result))
        if job.state == "Completed":
            observed = time.monotonic() - live.began
            self._jobs.pace.observe(live.entry.kind, live.entry.seconds, observed)
        elif not job.final and live.interruption is not None:
            if live.interruption.cancels:
                # cancelled while its return to the queue was written
                note = live.interruption.note()
                job = await _written(lambda: self._store.cancel_waiting(number, note))
            else:
                began, cause = started.started or time.time(), live.interruption.cause
                self._observations.attempt_interrupted(job.job_class, cause, began)
        self._jobs.end_attempt(live, job, outcome.qpu_seconds)

    def _enter(self, *, on_device: bool) -> None:
        self._on_device = on_device
        self._observations.enter(self.device_state)

    def _settle(
        self, live: LiveJob, job: Job, outcome: Outcome, result: str | None
    ) -> Future[Job]:
        used = (outcome.qpu_seconds, outcome.seconds)
        state: State = "Completed"
        note = outcome.failure
        if note is not None:
            state = "Failed"
        elif result is None:
            interruption = live.interruption or CANCELLED
            note = interruption.note(job.attempt)
            if not interruption.cancels:
                return self._store.put_back(job.number, note, used)
            state = "Cancelled"
        return self._store.finish(
            job.number,
            state,
            note=note,
            used=used,
            result=result,
            calibration=outcome.calibration,
        )

    def _attempt(self, job: Job, leave: threading.Event) -> tuple[Outcome, str | None]:
        used = 0.0, 0.0
        try:
            content = self._store.payload(job.number)
            task = Task(job.number, job.attempt, job.kind, content, job.parameters)
            outcome = self._jobs.device.run(task, leave)
            used = outcome.qpu_seconds, outcome.seconds
            if outcome.failure is not None or outcome.result is None:
                return outcome, None
            return outcome, json.dumps(_with_timing(job, outcome, outcome.result))
        except Exception as error:  # noqa: BLE001 - no job's content ends the service
            return Outcome(None, f"{type(error).__name__}: {error}", *used), None


async def _written(write: Callable[[], Future[_T]]) -> _T:
    """Write to disk; repeated if the file is locked, for example."""
    for pause in islice(backoff.DATABASE.pauses(), RETRIES):
        try:
            return await asyncio.wrap_future(write())
        except sqlite3.OperationalError as error:
            logger.warning("a write failed, trying again: %s", error)
        await asyncio.sleep(pause)
    return await asyncio.wrap_future(write())


def _with_timing(
    job: Job, outcome: Outcome, result: dict[str, JSON]
) -> dict[str, JSON]:
    info = result.get("info")
    timing: dict[str, JSON] = {
        "queued_seconds": (job.started or job.submitted) - job.submitted,
        "qpu_seconds": outcome.qpu_seconds,
        "seconds": outcome.seconds,
    }
    given = info if isinstance(info, dict) else {}
    ours: dict[str, JSON] = {"job": job.id, "attempt": job.attempt, "timing": timing}
    return {**result, "info": {**given, **ours}}

"""Feeds the device, one job at a time, and stops the one that runs."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from sf_quantum.files import JSON
from sf_quantum.service.device.emulated import Device, Outcome, Task
from sf_quantum.service.domain.jobs import Job, State
from sf_quantum.service.queue.observations import Observations
from sf_quantum.service.scheduling.eta import Arrivals, Pace
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.work import PendingJob
from sf_quantum.service.store.store import Store
from sf_quantum.threads import in_thread

_T = TypeVar("_T")
logger = logging.getLogger(__name__)
PREEMPTED = "pre-empted by a {class} job during attempt {attempt}"
CLOSED = "interrupted: the QPU was closed during attempt {attempt}"
STOPPED = "interrupted: the service was stopped during attempt {attempt}"
# before a write that failed is tried again
PAUSES = (0.1, 0.4, 1.0, 2.0)


@dataclass(frozen=True)
class Stop:
    """Why the running job is stopped.

    :param cancel: whether it is over then, or waits again
    """

    note: str
    cancel: bool


@dataclass
class Running:
    """The job on the device.

    :param began: by the monotonic clock
    :param over: set when it is on disk how the attempt ended
    """

    entry: PendingJob
    began: float = field(default_factory=time.monotonic)
    why: Stop | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Worker:
    """Takes jobs out of the line while it may; belongs to the event loop's thread.

    :param may_start: asked before each job
    :param ended: called with each job whose attempt has ended, one way or another
    :param observed: counts attempts and the device's time
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        line: PendingJobs,
        *,
        may_start: Callable[[], bool],
        ended: Callable[[Job], None],
        observed: Observations,
    ) -> None:
        self.running: Running | None = None
        self.pace = Pace()
        self.arrivals = Arrivals(time.monotonic)
        self._store = store
        self.device = device
        self._line = line
        self.may_start = may_start
        self._ended = ended
        self._observed = observed
        observed.holds = lambda: self._found_none and len(line) > 0
        # since it was last told to look for a job to start
        self._found_none = False
        self._stopping = False
        self._changed = asyncio.Event()
        # held by a job while it runs; who waits for it goes before the next job
        self.between_jobs = asyncio.Lock()

    def look(self) -> None:
        """Look at the line again: a job came, or the QPU was opened.

        The next job stops the one that runs if the policy says so.
        """
        self._changed.set()
        self._found_none = False
        running = self.running
        if running is None or not self.may_start():
            return
        first = self._line.first()
        if first is not None and self._line.policy.preempts(first, running.entry):
            note = PREEMPTED.replace("{class}", first.job_class)
            self.interrupt(Stop(note, cancel=False))

    def interrupt(self, why: Stop) -> None:
        """Stop the running job; to cancel it goes before to let it wait again."""
        running = self.running
        if running is None:
            return
        if running.why is None or (why.cancel and not running.why.cancel):
            running.why = why
        running.stop.set()

    def stop(self, drain_seconds: float) -> None:
        """Start no job any more, and stop the running one if it does not end soon."""
        self._stopping = True
        self._changed.set()
        why = Stop(STOPPED, cancel=False)
        if drain_seconds <= 0:
            self.interrupt(why)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(drain_seconds, self.interrupt, why)

    async def work(self) -> None:
        """Run jobs until stopped."""
        while not self._stopping:
            self._changed.clear()
            async with self.between_jobs:
                entry = self._line.pop() if self.may_start() else None
                if entry is not None:
                    await self._run(Running(entry))
            if entry is None:
                self._found_none = True
                self._observed.look()
                await self._changed.wait()

    async def _run(self, running: Running) -> None:
        entry = running.entry
        self.running = running
        self.arrivals.began()
        self._line.policy.began(entry)
        # on disk before the device sees it: it never runs again without saying so
        job = await _written(lambda: self._store.start(entry.number))
        if job.state != "Running":  # cancelled meanwhile
            self.arrivals.ended()
            self._line.policy.ended(entry, 0.0)
            self.running = None
            running.over.set()
            self._ended(job)
            return
        self._observed.began(job)
        await self._attempt(job, running)

    async def _attempt(self, started: Job, running: Running) -> None:
        entry = running.entry
        outcome, result = await asyncio.wrap_future(
            in_thread(lambda: self._on_device(started, running.stop))
        )
        self._observed.left(entry.job_class, outcome.qpu_seconds)
        job = await _written(lambda: self._settle(started, running, outcome, result))
        if job.state == "Completed":
            observed = time.monotonic() - running.began
            self.pace.observe(entry.kind, entry.seconds, observed)
        elif not job.final and running.why is not None and running.why.cancel:
            # cancelled while it was written down that it waits again
            number, note = job.number, running.why.note
            job = await _written(lambda: self._store.cancel_waiting(number, note))
        self.arrivals.ended()
        self._line.policy.ended(entry, outcome.qpu_seconds)
        self.running = None
        if not job.final:
            self._observed.waits_again(job, started.started or time.time())
            self._line.add(entry)
        running.over.set()
        self._ended(job)

    def _settle(
        self, job: Job, running: Running, outcome: Outcome, result: str | None
    ) -> Future[Job]:
        used = (outcome.qpu_seconds, outcome.seconds)
        state: State = "Completed"
        note = outcome.failure
        if note is not None:
            state = "Failed"
        elif result is None:
            why = running.why or Stop("cancelled", cancel=True)
            note = why.note.format(attempt=job.attempt)
            if not why.cancel:
                return self._store.put_back(job.number, note, used)
            state = "Cancelled"
        return self._store.finish(
            *(job.number, state),
            note=note,
            used=used,
            result=result,
            calibration=outcome.calibration,
        )

    def _on_device(self, job: Job, stop: threading.Event) -> tuple[Outcome, str | None]:
        used = 0.0, 0.0
        try:
            content = self._store.payload(job.number)
            task = Task(job.number, job.attempt, job.kind, content, job.parameters)
            outcome = self.device.run(task, stop)
            used = outcome.qpu_seconds, outcome.seconds
            if outcome.failure is not None or outcome.result is None:
                return outcome, None
            return outcome, json.dumps(_timed(job, outcome, outcome.result))
        except Exception as error:  # noqa: BLE001 - no job's content ends the service
            return Outcome(None, f"{type(error).__name__}: {error}", *used), None


async def _written(write: Callable[[], Future[_T]]) -> _T:
    """Write something down, again if the file was locked for example."""
    for pause in PAUSES:
        try:
            return await asyncio.wrap_future(write())
        except sqlite3.OperationalError as error:
            logger.warning("a change is not on disk, tried again: %s", error)
        await asyncio.sleep(pause)
    return await asyncio.wrap_future(write())


def _timed(job: Job, outcome: Outcome, result: dict[str, JSON]) -> dict[str, JSON]:
    info = result.get("info")
    timing: dict[str, JSON] = {
        "queued_seconds": (job.started or job.submitted) - job.submitted,
        "qpu_seconds": outcome.qpu_seconds,
        "seconds": outcome.seconds,
    }
    given = info if isinstance(info, dict) else {}
    ours: dict[str, JSON] = {"job": job.id, "attempt": job.attempt, "timing": timing}
    return {**result, "info": {**given, **ours}}

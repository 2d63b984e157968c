"""The worker, which gives jobs to the device in the policy's order and interrupts them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence

from sf_quantum.service.domain.reasons import Cause, Interruption
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.jobs.job_run import JobRun
from sf_quantum.service.queue.jobs.job_states import (
    Done,
    LiveJob,
    Queued,
    device_state,
)
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.service.queue.observations import DeviceState

logger = logging.getLogger(__name__)
# longest wait for the device to interrupt a job
INTERRUPT_SECONDS = 5.0
# longest wait for the device to interrupt all its jobs when the service stops
STOP_SECONDS = 8.0


class Worker:
    """Keeps the device supplied with jobs; belongs to the event loop's thread.

    A device runs one job at a time. A vendor's queue may hold further jobs.

    :ivar stopping: whether the service is stopping, and so starts no job
    :ivar none_may_start: whether no pending job could start when the worker last tried
    :ivar device_lock: lock that is held while jobs are on the device, or while the
        device is being replaced
    :ivar finished: set when the worker has ended
    """

    def __init__(self, table: JobTable, settings: ServiceSettings) -> None:
        self.stopping = False
        self.none_may_start = False
        self.device_lock = asyncio.Lock()
        self.finished = asyncio.Event()
        self.table = table
        self._slice_seconds = settings.slice_seconds
        # the setting also limits how often the vendor may end a job
        self._max_losses = settings.service_deaths
        # monotonic time by which the worker ends in any case
        self._ends_by = math.inf
        self._interrupting: asyncio.Task[None] | None = None

    @property
    def may_start(self) -> bool:
        return self.table.availability.accepts_work and not self.stopping

    @property
    def device_state(self) -> DeviceState:
        table = self.table
        if (state := device_state(table.on_device)) is not None:
            return state
        availability = table.availability
        if self.finished.is_set() or self.stopping or availability.device_reason:
            return "offline"
        if availability.status != "open":
            return availability.status
        return "held" if self.none_may_start and len(table.pending) > 0 else "idle"

    def start(self) -> None:
        """Add jobs that the service's previous process left unfinished to the table."""
        for job in self.table.store.jobs.live():
            if job.device is None:
                self.table.added(job)
            else:
                self.table.recovered(job)

    def stop(self, drain_seconds: float) -> None:
        """Start no more jobs, and interrupt the jobs on the device after ``drain_seconds``."""
        self.stopping = True
        self._ends_by = time.monotonic() + drain_seconds + STOP_SECONDS
        self.table.changed.set()
        if drain_seconds <= 0:
            self._interrupt_all()
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(drain_seconds, self._interrupt_all)

    def _interrupt_all(self) -> None:
        for live in self.table.on_device:
            live.interrupt(Interruption(Cause.SERVICE_STOP))

    async def work(self) -> None:
        """Give jobs to the device until the service stops."""
        table, runs = self.table, set[asyncio.Task[None]]()
        if table.on_device:  # the previous service process left jobs running
            await self.device_lock.acquire()
        for live in table.on_device:
            runs.add(asyncio.create_task(self._run(live)))
        try:
            while not self.stopping:
                table.changed.clear()
                for ended in [run for run in runs if run.done()]:
                    runs.remove(ended)
                    ended.result()
                self._preempt()
                if (taken := await self._take()) is not None:
                    runs.add(asyncio.create_task(self._run(taken)))
                    continue
                self._note_state()
                await table.changed.wait()
            await self._await_runs(runs)
        finally:
            for run in runs:
                run.cancel()
            self.finished.set()
            for live in table:
                live.leave_as_is()

    async def _await_runs(self, runs: set[asyncio.Task[None]]) -> None:
        """Wait for the runs in progress when the service stops, for a limited time.

        A job that is on the device after that time stays there for the next service process,
        which finds everything it needs on disk.
        """
        while runs:
            seconds_left = max(0.0, self._ends_by - time.monotonic())
            ended, runs = await asyncio.wait(runs, timeout=seconds_left)
            for run in ended:
                run.result()
            if not ended:
                text = "%d jobs stay on the device for the next service process"
                logger.warning(text, len(runs))
                for run in runs:
                    run.cancel()
                return

    async def _take(self) -> LiveJob | None:
        """Take the next job for the device, unless the device has enough jobs."""
        on_device = self.table.on_device
        if len(on_device) >= self.table.device.jobs.depth:
            return None
        if on_device:
            attempt = on_device[-1].attempt
            if attempt is None or not attempt.submitted:
                return None  # the next job could overtake the last job
        else:
            await self.device_lock.acquire()
        live = self.table.take() if self.may_start else None
        self.none_may_start = live is None
        if live is None and not on_device:
            self.device_lock.release()
        return live

    async def _run(self, live: LiveJob) -> None:
        table = self.table
        run = JobRun(table, live, self._slice_seconds, self._max_losses)
        try:
            await run.run()
        finally:
            table.on_device.remove(live)
            if not table.on_device:
                self.device_lock.release()
            self._note_state()
            table.changed.set()

    def _note_state(self) -> None:
        self.table.observations.enter(self.device_state)

    # pre-emption, and closing of the QPU

    def _preempt(self) -> None:
        """Interrupt the jobs on the device that the next pending job pre-empts."""
        table = self.table
        if not table.on_device or not self.may_start or self._is_interrupting:
            return
        if (first := table.pending.first()) is not None:
            preempts = table.policy.preempts
            jobs = [live for live in table.on_device if preempts(first, live.entry)]
            self.interrupt_jobs(jobs, Interruption(Cause.PREEMPTION, first.job_class))

    def interrupt_jobs(
        self, jobs: Sequence[LiveJob], interruption: Interruption
    ) -> None:
        """Interrupt jobs on the device, the last job first.

        Otherwise, the end of one job would let the next job start.
        """
        pausing = [
            live
            for live in jobs
            if live.attempt is not None and live.attempt.lets_slice_finish(interruption)
        ]
        for live in pausing:  # immediately, so that no further slice is submitted
            live.interrupt(interruption)
        others = [live for live in jobs if live not in pausing]
        if len(others) < 2 or self._is_interrupting:
            for live in others:
                live.interrupt(interruption)
        else:
            work = self._interrupt_in_turn(others, interruption)
            self._interrupting = asyncio.create_task(work)

    @property
    def _is_interrupting(self) -> bool:
        return self._interrupting is not None and not self._interrupting.done()

    async def _interrupt_in_turn(
        self, jobs: Sequence[LiveJob], interruption: Interruption
    ) -> None:
        for live in reversed(jobs):
            if live in self.table.on_device:
                live.interrupt(interruption)
                await live.until((Queued, Done), INTERRUPT_SECONDS)

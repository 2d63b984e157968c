"""The endless tasks of a job queue, which watch operators' changes, the device and Slurm."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import suppress
from functools import partial

from sf_quantum.service.domain.reasons import Cause, Interruption
from sf_quantum.service.queue.jobs.worker import Worker
from sf_quantum.service.queue.leases.slurm_jobs import OwnCluster
from sf_quantum.service.queue.leases.vqpus import VQpus
from sf_quantum.service.queue.upkeep.given_up_search import Search
from sf_quantum.service.queue.upkeep.slurm_watch import SlurmWatch
from sf_quantum.service.queue.upkeep.supervisor import Supervisor
from sf_quantum.service.store.reports import operation
from sf_quantum.service.store.retention import purge_regularly, trim_regularly
from sf_quantum.threads import in_thread

# longest wait for the device's first report before the service responds to requests
FIRST_REPORT_SECONDS = 5.0
logger = logging.getLogger(__name__)


class EndlessTasks:
    """Reports changes by operators, the device and Slurm to jobs and leases.

    :ivar supervisor: runs the tasks; other modules may add tasks
    """

    def __init__(self, worker: Worker, vqpus: VQpus, cluster: OwnCluster) -> None:
        self.supervisor = Supervisor()
        self._worker = worker
        self._jobs = jobs = worker.table
        self._vqpus = vqpus
        self._cluster = cluster
        self._availability = jobs.availability
        # set once the device has reported its status
        self._reported = asyncio.Event()

    def start(self) -> None:
        """Start the tasks; the device may be offline."""
        ends = self._vqpus.ends
        run, store, device = self.supervisor.run, self._jobs.store, self._jobs.device
        run("availability", self._follow_availability)
        if device.refresh_seconds is not None:
            self._availability.device_reason = self._device_reason()
            run("device", self._follow_device)
        else:
            self._reported.set()
        run("given up", Search(store, lambda: self._jobs.device).run)
        run("operation", self._record_operation)
        run("slurm", SlurmWatch(self._vqpus, self._cluster).run)
        if (seconds := ends.settings.retention_seconds) is not None:
            run("retention", partial(purge_regularly, store, seconds))
        run("kept", partial(trim_regularly, store, lambda: ends.settings.limits))

    async def device_reported(self) -> None:
        """Wait until the device has reported its status, for a limited time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_REPORT_SECONDS):
                await self._reported.wait()

    async def _follow_availability(self) -> None:
        jobs, window = self._jobs, None
        while True:
            if window != (window := self._availability.window):
                logger.info("%s", window.reason if window else "maintenance is over")
            jobs.observations.enter(self._worker.device_state)
            if self._availability.status == "closed":
                closed = Interruption(Cause.QPU_CLOSED)
                self._worker.interrupt_jobs([*jobs.on_device], closed)
            jobs.changed.set()
            self._vqpus.availability_changed()
            await self._availability.changed(window)

    async def _follow_device(self) -> None:
        while (seconds := self._jobs.device.refresh_seconds) is not None:
            refreshing = asyncio.wrap_future(in_thread(self._jobs.device.refresh))
            done = set[asyncio.Future[None]]()
            while not done:  # meanwhile, note if the last report has become too old
                done, _ = await asyncio.wait([refreshing], timeout=seconds)
                if done or self._reported.is_set():
                    self._note_report()
            refreshing.result()
            await asyncio.sleep(seconds)

    def _note_report(self) -> None:
        self._reported.set()
        self._vqpus.device_status_reported()
        jobs, availability, reason = (
            self._jobs,
            self._availability,
            self._device_reason(),
        )
        # log only if the device goes offline or online: a reason may contain changing figures
        if bool(reason) != bool(availability.device_reason):
            logger.info("%s: %s", jobs.device.name, reason or "online again")
            jobs.observations.enter(self._worker.device_state)
        if reason != availability.device_reason:
            availability.device_reason = reason
            self._vqpus.availability_changed()
            jobs.changed.set()

    def _device_reason(self) -> str:
        status = self._jobs.device.status
        return "" if status.online else status.reason or "the device is offline"

    async def _record_operation(self) -> None:
        store = self._jobs.store
        while True:
            window = self._availability.window
            recording = operation.record(store, self._availability.operation)
            # wait for a change before the write has ended, so that no change is missed
            with suppress(TimeoutError):
                async with asyncio.timeout(operation.SEEN_SECONDS):
                    await self._availability.changed(window)
            try:
                await asyncio.wrap_future(recording)
            except sqlite3.Error as error:
                logger.warning("the times of operation could not be stored: %s", error)

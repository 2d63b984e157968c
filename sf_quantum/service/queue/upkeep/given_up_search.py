"""Searches the vendor for jobs that were given up: whether they still run, and their cost.

The vendor is queried about each job at growing intervals. A job that still runs is cancelled
again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator

from sf_quantum import backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.tasks import OVER, Task, UnknownJob
from sf_quantum.service.device.interface import Device, DeviceJobs
from sf_quantum.service.domain.jobs import Recovery
from sf_quantum.service.store import given_up
from sf_quantum.service.store.given_up import Entry
from sf_quantum.service.store.store import Store
from sf_quantum.threads import in_thread

logger = logging.getLogger(__name__)
# time after which a job that was given up is no longer searched for
LOOKED_FOR_SECONDS = 86400.0


class Search:
    """The search for a store's given-up jobs on the device.

    :param device: returns the current device
    """

    def __init__(self, store: Store, device: Callable[[], Device]) -> None:
        self._store = store
        self._device = device
        self._pauses: dict[int, Iterator[float]] = {}
        self._due: dict[int, float] = {}

    async def run(self) -> None:
        """Search for the jobs, until cancelled."""
        while True:
            device = self._device()
            for entry in given_up.entries(self._store, device.identity):
                if self._due.get(entry.number, 0.0) <= time.monotonic():
                    await self._search(device, entry)
            await asyncio.sleep(backoff.GIVEN_UP.first_seconds)

    async def _search(self, device: Device, entry: Entry) -> None:
        outcome = await asyncio.wrap_future(
            in_thread(lambda: self._find_end(device.jobs, entry))
        )
        if outcome is not None:
            ended, billed = outcome
            if await given_up.settle(self._store, entry, ended, billed):
                text = "job %s, which was given up: %s"
                logger.warning(text, entry.job, ended)
                return
        pauses = self._pauses.setdefault(entry.number, backoff.GIVEN_UP.pauses())
        self._due[entry.number] = time.monotonic() + next(pauses)

    def _find_end(
        self, device_jobs: DeviceJobs, entry: Entry
    ) -> tuple[str, float | None] | None:
        """Return a job's end as text, and its QPU seconds; ``None`` if the end is unknown."""
        if self._store.clock() - entry.since > LOOKED_FOR_SECONDS:
            return f"nothing is known of it after {LOOKED_FOR_SECONDS:,.0f} s", None
        try:
            job_id = entry.device_job
            if job_id is None:
                if device_jobs.recovery is not Recovery.BY_TAG:
                    return "the vendor finds no job by its tag", None
                job_id = device_jobs.find(entry.tag)
            if job_id is None:
                return "the vendor has no such job", None
            return self._end_of(device_jobs, job_id, entry)
        except UnknownJob as error:
            return f"the vendor knows it no more: {error}", None
        except (QpuError, InputError) as error:
            logger.info("job %s, which was given up: %s", entry.job, error)
            return None

    def _end_of(
        self, device_jobs: DeviceJobs, job_id: str, entry: Entry
    ) -> tuple[str, float | None] | None:
        job = self._store.jobs.get(entry.job)
        if job is None:
            return "it is deleted here", None
        payload = self._store.jobs.payload(entry.job) or json.dumps(None)
        task = Task(entry.tag, job.kind, payload, job.parameters, entry.job)
        state = device_jobs.poll(job_id, task).state
        if state not in OVER:
            device_jobs.cancel(job_id)
            device_jobs.abandon(job_id)
            return None
        billed: float | None = None
        try:
            billed = device_jobs.result(job_id, task).qpu_seconds
        except (QpuError, InputError) as error:
            logger.info("job %s, which was given up: %s", entry.job, error)
        device_jobs.abandon(job_id)
        return f"{state} at the vendor", billed

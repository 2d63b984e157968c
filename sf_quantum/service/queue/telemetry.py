"""What watches over the device while the service runs: its drift, its quality jobs."""

from __future__ import annotations

import asyncio

from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.quality import QualityJobs

# between two looks at the device's own readings, at least
LOOK_SECONDS = 0.02


class Telemetry:
    """Watches one device; belongs to the event loop's thread.

    :param public_metrics: whether ``/metrics`` needs no credential
    """

    def __init__(self, queue: JobQueue, *, public_metrics: bool = True) -> None:
        self.public_metrics = public_metrics
        quality = queue.settings.quality
        self.quality = QualityJobs(queue, quality) if quality.every_seconds else None
        self._queue = queue
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to watch."""
        works = [self._follow(), *([self.quality.work()] if self.quality else [])]
        self._tasks = [asyncio.create_task(work) for work in works]

    def stop(self) -> None:
        """Watch no longer."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self) -> None:
        while True:
            self._queue.drift.look(self._queue.device)
            seconds = self._queue.device.calibrations.until_next
            await asyncio.sleep(max(LOOK_SECONDS, seconds))

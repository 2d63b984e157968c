"""Whether the service can take work: what a monitor asks, however often."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable

from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store.disk import DiskUse
from sf_quantum.service.store.schema import VERSION

# how long an answer holds: everybody may ask, and each look writes to the disk
SECONDS = 2.0
WRITE_SECONDS = 10.0
# Less than this is not enough for a large job and its result.
LEAST_FREE_BYTES = 64 * 2**20


class Readiness:
    """Looks at the queue, the device, the disk and the credentials.

    :param credentials: returns what is wrong with them
    """

    def __init__(
        self, queue: JobQueue, credentials: Callable[[], Awaitable[str | None]]
    ) -> None:
        self._queue = queue
        self._credentials = credentials
        self._looking = asyncio.Lock()
        self._looked = -SECONDS
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """Return why the service takes no work; ``None`` if it does."""
        async with self._looking:
            if time.monotonic() - self._looked >= SECONDS:
                self._problem = await self._look()
                self._looked = time.monotonic()
        return self._problem

    async def _look(self) -> str | None:
        queue = self._queue
        if (
            why := queue.failure
            or queue.supervisor.problem
            or queue.availability.reason
        ):
            return why
        try:
            disk = await asyncio.to_thread(DiskUse.of, queue.store.path)
        except OSError as error:
            return f"the state is gone: {(error.strerror or str(error)).lower()}"
        if (free := disk.free_bytes) < LEAST_FREE_BYTES:
            return f"{free >> 20} MiB are free for the state, {LEAST_FREE_BYTES >> 20} needed"
        try:
            # what is there already, which SQLite writes nevertheless
            writing = queue.store.change(
                lambda db: db.execute(f"PRAGMA user_version = {VERSION}") and None
            )
            await asyncio.wait_for(asyncio.wrap_future(writing), WRITE_SECONDS)
        except TimeoutError:
            return f"a write to the state takes over {WRITE_SECONDS:g} s"
        except sqlite3.Error as error:
            return f"the state cannot be written: {error}"
        return await self._credentials()

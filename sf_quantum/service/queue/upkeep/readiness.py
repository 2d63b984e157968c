"""Whether the service can accept work; monitors may query this as often as they like."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable

from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store.file import disk
from sf_quantum.service.store.schema import VERSION

# time for which a result is reused, since anybody may query it and each check writes to disk
SECONDS = 2.0
WRITE_SECONDS = 10.0


class Readiness:
    """Checks the queue, the device, the disk and the credentials.

    :param credentials: returns a problem with the credentials, or ``None``
    """

    def __init__(
        self, queue: JobQueue, credentials: Callable[[], Awaitable[str | None]]
    ) -> None:
        self._queue = queue
        self._credentials = credentials
        self._checking = asyncio.Lock()
        self._checked_at = -SECONDS
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """Return why the service accepts no work; ``None`` if it accepts work."""
        async with self._checking:
            if time.monotonic() - self._checked_at >= SECONDS:
                self._problem = await self._check()
                self._checked_at = time.monotonic()
        return self._problem

    async def _check(self) -> str | None:
        queue = self._queue
        if (
            why := queue.failure
            or queue.supervisor.problem
            or queue.availability.reason
        ):
            return why
        if (
            disk_problem := await asyncio.to_thread(disk.problem, queue.store.path)
        ) is not None:
            return disk_problem
        try:
            # a test of the disk: the version is stored already, but SQLite writes it again
            writing = queue.store.change(
                lambda db: db.execute(f"PRAGMA user_version = {VERSION}") and None
            )
            await asyncio.wait_for(asyncio.wrap_future(writing), WRITE_SECONDS)
        except TimeoutError:
            return f"a write to the state takes over {WRITE_SECONDS:g} s"
        except sqlite3.Error as error:
            return f"the state cannot be written: {error}"
        return await self._credentials()

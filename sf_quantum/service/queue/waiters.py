"""Those who wait for the end of a job."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress


class Waiters:
    """Wakes who waits for a job; belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    async def wait(self, job_id: str, seconds: float) -> None:
        """Wait until a job is over, at most so long."""
        ended = asyncio.Event()
        self._waiters[job_id].add(ended)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), seconds)
        finally:
            self._waiters[job_id].discard(ended)
            if not self._waiters[job_id]:
                del self._waiters[job_id]

    def over(self, job_id: str) -> None:
        """Wake all who wait for a job."""
        for waiter in self._waiters.get(job_id, ()):
            waiter.set()

    def all_over(self) -> None:
        """Wake everybody: no job runs any more."""
        for job_id in self._waiters:
            self.over(job_id)

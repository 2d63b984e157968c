"""Merging of concurrent calls of the same command into one run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Paced(Generic[T]):
    """Runs work at a limited rate, one run at a time; a run serves all earlier callers.

    :param seconds: average time between the beginnings of two runs
    :param burst_seconds: total time by which runs may begin earlier after a pause
    """

    def __init__(
        self, work: Callable[[], Awaitable[T]], seconds: float, burst_seconds: float
    ) -> None:
        self._work = work
        self._seconds = seconds
        self._burst = burst_seconds
        self._lock = asyncio.Lock()
        # run that was requested, but has not begun
        self._next: asyncio.Task[T] | None = None
        self._next_begin = 0.0
        #: whether the limit on the rate is lifted
        self.hurried = False

    async def __call__(self) -> T:
        """Return the result of work that begins after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        return await asyncio.shield(self._next)

    async def _run(self) -> T:
        """Wait until the rate permits a run, and run the work."""
        now = asyncio.get_running_loop().time
        async with self._lock:
            if not self.hurried:
                await asyncio.sleep(self._next_begin - self._burst - now())
            self._next = None
            self._next_begin = max(self._next_begin, now()) + self._seconds
            return await self._work()

"""Concurrent calls of the same command, run as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Paced(Generic[T]):
    """Work at a limited rate, one run at a time; a run serves all earlier callers.

    :param seconds: time between the beginnings of two runs, in the long run
    :param burst_seconds: how much earlier one run may begin after a pause
    """

    def __init__(
        self, work: Callable[[], Awaitable[T]], seconds: float, burst_seconds: float
    ) -> None:
        self._work = work
        self._seconds = seconds
        self._burst = burst_seconds
        self._alone = asyncio.Lock()
        # the run that was requested, but has not begun
        self._next: asyncio.Task[T] | None = None
        self._due = 0.0
        #: whether the rate is not limited
        self.hurried = False

    async def __call__(self) -> T:
        """Return the result of work that begins after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        return await asyncio.shield(self._next)

    async def _run(self) -> T:
        now = asyncio.get_running_loop().time
        async with self._alone:
            if not self.hurried:
                await asyncio.sleep(self._due - self._burst - now())
            self._next = None
            self._due = max(self._due, now()) + self._seconds
            return await self._work()

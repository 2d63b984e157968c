"""Threads for lists and large bodies: long for a request, and short for the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from sf_quantum.service.domain.errors import Refused

# Longest wait of a request for the turn of its user, whose other requests are ahead of it.
PATIENCE_SECONDS = 120.0
# Pause before a client repeats a request that was too long for this machine.
BUSY_SECONDS = 10
_T = TypeVar("_T")


class LongWork:
    """Does one work at a time, with a quarter of a core, to leave the rest to others.

    Each user has at most one request whose work is done or waits for the thread, so that
    nobody's requests delay those of others for longer than one takes.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        # a lock exists while a request holds it or waits for it
        self._of_user = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Hold the user's turn while the work of a request is done, after their others.

        All of it: with parts in turns, the data of many would be in memory at once.

        :raises Refused: with 503, if the others take longer than the patience
        """
        lock = self._of_user.setdefault(user, asyncio.Lock())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await lock.acquire()
        except TimeoutError as error:
            detail = "the service works on other requests of yours: send it again later"
            retry = {"Retry-After": f"{BUSY_SECONDS}"}
            raise Refused(503, detail, headers=retry) from error
        try:
            yield
        finally:
            lock.release()

    async def run(self, make: Callable[[], _T]) -> _T:
        """Do a work, or a part of one, in the user's turn."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._made, make)

    def _made(self, make: Callable[[], _T]) -> _T:
        # CPU time is measured: on a busy machine, work that takes long would pause for
        # longer yet.
        began = time.thread_time()
        try:
            return make()
        finally:
            # The pause precedes the next work, so the thread has a quarter of a core at
            # most.
            self._thread.submit(time.sleep, 3 * (time.thread_time() - began))

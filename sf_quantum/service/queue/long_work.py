"""Threads for lists and large bodies, which take longer than other requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from sf_quantum.service.domain.errors import Refused

# longest wait of a request for earlier requests of its user
PATIENCE_SECONDS = 120.0
# pause before a client repeats a request that was refused because the service is busy
BUSY_SECONDS = 10
_T = TypeVar("_T")


class LongWork:
    """Does one piece of work at a time, on a quarter of a core at most.

    At most one request of each user is in the thread or waits for the thread, so a user
    delays other users for no longer than one request takes.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        # each user's lock; it exists only while a request holds it or waits for it
        self._locks = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Hold the user's turn during a request, once the user's earlier requests are done.

        A turn covers all work of a request. If requests alternated, the data of many
        requests would be in memory at the same time.

        :raises Refused: 503 if the earlier requests take :data:`PATIENCE_SECONDS`
        """
        lock = self._locks.setdefault(user, asyncio.Lock())
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
        """Do the work of a request, or a part of it, in the user's turn."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._make_and_pause, make)

    def _make_and_pause(self, make: Callable[[], _T]) -> _T:
        # CPU time, not wall-clock time: on a busy machine, the pause would be longer
        began = time.thread_time()
        try:
            return make()
        finally:
            # the thread pauses before its next piece of work, and so uses at most a quarter
            # of a core
            self._thread.submit(time.sleep, 3 * (time.thread_time() - began))

"""Threads for lists and large bodies: long for a request, and short for the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

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

    def turn(self, user: str) -> asyncio.Lock:
        """Return what a request holds while its work is done, after the user's others.

        All of it: with parts in turns, the data of many would be in memory at once.
        """
        unused = asyncio.Lock()
        return self._of_user.setdefault(user, unused)

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

"""The thread that makes lists of jobs: long for a request, and short for the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

_T = TypeVar("_T")


class ListThread:
    """Makes one list at a time, so that many do not delay the event loop.

    Each user has at most one list in it, so that nobody's lists delay those of others for
    longer than one takes.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "lists")
        # a lock exists while a request holds it or waits for it
        self._of_user = WeakValueDictionary[str, asyncio.Lock]()

    def turn(self, user: str) -> asyncio.Lock:
        """Return what a request holds while its list is made, after the user's others.

        All of it: with parts in turns, many lists would be in memory at once.
        """
        unused = asyncio.Lock()
        return self._of_user.setdefault(user, unused)

    async def run(self, make: Callable[[], _T]) -> _T:
        """Make a list, or a part of one, in the user's turn."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._made, make)

    def _made(self, make: Callable[[], _T]) -> _T:
        began = time.monotonic()
        try:
            return make()
        finally:
            # before the next list, so that lists take at most a quarter of a core
            self._thread.submit(time.sleep, 3 * (time.monotonic() - began))

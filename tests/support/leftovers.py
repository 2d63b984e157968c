"""Ends the processes that an event loop leaves running when it closes.

StreamFlow does not end the process of a job that is cancelled, and a closed loop leaves
pipes and process to the garbage collector, which fails whichever test it comes in.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

import psutil
import pytest

from sf_quantum.connectors.guardian import processes

# processes inherit it, also those that have lost their parent
MARKER = "SFQ_TEST_LOOP"


class _Create(Protocol):
    def __call__(
        self, *words: str, env: Mapping[str, str] | None, **options: object
    ) -> Awaitable[Process]: ...


class Leftovers:
    """The processes of the event loops of one test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._mark = str(uuid.uuid4())
        self._started: dict[asyncio.AbstractEventLoop, list[Process]] = {}
        for name in ("create_subprocess_exec", "create_subprocess_shell"):
            patch.setattr(asyncio, name, partial(self._start, getattr(asyncio, name)))

    async def _start(
        self,
        create: _Create,
        *words: str,
        env: Mapping[str, str] | None = None,
        **options: object,
    ) -> Process:
        marked = {**(os.environ if env is None else env), MARKER: self._mark}
        loop = asyncio.get_running_loop()
        if loop not in self._started:
            self._started[loop] = []
            close = partial(self._close, loop, loop.close)
            self._patch.setattr(loop, "close", close)
        creating = asyncio.ensure_future(create(*words, env=marked, **options))
        try:
            return await asyncio.shield(creating)
        finally:
            # Also if this is cancelled: asyncio, cancelled before it has connected the
            # pipes, waits until everything that the process has started closes them.
            self._started[loop].append(await creating)

    def _close(
        self, loop: asyncio.AbstractEventLoop, close: Callable[[], None]
    ) -> None:
        # the loop has cancelled its tasks, so nothing else reads the pipes
        if (started := self._started.pop(loop, None)) and not loop.is_closed():
            loop.run_until_complete(self._end(started))
        close()

    async def _end(self, started: list[Process]) -> None:
        # a process that has ended may have left others with its pipes
        reading = [asyncio.ensure_future(one.communicate()) for one in started]
        while (await asyncio.wait(reading, timeout=0.02))[1]:
            # Again, since one that is killed may have started another, and one that begins
            # another program shows no mark for a moment.
            self._kill_marked()

    def _kill_marked(self) -> None:
        """Kill all processes that show the mark."""
        for one in processes():
            with suppress(psutil.Error, OSError):
                if one.environ().get(MARKER) == self._mark:
                    one.kill()

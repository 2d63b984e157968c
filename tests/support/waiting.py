"""Waiting for what another process or thread does: for the event, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# a test that fails is to end; no test is about how long this is, and over SSH a killed
# driver has 45 s to come back before its jobs are cancelled
SECONDS = 150.0
_INTERVAL = 0.01
_LONGEST_INTERVAL = 0.1


def _pause(since: float, shortest: float) -> float:
    """How long to wait before asking again: asking takes CPU from what is waited for."""
    waited = time.monotonic() - since
    return max(shortest, min(waited / 20, _LONGEST_INTERVAL))


def until(
    condition: Callable[[], T | None], what: str = "", seconds: float = SECONDS
) -> T:
    """Ask until the answer is true, less often the longer it takes.

    :param what: is waited for, in words, for the error
    :returns: the answer
    :raises TimeoutError: if it is not true in time
    """
    since = time.monotonic()
    while not (answer := condition()):
        if time.monotonic() > since + seconds:
            raise TimeoutError(f"not in {seconds:g} s: {what}")
        time.sleep(_pause(since, _INTERVAL))
    return answer


async def until_async(
    condition: Callable[[], T | None], what: str = "", seconds: float = SECONDS
) -> T:
    """``until`` in a coroutine, whose other tasks run on."""
    since = time.monotonic()
    while not (answer := condition()):
        if time.monotonic() > since + seconds:
            raise TimeoutError(f"not in {seconds:g} s: {what}")
        await asyncio.sleep(_pause(since, _INTERVAL / 10))
    return answer

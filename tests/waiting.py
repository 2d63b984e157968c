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


def until(
    condition: Callable[[], T | None], what: str = "", seconds: float = SECONDS
) -> T:
    """Ask until the answer is true.

    :param what: is waited for, in words, for the error
    :returns: the answer
    :raises TimeoutError: if it is not true in time
    """
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {seconds:g} s: {what}")
        time.sleep(_INTERVAL)
    return answer


async def until_async(
    condition: Callable[[], T | None], what: str = "", seconds: float = SECONDS
) -> T:
    """``until`` in a coroutine, whose other tasks run on."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {seconds:g} s: {what}")
        await asyncio.sleep(_INTERVAL / 10)
    return answer

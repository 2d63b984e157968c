"""Writes to disk that are repeated until they succeed."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from sf_quantum import backoff

T = TypeVar("T")
logger = logging.getLogger(__name__)


def written(write: Callable[[], Future[T]]) -> T:
    """Write to disk, and repeat a write that fails, for example on a full disk; blocks."""
    pauses = backoff.DATABASE.pauses()
    while True:
        try:
            return write().result()
        except sqlite3.OperationalError as error:
            logger.warning("a write failed, trying again: %s", error)
        time.sleep(next(pauses))


async def write_until(is_over: Callable[[], bool], write: Callable[[], Future[T]]) -> T:
    """Write a lease to disk, and repeat a write that fails, until the service stops.

    :param is_over: returns whether the service stops; the lease is then left to the next
        service process
    :raises sqlite3.Error: if the service stops before the lease is written
    """
    pauses = backoff.DATABASE.pauses()
    while True:
        try:
            return await asyncio.wrap_future(write())
        except sqlite3.Error as error:
            if is_over():
                raise
            logger.error("a lease could not be written, trying again: %s", error)
        await asyncio.sleep(next(pauses))

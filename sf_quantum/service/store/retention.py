"""Forgets jobs that have been over for long enough, and their results with them."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time

from sf_quantum.service.store.store import PURGED_AT_ONCE, Store

PURGE_SECONDS = 600.0
logger = logging.getLogger(__name__)


async def forget(store: Store, retention_seconds: float) -> None:
    """Look for old jobs from time to time, until cancelled."""
    while True:
        try:
            before = time.time() - retention_seconds
            purged = await asyncio.wrap_future(store.purge(before))
        except sqlite3.Error as error:
            logger.warning("old jobs could not be removed: %s", error)
            purged = 0
        if purged < PURGED_AT_ONCE:
            await asyncio.sleep(PURGE_SECONDS)

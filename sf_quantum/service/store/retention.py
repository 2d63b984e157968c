"""Deletes old jobs after the retention time; the sums of their usage remain."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from concurrent.futures import Future

from sf_quantum.service.store.accounting import LEASE, PURPOSE, WAIT
from sf_quantum.service.store.store import Store

PURGE_SECONDS = 600.0
# jobs per transaction: few, so that submissions are not delayed
BATCH = 500
HOUR = 3600
_ADD_UP = f"""
INSERT INTO past
SELECT {HOUR} * CAST(jobs.ended / {HOUR} AS INTEGER) AS hour, jobs.user,
    leases.project, leases.id, leases.slurm_job_id, {PURPOSE} AS purpose, jobs.state,
    count(*), total(jobs.qpu_seconds), total(jobs.seconds), total({WAIT}), max({WAIT}),
    sum(jobs.attempt - 1), total(jobs.lost_qpu_seconds), total(jobs.lost_seconds),
    sum(jobs.cost), leases.slurm_cluster, leases.slurm_account,
    avg(jobs.ended_steady)
FROM jobs JOIN leases ON leases.id = {LEASE}
WHERE jobs.number IN (SELECT value FROM json_each(?))
GROUP BY hour, leases.id, purpose, jobs.state
"""
logger = logging.getLogger(__name__)


async def purge_regularly(store: Store, retention_seconds: float) -> None:
    """Purge until cancelled."""
    while True:
        try:
            before = store.clock() - retention_seconds
            purged = await asyncio.wrap_future(purge(store, before))
        except sqlite3.Error as error:
            logger.warning("old jobs could not be deleted: %s", error)
            purged = 0
        if purged < BATCH:
            await asyncio.sleep(PURGE_SECONDS)


def purge(store: Store, before: float) -> Future[int]:
    """Delete jobs that ended before a time of the store's clock, and leases closed by then.

    Their QPU usage remains in the accounting, summed by hour.

    :returns: the number of deleted jobs; if it is :data:`BATCH`, more may be left
    """

    def change(db: sqlite3.Connection) -> int:
        query = "SELECT number FROM jobs WHERE ended_steady < ? LIMIT ?"
        old = [row["number"] for row in db.execute(query, (before, BATCH))]
        db.execute(_ADD_UP, (json.dumps(old),))
        for table in ("contents", "jobs"):
            numbers = [(number,) for number in old]
            db.executemany(f"DELETE FROM {table} WHERE number = ?", numbers)
        db.execute(
            "DELETE FROM leases WHERE closed_steady < ? AND NOT EXISTS "
            "(SELECT 1 FROM jobs WHERE jobs.lease = leases.id "
            "OR jobs.charged_lease = leases.id)",
            (before,),
        )
        return len(old)

    return store.change(change)

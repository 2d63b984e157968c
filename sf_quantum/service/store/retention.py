"""Deletes old jobs after the retention time, or if a user's jobs take too much space.

The usage of deleted jobs is kept as sums. A job that was given up is kept until its end at
the vendor is known, since the vendor may bill the job until then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.settings import UserLimits
from sf_quantum.service.store import audit
from sf_quantum.service.store.reports.usage import LEASE, PURPOSE, SHOTS, WAIT
from sf_quantum.service.store.store import Store

PURGE_SECONDS = 600.0
TRIM_SECONDS = 10.0
# maximum number of jobs per transaction; a larger one would delay submissions
BATCH = 500
HOUR = 3600
_ADD_UP = f"""
INSERT INTO past (
    ended, ended_steady, user, project,
    lease, slurm_job_id, slurm_cluster, slurm_account,
    purpose, state, jobs, qpu_seconds, seconds,
    wait_seconds, longest_wait_seconds,
    lost_attempts, lost_qpu_seconds, lost_seconds, cost, shots)
SELECT
    {HOUR} * CAST(jobs.ended / {HOUR} AS INTEGER), avg(jobs.ended_steady), jobs.user, leases.project,
    leases.id, leases.slurm_job_id, leases.slurm_cluster, leases.slurm_account,
    {PURPOSE}, jobs.state, count(*), total(jobs.qpu_seconds), total(jobs.seconds),
    total({WAIT}), max({WAIT}),
    sum(jobs.attempt - 1), total(jobs.lost_qpu_seconds), total(jobs.lost_seconds), sum(jobs.cost),
    sum({SHOTS})
FROM jobs JOIN leases ON leases.id = {LEASE}
WHERE jobs.number IN (SELECT value FROM json_each(?))
GROUP BY 1, leases.id, 9, jobs.state
"""
_IS_GIVEN_UP = (
    "EXISTS (SELECT 1 FROM given_up WHERE given_up.ended IS NULL AND job = jobs.number)"
)
logger = logging.getLogger(__name__)


async def purge_regularly(store: Store, retention_seconds: float) -> None:
    """Purge at intervals, until cancelled."""
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
    """Delete jobs that ended before a time, and leases without jobs that closed before it.

    The QPU usage of the jobs remains in the accounting, summed by hour.

    :param before: time by the store's clock
    :returns: the number of deleted jobs; if it is :data:`BATCH`, further jobs may have to be
        deleted
    """

    def change(db: sqlite3.Connection) -> int:
        query = (
            "SELECT number FROM jobs "
            f"WHERE ended_steady < ? AND NOT {_IS_GIVEN_UP} LIMIT ?"
        )
        old = [row["number"] for row in db.execute(query, (before, BATCH))]
        _delete(db, old)
        db.execute(
            "DELETE FROM leases WHERE closed_steady < ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.lease = leases.id "
            "OR jobs.charged_lease = leases.id)",
            (before,),
        )
        return len(old)

    return store.change(change)


async def trim_regularly(store: Store, limits: Callable[[], UserLimits]) -> None:
    """Trim the jobs of each user at intervals, until cancelled."""
    while True:
        trimmed = 0
        if (limit_mib := limits().kept_mib) is not None:
            try:
                trimmed = await asyncio.wrap_future(trim(store, limit_mib))
            except sqlite3.Error as error:
                logger.warning("old jobs could not be deleted: %s", error)
        if not trimmed:
            await asyncio.sleep(TRIM_SECONDS)


def trim(store: Store, most_mib: float) -> Future[int]:
    """Delete the oldest ended jobs of one user whose ended jobs are too large in total.

    :param most_mib: maximum total size of a user's ended jobs
    :returns: the number of deleted jobs, at most :data:`BATCH`; 0 if there is no such user
    """

    def change(db: sqlite3.Connection) -> int:
        query = "SELECT user, bytes FROM kept WHERE bytes > ? LIMIT 1"
        row = db.execute(query, (most_mib * 2**20,)).fetchone()
        if row is None:
            return 0
        user, excess = row["user"], row["bytes"] - most_mib * 2**20
        old = list[int]()
        oldest = (
            "SELECT number, bytes FROM jobs WHERE user = ? AND ended_steady IS NOT NULL "
            f"AND NOT {_IS_GIVEN_UP} ORDER BY ended_steady LIMIT ?"
        )
        for number, size in db.execute(oldest, (user, BATCH)):
            if excess <= 0:
                break
            old.append(number)
            excess -= size
        _delete(db, old)
        text = "deleted the oldest %d jobs of %s, whose kept jobs took more than %g MiB"
        logger.info(text, len(old), user, most_mib)
        return len(old)

    return store.change(change)


def delete(
    store: Store, number: int, entry: audit.AuditEntry | None = None
) -> Future[None]:
    """Delete a job that has ended; its QPU usage remains in the accounting.

    :param entry: entry to add to the audit; ``None`` if the job's user deletes the job
    :raises Refused: 409 if the job was given up and its end at the vendor is not known
    """

    def change(db: sqlite3.Connection) -> None:
        query = f"SELECT 1 FROM jobs WHERE number = ? AND {_IS_GIVEN_UP}"
        if db.execute(query, (number,)).fetchone():
            detail = "the job was given up and may still run: delete it when its end is known"
            raise Refused(409, detail)
        _delete(db, [number])
        if entry is not None:
            audit.record(db, entry)

    return store.change(change)


def _delete(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
    db.execute(_ADD_UP, (json.dumps(numbers),))
    for table in ("contents", "slices", "jobs"):
        query = f"DELETE FROM {table} WHERE number = ?"
        db.executemany(query, [(number,) for number in numbers])

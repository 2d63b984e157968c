"""Jobs that were given up and may still run at their vendor, and how they ended later."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import Future
from dataclasses import dataclass

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import Job
from sf_quantum.service.store import audit
from sf_quantum.service.store.store import Store

# the user in entries of the audit that the service itself makes
SERVICE = "service"
# the columns id, user, attempt and ended, for a job that was deleted
NO_JOB = None, None, None, None
_COLUMNS = "job, device, device_job, tag, why, since, booked, price, attempt"


@dataclass(frozen=True)
class Entry:
    """A job that was given up and may still run on its device.

    :param job: number of the job in the queue
    :param device: identity of its device
    :param device_job: id of the job on the device, if known
    :param tag: unique id of its submission
    :param why: reason why it was given up
    :param since: time when it was given up, by the store's clock
    :param booked: QPU seconds that are charged until the vendor reports its bill
    :param price: price of a QPU second; ``None`` if there is none
    :param attempt: number of the job's attempt; ``None`` if unknown: then the last attempt
        is assumed
    """

    number: int
    job: int
    device: str
    device_job: str | None
    tag: str
    why: str
    since: float
    booked: float
    price: float | None
    attempt: int | None = None


def record(store: Store, job: Job, entry: Entry) -> Future[None]:
    """Store the entry of a job, and audit it, unless an entry with its tag is stored."""
    details = {"job": job.id, "user": job.user, "device_job": entry.device_job}
    audit_entry = audit.AuditEntry(SERVICE, "give up", details, outcome=entry.why)

    def change(db: sqlite3.Connection) -> None:
        added = db.execute(
            f"INSERT OR IGNORE INTO given_up ({_COLUMNS}) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.job,
                entry.device,
                entry.device_job,
                entry.tag,
                entry.why,
                entry.since,
                entry.booked,
                entry.price,
                entry.attempt,
            ),
        )
        if added.rowcount:
            audit.record(db, audit_entry)

    return store.change(change)


def entries(store: Store, device: str) -> list[Entry]:
    """List the given-up jobs that may still run on a device, the oldest first."""
    query = (
        f"SELECT number, {_COLUMNS} FROM given_up WHERE ended IS NULL AND device = ?"
    )
    return [Entry(*row) for row in store.read(f"{query} ORDER BY number", device)]


async def settle(
    store: Store, entry: Entry, ended: str, billed: float | None = None
) -> bool:
    """Note how a job ended; the QPU time that the vendor bills replaces the booked time.

    :param ended: end of the job, in one sentence
    :param billed: billed QPU seconds, if the vendor reports them
    :returns: whether the end is noted; ``False`` as long as the queue has not written the
        end of the attempt
    """
    difference = 0.0 if billed is None else billed - entry.booked
    old: dict[str, JSON] = {"qpu_seconds": entry.booked}
    new: dict[str, JSON] = {"qpu_seconds": entry.booked + difference}

    def change(db: sqlite3.Connection) -> bool:
        query = "SELECT id, user, attempt, ended FROM jobs WHERE number = ?"
        job, user, attempt, end = db.execute(query, (entry.job,)).fetchone() or NO_JOB
        is_last = entry.attempt in (None, attempt)
        if job is not None and is_last and end is None:
            return False
        query = "UPDATE given_up SET ended = ? WHERE number = ? AND ended IS NULL"
        if not db.execute(query, (ended, entry.number)).rowcount:
            return True
        _charge(db, entry, difference, is_last=is_last)
        details = {"job": job, "user": user, "device_job": entry.device_job}
        action = "find given up"
        audit.record(db, audit.AuditEntry(SERVICE, action, details, old, new, ended))
        return True

    return await asyncio.wrap_future(store.change(change))


def _charge(
    db: sqlite3.Connection, entry: Entry, seconds: float, *, is_last: bool
) -> None:
    """Charge QPU seconds to the job and its lease, or add them to the job's lost time.

    :param is_last: whether the given-up attempt is the last; otherwise its time is lost
    """
    if not is_last:
        query = (
            "UPDATE jobs SET lost_qpu_seconds = max(0, lost_qpu_seconds + ?) "
            "WHERE number = ?"
        )
        db.execute(query, (seconds, entry.job))
        return
    db.execute(
        "UPDATE leases SET spent_seconds = spent_seconds + "
        "(SELECT max(0, qpu_seconds + ?) - qpu_seconds FROM jobs WHERE number = ?) "
        "WHERE max_qpu_seconds IS NOT NULL AND id = "
        "(SELECT coalesce(charged_lease, lease) FROM jobs WHERE number = ?)",
        (seconds, entry.job, entry.job),
    )
    db.execute(
        "UPDATE jobs SET qpu_seconds = max(0, qpu_seconds + ?), "
        "cost = max(0, cost + ?) WHERE number = ?",
        (seconds, seconds * (entry.price or 0.0), entry.job),
    )

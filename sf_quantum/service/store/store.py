"""What the service has acknowledged, on disk: leases, jobs and results."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, fields
from pathlib import Path
from typing import TypeVar, cast

from sf_quantum.files import JSON
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Lease, State, Submission, Used
from sf_quantum.service.store import past
from sf_quantum.service.store.database import Database
from sf_quantum.service.store.schema import SCHEMA, UPGRADES, VERSION

_T = TypeVar("_T")
_LEASE = f"SELECT {', '.join(field.name for field in fields(Lease))} FROM leases "
_JOB = f"SELECT {', '.join(field.name for field in fields(Job))} FROM jobs "
_LIVE = "state IN ('Queued', 'Running')"
# of the time over which what was used is summed up: an hour each of ten days
USED_PARTS = 240
# what one purge deletes at most in one go, so that submissions do not wait for it
PURGED_AT_ONCE = 500


class Store:
    """Leases and jobs in one SQLite file, safe to use from several threads.

    Methods that change something return a future: done means on the disk.

    :param path: the file, made if it is not there
    :raises InputError: if it is not a file this version wrote
    """

    def __init__(self, path: Path) -> None:
        self._db = Database(path, version=VERSION, schema=SCHEMA, upgrades=UPGRADES)

    def close(self) -> None:
        """Finish what was asked for and close the file."""
        self._db.close()

    def add_lease(self, lease: Lease) -> Future[None]:
        """Write down a new lease."""

        def change(db: sqlite3.Connection) -> None:
            _insert(db, "leases", asdict(lease))

        return self._write(change)

    def close_lease(
        self,
        lease_id: str,
        reason: str,
        note: str,
        also: Callable[[sqlite3.Connection], None] | None = None,
    ) -> Future[Lease]:
        """Close a lease and cancel its waiting jobs; closing it again changes nothing.

        :param reason: why, for those who still come with it
        :param note: what the cancelled jobs say
        :param also: done in the same stroke
        """

        def change(db: sqlite3.Connection) -> Lease:
            now = time.time()
            _do(
                db,
                "UPDATE leases SET closed = ?, reason = ? "
                "WHERE id = ? AND closed IS NULL",
                *(now, reason, lease_id),
            )
            _do(
                db,
                "UPDATE jobs SET state = 'Cancelled', ended = ?, note = ? "
                "WHERE lease = ? AND state = 'Queued'",
                *(now, note, lease_id),
            )
            if also is not None:
                also(db)
            return Lease(*db.execute(_LEASE + "WHERE id = ?", (lease_id,)).fetchone())

        return self._write(change)

    def lease(self, lease_id: str) -> Lease | None:
        """Find a lease, held or not."""
        return next(iter(self._leases("WHERE id = ?", lease_id)), None)

    def leases(self, user: str | None = None, limit: int = 1000) -> list[Lease]:
        """List leases, the latest first.

        :param user: whose; ``None`` lists everybody's
        """
        if user is None:
            return self._leases("ORDER BY opened DESC LIMIT ?", limit)
        where = "WHERE user = ? ORDER BY opened DESC LIMIT ?"
        return self._leases(where, user, limit)

    def held(self) -> list[Lease]:
        """List the leases held, the oldest first."""
        return self._leases("WHERE closed IS NULL ORDER BY opened")

    def add_job(
        self, lease: Lease, job: Submission, model_seconds: float
    ) -> Future[tuple[Job, bool]]:
        """Add a job, unless its user has used the key before.

        A job found moves to the lease that asks for it now: if it is not over, it does
        not end with the lease it came under first.

        :returns: the job, and whether it is new
        :raises Refused: if the key belongs to a job of another content
        """
        row = {
            "id": secrets.token_hex(16),
            "user": lease.user,
            "lease": lease.id,
            "job_class": lease.job_class,
            "kind": job.kind,
            "key": job.key,
            "parameters": job.parameters_text,
            "digest": job.digest,
            "purpose": job.purpose,
            "model_seconds": model_seconds,
            "submitted": time.time(),
        }
        payload = job.payload

        def change(db: sqlite3.Connection) -> tuple[Job, bool]:
            same = "WHERE user = ? AND key = ?"
            query = f"SELECT digest FROM jobs {same}"
            known = db.execute(query, (lease.user, job.key)).fetchone()
            if known is None:
                number = _insert(db, "jobs", row)
                _insert(db, "contents", {"number": number, "payload": payload})
                return _one(db, "WHERE number = ?", number), True
            _check_digest(known["digest"], job)
            _do(db, f"UPDATE jobs SET lease = ? {same}", lease.id, lease.user, job.key)
            return _one(db, same, lease.user, job.key), False

        return self._write(change)

    def known(self, user: str, job: Submission) -> Job | None:
        """Find the job a key made before.

        :raises Refused: if the key belongs to a job of another content
        """
        query = "SELECT number, digest FROM jobs WHERE user = ? AND key = ?"
        for number, found in self._db.read(query, user, job.key):
            _check_digest(found, job)
            return self.job(number)
        return None

    def job(self, job_id: str | int) -> Job | None:
        """Find a job by its id or its number."""
        name = "number" if isinstance(job_id, int) else "id"
        return next(iter(self._jobs(f"WHERE {name} = ?", job_id)), None)

    def jobs(
        self, *, lease: str | None = None, user: str | None = None, limit: int = 1000
    ) -> list[Job]:
        """List the latest jobs of a lease, of a user or of everybody, oldest first."""
        names = {"lease": lease, "user": user}
        given = {name: value for name, value in names.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1"
        query = f"WHERE {where} ORDER BY number DESC LIMIT ?"
        return self._jobs(query, *given.values(), limit)[::-1]

    def used(self, since: float) -> list[Used]:
        """Sum up what was used of the QPU, also by jobs forgotten and that wait again.

        What was used at nearly the same time is one sum, at the mean of these times.

        :param since: seconds since the epoch; what ended before does not matter
        """
        width = max(1.0, (time.time() - since) / USED_PARTS)
        query = (
            "SELECT user, project, total(used), total(used * at) / total(used) FROM ("
            "SELECT user, project, qpu_seconds AS used, ended AS at "
            f"FROM ({past.OVER}) WHERE ended > ? AND qpu_seconds > 0 "
            "UNION ALL SELECT jobs.user, project, qpu_seconds, submitted "
            "FROM jobs INDEXED BY jobs_live JOIN leases ON leases.id = lease "
            f"WHERE {_LIVE} AND qpu_seconds > 0 AND submitted > ?"
            ") GROUP BY user, project, CAST(at / ? AS INTEGER)"
        )
        return [Used(*row) for row in self._db.report(query, since, since, width)]

    def live(self) -> list[Job]:
        """List the jobs that wait or run, in the order they came."""
        return self._jobs(f"WHERE {_LIVE} ORDER BY number")

    def some(self, numbers: Sequence[int]) -> list[Job]:
        """Find jobs by their numbers, in whatever order."""
        marks = ", ".join("?" * len(numbers))
        return self._jobs(f"WHERE number IN ({marks})", *numbers)

    def last_ended(self, most: int, user: str | None) -> list[Job]:
        """List jobs that are over, the last one first: a user's latest, or of all."""
        latest = "ended IS NOT NULL ORDER BY ended DESC LIMIT ?"
        if user is None:
            return self._jobs(f"WHERE {latest}", most)
        return self._jobs(f"WHERE user = ? AND {latest}", user, most)

    def payload(self, number: int) -> JSON:
        """Read a job's payload."""
        rows = self._db.read("SELECT payload FROM contents WHERE number = ?", number)
        return cast("JSON", json.loads(rows[0][0])) if rows else None

    def result(self, number: int) -> str | None:
        """Read a job's result, JSON text; ``None`` without one."""
        rows = self._db.read("SELECT result FROM contents WHERE number = ?", number)
        return cast("str | None", rows[0][0]) if rows else None

    def start(self, number: int) -> Future[Job]:
        """Write down that a waiting job runs from now on; another stays as it is."""
        query = (
            "UPDATE jobs SET state = 'Running', started = ? "
            "WHERE number = ? AND state = 'Queued'"
        )
        return self._write(lambda db: _changed(db, number, query, time.time(), number))

    def cancel_waiting(self, number: int, note: str) -> Future[Job]:
        """Cancel a job if it waits; one that runs or is over stays as it is."""
        query = (
            "UPDATE jobs SET state = 'Cancelled', ended = ?, note = ? "
            "WHERE number = ? AND state = 'Queued'"
        )
        return self._write(
            lambda db: _changed(db, number, query, time.time(), note, number)
        )

    def finish(
        self,
        number: int,
        state: State,
        *,
        note: str | None,
        used: tuple[float, float],
        result: str | None = None,
        calibration: JSON = None,
    ) -> Future[Job]:
        """Write down how a running job ended.

        :param used: seconds of QPU time as modelled, and as they went by
        :param result: JSON text, for a job that completed
        :param calibration: that under which it ran, if it did
        """
        query = (
            "UPDATE jobs SET state = ?, ended = ?, note = coalesce(?, note), "
            "calibration = ?, qpu_seconds = qpu_seconds + ?, seconds = seconds + ? "
            "WHERE number = ?"
        )
        told = None if calibration is None else json.dumps(calibration)

        def change(db: sqlite3.Connection) -> Job:
            if result is not None:
                keep = "UPDATE contents SET result = ? WHERE number = ?"
                _do(db, keep, result, number)
            values = (state, time.time(), note, told, *used, number)
            return _changed(db, number, query, *values)

        return self._write(change)

    def put_back(
        self, number: int, note: str, used: tuple[float, float]
    ) -> Future[Job]:
        """Write down that a running job waits again, and why."""
        query = (
            "UPDATE jobs SET state = 'Queued', started = NULL, attempt = attempt + 1, "
            "note = ?, qpu_seconds = qpu_seconds + ?, seconds = seconds + ? "
            "WHERE number = ?"
        )
        return self._write(lambda db: _changed(db, number, query, note, *used, number))

    def recover(self, cancelled: str) -> Future[None]:
        """Bring a file in order whose service died.

        What ran waits again; what was to be cancelled with its lease is cancelled.

        :param cancelled: what a job says whose lease ended
        """

        def change(db: sqlite3.Connection) -> None:
            _do(
                db,
                "UPDATE jobs SET state = 'Cancelled', ended = ?, note = ? "
                f"WHERE {_LIVE} AND lease IN (SELECT id FROM leases "
                "WHERE closed IS NOT NULL)",
                *(time.time(), cancelled),
            )
            _do(
                db,
                "UPDATE jobs SET state = 'Queued', started = NULL, note = "
                "'interrupted: the service died during attempt ' || attempt, "
                f"attempt = attempt + 1 WHERE {_LIVE} AND state = 'Running'",
            )

        return self._write(change)

    def door(self) -> tuple[str, str] | None:
        """Read whether the QPU was open, and the message; ``None`` in a new file."""
        rows = self._db.read("SELECT status, message FROM door")
        return (rows[0][0], rows[0][1]) if rows else None

    def purge(self, before: float) -> Future[int]:
        """Forget jobs that ended before a time, and leases closed by then.

        What they used of the QPU is still accounted, by the hour.

        :returns: how many jobs; :data:`PURGED_AT_ONCE` says that more may be left
        """

        def change(db: sqlite3.Connection) -> int:
            query = "SELECT number FROM jobs WHERE ended < ? LIMIT ?"
            old = db.execute(query, (before, PURGED_AT_ONCE)).fetchall()
            past.remember(db, [row["number"] for row in old])
            for table in ("contents", "jobs"):
                db.executemany(f"DELETE FROM {table} WHERE number = ?", old)
            _do(
                db,
                "DELETE FROM leases WHERE closed < ? AND NOT EXISTS "
                "(SELECT 1 FROM jobs WHERE jobs.lease = leases.id)",
                before,
            )
            return len(old)

        return self._write(change)

    def report(self, query: str, *values: str | float | None) -> list[sqlite3.Row]:
        """Answer a question in SQL that changes nothing; it may take long."""
        return self._db.report(query, *values)

    def change(self, change: Callable[[sqlite3.Connection], _T]) -> Future[_T]:
        """Make a change that is not of leases and jobs; see :meth:`Database.write`."""
        return self._write(change)

    def _write(self, change: Callable[[sqlite3.Connection], _T]) -> Future[_T]:
        return self._db.write(change)

    def _leases(self, where: str, *values: str | int) -> list[Lease]:
        return [Lease(*row) for row in self._db.read(_LEASE + where, *values)]

    def _jobs(self, where: str, *values: str | int) -> list[Job]:
        return [_job(row) for row in self._db.read(_JOB + where, *values)]


def _check_digest(found: str, job: Submission) -> None:
    if found != job.digest:
        detail = "belongs to a job with another content or other parameters"
        raise Refused(409, detail, "idempotency_key")


def _job(row: sqlite3.Row) -> Job:
    texts = {name: row[name] for name in ("parameters", "calibration")}
    read = {name: text and json.loads(text) for name, text in texts.items()}
    return Job(**{**dict(row), **read})


def _do(db: sqlite3.Connection, query: str, *values: str | float | None) -> None:
    db.execute(query, values)


def _insert(
    db: sqlite3.Connection, table: str, row: Mapping[str, str | float | None]
) -> int:
    """Insert a row, and return its number."""
    marks = ", ".join("?" * len(row))
    query = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
    return db.execute(query, [*row.values()]).lastrowid or 0


def _one(db: sqlite3.Connection, where: str, *values: str | int) -> Job:
    return _job(db.execute(_JOB + where, values).fetchone())


def _changed(
    db: sqlite3.Connection, number: int, query: str, *values: str | float | None
) -> Job:
    _do(db, query, *values)
    return _one(db, "WHERE number = ?", number)

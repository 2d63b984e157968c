"""What the service has acknowledged, on disk: leases, jobs and results in SQLite."""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

from sf_quantum.files import JSON

# QRMI's words
State: TypeAlias = Literal["Queued", "Running", "Completed", "Failed", "Cancelled"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (
    id TEXT PRIMARY KEY, job TEXT, opened REAL NOT NULL, closed REAL
);
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    lease TEXT NOT NULL REFERENCES leases (id),
    key TEXT NOT NULL UNIQUE,
    digest TEXT NOT NULL,
    parameters TEXT NOT NULL,
    problem TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'Queued',
    attempt INTEGER NOT NULL DEFAULT 1,
    note TEXT,
    submitted REAL NOT NULL,
    started REAL,
    ended REAL,
    qpu_seconds REAL NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,
    result TEXT
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, number);
"""
_JOB = (
    "SELECT number, id, lease, key, parameters, state, attempt, note, submitted, "
    "started, ended, qpu_seconds, seconds, CASE WHEN state IN ('Queued', 'Running') "
    "THEN (SELECT count(*) FROM jobs AS ahead WHERE ahead.number < jobs.number "
    "AND ahead.state IN ('Queued', 'Running')) END AS queue_position FROM jobs "
)


@dataclass(frozen=True)
class Lease:
    """A lease; its id is the secret that shows one holds it."""

    id: str
    job: str | None
    opened: float
    closed: float | None


@dataclass(frozen=True)
class Job:
    """A job without its problem; times are seconds since the epoch."""

    number: int
    id: str
    lease: str
    key: str
    parameters: dict[str, int | None]
    state: State
    attempt: int
    note: str | None
    submitted: float
    started: float | None
    ended: float | None
    qpu_seconds: float
    seconds: float
    queue_position: int | None

    @property
    def final(self) -> bool:
        """Whether the job is over, one way or another."""
        return self.state not in ("Queued", "Running")


class KeyReused(Exception):
    """An idempotency key came back with another problem or other parameters."""


class LeaseClosed(Exception):
    """A job came under a lease that is not held, or not any more."""


class Store:
    """One SQLite file, safe to use from several threads.

    Every change is on the disk before the method returns.

    :param path: the file, made if it is not there
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def open_lease(self, job: str | None, limit: int) -> Lease | None:
        """Open a lease.

        :param limit: how many may be held at once
        :returns: ``None`` if as many are held already
        """
        lease = Lease(secrets.token_urlsafe(24), job, time.time(), None)
        with self._transaction() as db:
            if self._count(db, "leases WHERE closed IS NULL") >= limit:
                return None
            row = (lease.id, lease.job, lease.opened)
            db.execute("INSERT INTO leases (id, job, opened) VALUES (?, ?, ?)", row)
        return lease

    def lease(self, lease_id: str) -> Lease | None:
        """Find a lease."""
        with self._lock:
            return self._lease(self._db, lease_id)

    def close_lease(self, lease_id: str) -> Lease | None:
        """Close a lease, so that it takes no more jobs; closing it again is fine.

        :returns: ``None`` if there is no such lease
        """
        with self._transaction() as db:
            db.execute(
                "UPDATE leases SET closed = ? WHERE id = ? AND closed IS NULL",
                (time.time(), lease_id),
            )
            return self._lease(db, lease_id)

    def leases_held(self) -> int:
        """Count the leases held."""
        with self._lock:
            return self._count(self._db, "leases WHERE closed IS NULL")

    def queue_length(self) -> int:
        """Count the jobs that wait or run."""
        with self._lock:
            return self._count(self._db, "jobs WHERE state IN ('Queued', 'Running')")

    def add_job(
        self,
        lease_id: str,
        key: str,
        problem: Mapping[str, JSON],
        parameters: Mapping[str, int | None],
    ) -> tuple[Job, bool]:
        """Add a job at the end of the queue, unless its key is known.

        :returns: the job, and whether it is new
        :raises LeaseClosed: if the lease is not held
        :raises KeyReused: if the key belongs to a job of another content
        """
        texts = json.dumps(problem), json.dumps(parameters)
        content = json.dumps([problem, parameters], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()
        with self._transaction() as db:
            lease = self._lease(db, lease_id)
            if lease is None or lease.closed is not None:
                raise LeaseClosed
            query = "SELECT digest FROM jobs WHERE key = ?"
            row = db.execute(query, (key,)).fetchone()
            if row is not None and row[0] != digest:
                raise KeyReused
            if row is None:
                db.execute(
                    "INSERT INTO jobs (id, lease, key, digest, problem, parameters, "
                    "submitted) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (secrets.token_hex(16), lease_id, key, digest, *texts, time.time()),
                )
            return self._jobs(db, "WHERE key = ?", key)[0], row is None

    def job(self, job_id: str) -> Job | None:
        """Find a job."""
        with self._lock:
            return next(iter(self._jobs(self._db, "WHERE id = ?", job_id)), None)

    def jobs(self, lease_id: str) -> list[Job]:
        """List the jobs of a lease, oldest first."""
        with self._lock:
            return self._jobs(self._db, "WHERE lease = ? ORDER BY number", lease_id)

    def problem(self, job_id: str) -> dict[str, JSON]:
        """Read a job's problem."""
        return cast(
            "dict[str, JSON]", json.loads(self._text("problem", job_id) or "{}")
        )

    def result(self, job_id: str) -> str | None:
        """Read a job's result, the sample set as JSON text; ``None`` without one."""
        return self._text("result", job_id)

    def start_next(self) -> Job | None:
        """Take the first job that waits: it runs from now on."""
        with self._transaction() as db:
            found = self._jobs(db, "WHERE state = 'Queued' ORDER BY number LIMIT 1")
            if not found:
                return None
            db.execute(
                "UPDATE jobs SET state = 'Running', started = ? WHERE number = ?",
                (time.time(), found[0].number),
            )
            return self._jobs(db, "WHERE number = ?", found[0].number)[0]

    def cancel_waiting(self, job_id: str, note: str) -> Job | None:
        """Cancel a job if it waits; one that runs or is over stays as it is."""
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET state = 'Cancelled', ended = ?, note = ? "
                "WHERE id = ? AND state = 'Queued'",
                (time.time(), note, job_id),
            )
            return next(iter(self._jobs(db, "WHERE id = ?", job_id)), None)

    def finish(
        self,
        job: Job,
        state: State,
        *,
        note: str | None,
        used: tuple[float, float],
        result: str | None = None,
    ) -> None:
        """Write down how a running job ended.

        :param used: seconds of QPU time as modelled, and as they went by
        :param result: the sample set as JSON text, for a job that completed
        """
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET state = ?, ended = ?, note = coalesce(?, note), "
                "qpu_seconds = ?, seconds = ?, result = ? WHERE number = ?",
                (state, time.time(), note, *used, result, job.number),
            )

    def requeue_interrupted(self) -> int:
        """Put jobs that ran when the service died back where they were: at the head.

        The queue is ordered by the number, so nothing has to move.

        :returns: how many
        """
        with self._transaction() as db:
            return db.execute(
                "UPDATE jobs SET state = 'Queued', started = NULL, "
                "note = 'interrupted: the service died during attempt ' || attempt, "
                "attempt = attempt + 1 WHERE state = 'Running'"
            ).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _text(self, column: str, job_id: str) -> str | None:
        query = f"SELECT {column} FROM jobs WHERE id = ?"
        with self._lock:
            row = self._db.execute(query, (job_id,)).fetchone()
        return cast("str | None", row[0]) if row else None

    @staticmethod
    def _count(db: sqlite3.Connection, what: str) -> int:
        row = db.execute(f"SELECT count(*) FROM {what}").fetchone()
        return cast("int", row[0])

    @staticmethod
    def _lease(db: sqlite3.Connection, lease_id: str) -> Lease | None:
        query = "SELECT id, job, opened, closed FROM leases WHERE id = ?"
        row = db.execute(query, (lease_id,)).fetchone()
        return Lease(*row) if row else None

    @staticmethod
    def _jobs(db: sqlite3.Connection, where: str, *values: str | int) -> list[Job]:
        rows = [dict(row) for row in db.execute(_JOB + where, values).fetchall()]
        return [
            Job(**{**row, "parameters": json.loads(row["parameters"])}) for row in rows
        ]

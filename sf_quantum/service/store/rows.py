"""Rows of the tables of leases and jobs, read and written by column name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import fields

from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Lease
from sf_quantum.service.store.file.database import Database

SELECT_LEASE = f"SELECT {', '.join(field.name for field in fields(Lease))} FROM leases "
SELECT_JOB = f"SELECT {', '.join(field.name for field in fields(Job))} FROM jobs "
# message about a job that does not exist, or that has been deleted
NO_JOB = "no such job"
LIVE = "state IN ('Queued', 'Running')"
# a queued job may be in the vendor's queue already
QUEUED = "state = 'Queued' AND device IS NULL"
CANCELLED = "state = 'Cancelled', ended = ?, ended_steady = ?, note = ?"
AGAIN = (
    "state = 'Queued', started = NULL, started_steady = NULL, attempt = attempt + 1, "
    "device = NULL, device_job = NULL, slice_shots = NULL, interrupting = NULL, note = ?"
)


class Records:
    """A part of the store.

    :param clock: clock of the store
    """

    def __init__(self, db: Database, clock: Callable[[], float]) -> None:
        self._db = db
        self._clock = clock


def lease_of(row: sqlite3.Row) -> Lease:
    return Lease(**{**dict(row), "waiting": bool(row["waiting"])})


def job_of(row: sqlite3.Row) -> Job:
    texts = {name: row[name] for name in ("parameters", "calibration", "metadata")}
    read = {name: text and json.loads(text) for name, text in texts.items()}
    read["repeatable"] = bool(row["repeatable"])
    calibration = CalibrationData.read(read["calibration"])
    return Job(**{**dict(row), **read, "calibration": calibration})


def insert(
    db: sqlite3.Connection, table: str, row: Mapping[str, str | float | None]
) -> int:
    """Insert a row and return its number."""
    marks = ", ".join("?" * len(row))
    query = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
    return db.execute(query, [*row.values()]).lastrowid or 0


def select_job(db: sqlite3.Connection, where: str, *values: str | int) -> Job:
    """:raises Refused: 404 if the job has been deleted meanwhile"""
    row = db.execute(SELECT_JOB + where, values).fetchone()
    if row is None:
        raise Refused(404, NO_JOB)
    return job_of(row)

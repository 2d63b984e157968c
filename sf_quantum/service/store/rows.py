"""Rows of the tables of leases and jobs, read and written by column name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import get_args

from sf_quantum import structs
from sf_quantum.files import JSON, is_number
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import CLASSES, UNREADABLE, Job, Kind, Lease
from sf_quantum.service.store.file.database import Database

SELECT_LEASE = f"SELECT {', '.join(field.name for field in fields(Lease))} FROM leases "
SELECT_JOB = f"SELECT {', '.join(field.name for field in fields(Job))} FROM jobs "
# message about a job that does not exist or has been deleted
NO_JOB = "no such job"
KINDS: tuple[Kind, ...] = get_args(Kind)
LIVE = "state IN ('Queued', 'Running')"
# pending in the service; a queued job with a device may already be in the vendor's queue
QUEUED = "state = 'Queued' AND device IS NULL"
CANCELLED = "state = 'Cancelled', ended = ?, ended_steady = ?, note = ?"
REQUEUED = (
    "state = 'Queued', started = NULL, started_steady = NULL, attempt = attempt + 1, "
    "device = NULL, device_job = NULL, slice_shots = NULL, interrupting = NULL, note = ?"
)


class Records:
    """Base class of the parts of the store that read and write leases and jobs.

    :param clock: clock of the store
    """

    def __init__(self, db: Database, clock: Callable[[], float]) -> None:
        self._db = db
        self._clock = clock


def lease_of(row: sqlite3.Row) -> Lease:
    return Lease(**{**dict(row), "waiting": bool(row["waiting"])})


def job_of(row: sqlite3.Row) -> Job:
    """Read a job; a row that cannot be read becomes a failed job, whose note is the reason."""
    content: dict[str, JSON] = dict(row)
    try:
        return _read(content)
    except structs.WrongValue as error:
        return _unreadable(content, f"{UNREADABLE}: {error}")


def _read(content: Mapping[str, JSON]) -> Job:
    read = dict(content)
    for name in ("parameters", "calibration", "metadata"):
        try:
            read[name] = (text := content[name]) and json.loads(str(text))
        except ValueError as error:
            raise structs.WrongValue(f"not JSON: {error}", name) from error
    if not isinstance(read["parameters"], dict):
        raise structs.expected("an object", read["parameters"]).within("parameters")
    return structs.read(
        Job,
        read,
        parameters=read["parameters"],
        calibration=CalibrationData.read(read["calibration"]),
        repeatable=bool(read["repeatable"]),
    )


def _unreadable(content: Mapping[str, JSON], note: str) -> Job:
    """Return a failed job for a row that cannot be read, so that nothing waits for the job."""
    kind, job_class = content["kind"], content["job_class"]
    moments = [content[name] for name in ("submitted", "ended", "ended_steady")]
    submitted, ended, ended_steady = (
        float(str(one)) if is_number(one) else 0.0 for one in moments
    )
    return Job(
        number=int(str(content["number"])),
        id=str(content["id"]),
        user=str(content["user"]),
        lease=str(content["lease"]),
        key=str(content["key"]),
        job_class=next((one for one in CLASSES if one == job_class), CLASSES[-1]),
        kind=next((one for one in KINDS if one == kind), KINDS[0]),
        parameters={},
        state="Failed",
        attempt=1,
        note=note,
        submitted=submitted,
        started=None,
        ended=ended or submitted,
        ended_steady=ended_steady,
        model_seconds=0.0,
        qpu_seconds=0.0,
        seconds=0.0,
    )


def json_value(column: str, key: str) -> str:
    """Return SQL for a value in a column of JSON; the result is null if it is not JSON."""
    return f"CASE WHEN json_valid({column}) THEN json_extract({column}, '$.{key}') END"


def insert(
    db: sqlite3.Connection, table: str, row: Mapping[str, str | float | None]
) -> int:
    """Insert a row and return its number."""
    marks = ", ".join("?" * len(row))
    query = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
    return db.execute(query, [*row.values()]).lastrowid or 0


def select_job(db: sqlite3.Connection, where: str, *values: str | int) -> Job:
    """Read a job.

    :raises Refused: 404 if the job has been deleted meanwhile
    """
    row = db.execute(SELECT_JOB + where, values).fetchone()
    if row is None:
        raise Refused(404, NO_JOB)
    return job_of(row)

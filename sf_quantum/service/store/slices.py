"""Finished slices of long jobs on disk."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import Future
from dataclasses import dataclass
from typing import cast

from sf_quantum.files import JSON
from sf_quantum.service.store.file.database import Database


@dataclass(frozen=True)
class Slice:
    """A finished slice of a job.

    :param text: result of the slice as text, see :class:`~sf_quantum.protocol.tasks.Result`
    :param info: shots, times and calibration of the slice, for the job's ``info``
    """

    shots: int
    text: str
    info: dict[str, JSON]
    qpu_seconds: float = 0.0
    seconds: float = 0.0
    cost: float | None = None


class StoredSlices:
    """The finished slices of all jobs."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def end(self, number: int, part: Slice) -> Future[None]:
        """Store a finished slice, and add its times and cost to the job's times and cost."""
        info = json.dumps(part.info)

        def change(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO slices SELECT number, slices, ?, ?, ? FROM jobs "
                "WHERE number = ?",
                (part.shots, part.text, info, number),
            )
            db.execute(
                "UPDATE jobs SET slices = slices + 1, shots_done = shots_done + ?, "
                "slice_shots = NULL, device = NULL, device_job = NULL, "
                "qpu_seconds = qpu_seconds + ?, seconds = seconds + ?, "
                "cost = coalesce(cost + ?, ?, cost) WHERE number = ?",
                (
                    part.shots,
                    part.qpu_seconds,
                    part.seconds,
                    part.cost,
                    part.cost,
                    number,
                ),
            )

        return self._db.change(change)

    def of(self, number: int) -> list[Slice]:
        """Read the finished slices of a job, the first slice first."""
        query = "SELECT shots, result, info FROM slices WHERE number = ? ORDER BY slice"
        rows = self._db.read_large(query, number)
        return [Slice(shots, text, json.loads(info)) for shots, text, info in rows]

    def infos(self, number: int) -> list[dict[str, JSON]]:
        """Read the ``info`` of a job's slices, without their results."""
        query = "SELECT info FROM slices WHERE number = ? ORDER BY slice"
        return [json.loads(info) for (info,) in self._db.read_large(query, number)]

    def text(self, number: int, part: int) -> str | None:
        """Read the result of a slice; ``None`` if no such slice has finished."""
        query = "SELECT result FROM slices WHERE number = ? AND slice = ?"
        rows = self._db.read_large(query, number, part)
        return cast("str | None", rows[0][0]) if rows else None

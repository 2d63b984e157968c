"""How jobs come to the disk: as many as have come meanwhile, with few statements."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from sf_quantum.service.domain.jobs import Job, Lease, Submission

_COLUMNS = (
    "id, user, lease, job_class, kind, key, parameters, digest, purpose, "
    "model_seconds, submitted"
)
# rows of one statement, each number of which SQLite compiles once; Python lets go of its
# lock at each statement, and may wait long to get it back
_MOST_ROWS = 64
_Row: TypeAlias = tuple[str | float | None, ...]
AddOne: TypeAlias = Callable[[sqlite3.Connection, "Addition"], tuple[Job, bool]]


class Addition:
    """A job that is to be added.

    :param model_seconds: of QPU time, as modelled
    """

    __slots__ = ("asked", "id", "lease", "model_seconds", "submitted")

    def __init__(self, lease: Lease, asked: Submission, model_seconds: float) -> None:
        self.id = secrets.token_hex(16)
        self.lease = lease
        self.asked = asked
        self.model_seconds = model_seconds
        self.submitted = time.time()
        # in the caller's thread, and not in that which all wait for
        _ = asked.payload, asked.digest

    def row(self) -> _Row:
        """Tell its row, to which the file gives the number."""
        lease, asked = self.lease, self.asked
        return (
            *(self.id, lease.user, lease.id, lease.job_class),
            *(asked.kind, asked.key, asked.parameters_text, asked.digest),
            *(asked.purpose, self.model_seconds, self.submitted),
        )

    def job(self, number: int) -> Job:
        """Make the job that a new file's row is."""
        lease, asked = self.lease, self.asked
        return Job(
            number=number,
            id=self.id,
            user=lease.user,
            lease=lease.id,
            job_class=lease.job_class,
            kind=asked.kind,
            key=asked.key,
            parameters=dict(sorted(asked.parameters.items())),
            state="Queued",
            attempt=1,
            note=None,
            submitted=self.submitted,
            started=None,
            ended=None,
            model_seconds=self.model_seconds,
            qpu_seconds=0.0,
            seconds=0.0,
        )


class Additions:
    """Jobs that are added; see :class:`sf_quantum.service.store.database.Kind`.

    :param one: adds a job whose key may have been used before
    """

    def __init__(self, one: AddOne) -> None:
        self.one = one

    def many(
        self, db: sqlite3.Connection, items: Sequence[Addition]
    ) -> list[tuple[Job, bool]]:
        """Add jobs whose keys are all new.

        :raises sqlite3.IntegrityError: if one is not
        """
        added: list[tuple[Job, bool]] = []
        for begin in range(0, len(items), _MOST_ROWS):
            some = items[begin : begin + _MOST_ROWS]
            added += [(job, True) for job in _added(db, some)]
        return added


def add(db: sqlite3.Connection, item: Addition) -> Job:
    """Add a job whose key is new."""
    return _added(db, [item])[0]


def _added(db: sqlite3.Connection, items: Sequence[Addition]) -> list[Job]:
    last = _insert(db, "jobs", _COLUMNS, [item.row() for item in items])
    # numbers ascend by one where no insertion fails, https://sqlite.org/autoinc.html
    numbered = [*enumerate(items, last - len(items) + 1)]
    contents = [(number, item.asked.payload) for number, item in numbered]
    _insert(db, "contents", "number, payload", contents)
    return [item.job(number) for number, item in numbered]


def _insert(
    db: sqlite3.Connection, table: str, columns: str, rows: Sequence[_Row]
) -> int:
    """Insert rows, all or none, and tell the number of the last one."""
    query = _query(table, columns, len(rows))
    values = [value for row in rows for value in row]
    return db.execute(query, values).lastrowid or 0


@lru_cache(2 * _MOST_ROWS)
def _query(table: str, columns: str, rows: int) -> str:
    marks = ", ".join("?" for _ in columns.split(","))
    values = ", ".join([f"({marks})"] * rows)
    return f"INSERT INTO {table} ({columns}) VALUES {values}"

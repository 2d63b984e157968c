"""When the service was in operation during the last day, and the QPU's status meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Literal, NamedTuple, TypeAlias, cast

from sf_quantum.service.store.store import Store

Operation: TypeAlias = Literal["open", "maintenance", "draining", "closed"]
# longest time of operation that is not recorded if the service is killed
SEEN_SECONDS = 20.0
KEPT_SECONDS = 86400.0


class Period(NamedTuple):
    """A period with one status of the QPU; times are by the store's clock."""

    status: Operation
    began: float
    ended: float


def record(store: Store, status: Operation, *, starts: bool = False) -> Future[None]:
    """Note that the service is in operation now, with a status of the QPU.

    :param starts: whether the service has just started
    """

    def change(db: sqlite3.Connection) -> None:
        now = store.clock()
        db.execute("DELETE FROM operation WHERE seen < ?", (now - KEPT_SECONDS,))
        latest = "SELECT rowid, status FROM operation ORDER BY rowid DESC LIMIT 1"
        last = None if starts else db.execute(latest).fetchone()
        if last is not None:
            query = "UPDATE operation SET seen = ? WHERE rowid = ?"
            db.execute(query, (now, last["rowid"]))
        if last is None or last["status"] != status:
            query = "INSERT INTO operation (status, began, seen) VALUES (?, ?, ?)"
            db.execute(query, (status, now, now))

    return store.change(change)


def periods(store: Store, since: float, now: float) -> Iterator[Period]:
    """Yield the periods that ended after a time; the last period continues until now."""
    rows = store.report("SELECT status, began, seen FROM operation ORDER BY rowid")
    for number, (status, began, seen) in enumerate(rows, 1):
        ended = now if number == len(rows) else min(seen, now)
        if ended > since:
            yield Period(cast("Operation", status), began, ended)


def last_status(store: Store) -> tuple[str, str] | None:
    """Read the QPU's status and its message; ``None`` in a new file."""
    rows = store.read("SELECT status, message FROM availability")
    return (rows[0][0], rows[0][1]) if rows else None

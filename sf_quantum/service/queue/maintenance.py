"""Maintenance that is announced: when the QPU will be shut, and for how long."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from sf_quantum.files import JSON
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.store import audit
from sf_quantum.service.store.store import Store


@dataclass(frozen=True)
class Window:
    """A time during which nothing starts; in seconds since the epoch.

    :param ends: ``None`` when the operator opens the QPU
    """

    id: int
    starts: float
    ends: float | None
    message: str

    @property
    def words(self) -> str:
        """Why the QPU takes no work."""
        until = "until it is opened"
        if self.ends is not None:
            end = datetime.fromtimestamp(self.ends, UTC)
            until = f"until {end.isoformat(timespec='seconds')}"
        words = f"the QPU is in maintenance {until}"
        return f"{words}: {self.message}" if self.message else words

    @property
    def told(self) -> dict[str, JSON]:
        """What the audit says of it."""
        return asdict(self)

    def over(self, now: float) -> bool:
        """Whether it has ended by itself."""
        return self.ends is not None and self.ends <= now

    def covers(self, now: float) -> bool:
        """Whether it lasts."""
        return self.starts <= now and not self.over(now)


def load(store: Store) -> list[Window]:
    """Read those that are not over, in the order of their starts."""
    rows = store.report(
        "SELECT id, starts, ends, message FROM windows "
        "WHERE ends IS NULL OR ends > ? ORDER BY starts",
        time.time(),
    )
    return [Window(*row) for row in rows]


def check(window: Window, known: Sequence[Window]) -> None:
    """Refuse a window that cannot be.

    :raises Refused: 422 if it ends too early, 409 if it overlaps with another one
    """
    starts, ends = window.starts, _end(window.ends)
    if ends <= max(starts, time.time()):
        raise Refused(422, "expected a time after `starts`, and after now", "ends")
    for other in known:
        if other.starts < ends and starts < _end(other.ends):
            detail = f"it overlaps with window {other.id}, which can be taken back"
            raise Refused(409, detail, "starts")


def _end(ends: float | None) -> float:
    return float("inf") if ends is None else ends


def add(
    store: Store, user: str, window: Window, replaced: Sequence[Window]
) -> Future[Window]:
    """Write a window down.

    :param window: its id is not known yet
    :param replaced: those whose place it takes
    :returns: it, with its id
    """

    def change(db: sqlite3.Connection) -> Window:
        _remove(db, user, replaced)
        query = "INSERT INTO windows (starts, ends, message) VALUES (?, ?, ?)"
        row = (window.starts, window.ends, window.message)
        known = replace(window, id=db.execute(query, row).lastrowid or 0)
        told = known.told
        audit.record(db, audit.Entry(user, "announce maintenance", told, {}, told))
        return known

    return store.change(change)


def remove(store: Store, user: str, gone: Sequence[Window]) -> Future[None]:
    """Take windows back, or end them early."""
    return store.change(lambda db: _remove(db, user, gone))


def forget(db: sqlite3.Connection, window: Window) -> None:
    """Take a window out of the file, which the audit still tells of."""
    db.execute("DELETE FROM windows WHERE id = ?", (window.id,))


def _remove(db: sqlite3.Connection, user: str, gone: Sequence[Window]) -> None:
    for window in gone:
        forget(db, window)
        told = {"id": window.id}
        audit.record(db, audit.Entry(user, "take maintenance back", told, window.told))

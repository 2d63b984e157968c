"""What admins did with the QPU: written down once, never changed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from sf_quantum.files import JSON
from sf_quantum.service.store.store import Store

DONE = "done"


@dataclass(frozen=True)
class Entry:
    """One act.

    :param parameters: what it was asked for with
    :param old: what was so before, by name
    :param new: what is so after it; as ``old`` where it was not done
    :param outcome: :data:`DONE`, or why it was not done
    """

    user: str
    action: str
    parameters: Mapping[str, JSON] = field(default_factory=dict)
    old: Mapping[str, JSON] = field(default_factory=dict)
    new: Mapping[str, JSON] = field(default_factory=dict)
    outcome: str = DONE


@dataclass(frozen=True)
class Kept:
    """An entry as it was written down.

    :param number: counts the entries
    :param time: when, in seconds since the epoch
    """

    number: int
    time: float
    entry: Entry


def record(db: sqlite3.Connection, entry: Entry) -> None:
    """Write an entry down, in the same stroke as what it tells of."""
    told = (json.dumps(dict(of)) for of in (entry.parameters, entry.old, entry.new))
    db.execute(
        "INSERT INTO audit (time, user, action, parameters, old, new, outcome) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (time.time(), entry.user, entry.action, *told, entry.outcome),
    )


async def keep(store: Store, entry: Entry) -> None:
    """Write an entry down; on the disk when this returns."""
    await asyncio.wrap_future(store.change(lambda db: record(db, entry)))


def entries(store: Store, limit: int, before: int | None = None) -> list[Kept]:
    """Read the latest entries, the latest first.

    :param before: only those with lower numbers
    """
    rows = store.report(
        "SELECT * FROM audit WHERE number < coalesce(?, number + 1) "
        "ORDER BY number DESC LIMIT ?",
        *(before, limit),
    )
    return [_kept(row) for row in rows]


def _kept(row: sqlite3.Row) -> Kept:
    parameters, old, new = (
        json.loads(row[name]) for name in ("parameters", "old", "new")
    )
    about = row["user"], row["action"], parameters, old, new, row["outcome"]
    return Kept(row["number"], row["time"], Entry(*about))

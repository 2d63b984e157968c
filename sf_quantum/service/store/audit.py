"""The audit of admins' actions: entries are added and never changed."""

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
_COLUMNS = "time, user, action, parameters, old, new, outcome"


@dataclass(frozen=True)
class AuditEntry:
    """One action of an admin.

    :param parameters: parameters of the request
    :param old: values before the action, by name
    :param new: values after the action; equal to ``old`` if the action was not done
    :param outcome: :data:`DONE`, or why the action was not done
    :param number: number of a stored entry, from 1
    :param time: time of a stored entry, in seconds since the epoch
    """

    user: str
    action: str
    parameters: Mapping[str, JSON] = field(default_factory=dict)
    old: Mapping[str, JSON] = field(default_factory=dict)
    new: Mapping[str, JSON] = field(default_factory=dict)
    outcome: str = DONE
    number: int = 0
    time: float = 0.0


def record(db: sqlite3.Connection, entry: AuditEntry) -> None:
    """Add an entry, in the same transaction as the change that the entry describes."""
    values = (json.dumps(dict(m)) for m in (entry.parameters, entry.old, entry.new))
    db.execute(
        f"INSERT INTO audit ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (time.time(), entry.user, entry.action, *values, entry.outcome),
    )


async def append(store: Store, entry: AuditEntry) -> None:
    """Add an entry in its own transaction, and return once the entry is on disk."""
    await asyncio.wrap_future(store.change(lambda db: record(db, entry)))


def entries(store: Store, limit: int, before: int | None = None) -> list[AuditEntry]:
    """Read the latest entries, latest first.

    :param before: return only entries with lower numbers
    """
    rows = store.report(
        f"SELECT number, {_COLUMNS} FROM audit WHERE number < coalesce(?, number + 1) "
        "ORDER BY number DESC LIMIT ?",
        before,
        limit,
    )
    return [_entry(row) for row in rows]


def _entry(row: sqlite3.Row) -> AuditEntry:
    texts = ("parameters", "old", "new")
    return AuditEntry(
        **{**dict(row), **{name: json.loads(row[name]) for name in texts}}
    )

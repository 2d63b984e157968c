"""A clock that nobody sets: durations and ages are measured by it, on disk, too."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def steady_clock(db: sqlite3.Connection) -> Callable[[], float]:
    """Return a clock that agrees with the system's when its file is opened after a boot.

    It goes on where it was when a file is opened again before the next boot.

    :param db: database with the table ``boot``
    """
    boot = _BOOT.read_text().strip() if _BOOT.exists() else uuid.uuid4().hex
    query = "SELECT epoch FROM boot WHERE id = ?"
    if (row := db.execute(query, (boot,)).fetchone()) is None:
        db.execute("DELETE FROM boot")
        epoch = time.time() - time.monotonic()
        db.execute("INSERT INTO boot (id, epoch) VALUES (?, ?)", (boot, epoch))
        row = db.execute(query, (boot,)).fetchone()
    began: float = row["epoch"]
    return lambda: began + time.monotonic()

"""A clock that nobody sets, for durations and ages, including those of stored times."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
# The latest times by this clock, up to the 20 s of operation.SEEN_SECONDS.
_LAST = """
SELECT max(
    coalesce((SELECT max(seen) FROM operation), 0),
    coalesce((SELECT max(opened_steady) FROM leases), 0),
    coalesce((SELECT submitted_steady FROM jobs ORDER BY number DESC LIMIT 1), 0),
    coalesce((SELECT max(ended_steady) FROM jobs), 0)
) AS last
"""


def wall_clock() -> float:
    """Return seconds since the epoch as users can write them, with microseconds.

    A report from the printed end of a job on must contain this job.
    """
    return round(time.time(), 6)


def steady_clock(db: sqlite3.Connection) -> Callable[[], float]:
    """Return a clock that agrees with the system's clock when its file is opened after a boot.

    If the file is opened again before the next boot, the clock continues. It also continues
    from its last stored time if the system's clock is behind that time after a boot:
    otherwise, leases would be held and jobs kept for longer, and past usage would count for
    more than present usage.

    :param db: database of the service
    """
    boot = _BOOT.read_text().strip() if _BOOT.exists() else uuid.uuid4().hex
    query = "SELECT epoch FROM boot WHERE id = ?"
    if (row := db.execute(query, (boot,)).fetchone()) is None:
        db.execute("DELETE FROM boot")
        last: float = db.execute(_LAST).fetchone()["last"]
        epoch = max(time.time(), last) - time.monotonic()
        db.execute("INSERT INTO boot (id, epoch) VALUES (?, ?)", (boot, epoch))
        row = db.execute(query, (boot,)).fetchone()
    began: float = row["epoch"]
    return lambda: began + time.monotonic()

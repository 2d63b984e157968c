"""The steady clock, which nobody sets, for durations and ages, also across restarts."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
# The latest stored time by this clock. It is written at least every 20 s
# (operation.SEEN_SECONDS).
_LAST = """
SELECT max(
    coalesce((SELECT max(seen) FROM operation), 0),
    coalesce((SELECT max(opened_steady) FROM leases), 0),
    coalesce((SELECT submitted_steady FROM jobs ORDER BY number DESC LIMIT 1), 0),
    coalesce((SELECT max(ended_steady) FROM jobs), 0)
) AS last
"""


def wall_clock() -> float:
    """Return seconds since the epoch, rounded to the microseconds of times in requests.

    So a report whose period begins at the reported end of a job contains the job.
    """
    return round(time.time(), 6)


def steady_clock(db: sqlite3.Connection) -> Callable[[], float]:
    """Return a clock that is set to the system's clock at the first opening after a boot.

    If the database is opened again before the next boot, the clock continues. If the
    system's clock is behind the last stored time after a boot, the steady clock continues
    from the stored time. Otherwise, leases would be held and jobs kept for longer, and past
    usage would have more weight than present usage.

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

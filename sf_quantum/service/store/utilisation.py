"""How busy the device was in each minute of the last hour."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection

from sf_quantum.service.store.store import Store

MINUTES = 60
# what ended earlier than so many seconds ago is on the disk by now
LATE = 60.0
# by minute since the epoch
_Seconds = defaultdict[int, float]
# What ran when a service died may have ended with the start of the next one only: of the
# attempt nothing is known, and the time between was none on the device.
_LEFT = (
    "CASE WHEN attempt > 1 OR seconds = 0 THEN min(ended, started + seconds) "
    "ELSE ended END"
)
# Jobs run one at a time, so a group that goes over a minute's end has one job in it.
_GROUPS = (
    "SELECT CAST(started / 60 AS INTEGER) AS first, CAST(off / 60 AS INTEGER) AS last, "
    "min(started) AS begin, max(off) AS end, total(off - started) AS seconds "
    f"FROM (SELECT started, {_LEFT} AS off FROM jobs "
    "WHERE ended >= ? AND ended < ? AND started IS NOT NULL) GROUP BY first, last"
)
_RUNNING = (
    "SELECT started FROM jobs INDEXED BY jobs_live "
    "WHERE state IN ('Queued', 'Running') AND state = 'Running'"
)


class Busy:
    """Adds up the times of jobs that ended; each is read from the disk once.

    :param lost: attempts that were interrupted, from when to when: the disk keeps how
        long they were and not when, so that those of a service before this one are missing
    """

    def __init__(
        self, store: Store, lost: Collection[tuple[float, float]] = ()
    ) -> None:
        self._store = store
        self._lost = lost
        self._seconds = _Seconds(float)
        # jobs that ended before are in these sums
        self._until = 0.0

    def minutes(self, now: float) -> list[float]:
        """Tell the busy part of each minute, from 0 to 1; the last one is not over.

        May take long the first time: not to be called in the event loop.
        """
        present = int(now // 60)
        oldest = present - MINUTES + 1
        for minute in [minute for minute in self._seconds if minute < oldest]:
            del self._seconds[minute]
        begin, sure = max(self._until, oldest * 60.0), now - LATE
        self._add(self._seconds, begin, sure)
        self._until = max(begin, sure)
        seconds = self._seconds.copy()
        self._add(seconds, self._until, now + LATE)
        for row in self._store.report(_RUNNING):
            _spread(seconds, row["started"], now)
        for begin, end in [*self._lost]:
            _spread(seconds, begin, end)
        passed = max(1.0, now - present * 60)
        lengths = {present: passed}
        return [
            min(1.0, seconds[minute] / lengths.get(minute, 60.0))
            for minute in range(oldest, present + 1)
        ]

    def _add(self, seconds: _Seconds, after: float, before: float) -> None:
        row: sqlite3.Row
        for row in self._store.report(_GROUPS, after, before):
            if row["first"] == row["last"]:
                seconds[row["first"]] += row["seconds"]
            else:
                _spread(seconds, row["begin"], row["end"])


def _spread(seconds: _Seconds, begin: float, end: float) -> None:
    begin = max(begin, end - MINUTES * 60)
    for minute in range(int(begin // 60), int(end // 60) + 1):
        share = min(end, minute * 60 + 60.0) - max(begin, minute * 60.0)
        seconds[minute] += share

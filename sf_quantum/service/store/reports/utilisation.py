"""How busy the device was in each minute of the last hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from sf_quantum.service.store.reports.operation import Operation, periods
from sf_quantum.service.store.rows import LIVE
from sf_quantum.service.store.store import Store

MINUTES = 60
# time after a job's end within which the end is certainly written to disk
WRITTEN_SECONDS = 60.0
# seconds by minute of the store's clock
_Seconds = defaultdict[int, float]
# When the device finished a job. If a death of the service ended the job, ``ended_steady`` is
# the next start of the service, but the device did not run the job until then: its seconds
# are those of its finished slices, or 0.
_ENDED = "min(ended_steady, started_steady + seconds)"
# Jobs run one at a time, so a group whose first and last minute differ has only one job.
_GROUPS = (
    "SELECT CAST(started / 60 AS INTEGER) AS first, CAST(off / 60 AS INTEGER) AS last, "
    "min(started) AS begin, max(off) AS end, total(off - started) AS seconds "
    f"FROM (SELECT started_steady AS started, {_ENDED} AS off FROM jobs "
    "WHERE ended_steady >= ? AND ended_steady < ? AND started_steady IS NOT NULL) "
    "GROUP BY first, last"
)
_RUNNING = (
    "SELECT started_steady FROM jobs INDEXED BY jobs_live "
    f"WHERE {LIVE} AND state = 'Running'"
)


class Minute(NamedTuple):
    """A minute, or the part of it that has passed.

    :param seconds: seconds for which the service is known to have been in operation
    :param busy: seconds of the minute in which the QPU was busy
    :param status: status of the QPU for most of the minute; ``None`` if unknown
    """

    seconds: float
    busy: float
    status: Operation | None

    @property
    def part(self) -> float | None:
        """The busy fraction of the time; ``None`` if the service was not in operation."""
        if self.seconds <= 0:
            return None
        return min(1.0, self.busy / max(1.0, self.seconds))


class UtilisationHistory:
    """Adds up the times of ended jobs; each job is read from disk only once.

    :param interrupted: begin and end of each interrupted attempt. Only the attempts' lengths
        are on disk, so attempts from before the service started are missing.
    """

    def __init__(
        self, store: Store, interrupted: Collection[tuple[float, float]] = ()
    ) -> None:
        self._store = store
        self._interrupted = interrupted
        self._seconds = _Seconds(float)
        # jobs that ended before this time are in the sums
        self._until = 0.0

    def minutes(self, now: float) -> list[Minute]:
        """Return the minutes of the last hour; the last minute is the current minute.

        The first call may take long, so it must not be made in the event loop.

        :param now: current time by the store's clock
        """
        current = int(now // 60)
        oldest = current - MINUTES + 1
        for minute in [minute for minute in self._seconds if minute < oldest]:
            del self._seconds[minute]
        begin, written = max(self._until, oldest * 60.0), now - WRITTEN_SECONDS
        self._add(self._seconds, begin, written)
        self._until = max(begin, written)
        seconds = self._seconds.copy()
        self._add(seconds, self._until, now + WRITTEN_SECONDS)
        for row in self._store.report(_RUNNING):
            _spread(seconds, row["started_steady"], now)
        for begin, end in [*self._interrupted]:
            _spread(seconds, begin, end)
        by_status = defaultdict[Operation, _Seconds](lambda: _Seconds(float))
        for status, began, ended in periods(self._store, oldest * 60.0, now):
            _spread(by_status[status], began, ended)
        return [
            _minute(
                seconds[minute],
                {status: by_status[status][minute] for status in by_status},
            )
            for minute in range(oldest, current + 1)
        ]

    def _add(self, seconds: _Seconds, since: float, before: float) -> None:
        for row in self._store.report(_GROUPS, since, before):
            if row["first"] == row["last"]:
                seconds[row["first"]] += row["seconds"]
            else:
                _spread(seconds, row["begin"], row["end"])


def _minute(busy: float, by_status: dict[Operation, float]) -> Minute:
    if not (seconds := sum(by_status.values())):
        return Minute(60.0 if busy else 0.0, busy, None)
    return Minute(seconds, busy, max(by_status.items(), key=lambda one: one[1])[0])


def _spread(seconds: _Seconds, begin: float, end: float) -> None:
    begin = max(begin, end - MINUTES * 60)
    for minute in range(int(begin // 60), int(end // 60) + 1):
        overlap = min(end, minute * 60 + 60.0) - max(begin, minute * 60.0)
        seconds[minute] += max(0.0, overlap)

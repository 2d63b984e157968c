"""Time limits of allocations that are shorter than those of their services.

Slurm starts an allocation sooner in a gap of its schedule if the allocation accepts less time
(``--time-min``), and plans better if it knows when the allocation ends (``TimeLimit``). Users
cannot extend a shortened limit. So such an allocation runs only jobs with their own time
limit, at which they end themselves, before the allocation ends.

Times are epoch seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sf_quantum.slurm.squeue import QueueRow

#: Longest time from the start of a job until it has begun, and from its end until Slurm has
#: noticed the end.
START_SECONDS = 60


@dataclass(frozen=True)
class JobLength:
    """How long a job may take.

    :param limit: time limit of the job, at which it ends itself
    :param longest: duration of the longest job of its step; 0 if unknown
    """

    limit: int | None
    longest: float

    def fits(self, row: QueueRow, now: float) -> bool:
        """Whether the job ends before an allocation with the time limit of its service."""
        seconds = self.longest if self.limit is None else self.limit
        return row.ended is None or now + seconds <= row.ended


class ShortLimit:
    """A time limit that the driver has shortened, or allowed Slurm to shorten."""

    def __init__(self) -> None:
        #: the ``--time-min`` of the request
        self.least_seconds: float | None = None
        self._lowered: float | None = None

    def end(self, row: QueueRow | None, granted: float) -> float | None:
        """Return the earliest end of the allocation.

        :param row: the allocation in Slurm's queue while it runs, if known
        :returns: None if the allocation has the time limit of its service
        """
        if self.least_seconds is None and self._lowered is None:
            return None
        ends = [] if self._lowered is None else [self._lowered]
        if row is not None and row.ended:
            ends.append(row.ended)
        elif self.least_seconds is not None:
            ends.append(granted + self.least_seconds)
        return min(ends)

    def latest_start(self, job_seconds: int | None, end: float) -> float:
        """The latest start of a job with this time limit; minus infinity without a limit."""
        return end - (math.inf if job_seconds is None else job_seconds) - START_SECONDS

    def lower(self, started: float, ends: float | None, job_end: float) -> int | None:
        """Lower the limit to the end of the last job, which has begun.

        :param started: start that Slurm reports and from which it counts the limit
        :param ends: end that Slurm reports; None for a job without a limit
        :param job_end: the latest end of the job
        :returns: the limit in minutes, None if it is not lower
        """
        needed = job_end + 2 * START_SECONDS - started
        # Slurm accepts no limit below the --time-min
        minutes = math.ceil(max(needed, self.least_seconds or 0.0) / 60)
        end = started + 60 * minutes
        if ends is not None and end >= ends:
            return None
        # The limit may be in force even if the answer to the request is lost.
        self._lowered = end
        return minutes

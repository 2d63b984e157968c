"""Time limits of allocations that are shorter than the time limits of their services.

Slurm starts an allocation sooner, in a gap of its schedule, if the allocation accepts less
time (``--time-min``), and plans better if it knows when the allocation ends (``TimeLimit``).
Users cannot extend a shortened limit. So such an allocation runs only jobs that have their own
time limit: these end themselves before the allocation ends.

Times are epoch seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sf_quantum.slurm.squeue import QueueRow

#: Longest time from the request to start a job until the job begins, and from its end until
#: Slurm notices the end.
START_SECONDS = 60


@dataclass(frozen=True)
class JobLength:
    """The duration of a job, as far as known.

    :param limit: time limit of the job, at which the job ends itself
    :param longest: duration of the longest job of the step so far; 0 if unknown
    """

    limit: int | None
    longest: float

    def fits(self, row: QueueRow, now: float) -> bool:
        """Return whether the job would end before an allocation in Slurm's queue ends."""
        seconds = self.longest if self.limit is None else self.limit
        return row.ended is None or now + seconds <= row.ended


class ShortLimit:
    """A time limit that the driver has shortened, or allowed Slurm to shorten."""

    def __init__(self) -> None:
        #: value of ``--time-min`` in the request
        self.least_seconds: float | None = None
        self._lowered: float | None = None

    def end(self, row: QueueRow | None, granted: float) -> float | None:
        """Return the earliest end of the allocation.

        :param row: row of the allocation in Slurm's queue while it runs, if known
        :param granted: time at which the allocation was granted
        :returns: ``None`` if the allocation has the time limit of its service
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
        """Return the latest start of a job; minus infinity for a job without a time limit.

        :param job_seconds: time limit of the job
        :param end: end of the allocation
        """
        return end - (math.inf if job_seconds is None else job_seconds) - START_SECONDS

    def lower(self, started: float, ends: float | None, job_end: float) -> int | None:
        """Lower the limit to the end of the allocation's last job, which has begun.

        :param started: start of the allocation as Slurm reports it, where the limit begins
        :param ends: end of the allocation as Slurm reports it; ``None`` without a time limit
        :param job_end: latest end of the last job
        :returns: the new limit in minutes; ``None`` if it would not be lower
        """
        needed = job_end + 2 * START_SECONDS - started
        # Slurm does not accept a limit below --time-min.
        minutes = math.ceil(max(needed, self.least_seconds or 0.0) / 60)
        end = started + 60 * minutes
        if ends is not None and end >= ends:
            return None
        # Noted before the request, since the limit may apply even if Slurm's answer is lost.
        self._lowered = end
        return minutes

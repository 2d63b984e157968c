"""The allocations that ``elastic`` holds: who gets them, and when they are given back.

The rules have no clock, no event loop and no Slurm of their own: ``sfq.slurm`` follows them,
and so does the simulation of ``sfq plan``. All times are of one clock, which the caller reads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from sf_quantum.connectors.slurm.allocation.forecast import LATEST, JobForecast

Held = TypeVar("Held", bound=Hashable)
Request = TypeVar("Request")


@dataclass(frozen=True)
class ElasticSettings:
    """``elastic``: allocations kept between jobs; the fields are keys of the schema."""

    keep: int = 0
    max: int | None = None
    idle: float = 5.0
    patience: float = 60.0
    ahead: bool | Literal["dependent"] = False
    urgency: float = 1.0


@dataclass
class _Use:
    """What an allocation is used for.

    :param granted: when it was granted
    :param step: step of its latest job; empty if it has had none
    :param began: time at which it was assigned to this job
    """

    granted: float
    step: str = ""
    began: float = 0.0


class ElasticPool(Generic[Held]):
    """The granted allocations of one service, and what is expected of its jobs.

    :ivar forecast: of the jobs that follow quantum steps
    :ivar free: idle allocations, with the time since which they are idle
    :ivar busy: those that have a job
    """

    def __init__(self, settings: ElasticSettings) -> None:
        self.settings = settings
        self.forecast = JobForecast(settings.urgency)
        self.free: dict[Held, float] = {}
        self.busy: set[Held] = set()
        self._uses: dict[Held, _Use] = {}
        # whether no job has followed those of a step in their allocations
        self._last_step: dict[str, bool] = {}
        # times at which an allocation was given back without waiting for a job, by the same step
        self._given_back: dict[str, float] = {}
        # Seconds for which the latest allocations were held until they were given back.
        self._held_seconds: deque[float] = deque(maxlen=LATEST)

    def job_arrived(self, now: float) -> None:
        self.forecast.job_arrived(now)
        for earlier, at in self._given_back.items():
            if now < at + self.settings.idle:
                self._last_step[earlier] = False

    def add(self, allocation: Held, now: float) -> None:
        """An allocation was granted."""
        self._uses[allocation] = _Use(now)
        self.free[allocation] = now

    def assign(self, allocation: Held, arrived: float) -> None:
        """Give an idle allocation to a job.

        :param arrived: when the job did
        """
        self.note_follower(allocation, arrived)
        del self.free[allocation]
        self.busy.add(allocation)

    def note_follower(self, allocation: Held, arrived: float) -> None:
        """Note that a job follows that of an allocation, unless both came at once."""
        use = self._uses[allocation]
        if use.step and arrived > use.began:
            self._last_step[use.step] = False

    def job_began(self, allocation: Held, step: str, now: float) -> None:
        """A job of a step has its allocation."""
        # it may have been removed meanwhile
        use = self._uses.setdefault(allocation, _Use(now))
        use.step, use.began = step, now

    def make_free(self, allocation: Held, now: float) -> None:
        """An allocation can have another job."""
        self.busy.discard(allocation)
        self.free[allocation] = now

    def remove(self, allocation: Held) -> None:
        self.busy.discard(allocation)
        self.free.pop(allocation, None)
        self._uses.pop(allocation, None)

    def is_last(self, step: str) -> bool:
        """Whether no job is expected in an allocation after one of a step."""
        return bool(self.settings.ahead) and self._last_step.get(step, False)

    def due(self, now: float) -> int:
        """The number of jobs for which allocations are held ahead."""
        return self.forecast.due(now) if self.settings.ahead else 0

    def remove_idle(self, now: float, due: int) -> list[Held]:
        """Remove the allocations that are to be given back, and return them."""
        removed = []
        kept = max(due, self.settings.keep - len(self.busy))
        for allocation, since in list(self.free.items()):
            if len(self.free) > kept and now >= since + self._idle_seconds(allocation):
                use = self._uses[allocation]
                if use.step:
                    if not self.forecast.quantum and self.is_last(use.step):
                        self._given_back[use.step] = now
                    self._last_step.setdefault(use.step, True)
                    self._held_seconds.append(now - use.granted)
                self.remove(allocation)
                removed.append(allocation)
        return removed

    def _idle_seconds(self, allocation: Held) -> float:
        last = self.is_last(self._uses[allocation].step)
        return 0.0 if last or self.forecast.quantum else self.settings.idle

    def adjust(
        self,
        requests: dict[str | None, list[Request]],
        waiting: int,
        due: int,
        request: Callable[[str | None], Request],
        cancel: Callable[[Request], object],
    ) -> None:
        """Request missing allocations, and cancel requests that are not needed.

        :param requests: pending requests, by the Slurm jobs on which they depend, None
            for no dependency; changed in place
        :param waiting: the number of jobs that wait for an allocation
        """
        there = len(self.free) + len(self.busy)
        maximum = self.settings.max
        room = math.inf if maximum is None else maximum - there
        lacking = waiting + max(0, due - len(self.free))
        lacking_by: dict[str | None, int] = {None: lacking}
        for ended, count in self.forecast.dependent().items():
            lacking_by[ended] = max(0, count - len(self.free))
        for stale in [one for one in requests if one not in lacking_by]:
            # the step has ended or has another job now
            requests.setdefault(None, []).extend(requests.pop(stale))
        for dependency, count in lacking_by.items():
            pending = requests.setdefault(dependency, [])
            needed = min(count, room)
            # a request for an allocation that would be kept need not be cancelled
            spared = 0 if dependency else min(self.settings.keep - there, room)
            while len(pending) > max(needed, spared):
                cancel(pending.pop())
            while len(pending) < needed:
                pending.append(request(dependency))
            room -= len(pending)

    def next_change(self, now: float) -> float:
        """When an idle time or a forecast time comes; infinite if none does."""
        free = self.free.items()
        times = [since + self._idle_seconds(allocation) for allocation, since in free]
        if self.settings.ahead:
            times += self.forecast.changes(now)
        return min((at for at in times if at > now), default=math.inf)

    def longest_held(self) -> float | None:
        """For how long the latest allocations were held at most; None if unknown."""
        return max(self._held_seconds, default=None)

"""The rules of ``elastic``: when allocations are requested, reused and released.

The rules use no clock, event loop or Slurm, so ``sfq.slurm`` and the simulation of
``sfq plan`` share them. The caller passes all times, in seconds of a single clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from sf_quantum.connectors.slurm.allocation.forecast import LATEST, JobForecast

Allocation = TypeVar("Allocation", bound=Hashable)
Request = TypeVar("Request")


@dataclass(frozen=True)
class ElasticSettings:
    """Settings of ``elastic``; the fields are the keys of the schema."""

    keep: int = 0
    max: int | None = None
    idle: float = 5.0
    patience: float = 60.0
    ahead: bool | Literal["dependent"] = False
    urgency: float = 1.0


@dataclass
class _Use:
    """The latest use of an allocation.

    :param granted: time at which the allocation was granted
    :param step: step of the latest job; empty if there was no job
    :param began: time at which the latest job began
    """

    granted: float
    step: str = ""
    began: float = 0.0


class ElasticPool(Generic[Allocation]):
    """The granted allocations of one service, and the forecast of its jobs.

    :ivar forecast: forecast of the jobs that follow quantum steps
    :ivar free: idle allocations, each with the time at which it became idle
    :ivar busy: allocations in use by a job
    """

    def __init__(self, settings: ElasticSettings) -> None:
        self.settings = settings
        self.forecast = JobForecast(settings.urgency)
        self.free: dict[Allocation, float] = {}
        self.busy: set[Allocation] = set()
        self._uses: dict[Allocation, _Use] = {}
        # By step: whether no later job has reused an allocation of the step so far.
        self._last_step: dict[str, bool] = {}
        # By step: the time at which an allocation was released without an idle time.
        self._released_early: dict[str, float] = {}
        # Seconds from grant to release of each of the latest allocations.
        self._held_seconds: deque[float] = deque(maxlen=LATEST)

    def job_arrived(self, now: float) -> None:
        """Record that a job arrived; it might have reused an allocation released early."""
        self.forecast.job_arrived(now)
        for step, released in self._released_early.items():
            if now < released + self.settings.idle:
                self._last_step[step] = False

    def add(self, allocation: Allocation, now: float) -> None:
        """Add an allocation that was granted, as a free allocation."""
        self._uses[allocation] = _Use(now)
        self.free[allocation] = now

    def assign(self, allocation: Allocation, arrived: float) -> None:
        """Assign a free allocation to a job.

        :param arrived: time at which the job arrived
        """
        self.note_follower(allocation, arrived)
        del self.free[allocation]
        self.busy.add(allocation)

    def note_follower(self, allocation: Allocation, arrived: float) -> None:
        """Record that a later job reuses an allocation.

        A job that arrived before the allocation's latest job began is not a later job.

        :param arrived: time at which the job arrived
        """
        use = self._uses[allocation]
        if use.step and arrived > use.began:
            self._last_step[use.step] = False

    def job_began(self, allocation: Allocation, step: str, now: float) -> None:
        """Record that a job of a step begins in the allocation assigned to the job."""
        # setdefault(), as the allocation may have been removed in the meantime.
        use = self._uses.setdefault(allocation, _Use(now))
        use.step, use.began = step, now

    def make_free(self, allocation: Allocation, now: float) -> None:
        """Record that the job in an allocation has ended: the allocation is free."""
        self.busy.discard(allocation)
        self.free[allocation] = now

    def remove(self, allocation: Allocation) -> None:
        """Remove an allocation that has ended or is being released."""
        self.busy.discard(allocation)
        self.free.pop(allocation, None)
        self._uses.pop(allocation, None)

    def is_last(self, step: str) -> bool:
        """Return whether no job is expected to reuse the allocation of a step."""
        return bool(self.settings.ahead) and self._last_step.get(step, False)

    def due(self, now: float) -> int:
        """Return the number of expected jobs for which allocations should be held now."""
        return self.forecast.due(now) if self.settings.ahead else 0

    def remove_idle(self, now: float, due: int) -> list[Allocation]:
        """Remove and return the allocations that the caller has to release.

        :param due: number of free allocations to hold for expected jobs
        """
        removed = []
        min_free = max(due, self.settings.keep - len(self.busy))
        for allocation, since in list(self.free.items()):
            expires = since + self._idle_seconds(allocation)
            if len(self.free) > min_free and now >= expires:
                use = self._uses[allocation]
                if use.step:
                    if not self.forecast.quantum and self.is_last(use.step):
                        self._released_early[use.step] = now
                    self._last_step.setdefault(use.step, True)
                    self._held_seconds.append(now - use.granted)
                self.remove(allocation)
                removed.append(allocation)
        return removed

    def _idle_seconds(self, allocation: Allocation) -> float:
        """Return the seconds for which an idle allocation is held."""
        is_last = self.is_last(self._uses[allocation].step)
        return 0.0 if is_last or self.forecast.quantum else self.settings.idle

    def adjust(
        self,
        requests: dict[str | None, list[Request]],
        waiting: int,
        due: int,
        request: Callable[[str | None], Request],
        cancel: Callable[[Request], object],
    ) -> None:
        """Request missing allocations, and cancel requests that are no longer needed.

        :param requests: pending requests by dependency: the ids of the Slurm jobs after which
            the request can be granted, or ``None``. The mapping is changed in place
        :param waiting: number of jobs that wait for an allocation
        :param due: number of free allocations to hold for expected jobs
        :param request: function that requests an allocation with a dependency
        :param cancel: function that cancels a request
        """
        granted = len(self.free) + len(self.busy)
        maximum = self.settings.max
        room = math.inf if maximum is None else maximum - granted
        missing: dict[str | None, int] = {None: waiting + max(0, due - len(self.free))}
        for dependency, count in self.forecast.dependent().items():
            missing[dependency] = max(0, count - len(self.free))
        for stale in [key for key in requests if key not in missing]:
            # The step of these Slurm jobs has ended, or has submitted another job: the
            # requests no longer match a dependency.
            requests.setdefault(None, []).extend(requests.pop(stale))
        for key, count in missing.items():
            pending = requests.setdefault(key, [])
            needed = min(count, room)
            # Up to `keep` requests are not cancelled, since their allocations would be kept
            # even without a job.
            kept = 0 if key else min(self.settings.keep - granted, room)
            while len(pending) > max(needed, kept):
                cancel(pending.pop())
            while len(pending) < needed:
                pending.append(request(key))
            room -= len(pending)

    def next_change(self, now: float) -> float:
        """Return the next time at which the pool may change without an event, or infinity."""
        times = [
            since + self._idle_seconds(allocation)
            for allocation, since in self.free.items()
        ]
        if self.settings.ahead:
            times += self.forecast.changes(now)
        return min((time for time in times if time > now), default=math.inf)

    def longest_held(self) -> float | None:
        """Return how long the longest-held of the latest allocations was held, in seconds.

        :returns: ``None`` if no allocation has been released yet
        """
        return max(self._held_seconds, default=None)

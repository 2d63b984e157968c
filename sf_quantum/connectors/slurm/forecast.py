"""How many jobs will come when a quantum step ends, from how many came last time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

# in addition to the time that an allocation was in the queue last time
MARGIN_SECONDS = 0.5
#: jobs that come within this time after a quantum step came because of it
FOLLOWS_SECONDS = 5.0


@dataclass
class _QuantumStep:
    """A quantum step.

    :param followers: how many jobs came after it last time, before the first of them ended
    :param arrived: how many have come since it ended this time
    :param ends: while it runs, when it should end
    :param jobs: while it runs, its jobs on Slurm
    """

    followers: int = 0
    arrived: int = 0
    running: bool = False
    ends: float = math.inf
    jobs: tuple[str, ...] = ()


class Forecast:
    """The jobs of one service that quantum steps let expect; all times are of one clock."""

    def __init__(self) -> None:
        #: how long an allocation was in the queue last time
        self.queued_seconds = 0.0
        self._steps: dict[str, _QuantumStep] = {}
        # the step whose followers are being counted, and until when the first may come
        self._last: _QuantumStep | None = None
        self._until = 0.0

    @property
    def quantum(self) -> bool:
        """Whether a quantum step runs."""
        return any(step.running for step in self._steps.values())

    def started(self, name: str, ends: float | None) -> None:
        """A quantum step has started.

        :param ends: when it ends if it takes as long as last time, None if that is unknown
        """
        self._stop_counting()
        step = self._steps.setdefault(name, _QuantumStep())
        step.running, step.jobs = True, ()
        step.ends = math.inf if ends is None else ends

    def submitted(self, name: str, slurm_job: str) -> None:
        """A job of the step is a Slurm job, and Slurm knows best when that ends."""
        if name in self._steps:
            self._steps[name].jobs += (slurm_job,)

    def passed(self, dependency: str) -> None:
        """Slurm has seen the end of the jobs that nodes were to wait for."""
        for step in self._steps.values():
            if step.running and ":".join(step.jobs) == dependency:
                step.ends, step.jobs = -math.inf, ()

    def ended(self, name: str, now: float) -> None:
        """A quantum step has ended."""
        self._stop_counting()
        if name in self._steps:
            self._last, self._until = self._steps[name], now + FOLLOWS_SECONDS
            self._last.running, self._last.arrived = False, 0

    def forget(self) -> None:
        """Expect no jobs after any step, until some come again."""
        self._last = None
        for step in self._steps.values():
            step.followers = 0

    def job_arrived(self, now: float) -> None:
        """A job wants its nodes."""
        if self._last is not None and (self._last.arrived or now < self._until):
            self._last.arrived += 1

    def job_ended(self) -> None:
        """A job has ended: what comes now may have its nodes."""
        if self._last is not None and self._last.arrived:
            self._stop_counting()

    def due(self, now: float) -> int:
        """How many jobs will come so soon that nodes may be held for them."""
        return sum(
            step.followers
            for step in self._steps.values()
            if step.running and not step.jobs and now >= self._request_time(step)
        ) + self._still_to_come(now)

    def dependent(self) -> dict[str, int]:
        """How many jobs will come after these Slurm jobs, in the form of a dependency."""
        return {
            ":".join(step.jobs): step.followers
            for step in self._steps.values()
            if step.running and step.jobs and step.followers
        }

    def changes(self, now: float) -> Iterator[float]:
        """When :meth:`due` changes although nothing happens."""
        for step in self._steps.values():
            if step.running and step.followers and not step.jobs:
                yield self._request_time(step)
        if self._still_to_come(now):
            yield self._until

    def _request_time(self, step: _QuantumStep) -> float:
        return step.ends - self.queued_seconds - MARGIN_SECONDS

    def _still_to_come(self, now: float) -> int:
        if self._last is None or now >= self._until:
            return 0
        return max(0, self._last.followers - self._last.arrived)

    def _stop_counting(self) -> None:
        if self._last is not None:
            self._last.followers = self._last.arrived
            self._last = None

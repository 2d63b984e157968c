"""Predicts the number of jobs after a quantum step from that of its last run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

# added to the time that the last allocation was pending
MARGIN_SECONDS = 0.5
#: jobs that arrive within this time after a quantum step are counted as its followers
FOLLOWS_SECONDS = 5.0


@dataclass
class _QuantumStep:
    """A quantum step.

    :param followers: the number of jobs that arrived after its last run, before the first
        of them ended
    :param arrived: the number of jobs that have arrived since the current run ended
    :param ends: the expected end of the current run
    :param jobs: the Slurm jobs of the current run
    """

    followers: int = 0
    arrived: int = 0
    running: bool = False
    ends: float = math.inf
    jobs: tuple[str, ...] = ()


class JobForecast:
    """The expected jobs of one service after quantum steps; all times are of one clock."""

    def __init__(self) -> None:
        #: how long the last allocation was pending
        self.queued_seconds = 0.0
        self._steps: dict[str, _QuantumStep] = {}
        # the step whose followers are being counted, and the latest arrival of the first
        self._last: _QuantumStep | None = None
        self._until = 0.0

    @property
    def quantum(self) -> bool:
        """Whether a quantum step is running."""
        return any(step.running for step in self._steps.values())

    def started(self, name: str, ends: float | None) -> None:
        """Record the start of a quantum step, and its expected end."""
        self._stop_counting()
        step = self._steps.setdefault(name, _QuantumStep())
        step.running, step.jobs = True, ()
        step.ends = math.inf if ends is None else ends

    def submitted(self, name: str, slurm_job: str) -> None:
        """Record a Slurm job of the step, on whose end allocations can depend."""
        if name in self._steps:
            self._steps[name].jobs += (slurm_job,)

    def passed(self, dependency: str) -> None:
        """Record that the Slurm jobs of a dependency have ended."""
        for step in self._steps.values():
            if step.running and ":".join(step.jobs) == dependency:
                step.ends, step.jobs = -math.inf, ()

    def ended(self, name: str, now: float) -> None:
        """Record the end of a quantum step."""
        self._stop_counting()
        if name in self._steps:
            self._last, self._until = self._steps[name], now + FOLLOWS_SECONDS
            self._last.running, self._last.arrived = False, 0

    def forget(self) -> None:
        """Expect no jobs after any step until followers are counted again."""
        self._last = None
        for step in self._steps.values():
            step.followers = 0

    def job_arrived(self, now: float) -> None:
        """Record that a job requests nodes."""
        if self._last is not None and (self._last.arrived or now < self._until):
            self._last.arrived += 1

    def job_ended(self) -> None:
        """Stop counting followers: jobs that arrive from now on can reuse nodes."""
        if self._last is not None and self._last.arrived:
            self._stop_counting()

    def due(self, now: float) -> int:
        """The number of jobs expected so soon that nodes may be held for them."""
        return sum(
            step.followers
            for step in self._steps.values()
            if step.running and not step.jobs and now >= self._request_time(step)
        ) + self._still_to_come(now)

    def dependent(self) -> dict[str, int]:
        """The number of jobs expected after Slurm jobs, by ids in ``--dependency`` form."""
        return {
            ":".join(step.jobs): step.followers
            for step in self._steps.values()
            if step.running and step.jobs and step.followers
        }

    def changes(self, now: float) -> Iterator[float]:
        """The times at which :meth:`due` changes without an event."""
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

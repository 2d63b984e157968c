"""How many jobs will come when a quantum step ends, from how many came last time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

# beside what an allocation waited in the queue last time
MARGIN_SECONDS = 0.5
#: jobs that come within this time after a quantum step came because of it
FOLLOWS_SECONDS = 5.0


@dataclass
class _Step:
    """A quantum step.

    :param wave: how many jobs came after it last time, before the first of them ended
    :param came: how many have come since it ended this time
    :param ends: while it runs, when it should end
    :param jobs: while it runs, its jobs on Slurm
    """

    wave: int = 0
    came: int = 0
    running: bool = False
    ends: float = math.inf
    jobs: tuple[str, ...] = ()


class Forecast:
    """What quantum steps tell of the jobs of one service; all times are of one clock."""

    def __init__(self) -> None:
        #: how long an allocation waited in the queue last time
        self.queued_seconds = 0.0
        self._steps: dict[str, _Step] = {}
        # the step whose wave is being counted, and until when its first job may come
        self._last: _Step | None = None
        self._until = 0.0

    @property
    def quantum(self) -> bool:
        """Whether a quantum step runs."""
        return any(step.running for step in self._steps.values())

    def began(self, name: str, ends: float | None) -> None:
        """A quantum step has begun.

        :param ends: when it ends if it takes as long as last time, None if nobody knows
        """
        self._counted()
        step = self._steps.setdefault(name, _Step())
        step.running, step.jobs = True, ()
        step.ends = math.inf if ends is None else ends

    def submitted(self, name: str, slurm_job: str) -> None:
        """One of a step's jobs is this one of Slurm's, which knows its end best."""
        if name in self._steps:
            self._steps[name].jobs += (slurm_job,)

    def passed(self, dependency: str) -> None:
        """Slurm has seen the end of what nodes were to wait for."""
        for step in self._steps.values():
            if step.running and ":".join(step.jobs) == dependency:
                step.ends, step.jobs = -math.inf, ()

    def ended(self, name: str, now: float) -> None:
        """A quantum step has ended."""
        self._counted()
        if name in self._steps:
            self._last, self._until = self._steps[name], now + FOLLOWS_SECONDS
            self._last.running, self._last.came = False, 0

    def forget(self) -> None:
        """No jobs are expected any more after any step, until some come again."""
        self._last = None
        for step in self._steps.values():
            step.wave = 0

    def arrived(self, now: float) -> None:
        """A job wants its nodes."""
        if self._last is not None and (self._last.came or now < self._until):
            self._last.came += 1

    def left(self) -> None:
        """A job has ended."""
        if self._last is not None and self._last.came:
            self._counted()

    def due(self, now: float) -> int:
        """How many jobs will come so soon that nodes may be held for them."""
        return sum(
            step.wave
            for step in self._steps.values()
            if step.running and not step.jobs and now >= self._asking(step)
        ) + self._still_to_come(now)

    def later(self) -> dict[str, int]:
        """How many jobs will come after these jobs of Slurm's, as in a dependency."""
        return {
            ":".join(step.jobs): step.wave
            for step in self._steps.values()
            if step.running and step.jobs and step.wave
        }

    def changes(self, now: float) -> Iterator[float]:
        """When :meth:`due` changes although nothing happens."""
        for step in self._steps.values():
            if step.running and step.wave and not step.jobs:
                yield self._asking(step)
        if self._still_to_come(now):
            yield self._until

    def _asking(self, step: _Step) -> float:
        return step.ends - self.queued_seconds - MARGIN_SECONDS

    def _still_to_come(self, now: float) -> int:
        if self._last is None or now >= self._until:
            return 0
        return max(0, self._last.wave - self._last.came)

    def _counted(self) -> None:
        if self._last is not None:
            self._last.wave = self._last.came
            self._last = None

"""Who computes when: quantum steps of any connector, and those who plan around them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from streamflow.core.utils import get_job_step_name


class Planner(Protocol):
    """What wants to know when a quantum step runs."""

    def quantum_began(self, step: str, seconds: float | None) -> None:
        """A job of a quantum step has begun.

        :param seconds: how long one took last time, None for the first
        """

    def quantum_ended(self, step: str) -> None:
        """A job of a quantum step has ended, and no other of it runs."""


class Phases:
    """The quantum steps of one driver."""

    def __init__(self) -> None:
        self.planners: list[Planner] = []
        self._last: dict[str, float] = {}
        self._running: dict[str, int] = {}

    @contextmanager
    def quantum(self, job: str) -> Iterator[None]:
        """A job of a quantum step runs.

        :param job: StreamFlow's name of it
        """
        step = get_job_step_name(job)
        began = time.monotonic()
        self._running[step] = self._running.get(step, 0) + 1
        for planner in self.planners:
            planner.quantum_began(step, self._last.get(step))
        try:
            yield
        finally:
            self._last[step] = time.monotonic() - began
            self._running[step] -= 1
            if not self._running[step]:
                for planner in self.planners:
                    planner.quantum_ended(step)


# a driver process is one run
phases = Phases()

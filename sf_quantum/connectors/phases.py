"""Who computes when: quantum steps of any connector, and those who plan around them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from streamflow.core.utils import get_job_step_name


class Planner(Protocol):
    """What wants to know when a quantum step runs."""

    def quantum_began(self, step: str, seconds: float | None) -> None:
        """A quantum step has begun.

        :param seconds: how long it took last time, None for the first
        """

    def quantum_submitted(self, step: str, deployment: str, slurm_job: str) -> None:
        """A job of it is one of Slurm's as well.

        :param deployment: the one whose Slurm it is
        :param slurm_job: its id there
        """

    def quantum_ended(self, step: str) -> None:
        """None of its jobs runs any more."""


@dataclass
class _Running:
    """A quantum step that runs: some of its jobs do."""

    began: float
    jobs: int = 0


class Phases:
    """The quantum steps of one driver."""

    def __init__(self) -> None:
        self.planners: list[Planner] = []
        self._last: dict[str, float] = {}
        self._running: dict[str, _Running] = {}

    @contextmanager
    def quantum(self, job: str) -> Iterator[None]:
        """A job of a quantum step runs.

        :param job: StreamFlow's name of it
        """
        step = get_job_step_name(job)
        if step not in self._running:
            self._running[step] = _Running(time.monotonic())
            for planner in self.planners:
                planner.quantum_began(step, self._last.get(step))
        running = self._running[step]
        running.jobs += 1
        try:
            yield
            # one that was cancelled or refused tells nothing of the next
            self._last[step] = time.monotonic() - running.began
        finally:
            running.jobs -= 1
            if running.jobs == 0:
                del self._running[step]
                for planner in self.planners:
                    planner.quantum_ended(step)

    def submitted(self, job: str, deployment: str, slurm_job: str) -> None:
        """A job has been handed to Slurm; one of a classical step tells nothing.

        :param job: StreamFlow's name of it
        :param deployment: the one whose Slurm it is
        :param slurm_job: its id there
        """
        step = get_job_step_name(job)
        if step in self._running:
            for planner in self.planners:
                planner.quantum_submitted(step, deployment, slurm_job)


# a driver process is one run
phases = Phases()

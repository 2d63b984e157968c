"""The quantum steps that are running, around which classical nodes are planned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from streamflow.core.utils import get_job_step_name


class QuantumStepListener(Protocol):
    """Follows the quantum steps of a run, from their first job to their last."""

    def quantum_step_started(self, step: str, seconds: float | None) -> None:
        """A step starts; it took this many seconds last time, ``None`` the first time."""

    def quantum_job_submitted(self, step: str, deployment: str, slurm_job: str) -> None:
        """A job of a running step was submitted to the Slurm of a deployment."""

    def quantum_step_ended(self, step: str) -> None: ...


@dataclass
class _RunningStep:
    started: float
    jobs: int = 0


class QuantumSteps:
    """The quantum steps of one driver, and how long each took last time."""

    def __init__(self) -> None:
        self.listeners: list[QuantumStepListener] = []
        self._last_seconds: dict[str, float] = {}
        self._running: dict[str, _RunningStep] = {}

    @contextmanager
    def running(self, job: str) -> Iterator[None]:
        """Count a job of a quantum step, by StreamFlow's name, as running."""
        step = get_job_step_name(job)
        if step not in self._running:
            self._running[step] = _RunningStep(time.monotonic())
            for listener in self.listeners:
                listener.quantum_step_started(step, self._last_seconds.get(step))
        running = self._running[step]
        running.jobs += 1
        try:
            yield
            # not of a cancelled or refused job, which predicts nothing
            self._last_seconds[step] = time.monotonic() - running.started
        finally:
            running.jobs -= 1
            if running.jobs == 0:
                del self._running[step]
                for listener in self.listeners:
                    listener.quantum_step_ended(step)

    def submitted(self, job: str, deployment: str, slurm_job: str) -> None:
        """Report a job submitted to Slurm to the listeners, unless its step is classical."""
        step = get_job_step_name(job)
        if step in self._running:
            for listener in self.listeners:
                listener.quantum_job_submitted(step, deployment, slurm_job)


# a driver process is one run
quantum_steps = QuantumSteps()

"""The quantum steps that are running, which determine when classical nodes are requested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from streamflow.core.utils import get_job_step_name


class QuantumStepListener(Protocol):
    """Follows the quantum steps of a run, from their first job to their last."""

    def quantum_step_started(self, step: str) -> None: ...

    def quantum_job_submitted(self, step: str, deployment: str, slurm_job: str) -> None:
        """A job of a running step was submitted to the Slurm of a deployment."""

    def quantum_job_begins(self, step: str, job: str, seconds: float) -> None:
        """The QPU begins a job of a running step in ``seconds``, or has begun the job.

        :param seconds: negative after the beginning; infinite if the QPU does not report it
        """

    def quantum_step_ended(self, step: str, *, completed: bool) -> None:
        """A step has ended.

        :param completed: false if the step's last job failed or was cancelled
        """


class QuantumSteps:
    """The quantum steps of one driver."""

    def __init__(self) -> None:
        self.listeners: list[QuantumStepListener] = []
        # number of running jobs by step
        self._running: Counter[str] = Counter()

    @contextmanager
    def running(self, job: str) -> Iterator[None]:
        """Count a job of a quantum step as running during the block.

        :param job: StreamFlow's name of the job
        """
        step = get_job_step_name(job)
        self._running[step] += 1
        if self._running[step] == 1:
            for listener in self.listeners:
                listener.quantum_step_started(step)
        completed = False
        try:
            yield
            completed = True
        finally:
            self._running[step] -= 1
            if not self._running[step]:
                del self._running[step]
                for listener in self.listeners:
                    listener.quantum_step_ended(step, completed=completed)

    def begins(self, job: str, seconds: float) -> None:
        """Report when the QPU begins a job, see :class:`QuantumStepListener`."""
        step = get_job_step_name(job)
        if step in self._running:
            for listener in self.listeners:
                listener.quantum_job_begins(step, job, seconds)

    def submitted(self, job: str, deployment: str, slurm_job: str) -> None:
        """Report to the listeners that a quantum step's job was submitted to Slurm."""
        step = get_job_step_name(job)
        if step in self._running:
            for listener in self.listeners:
                listener.quantum_job_submitted(step, deployment, slurm_job)


# A single object suffices, as a driver process has one run at a time.
quantum_steps = QuantumSteps()

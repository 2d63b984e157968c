"""Hybrid applications: the phases of one run, with their durations drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sf_quantum.planning.simulation.cluster import Usage
from sf_quantum.service.domain.jobs import LeaseRequest


@dataclass(frozen=True)
class Task:
    """A job on nodes of a partition.

    :param seconds: run time on ``nodes`` nodes; with fewer nodes, down to ``least``, the run
        time is proportionally longer
    :param expected_seconds: mean of the distribution of ``seconds``
    """

    partition: str
    nodes: int
    least: int
    seconds: float
    expected_seconds: float

    def seconds_on(self, nodes: int) -> float:
        return self.seconds * self.nodes / nodes


@dataclass(frozen=True)
class ClassicalStep:
    """Tasks that run in parallel; the next step begins when all tasks have ended.

    :param name: name of the step, the same in each pass through the phases
    :param host_seconds: computation on the driver's host before the step, in seconds
    :param at_once: maximum number of tasks that a workflow runs at the same time; ``None``
        for no limit
    """

    tasks: tuple[Task, ...]
    name: str = ""
    host_seconds: float = 0.0
    at_once: int | None = None

    @property
    def seconds(self) -> float:
        return max(task.seconds for task in self.tasks)

    @property
    def expected_seconds(self) -> float:
        return max(task.expected_seconds for task in self.tasks)

    def nodes(self) -> dict[str, int]:
        """Sum the nodes of the tasks, by partition."""
        nodes: dict[str, int] = {}
        for task in self.tasks:
            nodes[task.partition] = nodes.get(task.partition, 0) + task.nodes
        return nodes

    def nodes_at_once(self) -> dict[str, int]:
        """Sum the nodes of the tasks that a workflow runs at the same time."""
        return replace(self, tasks=self.tasks[: self.at_once]).nodes()


@dataclass(frozen=True)
class QuantumStep:
    """Jobs on a QPU that run one at a time.

    :param partition: partition of the nodes on which the client runs; ``None`` if it runs on
        the driver's host
    :param jobs: seconds of each job on the device, including the set-up
    :param off_qpu_seconds: seconds off the QPU for each job: the latency, and the computation
        between two jobs
    :param name: name of the step, the same in each pass through the phases
    :param host_seconds: computation on the driver's host before the step, in seconds
    :param nodes: number of nodes of the client
    """

    qpu: str
    partition: str | None
    jobs: tuple[float, ...]
    expected_qpu_seconds: float
    off_qpu_seconds: float
    name: str = ""
    host_seconds: float = 0.0
    nodes: int = 1

    @property
    def seconds(self) -> float:
        return sum(self.jobs) + len(self.jobs) * self.off_qpu_seconds

    @property
    def expected_seconds(self) -> float:
        return self.expected_qpu_seconds + len(self.jobs) * self.off_qpu_seconds


Step: TypeAlias = ClassicalStep | QuantumStep


@dataclass
class Outcome:
    """The times and usage of an application, in seconds on the virtual clock.

    :param leased: lease-seconds by QPU
    """

    submitted: float
    ended: float = math.nan
    leased: dict[str, float] = field(default_factory=dict)
    nodes: Usage = field(default_factory=Usage)

    @property
    def wall(self) -> float:
        return self.ended - self.submitted


@dataclass(frozen=True)
class Application:
    """One run of a hybrid application.

    :param margin: the user's estimates of times, relative to the times' means
    :param limit: time limit of the jobs, instead of these estimates
    :param lease: request for each lease of the application
    :param name: name of the application, the same for all runs of a StreamFlow file
    """

    user: str
    arrival: float
    steps: Sequence[Step]
    margin: float
    lease: LeaseRequest
    name: str = ""
    limit: float | None = None

    @property
    def seconds(self) -> float:
        """The time that the phases take if nothing waits."""
        return sum(step.host_seconds + step.seconds for step in self.steps)

    @property
    def qpu_seconds(self) -> float:
        return sum(sum(step.jobs) for step in self.quantum_steps())

    def quantum_steps(self) -> Iterator[QuantumStep]:
        return (step for step in self.steps if isinstance(step, QuantumStep))

    def most_nodes(self) -> dict[str, int]:
        """Return the nodes of each partition that the largest step needs."""
        return self._most(ClassicalStep.nodes)

    def most_nodes_at_once(self) -> dict[str, int]:
        """Like :meth:`most_nodes`, with the tasks that a workflow runs at the same time."""
        return self._most(ClassicalStep.nodes_at_once)

    def _most(
        self, nodes_of: Callable[[ClassicalStep], dict[str, int]]
    ) -> dict[str, int]:
        most: dict[str, int] = {}
        for step in self.steps:
            if isinstance(step, ClassicalStep):
                for name, nodes in nodes_of(step).items():
                    most[name] = max(most.get(name, 0), nodes)
        return most

    def estimate(self) -> float:
        """Return the user's estimate of the time of all steps, at least the actual time."""
        expected = sum(step.host_seconds + step.expected_seconds for step in self.steps)
        return self.estimated(self.seconds, expected)

    def estimated(self, seconds: float, expected: float) -> float:
        """Return the user's estimate of a time, at least the actual time.

        :param seconds: the actual time
        :param expected: the mean of the time
        """
        limit = self.margin * expected if self.limit is None else self.limit
        return max(seconds, limit)


def draw(draws: random.Random, mean: float, spread: float) -> float:
    """Draw a time from a log-normal distribution.

    :param spread: standard deviation relative to the mean; 0 always gives the mean
    """
    if not spread or not mean:
        return mean
    variance = math.log1p(spread * spread)
    return draws.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))

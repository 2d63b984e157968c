"""The site on which strategies are simulated: a cluster, QPUs and software overheads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

import simpy

from sf_quantum.connectors.slurm.allocation.forecast import JobForecast
from sf_quantum.planning.simulation.application import (
    Application,
    Outcome,
    QuantumStep,
    Task,
    draw,
)
from sf_quantum.planning.simulation.cluster import Allocation, Cluster
from sf_quantum.planning.simulation.qpu import Process, QpuService
from sf_quantum.planning.workloads.quantities import Seconds, Spread
from sf_quantum.service.domain.jobs import Lease
from sf_quantum.validation import Section


class Overheads(Section):
    """Times that StreamFlow and Slurm add to computation and waits, in seconds.

    The defaults of ``step_seconds`` and ``job_seconds`` add up to the extra time of a step
    in a workflow, compared with a monolithic program, in table II of Rocco et al. (QCE
    2025): (569.00 - 539.44) / 12. ``step_seconds`` and ``resume_seconds`` were measured with
    ``sfq.slurm`` on a single-machine Slurm installation.

    :param step_seconds: time that StreamFlow takes from the end of a step to the start
        of the next
    :param job_seconds: time that Slurm takes to submit, start and end a job, without
        the wait for nodes
    :param resume_seconds: time to start a job in an allocation that is already held
    :param job_held_seconds: the part of ``job_seconds`` in which the job of a step has
        its nodes
    :param allocation_seconds: time that Slurm takes to submit and start an allocation
        for several jobs, without the wait for nodes; by default ``job_seconds``
    :param allocation_held_seconds: the part of ``allocation_seconds`` in which the
        allocation has its nodes
    :param step_spread: standard deviation of ``step_seconds``, relative to its mean
    :param job_spread: standard deviation of ``job_seconds``, relative to its mean
    :param resume_spread: standard deviation of ``resume_seconds``, relative to its mean
    """

    step_seconds: Seconds = 0.2
    job_seconds: Seconds = 2.3
    resume_seconds: Seconds = 0.05
    job_held_seconds: Seconds = 0.0
    allocation_seconds: Seconds | None = None
    allocation_held_seconds: Seconds = 0.0
    step_spread: Spread = 0.0
    job_spread: Spread = 0.0
    resume_spread: Spread = 0.0


class QueueWait(NamedTuple):
    """How long requests wait because of jobs that are not simulated.

    :param seconds: mean of the wait
    :param spread: standard deviation relative to the mean
    """

    seconds: float
    spread: float


#: name of an application; partition, nodes and minimum number of nodes of its tasks
TasksKey: TypeAlias = tuple[str, str, int, int]


def licence(qpu: str) -> str:
    """Return the name of the licences with which a cluster counts a QPU's vQPUs."""
    return f"qpu:{qpu}"


@dataclass(frozen=True)
class Site:
    """The cluster and the QPUs of one simulation.

    :param queues: wait for nodes because of jobs that are not simulated, by partition
    :param draws: random number generator for the overheads and the queues
    :param job_slots: slots for running jobs, by partition; only for partitions that limit the
        number of running jobs
    :param forecasts: the forecast that the latest ended run left, by application and kind of
        task; later runs learn from it
    """

    env: simpy.Environment
    cluster: Cluster
    qpus: Mapping[str, QpuService]
    overheads: Overheads
    queues: Mapping[str, QueueWait] = field(default_factory=dict)
    draws: random.Random = field(default_factory=lambda: random.Random(0))
    job_slots: Mapping[str, simpy.Resource] = field(default_factory=dict)
    forecasts: dict[TasksKey, JobForecast] = field(default_factory=dict)

    def step_seconds(self) -> float:
        """Draw the time that StreamFlow takes from one step to the next."""
        overheads = self.overheads
        return draw(self.draws, overheads.step_seconds, overheads.step_spread)

    def job_seconds(self, *partitions: str) -> tuple[float, float]:
        """Draw the overhead of a step's Slurm job, without its work and its simulated wait.

        :param partitions: partitions in which the job requests nodes
        :returns: seconds before the job requests the nodes, and seconds for which it has
            the nodes without working
        """
        overheads = self.overheads
        return self._draw_overhead(
            overheads.job_seconds, overheads.job_held_seconds, partitions
        )

    def allocation_seconds(self, *partitions: str) -> tuple[float, float]:
        """Draw the overhead of an allocation for several jobs; see :meth:`job_seconds`."""
        overheads = self.overheads
        seconds = overheads.allocation_seconds
        return self._draw_overhead(
            overheads.job_seconds if seconds is None else seconds,
            overheads.allocation_held_seconds,
            partitions,
        )

    def _draw_overhead(
        self, seconds: float, held_seconds: float, partitions: Iterable[str]
    ) -> tuple[float, float]:
        queued = [
            draw(self.draws, *self.queues[name])
            for name in partitions
            if name in self.queues
        ]
        duration = draw(self.draws, seconds, self.overheads.job_spread)
        held = min(held_seconds, duration)
        return max(queued, default=0.0) + duration - held, held

    def resume_seconds(self) -> float:
        """Draw the time that a job takes to start in an allocation."""
        overheads = self.overheads
        return draw(self.draws, overheads.resume_seconds, overheads.resume_spread)

    def in_turn(self, partition: str | None, work: Process) -> Process:
        """Do the work of a job once the partition's limit on running jobs lets it start."""
        slots = None if partition is None else self.job_slots.get(partition)
        if slots is None:
            yield from work
            return
        with slots.request() as turn:
            yield turn
            yield from work

    def compute(self, task: Task, allocation: Allocation, outcome: Outcome) -> Process:
        """Run a task on the nodes of an allocation."""
        nodes = min(task.nodes, allocation.nodes[task.partition])
        seconds = task.seconds_on(nodes)
        outcome.nodes.add_busy(task.partition, nodes * seconds)
        yield self.env.timeout(seconds)

    def task_job(
        self, task: Task, application: Application, outcome: Outcome
    ) -> Process:
        """Run a task as a separate Slurm job."""
        before, held = self.job_seconds(task.partition)
        yield self.env.timeout(before)
        estimate = application.estimated(task.seconds, task.expected_seconds)
        allocation = self.cluster.request(
            {task.partition: task.nodes}, estimate, outcome.nodes
        )
        yield allocation.granted
        yield self.env.timeout(held)
        yield from self.compute(task, allocation, outcome)
        self.cluster.release(allocation)

    def quantum_job(
        self,
        step: QuantumStep,
        application: Application,
        outcome: Outcome,
        began: Callable[[], None] = lambda: None,
    ) -> Process:
        """Run a quantum step under a lease of its own.

        The client runs on the driver's host, or on nodes that are requested first.

        :param began: function that is called when the client has its nodes or, on the
            driver's host, its lease
        """
        if step.partition is None:
            yield from self._run_leased(step, application, outcome, began)
            return
        before, held = self.job_seconds(step.partition)
        yield self.env.timeout(before)
        estimate = application.estimated(step.seconds, step.expected_seconds)
        nodes = {step.partition: step.nodes, licence(step.qpu): 1}
        allocation = self.cluster.request(nodes, estimate, outcome.nodes)
        yield allocation.granted
        began()
        yield self.env.timeout(held)
        yield from self._run_leased(step, application, outcome, lambda: None)
        self.cluster.release(allocation)

    def _run_leased(
        self,
        step: QuantumStep,
        application: Application,
        outcome: Outcome,
        began: Callable[[], None],
    ) -> Process:
        leases = HeldLeases(self, application, outcome)
        yield from leases.acquire(step.qpu)
        began()
        yield from self.sample(step, leases.held[step.qpu], outcome)
        leases.release(step.qpu)

    def sample(self, step: QuantumStep, lease: Lease, outcome: Outcome) -> Process:
        """Run the jobs of a quantum step under a lease."""
        if step.partition is not None:
            outcome.nodes.add_busy(step.partition, step.nodes * step.seconds)
        for seconds in step.jobs:
            yield self.env.timeout(step.off_qpu_seconds)
            yield self.qpus[step.qpu].submit(lease, seconds)


class HeldLeases:
    """The leases that an application holds."""

    def __init__(self, site: Site, application: Application, outcome: Outcome) -> None:
        self._site = site
        self._application = application
        self._outcome = outcome
        self.held: dict[str, Lease] = {}

    def acquire(self, qpu: str) -> Process:
        application = self._application
        granted = self._site.qpus[qpu].acquire(application.user, application.lease)
        yield granted
        self.held[qpu] = cast("Lease", granted.value)

    def release(self, qpu: str) -> None:
        lease = self.held.pop(qpu)
        seconds = self._site.env.now - lease.opened
        leased = self._outcome.leased
        leased[qpu] = leased.get(qpu, 0.0) + seconds
        self._site.qpus[qpu].release(lease)

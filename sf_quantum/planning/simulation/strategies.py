"""The allocation strategies: which resources a hybrid application holds, and when."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import simpy
from pydantic import Field

from sf_quantum.connectors.slurm.allocation.elastic_rules import ElasticSettings
from sf_quantum.planning.simulation.application import (
    Application,
    ClassicalStep,
    Outcome,
    QuantumStep,
    Step,
)
from sf_quantum.planning.simulation.cluster import Allocation
from sf_quantum.planning.simulation.elastic import ElasticAllocations
from sf_quantum.planning.simulation.qpu import Process
from sf_quantum.planning.simulation.site import HeldLeases, Site, licence
from sf_quantum.planning.workloads.quantities import Amount, Count, Seconds
from sf_quantum.validation import Section


class _Strategy(Section):
    """The way in which an application gets its nodes and QPUs.

    :param type: name of the strategy
    :param vqpus: number of leases that each QPU grants at the same time, instead of the
        QPU's ``vqpus``
    """

    type: str
    vqpus: Count | None = None

    @property
    def name(self) -> str:
        plural = "" if self.vqpus == 1 else "s"
        suffix = "" if self.vqpus is None else f", {self.vqpus} vQPU{plural}"
        return f"{self._label()}{suffix}"

    @abstractmethod
    def _label(self) -> str:
        """Return the name of the strategy, with its options."""

    def holds(self, application: Application) -> Mapping[str, int]:
        """Return, by partition, the nodes that must be free at the same time."""
        held: dict[str, int] = {}
        for step in application.steps:
            for name, nodes in _task_nodes(step).items():
                held[name] = max(held.get(name, 0), nodes)
        return held

    @abstractmethod
    def run(self, site: Site, application: Application, outcome: Outcome) -> Process:
        """Run an application."""


def _task_nodes(step: Step) -> Mapping[str, int]:
    if isinstance(step, QuantumStep):
        return {} if step.partition is None else {step.partition: step.nodes}
    return {task.partition: task.nodes for task in step.tasks}


class _Held(_Strategy):
    """One heterogeneous job holds all nodes and all leases.

    The nodes and the vQPUs, as licences, are granted at the same time; then the leases are
    acquired.
    """

    def holds(self, application: Application) -> Mapping[str, int]:
        """Return all nodes and licences that are held at the same time."""
        held = self._nodes(application)
        for qpu, (partition, nodes) in _clients(application).items():
            held[licence(qpu)] = 1
            if partition is not None:
                held[partition] = held.get(partition, 0) + nodes
        return held

    def run(self, site: Site, application: Application, outcome: Outcome) -> Process:
        resources = self.holds(application)
        seconds_before, seconds_held = site.allocation_seconds(*resources)
        yield site.env.timeout(seconds_before)
        allocation = site.cluster.request(
            resources, application.estimate(), outcome.nodes
        )
        yield allocation.granted
        yield site.env.timeout(seconds_held)
        leases = HeldLeases(site, application, outcome)
        for qpu in _clients(application):
            yield from leases.acquire(qpu)
        for number, step in enumerate(application.steps):
            yield site.env.timeout(step.host_seconds + self._step_seconds(site))
            if isinstance(step, QuantumStep):
                yield from site.sample(step, leases.held[step.qpu], outcome)
            else:
                jobs = [site.compute(task, allocation, outcome) for task in step.tasks]
                yield from _parallel(site, self._jobs(site, step, jobs))
            for qpu in self._unused(application, leases, number):
                leases.release(qpu)
                self._release_nodes(site, application, allocation, qpu)
        for qpu in [*leases.held]:
            leases.release(qpu)
        site.cluster.release(allocation)

    def _nodes(self, application: Application) -> dict[str, int]:
        """Return the nodes for the classical steps."""
        return application.most_nodes()

    def _jobs(
        self, site: Site, step: ClassicalStep, jobs: Sequence[Process]
    ) -> Sequence[Process]:
        """Return the jobs of a step, with the limits on concurrent jobs if these apply."""
        return jobs

    def _step_seconds(self, site: Site) -> float:
        return 0.0

    def _unused(
        self, application: Application, leases: HeldLeases, number: int
    ) -> Sequence[str]:
        """List the QPUs that are released after a step."""
        return ()

    def _release_nodes(
        self,
        site: Site,
        application: Application,
        allocation: Allocation,
        qpu: str,
    ) -> None:
        """Release the part of the allocation that only the clients of one QPU use."""
        clients = _clients(application)
        partition, _ = clients.pop(qpu)
        parts = [licence(qpu)]
        others = [one for one, _ in clients.values()]
        if partition is not None and partition not in (
            *application.most_nodes(),
            *others,
        ):
            parts.append(partition)
        site.cluster.release(allocation, *parts)


class CoScheduled(_Held):
    """One program without steps holds all nodes and QPUs from its start to its end."""

    type: Literal["co-scheduled"] = "co-scheduled"

    def _label(self) -> str:
        return self.type


class Reserved(_Held):
    """All nodes and QPUs are held for the steps of a workflow; QPUs are released early.

    The lease and the node of a QPU are released after the last step that uses the QPU.
    """

    type: Literal["reserved"] = "reserved"

    def _label(self) -> str:
        return self.type

    def _nodes(self, application: Application) -> dict[str, int]:
        return application.most_nodes_at_once()

    def _jobs(
        self, site: Site, step: ClassicalStep, jobs: Sequence[Process]
    ) -> Sequence[Process]:
        return _in_turn(site, step, jobs)

    def _step_seconds(self, site: Site) -> float:
        return site.step_seconds() + site.resume_seconds()

    def _unused(
        self, application: Application, leases: HeldLeases, number: int
    ) -> Sequence[str]:
        later = {
            step.qpu
            for step in application.steps[number + 1 :]
            if isinstance(step, QuantumStep)
        }
        return [qpu for qpu in leases.held if qpu not in later]


class PerStep(_Strategy):
    """Each job of a step is a separate Slurm job, and each quantum step has a lease."""

    type: Literal["per-step"] = "per-step"

    def _label(self) -> str:
        return self.type

    def run(self, site: Site, application: Application, outcome: Outcome) -> Process:
        for step in application.steps:
            yield site.env.timeout(step.host_seconds + site.step_seconds())
            if isinstance(step, QuantumStep):
                job = site.quantum_job(step, application, outcome)
                yield from site.in_turn(step.partition, job)
            else:
                jobs = [
                    site.task_job(task, application, outcome) for task in step.tasks
                ]
                yield from _parallel(site, _in_turn(site, step, jobs))


class Elastic(_Strategy):
    """Allocations are kept from job to job; quantum steps are separate Slurm jobs.

    The keys are the same as in ``allocation:`` of ``sfq.slurm``.

    :param keep: number of allocations that are kept even if they are idle
    :param max: maximum number of allocations; by default the number of tasks
    :param idle: seconds after which an idle allocation is released
    :param patience: seconds after which fewer nodes are accepted
    :param ahead: whether nodes for the next step are requested while a quantum step runs
    :param urgency: number of idle node-seconds that equal a second of waiting, with ``ahead``
    """

    type: Literal["elastic"] = "elastic"
    keep: Annotated[int, Field(ge=0)] = 0
    max: Count | None = None
    idle: Seconds = 5.0
    patience: Seconds = 60.0
    ahead: bool = False
    urgency: Amount = 1.0

    def _label(self) -> str:
        fields = type(self).model_fields
        options = [
            name if value is True else f"{name} {value:g}"
            for name, value in self
            if name not in ("type", "vqpus") and value != fields[name].default
        ]
        return " ".join([self.type, *options]) if options else self.type

    def run(self, site: Site, application: Application, outcome: Outcome) -> Process:
        settings = ElasticSettings(**self.model_dump(exclude={"type", "vqpus"}))
        allocations: dict[_Size, ElasticAllocations] = {}
        for step in application.steps:
            yield site.env.timeout(step.host_seconds + site.step_seconds())
            if isinstance(step, QuantumStep):
                yield from self._quantum_step(
                    step, [*allocations.values()], site, application, outcome
                )
                continue
            tasks = []
            for task in step.tasks:
                size = task.partition, task.nodes, task.least
                if size not in allocations:
                    allocations[size] = ElasticAllocations(
                        site, application, outcome, settings, task
                    )
                job = allocations[size].run(step.name, task)
                tasks.append(site.env.process(site.in_turn(task.partition, job)))
            yield simpy.AllOf(site.env, tasks)
        for held in allocations.values():
            held.close()

    def _quantum_step(
        self,
        step: QuantumStep,
        allocations: Sequence[ElasticAllocations],
        site: Site,
        application: Application,
        outcome: Outcome,
    ) -> Process:
        """Run a quantum step; allocations adjust at its start, its lease and its end."""

        def begins() -> None:
            for held in allocations:
                held.quantum_step_begins(step.name)

        for held in allocations:
            held.quantum_step_started(step.name)
        job = site.quantum_job(step, application, outcome, begins)
        yield from site.in_turn(step.partition, job)
        for held in allocations:
            held.quantum_step_ended(step.name)


_Size: TypeAlias = tuple[str, int, int]


def _clients(application: Application) -> dict[str, tuple[str | None, int]]:
    """Return, by QPU, the partition of its clients, and the nodes of the largest client."""
    clients: dict[str, tuple[str | None, int]] = {}
    for step in application.quantum_steps():
        _, nodes = clients.get(step.qpu, (None, 0))
        clients[step.qpu] = step.partition, max(nodes, step.nodes)
    return clients


def _in_turn(site: Site, step: ClassicalStep, jobs: Sequence[Process]) -> list[Process]:
    """Return the jobs of a step's tasks, each subject to its partition's job limit."""
    pairs = zip(step.tasks, jobs, strict=True)
    return [site.in_turn(task.partition, job) for task, job in pairs]


def _parallel(site: Site, jobs: Sequence[Process]) -> Process:
    if len(jobs) == 1:
        yield from jobs[0]
    else:
        yield simpy.AllOf(site.env, [site.env.process(job) for job in jobs])


Strategy: TypeAlias = Annotated[
    CoScheduled | Reserved | PerStep | Elastic, Field(discriminator="type")
]

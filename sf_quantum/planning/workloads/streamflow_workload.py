"""A workload made of a StreamFlow file: its steps, their bindings, and its ``allocation:``."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum import yaml
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.planning import site_nodes
from sf_quantum.planning.measured.fitting import Fit, FittedPhase
from sf_quantum.planning.measured.sources import in_seconds
from sf_quantum.planning.simulation.strategies import (
    Elastic,
    PerStep,
    Reserved,
    Strategy,
)
from sf_quantum.slurm import tres
from sf_quantum.slurm.components import Component

#: durations of steps that no journal has
CLASSICAL_SECONDS = 300.0
QPU_SECONDS = 60.0
_SLURM = "sfq.slurm"
# connectors that lease a QPU
_QUANTUM = ("sfq.emulator", "sfq.rest")
_DEFAULT_PARTITION = "default"
# StreamFlow's own default of maxConcurrentJobs
_MOST_JOBS = 1


@dataclass(frozen=True)
class _Target:
    """A deployment and a service of it."""

    deployment: str
    service: str


@dataclass(frozen=True)
class WorkflowPlan:
    """A StreamFlow file as a workload.

    :param workload: the content of a workload file
    :param current: the strategy that the file has, for its first classical step at least
    :param deployment: deployment to which the strategies apply; its ``allocation:`` is
        ``current``
    :param reserved: components of each service that hold all of the workflow
    :param last_quantum: the last step on a QPU, and how often it runs; ``None``: there is none
    :param overridden_by: services with an ``allocation:`` of their own
    :param assumed: what neither the file nor its journals have
    :param left_out: strategies that the site cannot grant, and why
    :param site: nodes of the partitions, as far as they are known
    :param is_mixed: whether its services have several
    """

    workload: dict[str, JSON]
    current: Strategy
    deployment: str
    reserved: Mapping[str, int]
    last_quantum: tuple[str, int] | None
    overridden_by: Sequence[str]
    assumed: Sequence[str]
    left_out: Mapping[str, str]
    site: Mapping[str, int]
    is_mixed: bool = False

    def allocation(self, strategy: Strategy) -> JSON:
        """Return the value of ``allocation:`` for a strategy."""
        if isinstance(strategy, Elastic):
            options = strategy.model_dump(exclude_defaults=True, exclude={"vqpus"})
            return {"strategy": "elastic", **options}
        if isinstance(strategy, Reserved):
            allocation: dict[str, JSON] = {
                "strategy": "reserved",
                "reserve": dict(self.reserved),
            }
            if self.last_quantum is not None:
                step, times = self.last_quantum
                allocation["release"] = {"after": step, "times": times}
            return allocation
        return "per-step"

    def lines(self, strategy: Strategy) -> list[str]:
        """Return the lines of the StreamFlow file that make it follow a strategy."""
        if strategy == self.current and not self.is_mixed:
            return [f"# deployment {self.deployment} has it already"]
        text = [
            "deployments:",
            f"  {self.deployment}:",
            "    config:",
            f"      allocation: {yaml.dump_line(self.allocation(strategy))}",
        ]
        if self.overridden_by:
            names = ", ".join(self.overridden_by)
            text.append(f"      # and no allocation in its services {names}")
        return text


class StreamFlowFile:
    """The parts of a StreamFlow file that a plan needs.

    :raises InputError: if it has not one workflow, or no step on ``sfq.slurm``
    """

    def __init__(self, path: Path, content: Mapping[str, JSON]) -> None:
        self._path = path
        self._deployments = mapping(content.get("deployments"))
        workflows = mapping(content.get("workflows"))
        if len(workflows) != 1:
            raise InputError(
                f"{path}: workflows: expected one to plan, there are {len(workflows)}"
            )
        ((self.workflow, self._workflow),) = workflows.items()
        if not any(self._services()):
            raise InputError(
                f"{path}: no step is bound to a deployment of {_SLURM}, so no allocation "
                "is made; bind one, or describe the phases in a workload file"
            )

    @property
    def is_here(self) -> bool:
        """Whether the Slurm of its deployments is that of this host."""
        used = {target.deployment for _, target in self._bound()}
        slurm = [
            one
            for name in used
            if (one := mapping(self._deployments.get(name))).get("type") == _SLURM
        ]
        return bool(slurm) and all(map(self._wraps_this_host, slurm))

    def _wraps_this_host(self, deployment: Mapping[str, JSON]) -> bool:
        config = mapping(deployment.get("config"))
        if config.get("slurmrestd") or config.get("clusters"):
            return False
        wrapped = deployment.get("wraps")
        if isinstance(wrapped, dict):
            wrapped = wrapped.get("deployment")
        inner = mapping(self._deployments.get(str(wrapped)))
        return wrapped is None or inner.get("type") == "local"

    def plan(self, fit: Fit | None, site: Mapping[str, int]) -> WorkflowPlan:
        """Make a workload of the file.

        :param site: nodes of the partitions, as far as they are known

        :param fit: values from the file's journals; ``None``: durations are
            :data:`CLASSICAL_SECONDS` and :data:`QPU_SECONDS`
            :data:`QPU_SECONDS`
        """
        built = _Built()
        if fit is None:
            for step, target in self._bound():
                self._assume(built, step, target)
            repeats = 1
        else:
            for phase in fit.phases:
                self._measured(built, phase)
            repeats = max(1, round(fit.repeats.seconds))
        used = [phase.target.deployment for phase in built.phases if phase.partition]
        if not used:
            raise InputError(f"{self._path}: its journals have no step on {_SLURM}")
        deployment, _ = Counter(used).most_common(1)[0]
        application: dict[str, JSON] = {
            "phases": [phase.keys for phase in built.phases],
            "repeats": repeats,
        }
        if fit is not None:
            application["repeats_spread"] = in_seconds(fit.repeats.spread)
        current = self._strategy(deployment, built)
        reserved = _reserved(built, deployment, self._jobs_at_once(deployment))
        left_out: dict[str, str] = {}
        compared = _compared(current)
        granted = _granted(self._components(built, reserved), reserved, site)
        if isinstance(granted, str):
            compared = [one for one in compared if not isinstance(one, Reserved)]
            left_out[Reserved().name] = granted
            granted = reserved
        return WorkflowPlan(
            {
                "partitions": self._partitions(built, fit, site),
                "qpus": built.qpus,
                "applications": {self.workflow: application},
                "strategies": [
                    one.model_dump(exclude_defaults=True) | {"type": one.type}
                    for one in compared
                ],
            },
            current,
            deployment,
            granted,
            _last_quantum(built, repeats),
            self._own(deployment),
            built.assumed,
            left_out,
            {name: site[name] for name in built.nodes if name in site},
            len(self._allocations(deployment, built)) > 1,
        )

    def _bound(self) -> Iterator[tuple[str, _Target]]:
        """The bindings, each with its first target."""
        for binding in map(mapping, listing(mapping(self._workflow).get("bindings"))):
            target = binding.get("target")
            first = mapping(
                target[0] if isinstance(target, list) and target else target
            )
            if "step" in binding:
                name = str(first.get("deployment"))
                yield str(binding["step"]), _Target(
                    name, str(first.get("service") or "")
                )

    def _services(self) -> Iterator[dict[str, JSON]]:
        """The services of ``sfq.slurm`` to which steps are bound."""
        for _, target in self._bound():
            if (service := self._service(target)) is not None:
                yield service

    def _service(self, target: _Target) -> dict[str, JSON] | None:
        """Return the service of ``sfq.slurm`` that a target uses, if it uses one."""
        on_slurm = self._on_slurm(target)
        if on_slurm is None:
            return None
        return mapping(
            mapping(self._config(on_slurm)["services"]).get(on_slurm.service)
        )

    def _on_slurm(self, target: _Target) -> _Target | None:
        """Return a target of ``sfq.slurm`` itself, or the one that it wraps."""
        deployment = mapping(self._deployments.get(target.deployment))
        if deployment.get("type") == _SLURM:
            return target
        wrapped = deployment.get("wraps")
        if deployment.get("type") in _QUANTUM and isinstance(wrapped, dict):
            return self._on_slurm(
                _Target(
                    str(wrapped.get("deployment")), str(wrapped.get("service") or "")
                )
            )
        return None

    def _config(self, target: _Target) -> dict[str, JSON]:
        deployment = mapping(self._deployments.get(target.deployment))
        return {"services": {}, **mapping(deployment.get("config"))}

    def _partition(self, target: _Target) -> str | None:
        service = self._service(target)
        if service is None:
            return None
        return str(service.get("partition") or _DEFAULT_PARTITION)

    def _qpu(self, target: _Target) -> str | None:
        """Return the QPU of a target, ``None`` for a classical one."""
        type_ = mapping(self._deployments.get(target.deployment)).get("type")
        if type_ in _QUANTUM:
            return target.deployment
        service = self._service(target) or {}
        if names := listing(service.get("qpu")):
            return str(names[0])
        return target.service if tres.requests_qpu(service) else None

    def _assume(self, built: _Built, step: str, target: _Target) -> None:
        """Add a step of unknown duration; steps on the driver's host take no time."""
        qpu, partition = self._qpu(target), self._partition(target)
        if qpu is None and partition is None:
            return
        seconds = CLASSICAL_SECONDS if qpu is None else QPU_SECONDS
        service = self._service(target) or {}
        nodes = re.match(r"\d+", str(service.get("nodes") or 1))
        built.add(
            step,
            target,
            {"seconds": seconds},
            partition,
            qpu,
            nodes=max(1, int(nodes[0]) if nodes else 1),
        )
        built.assumed.append(f"{step} {seconds:g} s")

    def _measured(self, built: _Built, phase: FittedPhase) -> None:
        target = _Target(*phase.target)
        keys = phase.keys()
        if phase.only is not None:
            keys["only"] = phase.only
        partition = phase.partition or self._partition(target)
        if phase.qpu is None and partition is None:
            partition = _DEFAULT_PARTITION
        built.add(phase.step, target, keys, partition, phase.qpu, nodes=phase.nodes)

    def _partitions(
        self, built: _Built, fit: Fit | None, site: Mapping[str, int]
    ) -> dict[str, JSON]:
        partitions: dict[str, JSON] = {}
        for name, nodes in built.nodes.items():
            most = self._most_jobs(built, name)
            if name in site:
                nodes = min(nodes, site[name])
                most = max(1, min(most, nodes // built.least_nodes(name)))
            keys: dict[str, JSON] = {"nodes": nodes, "most_jobs": most}
            queue = fit.queues.get(name) if fit is not None else None
            if queue is not None and queue.seconds:
                keys["queue_seconds"] = in_seconds(queue.seconds)
                keys["queue_spread"] = in_seconds(queue.spread)
            elif queue is None:
                built.assumed.append(f"no wait for nodes of {name}")
            partitions[name] = keys
        return partitions

    def _components(
        self, built: _Built, reserved: Mapping[str, int]
    ) -> dict[str, dict[str, Component]]:
        """What one component of each reserved service requests, by partition."""
        components: dict[str, dict[str, Component]] = defaultdict(dict)
        for phase in built.phases:
            if phase.partition is not None and phase.target.service in reserved:
                nodes = (self._service(phase.target) or {}).get("nodes")
                component = Component.read(nodes or phase.nodes, quantum=phase.quantum)
                components[phase.partition][phase.target.service] = component
        return components

    def _most_jobs(self, built: _Built, partition: str) -> int:
        """Return how many jobs the deployments of a partition run there at once."""
        targets = (
            self._on_slurm(phase.target)
            for phase in built.phases
            if phase.partition == partition
        )
        used = {target.deployment for target in targets if target is not None}
        return sum(map(self._jobs_at_once, used)) or 1

    def _jobs_at_once(self, deployment: str) -> int:
        bound = self._config(_Target(deployment, "")).get("maxConcurrentJobs")
        return bound if isinstance(bound, int) else _MOST_JOBS

    def _allocations(self, deployment: str, built: _Built) -> list[JSON]:
        """What the services of the steps have, those of classical steps first, each once.

        A service of a QPU may be ``per-step``, as elastic allocations are not for QPUs.
        """
        default = self._config(_Target(deployment, "")).get("allocation", "per-step")
        values: list[JSON] = []
        for phase in sorted(built.phases, key=lambda phase: phase.quantum):
            # A service takes precedence over its deployment.
            value = (self._service(phase.target) or {}).get("allocation", default)
            if not (phase.quantum and values and value == "per-step"):
                values.append(value)
        return [one for n, one in enumerate(values) if one not in values[:n]]

    def _strategy(self, deployment: str, built: _Built) -> Strategy:
        value, *others = self._allocations(deployment, built)
        if others:
            built.assumed.append("all services have the allocation of the first step's")
        options = {"strategy": value} if isinstance(value, str) else mapping(value)
        if options.get("strategy") == "elastic":
            elastic = {
                key: one
                for key, one in options.items()
                if key in Elastic.model_fields and key != "ahead"
            }
            ahead = options.get("ahead")
            return Elastic.model_validate({**elastic, "ahead": bool(ahead)})
        if options.get("strategy") == "reserved":
            if "release" not in options:
                built.assumed.append("reserved releases the QPU's part early")
            return Reserved()
        return PerStep()

    def _own(self, deployment: str) -> list[str]:
        services = mapping(self._config(_Target(deployment, ""))["services"])
        return [
            name
            for name, service in services.items()
            if "allocation" in mapping(service)
        ]


@dataclass(frozen=True)
class _BuiltPhase:
    step: str
    target: _Target
    keys: dict[str, JSON]
    tasks: int
    quantum: bool
    partition: str | None
    nodes: int


@dataclass
class _Built:
    """The phases so far, and the nodes and QPUs that they need."""

    phases: list[_BuiltPhase] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    qpus: dict[str, JSON] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)

    def classical(self) -> Iterator[_BuiltPhase]:
        return (phase for phase in self.phases if not phase.quantum)

    def add(
        self,
        step: str,
        target: _Target,
        keys: Mapping[str, JSON],
        partition: str | None,
        qpu: str | None,
        *,
        nodes: int,
    ) -> None:
        """Add a phase; its partition gets the nodes that the phase holds at once."""
        phase: dict[str, JSON] = {"step": step, **keys}
        tasks = len(listing(keys.get("task_seconds"))) or 1
        if qpu is None:
            phase |= {"partition": partition, "nodes": nodes}
        else:
            tasks = 1
            phase["qpu"] = qpu
            self.qpus[qpu] = {} if partition is None else {"partition": partition}
            # a driver's host has no nodes
            phase |= {} if partition is None else {"nodes": nodes}
        if partition is not None:
            nodes_before = self.nodes.get(partition, 0)
            self.nodes[partition] = max(nodes_before, tasks * nodes)
        self.phases.append(
            _BuiltPhase(step, target, phase, tasks, qpu is not None, partition, nodes)
        )

    def least_nodes(self, partition: str) -> int:
        """The nodes of the smallest job of a partition."""
        return min(one.nodes for one in self.phases if one.partition == partition)


def _compared(current: Strategy) -> list[Strategy]:
    usual: list[Strategy] = [
        PerStep(),
        Reserved(),
        Elastic(),
        Elastic(keep=1),
        Elastic(keep=1, ahead=True),
    ]
    return [current, *(one for one in usual if one != current)]


def _reserved(built: _Built, deployment: str, at_once: int) -> dict[str, int]:
    held: dict[str, int] = {}
    for phase in built.phases:
        if phase.target.deployment == deployment:
            name = phase.target.service
            held[name] = max(held.get(name, 0), min(phase.tasks, at_once))
    return held


def _granted(
    components: Mapping[str, Mapping[str, Component]],
    reserved: Mapping[str, int],
    site: Mapping[str, int],
) -> dict[str, int] | str:
    """Lower what is reserved to what the partitions have, or say why that is too little.

    :param components: what one component of each service requests, by partition
    """
    granted = dict(reserved)
    for partition, most in site.items():
        each = components.get(partition, {})
        there = {name: reserved[name] for name in each}
        fitting = site_nodes.fitting(there, each, most)
        if fitting is None:
            needed = site_nodes.needed(dict.fromkeys(there, 1), each)
            return f"holds {needed} nodes of {partition} at once, which has {most}"
        granted |= fitting
    return granted


def _last_quantum(built: _Built, repeats: int) -> tuple[str, int] | None:
    quantum = [phase for phase in built.phases if phase.quantum and phase.partition]
    if not quantum:
        return None
    last = quantum[-1]
    return last.step, 1 if "only" in last.keys else repeats


def dumped(workload: Mapping[str, JSON], comment: str) -> str:
    """Write a workload as YAML, with a comment before it."""
    return f"# {comment}\n{yaml.dump(dict(workload))}"

"""A workload made from the steps, bindings and ``allocation:`` of a StreamFlow file."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from sf_quantum import structs, yaml
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
from sf_quantum.structs import WrongValue, expected
from sf_quantum.validation import ValidationErrors, dotted, validated

#: assumed durations of steps that no journal contains
CLASSICAL_SECONDS = 300.0
QPU_SECONDS = 60.0
_SLURM = "sfq.slurm"
# connectors that lease a QPU
_QUANTUM = ("sfq.emulator", "sfq.rest")
_DEFAULT_PARTITION = "default"
# StreamFlow's default for maxConcurrentJobs
_MOST_JOBS = 1


@dataclass(frozen=True)
class _Target:
    """A deployment and one of its services."""

    deployment: str
    service: str = ""


def _first_target(value: JSON) -> _Target:
    if isinstance(value, list):
        if not value:
            raise expected("a target, or a list of some", value)
        value = value[0]
    return structs.read(_Target, value)


@dataclass(frozen=True)
class _Binding:
    """A binding of a step, or of a port (without ``step``); only its first target is read."""

    target: Annotated[_Target, _first_target]
    step: str | None = None


@dataclass(frozen=True)
class _Workflow:
    bindings: tuple[_Binding, ...] = ()


def _option(value: JSON) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise expected("text", value)
    return str(value)


def _names(value: JSON) -> list[str]:
    return [_option(name) for name in listing(value)]


@dataclass(frozen=True)
class _Allocation:
    """A value of ``allocation:``.

    :param releases: whether ``release`` is set, so a part of the allocation is released early
    """

    strategy: Strategy
    releases: bool = False


def _allocation(value: JSON) -> _Allocation:
    """Read a value of ``allocation:``."""
    options = {"strategy": value} if isinstance(value, str) else mapping(value)
    match options.get("strategy"):
        case "per-step":
            return _PER_STEP
        case "reserved":
            return _Allocation(Reserved(), options.get("release") is not None)
        case "elastic":
            keys = {key: options[key] for key in Elastic.model_fields.keys() & options}
            keys["ahead"] = bool(options.get("ahead"))
            try:
                return _Allocation(validated(Elastic, keys, lambda key, _: dotted(key)))
            except ValidationErrors as error:
                raise WrongValue(str(error)) from error
    raise expected("per-step, reserved or elastic", options.get("strategy", value))


_PER_STEP = _Allocation(PerStep())


@dataclass(frozen=True)
class _Service:
    """The keys of an ``sfq.slurm`` service that a plan needs."""

    partition: Annotated[str, _option] = ""
    nodes: Annotated[str, _option] = ""
    gres: Annotated[str, _option] = ""
    licenses: Annotated[str, _option] = ""
    qpu: Annotated[list[str], _names] = field(default_factory=list)
    allocation: Annotated[_Allocation | None, _allocation] = None


@dataclass(frozen=True)
class _Slurm:
    """The configuration of an ``sfq.slurm`` deployment."""

    services: dict[str, _Service] = field(default_factory=dict)
    allocation: Annotated[_Allocation, _allocation] = _PER_STEP
    maxConcurrentJobs: int = _MOST_JOBS
    slurmrestd: JSON = None
    clusters: JSON = None


def _wrapped_target(value: JSON) -> _Target:
    return _Target(value) if isinstance(value, str) else structs.read(_Target, value)


@dataclass(frozen=True)
class _Deployment:
    type: str
    wraps: Annotated[_Target | None, _wrapped_target] = None


@dataclass(frozen=True)
class _SlurmDeployment(_Deployment):
    config: _Slurm = field(default_factory=_Slurm)


def _deployment(value: JSON) -> _Deployment:
    is_slurm = mapping(value).get("type") == _SLURM
    return structs.read(_SlurmDeployment if is_slurm else _Deployment, value)


@dataclass(frozen=True)
class _File:
    workflows: dict[str, _Workflow]
    deployments: dict[str, Annotated[_Deployment, _deployment]] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class WorkflowPlan:
    """The workload of a StreamFlow file, and the values for the lines of a strategy.

    :param workload: content of a workload file
    :param current: strategy of the file; if its services have several strategies, the strategy
        of the first classical step (or of the first step, if none is classical)
    :param deployment: deployment of most steps on Slurm; its ``allocation:`` is the strategy
    :param reserved: number of components of each service that ``reserved`` requests
    :param last_quantum: last quantum step on Slurm, and the number of its runs; ``None``
        without such a step
    :param overridden_by: services whose own ``allocation:`` overrides the deployment's
    :param assumed: values that neither the file nor its journals contain
    :param left_out: reasons why the site cannot grant some strategies, by name
    :param site: number of nodes of each partition whose size is known
    :param is_mixed: whether the services have different values of ``allocation:``
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
        """Return the lines with which the StreamFlow file follows a strategy."""
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

    :raises InputError: if a value is wrong, the file does not have exactly one workflow, or no
        step is bound to ``sfq.slurm``
    """

    def __init__(self, path: Path, content: Mapping[str, JSON]) -> None:
        self._path = path
        try:
            file = structs.read(_File, dict(content))
        except WrongValue as error:
            raise InputError(f"{path}: {error}") from error
        self._deployments = file.deployments
        if len(file.workflows) != 1:
            number = len(file.workflows)
            raise InputError(
                f"{path}: workflows: expected one to plan, there are {number}"
            )
        ((self.workflow, self._workflow),) = file.workflows.items()
        if not any(self._service(target) for _, target in self._bound_steps()):
            raise InputError(
                f"{path}: no step is bound to a deployment of {_SLURM}, so no allocation "
                "is made; bind one, or describe the phases in a workload file"
            )

    @property
    def is_here(self) -> bool:
        """Whether all ``sfq.slurm`` deployments of the steps use the Slurm of this host."""
        used = {target.deployment for _, target in self._bound_steps()}
        slurm = [
            deployment
            for name in used
            if isinstance(deployment := self._deployments.get(name), _SlurmDeployment)
        ]
        return bool(slurm) and all(map(self._wraps_this_host, slurm))

    def _wraps_this_host(self, deployment: _SlurmDeployment) -> bool:
        if deployment.config.slurmrestd or deployment.config.clusters:
            return False
        if deployment.wraps is None:
            return True
        inner = self._deployments.get(deployment.wraps.deployment)
        return inner is not None and inner.type == "local"

    def plan(self, fit: Fit | None, site: Mapping[str, int]) -> WorkflowPlan:
        """Make the workload of the file, and the values for the lines of a strategy.

        :param site: number of nodes of each partition whose size is known
        :param fit: values from the file's journals; if ``None``, durations are
            :data:`CLASSICAL_SECONDS` and :data:`QPU_SECONDS`
        """
        builder = _WorkloadBuilder()
        if fit is None:
            for step, target in self._bound_steps():
                self._add_assumed(builder, step, target)
            repeats = 1
        else:
            for phase in fit.phases:
                self._add_measured(builder, phase)
            repeats = max(1, round(fit.repeats.seconds))
        used = [
            phase.target.deployment
            for phase in builder.phases
            if phase.partition and self._service(phase.target) is not None
        ]
        if not used:
            raise InputError(f"{self._path}: its journals have no step on {_SLURM}")
        deployment, _ = Counter(used).most_common(1)[0]
        application: dict[str, JSON] = {
            "phases": [phase.keys for phase in builder.phases],
            "repeats": repeats,
        }
        if fit is not None:
            application["repeats_spread"] = in_seconds(fit.repeats.spread)
        current = self._strategy(deployment, builder)
        reserved = _components_to_reserve(
            builder, deployment, self._jobs_at_once(deployment)
        )
        left_out: dict[str, str] = {}
        compared = _strategies_to_compare(current)
        components = self._components(builder, deployment)
        granted = _grantable(components, reserved, site)
        if isinstance(granted, str):
            compared = [one for one in compared if not isinstance(one, Reserved)]
            left_out[Reserved().name] = granted
            granted = reserved
        return WorkflowPlan(
            {
                "partitions": self._partitions(builder, fit, site),
                "qpus": builder.qpus,
                "applications": {self.workflow: application},
                "strategies": [
                    one.model_dump(exclude_defaults=True) | {"type": one.type}
                    for one in compared
                ],
            },
            current,
            deployment,
            granted,
            _last_quantum(builder, repeats),
            self._services_with_allocation(deployment),
            builder.assumed,
            left_out,
            {name: site[name] for name in builder.nodes if name in site},
            len(self._allocations(deployment, builder)) > 1,
        )

    def _bound_steps(self) -> Iterator[tuple[str, _Target]]:
        """Yield the steps that have a binding, each with its first target."""
        for binding in self._workflow.bindings:
            if binding.step is not None:
                yield binding.step, binding.target

    def _service(self, target: _Target) -> _Service | None:
        """Return the ``sfq.slurm`` service that a target uses, if any."""
        if (on_slurm := self._on_slurm(target)) is None:
            return None
        services = self._config(on_slurm.deployment).services
        return services.get(on_slurm.service, _Service())

    def _on_slurm(self, target: _Target) -> _Target | None:
        """Return a target if it is on ``sfq.slurm``, or the ``sfq.slurm`` target it wraps."""
        # The loop is limited, since deployments may wrap each other by mistake.
        for _ in self._deployments:
            deployment = self._deployments.get(target.deployment)
            if isinstance(deployment, _SlurmDeployment):
                return target
            if deployment is None or deployment.type not in _QUANTUM:
                return None
            if deployment.wraps is None:
                return None
            target = deployment.wraps
        return None

    def _config(self, deployment: str) -> _Slurm:
        """Return a deployment's ``sfq.slurm`` configuration; the default for other types."""
        found = self._deployments.get(deployment)
        return found.config if isinstance(found, _SlurmDeployment) else _Slurm()

    def _partition(self, target: _Target) -> str | None:
        service = self._service(target)
        return None if service is None else service.partition or _DEFAULT_PARTITION

    def _qpu(self, target: _Target) -> str | None:
        """Return the QPU of a target; ``None`` if the target is classical."""
        deployment = self._deployments.get(target.deployment)
        if deployment is not None and deployment.type in _QUANTUM:
            return target.deployment
        service = self._service(target) or _Service()
        if service.qpu:
            return service.qpu[0]
        is_quantum = tres.names_qpu(service.gres, service.licenses)
        return target.service if is_quantum else None

    def _add_assumed(
        self, builder: _WorkloadBuilder, step: str, target: _Target
    ) -> None:
        """Add a step with an assumed duration, unless it is classical and not on Slurm."""
        qpu, partition = self._qpu(target), self._partition(target)
        if qpu is None and partition is None:
            return
        seconds = CLASSICAL_SECONDS if qpu is None else QPU_SECONDS
        service = self._service(target) or _Service()
        nodes = re.match(r"\d+", service.nodes)
        builder.add(
            step,
            self._on_slurm(target) or target,
            {"seconds": seconds},
            partition,
            qpu,
            nodes=max(1, int(nodes[0]) if nodes else 1),
        )
        builder.assumed.append(f"{step} {seconds:g} s")

    def _add_measured(self, builder: _WorkloadBuilder, phase: FittedPhase) -> None:
        target = _Target(*phase.target)
        keys = phase.keys()
        if phase.only is not None:
            keys["only"] = phase.only
        partition = phase.partition or self._partition(target)
        if phase.qpu is None and partition is None:
            partition = _DEFAULT_PARTITION
        target = self._on_slurm(target) or target
        builder.add(phase.step, target, keys, partition, phase.qpu, nodes=phase.nodes)

    def _partitions(
        self, builder: _WorkloadBuilder, fit: Fit | None, site: Mapping[str, int]
    ) -> dict[str, JSON]:
        """Make the workload file's section ``partitions``."""
        partitions: dict[str, JSON] = {}
        for name, nodes in builder.nodes.items():
            most = self._most_jobs(builder, name)
            if name in site:
                nodes = min(nodes, site[name])
                most = max(1, min(most, nodes // builder.least_nodes(name)))
            keys: dict[str, JSON] = {"nodes": nodes, "most_jobs": most}
            queue = fit.queues.get(name) if fit is not None else None
            if queue is not None and queue.seconds:
                keys["queue_seconds"] = in_seconds(queue.seconds)
                keys["queue_spread"] = in_seconds(queue.spread)
            elif queue is None:
                builder.assumed.append(f"no wait for nodes of {name}")
            partitions[name] = keys
        return partitions

    def _components(
        self, builder: _WorkloadBuilder, deployment: str
    ) -> dict[str, dict[str, Component]]:
        """Return, by partition and service, the nodes that one component requests."""
        components: dict[str, dict[str, Component]] = defaultdict(dict)
        for phase in builder.phases:
            if phase.partition and phase.target.deployment == deployment:
                nodes = (self._service(phase.target) or _Service()).nodes
                component = Component.read(nodes or phase.nodes, quantum=phase.quantum)
                components[phase.partition][phase.target.service] = component
        return components

    def _most_jobs(self, builder: _WorkloadBuilder, partition: str) -> int:
        """Return the maximum number of concurrent jobs of a partition's deployments."""
        used = {
            phase.target.deployment
            for phase in builder.phases
            if phase.partition == partition and self._service(phase.target)
        }
        return sum(map(self._jobs_at_once, used)) or 1

    def _jobs_at_once(self, deployment: str) -> int:
        return self._config(deployment).maxConcurrentJobs

    def _allocations(
        self, deployment: str, builder: _WorkloadBuilder
    ) -> list[_Allocation]:
        """Return the allocations of the steps' services, each value once.

        Values of the deployment come first, and among these, values of classical steps.

        A QPU service's ``per-step`` is left out if another value comes before it: with
        ``elastic``, quantum steps are separate Slurm jobs anyway.
        """
        values: list[_Allocation] = []
        for phase in sorted(
            builder.phases,
            key=lambda phase: (phase.target.deployment != deployment, phase.quantum),
        ):
            if (service := self._service(phase.target)) is None:
                continue
            # A service's value takes precedence over its deployment's value.
            config = self._config(phase.target.deployment)
            value = service.allocation or config.allocation
            if not (phase.quantum and values and value == _PER_STEP):
                values.append(value)
        return [one for n, one in enumerate(values) if one not in values[:n]]

    def _strategy(self, deployment: str, builder: _WorkloadBuilder) -> Strategy:
        value, *others = self._allocations(deployment, builder)
        if others:
            builder.assumed.append(
                "all services have the allocation of the first step's"
            )
        if isinstance(value.strategy, Reserved) and not value.releases:
            builder.assumed.append("reserved releases the QPU's part early")
        return value.strategy

    def _services_with_allocation(self, deployment: str) -> list[str]:
        services = self._config(deployment).services
        return [name for name, one in services.items() if one.allocation is not None]


@dataclass(frozen=True)
class _Phase:
    """A step of the workload; for a QPU that wraps Slurm, the target is the one on Slurm."""

    step: str
    target: _Target
    keys: dict[str, JSON]
    tasks: int
    quantum: bool
    partition: str | None
    nodes: int


@dataclass
class _WorkloadBuilder:
    """The phases added so far, and the nodes and QPUs that they need."""

    phases: list[_Phase] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    qpus: dict[str, JSON] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)

    def classical(self) -> Iterator[_Phase]:
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
        """Add a phase; its partition gets enough nodes for all tasks of the phase."""
        phase: dict[str, JSON] = {"step": step, **keys}
        tasks = len(listing(keys.get("task_seconds"))) or 1
        if qpu is None:
            phase |= {"partition": partition, "nodes": nodes}
        else:
            tasks = 1
            phase["qpu"] = qpu
            self.qpus[qpu] = {} if partition is None else {"partition": partition}
            # a client on the driver's host has no nodes
            phase |= {} if partition is None else {"nodes": nodes}
        if partition is not None:
            nodes_before = self.nodes.get(partition, 0)
            self.nodes[partition] = max(nodes_before, tasks * nodes)
        self.phases.append(
            _Phase(step, target, phase, tasks, qpu is not None, partition, nodes)
        )

    def least_nodes(self, partition: str) -> int:
        """Return the number of nodes of the smallest job of a partition."""
        return min(one.nodes for one in self.phases if one.partition == partition)


def _strategies_to_compare(current: Strategy) -> list[Strategy]:
    usual: list[Strategy] = [
        PerStep(),
        Reserved(),
        Elastic(),
        Elastic(keep=1),
        Elastic(keep=1, ahead=True),
    ]
    return [current, *(one for one in usual if one != current)]


def _components_to_reserve(
    builder: _WorkloadBuilder, deployment: str, at_once: int
) -> dict[str, int]:
    held: dict[str, int] = {}
    for phase in builder.phases:
        if phase.target.deployment == deployment:
            name = phase.target.service
            held[name] = max(held.get(name, 0), min(phase.tasks, at_once))
    return held


def _grantable(
    components: Mapping[str, Mapping[str, Component]],
    reserved: Mapping[str, int],
    site: Mapping[str, int],
) -> dict[str, int] | str:
    """Lower the numbers of components until the components fit the partitions.

    :param components: nodes that one component requests, by partition and service
    :param reserved: number of components of each service
    :returns: the lower numbers, or why one component of each service does not fit
    """
    granted = dict(reserved)
    for partition, nodes in site.items():
        requests = components.get(partition, {})
        counts = {name: reserved[name] for name in requests}
        fitting = site_nodes.fitting(counts, requests, nodes)
        if fitting is None:
            needed = site_nodes.needed(dict.fromkeys(counts, 1), requests)
            return (
                f"holds {needed} nodes of {partition} at the same time, "
                f"but {partition} has {nodes}"
            )
        granted |= fitting
    return granted


def _last_quantum(builder: _WorkloadBuilder, repeats: int) -> tuple[str, int] | None:
    quantum = [phase for phase in builder.phases if phase.quantum and phase.partition]
    if not quantum:
        return None
    last = quantum[-1]
    return last.step, 1 if "only" in last.keys else repeats


def dumped(workload: Mapping[str, JSON], comment: str) -> str:
    """Return a workload as YAML, with a comment before it."""
    return f"# {comment}\n{yaml.dump(dict(workload))}"

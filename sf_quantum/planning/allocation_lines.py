"""The lines of a StreamFlow file that make ``sfq.slurm`` follow a strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sf_quantum import yaml
from sf_quantum.files import JSON, mapping
from sf_quantum.planning import site_nodes
from sf_quantum.planning.simulation.strategies import (
    CoScheduled,
    Elastic,
    Reserved,
    Strategy,
)
from sf_quantum.planning.workloads.workload import ApplicationSettings, Phase, Workload
from sf_quantum.slurm.components import Component
from sf_quantum.text import one_line


def config(workload: Workload, strategy: Strategy, name: str) -> dict[str, JSON]:
    """Return keys of the configuration of ``sfq.slurm`` for an application."""
    application = workload.applications[name]
    services: dict[str, JSON] = {}
    for phase in application.phases:
        if (service := _service(workload, application, phase)) is not None:
            services[service] = _keys(workload, strategy, phase)
    return {
        "maxConcurrentJobs": _jobs_at_once(workload, application),
        "allocation": _allocation(workload, strategy, application),
        "services": services,
    }


def _jobs_at_once(workload: Workload, application: ApplicationSettings) -> int:
    return max(_tasks_at_once(workload, phase) for phase in application.phases)


def _tasks_at_once(workload: Workload, phase: Phase) -> int:
    tasks = len(phase.task_times())
    if phase.qpu is not None:
        return tasks
    partition = workload.partitions[phase.partition or workload.first_partition]
    return min(tasks, partition.most_jobs or tasks)


def lines(workload: Workload, strategy: Strategy) -> list[str]:
    """Return the lines for each application, and the vQPUs for its QPU service."""
    text = [*_vqpus(workload, strategy)]
    for name in workload.applications:
        text.append(f"# {one_line(name)}: in the config of its sfq.slurm deployment")
        keys = config(workload, strategy, name)
        services = mapping(keys.pop("services"))
        text += [f"{key}: {yaml.dump_line(value)}" for key, value in keys.items()]
        text.append("services:")
        for service, options in services.items():
            text.append(f"  {service}: {yaml.dump_line(options)}")
    return text


@dataclass(frozen=True)
class _Components:
    """The components that a reserved allocation holds, by service.

    :param counts: number of components
    :param each: request of each component
    :param partitions: partition of the components
    """

    counts: dict[str, int]
    each: dict[str, Component]
    partitions: dict[str, str]


def not_granted(workload: Workload, strategy: Strategy) -> str | None:
    """Explain why a partition cannot grant the nodes that a strategy's lines reserve."""
    if not isinstance(strategy, Reserved):
        return None
    for application in workload.applications.values():
        granted = _granted(workload, _components(workload, application))
        if isinstance(granted, str):
            return granted
    return None


def _components(workload: Workload, application: ApplicationSettings) -> _Components:
    """Return components that are enough for each phase of an application."""
    held = _Components({}, {}, {})
    for phase in application.phases:
        if (service := _service(workload, application, phase)) is not None:
            tasks = _tasks_at_once(workload, phase)
            held.counts[service] = max(tasks, held.counts.get(service, 0))
            quantum = phase.qpu is not None
            held.each[service] = Component.read(_nodes(phase), quantum=quantum)
            partition = phase.partition or workload.first_partition
            if phase.qpu is not None:
                partition = workload.qpus[phase.qpu].partition or partition
            held.partitions[service] = partition
    return held


def _granted(workload: Workload, held: _Components) -> dict[str, int] | str:
    """Lower the counts of components to fit the partitions, or explain why they cannot fit."""
    granted = dict(held.counts)
    for name, partition in workload.partitions.items():
        counts = {s: n for s, n in held.counts.items() if held.partitions[s] == name}
        fitting = site_nodes.fitting(counts, held.each, partition.nodes)
        if fitting is None:
            needed = site_nodes.needed(dict.fromkeys(counts, 1), held.each)
            return (
                f"holds {needed} nodes of {name} at the same time, "
                f"but {name} has {partition.nodes}"
            )
        granted |= fitting
    return granted


def _vqpus(workload: Workload, strategy: Strategy) -> Iterator[str]:
    for name, qpu in workload.qpus.items():
        if strategy.vqpus not in (None, qpu.vqpus):
            yield f"# in the configuration of the QPU service of {one_line(name)}"
            yield f"vqpus: {strategy.vqpus}"


def _service(
    workload: Workload, application: ApplicationSettings, phase: Phase
) -> str | None:
    """Return a name for a phase's service: partition or QPU, with nodes if these differ."""
    partition = phase.partition or workload.first_partition
    if phase.qpu is not None and workload.qpus[phase.qpu].partition is None:
        return None
    alike = [one for one in application.phases if one.qpu == phase.qpu]
    if phase.qpu is None:
        alike = [
            one
            for one in alike
            if (one.partition or workload.first_partition) == partition
        ]
    name = phase.qpu or partition
    return name if len({*map(_nodes, alike)}) == 1 else f"{name}-{_nodes(phase)}"


def _nodes(phase: Phase) -> str:
    least = phase.least or phase.nodes
    return str(phase.nodes) if least == phase.nodes else f"{least}-{phase.nodes}"


def _keys(workload: Workload, strategy: Strategy, phase: Phase) -> dict[str, JSON]:
    if phase.qpu is None:
        partition = phase.partition or workload.first_partition
        return {"partition": partition, "nodes": _nodes(phase)}
    keys: dict[str, JSON] = {
        "partition": workload.qpus[phase.qpu].partition,
        "qpu": [phase.qpu],
        **({"nodes": _nodes(phase)} if phase.nodes > 1 else {}),
    }
    # a quantum node that is kept between jobs would not be available to others
    return keys | ({"allocation": "per-step"} if isinstance(strategy, Elastic) else {})


def _allocation(
    workload: Workload, strategy: Strategy, application: ApplicationSettings
) -> JSON:
    """Return the value of ``allocation:`` for a strategy."""
    if isinstance(strategy, Elastic):
        # sfq check rejects a larger number, since the jobs could not use so many allocations
        keep = min(strategy.keep, _jobs_at_once(workload, application))
        kept = strategy.model_copy(update={"keep": keep})
        options = kept.model_dump(exclude_defaults=True, exclude={"vqpus"})
        return {"strategy": "elastic", **options}
    if isinstance(strategy, CoScheduled | Reserved):
        components = _components(workload, application)
        granted = _granted(workload, components)
        if isinstance(granted, str):  # the comparison omits such a strategy
            granted = components.counts
        reserved: dict[str, JSON] = {"strategy": "reserved", "reserve": {**granted}}
        quantum = [phase for phase in application.phases if phase.qpu is not None]
        if isinstance(strategy, Reserved) and quantum:
            last = quantum[-1].step
            times = sum(
                one.passes(application.repeats) for one in quantum if one.step == last
            )
            reserved["release"] = {"after": last or "/STEP", "times": times}
        return reserved
    return "per-step"

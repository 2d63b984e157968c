"""Checks of deployments of type ``sfq.slurm``: services, allocations, partitions, QPUs."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sf_quantum.checking.document import Document, FileProblem
from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.services import (
    NO_CLUSTERS,
    SEVERAL_CLUSTERS,
)
from sf_quantum.connectors.slurm.transport import rest
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, listing, mapping
from sf_quantum.net.transport import Client
from sf_quantum.qpu import qrmi_config
from sf_quantum.slurm import ids, tres
from sf_quantum.slurm.components import Component, nodes_needed
from sf_quantum.slurm.counts import limit_seconds
from sf_quantum.slurm.partitions import NodeKind, Partition, hosts

#: StreamFlow's default of maxConcurrentJobs
ONE_JOB = 1
# formats of sbatch's options (https://slurm.schedmd.com/sbatch.html)
OPTIONS = {
    "time": (
        r"(\d+-)?\d+(:\d+){0,2}|(?i:infinite|unlimited)",
        "write minutes, MM:SS, HH:MM:SS or DAYS-HH:MM:SS",
    ),
    "nodes": (
        r"\d+[kKmM]?([-,:]\d+[kKmM]?)*",
        "write a number, or a range such as 1-3",
    ),
}


@dataclass(frozen=True)
class Cluster:
    """A deployment of type ``sfq.slurm``, and the path of its ``config``."""

    document: Document
    name: str
    config: dict[str, JSON]
    where: KeyPath

    def services(self) -> Iterator[tuple[dict[str, JSON], KeyPath]]:
        """The content of each service, with its path in the file."""
        for name, content in mapping(self.config.get("services")).items():
            yield mapping(content), (*self.where, "services", name)

    def allocations(self) -> Iterator[tuple[dict[str, JSON], KeyPath]]:
        """The ``allocation`` of the deployment and of each service, with its path."""
        for content, where in [(self.config, self.where), *self.services()]:
            yield mapping(content.get("allocation")), (*where, "allocation")

    def check(self) -> Iterator[FileProblem]:
        """Check the allocations, clusters and QPUs of the deployment."""
        for allocation, where in self.allocations():
            yield from self._reserve(allocation, where)
            yield from self._unused(allocation, where)
        for content, where in self.services():
            clusters = content.get("clusters")
            if isinstance(clusters, str) and not ids.are_clusters(clusters):
                yield self.document.problem((*where, "clusters"), *NO_CLUSTERS)
            if content.get("array"):
                what = "Slurm runs each step once for each task, in the same folder"
                right = "remove array, and let the workflow scatter the step"
                yield self.document.remark((*where, "array"), what, right)
            export = str(content.get("export") or "ALL")
            names = {item.partition("=")[0].strip() for item in export.split(",")}
            if not names & {"ALL", "all", "PATH"}:
                what = f"export: {export} does not pass the driver's PATH on to jobs"
                right = (
                    "add ALL, unless they find their commands and modules without it"
                )
                yield self.document.remark((*where, "export"), what, right)
            for key, (pattern, right) in OPTIONS.items():
                value = content.get(key)
                if isinstance(value, str) and not re.fullmatch(pattern, value):
                    what = f"{value!r} is not a value of Slurm's option {key}"
                    yield self.document.problem((*where, key), what, right)
        yield from self._qpus()
        if self.config.get("slurmrestd"):
            yield from self._rest()

    def partitions(self, partitions: dict[str, Partition]) -> Iterator[FileProblem]:
        """Check what the services request of their partitions.

        :param partitions: the partitions of the cluster, by name
        """
        for content, where in self.services():
            # what Slurm knows here is not what it knows in clusters that are named
            names = None if content.get("clusters") else content.get("partition")
            for name in names.split(",") if isinstance(names, str) else []:
                what = f"Slurm has no partition {name!r}"
                below = (*where, "partition")
                yield from self.document.unknown(below, name, partitions, what)
            chosen, kinds = _kinds(content, partitions)
            if not kinds:
                continue
            yield from self._gres(content, where, chosen, kinds)
            # A template, a variable or the site may choose another partition than the default.
            is_certain = content.get("partition") is not None
            for problem in (
                *self._limits(content, where, chosen, kinds),
                *self._nodelist(content, where, chosen, kinds),
            ):
                yield replace(problem, remark=problem.remark or not is_certain)
        yield from self._oversized({k: one.nodes for k, one in partitions.items()})

    def _gres(
        self,
        content: dict[str, JSON],
        where: KeyPath,
        partition: str,
        kinds: list[NodeKind],
    ) -> Iterator[FileProblem]:
        """Find a service that requests more of a gres than any node of its partition has."""
        if not all(kind.gres for kind in kinds):
            return  # what they have is unknown
        per_node = {
            key: content[key] for key in ("gres", "gpusPerNode") if key in content
        }
        for key, value in per_node.items():
            text = f"gpu:{value}" if key == "gpusPerNode" else str(value)
            for wanted in tres.parse(text):
                units = [tres.matching(wanted, one.gres) for one in kinds]
                if wanted.units <= max(units) or wanted.name == "none":
                    continue
                below = (*where, key)
                if max(units):
                    what = (
                        f"{wanted} is more than a node of {partition} has: {max(units)}"
                    )
                    right = f"write {max(units)} or less"
                    yield self.document.problem(below, what, right)
                else:
                    kind = ":".join(filter(None, wanted[:2]))
                    what = f"no node of {partition} has gres {kind}"
                    right = "only a site's own plugin of Slurm could accept it"
                    yield self.document.remark(below, what, right)

    def _nodelist(
        self,
        content: dict[str, JSON],
        where: KeyPath,
        partition: str,
        kinds: list[NodeKind],
    ) -> Iterator[FileProblem]:
        """Find nodes of a service that its partition does not have."""
        wanted, texts = str(content.get("nodelist") or ""), [k.names for k in kinds]
        if set("/{") & {*wanted} or not all(texts):
            return  # a file, a function of Slurm's, or Slurm did not name the nodes
        missing = hosts(wanted).difference(*map(hosts, texts))
        if missing:
            what = f"{partition} has no node {' or '.join(sorted(missing))}"
            right = f"its nodes are {','.join(dict.fromkeys(texts))}"
            yield self.document.problem((*where, "nodelist"), what, right)

    def _limits(
        self,
        content: dict[str, JSON],
        where: KeyPath,
        partition: str,
        kinds: list[NodeKind],
    ) -> Iterator[FileProblem]:
        """Find CPUs and memory that Slurm never grants, and a time limit that it may not."""
        time, limits = str(content.get("time") or ""), [k.time_limit for k in kinds]
        seconds = [limit_seconds(one) or math.inf for one in limits]
        longest, limit = max(zip(seconds, limits, strict=True))
        if (limit_seconds(time) or 0.0) > longest and "qos" not in content:
            what = f"{time} is above the time limit of {partition}: {limit}"
            right = "jobs wait for ever, unless a QOS allows it"
            yield self.document.remark((*where, "time"), what, right)
        cpus, memory = [k.cpus for k in kinds], [k.memory for k in kinds]
        tasks_cpus = max(1, _whole(content, "cpusPerTask"))
        for key, wanted, texts, unit in (
            ("cpusPerTask", _whole(content, "cpusPerTask"), cpus, ""),
            ("mem", _megabytes(content, "mem"), memory, " MB"),
            ("memPerCpu", _megabytes(content, "memPerCpu") * tasks_cpus, memory, " MB"),
        ):
            most = max(map(int, texts)) if all(map(str.isdecimal, texts)) else math.inf
            if wanted > most:
                what = f"{wanted}{unit} is more than a node of {partition} has: {most}{unit}"
                if key == "memPerCpu":
                    what = f"for a task, {what}"
                right = "write less" if unit else f"write {most} or less"
                problem = self.document.problem((*where, key), what, right)
                # Slurm starts it where memory is not a consumable resource
                may_start = key == "memPerCpu" and wanted <= most * tasks_cpus
                yield replace(problem, remark=may_start)

    def _oversized(self, partitions: dict[str, int]) -> Iterator[FileProblem]:
        """Find services and reservations with more nodes than their partition has.

        :param partitions: the nodes of each partition
        """
        services = mapping(self.config.get("services"))
        sizes = {
            name: _component(mapping(content)).least
            for name, content in services.items()
        }
        homes = {
            name: str(mapping(content).get("partition"))
            for name, content in services.items()
            if not mapping(content).get("clusters")
        }
        for name, partition in homes.items():
            if sizes[name] > partitions.get(partition, sizes[name]):
                where = (*self.where, "services", name, "nodes")
                yield self._too_large(
                    where, "it has", sizes[name], partition, partitions
                )
        for allocation, where in self.allocations():
            wanted: dict[str, list[tuple[Component, int]]] = defaultdict(list)
            for name, count in _counts(allocation).items():
                if name in homes:
                    part = _component(mapping(services[name])), count
                    wanted[homes[name]].append(part)
            for partition, components in wanted.items():
                nodes = nodes_needed(components)
                if nodes > partitions.get(partition, nodes):
                    below = (*where, "reserve")
                    what = "reserve has"
                    yield self._too_large(below, what, nodes, partition, partitions)

    def _too_large(
        self,
        where: KeyPath,
        what: str,
        nodes: int,
        partition: str,
        partitions: dict[str, int],
    ) -> FileProblem:
        has = partitions[partition]
        what = f"{what} {nodes} nodes, but partition {partition} has {has}"
        return self.document.problem(where, what, "write as many as it has, or fewer")

    def _reserve(
        self, allocation: dict[str, JSON], where: KeyPath
    ) -> Iterator[FileProblem]:
        services = mapping(self.config.get("services"))
        for index, service in enumerate(_reserved(allocation)):
            listed = isinstance(allocation["reserve"], list)
            what = f"deployment {self.name} has no service {service!r}"
            below = (*where, "reserve", index if listed else service)
            yield from self.document.unknown(below, service, services, what)
        of = (
            mapping(services.get(one)).get("clusters") for one in _reserved(allocation)
        )
        if len({*of}) > 1:
            yield self.document.problem((*where, "reserve"), *SEVERAL_CLUSTERS)

    def _unused(
        self, allocation: dict[str, JSON], where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check that nodes are not held for more jobs than StreamFlow runs concurrently."""
        jobs = self.config.get("maxConcurrentJobs", ONE_JOB)
        if not isinstance(jobs, int):
            return
        sizes: dict[str, JSON] = {
            f"reserve for {service} is": count
            for service, count in _counts(allocation).items()
        }
        sizes["keep is"] = allocation.get("keep")
        for what, count in sizes.items():
            if isinstance(count, int) and count > jobs:
                what = f"{what} {count}, but maxConcurrentJobs allows {jobs} at once"
                right = f"write maxConcurrentJobs: {count} or more"
                yield self.document.problem(where, what, right)
        most, kept = allocation.get("max"), allocation.get("keep")
        if isinstance(most, int) and isinstance(kept, int) and kept > most:
            what = f"keep is {kept}, but max is {most}"
            right = "write a value of keep that is at most max"
            yield self.document.problem(where, what, right)

    def _rest(self) -> Iterator[FileProblem]:
        """Check the URL, and that nothing needs Slurm's commands."""
        url = mapping(self.config["slurmrestd"]).get("url")
        try:
            if isinstance(url, str):
                Client(url, {})
        except InputError as error:
            where: KeyPath = (*self.where, "slurmrestd", "url")
            right = "see the key slurmrestd of sfq.slurm"
            yield self.document.problem(where, str(error), right)
        for content, place in [(self.config, self.where), *self.services()]:
            value = content.get("allocation")
            strategy = value.get("strategy") if isinstance(value, dict) else value
            if strategy not in (None, "per-step"):
                yield self.document.problem((*place, "allocation"), *rest.ALLOCATION)
        for options, where in self.services():
            sbatch_options = {
                k: v for k, v in options.items() if k not in ("allocation", "qpu")
            }
            if file := sbatch_options.pop("file", None):
                yield from self._template(self.document.folder / str(file), where)
            for key, what, right in rest.unsupported(sbatch_options):
                yield self.document.problem((*where, key), what, right)

    def _template(self, file: Path, where: KeyPath) -> Iterator[FileProblem]:
        """Check that a template for slurmrestd has no options in it."""
        with suppress(OSError):
            if scripts.directives(file.read_text(errors="replace")):
                yield self.document.problem((*where, "file"), *rest.DIRECTIVES)

    def _qpus(self) -> Iterator[FileProblem]:
        """Check that ``qrmiConfig``, if it exists, defines the QPUs of the services."""
        name = self.config.get("qrmiConfig")
        if not isinstance(name, str) or not (self.document.folder / name).is_file():
            return
        file = self.document.folder / name
        try:
            qpu_names = qrmi_config.names(str(file))
        except InputError as error:
            right = "give the path of a qrmi_config.json for QRMI's SPANK plugin"
            yield self.document.problem((*self.where, "qrmiConfig"), str(error), right)
            return
        for content, where in self.services():
            for index, wanted in enumerate(listing(content.get("qpu"))):
                if isinstance(wanted, str):
                    what = f"{file} has no QPU {wanted!r}"
                    below = (*where, "qpu", index)
                    yield from self.document.unknown(below, wanted, qpu_names, what)


def _whole(service: dict[str, JSON], key: str) -> int:
    """A number of a service; 0 if it is missing or not whole."""
    value = service.get(key)
    return value if type(value) is int else 0


def _megabytes(service: dict[str, JSON], key: str) -> int:
    """Memory that a service requests, as sbatch(1) reads it; 0 if it cannot be read."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", str(service.get(key)).upper())
    if match is None:
        return 0
    return math.ceil(int(match[1]) * 1024.0 ** ("KMGT".index(match[2] or "M") - 1))


def _counts(allocation: dict[str, JSON]) -> dict[str, int]:
    """How many nodes' worth of each service an allocation reserves."""
    reserve = allocation.get("reserve")
    if not isinstance(reserve, dict):
        return Counter(_reserved(allocation))
    return {name: count for name, count in reserve.items() if isinstance(count, int)}


def _component(service: dict[str, JSON]) -> Component:
    """What a component of a reservation requests for a service."""
    quantum = bool(service.get("qpu")) or tres.requests_qpu(service)
    return Component.read(service.get("nodes", 1), quantum=quantum)


def _reserved(allocation: dict[str, JSON]) -> list[str]:
    reserve = allocation.get("reserve")
    names = [*reserve] if isinstance(reserve, dict) else listing(reserve)
    return [name for name in names if isinstance(name, str)]


def _kinds(
    content: dict[str, JSON], partitions: dict[str, Partition]
) -> tuple[str, list[NodeKind]]:
    """The partition of a service in words, and its kinds of nodes, none if they are not known.

    A service may name several partitions.
    """
    default = ",".join(name for name, one in partitions.items() if one.is_default)
    names = str(content.get("partition") or default)
    here = not content.get("clusters") and {*names.split(",")} <= partitions.keys()
    kinds = (
        [kind for name in names.split(",") for kind in partitions[name].kinds]
        if here
        else []
    )  # another Slurm has them
    return f"partition {names}", kinds

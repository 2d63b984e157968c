"""Checks of a service of ``sfq.slurm``: its options, and requests for nodes of a partition."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sf_quantum.checking.document import Document, FileProblem
from sf_quantum.connectors.slurm.services import NO_CLUSTERS
from sf_quantum.files import JSON, KeyPath
from sf_quantum.slurm import ids, tres
from sf_quantum.slurm.components import Component
from sf_quantum.slurm.counts import limit_seconds
from sf_quantum.slurm.partitions import NodeKind, Partition, hosts

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
class Service:
    """A service, and its key path in the file."""

    document: Document
    content: dict[str, JSON]
    where: KeyPath

    @property
    def clusters(self) -> JSON:
        """The clusters that the service names; this host's Slurm may not list them."""
        return self.content.get("clusters")

    @property
    def partition(self) -> str:
        """The partitions that the service names, separated by commas."""
        return str(self.content.get("partition"))

    @property
    def component(self) -> Component:
        """The service as a component of a reserved allocation."""
        quantum = bool(self.content.get("qpu")) or tres.requests_qpu(self.content)
        return Component.read(self.content.get("nodes", 1), quantum=quantum)

    def check(self) -> Iterator[FileProblem]:
        """Check the options of the service."""
        clusters = self.clusters
        if isinstance(clusters, str) and not ids.are_clusters(clusters):
            yield self.document.problem((*self.where, "clusters"), *NO_CLUSTERS)
        if self.content.get("array"):
            what = "Slurm runs each step once for each task, in the same folder, and refuses"
            what = f"{what} a step whose output is a file"
            right = "remove array, and let the workflow scatter the step"
            yield self.document.remark((*self.where, "array"), what, right)
        export = str(self.content.get("export") or "ALL")
        names = {item.partition("=")[0].strip() for item in export.split(",")}
        if not names & {"ALL", "all", "PATH"}:
            what = f"export: {export} does not pass the driver's PATH on to jobs"
            right = "add ALL, unless they find their commands and modules without it"
            yield self.document.remark((*self.where, "export"), what, right)
        for key, (pattern, right) in OPTIONS.items():
            value = self.content.get(key)
            if isinstance(value, str) and not re.fullmatch(pattern, value):
                what = f"{value!r} is not a value of Slurm's option {key}"
                yield self.document.problem((*self.where, key), what, right)

    def check_partition(
        self, partitions: dict[str, Partition]
    ) -> Iterator[FileProblem]:
        """Check that the partition can meet the requests of the service.

        :param partitions: the partitions of the cluster, by name
        """
        # The partitions of other clusters are unknown.
        names = None if self.clusters else self.content.get("partition")
        for name in names.split(",") if isinstance(names, str) else []:
            what = f"Slurm has no partition {name!r}"
            below = (*self.where, "partition")
            yield from self.document.unknown(below, name, partitions, what)
        partition, kinds = self._partition_kinds(partitions)
        if not kinds:
            return
        yield from self._check_gres(partition, kinds)
        # If the service names no partition, the default is assumed; but a template, a variable
        # or the site may choose another one, so problems are only remarks.
        is_certain = self.content.get("partition") is not None
        for problem in (
            *self._check_limits(partition, kinds),
            *self._check_nodelist(partition, kinds),
        ):
            yield replace(problem, remark=problem.remark or not is_certain)

    def _check_gres(
        self, partition: str, kinds: list[NodeKind]
    ) -> Iterator[FileProblem]:
        """Find requests for more units of a gres than any node of the partition has."""
        if not all(kind.gres for kind in kinds):
            return  # the gres of some nodes are unknown
        per_node = {
            key: self.content[key]
            for key in ("gres", "gpusPerNode")
            if key in self.content
        }
        for key, value in per_node.items():
            text = f"gpu:{value}" if key == "gpusPerNode" else str(value)
            for wanted in tres.parse(text):
                units = [tres.matching(wanted, node_kind.gres) for node_kind in kinds]
                if wanted.units <= max(units) or wanted.name == "none":
                    continue
                below = (*self.where, key)
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

    def _check_nodelist(
        self, partition: str, kinds: list[NodeKind]
    ) -> Iterator[FileProblem]:
        """Find nodes in ``nodelist`` that the partition does not have."""
        wanted = str(self.content.get("nodelist") or "")
        texts = [kind.names for kind in kinds]
        if set("/{") & {*wanted} or not all(texts):
            return  # a file, a function of Slurm, or nodes that Slurm did not name
        missing = hosts(wanted).difference(*map(hosts, texts))
        if missing:
            what = f"{partition} has no node {' or '.join(sorted(missing))}"
            right = f"its nodes are {','.join(dict.fromkeys(texts))}"
            yield self.document.problem((*self.where, "nodelist"), what, right)

    def _check_limits(
        self, partition: str, kinds: list[NodeKind]
    ) -> Iterator[FileProblem]:
        """Find requests for more CPUs or memory than any node has, and for too much time."""
        time = str(self.content.get("time") or "")
        limits = [kind.time_limit for kind in kinds]
        seconds = [limit_seconds(time_limit) or math.inf for time_limit in limits]
        longest, limit = max(zip(seconds, limits, strict=True))
        if (limit_seconds(time) or 0.0) > longest and "qos" not in self.content:
            what = f"{time} is above the time limit of {partition}: {limit}"
            right = "jobs wait for ever, unless a QOS allows it"
            yield self.document.remark((*self.where, "time"), what, right)
        cpus, memory = [k.cpus for k in kinds], [k.memory for k in kinds]
        tasks_cpus = max(1, self._integer_option("cpusPerTask"))
        for key, wanted, texts, unit in (
            ("cpusPerTask", self._integer_option("cpusPerTask"), cpus, ""),
            ("mem", self._megabytes_option("mem"), memory, " MB"),
            (
                "memPerCpu",
                self._megabytes_option("memPerCpu") * tasks_cpus,
                memory,
                " MB",
            ),
        ):
            most = max(map(int, texts)) if all(map(str.isdecimal, texts)) else math.inf
            if wanted > most:
                what = f"{wanted}{unit} is more than a node of {partition} has: {most}{unit}"
                if key == "memPerCpu":
                    what = f"for a task, {what}"
                right = "write less" if unit else f"write {most} or less"
                problem = self.document.problem((*self.where, key), what, right)
                # Slurm starts such a job if memory is not a consumable resource at the site.
                may_start = key == "memPerCpu" and wanted <= most * tasks_cpus
                yield replace(problem, remark=may_start)

    def _integer_option(self, key: str) -> int:
        """Return the value of a key; 0 if it is missing or not a whole number."""
        value = self.content.get(key)
        return value if type(value) is int else 0

    def _megabytes_option(self, key: str) -> int:
        """Return a key's memory in MB, as sbatch(1) reads it; 0 if it cannot be read."""
        match = re.fullmatch(r"(\d+)([KMGT]?)B?", str(self.content.get(key)).upper())
        if match is None:
            return 0
        return math.ceil(int(match[1]) * 1024.0 ** ("KMGT".index(match[2] or "M") - 1))

    def _partition_kinds(
        self, partitions: dict[str, Partition]
    ) -> tuple[str, list[NodeKind]]:
        """Return a text that names the service's partitions, and their node kinds if known.

        A service may name several partitions.
        """
        default = ",".join(
            name for name, partition in partitions.items() if partition.is_default
        )
        names = str(self.content.get("partition") or default)
        here = not self.clusters and {*names.split(",")} <= partitions.keys()
        kinds = (
            [kind for name in names.split(",") for kind in partitions[name].kinds]
            if here
            else []
        )  # the partitions may belong to another cluster
        return f"partition {names}", kinds

"""Checks of deployments of type ``sfq.slurm``: allocations, partitions, QPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sf_quantum.checking.deployments.slurm.services import Service
from sf_quantum.checking.document import Document, FileProblem
from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.services import (
    SEVERAL_CLUSTERS,
)
from sf_quantum.connectors.slurm.transport import rest
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, listing, mapping
from sf_quantum.net.transport import Client
from sf_quantum.qpu import qrmi_config
from sf_quantum.slurm.components import Component, nodes_needed
from sf_quantum.slurm.partitions import Partition

#: StreamFlow's default of maxConcurrentJobs
ONE_JOB = 1


@dataclass(frozen=True)
class Cluster:
    """A deployment of type ``sfq.slurm``, and the path of its ``config``."""

    document: Document
    name: str
    config: dict[str, JSON]
    where: KeyPath

    @property
    def _services(self) -> dict[str, Service]:
        """The services by name."""
        above, services = (*self.where, "services"), self.config.get("services")
        return {
            name: Service(self.document, mapping(content), (*above, name))
            for name, content in mapping(services).items()
        }

    @property
    def _sections(self) -> list[tuple[dict[str, JSON], KeyPath]]:
        """The configuration and each service, with their paths in the file."""
        services = self._services.values()
        return [(self.config, self.where), *((s.content, s.where) for s in services)]

    def allocations(self) -> Iterator[tuple[dict[str, JSON], KeyPath]]:
        """The ``allocation`` of the deployment and of each service, with its path."""
        for content, where in self._sections:
            yield mapping(content.get("allocation")), (*where, "allocation")

    def check(self) -> Iterator[FileProblem]:
        """Check the allocations, clusters and QPUs of the deployment."""
        for allocation, where in self.allocations():
            yield from self._reserve(allocation, where)
            yield from self._unused(allocation, where)
        for service in self._services.values():
            yield from service.check()
        yield from self._qpus()
        if self.config.get("slurmrestd"):
            yield from self._rest()

    def partitions(self, partitions: dict[str, Partition]) -> Iterator[FileProblem]:
        """Check what the services request of their partitions.

        :param partitions: the partitions of the cluster, by name
        """
        for service in self._services.values():
            yield from service.check_partition(partitions)
        yield from self._oversized({k: one.nodes for k, one in partitions.items()})

    def _oversized(self, partitions: dict[str, int]) -> Iterator[FileProblem]:
        """Find services and reservations with more nodes than their partition has.

        :param partitions: the nodes of each partition
        """
        services = {n: s for n, s in self._services.items() if not s.clusters}
        for service in services.values():
            nodes, partition = service.component.least, service.partition
            if nodes > partitions.get(partition, nodes):
                where = (*service.where, "nodes")
                yield self._too_large(where, "it has", nodes, partition, partitions)
        for allocation, where in self.allocations():
            wanted: dict[str, list[tuple[Component, int]]] = defaultdict(list)
            for name, count in _counts(allocation).items():
                if part := services.get(name):
                    wanted[part.partition].append((part.component, count))
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
        services, names = self._services, _reserved(allocation)
        for index, name in enumerate(names):
            listed = isinstance(allocation["reserve"], list)
            what = f"deployment {self.name} has no service {name!r}"
            below = (*where, "reserve", index if listed else name)
            yield from self.document.unknown(below, name, services, what)
        if len({services[n].clusters if n in services else None for n in names}) > 1:
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
        for content, place in self._sections:
            value = content.get("allocation")
            strategy = value.get("strategy") if isinstance(value, dict) else value
            if strategy not in (None, "per-step"):
                yield self.document.problem((*place, "allocation"), *rest.ALLOCATION)
        for service in self._services.values():
            keys = {
                k: v
                for k, v in service.content.items()
                if k not in ("allocation", "qpu")
            }
            if file := keys.pop("file", None):
                path = self.document.folder / str(file)
                yield from self._template(path, service.where)
            for key, what, right in rest.unsupported(keys):
                yield self.document.problem((*service.where, key), what, right)

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
        for service in self._services.values():
            for index, wanted in enumerate(listing(service.content.get("qpu"))):
                if isinstance(wanted, str):
                    what = f"{file} has no QPU {wanted!r}"
                    below = (*service.where, "qpu", index)
                    yield from self.document.unknown(below, wanted, qpu_names, what)


def _counts(allocation: dict[str, JSON]) -> dict[str, int]:
    """How many nodes' worth of each service an allocation reserves."""
    reserve = allocation.get("reserve")
    if not isinstance(reserve, dict):
        return Counter(_reserved(allocation))
    return {name: count for name, count in reserve.items() if isinstance(count, int)}


def _reserved(allocation: dict[str, JSON]) -> list[str]:
    reserve = allocation.get("reserve")
    names = [*reserve] if isinstance(reserve, dict) else listing(reserve)
    return [name for name in names if isinstance(name, str)]

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
from sf_quantum.connectors.slurm.services import SEVERAL_CLUSTERS, array_problem
from sf_quantum.connectors.slurm.transport import rest
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, listing, mapping
from sf_quantum.net.transport import Client
from sf_quantum.qpu import qrmi_config
from sf_quantum.slurm.components import Component, nodes_needed
from sf_quantum.slurm.partitions import Partition

#: StreamFlow's default of maxConcurrentJobs
DEFAULT_CONCURRENT_JOBS = 1


@dataclass(frozen=True)
class Cluster:
    """A deployment of type ``sfq.slurm``.

    :param where: key path of the deployment's ``config`` in the document
    """

    document: Document
    name: str
    config: dict[str, JSON]
    where: KeyPath

    @property
    def _services(self) -> dict[str, Service]:
        """The services of the deployment, by name."""
        above, services = (*self.where, "services"), self.config.get("services")
        return {
            name: Service(self.document, mapping(content), (*above, name))
            for name, content in mapping(services).items()
        }

    @property
    def _sections(self) -> list[tuple[dict[str, JSON], KeyPath]]:
        """The configuration and the services, each with its key path in the document."""
        services = self._services.values()
        return [(self.config, self.where), *((s.content, s.where) for s in services)]

    def allocations(self) -> Iterator[tuple[dict[str, JSON], KeyPath]]:
        """Yield the ``allocation`` of the deployment and of each service, with key paths."""
        for content, where in self._sections:
            yield mapping(content.get("allocation")), (*where, "allocation")

    def check(self) -> Iterator[FileProblem]:
        """Check the allocations, clusters and QPUs of the deployment."""
        for allocation, where in self.allocations():
            yield from self._check_reserved_services(allocation, where)
            yield from self._check_counts(allocation, where)
        for service in self._services.values():
            yield from service.check()
        yield from self._check_arrays()
        yield from self._check_qpus()
        if self.config.get("slurmrestd"):
            yield from self._check_rest()

    def check_partitions(
        self, partitions: dict[str, Partition]
    ) -> Iterator[FileProblem]:
        """Check the requests of the services against their partitions.

        :param partitions: the partitions of the cluster, by name
        """
        for service in self._services.values():
            yield from service.check_partition(partitions)
        yield from self._check_sizes(
            {name: partition.nodes for name, partition in partitions.items()}
        )

    def _check_sizes(self, partitions: dict[str, int]) -> Iterator[FileProblem]:
        """Check that services and reservations request no more nodes than a partition has.

        :param partitions: number of nodes of each partition
        """
        # The partitions of other clusters are unknown.
        services = {n: s for n, s in self._services.items() if not s.clusters}
        for service in services.values():
            nodes, partition = service.component.min_nodes, service.partition
            if nodes > partitions.get(partition, nodes):
                where = (*service.where, "nodes")
                yield self._too_large(where, nodes, partition, partitions)
        for allocation, where in self.allocations():
            requests: dict[str, list[tuple[Component, int]]] = defaultdict(list)
            for name, count in _counts(allocation).items():
                if reserved := services.get(name):
                    requests[reserved.partition].append((reserved.component, count))
            for partition, components in requests.items():
                nodes = nodes_needed(components)
                if nodes > partitions.get(partition, nodes):
                    below = (*where, "reserve")
                    yield self._too_large(below, nodes, partition, partitions)

    def _too_large(
        self,
        where: KeyPath,
        nodes: int,
        partition: str,
        partitions: dict[str, int],
    ) -> FileProblem:
        maximum = partitions[partition]
        what = f"{nodes} nodes requested, but partition {partition} has {maximum}"
        return self.document.problem(where, what, f"request at most {maximum}")

    def _check_reserved_services(
        self, allocation: dict[str, JSON], where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check that the services in ``reserve`` exist and are on the same clusters."""
        services, names = self._services, _reserved(allocation)
        for index, name in enumerate(names):
            is_list = isinstance(allocation["reserve"], list)
            what = f"deployment {self.name} has no service {name!r}"
            below = (*where, "reserve", index if is_list else name)
            yield from self.document.unknown(below, name, services, what)
        if len({services[n].clusters if n in services else None for n in names}) > 1:
            yield self.document.problem((*where, "reserve"), *SEVERAL_CLUSTERS)

    def _check_arrays(self) -> Iterator[FileProblem]:
        """Check that no allocation that is kept for several jobs is an array."""
        held = {
            n for allocation, _ in self.allocations() for n in _reserved(allocation)
        }
        default = _strategy(self.config)
        for name, service in self._services.items():
            strategy = _strategy(service.content) or default
            problem = array_problem(
                is_elastic=strategy == "elastic", is_reserved=name in held
            )
            if problem is not None and "array" in service.content:
                yield self.document.problem((*service.where, "array"), *problem)

    def _check_counts(
        self, allocation: dict[str, JSON], where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check that nodes are not held for more jobs than StreamFlow runs concurrently."""
        max_jobs = self.config.get("maxConcurrentJobs", DEFAULT_CONCURRENT_JOBS)
        if not isinstance(max_jobs, int):
            return
        sizes: dict[str, JSON] = {
            f"reserve for {service} is": count
            for service, count in _counts(allocation).items()
        }
        sizes["keep is"] = allocation.get("keep")
        for what, count in sizes.items():
            if isinstance(count, int) and count > max_jobs:
                what = f"{what} {count}, but maxConcurrentJobs is {max_jobs}"
                remedy = f"write maxConcurrentJobs: {count} or more"
                yield self.document.problem(where, what, remedy)
        maximum, keep = allocation.get("max"), allocation.get("keep")
        if isinstance(maximum, int) and isinstance(keep, int) and keep > maximum:
            what = f"keep is {keep}, but max is {maximum}"
            remedy = f"write a keep of at most {maximum}"
            yield self.document.problem(where, what, remedy)

    def _check_rest(self) -> Iterator[FileProblem]:
        """Check the URL of slurmrestd, and that no key requires Slurm's commands."""
        url = mapping(self.config["slurmrestd"]).get("url")
        try:
            if isinstance(url, str):
                Client(url, {})
        except InputError as error:
            where: KeyPath = (*self.where, "slurmrestd", "url")
            remedy = "see the key slurmrestd of sfq.slurm"
            yield self.document.problem(where, str(error), remedy)
        for content, above in self._sections:
            if _strategy(content) not in (None, "per-step"):
                yield self.document.problem((*above, "allocation"), *rest.ALLOCATION)
        for service in self._services.values():
            keys = {
                k: v
                for k, v in service.content.items()
                if k not in ("allocation", "qpu")
            }
            if file := keys.pop("file", None):
                path = self.document.folder / str(file)
                yield from self._check_template(path, service.where)
            for key, what, remedy in rest.unsupported(keys):
                yield self.document.problem((*service.where, key), what, remedy)

    def _check_template(self, file: Path, where: KeyPath) -> Iterator[FileProblem]:
        """Check that a template for slurmrestd contains no ``#SBATCH`` lines."""
        with suppress(OSError):
            if scripts.directives(file.read_text(errors="replace")):
                yield self.document.problem((*where, "file"), *rest.DIRECTIVES)

    def _check_qpus(self) -> Iterator[FileProblem]:
        """Check that ``qrmiConfig``, if it exists, defines the QPUs of the services."""
        name = self.config.get("qrmiConfig")
        if not isinstance(name, str) or not (self.document.folder / name).is_file():
            return
        file = self.document.folder / name
        try:
            qpu_names = qrmi_config.names(str(file))
        except InputError as error:
            remedy = "give the path of a qrmi_config.json for QRMI's SPANK plugin"
            yield self.document.problem((*self.where, "qrmiConfig"), str(error), remedy)
            return
        for service in self._services.values():
            for index, qpu in enumerate(listing(service.content.get("qpu"))):
                if isinstance(qpu, str):
                    what = f"{file} has no QPU {qpu!r}"
                    below = (*service.where, "qpu", index)
                    yield from self.document.unknown(below, qpu, qpu_names, what)


def _strategy(content: dict[str, JSON]) -> JSON:
    """Return the name of the allocation strategy in a section, None if there is none."""
    value = content.get("allocation")
    return value.get("strategy") if isinstance(value, dict) else value


def _counts(allocation: dict[str, JSON]) -> dict[str, int]:
    """Return, by service, how many times an allocation reserves the service's nodes."""
    reserve = allocation.get("reserve")
    if not isinstance(reserve, dict):
        return Counter(_reserved(allocation))
    return {name: count for name, count in reserve.items() if isinstance(count, int)}


def _reserved(allocation: dict[str, JSON]) -> list[str]:
    """Return the names in ``reserve``: a list may repeat them, a mapping has each once."""
    reserve = allocation.get("reserve")
    names = [*reserve] if isinstance(reserve, dict) else listing(reserve)
    return [name for name in names if isinstance(name, str)]

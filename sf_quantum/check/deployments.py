"""Checks of deployments: references, wrapped deployments, files, QPUs, Slurm's limits."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from streamflow.core.deployment import DeploymentConfig, Target
from streamflow.deployment.connector import connector_classes
from streamflow.deployment.connector.queue_manager import QueueManagerConnector
from streamflow.deployment.wrapper import ConnectorWrapper

from sf_quantum import qpu
from sf_quantum.check.document import Document, FileProblem, nested, suggestion
from sf_quantum.check.schema import Rules
from sf_quantum.connectors.slurm.services import ONE_CLUSTER
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.qpu import qrmi_config
from sf_quantum.validation import KeyPath

# keys of StreamFlow's connectors and ours that name a file on the driver's host
FILES = ("passwordFile", "sshKey", "sshKeyPassphraseFile", "tokenFile", "qrmiConfig")
OURS = "sf_quantum."
ADVICE = (
    "add failureManager: {type: default, config: {max_retries: 3}}"
    " or write onFailure: fail"
)
REST = "sfq.rest"
SLURM = "sfq.slurm"
#: StreamFlow's default of maxConcurrentJobs
ONE_JOB = 1
# Slurm's commands block while the controller is down
TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Binding:
    """One entry of ``bindings``; ``kind`` is ``step`` or ``port``."""

    kind: str
    path: str
    targets: list[tuple[KeyPath, dict[str, JSON]]]
    where: KeyPath
    content: dict[str, JSON]

    @classmethod
    def read(cls, bindings: JSON, above: KeyPath) -> Iterator[Binding]:
        """Read the entries that name a step or a port."""
        for number, content in enumerate(map(mapping, listing(bindings))):
            kind = "step" if "step" in content else "port"
            path, target = content.get(kind), content.get("target")
            where: KeyPath = (*above, number)
            below: KeyPath = (*where, "target")
            targets = [
                ((*below, index) if isinstance(target, list) else below, mapping(item))
                for index, item in enumerate(listing(target))
            ]
            if isinstance(path, str):
                yield cls(kind, path, targets, where, content)


class Deployments:
    """The deployments of one StreamFlow file."""

    def __init__(self, document: Document, rules: Rules) -> None:
        self.document = document
        self.sections = {
            name: section
            for section in ("models", "deployments")
            for name in mapping(document.content.get(section))
        }
        self._rules = rules

    def check(self) -> Iterator[FileProblem]:
        """Check the references of each deployment: deployments, policies, files, QPUs."""
        for name, section in self.sections.items():
            where, below = (section, name), (section, name, "config")
            yield from self._wraps(name, where)
            yield from self._policy(name, where)
            yield from self._files(self.get(name).get("config"), below)
            yield from self._templates(name, below)
            yield from self._qpu(name, (*below, "type"))
        for cluster in self.clusters():
            yield from cluster.check()
            inner = _wrapped(self.get(cluster.name))
            if inner is None or self.get(inner).get("type") == "local":
                yield from cluster.partitions()

    def clusters(self) -> Iterator[Cluster]:
        """The deployments of type ``sfq.slurm``."""
        for name, section in self.sections.items():
            if self.get(name).get("type") == SLURM:
                config, where = self.config(name), (section, name, "config")
                yield Cluster(self.document, name, config, where)

    def get(self, name: str) -> dict[str, JSON]:
        """A deployment, or an empty mapping."""
        section = mapping(self.document.content.get(self.sections.get(name, "")))
        return mapping(section.get(name))

    def config(self, name: str) -> dict[str, JSON]:
        """The configuration of a deployment, or an empty mapping."""
        return mapping(self.get(name).get("config"))

    def targets(self, binding: Binding) -> dict[KeyPath, Target]:
        """The targets of a binding whose deployments exist."""
        targets = {}
        for where, target in binding.targets:
            name, service = str(target.get("deployment")), target.get("service")
            kind = self.get(name).get("type")
            if kind is not None:
                targets[where] = Target(
                    DeploymentConfig(name, str(kind), self.config(name)),
                    service=str(service) if service is not None else None,
                )
        return targets

    def target(self, target: JSON, where: KeyPath) -> Iterator[FileProblem]:
        """Check a reference to a deployment and perhaps to a service of it.

        :param target: has ``deployment`` (or the older ``model``), perhaps ``service``
        """
        for key in ("deployment", "model"):
            name = mapping(target).get(key)
            if isinstance(name, str):
                yield from self._reference(name, (*where, key))
                yield from self._service(name, target, (*where, "service"))

    def is_local(self, name: str) -> bool:
        """Whether commands certainly run on this host, with this PATH.

        Containers and queues run them elsewhere; other plugins' connectors are unknown;
        our connectors run them on the deployment that they wrap.
        """
        seen: set[str] = set()
        while name not in seen:
            seen.add(name)
            deployment = self.get(name)
            kind = connector_classes.get(str(deployment.get("type")))
            if kind is None or deployment.get("type") == "local":
                return kind is not None
            wraps = kind.__module__.startswith(OURS) and issubclass(
                kind, ConnectorWrapper
            )
            if not wraps or issubclass(kind, QueueManagerConnector):
                return False
            inner = _wrapped(deployment)
            if inner is None:
                return True
            name = inner
        return False

    def _reference(self, name: str, where: KeyPath) -> Iterator[FileProblem]:
        what = f"there is no deployment {name!r}"
        yield from self.document.unknown(where, name, self.sections, what)

    def _service(
        self, name: str, target: JSON, where: KeyPath
    ) -> Iterator[FileProblem]:
        service = mapping(target).get("service")
        if isinstance(service, str) and self._has_services(name):
            services = mapping(self.config(name).get("services"))
            what = f"deployment {name} has no service {service!r}"
            yield from self.document.unknown(where, service, services, what)

    def _has_services(self, name: str) -> bool:
        return "services" in self._rules.config(self.get(name))

    def _wraps(self, name: str, where: KeyPath) -> Iterator[FileProblem]:
        deployment, where = self.get(name), (*where, "wraps")
        inner = _wrapped(deployment)
        if inner is None:
            return
        if isinstance(deployment["wraps"], dict):
            yield from self.target(deployment["wraps"], where)
        else:
            yield from self._reference(inner, where)
        kind = connector_classes.get(str(deployment.get("type")))
        if kind and not issubclass(kind, ConnectorWrapper):
            what = f"a deployment of type {deployment.get('type')} cannot wrap another"
            yield self.document.problem(where, what, "remove wraps")
        chain = [name]
        while inner is not None and inner not in chain[1:]:
            chain.append(inner)
            inner = _wrapped(self.get(inner))
        if name in chain[1:]:
            what = f"the deployment wraps itself ({' -> '.join(chain)})"
            yield self.document.problem(where, what, "wrap another deployment")

    def _policy(self, name: str, where: KeyPath) -> Iterator[FileProblem]:
        policy = self.get(name).get("scheduling_policy", "__DEFAULT__")
        scheduling = mapping(self.document.content.get("scheduling"))
        known = {"__DEFAULT__", *mapping(scheduling.get("policies"))}
        if isinstance(policy, str):
            what = f"scheduling.policies has no {policy!r}"
            where = (*where, "scheduling_policy")
            yield from self.document.unknown(where, policy, known, what)

    def _templates(self, name: str, where: KeyPath) -> Iterator[FileProblem]:
        """Check job templates of the deployment or of its services, in either form."""
        if not self._has_services(name):
            return
        config = self.config(name)
        yield from self._file(config.get("file"), (*where, "file"))
        for service, content in mapping(config.get("services")).items():
            below = (*where, "services", service)
            if isinstance(content, dict):
                yield from self._file(content.get("file"), (*below, "file"))
            else:
                yield from self._file(content, below)

    def _qpu(self, name: str, where: KeyPath) -> Iterator[FileProblem]:
        """Check the kind of QPU of an ``sfq.rest``, whose client runs on this host."""
        kind = self.config(name).get("type")
        if self.get(name).get("type") != REST or not isinstance(kind, str):
            return
        if kind not in (known := qpu.names()):
            what = f"unknown QPU type {kind!r}"
            yield self.document.problem(where, what, suggestion(kind, known))
            return
        try:
            obstacle = qpu.load(kind).problem()
        except InputError as error:
            obstacle = str(error)
        if obstacle is not None:
            what = f"QPUs of type {kind} cannot be used: {obstacle}"
            yield self.document.problem(where, what, "install what is missing")

    def _files(self, value: JSON, where: KeyPath) -> Iterator[FileProblem]:
        """Check the keys that name files, also in nested connections."""
        for below, item in nested(value, where):
            if below[-1] in FILES:
                yield from self._file(item, below)

    def _file(self, file: JSON, where: KeyPath) -> Iterator[FileProblem]:
        # SSH keys are relative to the driver's folder, other files to the StreamFlow file
        if isinstance(file, str) and not any(
            (folder / Path(file).expanduser()).is_file()
            for folder in (self.document.folder, Path())
        ):
            what = f"{file}: no such file"
            yield self.document.problem(where, what, "name an existing file")


def recovery(document: Document) -> Iterator[FileProblem]:
    """Check that there is a failure manager if ``onFailure`` relies on retries."""
    manager = mapping(document.content.get("failureManager"))
    default = "default" if manager.get("enabled") is True else "dummy"
    if manager.get("type", default) != "dummy":
        return
    for where, config in _fallbacks(document.content):
        on_failure = config.get("onFailure", "fallback")
        what = f"onFailure: {on_failure} needs a failureManager, which is missing"
        yield document.problem(where, what, ADVICE)


def _fallbacks(content: dict[str, JSON]) -> Iterator[tuple[KeyPath, dict[str, JSON]]]:
    """Configurations that rely on retries, as those of candidates do by default."""
    for name, entry in mapping(content.get("bindingFilters")).items():
        config = mapping(mapping(entry).get("config"))
        candidate = mapping(entry).get("type") == "sfq.candidate"
        if candidate and config.get("onFailure") != "fail":
            yield ("bindingFilters", name, "config", "onFailure"), config
    holders: list[tuple[KeyPath, JSON]] = [
        (("deployments", name), deployment)
        for name, deployment in mapping(content.get("deployments")).items()
    ]
    scheduler = mapping(content.get("scheduling")).get("scheduler")
    for where, holder in [*holders, (("scheduling", "scheduler"), scheduler)]:
        config = mapping(mapping(holder).get("config"))
        if config.get("onFailure") == "fallback":
            yield (*where, "config", "onFailure"), config


def _wrapped(deployment: dict[str, JSON]) -> str | None:
    wraps = deployment.get("wraps")
    name = wraps.get("deployment") if isinstance(wraps, dict) else wraps
    return name if isinstance(name, str) else None


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
            if content.get("clusters"):
                yield self.document.problem((*where, "clusters"), *ONE_CLUSTER)
        yield from self._qpus()

    def partitions(self) -> Iterator[FileProblem]:
        """Check the services' partitions, if Slurm answers on this host."""
        if not any(content.get("partition") for content, _ in self.services()):
            return
        known = _partitions()
        for content, where in self.services():
            names = content.get("partition")
            for name in names.split(",") if known and isinstance(names, str) else []:
                what = f"Slurm has no partition {name!r}"
                below = (*where, "partition")
                yield from self.document.unknown(below, name, known, what)

    def _reserve(
        self, allocation: dict[str, JSON], where: KeyPath
    ) -> Iterator[FileProblem]:
        services = mapping(self.config.get("services"))
        for index, service in enumerate(_reserved(allocation)):
            listed = isinstance(allocation["reserve"], list)
            what = f"deployment {self.name} has no service {service!r}"
            below = (*where, "reserve", index if listed else service)
            yield from self.document.unknown(below, service, services, what)

    def _unused(
        self, allocation: dict[str, JSON], where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check that nodes are not held for more jobs than StreamFlow runs concurrently."""
        jobs = self.config.get("maxConcurrentJobs", ONE_JOB)
        if not isinstance(jobs, int):
            return
        reserve = allocation.get("reserve")
        counts = (
            reserve if isinstance(reserve, dict) else Counter(_reserved(allocation))
        )
        sizes = {
            f"reserve for {service} is": count for service, count in counts.items()
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

    def _qpus(self) -> Iterator[FileProblem]:
        """Check that ``qrmiConfig``, if it exists, defines the QPUs of the services."""
        name = self.config.get("qrmiConfig")
        if not isinstance(name, str) or not (self.document.folder / name).is_file():
            return
        file = self.document.folder / name
        try:
            known = qrmi_config.names(str(file))
        except InputError as error:
            right = "give the path of a qrmi_config.json for QRMI's SPANK plugin"
            yield self.document.problem((*self.where, "qrmiConfig"), str(error), right)
            return
        for content, where in self.services():
            for index, wanted in enumerate(listing(content.get("qpu"))):
                if isinstance(wanted, str):
                    what = f"{file} has no QPU {wanted!r}"
                    below = (*where, "qpu", index)
                    yield from self.document.unknown(below, wanted, known, what)


def _partitions() -> list[str]:
    command = ["sinfo", "--noheader", "--all", "--format=%R"]
    try:
        sinfo = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sinfo.stdout.split() if sinfo.returncode == 0 else []


def _reserved(allocation: dict[str, JSON]) -> list[str]:
    reserve = allocation.get("reserve")
    names = [*reserve] if isinstance(reserve, dict) else listing(reserve)
    return [name for name in names if isinstance(name, str)]

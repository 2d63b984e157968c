"""Checks of deployments: references, wrapped deployments and failure managers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from streamflow.core.deployment import Connector
from streamflow.deployment.connector import connector_classes
from streamflow.deployment.connector.container import (
    DockerConnector,
    SingularityConnector,
)
from streamflow.deployment.connector.local import LocalConnector
from streamflow.deployment.connector.queue_manager import QueueManagerConnector
from streamflow.deployment.connector.ssh import SSHConnector
from streamflow.deployment.wrapper import ConnectorWrapper

from sf_quantum.checking.deployments import site_file
from sf_quantum.checking.deployments.configurations import Configuration
from sf_quantum.checking.deployments.slurm.clusters import Cluster
from sf_quantum.checking.document import (
    Document,
    FileProblem,
    is_misspelt,
)
from sf_quantum.checking.schema import Rules
from sf_quantum.connectors.quantum.location import QuantumConnector
from sf_quantum.connectors.rest import RestConnector
from sf_quantum.connectors.wrapper import LocationWrapper
from sf_quantum.files import JSON, KeyPath, listing, mapping

# connectors that ignore the service of a target
_WITHOUT_SERVICES = (
    DockerConnector,
    LocalConnector,
    LocationWrapper,
    SingularityConnector,
)
# beginning of the modules of our connectors
OURS = "sf_quantum."
# the remedy if a candidate relies on retries, but there is no failure manager
ADVICE = (
    "add failureManager: {type: default, config: {max_retries: 3}}"
    " or write onFailure: fail"
)
CANDIDATE = "sfq.candidate"
EMULATOR = "sfq.emulator"
REST = "sfq.rest"
SLURM = "sfq.slurm"


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

    def check(self, keys: list[FileProblem]) -> Iterator[FileProblem]:
        """Check each deployment: wrapped deployments, policies, files, limits, QPUs.

        :param keys: problems of keys and values that are already reported
        """
        wrong = {problem.where[:2] for problem in keys}
        for name, section in self.sections.items():
            where, kind = (section, name), self.get(name).get("type")
            config = Configuration(
                self.document, name, self.config(name), (*where, "config")
            )
            yield from self._check_wraps(name, where)
            yield from self._check_policy(name, where)
            missing = [*config.check_files()]
            yield from missing
            if self._has_services(name):
                yield from config.check_templates()
            yield from config.check_limits()
            is_sound = not missing and where not in wrong
            if kind == REST and is_sound:
                yield from config.check_qpu()
            elif kind == EMULATOR and is_sound:
                yield from config.check_emulated()
        for cluster in self.clusters():
            yield from cluster.check()
        files = [self.config(name).get("qrmiConfig") for name in self.sections]
        for file in dict.fromkeys(path for path in files if isinstance(path, str)):
            yield from site_file.check(self.document.folder / Path(file).expanduser())

    def clusters(self) -> Iterator[Cluster]:
        """Yield the deployments of type ``sfq.slurm``."""
        for name, section in self.sections.items():
            if self.get(name).get("type") == SLURM:
                config, where = self.config(name), (section, name, "config")
                yield Cluster(self.document, name, config, where)

    def get(self, name: str) -> dict[str, JSON]:
        """Return a deployment; an empty mapping if there is none of this name."""
        section = mapping(self.document.content.get(self.sections.get(name, "")))
        return mapping(section.get(name))

    def config(self, name: str) -> dict[str, JSON]:
        """Return the configuration of a deployment; an empty mapping if it has none."""
        return mapping(self.get(name).get("config"))

    def wrapped(self, name: str) -> str | None:
        """Return the name of the deployment that a deployment wraps, if any."""
        return _wrapped(self.get(name))

    def kind(self, name: str) -> type[Connector] | None:
        """Return the connector class of a deployment; ``None`` if its type is unknown."""
        return connector_classes.get(str(self.get(name).get("type")))

    def target(self, target: JSON, where: KeyPath) -> Iterator[FileProblem]:
        """Check a reference to a deployment and, if named, to its service and locations.

        :param target: mapping with ``deployment`` (or the older ``model``) and optionally
            ``service`` and ``locations``
        """
        for key in ("deployment", "model"):
            name = mapping(target).get(key)
            if isinstance(name, str):
                yield from self._check_reference(name, (*where, key))
                yield from self._check_service(name, target, (*where, "service"))
                yield from self._check_locations(name, target, (*where, "locations"))

    def unnamed(self, target: JSON, where: KeyPath) -> Iterator[FileProblem]:
        """Remark on a target without a service, if its deployment has services."""
        name = deployment_of(target)
        services = mapping(self.config(name).get("services"))
        given = mapping(target)
        named = "service" in given or is_misspelt("service", given)
        if services and not named and self._has_services(name):
            what = f"no service of {name} is named, so that none of their options apply"
            right = f"name one: service: {' or '.join(services)}"
            yield self.document.remark(where, what, right)

    def is_local(self, name: str) -> bool:
        """Return whether commands of a deployment certainly run on this host, with this PATH.

        Containers and queues run commands elsewhere. Connectors of other plugins may do so.
        Connectors of sf_quantum run commands on the deployment that they wrap.
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

    def _check_reference(self, name: str, where: KeyPath) -> Iterator[FileProblem]:
        if not self.sections and is_misspelt("deployments", self.document.content):
            return
        what = f"there is no deployment {name!r}"
        yield from self.document.unknown(where, name, self.sections, what)

    def _check_service(
        self, name: str, target: JSON, where: KeyPath
    ) -> Iterator[FileProblem]:
        service, kind = mapping(target).get("service"), self.kind(name)
        if service is not None and kind and issubclass(kind, _WITHOUT_SERVICES):
            what = f"deployment {name} ({self.get(name)['type']}) has no services"
            yield self.document.problem(where, what, "remove service")
        elif self._has_services(name):
            services = mapping(self.config(name).get("services"))
            if service is None:
                return
            what = f"deployment {name} has no service {service!r}"
            yield from self.document.unknown(where, str(service), services, what)

    def _check_locations(
        self, name: str, target: JSON, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check that a target does not request more locations than its deployment has."""
        count, kind = mapping(target).get("locations"), self.kind(name)
        if not isinstance(count, int):
            return
        names = listing(self.config(name).get("names"))
        most = (
            max(1, len(names)) if kind and issubclass(kind, LocationWrapper) else count
        )
        if count < 1:
            yield self.document.problem(where, f"{count} is too few", "write 1 or more")
        elif count > most:
            what = f"deployment {name} has {most} location{'s' * (most > 1)}"
            yield self.document.problem(where, what, f"write {most} or less")

    def _has_services(self, name: str) -> bool:
        return "services" in self._rules.config(self.get(name))

    def _check_wraps(self, name: str, where: KeyPath) -> Iterator[FileProblem]:
        """Check that a deployment can wrap the one that it names, and does not wrap itself."""
        deployment, where = self.get(name), (*where, "wraps")
        inner = _wrapped(deployment)
        if inner is None:
            return
        if isinstance(deployment["wraps"], dict):
            yield from self.target(deployment["wraps"], where)
        else:
            yield from self._check_reference(inner, where)
        kind = self.kind(name)
        if kind and not issubclass(kind, ConnectorWrapper):
            what = f"a deployment of type {deployment.get('type')} cannot wrap another"
            yield self.document.problem(where, what, "remove wraps")
        elif kind and _needs_machine(kind) and inner != name:
            yield from self._check_machine(name, inner, where)
        elif inner != name and issubclass(
            self.kind(inner) or Connector, QuantumConnector
        ):
            what = f"jobs of {name} never get the QPU of {inner}, which it wraps"
            right = f"wrap what {inner} wraps, and bind steps to {inner} itself"
            yield self.document.problem(where, what, right)
        chain = [name]
        while inner is not None and inner not in chain[1:]:
            chain.append(inner)
            inner = _wrapped(self.get(inner))
        if name in chain[1:]:
            what = f"the deployment wraps itself ({' -> '.join(chain)})"
            yield self.document.problem(where, what, "wrap another deployment")

    def _check_machine(
        self, name: str, inner: str, where: KeyPath
    ) -> Iterator[FileProblem]:
        """Check that the wrapped deployment is a single machine that can run commands."""
        kind, config = self.kind(inner), self.config(inner)
        if kind is None or issubclass(kind, LocalConnector):
            return
        what = f"{self.get(name)['type']} cannot wrap {inner}"
        right = "wrap a deployment of type local, or of type ssh with one node"
        if not issubclass(kind, SSHConnector):
            what = f"{what}, which is of type {self.get(inner)['type']}"
            yield self.document.problem(where, what, right)
        elif len(nodes := listing(config.get("nodes"))) > 1:
            what = f"{what}, which has {len(nodes)} nodes"
            yield self.document.problem(where, what, right)
        elif config.get("dataTransferConnection"):
            what = f"{what}, which has a dataTransferConnection"
            yield self.document.problem(where, what, right)

    def _check_policy(self, name: str, where: KeyPath) -> Iterator[FileProblem]:
        policy = self.get(name).get("scheduling_policy", "__DEFAULT__")
        scheduling = mapping(self.document.content.get("scheduling"))
        policies = {"__DEFAULT__", *mapping(scheduling.get("policies"))}
        if isinstance(policy, str):
            what = f"scheduling.policies has no {policy!r}"
            where = (*where, "scheduling_policy")
            yield from self.document.unknown(where, policy, policies, what)


def deployment_of(target: JSON) -> str:
    """Return the name of a target's deployment, from ``deployment`` or the older ``model``."""
    return str(mapping(target).get("deployment", mapping(target).get("model")))


def _needs_machine(kind: type[Connector]) -> bool:
    """Return whether a connector must wrap a single machine; a QPU's client runs anywhere."""
    return issubclass(kind, LocationWrapper) and not issubclass(kind, RestConnector)


def recovery(document: Document) -> Iterator[FileProblem]:
    """Check that there is a failure manager if a value of ``onFailure`` relies on retries."""
    if is_misspelt("failureManager", document.content):
        return
    manager = mapping(document.content.get("failureManager"))
    default = "default" if manager.get("enabled") is True else "dummy"
    if manager.get("type", default) != "dummy":
        return
    for where, config in _fallbacks(document.content):
        on_failure = config.get("onFailure", "fallback")
        what = f"onFailure: {on_failure} needs a failureManager, which is missing"
        yield document.problem(where, what, ADVICE)


def _fallbacks(content: dict[str, JSON]) -> Iterator[tuple[KeyPath, dict[str, JSON]]]:
    """Yield the configurations that rely on retries, which candidates do by default."""
    for name, entry in mapping(content.get("bindingFilters")).items():
        config = mapping(mapping(entry).get("config"))
        candidate = mapping(entry).get("type") == CANDIDATE
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

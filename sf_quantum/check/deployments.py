"""Checks of deployments: references, wrapped deployments, files, QPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from streamflow.core.deployment import DeploymentConfig, Target
from streamflow.deployment.connector import connector_classes
from streamflow.deployment.connector.queue_manager import QueueManagerConnector
from streamflow.deployment.wrapper import ConnectorWrapper

from sf_quantum import qpu
from sf_quantum.check import slurm
from sf_quantum.check.document import Document, FileProblem, Where, suggestion
from sf_quantum.check.schema import Rules
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping

# keys of StreamFlow's connectors and ours that name a file on the driver's host
FILES = ("passwordFile", "sshKey", "sshKeyPassphraseFile", "tokenFile", "qrmiConfig")
OURS = "sf_quantum."
REST = "sfq.rest"


@dataclass(frozen=True)
class Binding:
    """One entry of ``bindings``.

    :param kind: ``step`` or ``port``
    :param path: of the step or port
    """

    kind: str
    path: str
    targets: list[tuple[Where, dict[str, JSON]]]
    where: Where
    content: dict[str, JSON]

    @classmethod
    def read(cls, where: Where, content: dict[str, JSON]) -> Binding | None:
        """Read an entry; None if it names neither a step nor a port."""
        kind = "step" if "step" in content else "port"
        path, target = content.get(kind), content.get("target")
        if not isinstance(path, str):
            return None
        below: Where = (*where, "target")
        targets = [
            ((*below, index) if isinstance(target, list) else below, mapping(item))
            for index, item in enumerate(listing(target))
        ]
        return cls(kind, path, targets, where, content)


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
            where = (section, name)
            yield from self._wraps(name, where)
            yield from self._policy(name, where)
            yield from self._files(self.get(name).get("config"), (*where, "config"))
            yield from self._templates(name, (*where, "config"))
            yield from self._qpu(name, (*where, "config", "type"))
        for name, config, below in self.clusters():
            yield from slurm.check(self.document, name, config, below)
            inner = _wrapped(self.get(name))
            if inner is None or self.get(inner).get("type") == "local":
                yield from slurm.partitions(self.document, config, below)

    def clusters(self) -> Iterator[tuple[str, dict[str, JSON], Where]]:
        """Name, configuration and its location of each ``sfq.slurm`` deployment."""
        for name, section in self.sections.items():
            if self.get(name).get("type") == slurm.TYPE:
                config = mapping(self.get(name).get("config"))
                yield name, config, (section, name, "config")

    def get(self, name: str) -> dict[str, JSON]:
        """A deployment, or an empty mapping."""
        section = mapping(self.document.content.get(self.sections.get(name, "")))
        return mapping(section.get(name))

    def targets(self, binding: Binding) -> dict[Where, Target]:
        """The targets of a binding whose deployments exist."""
        targets = {}
        for where, target in binding.targets:
            name, service = target.get("deployment"), target.get("service")
            deployment = self.get(str(name))
            config, kind = mapping(deployment.get("config")), deployment.get("type")
            if kind is not None:
                targets[where] = Target(
                    DeploymentConfig(str(name), str(kind), config),
                    service=str(service) if service is not None else None,
                )
        return targets

    def target(self, target: JSON, where: Where) -> Iterator[FileProblem]:
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
            if not (kind.__module__.startswith(OURS) and _only_wraps(kind)):
                return False
            inner = _wrapped(deployment)
            if inner is None:
                return True
            name = inner
        return False

    def _reference(self, name: str, where: Where) -> Iterator[FileProblem]:
        if name not in self.sections:
            what = f"there is no deployment {name!r}"
            yield self.document.problem(where, what, suggestion(name, self.sections))

    def _service(self, name: str, target: JSON, where: Where) -> Iterator[FileProblem]:
        service, deployment = mapping(target).get("service"), self.get(name)
        if not isinstance(service, str) or "services" not in self._known(deployment):
            return
        services = mapping(mapping(deployment.get("config")).get("services"))
        if service not in services:
            what = f"deployment {name} has no service {service!r}"
            yield self.document.problem(where, what, suggestion(service, services))

    def _known(self, deployment: dict[str, JSON]) -> set[str]:
        return self._rules.config(deployment, "deployment")

    def _wraps(self, name: str, where: Where) -> Iterator[FileProblem]:
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
        if name in (chain := self._chain(name)):
            what = f"the deployment wraps itself ({' -> '.join((name, *chain))})"
            yield self.document.problem(where, what, "wrap another deployment")

    def _chain(self, name: str) -> list[str]:
        chain: list[str] = []
        inner = _wrapped(self.get(name))
        while inner is not None and inner not in chain:
            chain.append(inner)
            inner = _wrapped(self.get(inner))
        return chain

    def _policy(self, name: str, where: Where) -> Iterator[FileProblem]:
        policy = self.get(name).get("scheduling_policy", "__DEFAULT__")
        scheduling = mapping(self.document.content.get("scheduling"))
        known = {"__DEFAULT__", *mapping(scheduling.get("policies"))}
        if isinstance(policy, str) and policy not in known:
            what = f"scheduling.policies has no {policy!r}"
            where = (*where, "scheduling_policy")
            yield self.document.problem(where, what, suggestion(policy, known))

    def _templates(self, name: str, where: Where) -> Iterator[FileProblem]:
        """Check job templates of the deployment or of its services, in either form."""
        if "services" not in self._known(self.get(name)):
            return
        config = mapping(self.get(name).get("config"))
        yield from self._file(config.get("file"), (*where, "file"))
        for service, content in mapping(config.get("services")).items():
            below = (*where, "services", service)
            if isinstance(content, dict):
                yield from self._file(content.get("file"), (*below, "file"))
            else:
                yield from self._file(content, below)

    def _qpu(self, name: str, where: Where) -> Iterator[FileProblem]:
        """Check the kind of QPU of an ``sfq.rest``, whose client runs on this host."""
        kind = mapping(self.get(name).get("config")).get("type")
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

    def _files(self, value: JSON, where: Where) -> Iterator[FileProblem]:
        """Check the keys that name files, also in nested connections."""
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._files(item, (*where, index))
        for key, item in mapping(value).items():
            if key in FILES:
                yield from self._file(item, (*where, key))
            else:
                yield from self._files(item, (*where, key))

    def _file(self, file: JSON, where: Where) -> Iterator[FileProblem]:
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
        yield document.problem(
            where,
            f"onFailure: {on_failure} needs a failureManager, which is missing",
            "add failureManager: {type: default, config: {max_retries: 3}}"
            " or write onFailure: fail",
        )


def _fallbacks(content: dict[str, JSON]) -> Iterator[tuple[Where, dict[str, JSON]]]:
    """Configurations that rely on retries, as those of candidates do by default."""
    for name, entry in mapping(content.get("bindingFilters")).items():
        config = mapping(mapping(entry).get("config"))
        candidate = mapping(entry).get("type") == "sfq.candidate"
        if candidate and config.get("onFailure") != "fail":
            yield ("bindingFilters", name, "config", "onFailure"), config
    holders: list[tuple[Where, JSON]] = [
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


def _only_wraps(kind: type) -> bool:
    return issubclass(kind, ConnectorWrapper) and not issubclass(
        kind, QueueManagerConnector
    )

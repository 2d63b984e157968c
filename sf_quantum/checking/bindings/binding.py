"""The bindings of a workflow: their targets and filters, and checks of their references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from streamflow.core.deployment import DeploymentConfig, Target

from sf_quantum.candidates.targets import status_source, target_name
from sf_quantum.checking.deployments.references import (
    CANDIDATE,
    Deployments,
    deployment_of,
)
from sf_quantum.checking.document import FileProblem, is_misspelt
from sf_quantum.files import JSON, KeyPath, listing, mapping


@dataclass(frozen=True)
class Binding:
    """One entry of ``bindings``.

    :param kind: ``step`` or ``port``
    :param path: path of the step or port in the workflow
    :param references: entries of ``target``, each with its key path in the file
    :param where: key path of the binding in the file
    """

    deployments: Deployments
    kind: str
    path: str
    references: list[tuple[KeyPath, dict[str, JSON]]]
    where: KeyPath
    content: dict[str, JSON]

    @classmethod
    def read(
        cls, deployments: Deployments, bindings: JSON, above: KeyPath
    ) -> Iterator[Binding]:
        """Read the entries that name a step or a port."""
        for number, content in enumerate(map(mapping, listing(bindings))):
            kind = "step" if "step" in content else "port"
            path, target = content.get(kind), content.get("target")
            where: KeyPath = (*above, number)
            below: KeyPath = (*where, "target")
            references = [
                ((*below, index) if isinstance(target, list) else below, mapping(item))
                for index, item in enumerate(listing(target))
            ]
            if isinstance(path, str):
                yield cls(deployments, kind, path, references, where, content)

    @cached_property
    def targets(self) -> dict[KeyPath, Target]:
        """The targets whose deployments exist, by key path in the file."""
        targets = {}
        for where, target in self.references:
            name, service = str(target.get("deployment")), target.get("service")
            kind = self.deployments.get(name).get("type")
            if kind is not None:
                targets[where] = Target(
                    DeploymentConfig(name, str(kind), self.deployments.config(name)),
                    service=str(service) if service is not None else None,
                )
        return targets

    @property
    def quantum_targets(self) -> list[str]:
        """The names of the quantum targets."""
        targets = self.targets.values()
        return [target_name(t) for t in targets if status_source(t, Path()) is not None]

    @property
    def candidates(self) -> list[dict[str, JSON]]:
        """The configurations of the binding's filters of type ``sfq.candidate``."""
        filters = mapping(self.deployments.document.content.get("bindingFilters"))
        names = map(str, listing(self.content.get("filters")))
        entries = [mapping(filters.get(name)) for name in names]
        return [mapping(e.get("config")) for e in entries if e.get("type") == CANDIDATE]

    @property
    def deployment_names(self) -> list[str]:
        """The names of the targets' deployments, even of deployments that do not exist."""
        return [deployment_of(target) for _, target in self.references]

    @property
    def is_sound(self) -> bool:
        """Whether the targets' deployments all exist and have a known connector."""
        names = self.deployment_names
        return bool(names) and all(map(self.deployments.kind, names))

    def check(self, *, is_step: bool) -> Iterator[FileProblem]:
        """Check the targets and the names of the filters.

        :param is_step: whether the path is a step's path, even if its key is ``port``
        """
        deployments, document = self.deployments, self.deployments.document
        if self.content.get("target") == []:
            where, right = (*self.where, "target"), "name a deployment"
            yield document.problem(where, "the list of targets is empty", right)
        seen: list[object] = []
        for where, target in self.references:
            if target in seen:
                right = "remove it, or name another deployment or service"
                what = f"it is the same as target[{seen.index(target)}]"
                yield document.problem(where, what, right)
            seen.append(target)
            yield from deployments.target(target, where)
            # a key ``service`` outside ``target`` is reported as an unknown key
            if self.kind == "step" and "service" not in self.content:
                yield from deployments.unnamed(target, where)
            if self.kind == "port" and not is_step and "workdir" not in target:
                right = "add workdir: the folder that holds the port's data"
                yield document.problem(where, "workdir is missing", right)
        filters = mapping(document.content.get("bindingFilters"))
        misspelt = is_misspelt("bindingFilters", document.content)
        for index, name in enumerate(listing(self.content.get("filters"))):
            if isinstance(name, str) and not misspelt:
                where = (*self.where, "filters", index)
                what = f"bindingFilters has no {name!r}"
                yield from document.unknown(where, name, filters, what)


def check_duplicates(bindings: list[Binding]) -> Iterator[FileProblem]:
    """Find several bindings of the same path; StreamFlow uses only the last binding."""
    seen: dict[tuple[str, PurePosixPath], KeyPath] = {}
    for binding in bindings:
        path = binding.kind, PurePosixPath(binding.path)
        if (first := seen.setdefault(path, binding.where)) is not binding.where:
            document = binding.deployments.document
            where = (*binding.where, binding.kind)
            what = f"{binding.path} is bound in line {document.lines.get(first)}, too"
            right = "keep one binding, which may have several targets"
            yield document.problem(where, what, right)

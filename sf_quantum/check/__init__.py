"""Checks of a StreamFlow file before it runs, which report all problems at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum.check.deployments import Deployments, recovery
from sf_quantum.check.document import Document, FileProblem, UnreadableError
from sf_quantum.check.schema import rules
from sf_quantum.check.targets import Qpus, check_filters
from sf_quantum.check.workflows import Commands, Workflow
from sf_quantum.files import mapping


@dataclass(frozen=True)
class Findings:
    """The result of checking a StreamFlow file.

    :param problems: those in the file itself first, by line, then those in the files
        it names
    :param silent: why a QPU could not be queried, by its target's name
    """

    problems: list[FileProblem]
    workflows: int = 0
    deployments: int = 0
    silent: dict[str, str] = field(default_factory=dict)


def check_file(path: str | Path, commands: Commands = lambda command: {}) -> Findings:
    """Check a StreamFlow file, with the CWL and the inputs that it names.

    The QPUs to which steps are bound are queried whether they can run them now.

    :param commands: gives the options of an ``sfq`` command, by which the inputs of its
        tools are checked
    :raises InputError: if an installed StreamFlow plugin cannot be loaded
    """
    try:
        # a service's configuration that cannot be read is reported here, too
        kind = "StreamFlow file or a service's configuration"
        document = Document.read(Path(path), kind)
    except UnreadableError as error:
        return Findings([error.problem])
    deployments = Deployments(document, rules())
    qpus = Qpus(deployments)
    names = list(mapping(document.content.get("workflows")))
    problems = [
        *rules().check(document),
        *deployments.check(),
        *recovery(document),
        *check_filters(document),
        *(p for name in names for p in Workflow(name, qpus, commands).check()),
    ]
    ordered = sorted(
        # two steps may run the same CWL file
        dict.fromkeys(problems),
        key=lambda p: (p.file != document.name, p.file, p.line or 0),
    )
    return Findings(ordered, len(names), len(deployments.sections), qpus.silent)


__all__ = ["FileProblem", "Findings", "check_file"]

"""Look a StreamFlow file over before anything runs: everything that is wrong, at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum.check import candidates
from sf_quantum.check.deployments import Deployments, recovery
from sf_quantum.check.document import Document, Problem, UnreadableError, mapping
from sf_quantum.check.options import Commands
from sf_quantum.check.qpus import Qpus
from sf_quantum.check.schema import rules
from sf_quantum.check.workflows import Workflow


@dataclass(frozen=True)
class Findings:
    """What was found in a StreamFlow file.

    :param problems: those in the file itself first, by line, then those in the files
        it names
    :param silent: QPUs that could not be asked, and why
    """

    problems: list[Problem]
    workflows: int = 0
    deployments: int = 0
    silent: dict[str, str] = field(default_factory=dict)


def look_over(path: str | Path, commands: Commands = lambda command: {}) -> Findings:
    """Look a StreamFlow file over, with the CWL and the inputs it names.

    The QPUs that its steps are bound to are asked whether they can run them now.

    :param commands: gives the options of a command of ours, by which the inputs that
        reach it are judged
    :returns: all that is wrong
    :raises InputError: if an installed StreamFlow plugin cannot be loaded
    """
    try:
        document = Document.read(Path(path), "StreamFlow file")
    except UnreadableError as error:
        return Findings([error.problem])
    deployments = Deployments(document, rules())
    qpus = Qpus(deployments)
    names = list(mapping(document.content.get("workflows")))
    problems = [
        *rules().check(document),
        *deployments.check(),
        *recovery(document),
        *candidates.scheduler(deployments),
        *candidates.unused(deployments),
        *(p for name in names for p in Workflow(name, qpus, commands).check()),
    ]
    ordered = sorted(
        # the same CWL file may serve two steps
        dict.fromkeys(problems),
        key=lambda p: (p.file != document.name, p.file, p.line or 0),
    )
    return Findings(ordered, len(names), len(deployments.sections), qpus.silent)


__all__ = ["Findings", "Problem", "look_over"]

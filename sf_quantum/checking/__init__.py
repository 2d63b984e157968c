"""Checks of a StreamFlow file before it runs, which report all problems at once.

``check_file`` reads a file and what it names, and returns problems, each with its file and line.
``document`` is a YAML file with its lines, ``schema`` checks its keys, ``workflows`` one of
its workflows, and ``preview`` tells what a run would do now. ``deployments`` checks where
steps may run, ``bindings`` where each of them runs, ``qpus`` those on QPUs; ``cwl`` reads and
checks the steps themselves, ``tools`` those that call ``sfq``.

Imports: candidates, checking/*, qpu, reporting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum.checking.deployments.references import Deployments, recovery
from sf_quantum.checking.deployments.slurm.listings import Listings, bound_deployments
from sf_quantum.checking.document import Document, FileProblem, UnreadableError
from sf_quantum.checking.qpus.availability import Qpus
from sf_quantum.checking.qpus.candidate_filters import check_filters
from sf_quantum.checking.schema import rules
from sf_quantum.checking.tools.command_lines import Commands
from sf_quantum.checking.workflows import Workflow
from sf_quantum.files import mapping


@dataclass(frozen=True)
class Findings:
    """The result of checking a StreamFlow file.

    :param problems: problems in the file itself first, by line, then problems in the
        files it names
    :param remarks: what is odd but runs, in the same order
    :param silent: why a QPU or a Slurm could not be queried, by the name of its target
        or deployment
    """

    problems: list[FileProblem]
    workflows: int = 0
    deployments: int = 0
    silent: dict[str, str] = field(default_factory=dict)
    remarks: list[FileProblem] = field(default_factory=list)


def check_file(path: str | Path, commands: Commands | None = None) -> Findings:
    """Check a StreamFlow file, with the CWL and the inputs that it names.

    The QPUs to which steps are bound are queried whether they can run them now, and Slurm is
    asked for its partitions.

    :param commands: gives the parser of ``sfq``, with which the command lines of its tools
        are checked
    :raises InputError: if an installed StreamFlow plugin cannot be loaded
    """
    try:
        # a service's configuration that cannot be read is reported here, too
        kind = "StreamFlow file or a service's configuration"
        document = Document.read(Path(path), kind, dates=True)
    except UnreadableError as error:
        return Findings([error.problem])
    deployments = Deployments(document, rules())
    qpus = Qpus(document)
    listings = Listings(deployments, bound_deployments(document.content))
    names = list(mapping(document.content.get("workflows")))
    keys = [*rules().check(document)]
    problems = [
        *keys,
        *deployments.check(keys),
        *listings.check(),
        *recovery(document),
        *check_filters(document),
        *(
            problem
            for name in names
            for problem in Workflow(name, deployments, qpus, commands).check()
        ),
    ]
    ordered = sorted(
        # two steps may run the same CWL file
        dict.fromkeys(problems),
        key=lambda p: (p.file != document.name, p.file, p.line or 0),
    )
    return Findings(
        [problem for problem in ordered if not problem.remark],
        len(names),
        len(deployments.sections),
        listings.silent | qpus.silent,
        [problem for problem in ordered if problem.remark],
    )


__all__ = ["FileProblem", "Findings", "check_file"]

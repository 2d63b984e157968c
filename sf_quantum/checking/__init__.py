"""Checks of a StreamFlow file before a run; all problems are reported together.

``check_file`` checks a file and the files that it names, and returns the problems, each with
its file and line. ``document`` reads a YAML file with the line of each key, ``schema`` checks
the keys, ``workflows`` checks one workflow, and ``preview`` predicts what a run would do now.
``deployments`` checks the deployments, ``bindings`` the bindings of steps to deployments,
``qpus`` the steps that run on QPUs, ``cwl`` the CWL files, and ``tools`` the steps that call
``sfq``.

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
from sf_quantum.checking.tools.command_lines import ParserMaker
from sf_quantum.checking.workflows import Workflow
from sf_quantum.files import mapping


@dataclass(frozen=True)
class Findings:
    """The result of checking a StreamFlow file.

    :param problems: problems in the file itself, by line, then problems in the files that it
        names
    :param remarks: suspicious findings that do not prevent a run, in the same order
    :param silent: reasons why a QPU or a Slurm cluster could not be queried, by name of the
        target or deployment
    """

    problems: list[FileProblem]
    workflows: int = 0
    deployments: int = 0
    silent: dict[str, str] = field(default_factory=dict)
    remarks: list[FileProblem] = field(default_factory=list)


def check_file(path: str | Path, parser_for: ParserMaker | None = None) -> Findings:
    """Check a StreamFlow file, with the CWL and the inputs that it names.

    The QPUs to which steps are bound are queried for whether they can run these steps now, and
    Slurm is queried for its partitions.

    :param parser_for: function that returns the parser of ``sfq``, for the command lines of
        tools that call ``sfq``; if it is missing, these are not checked
    :raises InputError: if an installed StreamFlow plugin cannot be loaded
    """
    try:
        # If the file cannot be read, its kind is unknown, so the error names both kinds.
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
            for problem in Workflow(name, deployments, qpus, parser_for).check()
        ),
    ]
    ordered = sorted(
        # Two steps that run the same CWL file report the same problems.
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

"""Checks of a StreamFlow file before it runs, which report all problems at once.

``check_file`` reads a file and what it names, and returns problems, each with its file and line;
``workflows`` checks one workflow, ``bindings`` the targets and filters of its bindings,
``candidate_filters`` the filters of quantum candidates, and ``qpus`` whether the QPUs can run
its steps now. ``cwl`` reads the CWL files and ``parser`` reads them by the engine's own parser,
``cwl_steps`` checks their steps, ``cwl_links`` their links, ``inputs`` the inputs,
``deployments``, ``configurations`` and ``sites`` what connectors and Slurm would refuse,
``sfq_tools`` the command lines of sfq's tools, and ``tool_files`` their files.

Imports: candidates, clustering, connectors, journal, net, protocol, qpu, reporting,
    samplers, service/device, slurm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum.checking.candidate_filters import check_filters
from sf_quantum.checking.command_lines import Commands
from sf_quantum.checking.deployments import Deployments, recovery
from sf_quantum.checking.document import Document, FileProblem, UnreadableError
from sf_quantum.checking.qpus import Qpus
from sf_quantum.checking.schema import rules
from sf_quantum.checking.sites import Sites, bound_deployments
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
    sites = Sites(deployments, bound_deployments(document.content))
    names = list(mapping(document.content.get("workflows")))
    keys = [*rules().check(document)]
    problems = [
        *keys,
        *deployments.check(keys),
        *sites.check(),
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
        sites.silent | qpus.silent,
        [problem for problem in ordered if problem.remark],
    )


__all__ = ["FileProblem", "Findings", "check_file"]

"""Checks of every kind of file that ``sfq check`` accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Required, TypedDict, cast

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping
from sf_quantum.registry import Registry
from sf_quantum.text import plural
from sf_quantum.threads import in_thread

if TYPE_CHECKING:
    from sf_quantum.checking.document import FileProblem
    from sf_quantum.checking.tools.command_lines import ParserMaker

# Functions that make a command's parser. They are loaded as plug-ins, since the command
# imports this package.
_parser_makers: Registry[ParserMaker] = Registry("sf_quantum.commands", "command")


class Finding(TypedDict, total=False):
    """A problem or remark."""

    text: Required[str]
    file: Required[str]
    line: Required[int | None]
    key: str
    what: str
    right: str


@dataclass(frozen=True)
class CheckResult:
    """The findings in a file.

    A problem or remark has the keys ``text``, ``file`` and ``line`` and, in a StreamFlow file,
    also ``key``, ``what`` and ``right``. ``pandas.DataFrame`` accepts a list of problems or
    remarks.

    :param kind: ``workflow``, ``QPU service``, ``workload`` or ``CWL``
    :param problems: findings that keep the file from running
    :param remarks: suspicious findings that do not keep the file from running
    :param silent: reasons why QPUs and Slurm clusters could not be queried, by the name of
        the target or deployment
    :param contents: contents of the file, such as ``2 deployments``
    """

    file: str
    kind: str
    problems: list[Finding]
    remarks: list[Finding] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    contents: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def lines(self) -> list[str]:
        """One line for each finding, and one if there is no problem."""
        lines = [finding["text"] for finding in (*self.problems, *self.remarks)]
        if self.ok:
            lines.append(f"{self.file}: OK ({', '.join(self.contents)})")
        return lines

    def warnings(self) -> list[str]:
        """Return one line per remark, and per QPU or Slurm cluster that was not queried."""
        silent = [f"{name} {why}" for name, why in self.silent.items()]
        return [*(remark["text"] for remark in self.remarks), *silent]

    def to_json(self) -> JSON:
        """Return the findings as ``sfq check --json`` prints them."""
        return {
            "file": self.file,
            "kind": self.kind,
            "ok": self.ok,
            "problems": cast("list[JSON]", [*self.problems]),
            "remarks": cast("list[JSON]", [*self.remarks]),
            "silent": {**self.silent},
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def check(file: str | Path) -> CheckResult:
    """Check a StreamFlow file, a QPU service's configuration, or a workload of ``sfq plan``.

    Nothing is run. For a StreamFlow file, the check queries the QPUs for whether they can run
    the steps, and the Slurm clusters for their partitions.

    :returns: the findings; if the file cannot be read, this is a problem among them
    """
    # A notebook runs an event loop in this thread, and the queries of QPUs need another
    # loop, so the check runs in another thread.
    return in_thread(partial(_check, str(file))).result()


def refuse_problems(result: CheckResult) -> CheckResult:
    """Return the findings in a file, unless it has problems.

    :raises ValidationErrors: if the file has problems; the error lists all of them
    """
    from sf_quantum.validation import ValidationErrors

    if not result.ok:
        raise ValidationErrors([problem["text"] for problem in result.problems])
    return result


def _check(file: str) -> CheckResult:
    """Check one file of any kind."""
    if (other := _other_findings(Path(file))) is not None:
        kind, lines = other
        problems = [Finding(text=line, file=file, line=None) for line in lines]
        return CheckResult(file, kind, problems, contents=[kind])
    # Imported here, since the import of StreamFlow takes too long for --help.
    from sf_quantum.checking import check_file

    findings = check_file(file, _parser_makers.load("sfq"))
    return CheckResult(
        file,
        "workflow",
        [*map(_finding, findings.problems)],
        [*map(_finding, findings.remarks)],
        findings.silent,
        [
            plural(findings.workflows, "workflow"),
            plural(findings.deployments, "deployment"),
        ],
    )


def _finding(problem: FileProblem) -> Finding:
    return {
        "text": str(problem),
        "file": problem.file,
        "line": problem.line,
        "key": problem.key,
        "what": problem.what,
        "right": problem.right,
    }


def _other_findings(path: Path) -> tuple[str, list[str]] | None:
    """Return the kind of a file and the findings in it; ``None`` for a StreamFlow file."""
    from sf_quantum import yaml
    from sf_quantum.validation import ValidationErrors

    try:
        content = yaml.read(path, "configuration")
    except InputError:
        return None  # the check of StreamFlow files reports the error and its line
    if "cwlVersion" in mapping(content):
        what = "a CWL document is checked with the StreamFlow file that names it"
        return "CWL", [f"{path}: {what}: give that file"]
    kind = _kind(mapping(content))
    try:
        if kind == "workload":
            from sf_quantum.planning.workloads import reading

            reading.recorded(reading.checked(content, path), path)
        elif kind == "QPU service":
            from sf_quantum.service.check import check as check_service

            check_service(path, {}, {})
        else:
            return None
    except ValidationErrors as error:
        return kind, error.lines
    except InputError as error:
        return kind, [str(error)]
    return kind, []


def _kind(content: Mapping[str, JSON]) -> str:
    from sf_quantum.validation import STREAMFLOW, likeliest

    if content.keys() >= STREAMFLOW:
        return "workflow"
    # Imported here, since the import of the service takes a second.
    from sf_quantum.planning.workloads.workload import Workload
    from sf_quantum.service.config import Configuration

    kinds = {
        "workflow": STREAMFLOW,
        "QPU service": Configuration.model_fields,
        "workload": Workload.model_fields,
    }
    return likeliest(content, kinds)

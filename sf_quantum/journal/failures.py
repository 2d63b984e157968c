"""The description of a job's failure: exit code, last lines of its errors, and a remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sf_quantum.text import escaped, shortened

LAST_LINES = 20
LAST_CHARACTERS = 4000
# Remedies by pattern in a job's output or Slurm's report; the first match is used.
_REMEDIES = {
    re.compile(pattern): remedy
    for pattern, remedy in {
        r"is TIMEOUT": "give the step more time: `time` of its service in the StreamFlow "
        "file, or ToolTimeLimit in CWL",
        r"is OUT_OF_MEMORY|MemoryError|[Oo]ut of memory|oom-kill": "give the step more "
        "memory: ramMin in its CWL requirements, or `mem` of its service",
        r"is NODE_FAIL|is PREEMPTED|is BOOT_FAIL": "add a failureManager to the StreamFlow "
        "file, which runs such a job again",
        r"No module named '?([\w.]+)": "install the module {0} for the Python of {where}"
        "{export}",
        r"No suitable token processors in ([\w.-]+):": "the command ended, but did not leave "
        "its output {0} as its CWL file declares it: see its `type` and `glob`, or its key in "
        "cwl.output.json",
        r"database is locked": "wait until the other run with this database has ended, or "
        "give each StreamFlow file a `database` of its own",
        r"No space left on device": "free space on the disk of {where}",
        r"[Pp]ermission denied": "check who may read, write or execute it on {where}",
    }.items()
}
_BY_EXIT_CODE = {
    75: "try again later, or add a failureManager to the StreamFlow file",
    126: "make the step's command executable on {where}",
    127: "install the step's command on {where}, or put it on the PATH there{export}",
    137: "if nobody has killed it, give the step more memory",
}
# added for a service of a batch system: sbatch(1) passes the environment to the job unless
# `export` is set
_EXPORT = (
    "; if its service has `export` without ALL, the job lacks the driver's variables, such as "
    "PATH: add ALL"
)

# parts of CWL by the suffixes of the steps that StreamFlow adds to evaluate them
_PARTS = {
    re.compile(pattern): part
    for pattern, part in {
        r"(?:-scatter)?-value-from-transformer$": "valueFrom of {0}",
        r"(?:-scatter)?-step-default-transformer$|-default$": "the default of {0}",
        r"-loop-when$": "loopWhen of {0}",
        r"-when$": "when of {0}",
        r"-gather(?:-.*)?$": "the gathering of {0}",
        r"-(?:empty-)?scatter(?:-.*)?$": "the scatter of {0}",
        r"-loop-.*$": "the loop of {0}",
        r"-collector.*$": "the workflow's output {0}",
        r"-injector.*$": "the workflow's input {0}",
        r"-token-transformer$": "the value of {0}",
        r"-list-merge-combinator$|-list-to-element$": "the sources of {0}",
        r"-transformer$": "pickValue of {0}",
    }.items()
}
# cwl-utils's report of an error in JavaScript: the error is after the script, and before the
# stack of Node.js
_SCRIPT = re.compile(r"script was:.*?\nstderr was: '(.*)", re.DOTALL)


def without_script(message: str) -> str:
    """Shorten the report of an error in JavaScript; return any other message unchanged.

    The reported script begins with all inputs, and the stack of Node.js follows the error.
    """
    match = _SCRIPT.search(message)
    if match is None:
        return message
    lines = [line.strip() for line in match[1].strip("'\n").splitlines()]
    where = next((one for one in lines if one.startswith("(function(){")), "")
    why = next((one for one in lines if re.match(r"\w*Error\b", one)), "")
    script = where.removeprefix("(function(){").removesuffix("})()")
    why = why or next((line for line in lines if line), "no reason given")
    return f"JavaScript: {why}{f' in {script}' if script else ''}"


def part_of_workflow(step: str) -> str:
    """Return the part of a CWL workflow that a step added by StreamFlow evaluates.

    :param step: path of this step, such as ``/solve/problem-value-from-transformer``
    """
    name = step.removeprefix("/").removesuffix("/__schedule__")
    for suffix, part in _PARTS.items():
        if suffix.search(name):
            return part.format(suffix.sub("", name))
    return name


def last_lines(text: str) -> str:
    """Return the end of a text, at most 20 lines and 4,000 characters."""
    lines = text[-LAST_CHARACTERS:].strip().splitlines()[-LAST_LINES:]
    return "\n".join(line.rstrip() for line in lines)


def message_lines(text: str) -> str:
    """Like :func:`last_lines`, but keep the first line, which names a message's subject."""
    kept, first = last_lines(text), text.strip().partition("\n")[0].rstrip()
    return kept if kept.startswith(first) else f"{shortened(first)}\n...\n{kept}"


def why(exit_code: int | None, error: str) -> str:
    """Return the line of an error that states the cause; empty if there is none.

    For a command, this is the last line; for a message of StreamFlow, or of Slurm about a
    job that Slurm has ended, the first line.
    """
    lines = [line.strip() for line in error.splitlines() if line.strip()] or [""]
    return (
        lines[0].removesuffix("; its last lines:") if exit_code is None else lines[-1]
    )


def remedy(exit_code: int | None, error: str, where: str) -> str:
    """Return the remedy for a failure; empty if no remedy is known.

    :param error: last lines of the job's errors
    :param where: deployment of the job, or ``deployment/service`` if it has a service
    """
    export = _EXPORT if "/" in where else ""
    for pattern, text in _REMEDIES.items():
        if match := pattern.search(error):
            return text.format(*match.groups(), where=where, export=export)
    return _BY_EXIT_CODE.get(exit_code or 0, "").format(where=where, export=export)


def described(
    job: str, where: str, exit_code: int | None, error: str, more: Sequence[str] = ()
) -> str:
    """Return lines that describe which job failed, where, and why.

    :param job: name of the job, ``/step/tag``
    :param more: lines to add, such as the path of the log
    """
    lines = [_headline(job, where, exit_code, error)]
    lines += [f"  {escaped(line)}" for line in error.splitlines()]
    if hint := remedy(exit_code, error, where or "its location"):
        lines.append(f"remedy: {hint}")
    return "\n".join([*lines, *more])


def summarised(job: str, where: str, exit_code: int | None, error: str) -> str:
    """Return one line that describes which job failed, where, and why."""
    headline = _headline(job, where, exit_code, error)
    return f"{headline} {why(exit_code, error)}".rstrip()


def _headline(job: str, where: str, exit_code: int | None, error: str) -> str:
    place = f" on {where}" if where else ""
    code = "" if exit_code is None else f" with exit code {exit_code}"
    return f"{job}{place} failed{code}{':' if error else ', and printed nothing'}"

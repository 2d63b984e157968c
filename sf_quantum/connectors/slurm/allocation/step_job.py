"""A job of the workflow that runs on Slurm, and the reading of its output."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport.answers import (
    JobOutcome,
)
from sf_quantum.connectors.slurm.transport.login import LoginNode

# limits on the end of a command's errors that a message quotes
LAST_LINES = 20
LAST_BYTES = 8192


@dataclass(frozen=True)
class StepJob:
    """A job of the workflow.

    :param body: job script, which redirects the command's output to its files
    :param stdout: file for the command's standard output; ``None`` to return the output
    :param stderr: file for the command's standard error; ``None`` to return the errors
    :param seconds: time limit of the job; ``None`` for the time limit of the service
    """

    name: str
    service: SlurmService
    body: str
    workdir: str | None = None
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    seconds: int | None = None

    @property
    def time_limit(self) -> str | None:
        """The time limit in sbatch's format ``minutes:seconds``."""
        limit = self.seconds
        return None if limit is None else f"{limit // 60}:{limit % 60:02}"


class AllocationGone(Exception):
    """An allocation ended or proved unusable before the job began."""


def with_limit(job: StepJob, outcome: JobOutcome) -> JobOutcome:
    """Return the outcome; as a timeout, if the job's script ended itself at its time limit."""
    began, ended = outcome.started, outcome.ended
    if job.seconds is None or outcome.exit_code != scripts.LATE or not outcome.plain:
        return outcome
    if began is None or ended is None or ended - began < job.seconds:
        return outcome
    reason = f"its time limit of {job.seconds} s"
    return replace(outcome, state="TIMEOUT", reason=reason)


async def read_result(
    login: LoginNode,
    job: StepJob,
    outcome: JobOutcome,
    output: str,
    mark: JobMark | None,
    errors: str = "",
) -> JobOutcome:
    """Return the outcome of a job with the output of its job script.

    :param output: the script's output files, one per line; empty if there is none
    :param mark: the job's mark, which states the size of the output
    :param errors: the script's files for standard error, if they differ from the output files
    :raises WorkflowExecutionException: if the output cannot be read
    """
    if outcome.good:
        if mark is not None and mark.output_bytes == 0:
            return outcome
        try:
            text = await login.read(f"cat {_quoted(output)}")
        except WorkflowExecutionException:
            if job.stdout is None:
                raise
            return outcome  # the result is in the file; only further output is lost
        return replace(outcome, output=text)
    try:
        # Messages of sfq lease and of Slurm come first, then messages of the command.
        last = await _last_lines(
            login, job, f"{output}\n{errors}".strip(), job.stderr or ""
        )
        last = last or await _last_lines(login, job, job.stdout or "")
        lines = f"; its last lines:\n{last}" if last else "; it printed nothing"
    except WorkflowExecutionException:
        return unreadable(outcome)
    return replace(outcome, output=f"{outcome.sentence()}{lines}")


def unreadable(outcome: JobOutcome) -> JobOutcome:
    """Return the outcome of a failed job whose output cannot be read."""
    text = f"{outcome.sentence()}; its output cannot be read"
    return replace(outcome, output=text)


async def _last_lines(login: LoginNode, job: StepJob, *groups: str) -> str:
    """Read the last lines of each group of files; an empty group has none."""
    tails = [
        # sed adds a missing line break at the end, so that the next group begins a new line.
        f"tail -q -c {LAST_BYTES} {_quoted(files)} 2>/dev/null | tail -n {LAST_LINES} | "
        "sed '$a\\'"
        for files in groups
        if files
    ]
    if not tails:
        return ""
    folder = f"cd {shlex.quote(job.workdir)} 2>/dev/null; " if job.workdir else ""
    return await login.read(f"{folder}{'; '.join(tails)}")


def _quoted(files: str) -> str:
    """Return the names of files, given one per line, quoted for the shell.

    An array has one file for each task.
    """
    return " ".join(shlex.quote(file) for file in files.splitlines())

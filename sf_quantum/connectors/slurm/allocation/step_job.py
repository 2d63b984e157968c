"""A job of the workflow as a step of an allocation, and how its output is read."""

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

LAST_LINES = 20
LAST_BYTES = 8192


@dataclass(frozen=True)
class StepJob:
    """A job of the workflow.

    :param body: the job script, which redirects the command's output to its files
    :param stdout: the file of the command's standard output, or None to return the output
    :param stderr: the file of its standard error, or None to return the errors
    :param seconds: the time limit, None for the time limit of the service
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
        """The time limit in the format ``minutes:seconds`` of ``sbatch``."""
        limit = self.seconds
        return None if limit is None else f"{limit // 60}:{limit % 60:02}"


class AllocationGone(Exception):
    """An allocation ended or proved unusable before the job began."""


def with_limit(job: StepJob, outcome: JobOutcome) -> JobOutcome:
    """Return an outcome, as a timeout if the job's script has ended at its time limit."""
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
    """Add to the outcome of a job what the job script has printed.

    :param output: the script's output files, one per line
    :param mark: the job's mark, which shows whether the output is empty
    :param errors: the script's files for standard error, if they are not those of its output
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
            return outcome  # the result is in the file, without what else was printed
        return replace(outcome, output=text)
    try:
        # The messages of sfq lease and of Slurm precede those of the command.
        last = await _last_lines(login, job, f"{output}\n{errors}", job.stderr or "")
        last = last or await _last_lines(login, job, job.stdout or "")
        lines = f"; its last lines:\n{last}" if last else "; it printed nothing"
    except WorkflowExecutionException:
        lines = "; its output cannot be read"
    return replace(outcome, output=f"{outcome.sentence()}{lines}")


async def _last_lines(login: LoginNode, job: StepJob, *groups: str) -> str:
    """Read the last lines of each group of files; an empty group has none."""
    tails = [
        # sed ends the last line, so that the next group begins a new one
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
    """Files, one per line (an array has one for each task), quoted for the shell."""
    return " ".join(shlex.quote(file) for file in files.splitlines())

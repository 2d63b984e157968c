"""``per-step``: each job is a Slurm job of its own.

The module also has what all strategies share: the job, and how its output is read.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import dataclass, replace

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import answers, scripts
from sf_quantum.connectors.slurm.answers import JobOutcome
from sf_quantum.connectors.slurm.job import BatchJob, NodeUsage
from sf_quantum.connectors.slurm.login import LoginNode
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.steps import quantum_steps

LAST_LINES = 20
LAST_BYTES = 8192
# the connection may be lost for a while, or a slow file system show a file late
READ_ATTEMPTS = 5
READ_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class StepJob:
    """A job of the workflow.

    :param name: StreamFlow's name of the job
    :param body: the job script
    :param stdout: a file, or None to return the output
    :param stderr: a file, or None for that of ``stdout``
    :param seconds: the time limit, None for that of the service
    """

    name: str
    service: SlurmService
    body: str
    workdir: str | None = None
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    seconds: int | None = None


async def run(queue: SlurmQueue, job: StepJob) -> JobOutcome:
    """Submit a job and wait for its end; the job is cancelled with the caller.

    :raises WorkflowExecutionException: if Slurm refuses it
    """
    requested = time.time()
    usage = NodeUsage(queue.deployment, job.service, "per-step", job=job.name)
    array = "array" in job.service.options or scripts.has_option(
        job.body, "-a", "--array"
    )
    batch_job = BatchJob(f"job {job.name}", usage, array=array)
    login, key = queue.login, batch_job.key
    output = own_output = scripts.path(login.spool, key, "out")
    await queue.submit(
        batch_job,
        _options(job, own_output),
        job.body if array else scripts.job(login.spool, key, job.body),
    )
    if job.service.quantum:
        quantum_steps.submitted(job.name, queue.deployment, batch_job.slurm_job)
    try:
        if scripts.has_option(job.body, "-e", "--error") and job.stderr is None:
            job = replace(job, stderr=await _redirected(login, batch_job, "StdErr"))
        if scripts.has_option(job.body, "-o", "--output") and job.stdout is None:
            output = await _redirected(login, batch_job, "StdOut")
        # a cancelled future would count as the end of the job
        outcome = await asyncio.shield(batch_job.ended)
    except BaseException:
        await queue.cancel(batch_job)
        queue.abandon(batch_job)
        raise
    usage.record(job.name, requested, outcome)
    # the mark has the size of the default output file only
    mark = batch_job.mark if output == own_output else None
    return await read_result(login, job, outcome, output, mark)


async def read_result(
    login: LoginNode,
    job: StepJob,
    outcome: JobOutcome,
    output: str,
    mark: JobMark | None,
) -> JobOutcome:
    """Add the output of a job to its outcome.

    :param output: the output files, one per line
    :param mark: the job's mark, which shows whether the output is empty
    :raises WorkflowExecutionException: if the output cannot be read
    """
    if outcome.good:
        if job.stdout is not None or (mark is not None and mark.output_bytes == 0):
            return outcome
        return replace(outcome, output=await _read(login, f"cat {_quoted(output)}"))
    errors = job.stderr or job.stdout
    file = _quoted(errors or output)
    folder = f"cd {shlex.quote(job.workdir)} && " if job.workdir and errors else ""
    tail = f"{folder}tail -q -c {LAST_BYTES} {file} 2>/dev/null | tail -n {LAST_LINES}"
    try:
        last = await _read(login, tail)
        lines = f"; its last lines:\n{last}" if last else "; it printed nothing"
    except WorkflowExecutionException:
        lines = "; its output cannot be read"
    return replace(outcome, output=f"{outcome.sentence()}{lines}")


async def _redirected(login: LoginNode, job: BatchJob, key: str) -> str:
    """The files to which the job's template redirects a stream, one per line."""
    show = f"scontrol show job {job.slurm_job} | sed -n 's/^ *{key}=//p' | sort -u"
    return await _read(login, show)


async def _read(login: LoginNode, command: str) -> str:
    """The output of a command, which is run again if it fails."""
    for _ in range(READ_ATTEMPTS):
        text, code = await login.ask(command)
        if code == 0:
            return text.strip()
        await asyncio.sleep(READ_PAUSE_SECONDS)
    raise WorkflowExecutionException(
        f"The output of a job cannot be read: {answers.in_one_line(text)}"
    )


def _quoted(files: str) -> str:
    """Files, one per line (an array has one for each task), quoted for the shell."""
    return " ".join(shlex.quote(file) for file in files.splitlines())


def _options(job: StepJob, output: str) -> str:
    """The options of ``sbatch`` of the job, followed by those of the service."""
    files = {"input": job.stdin, "output": job.stdout, "error": job.stderr}
    if job.stdout is None and not scripts.has_option(job.body, "-o", "--output"):
        files["output"] = output
    # without the patterns that sbatch(1) replaces
    options = {name: file.replace("%", "%%") for name, file in files.items() if file}
    if job.workdir:
        options["chdir"] = job.workdir
    named = scripts.has_option(job.body, "-J", "--job-name")
    if not job.service.options.get("jobName") and not named:
        options["job-name"] = job.name.strip("/")
    words = [f"--{name}={shlex.quote(word)}" for name, word in options.items()]
    instead = {} if job.seconds is None else {"time": time_limit(job.seconds)}
    return " ".join([*words, *job.service.words(**instead)])


def time_limit(seconds: int) -> str:
    """A time limit in the format ``minutes:seconds`` of ``sbatch``."""
    return f"{seconds // 60}:{seconds % 60:02}"

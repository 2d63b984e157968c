"""A job on Slurm: what it is, what comes of it, and the plain way to run it."""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import dataclass, replace
from typing import Protocol

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import options, script, submission
from sf_quantum.connectors.slurm.account import Entry
from sf_quantum.connectors.slurm.options import Service
from sf_quantum.connectors.slurm.queue import Queue, Waiting
from sf_quantum.connectors.slurm.states import Outcome
from sf_quantum.connectors.steps import QuantumSteps

LAST_LINES = 20
LAST_BYTES = 8192
# a connection that was lost comes back, a file system is slow, or neither ever
ASKED = 5
AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """A job of the workflow, as Slurm is to run it.

    :param name: StreamFlow's
    :param service: what it asks for
    :param service_name: None for the deployment's default
    :param body: the job script
    :param workdir: where it runs
    :param stdin: a file, or None
    :param stdout: a file, or None for the job's own output
    :param stderr: a file, or None for where its output goes
    :param seconds: its time limit, None for the service's
    """

    name: str
    service: Service
    service_name: str | None
    body: str
    workdir: str | None = None
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    seconds: int | None = None


@dataclass(frozen=True)
class Result:
    """What came of a job.

    :param output: what it printed, as far as that went to no file of its own; of a job
        that failed, what Slurm says and the last lines of its errors
    """

    outcome: Outcome
    output: str


class Strategy(Protocol):
    """A way to take and give back nodes."""

    async def run(self, job: Job) -> Result:
        """Run a job to its end.

        :raises WorkflowExecutionException: if Slurm refuses it
        """

    async def close(self) -> None:
        """Give everything back."""


class PerStep:
    """Each job is a submission of its own and holds nothing afterwards.

    :param deployment: its name, for the account
    """

    def __init__(self, deployment: str, queue: Queue, phases: QuantumSteps) -> None:
        self._deployment = deployment
        self._queue = queue
        self._phases = phases

    async def run(self, job: Job) -> Result:
        """Submit a job, wait for its end; cancel it if it is not wanted any more."""
        submitted = time.time()
        service = job.service
        entry = Entry(
            *(self._deployment, job.service_name, "per-step"),
            *(service.partition, service.on_quantum_nodes, job.name),
        )
        spool = self._queue.login.spool
        array = "array" in service.options or options.says(job.body, "-a", "--array")
        waiting = await self._queue.submit(
            f"job {job.name}",
            lambda key: _options(job, script.path(spool, key, "out")),
            lambda key: script.job(spool, key, job.body, marked=not array),
            entry,
            array,
        )
        self._phases.submitted(job.name, self._deployment, waiting.slurm_job)
        output = own = script.path(spool, waiting.key, "out")
        try:
            if options.says(job.body, "-e", "--error") and job.stderr is None:
                job = replace(job, stderr=await self._file(waiting, "StdErr"))
            if options.says(job.body, "-o", "--output") and job.stdout is None:
                output = await self._file(waiting, "StdOut")
            # the future itself, as it was given up, would pass for a job that has ended
            outcome = await asyncio.shield(waiting.over)
        except BaseException:
            await self._queue.cancel(waiting)
            self._queue.forget(waiting)
            raise
        entry.record(job.name, submitted, outcome)
        # which counts what is in our file
        mark = waiting.mark if output == own else None
        return await result(self._queue, job, outcome, output, mark)

    async def close(self) -> None:
        """There is nothing that outlives its job."""

    async def _file(self, waiting: Waiting, key: str) -> str:
        """Where the job's own template sends what it prints: a line for each file."""
        shown = (
            f"scontrol show job {waiting.slurm_job} | sed -n 's/^ *{key}=//p' | sort -u"
        )
        return await _asked(self._queue, shown)


async def result(
    queue: Queue, job: Job, outcome: Outcome, output: str, mark: script.Mark | None
) -> Result:
    """Read what a job left.

    :param output: the file with what it printed
    :param mark: which tells that it printed nothing
    :returns: the result
    :raises WorkflowExecutionException: if what it printed cannot be fetched
    """
    if outcome.good:
        own = job.stdout is None
        if not own or (mark is not None and mark.output_bytes == 0):
            return Result(outcome, "")
        return Result(outcome, await _asked(queue, f"cat {_quoted(output)}"))
    errors = job.stderr or job.stdout
    file = _quoted(errors if errors else output)
    folder = f"cd {shlex.quote(job.workdir)} && " if job.workdir and errors else ""
    tail = f"{folder}tail -q -c {LAST_BYTES} {file} 2>/dev/null | tail -n {LAST_LINES}"
    try:
        last = await _asked(queue, tail)
        lines = f"; its last lines:\n{last}" if last else "; it printed nothing"
    except WorkflowExecutionException:
        lines = "; what it printed cannot be read"
    return Result(outcome, f"{outcome.sentence()}{lines}")


async def _asked(queue: Queue, command: str) -> str:
    """What a command prints, also over a connection that is lost meanwhile.

    :raises WorkflowExecutionException: if it fails time and again
    """
    for _ in range(ASKED):
        try:
            text, code = await queue.login.run(command)
        except WorkflowExecutionException as error:
            text, code = str(error), submission.UNKNOWN
        if code == 0:
            return text.strip()
        await asyncio.sleep(AGAIN_SECONDS)
    raise WorkflowExecutionException(
        f"What a job printed cannot be read: {submission.words(text)}"
    )


def _quoted(files: str) -> str:
    """Files for a shell: an array has one for each task."""
    return " ".join(shlex.quote(file) for file in files.splitlines())


def _options(job: Job, output: str) -> str:
    """The options of ``sbatch`` that come from the job, then the service's."""
    words = {
        "chdir": job.workdir,
        "input": _literal(job.stdin),
        "output": _literal(job.stdout),
        "error": _literal(job.stderr),
    }
    if job.stdout is None and not options.says(job.body, "-o", "--output"):
        words["output"] = _literal(output)
    if not job.service.options.get("jobName") and not options.says(
        job.body, "-J", "--job-name"
    ):
        words["job-name"] = job.name.strip("/")
    given = [f"--{name}={shlex.quote(value)}" for name, value in words.items() if value]
    instead = {} if job.seconds is None else {"time": limit(job.seconds)}
    return " ".join([*given, *job.service.words(**instead)])


def _literal(path: str | None) -> str | None:
    """A path in which sbatch(1) replaces nothing."""
    return path and path.replace("%", "%%")


def limit(seconds: int) -> str:
    """A time limit as ``sbatch`` reads it, whose parts have no bounds."""
    return f"{seconds // 60}:{seconds % 60:02}"

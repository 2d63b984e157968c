"""A job on Slurm: what it is, what comes of it, and the plain way to run it."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from typing import Protocol

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import options, script
from sf_quantum.connectors.slurm.account import Entry
from sf_quantum.connectors.slurm.options import Service
from sf_quantum.connectors.slurm.queue import Queue
from sf_quantum.connectors.slurm.states import Outcome

LAST_LINES = 20


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

    def __init__(self, deployment: str, queue: Queue) -> None:
        self._deployment = deployment
        self._queue = queue

    async def run(self, job: Job) -> Result:
        """Submit a job, wait for its end; cancel it if it is not wanted any more."""
        submitted = time.time()
        service = job.service
        entry = Entry(
            *(self._deployment, job.service_name, "per-step"),
            *(service.partition, service.quantum, job.name),
        )
        spool = self._queue.login.spool
        array = "array" in service.options
        waiting = await self._queue.submit(
            job.name,
            lambda key: _options(job, script.path(spool, key, "out")),
            lambda key: script.job(spool, key, job.body, marked=not array),
            entry,
            array,
        )
        output = script.path(spool, waiting.key, "out")
        try:
            if options.says(job.body, "-o", "--output") and job.stdout is None:
                output = await self._output(waiting.slurm_job)
            outcome = await waiting.over
        except BaseException:
            await self._queue.cancel(waiting)
            self._queue.forget(waiting)
            raise
        entry.record(job.name, submitted, outcome)
        return await result(self._queue, job, outcome, output, waiting.mark)

    async def close(self) -> None:
        """There is nothing that outlives its job."""

    async def _output(self, slurm_job: str) -> str:
        """Where the job's own template sends its output."""
        text, _ = await self._queue.login.run(
            f"scontrol --oneliner show job {slurm_job} | sed -n 's/.* StdOut=\\([^ ]*\\).*/\\1/p'"
        )
        return text.strip()


async def result(
    queue: Queue, job: Job, outcome: Outcome, output: str, mark: script.Mark | None
) -> Result:
    """Read what a job left.

    :param output: the file with what it printed
    :param mark: which tells that it printed nothing
    :returns: the result
    """
    if outcome.good:
        own = job.stdout is None
        if not own or (mark is not None and mark.output_bytes == 0):
            return Result(outcome, "")
        return Result(outcome, await _read(queue, f"cat {shlex.quote(output)}"))
    errors = job.stderr or job.stdout
    file = shlex.quote(errors if errors else output)
    folder = f"cd {shlex.quote(job.workdir)} && " if job.workdir and errors else ""
    last = await _read(queue, f"{folder}tail -n {LAST_LINES} {file}")
    lines = f"; its last lines:\n{last}" if last else "; it printed nothing"
    return Result(outcome, f"{outcome.sentence()}{lines}")


async def _read(queue: Queue, command: str) -> str:
    try:
        text, code = await queue.login.run(f"{command} 2>/dev/null")
    except WorkflowExecutionException:
        return ""
    return text.strip() if code == 0 else ""


def _options(job: Job, output: str) -> str:
    """The options of ``sbatch`` that come from the job, then the service's."""
    words = {
        "chdir": job.workdir,
        "input": job.stdin,
        "output": job.stdout and job.stdout.replace("%", "%%"),
        "error": job.stderr and job.stderr.replace("%", "%%"),
    }
    if job.stdout is None and not options.says(job.body, "-o", "--output"):
        words["output"] = output
    if not job.service.options.get("jobName") and not options.says(
        job.body, "-J", "--job-name"
    ):
        words["job-name"] = job.name.strip("/")
    given = [f"--{name}={shlex.quote(value)}" for name, value in words.items() if value]
    instead = {} if job.seconds is None else {"time": limit(job.seconds)}
    return " ".join([*given, *job.service.words(**instead)])


def limit(seconds: int) -> str:
    """A time limit as ``sbatch`` reads it, whose parts have no bounds."""
    return f"{seconds // 60}:{seconds % 60:02}"

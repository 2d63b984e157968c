"""``per-step``: each job of the workflow is a separate Slurm job."""

from __future__ import annotations

import asyncio
import os
import shlex
import time

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors import hints
from sf_quantum.connectors.quantum.running_steps import quantum_steps
from sf_quantum.connectors.slurm import sbatch_options, scripts
from sf_quantum.connectors.slurm.allocation.step_job import (
    StepJob,
    read_result,
    unreadable,
    with_limit,
)
from sf_quantum.connectors.slurm.job import BatchJob
from sf_quantum.connectors.slurm.node_usage import NodeUsage
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.refusals import SlurmRefusal
from sf_quantum.connectors.slurm.sbatch_options import JobOptions
from sf_quantum.connectors.slurm.transport.answers import JobOutcome

# Pause between two checks whether Slurm has started a quantum job.
START_PAUSE_SECONDS = 1.0


async def run_alone(queue: SlurmQueue, job: StepJob) -> JobOutcome:
    """Run a job as a separate Slurm job, which is cancelled if the caller is cancelled.

    :raises SlurmRefusal: if Slurm refuses the job, or reports that it will never start the
        job, and the job can run on another target
    :raises WorkflowExecutionException: if the tasks of an array would write to one file, or
        the output of a job that succeeded cannot be read
    """
    requested = time.time()
    usage = NodeUsage(queue.deployment, job.service, "per-step", job=job.name)
    if array := job.service.is_array(job.body):
        _refuse_shared_files(job)
    batch_job = BatchJob(f"job {job.name}", usage, array=array)
    login = queue.login
    own_output = scripts.path(login.spool, batch_job.key, "out")
    await queue.submit(
        batch_job,
        _options(job, _pattern(login.spool, batch_job)),
        _script(queue, batch_job, job),
        note=sbatch_options.note(job.service),
        clusters=job.service.clusters,
    )
    starting = None
    if job.service.quantum:
        quantum_steps.submitted(job.name, queue.deployment, batch_job.slurm_job)
        starting = asyncio.create_task(_report_start(batch_job, job.name))
    try:
        # Slurm may forget the job when it has ended. The files of an array are known only
        # when its tasks have begun.
        streams = None if array else await _files(queue, batch_job, job)
        # wait() and shield() leave the future uncancelled; a cancelled future would count as
        # the job's end
        if hints.of(job.name).has_alternative:
            either: list[asyncio.Future[JobOutcome] | asyncio.Future[str]]
            either = [batch_job.ended, batch_job.pending.refusal]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not batch_job.ended.done():
                reason = batch_job.pending.refusal.result()
                raise SlurmRefusal(f"Slurm will never start {batch_job.name}: {reason}")
        outcome = await asyncio.shield(batch_job.ended)
    except BaseException:
        await queue.cancel(batch_job)
        batch_job.abandoned()
        raise
    finally:
        if starting is not None:
            starting.cancel()
    outcome = with_limit(job, outcome)
    usage.record(job.name, requested, outcome)
    try:
        output, errors = streams or await _files(queue, batch_job, job, outcome)
    except WorkflowExecutionException:
        if outcome.good:
            raise
        return unreadable(outcome)
    if outcome.good and not output:
        # An empty result would be a wrong one.
        raise WorkflowExecutionException(
            f"Job {job.name}, Slurm job {outcome.slurm_job}: Slurm no longer knows the job's "
            "output files"
        )
    # the mark states the size of the default output file only, so it is not used for other
    # files
    mark = batch_job.mark if output == own_output else None
    return await read_result(login, job, outcome, output, mark, errors)


def _refuse_shared_files(job: StepJob) -> None:
    """Refuse an array whose tool redirects output to a file.

    Each task would truncate and overwrite the file.

    :raises WorkflowExecutionException: if the tool redirects output to a file
    """
    for file in (job.stdout, job.stderr):
        if file is not None and file != os.devnull:
            raise WorkflowExecutionException(
                f"Job {job.name}: the tasks of an array would overwrite each other's output in "
                f"{file}: remove the option array from the service "
                f"{job.service.name}, and let the workflow scatter the step"
            )


def _pattern(spool: str, batch_job: BatchJob) -> str:
    """Return the job's output file for ``sbatch``: one file, or one for each task."""
    # A doubled % keeps sbatch(1) from replacing patterns in the names of files.
    task = "-%a" if batch_job.array else ""
    return scripts.path(spool.replace("%", "%%"), f"{batch_job.key}{task}", "out")


async def _files(
    queue: SlurmQueue,
    batch_job: BatchJob,
    job: StepJob,
    outcome: JobOutcome | None = None,
) -> tuple[str, str]:
    """Return the files of a job's standard output, and those of its errors if they differ.

    Each of the two strings has one file per line; for an array, the files of its tasks in
    order, and of those tasks only that have started.

    :param outcome: outcome of the array; ``None`` for another job
    :raises WorkflowExecutionException: if the files are unknown
    """
    output = scripts.path(queue.login.spool, batch_job.key, "out")
    errors = ""
    if scripts.has_option(job.body, "-o", "--output") and job.stdout is None:
        output = await queue.controller.files(batch_job.slurm_job, "StdOut")
    elif batch_job.array:
        stem = scripts.path(queue.login.spool, batch_job.key, "")[:-1]
        listing = f"ls -v {shlex.quote(stem)}-*.out"
        if outcome is not None and not outcome.good:
            # An array that was cancelled before its first task started has no files.
            listing = f"{listing} 2>/dev/null || :"
        output = await queue.login.read(listing)
    if scripts.has_option(job.body, "-e", "--error"):
        errors = await queue.controller.files(batch_job.slurm_job, "StdErr")
    return output, errors


async def _report_start(batch_job: BatchJob, job: str) -> None:
    """Wait until Slurm has started a quantum job, and report the time."""
    while True:
        row = batch_job.row
        if row is not None and row.state == "RUNNING" and row.started is not None:
            quantum_steps.begins(job, row.started - time.time())
            return
        await asyncio.sleep(START_PAUSE_SECONDS)


def _script(queue: SlurmQueue, batch_job: BatchJob, job: StepJob) -> str:
    orphan_seconds = (
        queue.orphan_seconds if queue.controller.jobs_end_themselves else None
    )
    script = scripts.task if batch_job.array else scripts.job
    return script(
        queue.login.spool,
        batch_job.key,
        job.body,
        job.seconds,
        orphan_seconds=orphan_seconds,
    )


def _options(job: StepJob, output: str) -> JobOptions:
    options: dict[str, str] = {}
    if job.stdin:
        options["input"] = job.stdin.replace("%", "%%")
    if job.stdout is not None or not scripts.has_option(job.body, "-o", "--output"):
        options["output"] = output
    if job.workdir:
        options["chdir"] = job.workdir
    named = scripts.has_option(job.body, "-J", "--job-name")
    if not job.service.options.get("jobName") and not named:
        options["job-name"] = job.name.strip("/")
    overrides = {"time": job.time_limit} if job.time_limit else {}
    return JobOptions(options, job.service, overrides)

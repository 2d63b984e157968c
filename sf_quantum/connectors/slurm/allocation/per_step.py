"""``per-step``: each job of the workflow is a separate Slurm job."""

from __future__ import annotations

import asyncio
import time

from sf_quantum.connectors import hints
from sf_quantum.connectors.quantum.running_steps import quantum_steps
from sf_quantum.connectors.slurm import sbatch_options, scripts
from sf_quantum.connectors.slurm.allocation.step_job import (
    StepJob,
    read_result,
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
    """Run a job as a separate Slurm job, which is cancelled if the caller is.

    :raises SlurmRefusal: if Slurm refuses the job, or never starts one that has another target
    """
    requested = time.time()
    usage = NodeUsage(queue.deployment, job.service, "per-step", job=job.name)
    array = "array" in job.service.options or scripts.has_option(
        job.body, "-a", "--array"
    )
    batch_job = BatchJob(f"job {job.name}", usage, array=array)
    login = queue.login
    output = own_output = scripts.path(login.spool, batch_job.key, "out")
    await queue.submit(
        batch_job,
        _options(job, own_output),
        _script(queue, batch_job, job),
        note=sbatch_options.note(job.service),
        clusters=job.service.clusters,
    )
    starting, errors = None, ""
    if job.service.quantum:
        quantum_steps.submitted(job.name, queue.deployment, batch_job.slurm_job)
        starting = asyncio.create_task(_report_start(batch_job, job.name))
    try:
        if scripts.has_option(job.body, "-o", "--output") and job.stdout is None:
            output = await queue.controller.files(batch_job.slurm_job, "StdOut")
        if scripts.has_option(job.body, "-e", "--error"):
            errors = await queue.controller.files(batch_job.slurm_job, "StdErr")
        # neither wait() nor shield() cancels a future, which would count as the job's end
        if hints.of(job.name).has_alternative:
            either: list[asyncio.Future[JobOutcome] | asyncio.Future[str]]
            either = [batch_job.ended, batch_job.pending.refusal]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not batch_job.ended.done():
                raise SlurmRefusal(
                    f"Slurm never starts {batch_job.name}: {batch_job.pending.refusal.result()}"
                )
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
    # the mark only has the size of the default output file
    mark = batch_job.mark if output == own_output else None
    return await read_result(login, job, outcome, output, mark, errors)


async def _report_start(batch_job: BatchJob, job: str) -> None:
    """Report when Slurm has started a quantum job."""
    while True:
        row = batch_job.row
        if row is not None and row.state == "RUNNING" and row.started is not None:
            quantum_steps.begins(job, row.started - time.time())
            return
        await asyncio.sleep(START_PAUSE_SECONDS)


def _script(queue: SlurmQueue, batch_job: BatchJob, job: StepJob) -> str:
    orphan = queue.orphan_seconds if queue.controller.jobs_end_themselves else None
    script = scripts.task if batch_job.array else scripts.job
    return script(
        queue.login.spool, batch_job.key, job.body, job.seconds, orphan_seconds=orphan
    )


def _options(job: StepJob, output: str) -> JobOptions:
    files = {"input": job.stdin, "output": output}
    if job.stdout is None and scripts.has_option(job.body, "-o", "--output"):
        files["output"] = None
    # A doubled % keeps sbatch(1) from replacing patterns in the names of files.
    options = {name: file.replace("%", "%%") for name, file in files.items() if file}
    if job.workdir:
        options["chdir"] = job.workdir
    named = scripts.has_option(job.body, "-J", "--job-name")
    if not job.service.options.get("jobName") and not named:
        options["job-name"] = job.name.strip("/")
    instead = {"time": job.time_limit} if job.time_limit else {}
    return JobOptions(options, job.service, instead)

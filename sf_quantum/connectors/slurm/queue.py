"""The jobs of one deployment in Slurm's queue: their submission, states and cancellation.

When the script of a job ends, it leaves a *mark* (see
:mod:`sf_quantum.connectors.slurm.scripts`), which shows the end promptly. ``squeue`` reports
outcomes, with one call for all jobs: soon after a mark, and once in each ``pollingInterval``
of the deployment for jobs that could not leave a mark. If ``squeue`` does not report an
outcome, ``scontrol`` is queried. :mod:`sf_quantum.connectors.slurm.job` has the state
transitions of a job.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress

from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum import backoff, journal
from sf_quantum.connectors.slurm.job import BatchJob, BatchJobState
from sf_quantum.connectors.slurm.node_usage import NodeUsage
from sf_quantum.connectors.slurm.outcomes import Outcomes, is_unknown
from sf_quantum.connectors.slurm.sbatch_options import JobOptions
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.submission_retries import Submissions
from sf_quantum.connectors.slurm.transport.answers import (
    LOST,
    JobOutcome,
)
from sf_quantum.connectors.slurm.transport.controller import (
    Controller,
    Submission,
)
from sf_quantum.connectors.slurm.transport.login import (
    is_too_long,
    survives_errors,
)
from sf_quantum.connectors.slurm.transport.pacing import Paced
from sf_quantum.connectors.slurm.transport.spool_shell import SpoolShell
from sf_quantum.slurm import ids
from sf_quantum.slurm.squeue import QueueRow

# longest wait for pending submissions when the queue is closed
CLOSE_SECONDS = 5.0
# average time between two calls of `squeue` after marks
PROMPT_SECONDS = 0.5
# total time by which calls after a pause may come earlier
PROMPT_BURST_SECONDS = 1.5
# Usual reasons why jobs are pending, of which the run does not warn. The last two appear while
# a job waits for a lease that the site's plugins acquire.
USUAL_REASONS = {"None", "Priority", "Resources"}
USUAL_REASONS |= {"BurstBufferResources", "BurstBufferStageIn"}


class SlurmQueue:
    """Submits, follows and cancels the jobs of one deployment.

    :param interval_seconds: minimum time between two calls of ``squeue``, except after marks
    :param orphan_seconds: seconds without a sign of life of the driver after which an
        allocation ends
    """

    def __init__(
        self,
        shell: SpoolShell,
        controller: Controller,
        deployment: str,
        interval_seconds: float,
        orphan_seconds: float,
    ) -> None:
        self.login = shell.login
        self._shell = shell
        self.controller = controller
        self.deployment = deployment
        self._interval = interval_seconds
        self.orphan_seconds = orphan_seconds
        self._warnings = journal.Warnings(USUAL_REASONS)
        # jobs that are not settled, by key
        self._jobs: dict[str, BatchJob] = {}
        # submissions of these jobs, by key
        self._requests: dict[str, Submission] = {}
        # marks of steps that are awaited, by the step's key
        self._steps: dict[str, asyncio.Future[JobMark]] = {}
        self._submissions = Submissions(controller)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch_task: asyncio.Task[None] | None = None
        # set when a mark may come, which ends a pause between two looks for marks
        self._wake = asyncio.Event()
        self._paced_squeue = Paced(self._squeue, PROMPT_SECONDS, PROMPT_BURST_SECONDS)
        self._outcomes = Outcomes(
            self.login,
            controller,
            interval_seconds,
            self._paced_squeue,
            self._submit_again,
        )
        self._last_poll = -math.inf
        # time at which a job or a step was last submitted, or ended
        self._last_event = -math.inf
        self._closed = False

    async def submit(
        self,
        job: BatchJob,
        options: JobOptions | str,
        script: str,
        *,
        note: str = "",
        at_once: str | None = None,
        clusters: str = "",
    ) -> None:
        """Submit a new job, retrying while Slurm cannot accept it, and follow it.

        :param options: see :class:`sf_quantum.connectors.slurm.transport.controller.Submission`
        :param note: see the same class, also for ``at_once`` and ``clusters``
        :raises SlurmRefusal: if Slurm refuses the job; the text has Slurm's message
        :raises asyncio.CancelledError: if the queue is closed
        """
        await self.start_watching()
        job.comment = f"sfq:{self.login.driver_run}:{job.key}"
        job.clusters = clusters
        request = Submission(
            job.key, script, job.comment, note, options, at_once, clusters
        )
        job.usage.requested(time.time())
        self._jobs[job.key], self._requests[job.key] = job, request
        try:
            slurm_job = await self._submissions.submit(job, request)
        except BaseException:
            job.refused()
            self._remove(job)
            raise
        job.accepted(slurm_job, _now())
        self._conclude_if_new(job, BatchJobState.SUBMITTING)
        self._last_event = _now()
        self._wake.set()

    async def _submit_again(self, job: BatchJob) -> JobOutcome | None:
        """Resubmit a lost job that had not begun; return the failure if Slurm refuses it."""
        old = job.slurm_job
        logger.warning(
            f"Slurm has lost its record of {job.name}, Slurm job {ids.words(old)}, which had not "
            "begun: it is submitted again."
        )
        if not await self.controller.forget(job.key):
            return None
        job.unrecorded(time.time())
        self._submissions.may_have_strays = True  # the first submission may reappear
        try:
            new = await self._submissions.submit(job, self._requests[job.key])
        except WorkflowExecutionException as error:
            return JobOutcome(old, LOST, str(error))
        job.accepted_again(new)
        if not job.active:  # the job is no longer needed
            await self.scancel(new)
        return None

    def follow_component(
        self, leader: BatchJob, number: int, usage: NodeUsage
    ) -> BatchJob:
        """Follow a further component of a submitted heterogeneous job."""
        usage.requested(time.time())
        component = leader.component(number, usage)
        self._jobs[component.key] = component
        return component

    async def step_mark(self, key: str) -> JobMark:
        """Wait for the mark of a step of an allocation."""
        self._steps[key] = asyncio.Future()
        self._last_event = _now()
        try:
            return await self._steps[key]
        finally:
            del self._steps[key]

    async def argument(self, command: str) -> str:
        """Return a command for ``sh -c`` that runs ``command``.

        If the command is too long for an argument, it is written to a file in the *spool*, a
        folder next to the jobs' work directories (see
        :mod:`sf_quantum.connectors.slurm.scripts`).
        """
        if not is_too_long(command):
            return command
        await self.start_watching()
        return await self.login.spooled(command)

    async def cancel(self, *jobs: BatchJob) -> None:
        """Cancel the jobs that have not ended, without waiting for their ends."""
        await self.scancel(*[job.slurm_job for job in jobs if not job.ended.done()])

    async def scancel(self, *ids: str) -> None:
        """Cancel jobs; if that fails, the login node's shell cancels them later."""
        if ids := tuple(filter(None, ids)):  # a job that is being resubmitted has no id
            await self.controller.cancel(*ids)

    async def close(self) -> None:
        """Cancel all jobs, complete the journal, and close the login node's shell.

        Jobs that cannot be cancelled in time are left to the login node's shell.
        """
        self._closed = self._paced_squeue.hurried = True
        self._submissions.close()
        await self.cancel(*[job for job in self._jobs.values() if job.active])
        if self._watch_task is not None:
            self._watch_task.cancel()
        # Jobs that are being submitted could not be cancelled yet.
        in_time = await self._submissions.are_over(CLOSE_SECONDS)
        # If all ends of jobs have been reported, `_jobs` is empty, and no job is left. With
        # slurmrestd, `sweep` is still called, as it notifies the guardian.
        is_certain = in_time and not (
            self._jobs
            or self._submissions.may_have_strays
            or self.controller.jobs_end_themselves
        )
        if not (is_certain or (in_time and await self.controller.sweep())):
            await self._shell.leave()
        # `_jobs` includes jobs that Slurm has accepted in the meantime.
        for job in self._jobs.values():
            job.abandoned()
        if self._unsettled():
            await asyncio.sleep(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    while self._unsettled():
                        await self._poll()
                        if self._unsettled():
                            await asyncio.sleep(backoff.DETAIL.first_seconds)
        for job in self._unsettled():
            job.settled([])
        await self._shell.close()

    async def start_watching(self) -> None:
        """Start the login node's shell, and read marks in the background."""
        if self._watch_task is None:
            self._process_marks(await self._shell.read_marks(None))
            # Another job may have started the task in the meantime.
            if self._watch_task is None and not self._closed:
                self._watch_task = asyncio.create_task(self._read_marks())

    async def _read_marks(self) -> None:
        while True:
            await self._read_marks_once()

    @survives_errors
    async def _read_marks_once(self) -> None:
        """Read new marks, and call ``squeue`` if it is due; wait while no mark is expected."""
        quiet_seconds = _now() - self._last_event if self._is_busy() else None
        self._process_marks(await self._shell.read_marks(quiet_seconds))
        pause = self._interval
        if self._is_busy() or self._unsettled():
            pause = min(pause, self._last_poll + pause - _now())
            if pause <= 0:
                self._spawn(self._poll())  # marks are still being read
                pause = self._interval
        if not self._is_busy():
            # No mark is expected: at most, jobs that have ended wait for Slurm to free their
            # nodes.
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    def _is_busy(self) -> bool:
        """Return whether a mark is expected."""
        return bool(self._steps) or any(
            job.active and not (job.state is BatchJobState.ENDING and job.mark)
            for job in self._jobs.values()
        )

    def _unsettled(self) -> list[BatchJob]:
        return [job for job in self._jobs.values() if job.unsettled]

    def _process_marks(self, marks: list[JobMark]) -> None:
        """Pass marks to steps and jobs, and query the outcomes of jobs that have ended."""
        self._last_event = _now() if marks else self._last_event
        for mark in marks:
            if (step := self._steps.get(mark.key)) is not None:
                if not step.done():
                    step.set_result(mark)
            elif (job := self._jobs.get(mark.key)) is not None:
                before = job.state
                job.marked(mark)
                self._conclude_if_new(job, before)

    @survives_errors
    async def _poll(self) -> None:
        await self._paced_squeue()

    async def _squeue(self) -> dict[BatchJob, list[QueueRow]]:
        """Run one ``squeue`` for all active and unsettled jobs; return no rows if it fails."""
        asked = {
            job: job.slurm_job
            for job in self._jobs.values()
            if job.state is not BatchJobState.SUBMITTING and job.slurm_job
        }
        self._last_poll = math.inf
        try:
            rows = await self.controller.rows({*asked.values()}) if asked else {}
        finally:
            self._last_poll = _now()
        by_job: dict[BatchJob, list[QueueRow]] = {}
        to_cancel = []
        for job, slurm_job in asked.items():
            if slurm_job not in rows:
                continue
            job_rows = job.exclude_foreign(rows[slurm_job])
            if job.slurm_job != slurm_job:
                continue  # in the meantime, the job got another id from its mark
            by_job[job] = job_rows
            if is_unknown(job, *(row.state for row in job_rows)):
                continue
            if job.active:
                before = job.state
                job.listed(job_rows)
                self._conclude_if_new(job, before)
                self._log_pending(job, job_rows)
            elif job.unsettled:
                job.settled(job_rows)
                if job.outlives_its_end(job_rows, _now()):
                    to_cancel.append(slurm_job)
            if job.state is BatchJobState.SETTLED:
                self._remove(job)
        await self.scancel(*to_cancel)
        return by_job

    def _log_pending(self, job: BatchJob, rows: Sequence[QueueRow]) -> None:
        """Log the reasons why a job is pending; warn if it may never start."""
        name = capitalized(job.name)
        for pending in job.pending.unreported(rows, _now()):
            state = (
                f"Slurm job {ids.words(job.slurm_job)} is pending ({pending.reason})"
            )
            if pending.hopeless:
                journal.warn(f"{name} may never start: {state}")
                continue
            text = f"{name} waits for nodes: {state}"
            self._warnings.warn_of(pending.reason, text, logging.INFO)

    def _remove(self, job: BatchJob) -> None:
        self._jobs.pop(job.key, None)
        self._requests.pop(job.key, None)

    def _conclude_if_new(self, job: BatchJob, before: BatchJobState) -> None:
        if job.state is BatchJobState.ENDING and before is not BatchJobState.ENDING:
            self._spawn(self._conclude(job))

    async def _conclude(self, job: BatchJob) -> None:
        await self._outcomes.conclude(job)
        if job.state is BatchJobState.SETTLED:
            self._remove(job)
        elif job.active:  # the job has not ended after all, so a mark may come
            self._wake.set()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _now() -> float:
    return asyncio.get_running_loop().time()


def capitalized(name: str) -> str:
    """Return a job's name with a capital letter, for the beginning of a sentence."""
    return name[:1].upper() + name[1:]

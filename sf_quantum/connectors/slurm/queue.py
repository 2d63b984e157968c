"""The jobs of one deployment in Slurm's queue: submitted, followed, cancelled.

The end of a job is seen soon through the mark of its script. ``squeue``, one call for all
jobs and no more often than the deployment's ``pollingInterval``, sees those that could
leave none. Then Slurm is asked how it ended. What that makes of a job is decided in
:mod:`sf_quantum.connectors.slurm.job`.
"""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from collections.abc import Coroutine
from contextlib import suppress

from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum import backoff
from sf_quantum.connectors.slurm import answers, scripts
from sf_quantum.connectors.slurm.answers import JobOutcome
from sf_quantum.connectors.slurm.job import (
    BatchJob,
    BatchJobState,
    NodeUsage,
    PendingReason,
)
from sf_quantum.connectors.slurm.login import LoginNode, survives_errors
from sf_quantum.connectors.slurm.scripts import JobMark

# Slurm's own record is a moment behind the mark of a script that failed
DETAIL_SECONDS = 5.0
# Slurm need not be waited for long where a mark says how the job ended as well
PATIENCE_WITH_MARK_SECONDS = 3
CLOSE_SECONDS = 5.0


class SlurmQueue:
    """See the module.

    :param login: where Slurm's commands are
    :param run: what the comments of this driver's jobs start with
    :param interval_seconds: between two calls of ``squeue`` at least
    """

    def __init__(self, login: LoginNode, run: str, interval_seconds: float) -> None:
        self.login = login
        self._run = run
        self._interval = interval_seconds
        # until they are settled, by key
        self._jobs: dict[str, BatchJob] = {}
        self._steps: dict[str, asyncio.Future[JobMark]] = {}
        self._submissions: set[asyncio.Task[tuple[str, int]]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._polled = -math.inf

    async def submit(
        self, job: BatchJob, options: str, script: str, *, at_once: str | None = None
    ) -> None:
        """Hand a job to Slurm, again and again while that cannot take it.

        :param job: a new one, which is followed from now on
        :param options: of ``sbatch``, for a shell
        :param script: the batch script
        :param at_once: see :func:`sf_quantum.connectors.slurm.scripts.submission`
        :raises WorkflowExecutionException: if Slurm refuses it for good; with its words
        """
        await self.start_watching()
        command = scripts.submission(
            self.login.spool,
            comment=f"sfq:{self._run}:{job.key}",
            key=job.key,
            options=options,
            body=script,
            at_once=at_once,
        )
        job.usage.requested(time.time())
        self._jobs[job.key] = job
        try:
            slurm_job = await self._submitted(job, command)
        except BaseException:
            job.refused()
            del self._jobs[job.key]
            raise
        job.accepted(slurm_job, _now())
        self._conclude_if_new(job, BatchJobState.SUBMITTING)
        self._wake.set()

    async def _submitted(self, job: BatchJob, command: str) -> str:
        pauses = backoff.CLUSTER.pauses()
        while True:
            text, code = await self._shielded_submission(job.key, command)
            slurm_job = answers.submitted_job(text, code)
            if slurm_job is not None:
                return slurm_job
            message = answers.in_one_line(text)
            if not answers.is_temporary(text, code):
                raise WorkflowExecutionException(f"Slurm refuses {job.name}: {message}")
            pause = next(pauses)
            logger.warning(
                f"Slurm cannot take {job.name} now, next try in {pause:g} s: {message}"
            )
            await asyncio.sleep(pause)

    async def _shielded_submission(self, key: str, command: str) -> tuple[str, int]:
        """Submit; a job that is given up at that moment is cancelled once it is there."""
        task = asyncio.create_task(self.login.ask(command))
        self._submissions.add(task)
        task.add_done_callback(self._submissions.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spawn(self._undo(key, task))
            raise

    @survives_errors
    async def _undo(self, key: str, submission: asyncio.Task[tuple[str, int]]) -> None:
        await submission
        await self.login.sweep(key)

    def follow_component(
        self, leader: BatchJob, number: int, usage: NodeUsage
    ) -> BatchJob:
        """Follow a further component of a heterogeneous job that was submitted."""
        usage.requested(time.time())
        # the components of a job have ids in a row (sbatch(1), heterogeneous jobs)
        slurm_job = str(int(leader.slurm_job) + number)
        component = leader.component(slurm_job, usage)
        self._jobs[component.key] = component
        return component

    async def step_mark(self, key: str) -> JobMark:
        """Wait for the end of a step within an allocation.

        :param key: the step's
        :returns: its mark
        """
        self._steps[key] = asyncio.Future()
        try:
            return await self._steps[key]
        finally:
            del self._steps[key]

    async def cancel(self, *jobs: BatchJob) -> None:
        """Cancel jobs that have not ended, and wait for none of them."""
        if ids := [job.slurm_job for job in jobs if not job.ended.done()]:
            await self.scancel(" ".join(ids))

    async def scancel(self, arguments: str) -> None:
        """Run ``scancel``; what it misses the login node's shell cancels later.

        :param arguments: for a shell
        """
        with suppress(WorkflowExecutionException, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.login.run(
                    f"timeout {answers.PATIENCE_SECONDS} scancel {arguments}"
                )

    def abandon(self, job: BatchJob) -> None:
        """Wait for a job no longer; its journal entry is settled all the same."""
        job.abandoned()

    async def close(self) -> None:
        """Cancel every job, settle the journal and let the login node go.

        What takes too long is left to the login node's shell.
        """
        active = [job for job in self._jobs.values() if job.active]
        await self.cancel(*active)
        for job in active:
            job.abandoned()
        if self._watch is not None:
            self._watch.cancel()
        # what is being submitted now could not be cancelled yet
        late = (
            self._submissions
            and (await asyncio.wait(self._submissions, timeout=CLOSE_SECONDS))[1]
        )
        if late or not await self.login.sweep():
            await self.login.leave()
        await self._settle_all()
        await self.login.close()

    async def start_watching(self) -> None:
        """Have what is in the spool removed however the driver ends, and marks seen."""
        if self._watch is None:
            self._see(await self.login.look(urgent=False))
            # not twice, by jobs that came at once
            self._watch = self._watch or asyncio.create_task(self._look_on())

    async def _look_on(self) -> None:
        while True:
            await self._look()

    @survives_errors
    async def _look(self) -> None:
        self._see(await self.login.look(urgent=self._is_busy()))
        if self._is_busy() or self._unsettled():
            if _now() - self._polled >= self._interval:
                # never twice at a time, and marks are looked for meanwhile
                self._polled = math.inf
                self._spawn(self._poll())
        else:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._wake.wait()

    def _is_busy(self) -> bool:
        return bool(self._steps) or any(job.active for job in self._jobs.values())

    def _unsettled(self) -> list[BatchJob]:
        return [job for job in self._jobs.values() if job.unsettled]

    def _see(self, marks: list[JobMark]) -> None:
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
        """One ``squeue`` for all jobs: those waited for, and the journal's."""
        asked = {
            job: job.slurm_job
            for job in self._jobs.values()
            if job.state is not BatchJobState.SUBMITTING
        }
        try:
            text = await self.login.squeue({*asked.values()}) if asked else ""
        finally:
            self._polled = _now()
        if text is None:
            return
        rows = answers.squeue(text)
        lasting = []
        for job, slurm_job in asked.items():
            own = rows.get(slurm_job, [])
            if job.slurm_job != slurm_job:
                continue  # meanwhile its mark has told of another
            if job.active:
                before = job.state
                job.listed(own)
                self._conclude_if_new(job, before)
                for reason in job.pending_reasons(own, _now()):
                    _log_pending(job, reason)
            elif job.unsettled:
                job.settled(own)
                # a cancelled job may be started again, or its node fail after its mark
                if any(row.lasts for row in own):
                    lasting.append(slurm_job)
            if job.state is BatchJobState.SETTLED:
                self._jobs.pop(job.key, None)
        if lasting:
            await self.scancel(" ".join(lasting))

    def _conclude_if_new(self, job: BatchJob, before: BatchJobState) -> None:
        if job.state is BatchJobState.ENDING and before is not BatchJobState.ENDING:
            self._spawn(self._conclude(job))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @survives_errors
    async def _conclude(self, job: BatchJob) -> None:
        """Ask Slurm how a job ended, and its mark where Slurm does not know."""
        outcome = None
        try:
            outcome = await self._outcome(job)
        finally:
            job.concluded(outcome)

    async def _outcome(self, job: BatchJob) -> JobOutcome | None:
        deadline = _now() + DETAIL_SECONDS
        for pause in backoff.DETAIL.pauses():
            if _now() >= deadline:
                break
            outcome = await self._ask(job)
            if outcome is not None or job.state is not BatchJobState.ENDING:
                return outcome
            if job.mark is None:
                return None  # the next poll asks again
            await asyncio.sleep(pause)
        return job.undetermined()

    async def _ask(self, job: BatchJob) -> JobOutcome | None:
        """Ask once how a job ended.

        :returns: None if that is not known yet, or it is to run again, or still runs
        """
        patience = answers.PATIENCE_SECONDS
        if job.mark is not None:
            patience = PATIENCE_WITH_MARK_SECONDS
        command = answers.scontrol_command(job.slurm_job, patience)
        text, code = await self.login.ask(command)
        if code == 0 and (records := answers.scontrol(text, job.slurm_job)):
            outcome = job.shown(records)
            if outcome is None or job.is_proven(outcome):
                return outcome
            return await self._first_of_two(job, outcome)
        if answers.is_forgotten(text):
            return await self._forgotten(job)
        job.unanswered()
        return None

    async def _first_of_two(
        self, job: BatchJob, outcome: JobOutcome
    ) -> JobOutcome | None:
        file = scripts.path(self.login.spool, job.key, "lock")
        try:
            owner, _ = await self.login.run(f"cat {shlex.quote(file)}")
        except WorkflowExecutionException:
            return None
        return job.locked(owner.strip(), outcome)

    async def _forgotten(self, job: BatchJob) -> JobOutcome:
        if job.mark is None:
            # an exception of which says nothing about the job
            text, code = await self.login.run(answers.sacct_command(job.slurm_job))
            if code == 0 and (outcomes := answers.sacct(text)):
                return answers.worst(outcomes)
            # its mark may be seen only now, on a slow file system
            await asyncio.sleep(self._interval)
        return job.forgotten()

    async def _settle_all(self) -> None:
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
            self._jobs.pop(job.key, None)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _log_pending(job: BatchJob, pending: PendingReason) -> None:
    name = capitalized(job.name)
    state = f"Slurm job {job.slurm_job} is pending ({pending.reason})"
    if pending.hopeless:
        logger.warning(f"{name} may never start: {state}")
    else:
        logger.info(f"{name} waits for nodes: {state}")


def capitalized(name: str) -> str:
    """What a job is called, at the beginning of a sentence."""
    return name[:1].upper() + name[1:]

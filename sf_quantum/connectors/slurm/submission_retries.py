"""Submissions of jobs, repeated until Slurm accepts or refuses the job, or else undone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

from sf_quantum import backoff, journal
from sf_quantum.connectors.slurm.job import BatchJob
from sf_quantum.connectors.slurm.refusals import SlurmRefusal
from sf_quantum.connectors.slurm.transport.controller import (
    Controller,
    Submission,
    SubmissionFailed,
)
from sf_quantum.connectors.slurm.transport.login import survives_errors

# Time without an answer after which sinfo is queried for the reason: sbatch itself retries for
# a minute before it prints the reason.
SUBMISSION_SECONDS = 5.0


class Submissions:
    """The submissions of one deployment."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._submissions: set[asyncio.Task[str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: whether Slurm may have jobs of which it has not confirmed the submission
        self.may_have_strays = False
        self._closed = False
        self._warnings = journal.Warnings()
        self._diagnosed = False

    def close(self) -> None:
        """Stop repeating submissions."""
        self._closed = True

    async def are_over(self, seconds: float) -> bool:
        """Wait for the pending submissions, and return whether they ended in time."""
        tasks = self._submissions
        return not tasks or not (await asyncio.wait(tasks, timeout=seconds))[1]

    async def submit(self, job: BatchJob, request: Submission) -> str:
        """Submit a job, retrying while Slurm cannot accept it.

        :returns: Slurm's id of the job
        :raises SlurmRefusal: if Slurm refuses the job; the text has Slurm's message
        :raises asyncio.CancelledError: if the queue is closed
        """
        pauses = backoff.CLUSTER.pauses()
        submission = None
        try:
            while True:
                if self._closed:
                    raise asyncio.CancelledError
                submission = asyncio.create_task(self._controller.submit(request))
                self._submissions.add(submission)
                submission.add_done_callback(self._submissions.discard)
                await asyncio.wait({submission}, timeout=SUBMISSION_SECONDS)
                if not submission.done() and not self._diagnosed:
                    self._diagnosed = True
                    self._spawn(self._diagnose(job))
                try:
                    return await asyncio.shield(submission)
                except SubmissionFailed as error:
                    if not error.temporary:
                        raise SlurmRefusal(
                            f"Slurm refuses {job.name}: {error}"
                        ) from None
                    self.may_have_strays = True
                    message = str(error)
                pause = next(pauses)
                text = (
                    f"Slurm cannot accept {job.name} now, next attempt in {pause:.1f} s"
                )
                self._warnings.warn_of(message, f"{text}: {message}")
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            # Even between two attempts, Slurm may have the job, if Slurm's answer was lost.
            self.may_have_strays = True
            if submission is not None:
                self._spawn(self._undo(job.key, submission))
            raise

    @survives_errors
    async def _diagnose(self, job: BatchJob) -> None:
        """Warn of the reason why Slurm does not answer a submission, if it is known."""
        if why := await self._controller.trouble():
            journal.warn(
                f"Slurm has not yet answered the submission of {job.name}: {why}"
            )

    @survives_errors
    async def _undo(self, key: str, submission: asyncio.Task[str]) -> None:
        """Cancel a job whose submission was given up."""
        with suppress(SubmissionFailed):
            await submission
        swept = 0
        for pause in backoff.CLUSTER.pauses():
            swept += await self._controller.sweep(key)
            # Another cluster of a federation may have started the job during the first sweep.
            if swept > 1 or self._closed:
                break
            await asyncio.sleep(pause)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

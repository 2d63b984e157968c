"""The outcome of a job that has ended: from Slurm, or from the mark of its script.

``squeue`` and ``scontrol`` tell it, else the accounting. What Slurm tells is the job's own
outcome only if its script has begun, which its lock file says. If sbatch's answer was lost, two
jobs may be in Slurm, and the mark of the first names it while Slurm is asked about the second:
what has been asked is then asked again.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable

from sf_quantum import backoff
from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.job import BatchJob, BatchJobState
from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.connectors.slurm.transport.answers import EndReason, JobOutcome
from sf_quantum.connectors.slurm.transport.controller import Controller
from sf_quantum.connectors.slurm.transport.login import (
    LoginNode,
    survives_errors,
    warn,
)
from sf_quantum.slurm import ids, states
from sf_quantum.slurm.squeue import QueueRow

# Slurm's record of a failed job may appear after the mark of its script.
DETAIL_SECONDS = 5.0
# A mark has the outcome as well, so there is no need to wait long for Slurm.
PATIENCE_WITH_MARK_SECONDS = 3


class Outcomes:
    """Determines outcomes.

    :param interval_seconds: time in which a slow file system shows a mark
    :param rows: rows of ``squeue`` by job, of a call that begins later
    :param resubmitted: submits a job again that Slurm has lost before it began; None, or
        why Slurm refuses it
    """

    def __init__(
        self,
        login: LoginNode,
        controller: Controller,
        interval_seconds: float,
        rows: Callable[[], Awaitable[dict[BatchJob, list[QueueRow]]]],
        resubmitted: Callable[[BatchJob], Awaitable[JobOutcome | None]],
    ) -> None:
        self._login = login
        self._controller = controller
        self._interval = interval_seconds
        self._rows = rows
        self._resubmitted = resubmitted

    @survives_errors
    async def conclude(self, job: BatchJob) -> None:
        """Determine the outcome from Slurm, or from the mark if Slurm has none."""
        outcome = None
        try:
            outcome = await self._outcome(job)
        finally:
            job.concluded(outcome)

    async def _outcome(self, job: BatchJob) -> JobOutcome | None:
        deadline = asyncio.get_running_loop().time() + DETAIL_SECONDS
        for pause in backoff.DETAIL.pauses():
            if asyncio.get_running_loop().time() >= deadline:
                break
            outcome = await self._ask(job)
            if outcome is not None or job.state is not BatchJobState.ENDING:
                return outcome
            if job.mark is None:
                return None  # the next poll tries again
            await asyncio.sleep(pause)
        return job.undetermined()

    async def _ask(self, job: BatchJob) -> JobOutcome | None:
        """Query the outcome: None if unknown, or the job still runs or is requeued."""
        asked = job.slurm_job
        marked = job.mark is not None
        patience = PATIENCE_WITH_MARK_SECONDS if marked else answers.PATIENCE_SECONDS
        try:
            async with asyncio.timeout(patience):
                outcomes = await self._listed(job)
        except TimeoutError:
            job.unanswered()
            return None
        if outcomes is None:
            outcomes = await self._controller.records(job.slurm_job, patience)
        if outcomes is None or job.slurm_job != asked:
            job.unanswered()
            return None
        if records := job.own(outcomes):
            if is_unknown(job, *(one.state for one in records)):
                job.unanswered()
                return None
            outcome = job.shown(records)
            return outcome and await self._proven(job, outcome)
        # Slurm does not know it, or another job has its id
        return await self._forgotten(job, was_known=not outcomes)

    async def _listed(self, job: BatchJob) -> list[JobOutcome] | None:
        """What ``squeue`` tells of a job; None if that is not all of it."""
        if job.array or job.group is not None:
            return None
        if job.mark is not None:
            rows = (await self._rows()).get(job, [])
        else:
            # The row that made the driver ask for the outcome is used.
            rows = [job.row] if job.row is not None and job.row.over else []
        outcome = JobOutcome.of_row(rows[0]) if rows else None
        return None if outcome is None else [outcome]

    async def _proven(self, job: BatchJob, outcome: JobOutcome) -> JobOutcome | None:
        if job.is_proven(outcome):
            return outcome
        asked, owners = job.slurm_job, await self._owners(job)
        if owners is None or job.slurm_job != asked:
            return None
        return job.locked(owners, outcome)

    async def _owners(self, job: BatchJob) -> set[str] | None:
        """The ids of the Slurm jobs whose scripts have begun; None if unknown."""
        folder, key = shlex.quote(self._login.spool), job.key
        files = f"{folder}/{key}-*.lock" if job.array else f"{folder}/{key}.lock"
        text, code = await self._login.ask(f"cat {files}")
        if code == scripts.UNKNOWN:
            return None
        owners = filter(ids.is_id, text.split()) if code == 0 else ()
        return {ids.found(owner, job.clusters) for owner in owners}

    async def _forgotten(self, job: BatchJob, was_known: bool) -> JobOutcome | None:
        """The outcome of a job that Slurm does not know.

        :param was_known: whether Slurm may have known it; false if another job has its id
        """
        if job.mark is None:
            # an exception here means a lost connection, not a lost job
            following = await self._controller.next_job(job.slurm_job)
            if following is not None and int(ids.number(job.slurm_job)) >= following:
                was_known = False
            asked = job.slurm_job
            outcomes = await self._controller.accounted(asked) if was_known else []
            if job.slurm_job != asked:
                return None
            if outcomes:
                return await self._proven(job, answers.worst(outcomes))
            # a slow file system may show the mark late
            await asyncio.sleep(self._interval)
        reason = EndReason.FORGOTTEN if was_known else EndReason.UNRECORDED
        if job.mark is None and job.leaves_lock:
            owners = await self._owners(job)
            if owners is None:
                return None
            if owners:
                return job.locked(owners, job.forgotten(reason))
            if not was_known:
                return await self._resubmitted(job)
        return job.forgotten(reason)


def is_unknown(job: BatchJob, *names: str) -> bool:
    """Whether one of the states of a job tells nothing about it, which is logged."""
    unknown = states.unknown(names)
    if unknown:
        warn(
            f"Slurm job {ids.words(job.slurm_job)} of {job.name} is in the state {unknown}, which "
            "sfq.slurm does not know: it will ask again"
        )
    return bool(unknown)

"""The outcome of a job that has ended: from Slurm, or from the mark of its script.

Slurm reports the outcome with ``squeue`` or ``scontrol``, otherwise in its accounting. A
reported success is the outcome of the step's job only if the script has begun, which its lock
file shows. If the answer of ``sbatch`` was lost, Slurm may have two jobs. The mark of the
first Slurm job may then appear during a query about the second. In this case, the result is
discarded, and the query is repeated for the first.
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

# Longest time after the mark of a job's script until Slurm's record of the job appears.
DETAIL_TIMEOUT_SECONDS = 5.0
# Shorter wait for Slurm's answer if there is a mark, since the mark also has the outcome.
TIMEOUT_WITH_MARK_SECONDS = 3


class Outcomes:
    """Determines the outcomes of jobs.

    :param interval_seconds: time after which even a slow file system shows a mark
    :param fetch_rows: function that calls ``squeue`` and returns the rows by job
    :param resubmit: function that submits a job again if Slurm lost the job before it began;
        it returns the failure if Slurm refuses the job, otherwise ``None``
    """

    def __init__(
        self,
        login: LoginNode,
        controller: Controller,
        interval_seconds: float,
        fetch_rows: Callable[[], Awaitable[dict[BatchJob, list[QueueRow]]]],
        resubmit: Callable[[BatchJob], Awaitable[JobOutcome | None]],
    ) -> None:
        self._login = login
        self._controller = controller
        self._interval = interval_seconds
        self._fetch_rows = fetch_rows
        self._resubmit = resubmit

    @survives_errors
    async def conclude(self, job: BatchJob) -> None:
        """Determine the outcome, and pass it to the job; ``None`` if there is none yet."""
        outcome = None
        try:
            outcome = await self._determine(job)
        finally:
            job.concluded(outcome)

    async def _determine(self, job: BatchJob) -> JobOutcome | None:
        """Return the outcome; ``None`` if the job has not ended, or the query has failed."""
        deadline = asyncio.get_running_loop().time() + DETAIL_TIMEOUT_SECONDS
        for pause in backoff.DETAIL.pauses():
            if asyncio.get_running_loop().time() >= deadline:
                break
            outcome = await self._query(job)
            if outcome is not None or job.state is not BatchJobState.ENDING:
                return outcome
            if job.mark is None:
                return None  # The next poll triggers another query.
            await asyncio.sleep(pause)
        return job.outcome_after_timeout()

    async def _query(self, job: BatchJob) -> JobOutcome | None:
        """Query Slurm once; return ``None`` if there is no outcome yet, or it is unknown."""
        queried_id = job.slurm_job
        has_mark = job.mark is not None
        timeout = TIMEOUT_WITH_MARK_SECONDS if has_mark else answers.PATIENCE_SECONDS
        try:
            async with asyncio.timeout(timeout):
                outcomes = await self._fetch_from_squeue(job)
        except TimeoutError:
            job.unanswered()
            return None
        if outcomes is None:
            outcomes = await self._controller.records(job.slurm_job, timeout)
        if outcomes is None or job.slurm_job != queried_id:
            job.unanswered()
            return None
        if records := job.exclude_foreign(outcomes):
            if is_unknown(job, *(record.state for record in records)):
                job.unanswered()
                return None
            outcome = job.process_records(records)
            return outcome and await self._confirm(job, outcome)
        # Slurm has no record of the job, or has reused its id for another job.
        return await self._query_without_record(job, was_recorded=not outcomes)

    async def _fetch_from_squeue(self, job: BatchJob) -> list[JobOutcome] | None:
        """Return the outcome that ``squeue`` reports; ``None`` if missing or incomplete."""
        if job.array or job.group is not None:
            return None
        if job.mark is not None:
            rows = (await self._fetch_rows()).get(job, [])
        else:
            # If squeue listed the job as ended, its row is the reason for this query.
            rows = [job.row] if job.row is not None and job.row.over else []
        outcome = JobOutcome.of_row(rows[0]) if rows else None
        return None if outcome is None else [outcome]

    async def _confirm(self, job: BatchJob, outcome: JobOutcome) -> JobOutcome | None:
        """Return the outcome of the step's job; ``None`` if it cannot be determined yet."""
        if job.is_proven(outcome):
            return outcome
        queried_id, owners = job.slurm_job, await self._read_lock_owners(job)
        if owners is None or job.slurm_job != queried_id:
            return None
        return job.process_lock(owners, outcome)

    async def _read_lock_owners(self, job: BatchJob) -> set[str] | None:
        """Return the ids of the Slurm jobs whose scripts have begun; ``None`` if unknown."""
        folder, key = shlex.quote(self._login.spool), job.key
        files = f"{folder}/{key}-*.lock" if job.array else f"{folder}/{key}.lock"
        text, code = await self._login.ask(f"cat {files}")
        if code == scripts.UNKNOWN:
            return None
        owners = filter(ids.is_id, text.split()) if code == 0 else ()
        return {ids.found(owner, job.clusters) for owner in owners}

    async def _query_without_record(
        self, job: BatchJob, was_recorded: bool
    ) -> JobOutcome | None:
        """Return the outcome of a job of which Slurm has no record; ``None`` if unknown.

        :param was_recorded: whether Slurm may have recorded the job; false if the id now
            belongs to another job
        """
        if job.mark is None:
            # If the connection is lost, the next call raises an exception, so a lost
            # connection is not mistaken for a lost job.
            next_id = await self._controller.next_job(job.slurm_job)
            if next_id is not None and int(ids.number(job.slurm_job)) >= next_id:
                # Slurm has lost its state, and will assign this id again.
                was_recorded = False
            queried_id = job.slurm_job
            outcomes = (
                await self._controller.accounted(queried_id) if was_recorded else []
            )
            if job.slurm_job != queried_id:
                return None
            if outcomes:
                return await self._confirm(job, answers.worst(outcomes, job.exit_codes))
            # A slow file system may show the mark late.
            await asyncio.sleep(self._interval)
        reason = EndReason.FORGOTTEN if was_recorded else EndReason.UNRECORDED
        if job.mark is None and job.leaves_lock:
            owners = await self._read_lock_owners(job)
            if owners is None:
                return None
            if owners:
                return job.process_lock(owners, job.outcome_without_record(reason))
            if not was_recorded:
                return await self._resubmit(job)
        return job.outcome_without_record(reason)


def is_unknown(job: BatchJob, *names: str) -> bool:
    """Return whether a state of a job is not in Slurm's manuals, and log such a state.

    :param names: states of the job's rows or records in Slurm
    """
    unknown = states.unknown(names)
    if unknown:
        warn(
            f"Slurm job {ids.words(job.slurm_job)} of {job.name} is in the state {unknown}, which "
            "sfq.slurm does not know: the query will be repeated"
        )
    return bool(unknown)

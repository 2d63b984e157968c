"""The record of a run's jobs in its journal, from the first job to the run's last event."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Container, Mapping
from contextlib import AsyncExitStack

from streamflow.core.scheduling import JobAllocation
from streamflow.core.utils import get_job_step_name, get_job_tag
from streamflow.core.workflow import Job, Status
from streamflow.log_handler import logger

from sf_quantum.connectors.tracebacks import traceback_filter
from sf_quantum.journal import HOUSEKEEPING, Journal, events
from sf_quantum.journal.run_failure import Failures, workflow_error
from sf_quantum.journal.standstill import Standstill
from sf_quantum.journal.steps import Steps

ENDED = {Status.SKIPPED, Status.COMPLETED, Status.FAILED, Status.CANCELLED}
KILLED = "its sfq run was killed"
DROPPED = "had not ended when all outputs of the workflow were there; let an output depend on it"


class RunRecord:
    """Writes the status changes of jobs, and finally the outcome of the run.

    :param allocations: allocations of the scheduler, by job
    :param reused: jobs that are completed with results of earlier runs
    :param driver: task of StreamFlow's command, if any
    :param parent: process id of the ``sfq run`` of this driver; empty without ``sfq run``
    """

    def __init__(
        self,
        journal: Journal,
        steps: Steps,
        allocations: Mapping[str, JobAllocation],
        reused: Container[str],
        driver: asyncio.Task[None] | None,
        *,
        parent: str,
    ) -> None:
        self.journal = journal
        self.failures = Failures()
        self.jobs: dict[str, Job] = {}
        #: jobs whose latest attempt StreamFlow reports as completed; a job is added before
        #: its completion is written
        self.completed: set[str] = set()
        #: whether the run's last event is written
        self.is_closed = False
        self._steps = steps
        self._allocations = allocations
        self._reused = reused
        self._driver = driver
        self._parent = parent
        self._attempts: dict[str, int] = {}
        self._statuses: dict[str, Status] = {}
        self.standstill = Standstill(driver, self._statuses)

    def begin(self, job: Job) -> int:
        """Begin another attempt of a job; return its number."""
        self.jobs[job.name] = job
        self.completed.discard(job.name)
        self._attempts[job.name] = self._attempts.get(job.name, 0) + 1
        return self._attempts[job.name]

    def write(self, name: str, status: Status) -> None:
        """Write the status of a job, if it has changed."""
        if self.is_closed or self._statuses.get(name) == status:
            return
        self._statuses[name] = status
        self.standstill.changed()
        word = status.name.lower()
        if name in self._reused:
            if status in (Status.FIREABLE, Status.RUNNING):
                return
            word = "reused" if status == Status.COMPLETED else word
        job, step = self.jobs[name], get_job_step_name(name)
        # The allocation of a waiting job is from its last attempt, so it is not used.
        allocation = self._allocations.get(name)
        allocation = None if status == Status.WAITING else allocation
        target = allocation.target if allocation else None
        if status in (Status.FAILED, Status.RECOVERY):
            self.failures.record(
                self.journal,
                name,
                self._attempts[name],
                target.deployment.name if target else "",
            )
        self.journal.write(
            events.Job(
                job=name,
                step=step,
                tag=get_job_tag(name),
                loops=self._steps.depth(step),
                status=word,
                attempt=self._attempts[name],
                output=job.output_directory,
                deployment=target.deployment.name if target else None,
                service=target.service if target else None,
                locations=(
                    [place.name for place in allocation.locations] if allocation else []
                ),
            )
        )

    async def end(self) -> None:
        """Write the outcome of the unfinished jobs and of the run."""
        outcome = await self._outcome()
        if outcome == Status.FAILED:
            self._fail_jobs_of_steps()
        # After another failure, unfinished jobs are not dropped: StreamFlow cancels them.
        reported = outcome == Status.FAILED and (
            self.failures or traceback_filter().step_errors
        )
        if outcome != Status.CANCELLED and not reported and self._fail_dropped_jobs():
            outcome = Status.FAILED
        for name, status in list(self._statuses.items()):
            # StreamFlow cancels its jobs only some time after Ctrl-C.
            if outcome != Status.COMPLETED and status not in ENDED:
                self.write(name, Status.CANCELLED)
        # the last event is written even if an earlier callback fails
        async with AsyncExitStack() as stack:
            stack.callback(self._end, outcome)
            for settle in self.journal.before_end:
                stack.push_async_callback(settle)
            async for step, tag in self._steps.skipped(self._statuses):
                self._write_skipped(step, tag)

    async def _outcome(self) -> Status:
        if self.standstill.has_ended_run:
            return Status.FAILED
        if self._driver is not None and self._driver.cancelling():
            return Status.CANCELLED
        has_error = workflow_error(self._driver) is not None
        if has_error or not await self._steps.have_completed():
            return Status.FAILED
        return Status.COMPLETED

    def _fail_jobs_of_steps(self) -> None:
        """Record jobs as failed if an error of the engine has ended them.

        After scheduling a job, StreamFlow makes the job's folders and copies its inputs. If
        this fails, StreamFlow does not notify the scheduler.
        """
        for error in traceback_filter().step_errors:
            if self._statuses.get(error.job, Status.COMPLETED) not in ENDED:
                self.failures.add_error(error.job, None, error.message)
                self.write(error.job, Status.FAILED)

    def _fail_dropped_jobs(self) -> bool:
        """Record dropped jobs as failed; return whether there are any.

        StreamFlow 0.2.0rc3 may end a run, as completed, when the workflow has all outputs,
        although a job on which no output depends has not ended.
        """
        dropped = [
            name
            for name, status in self._statuses.items()
            # A completed job may be rolled back for other jobs, and not be needed again.
            if status not in ENDED
            and name not in self.completed
            and not get_job_step_name(name).endswith(HOUSEKEEPING)
        ]
        for name in dropped:
            self.failures.add_error(name, None, DROPPED)
            self.write(name, Status.FAILED)
            logger.error(f"FAILED {name} {DROPPED}")
        return bool(dropped)

    def _write_skipped(self, step: str, tag: str) -> None:
        self.journal.write(
            events.Job(
                job=posixpath.join(step, tag),
                step=step,
                tag=tag,
                loops=self._steps.depth(step),
                status="skipped",
                attempt=1,
                output=None,
                deployment=None,
                service=None,
                locations=[],
            )
        )

    def _end(self, outcome: Status) -> None:
        self.is_closed = True
        failure = None
        if outcome == Status.FAILED:
            failed = {n for n, s in self._statuses.items() if s == Status.FAILED}
            failure = self.failures.of_run(
                failed, self.completed, self._steps.conditions, self._driver
            )
            failure.conclude(self.journal)
        reason = failure.reason if failure else None
        if outcome == Status.CANCELLED and self._parent not in ("", str(os.getppid())):
            reason = KILLED
        self.journal.write(
            events.End(
                status=outcome.name.lower(),
                reason=reason,
                job=failure.job if failure else None,
            )
        )
        self.journal.close()

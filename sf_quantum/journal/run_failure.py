"""The cause of a run's failure, among all failures in the run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from streamflow.core.utils import get_job_step_name

from sf_quantum.connectors.tracebacks import FAILED, traceback_filter
from sf_quantum.journal import HOUSEKEEPING, Journal, events
from sf_quantum.journal.failures import (
    described,
    last_lines,
    message_lines,
    part_of_workflow,
    summarised,
)


@dataclass(frozen=True)
class Failure:
    """The cause of a run's failure.

    :param reason: one line, for the journal
    :param text: lines for the terminal, with any remedy
    :param job: the job that has failed; ``None`` if another part of the workflow has failed
    :param attempt: number of the job's attempt; 0 without a job
    """

    reason: str
    text: str
    job: str | None = None
    attempt: int = 0

    def conclude(self, journal: Journal) -> None:
        """Have the last lines on the terminal explain why the run has failed."""
        lines = [self.text, f"report: sfq report {journal.file}"]
        if journal.log.exists():
            lines.append(f"tracebacks: {journal.log}")
        traceback_filter().conclusion = "\n".join([FAILED, *lines])


class Failures:
    """The errors of a run's commands, and the failures of its jobs."""

    def __init__(self) -> None:
        # Exit code and output of the commands that have failed, by job.
        self._errors: dict[str, tuple[int | None, str]] = {}
        # The latest failure of each job, in order of time.
        self._failures: dict[str, Failure] = {}

    def __bool__(self) -> bool:
        return bool(self._failures)

    def add_error(self, job: str, exit_code: int | None, output: str) -> None:
        """Keep the error of a command until its job has failed."""
        self._errors[job] = (exit_code, output)

    def record(self, journal: Journal, job: str, attempt: int, where: str) -> None:
        """Record why an attempt of a job has failed.

        :param where: deployment of the job; empty if the job had none yet
        """
        recorded = self._failures.pop(job, None)
        if recorded is not None and recorded.attempt == attempt:
            # The recovery of this attempt has failed.
            self._failures[job] = recorded
            return
        exit_code, output = self._errors.pop(job, (None, ""))
        if exit_code is None:
            error = message_lines(output or traceback_filter().latest())
        else:
            error = last_lines(output)
        journal.write(
            events.Failure(job=job, attempt=attempt, exit_code=exit_code, error=error)
        )
        # In reports, StreamFlow's built-in local deployment is called ``local``.
        where = where.replace("__LOCAL__", "local")
        self._failures[job] = Failure(
            reason=summarised(job, where, exit_code, error),
            text=described(job, where, exit_code, error),
            job=job,
            attempt=attempt,
        )

    def of_run(
        self,
        failed: Collection[str],
        completed: Collection[str],
        conditions: Mapping[str, str],
        driver: asyncio.Task[None] | None,
    ) -> Failure:
        """Return why a run has failed: due to a job, a part of the workflow, or StreamFlow.

        :param failed: jobs that have failed and were not recovered
        :param completed: jobs whose latest attempt has completed
        :param conditions: conditions, by the step that evaluates the condition
        :param driver: task of StreamFlow's command
        """
        for job, failure in self._failures.items():
            # Steps that StreamFlow adds fail only because another step has failed.
            if job in failed and not get_job_step_name(job).endswith(HOUSEKEEPING):
                return failure
        step_errors = traceback_filter().step_errors
        # Errors of recovered attempts are left out.
        lasting = [error for error in step_errors if error.job not in completed]
        for error in lasting or step_errors:
            where = get_job_step_name(error.job) if error.job else error.step
            reason = f"{part_of_workflow(where)}: {' '.join(error.message.split())}"
            if (condition := conditions.get(where)) is not None:
                reason += f": it is {condition}"
            return Failure(reason, reason)
        for job, failure in self._failures.items():
            if job not in completed:
                return failure
        return _of_engine(driver)


def _of_engine(driver: asyncio.Task[None] | None) -> Failure:
    error = workflow_error(driver)
    reason = " ".join(str(error).split()) or type(error).__name__
    if error is None:
        reason = "StreamFlow gave no reason; its log is in the folder of the outputs"
    return Failure(reason, reason)


def workflow_error(driver: asyncio.Task[None] | None) -> BaseException | None:
    """Return the error outside of steps that has ended a workflow, if any.

    StreamFlow 0.2.0rc3 closes its scheduler before it logs this error.

    :param driver: task of StreamFlow's command
    """
    for frame in driver.get_stack() if driver is not None else ():
        for task in frame.f_locals.get("workflow_tasks", ()):
            if task.done() and not task.cancelled() and task.exception():
                return cast(BaseException, task.exception())
    return None

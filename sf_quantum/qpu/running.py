"""Runs a job on a QPU whose client has a job side, and waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Protocol, TypeVar

from sf_quantum import backoff
from sf_quantum.deadline import Deadline
from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import (
    OVER,
    NotAccepted,
    Outcome,
    Progress,
    Task,
    UnknownJob,
)

# maximum seconds for which a vendor may be busy or not answer
RETRY_SECONDS = 60.0
T = TypeVar("T")


class JobSide(Protocol):
    """The job side of a :class:`~sf_quantum.qpu.Qpu`."""

    name: str
    finds_by_tag: ClassVar[bool]

    def describe(self) -> Description: ...
    def run_job(self, task: Task) -> Outcome: ...
    def submit(self, task: Task) -> str: ...
    def find(self, tag: str) -> str | None: ...
    def poll(self, job_id: str) -> Progress: ...
    def result(self, job_id: str, task: Task) -> Outcome: ...
    def cancel(self, job_id: str) -> None: ...


def not_taken(qpu: JobSide, description: Description, what: str) -> InputError:
    """Return the error for jobs of a kind that a QPU does not accept."""
    takes = ", ".join(description.kinds) or "no jobs"
    return InputError(f"QPU {qpu.name!r} takes no {what}, but: {takes}")


def run_job(qpu: JobSide, task: Task) -> Outcome:
    """See :meth:`Qpu.run_job`."""
    job_id = _submitted(qpu, task)
    try:
        for pause in backoff.JOB.pauses():
            if _repeated(lambda: qpu.poll(job_id)).state in OVER:
                break
            time.sleep(pause)
        outcome = _repeated(lambda: qpu.result(job_id, task))
    except BaseException:
        with suppress(QpuError, InputError):
            qpu.cancel(job_id)
        raise
    return named(outcome, job_id)


def cancel(qpu: JobSide, tag: str, outcome: Future[Outcome]) -> bool:
    """Cancel a job that another thread runs, as soon as it is submitted.

    :param outcome: future of the thread's result
    :returns: whether there was a job to cancel
    :raises QpuError: if the QPU cannot look up jobs by their tags, or does not answer
    """
    if not qpu.finds_by_tag:
        raise QpuError(f"QPU {qpu.name!r} cannot look for its job to cancel it")
    for pause in backoff.JOB.pauses():
        if outcome.done():
            break
        if (job_id := qpu.find(tag)) is not None:
            qpu.cancel(job_id)
            return True
        time.sleep(pause)
    return False


def named(outcome: Outcome, job_id: str) -> Outcome:
    """Add the job's id to the failure of an outcome without a result."""
    if outcome.result is not None:
        return outcome
    cancelled = f"cancelled: {outcome.note}" if outcome.note else "cancelled"
    return replace(outcome, failure=f"job {job_id}: {outcome.failure or cancelled}")


def _submitted(qpu: JobSide, task: Task) -> str:
    """Submit a job, with retries if the vendor is busy or its reply is lost."""
    deadline, pauses = Deadline(RETRY_SECONDS), backoff.REQUEST.pauses()
    while True:
        try:
            return qpu.submit(task)
        except NotAccepted as error:
            pause = max(error.retry_seconds or 0.0, next(pauses))
            # retry only if the vendor has given the time for it
            if error.retry_seconds is None or pause > deadline.left:
                raise
            time.sleep(pause)
        except UnknownJob:  # the URL has a wrong path, so a retry would be useless
            raise
        except QpuError:
            if not qpu.finds_by_tag or (pause := next(pauses)) > deadline.left:
                raise
            time.sleep(pause)
            if (job_id := _repeated(lambda: qpu.find(task.tag))) is not None:
                return job_id


def _repeated(request: Callable[[], T]) -> T:
    deadline, pauses = Deadline(RETRY_SECONDS), backoff.REQUEST.pauses()
    while True:
        try:
            return request()
        except UnknownJob:
            raise
        except QpuError:
            if (pause := next(pauses)) > deadline.left:
                raise
        time.sleep(pause)

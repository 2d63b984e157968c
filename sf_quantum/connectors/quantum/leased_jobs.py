"""The jobs of a deployment that hold leases: leases are acquired, watched and released."""

from __future__ import annotations

import asyncio
import logging
import posixpath
import shlex
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.deployment.wrapper import get_inner_location
from streamflow.log_handler import logger

from sf_quantum import journal
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.quantum import job_marks, qpu_jobs
from sf_quantum.connectors.quantum.leases import (
    JobLease,
    LeaseFailure,
    LeasePool,
    LeaseRefused,
    QpuUnavailable,
    failure,
    note_if_late,
)
from sf_quantum.connectors.quantum.running_steps import quantum_steps
from sf_quantum.connectors.wrapper import Invocation, Result
from sf_quantum.protocol.tasks import LeaseJob
from sf_quantum.qpu import AuthenticationError
from sf_quantum.qpu.leasing.held_leases import (
    AcquireOptions,
    LeaseProblem,
    QpuLoss,
    QpuMonitor,
)

# Pause between two queries of the ETA of a QPU job.
ETA_SECONDS = 2.0


@dataclass(eq=False)
class LeasedJob:
    """A job that has a lease.

    :param location: inner location, on which the command runs
    :param file: path of the job's environment file on the location
    :param waited_seconds: seconds that the job waited for the lease
    :param loss: reason why the job has to leave the QPU; ``None`` if it may stay
    """

    name: str
    location: ExecutionLocation
    file: str
    pool: LeasePool
    lease: JobLease
    waited_seconds: float
    loss: QpuLoss | None = None


class LeasedJobs:
    """The jobs that hold leases of one QPU.

    :param qpu: name of the QPU
    :param connector: connector of the inner locations
    :param resize: function that is called with each number of vQPUs that the QPU reports
    """

    def __init__(
        self, qpu: str, connector: Connector, resize: Callable[[int], None]
    ) -> None:
        self._qpu = qpu
        self._connector = connector
        self._resize = resize
        self._held: set[LeasedJob] = set()
        self._giving_back_lock = asyncio.Lock()

    async def lease(
        self,
        pool: LeasePool,
        invocation: Invocation,
        job_hints: JobHints,
        wait_seconds: float | None,
    ) -> LeasedJob:
        """Acquire a lease for the job of an invocation.

        :param wait_seconds: the longest wait; ``None`` for no limit
        """
        name = str(invocation.job_name)
        try:
            lease = await self._acquire(pool, name, job_hints, wait_seconds)
        except LeaseFailure as error:
            # The failure of a job that leaves an offline QPU has no cause.
            note_if_late(name, error.__cause__)
            raise
        job = LeasedJob(
            name,
            get_inner_location(invocation.location),
            # The path is visible in `ps` and in logs, so it must not contain the token.
            posixpath.join(invocation.workdir or "/tmp", f".sfq-{uuid.uuid4().hex}"),
            pool,
            lease,
            lease.waited_seconds,
        )
        self._held.add(job)
        record = journal.current()
        if record is not None and self.give_back not in record.before_end:
            record.before_end.append(self.give_back)
        return job

    def __contains__(self, job: LeasedJob) -> bool:
        return job in self._held

    async def _acquire(
        self,
        pool: LeasePool,
        job: str,
        job_hints: JobHints,
        wait_seconds: float | None,
    ) -> JobLease:
        """Acquire a lease; if the QPU is lost, a job with another target stops waiting."""
        if (left := job_hints.seconds_left) is not None:
            wait_seconds = min(left, wait_seconds or left)
        request = AcquireOptions(
            job,
            wait_seconds,
            hints=job_hints.lease_hints,
            purpose=job_marks.purpose(job),
        )
        if not job_hints.has_alternative:
            return await pool.acquire(request)
        acquiring = asyncio.create_task(pool.acquire(request))
        watching = asyncio.create_task(pool.wait_for_loss(QpuMonitor(pool.qpu).check))
        try:
            await asyncio.wait(
                (acquiring, watching), return_when=asyncio.FIRST_COMPLETED
            )
            if acquiring.done():
                return acquiring.result()
            raise failure(job, self._qpu, watching.result())
        except LeaseRefused as error:  # another target may run the job
            raise LeaseFailure(str(error)) from error
        except asyncio.CancelledError:
            if not acquiring.cancel():  # the lease has just been granted or refused
                with suppress(LeaseFailure, LeaseRefused):
                    await pool.release_or_expire(acquiring.result())
            raise
        finally:
            acquiring.cancel()
            watching.cancel()

    async def watch(
        self, job: LeasedJob, job_hints: JobHints, running: asyncio.Future[Result]
    ) -> None:
        """Once a job has to leave, release its lease, which cancels its QPU jobs."""
        # the waits for the lease and in the job queue share one limit
        watch = QpuMonitor(
            job.pool.qpu,
            lambda: job.lease.jobs_of(job.name) or (),
            job_hints.seconds_left,
        )
        elsewhere = job_hints.has_alternative

        def check() -> QpuLoss | None:
            return job.lease.refusal or (watch.check() if elsewhere else None)

        job.loss = await job.pool.wait_for_loss(check)
        if job.loss.problem is not LeaseProblem.REFUSED:
            await job.pool.release_or_expire(job.lease)
        # After a refusal, a job with another target fails at its next request, as after a
        # released lease. A job without another target is cancelled.
        elif not elsewhere:
            running.cancel()

    async def give_back(self) -> None:
        """Release every lease, at the end of the run or when the deployment is undeployed.

        Both may happen concurrently; the second call then waits for the first call.
        """
        async with self._giving_back_lock, AsyncExitStack() as stack:
            # An error with one job does not keep the other leases from being released.
            for job in list(self._held):
                stack.push_async_callback(self.settle, job, keep=False)

    async def settle(self, job: LeasedJob, *, keep: bool) -> bool | None:
        """End a job's use of its lease, and record its QPU jobs; a second call does nothing.

        :param keep: whether the lease may be kept for the next job
        :returns: whether there were QPU jobs; ``None`` if unknown
        """
        if job not in self._held:
            return None
        self._held.remove(job)
        try:
            # If the location does not respond, the job's own error must still be reported, and
            # the lease released.
            with suppress(Exception):
                await self._connector.run(
                    job.location, ["rm", "-f", shlex.quote(job.file)]
                )
        except BaseException:
            await self._close(job, keep=False)
            raise
        return await self._close(job, keep=keep)

    async def _close(self, job: LeasedJob, *, keep: bool) -> bool | None:
        """End a job's use of its lease, and record its QPU jobs; see :meth:`settle`."""
        recorded = set(job.lease.owners)  # QPU jobs of earlier jobs and attempts
        try:
            jobs = await job.pool.settle(job.lease, job.name, keep=keep)
        except QpuUnavailable as error:
            if isinstance(error.__cause__, AuthenticationError):
                job.loss = QpuLoss(LeaseProblem.REFUSED, self._qpu, str(error))
            elif logger.isEnabledFor(logging.WARNING):
                logger.warning(
                    f"The lease of job {job.name} was not given back: {error}"
                )
            return None
        # If this kind of QPU does not report its jobs, one unknown QPU job is assumed.
        reported = [LeaseJob()] if jobs is None else jobs
        await self._record(
            job, [qpu_job for qpu_job in reported if qpu_job.id not in recorded]
        )
        return bool(reported)

    async def _record(self, job: LeasedJob, jobs: list[LeaseJob]) -> None:
        """Write QPU jobs into the run's journal, with the QPU's current calibration."""
        if journal.current() is None or not jobs:
            return
        try:
            status = await job.pool.status()
            self._resize(status.vqpus)
        except QpuUnavailable:
            status = None
        for qpu_job in jobs:
            qpu_jobs.record(
                job.name,
                self._qpu,
                qpu_job,
                technology=status.technology if status else None,
                calibration=status.calibration if status else None,
                lease_seconds=job.waited_seconds,
            )


async def report_eta(job: LeasedJob) -> None:
    """Repeatedly report when the QPU begins the first of a job's QPU jobs.

    The reports continue after the beginning, since the QPU job may be pre-empted.
    """
    while quantum_steps.listeners:
        with suppress(QpuUnavailable):
            jobs = await job.pool.jobs_of(job.lease, job.name)
            if jobs and (seconds := _seconds_until_begin(jobs[0])) is not None:
                quantum_steps.begins(job.name, seconds)
        await asyncio.sleep(ETA_SECONDS)


def _seconds_until_begin(qpu_job: LeaseJob) -> float | None:
    """Return the seconds until a QPU job begins; ``None`` if the QPU does not report it."""
    if qpu_job.state == "Queued":
        return qpu_job.eta_seconds
    return None if qpu_job.started is None else qpu_job.started - time.time()


def is_hopeless(job: LeasedJob, job_hints: JobHints) -> bool:
    """Return whether the QPU refuses the job's user, and no other target can run the job."""
    refused = job.loss is not None and job.loss.problem is LeaseProblem.REFUSED
    return refused and not job_hints.has_alternative

"""Leases of a QPU for the jobs of a run, acquired without blocking the event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar, TypeVarTuple

from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum import journal
from sf_quantum.connectors import guardian, hints
from sf_quantum.connectors.quantum import qpu_jobs
from sf_quantum.connectors.tracebacks import OneLineException, traceback_filter
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import OVER, LeaseJob
from sf_quantum.qpu import LeaseTooLate, NoLease, Qpu, QpuStatus
from sf_quantum.qpu.leasing.held_leases import (
    POLL_SECONDS,
    AcquireOptions,
    QpuLoss,
    RenewedLease,
    WaitCancelled,
    acquire,
)
from sf_quantum.text import one_line

# largest number of concurrent calls: most of them wait for a lease, a few release leases
THREADS = 256
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class QpuUnavailable(WorkflowExecutionException):
    """The QPU's service does not answer, or refuses the request."""


class LeaseFailure(WorkflowExecutionException):
    """A job got no lease of a QPU, or lost its lease; another attempt may succeed."""


class LeaseRefused(OneLineException):
    """The QPU refuses a lease to the job's user, so another attempt is pointless."""


class JobLease(RenewedLease):
    """A lease that may serve several jobs, one at a time."""

    def __init__(self, qpu: Qpu, token: str) -> None:
        super().__init__(qpu, token, logger)
        # the workflow job of each QPU job, by the QPU job's id
        self.owners: dict[str, str] = {}
        #: seconds that the latest job waited for the lease
        self.waited_seconds = 0.0

    def jobs_of(self, job: str) -> list[LeaseJob] | None:
        """Return the QPU jobs of all attempts of a workflow job, see :meth:`Qpu.jobs`."""
        if (jobs := self.qpu.jobs(self.token)) is None:
            return None
        return [
            qpu_job for qpu_job in jobs if self.owners.get(str(qpu_job.id), job) == job
        ]


class LeaseWait:
    """Records a job's wait for a lease of a QPU, or for the QPU itself, in the journal."""

    def __init__(self, qpu: str, job: str) -> None:
        self.qpu, self._job = qpu, job
        self._began: float | None = None
        self._reason = ""
        self._loop = asyncio.get_running_loop()

    @property
    def seconds(self) -> float:
        """Seconds since the first reason to wait; 0 if there was none."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def told(self, error: QpuError, left: float) -> None:
        """Report from another thread why the job waits; see :meth:`tell`."""
        with suppress(RuntimeError):  # the run has ended
            self._loop.call_soon_threadsafe(self.tell, str(error), left)

    def over(self, status: str) -> None:
        """Report that the job no longer waits.

        :param status: see :func:`qpu_jobs.record_wait`
        """
        if self._reason:
            self._write(status, self._reason)
            logger.info(f"Job {self._job} no longer waits for QPU {self.qpu}")

    def tell(self, reason: str, left: float, end: str = "") -> None:
        """Report why the job waits, unless the reason is the same as before.

        :param left: seconds until the wait ends without a lease
        :param end: text of the message on what happens then; by default, the attempt fails or
            another target is chosen
        """
        if (reason := one_line(reason)) != self._reason:
            self._reason = reason
            self._began = self._began or time.monotonic()
            if left < math.inf:
                has_alternative = hints.of(self._job).has_alternative
                leaves = (
                    "another target is chosen"
                    if has_alternative
                    else "the attempt fails"
                )
                reason = f"{reason}; if this lasts {left:.0f} s, {end or leaves}"
            self._write("waiting", reason)
            logger.info(f"Job {self._job} waits for QPU {self.qpu}: {reason}")

    def _write(self, status: str, reason: str) -> None:
        qpu_jobs.record_wait(self._job, self.qpu, status, reason, self.seconds)


def failure(job: str, qpu: str, error: QuantumError | QpuLoss) -> LeaseFailure:
    """Return the failure of a job that got no lease, or cannot get one."""
    return LeaseFailure(_no_lease(job, qpu, error))


def _no_lease(job: str | None, qpu: str, error: QuantumError | QpuLoss) -> str:
    return f"Job {job} got no lease of QPU {qpu}: {error}"


def note_if_late(job: str, error: BaseException | None) -> None:
    """Note in a job's hints that its time to wait is over, if it got no lease because of this.

    :param error: error with which the wait ended; if the QPU does not answer, this is another
        error, and nothing is noted
    """
    late = hints.of(job).seconds_left == 0.0 and isinstance(error, NoLease)
    if late or isinstance(error, LeaseTooLate):
        hints.wait_out(job)


class LeasePool:
    """Acquires leases of a QPU, may keep them for further jobs, and releases them.

    :param qpu: client of the QPU; its methods block, and are called in threads
    :param guarded: configuration from which the guardian makes its own client; ``None`` if the
        QPU ends with the driver, as an emulated QPU does
    :param keep_seconds: how long an unused lease is kept for the next job
    """

    def __init__(
        self,
        qpu: Qpu,
        guarded: Mapping[str, JSON] | None = None,
        *,
        keep_seconds: float = 0.0,
    ) -> None:
        traceback_filter()
        self.qpu = qpu
        self._guarded = guarded
        self._keep_seconds = keep_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sfq-lease")
        self._stop_events: set[threading.Event] = set()
        self._held: set[JobLease] = set()
        self._kept: dict[JobLease, asyncio.TimerHandle] = {}
        self._expiring: set[asyncio.Task[None]] = set()
        self._warnings = journal.Warnings()

    @property
    def kept(self) -> int:
        """Number of leases that are kept for the next jobs."""
        return len(self._kept)

    async def status(self) -> QpuStatus:
        """Query the QPU's status.

        :raises QpuUnavailable: if the QPU does not answer
        """
        return await self._in_thread(self.qpu.status)

    async def acquire(self, request: AcquireOptions) -> JobLease:
        """Return a kept lease, or acquire a lease, waiting as long as the request allows.

        :raises LeaseFailure: if no lease is granted in time
        :raises LeaseRefused: if the lease is refused
        """
        if (kept := await self._take_kept()) is not None:
            kept.waited_seconds = 0.0
            return kept
        self._stop_events.add(stop := threading.Event())
        wait = LeaseWait(self.qpu.name, request.job or "")
        future = self._threads.submit(self._acquire, request, stop, wait.told)
        granted = False
        try:
            lease = await asyncio.wrap_future(future)
            granted = True
            lease.waited_seconds = wait.seconds
            self._warn_of_shortfall(lease)
        except asyncio.CancelledError:
            stop.set()
            # The lease may have been granted in the meantime.
            self._threads.submit(self._release_unwanted, future)
            raise
        except WaitCancelled as error:
            raise asyncio.CancelledError from error
        except QuantumError as error:
            kind = LeaseRefused if isinstance(error, InputError) else LeaseFailure
            raise kind(_no_lease(request.job, self.qpu.name, error)) from error
        finally:
            self._stop_events.discard(stop)
            wait.over("granted" if granted else "given-up")
        self._held.add(lease)
        if stop.is_set():  # the pool was closed while the lease was being granted
            await self.release_or_expire(lease)
            raise asyncio.CancelledError
        return lease

    async def settle(
        self, lease: JobLease, job: str, *, keep: bool
    ) -> list[LeaseJob] | None:
        """End a job's use of a lease: keep the lease for the next job, or release it.

        :param keep: whether to keep the lease, if the pool keeps leases and all QPU jobs have
            ended
        :returns: the job's QPU jobs, see :meth:`JobLease.jobs_of`
        :raises QpuUnavailable: if the QPU does not answer
        """
        # The lease may have been released while the job was running.
        if keep and self._keep_seconds > 0 and lease in self._held:
            try:
                jobs = await self.jobs_of(lease, job)
            except BaseException:
                await self.release(lease)
                raise
            if all(qpu_job.state in OVER for qpu_job in jobs or []):
                lease.owners |= {str(qpu_job.id): job for qpu_job in jobs or []}
                self._keep(lease)
                return jobs
        await self.release(lease)
        return await self.jobs_of(lease, job)

    async def release(self, lease: JobLease) -> None:
        """Release a lease, which cancels its remaining QPU jobs; a second call does nothing.

        :raises QpuUnavailable: if the QPU does not answer
        """
        if lease in self._held:
            self._held.remove(lease)
            # Shielded, since cancelling the task would otherwise also cancel a call that still
            # waits for a thread.
            await asyncio.shield(self._in_thread(self._release, lease))

    async def jobs_of(self, lease: JobLease, job: str) -> list[LeaseJob] | None:
        """Call :meth:`JobLease.jobs_of` in a thread.

        :raises QpuUnavailable: if the QPU does not answer
        """
        return await self._in_thread(lease.jobs_of, job)

    async def wait_for_loss(self, check: Callable[[], QpuLoss | None]) -> QpuLoss:
        """Wait until a job has to leave the QPU, and return the reason.

        :param check: function that returns the reason, if any, such as :meth:`QpuMonitor.check`
        """
        while True:
            if (loss := await self._in_thread(check)) is not None:
                return loss
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        """Stop waiting for leases, and release the leases that are held."""
        for stop in self._stop_events:
            stop.set()
        for timer in self._kept.values():
            timer.cancel()
        self._kept.clear()
        for lease in list(self._held):
            await self.release_or_expire(lease)
        for task in list(self._expiring):
            await task

    def _acquire(
        self,
        request: AcquireOptions,
        stop: threading.Event,
        on_wait: Callable[[QpuError, float], None],
    ) -> JobLease:
        """Acquire a lease, and let the guardian release it if the driver is killed; blocks."""
        token = acquire(self.qpu, request, stop, on_wait)
        if self._guarded is not None:
            # Notified in this thread, since the driver may be stopped before its event loop
            # continues.
            guardian.current().hold(self.qpu.type, self.qpu.name, self._guarded, token)
        return JobLease(self.qpu, token)

    def _warn_of_shortfall(self, lease: JobLease) -> None:
        shortfall = self.qpu.shortfall(lease.token)
        if shortfall is not None:
            self._warnings.warn(f"Leases of QPU {self.qpu.name} have {shortfall}")

    def _release_unwanted(self, future: Future[JobLease]) -> None:
        with suppress(QuantumError, CancelledError):
            self._release(future.result())

    def _release(self, lease: JobLease) -> None:
        lease.release()
        if self._guarded is not None:
            guardian.current().release(lease.token)

    def _keep(self, lease: JobLease) -> None:
        self._kept[lease] = asyncio.get_running_loop().call_later(
            self._keep_seconds, self._start_expiry, lease
        )

    def _start_expiry(self, lease: JobLease) -> None:
        del self._kept[lease]
        task = asyncio.create_task(self.release_or_expire(lease))
        self._expiring.add(task)
        task.add_done_callback(self._expiring.discard)

    async def release_or_expire(self, lease: JobLease) -> None:
        """Release a lease, or let it expire if its QPU does not answer."""
        with suppress(QpuUnavailable):  # the lease expires, or the guardian retries
            await self.release(lease)

    async def _take_kept(self) -> JobLease | None:
        """Return a kept lease that is still valid; ``None`` if there is none."""
        while self._kept:
            lease, timer = self._kept.popitem()
            timer.cancel()
            try:
                await self._in_thread(self.qpu.renew, lease.token)
                if lease.refusal is not None:  # its thread no longer renews the lease
                    raise QpuUnavailable(str(lease.refusal))
            except QpuUnavailable:
                await self.release_or_expire(lease)
            except BaseException:
                self._keep(lease)
                raise
            else:
                return lease
        return None

    async def _in_thread(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        try:
            return await asyncio.wrap_future(self._threads.submit(call, *args))
        except QuantumError as error:
            raise QpuUnavailable(str(error)) from error

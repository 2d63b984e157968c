"""The driver's side of a QPU: leases, without holding up the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum.connectors import guardian
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu, QpuStatus, waiting

# at once: those who wait for a lease, and a few that give theirs back
THREADS = 256
T = TypeVar("T")


class ServiceGone(WorkflowExecutionException):
    """The QPU's service does not answer, or not as it should."""


class LeaseLost(ServiceGone):
    """The QPU's service does not know the lease, or not any more."""


@dataclass(eq=False)
class Lease:
    """A lease that is held, alone or for one job after the other.

    :param seen: which job of the workflow had which QPU job, by the QPU jobs' ids
    """

    token: str
    renewal: asyncio.Task[None]
    seen: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Guarded:
    """What the guardian must know to give a lease back when the driver cannot."""

    type: str
    config: Mapping[str, JSON]


class Leases:
    """Takes leases of a QPU, keeps them from running out, and gives them back.

    :param qpu: its methods block, so each runs in a thread
    :param guarded: None where the QPU ends with the driver, as an emulated one does
    """

    def __init__(self, qpu: Qpu, guarded: Guarded | None = None) -> None:
        self.qpu = qpu
        self._guarded = guarded
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sfq-lease")
        self._waits: set[threading.Event] = set()
        self._held: set[Lease] = set()
        self._warned: set[str] = set()

    async def status(self) -> QpuStatus:
        """Ask the QPU how it is.

        :raises ServiceGone: if it does not answer
        """
        return await self._in_thread(self.qpu.status)

    async def acquire(self, request: waiting.Request) -> Lease:
        """Take a lease, waiting as long as the request says.

        :raises WorkflowExecutionException: if none comes in time, or it is refused
        """
        self._waits.add(stop := threading.Event())
        future = self._threads.submit(self._take, request, stop)
        try:
            token = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            stop.set()
            # granted in this very moment, or not at all
            self._threads.submit(self._unwanted, future)
            raise
        except waiting.Stopped as error:
            raise asyncio.CancelledError from error
        except (QpuError, InputError) as error:
            raise WorkflowExecutionException(
                f"QPU {self.qpu.name} gives job {request.job} no lease: {error}"
            ) from error
        finally:
            self._waits.discard(stop)
        lease = Lease(token, asyncio.create_task(self._renew(token)))
        self._held.add(lease)
        return lease

    async def is_held(self, lease: Lease) -> bool:
        """Whether a lease that was kept for a while still serves.

        :returns: False if it ran out, or nobody can tell
        """
        try:
            await self._in_thread(self.qpu.renew, lease.token)
        except ServiceGone:
            return False
        return True

    async def release(self, lease: Lease) -> None:
        """Give a lease back, once, which cancels what is left of its QPU jobs.

        :raises ServiceGone: if the QPU does not answer
        """
        if lease not in self._held:
            return
        self._held.remove(lease)
        lease.renewal.cancel()
        await self._in_thread(self.qpu.release, lease.token)
        self._unguard(lease.token)

    async def jobs(self, lease: Lease, job: str) -> list[dict[str, JSON]] | None:
        """The QPU jobs under a lease, less those of other jobs of the workflow.

        A job that is run again has its own from before.

        :param job: whose they are, in the workflow

        :returns: None if this kind of QPU does not tell
        :raises ServiceGone: if the QPU does not answer
        """
        jobs = await self._in_thread(self.qpu.jobs, lease.token)
        if jobs is None:
            return None
        return [
            qpu_job
            for qpu_job in jobs
            if lease.seen.get(str(qpu_job.get("id")), job) == job
        ]

    async def close(self) -> None:
        """Stop waiting for leases, and give back those that are held."""
        for wait in self._waits:
            wait.set()
        for lease in list(self._held):
            with suppress(ServiceGone):
                await self.release(lease)

    def _take(self, request: waiting.Request, stop: threading.Event) -> str:
        token = waiting.acquire(self.qpu, request, stop)
        if self._guarded is not None:
            # in this thread: whatever ends the driver from here on, the lease is known
            told = self._guarded
            guardian.current().hold(told.type, self.qpu.name, told.config, token)
        self._warn(self.qpu.shortfall(token))
        return token

    def _warn(self, shortfall: str | None) -> None:
        """Say once what every job of the run may meet."""
        if shortfall is not None and shortfall not in self._warned:
            self._warned.add(shortfall)
            if logger.isEnabledFor(logging.WARNING):
                logger.warning(f"Leases of QPU {self.qpu.name} are of {shortfall}")

    def _unwanted(self, future: Future[str]) -> None:
        with suppress(QpuError, InputError, CancelledError):
            token = future.result()
            self.qpu.release(token)
            self._unguard(token)

    def _unguard(self, token: str) -> None:
        if self._guarded is not None:
            guardian.current().release(token)

    async def _renew(self, token: str) -> None:
        """Renew a lease for as long as it is held, if it is of the kind that runs out."""
        pause: float | None = 0.0
        while pause is not None:
            await asyncio.sleep(pause)
            try:
                pause = await self._in_thread(self.qpu.renew, token)
            except LeaseLost as error:
                if logger.isEnabledFor(logging.WARNING):
                    logger.warning(f"A lease of QPU {self.qpu.name} is lost: {error}")
                return
            except ServiceGone:
                pause = waiting.LONGEST_PAUSE_SECONDS

    async def _in_thread(self, call: Callable[..., T], *arguments: str) -> T:
        future = self._threads.submit(call, *arguments)
        try:
            return await asyncio.wrap_future(future)
        except QpuError as error:
            raise ServiceGone(str(error)) from error
        except InputError as error:
            raise LeaseLost(str(error)) from error

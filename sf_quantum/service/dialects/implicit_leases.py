"""Leases for dialects without leases, each held while its user has unfinished jobs."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from sf_quantum.service.dialects.dialect import Dialect
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, Job, LeaseRequest
from sf_quantum.service.domain.reasons import LeaseEnd, LeaseEndCause
from sf_quantum.service.queue.background import BackgroundTasks
from sf_quantum.service.queue.job_queue import JobQueue

JOBS_OVER = LeaseEnd(LeaseEndCause.JOBS_OVER)
POLL_SECONDS = 60.0
_SERVICE = Identity("", admin=True)
logger = logging.getLogger(__name__)


@dataclass
class Submitting:
    """A request that submits jobs, and the lease of these jobs.

    :param lease_id: id of the lease; ``None`` until a lease is acquired
    :param jobs: jobs that the queue has accepted
    """

    leases: ImplicitLeases
    who: Identity
    lease_id: str | None
    jobs: list[Job] = field(default_factory=list)

    async def lease(self) -> str:
        """Return the id of the jobs' lease; it is acquired for the first valid job."""
        if self.lease_id is None:
            self.lease_id = await self.leases.acquire(self.who)
        return self.lease_id


class ImplicitLeases:
    """One lease per user, from the first job of a dialect until the last job ends.

    While all vQPUs are leased, the lease waits for a vQPU like any other request for a
    lease, and its jobs wait with it, on disk. Like any other lease, the lease determines
    share, class and accounting. The header ``X-SFQ-Lease`` of a request may instead contain
    the id of a lease that was acquired through another dialect.

    :param key: key of these leases, by which they are recognised after a restart
    :param purpose: purpose of these leases, shown to operators
    """

    def __init__(self, queue: JobQueue, key: str, purpose: str) -> None:
        self._queue = queue
        self._key = key
        self._purpose = purpose
        # number of requests and followed submissions that need a lease, by the lease's id
        self._users: Counter[str] = Counter()
        self._background = BackgroundTasks()

    def start(self) -> None:
        """Follow the leases that the previous service process left open."""
        for lease in self._queue.leases.on_disk:
            if lease.key == self._key:
                self._hold(
                    lease.id, self._queue.store.jobs.latest(lease=lease.id, live=True)
                )

    def stop(self) -> None:
        """Stop following leases; the leases stay on disk and are not ended."""
        self._background.cancel()

    @asynccontextmanager
    async def submitting(
        self, who: Identity, lease_id: str | None
    ) -> AsyncIterator[Submitting]:
        """Hold the lease of a request's jobs until the jobs have ended.

        :param lease_id: id of a lease to use instead of an implicit lease
        """
        request = Submitting(self, who, lease_id)
        try:
            yield request
        finally:
            if request.lease_id is not None and lease_id is None:
                self._hold(request.lease_id, request.jobs)
                self._users[request.lease_id] -= 1

    async def acquire(self, who: Identity) -> str:
        """Acquire a user's lease for a request; the lease may wait for a vQPU.

        :raises Refused: if the user may not have a lease
        """
        request = LeaseRequest(job=self._purpose, key=self._key)
        while True:
            lease = await self._queue.leases.request(who, request)
            if self._queue.leases.is_active(lease.id):
                self._users[lease.id] += 1
                return lease.id

    def _hold(self, lease_id: str, jobs: Iterable[Job]) -> None:
        self._users[lease_id] += 1
        self._background.start(self._follow(lease_id, [*jobs]))

    async def _follow(self, lease_id: str, jobs: list[Job]) -> None:
        for job in jobs:
            while not await self._has_ended(job):
                if self._queue.failure:  # the next service process follows the lease
                    return
        self._users[lease_id] -= 1
        if self._users[lease_id]:
            return
        del self._users[lease_id]
        if self._queue.leases.is_active(lease_id) and not self._queue.failure:
            try:
                await self._queue.leases.end(lease_id, JOBS_OVER)
            except sqlite3.Error as error:
                logger.error(
                    "a lease of %s could not be closed: %s", self._purpose, error
                )

    async def _has_ended(self, job: Job) -> bool:
        try:
            return (await self._queue.wait(_SERVICE, job.id, POLL_SECONDS)).final
        except Refused:  # the job has ended and been deleted
            return True


class LeaselessDialect(Dialect):
    """A dialect whose clients do not use leases.

    Its routes set ``implicit_lease`` in submissions, and submit within
    ``leases.submitting``.
    """

    #: purpose of the implicit leases, shown to operators
    purpose: ClassVar[str]

    def __init__(self, queue: JobQueue) -> None:
        super().__init__(queue)
        self.leases = ImplicitLeases(queue, self.name, self.purpose)

    def start(self) -> None:
        self.leases.start()

    def stop(self) -> None:
        self.leases.stop()

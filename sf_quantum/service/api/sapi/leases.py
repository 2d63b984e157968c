"""Leases for dialects that have none: held while a user has unfinished jobs."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, Job, Lease, LeaseRequest
from sf_quantum.service.domain.reasons import LeaseEnd, LeaseEndCause
from sf_quantum.service.queue.job_queue import JobQueue

JOBS_OVER = LeaseEnd(LeaseEndCause.JOBS_OVER)
# below the client's timeout of 120 seconds
WAIT_SECONDS = 90.0
POLL_SECONDS = 60.0
_SERVICE = Identity("", admin=True)
logger = logging.getLogger(__name__)


class ImplicitLeases:
    """One lease per user, from the first job of a dialect until the last is over.

    A submission waits for its lease while all vQPUs are leased; the lease determines
    share, class and accounting, as any other. A request may instead name a lease that
    was acquired in another dialect, in the header ``X-SFQ-Lease``.

    :param key: identifies these leases, also after a restart
    :param purpose: shown to operators
    """

    def __init__(self, queue: JobQueue, key: str, purpose: str) -> None:
        self._queue = queue
        self._key = key
        self._purpose = purpose
        # by lease, the number of requests and followed submissions that need it
        self._users: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Follow the leases that an earlier service left open."""
        for lease in self._queue.leases.held:
            if lease.key == self._key:
                jobs = self._queue.store.jobs(lease=lease.id)
                self._keep(lease.id, [job for job in jobs if not job.final])

    def stop(self) -> None:
        """Stop following leases; they stay held, on disk."""
        for task in self._tasks:
            task.cancel()

    @asynccontextmanager
    async def submitting(
        self, who: Identity, lease_id: str | None
    ) -> AsyncIterator[tuple[str, list[Job]]]:
        """Hold a lease during a submission, and until its jobs are over.

        :param lease_id: names a lease to use instead
        :returns: the lease's id, and a list to which the caller adds the jobs
        :raises Refused: if no lease is granted
        """
        jobs: list[Job] = []
        if lease_id is not None:
            yield lease_id, jobs
            return
        lease = await self._acquire(who)
        self._users[lease.id] += 1
        try:
            yield lease.id, jobs
        finally:
            self._keep(lease.id, jobs)
            self._users[lease.id] -= 1

    async def _acquire(self, who: Identity) -> Lease:
        longest = min(WAIT_SECONDS, self._queue.settings.leases.wait_seconds)
        request = LeaseRequest(job=self._purpose, key=self._key)
        while True:
            lease = await self._queue.leases.acquire(who, request, longest)
            if self._queue.leases.holds(lease.id):
                return lease

    def _keep(self, lease_id: str, jobs: Iterable[Job]) -> None:
        self._users[lease_id] += 1
        task = asyncio.get_running_loop().create_task(self._follow(lease_id, [*jobs]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, lease_id: str, jobs: list[Job]) -> None:
        for job in jobs:
            while not await self._over(job):
                if self._queue.failure:  # the restarted service follows the lease
                    return
        self._users[lease_id] -= 1
        if self._users[lease_id]:
            return
        del self._users[lease_id]
        if self._queue.leases.holds(lease_id) and not self._queue.failure:
            try:
                await self._queue.leases.end(lease_id, JOBS_OVER)
            except sqlite3.Error as error:
                logger.error(
                    "a lease of %s could not be closed: %s", self._purpose, error
                )

    async def _over(self, job: Job) -> bool:
        try:
            return (await self._queue.wait(_SERVICE, job.id, POLL_SECONDS)).final
        except Refused:  # the job was over, and has been purged
            return True

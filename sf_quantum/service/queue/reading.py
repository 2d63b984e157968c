"""Reads jobs for users: lists with forecasts, and results as they finish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, Job, Kind
from sf_quantum.service.queue.forecasts import Forecasts, Listed
from sf_quantum.service.queue.jobs.job_control import WRITE_SECONDS
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.service.queue.jobs.part_results import finished
from sf_quantum.service.queue.leases.live_leases import Leases
from sf_quantum.service.queue.long_work import LongWork
from sf_quantum.service.store.rows import NO_JOB
from sf_quantum.service.store.store import Store
from sf_quantum.threads import in_thread

T = TypeVar("T")
# kinds of jobs whose results can be read in parts, and what a part is a result of
PARTS: Mapping[Kind, str] = {"circuit": "circuits", "problem": "BQMs"}
# maximum length of a response with several parts; a response has at least one part
RESULT_CHARACTERS = 1_000_000


class JobReader:
    """Reads the jobs of one queue; long work is done in separate threads.

    :ivar lists: users' turns in which lists are read
    :ivar bodies: users' turns in which large payloads or results are read
    """

    def __init__(self, jobs: JobTable, leases: Leases, forecasts: Forecasts) -> None:
        self.lists = LongWork("lists")
        self.bodies = LongWork("bodies")
        self._store = jobs.store
        self._jobs = jobs
        self._leases = leases
        self._forecasts = forecasts

    def find(self, who: Identity, job_id: str | int) -> Job:
        """Find a job by id or number; refuse with 404 if the sender has no such job."""
        job = self._store.jobs.get(job_id)
        if job is None or not (who.admin or who.user == job.user):
            raise Refused(404, NO_JOB)
        return job

    def use(self, who: Identity, job_id: str | int) -> Job:
        """Find a job as :meth:`find` does, and mark its lease as used."""
        job = self.find(who, job_id)
        self._leases.touch(job.lease)
        return job

    def latest(
        self,
        who: Identity,
        *,
        lease: str | None = None,
        key: str | None = None,
        label: str | None = None,
        dialect: str | None = None,
        before: int | None = None,
        live: bool = False,
        limit: int = 1000,
    ) -> list[Job]:
        """List the latest jobs of the sender, or of all users for an admin; oldest first."""
        return self._store.jobs.latest(
            lease=lease,
            user=None if who.admin else who.user,
            key=key,
            label=label,
            dialect=dialect,
            before=before,
            live=live,
            limit=limit,
        )

    async def page(
        self,
        who: Identity,
        show: Callable[[Sequence[Listed]], T],
        *,
        lease: str | None = None,
        key: str | None = None,
        before: str | None = None,
        live: bool = False,
        limit: int = 1000,
    ) -> T:
        """List jobs as :meth:`latest` does, with their forecasts.

        :param show: makes the response; called in another thread
        :param key: if set, only the sender's own job with this key is listed, under any
            lease
        :param before: id of a job; only jobs that were submitted before it are listed
        """
        if key is not None:
            # a key finds only the sender's own jobs, even if the sender is an admin
            who, lease = Identity(who.user, admin=False), None
        if lease is not None:
            self._leases.find(who, lease)
            self._leases.touch(lease)
        last = None if before is None else self.find(who, before).number
        async with self.lists.turn(who.user):
            jobs = await self.lists.run(
                lambda: self.latest(
                    who, lease=lease, key=key, before=last, live=live, limit=limit
                )
            )
            forecasts = await self._forecasts.of_all(jobs)
            return await self.lists.run(lambda: show(forecasts()))

    async def show(self, who: Identity, job: Job, make: Callable[[], T]) -> T:
        """Make a response from a job in a thread; for a large job, in the user's turn."""
        if job.bytes <= RESULT_CHARACTERS:
            return await asyncio.to_thread(make)
        async with self.lists.turn(who.user):
            return await self.lists.run(make)

    async def result(self, who: Identity, job_id: str | int) -> StoredResult:
        """Find a job's result; refuse with 409 if the job has no result."""
        job = self.use(who, job_id)
        size = await asyncio.to_thread(self._store.jobs.result_bytes, job.number)
        if size is None:
            why = f": {job.note}" if job.note else ""
            raise Refused(409, f"the job is {job.state} and has no result{why}")
        return StoredResult(self._store, job.number, size)

    async def results(
        self,
        who: Identity,
        job_id: str,
        kind: Kind,
        first: int,
        seconds: float,
        make: Callable[[Job, list[str]], T],
    ) -> T:
        """Read the finished results of a job's circuits or BQMs.

        If there are none yet, wait until some finish, for a limited time.

        :param kind: a key of :data:`PARTS`; a job of another kind is refused with 409
        :param first: index of the first circuit or BQM
        :param seconds: longest wait
        :param make: makes the response from the job and the results as JSON texts, the last
            of which reaches :data:`RESULT_CHARACTERS` in total; called in another thread
        """
        if (job := self.find(who, job_id)).kind != kind:
            raise Refused(409, f"the job is a {job.kind}, it has no {PARTS[kind]}")
        deadline = time.monotonic() + seconds

        def read(job: Job) -> tuple[bool, T]:
            texts = finished(self._store, job.number, first, RESULT_CHARACTERS)
            return bool(texts), make(job, texts)

        while True:
            job = self.use(who, job_id)
            live = self._jobs.get(job.number)
            moved = None if live is None else live.moved
            async with self.bodies.turn(who.user):
                reading = in_thread(partial(read, job))
                is_ready, answer = await asyncio.wrap_future(reading)
            if job.final and not is_ready:
                self.find(who, job_id)  # 404 if it was deleted before it was read
            seconds_left = deadline - time.monotonic()
            if is_ready or job.final or seconds_left <= 0:
                return answer
            if moved is None:  # the job's submission or end is being written
                await asyncio.sleep(min(seconds_left, WRITE_SECONDS))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds_left):
                    await moved.wait()


@dataclass(frozen=True)
class StoredResult:
    """A result on disk, as JSON text.

    :param size: size in bytes
    """

    store: Store
    number: int
    size: int

    def part(self, first: int, most: int) -> bytes:
        """Read bytes, from index ``first``; empty if the result was deleted; blocks."""
        return self.store.jobs.result_part(self.number, first, most)

"""Submits, moves and cancels jobs, and ends the jobs of leases that have ended."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection
from itertools import islice

from sf_quantum.service.device.interface import Cost
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Lease, Submission
from sf_quantum.service.domain.reasons import RELEASED, Cause, Interruption, LeaseEnd
from sf_quantum.service.queue.events import log_job
from sf_quantum.service.queue.jobs import worker
from sf_quantum.service.queue.jobs.job_states import (
    Dispatched,
    Done,
    LiveJob,
    Queued,
    Stage,
    fitting,
)
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.service.queue.leases.lease_table import LeaseTable

# number of a lease's jobs that are changed before the event loop serves other requests
DONE_AT_ONCE = 50
# pause before the disk is read again, while a write is in progress
WRITE_SECONDS = 0.1


class JobControl:
    """Changes jobs for users and leases; belongs to the event loop's thread."""

    def __init__(self, table: JobTable, leases: LeaseTable) -> None:
        self.table = table
        self._store = table.store
        self._leases = leases
        # the latest write of a job for each lease
        self._adding: dict[str, asyncio.Future[tuple[Job, bool]]] = {}

    async def submit(
        self,
        lease: Lease,
        submission: Submission,
        cost: Cost,
        *,
        is_stored: bool = False,
    ) -> tuple[Job, bool]:
        """Add a job; the job is on disk when this returns.

        The write is queued before the first ``await``, and so precedes a later write of the
        lease's end.

        :param is_stored: see :meth:`.StoredJobs.add`
        :returns: the job, and whether it is new; an unfinished job with the same key is
            moved to this lease
        """
        seconds = cost.qpu_seconds, cost.compute_seconds
        writing = asyncio.wrap_future(
            self._store.jobs.add(lease, submission, *seconds, is_stored=is_stored)
        )
        self._adding[lease.id] = writing
        checked_for = fitting(self.table.device.description)
        reserved = lease.user, lease.job_class, len(submission.payload)
        self.table.counts.take(*reserved)
        # In a callback, since the job must be added to the table even if the caller is
        # cancelled.
        cancelling: list[asyncio.Task[None]] = []

        def added(written: asyncio.Future[tuple[Job, bool]]) -> None:
            if self._adding.get(lease.id) is written:
                del self._adding[lease.id]
            self.table.counts.give_back(*reserved)
            if written.exception() is not None:
                return
            job, new = written.result()
            if not new:
                cancelling.extend(self._move_to_lease(job.number))
                return
            log_job("submitted", job)
            if self._leases.accepting(job.lease) or lease.closed is not None:
                self.table.added(job, checked_for)
            else:  # the end of the lease has cancelled the job on disk
                self.table.observations.jobs[job.job_class, "Cancelled"] += 1
                log_job("cancelled", job, reason="its lease has ended")

        writing.add_done_callback(added)
        job, new = await asyncio.shield(writing)
        if not new:
            for task in cancelling:
                await asyncio.shield(task)
            await self.settled(job.number)
            job = self._store.jobs.get(job.number) or job
        return job, new

    async def added(self, lease_id: str) -> None:
        """Wait until all submitted jobs of a lease are on disk."""
        while (adding := self._adding.get(lease_id)) is not None:
            await asyncio.wait([adding])

    async def settled(self, number: int) -> None:
        """Wait until a job is not being cancelled; refuse with 503 if this takes too long."""
        live = self.table.get(number)
        if live is None or live.interruption is None or not live.interruption.cancels:
            return
        if not await live.until((Queued, Stage, Done), worker.INTERRUPT_SECONDS):
            detail = "the job is being cancelled, try again later"
            raise Refused(503, detail, headers={"Retry-After": "1"})

    async def wait(self, number: int, seconds: float) -> None:
        """Wait for the end of a job, for a limited time."""
        live = self.table.get(number)
        if live is not None and seconds > 0:
            await live.until(Done, seconds)
        elif seconds > 0:  # its submission or the end of its lease is being written
            await asyncio.sleep(min(seconds, WRITE_SECONDS))

    async def cancel(self, number: int, interruption: Interruption) -> None:
        """Cancel a job, and wait until the device has interrupted it.

        :raises sqlite3.Error: if the cancellation cannot be written; the job is then
            pending or continues
        """
        note = interruption.note()
        while True:
            live = self.table.get(number)
            if live is None:
                await asyncio.wrap_future(
                    self._store.progress.cancel_waiting(number, note)
                )
                # the job may just have been written, and not be in the table yet
                if self._adding:
                    await asyncio.wait([*self._adding.values()])
                if self.table.get(number) is None:
                    return
            elif isinstance(live.state, Dispatched):
                # written first, since the service may die before the device has stopped the
                # job
                await asyncio.wrap_future(
                    self._store.progress.note_cancellation(number, note)
                )
                if isinstance(live.state, Dispatched):
                    live.interrupt(interruption)
                    await live.until(Done, worker.INTERRUPT_SECONDS)
                    return
            elif isinstance(live.state, Queued) or live.ends_with_lease:
                await self._cancel_queued(live, interruption)
                return
            else:  # another cancellation is being written
                await live.moved.wait()

    async def _cancel_queued(self, live: LiveJob, interruption: Interruption) -> None:
        table, note = self.table, interruption.note()
        table.withdrawn(live, interruption)
        try:
            await asyncio.wrap_future(
                self._store.progress.cancel_waiting(live.number, note)
            )
        except sqlite3.Error:
            # If the lease accepts no more jobs, its end cancels the job on disk. The lease of
            # a quality job never accepts jobs, and its end cancels no job.
            accepts_jobs = self._leases.accepting(live.entry.lease) is not None
            if accepts_jobs or live.entry.job_class == "quality":
                table.restored(live)
            else:
                table.cancelled(live)
            raise
        table.cancelled(live)

    def _move_to_lease(self, number: int) -> list[asyncio.Task[None]]:
        """Move a job to the lease that it has on disk, or cancel it if that lease has ended.

        :returns: the task of the cancellation, if there is one
        """
        job, live = self._store.jobs.get(number), self.table.get(number)
        ended = Interruption(Cause.CANCELLATION, lease_end=RELEASED)
        if job is None or job.final:
            if live is not None and isinstance(live.state, Queued):
                # the end of the lease to which the job was moved has cancelled it on disk
                self.table.withdrawn(live, ended)
                self.table.cancelled(live)
            return []
        if live is None:  # the job has just ended with its previous lease
            live = self.table.added(job)
        if (lease := self._leases.accepting(job.lease)) is not None:
            self.table.moved(live, lease.lease)
            return []
        if isinstance(live.state, Dispatched):
            live.entry.lease = job.lease
        return [asyncio.create_task(self.cancel(number, ended))]

    # events of leases

    async def lease_granted(self, lease_id: str) -> None:
        """Make the jobs pending that waited with a lease."""
        while waiting := self.table.waiting_with(lease_id):
            for live in [*islice(waiting.values(), DONE_AT_ONCE)]:
                self.table.lease_granted(live)
            await asyncio.sleep(0)

    def interrupt_lease(self, lease_id: str, end: LeaseEnd) -> list[LiveJob]:
        """Interrupt the jobs of a lease that accepts no more jobs, and return these jobs.

        The caller then cancels the queued jobs on disk, and calls :meth:`end_lease`.
        """
        interruption = Interruption(Cause.LEASE_END, lease_end=end)
        queued = self.table.queued_under(lease_id)
        for live in queued:
            self.table.withdrawn(live, interruption)
        running = [
            live for live in self.table.on_device if live.entry.lease == lease_id
        ]
        for live in running:
            live.interrupt(interruption)
        return queued + running

    async def end_lease(self, lease_id: str, interrupted: Collection[LiveJob]) -> None:
        """End the queued jobs of an ended lease, and wait for the end of its other jobs.

        :param interrupted: jobs that :meth:`interrupt_lease` returned
        """
        for index, live in enumerate(interrupted):
            if index % DONE_AT_ONCE == 0:
                await asyncio.sleep(0)
            if isinstance(live.state, Dispatched):
                await live.until(Done, worker.INTERRUPT_SECONDS)
            # another submission may have moved the job to another lease
            elif live.ends_with_lease and live.entry.lease == lease_id:
                self.table.cancelled(live)

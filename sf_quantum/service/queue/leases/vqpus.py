"""The vQPUs: which leases occupy them, and how leases begin and end.

Requests wait in :class:`~.waiting_requests.WaitingRequests`; each lease is a state
machine with the states in :mod:`.lease_states`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from sf_quantum.protocol.leases import ReservedTime
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import JobClass, Lease, LeaseRequest
from sf_quantum.service.domain.reasons import LeaseEnd, LeaseEndCause
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.background import BackgroundTasks
from sf_quantum.service.queue.events import log_lease, log_lease_end
from sf_quantum.service.queue.jobs.job_control import JobControl
from sf_quantum.service.queue.jobs.job_states import LiveJob
from sf_quantum.service.queue.leases.lease_ends import LeaseEnds
from sf_quantum.service.queue.leases.lease_states import (
    Ended,
    Ending,
    Granting,
    Held,
    LiveLease,
    Opening,
    Position,
    Registering,
    Waiting,
)
from sf_quantum.service.queue.leases.lease_table import LeaseTable
from sf_quantum.service.queue.leases.occupancy import Occupancy
from sf_quantum.service.queue.leases.reservations import Reservations, bounded
from sf_quantum.service.queue.leases.waiting_requests import (
    ClientRequest,
    StoredRequest,
    WaitingRequests,
)
from sf_quantum.service.queue.writing import write_until

STOPPING = "the service is being stopped"
logger = logging.getLogger(__name__)


class VQpus:
    """Assigns vQPUs to waiting requests, and moves the leases from state to state.

    Belongs to the event loop's thread.

    :ivar number: number of vQPUs
    :ivar ends: decides when a lease ends without being released
    """

    def __init__(
        self, settings: ServiceSettings, table: LeaseTable, control: JobControl
    ) -> None:
        self.number = settings.vqpus
        self.table = table
        self.ends = LeaseEnds(settings, control.table)
        self.requests = WaitingRequests()
        self.stopped = False
        self.availability = control.table.availability
        self.reservations = Reservations(control.table)
        self._control = control
        self._jobs = control.table
        self._store = control.table.store
        self._occupancy = Occupancy(control.table)
        #: tasks that write leases to disk and end leases
        self.background = BackgroundTasks()

    def start(self) -> None:
        """Resume the held and waiting leases of the previous service process."""
        ages = self._store.leases.ages()
        for lease in self._store.leases.held():
            if lease.waiting:
                live = LiveLease(lease, Waiting())
                self._enqueue(live)
            else:
                vqpu_use = self._occupancy.begin(lease, ages[lease.id])
                live = LiveLease(lease, Opening(vqpu_use))
                self._hold(live, live.expect(Opening))
            self.table.add(live)

    def reconfigure(self, settings: ServiceSettings) -> None:
        """Apply new settings; a new idle limit also applies to held leases."""
        self.ends.settings = settings
        for live in self.table:
            live.activity.set()

    def stop(self) -> None:
        """Refuse requests whose clients are waiting; all leases stay unchanged on disk."""
        self.stopped = True
        self.requests.refuse(STOPPING)
        for live in self.table:
            if isinstance(live.state, Held):
                live.state.watch.cancel()

    def resize(self, number: int) -> None:
        """Change the number of vQPUs; this ends no lease."""
        self.number = number
        self._assign()

    def availability_changed(self) -> None:
        """Grant leases if the QPU accepts work; otherwise refuse the waiting requests."""
        self._assign()
        if not self.availability.accepts_work:
            self.requests.refuse(self.availability.reason)

    def device_status_reported(self) -> None:
        """Grant leases whose reservation has begun; end leases whose reservation has ended.

        A reservation may end early: the vendor may cancel, move or shorten it, or a
        system clock may be changed.
        """
        if not self.reservations.has_any:
            return
        for live in self.table:
            if isinstance(live.state, Held) and self.reservations.has_ended(
                live.lease.reservation
            ):
                self.background.start(
                    self.end_or_log_error(live, LeaseEndCause.EXPIRED)
                )
        self._assign()

    def request(
        self, user: str, job_class: JobClass, request: LeaseRequest
    ) -> ClientRequest:
        """Add a request, which is granted immediately if a vQPU is free."""
        waiting = self.requests.add_for_client(user, job_class, request)
        self._assign()
        return waiting

    def register(self, waiting: ClientRequest) -> LiveLease:
        """Replace a client's request with a lease on disk that waits for a vQPU."""
        self.requests.withdraw(waiting)
        lease = waiting.new_lease(self.ends.settings)
        # a lease has no expiry before it is granted
        lease = replace(lease, waiting=True, expires=None)
        live = LiveLease(lease, Registering())
        self.table.add(live)
        self.background.start(self._register(live))
        return live

    async def client_gone(self, live: LiveLease) -> None:
        """End a lease, unless another request with the same key shares it."""
        live.clients -= 1
        if not live.clients:
            await self.end_or_log_error(live, LeaseEndCause.CLIENT_GONE)

    async def end(
        self,
        lease_id: str,
        end: LeaseEnd,
        record: Callable[[sqlite3.Connection], None] | None = None,
    ) -> Lease:
        """End a lease, unless it is already ending.

        :param record: writes an audit entry, in the transaction that ends the lease
        """
        live = self.table.get(lease_id)
        # not in memory: close() returns the ended lease unchanged, or refuses with 404
        if live is None:
            closed = self._store.leases.close(lease_id, end.reason, end.note)
            return await asyncio.wrap_future(closed)
        await self.settled(live)
        if isinstance(live.state, Waiting | Held):
            self.requests.lease_ended(live)
            jobs = self._control.interrupt_lease(lease_id, end)
            closing = asyncio.create_task(self._close(live, jobs, record))
            live.move(live.state.ended(end, closing))
        if not isinstance(live.state, Ending | Ended):
            raise Refused(404, "no such lease")
        # shielded: the lease ends even if the caller is cancelled
        return await asyncio.shield(live.state.closing)

    async def settled(self, live: LiveLease) -> None:
        """Wait until the pending write of a lease or of its grant has succeeded or failed.

        :raises Refused: 503 if the service stops before a grant is on disk
        """
        while isinstance(live.state, Registering | Opening | Granting):
            await live.moved.wait()
            if self.stopped and isinstance(live.state, Granting):
                raise Refused(503, STOPPING)

    def position(self, live: LiveLease) -> Position | None:
        """Return the position of a lease's request.

        :returns: ``None`` if unknown, as for a lease that was granted before a restart
        """
        if live.vqpu_use is not None:
            return live.vqpu_use.position
        return self.requests.position(live)

    # a lease begins

    def _assign(self) -> None:
        # normally, a timer ends a request's wait at its latest start, but the system clock may
        # be changed
        for late in self.requests.refuse_late():
            self._end_late(late)
        while (
            self.requests
            and not self.stopped
            and self.availability.accepts_work
            and len(held := self.table.held) < self.number
        ):
            policy, running = self._jobs.policy, self.reservations.running
            if (waiting := self.requests.take(policy, held, running)) is None:
                return
            if isinstance(waiting, StoredRequest):
                self._grant(waiting, running)
            elif isinstance(waiting, ClientRequest):
                self._open(waiting, running)

    def _grant(
        self, stored: StoredRequest, running: Mapping[str, ReservedTime]
    ) -> None:
        live = stored.live
        lease = bounded(stored.new_lease(self.ends.settings), running)
        live.lease = replace(lease, id=live.lease.id)
        vqpu_use = self._occupancy.begin(live.lease, position=stored.position)
        live.move(live.expect(Waiting).granted(vqpu_use))
        self.background.start(self._write_grant(live))

    def _open(
        self, waiting: ClientRequest, running: Mapping[str, ReservedTime]
    ) -> None:
        lease = bounded(waiting.new_lease(self.ends.settings), running)
        vqpu_use = self._occupancy.begin(lease, position=waiting.position)
        live = LiveLease(lease, Opening(vqpu_use))
        self.table.add(live)
        waiting.granted.set_result(live)
        for duplicate in self.requests.take_duplicates(waiting):
            duplicate.granted.set_result(live)
            live.clients += 1
        self.background.start(self._write_new(live))

    async def _register(self, live: LiveLease) -> None:
        try:
            await asyncio.wrap_future(self._store.leases.add(live.lease))
        except sqlite3.Error as error:
            self.table.remove(live)
            live.move(live.expect(Registering).failed(error))
        else:
            live.move(live.expect(Registering).written())
            self._enqueue(live)
        self._assign()

    async def _write_new(self, live: LiveLease) -> None:
        try:
            await asyncio.wrap_future(self._store.leases.add(live.lease))
        except sqlite3.Error as error:
            self._occupancy.end(live.lease)
            self.table.remove(live)
            live.move(live.expect(Opening).failed(error))
            self._assign()
        else:
            log_lease("granted", live.lease)
            self._hold(live, live.expect(Opening))

    async def _write_grant(self, live: LiveLease) -> None:
        try:
            await write_until(
                lambda: self.stopped, lambda: self._store.leases.grant(live.lease)
            )
        # write_until() gives up only when the service is stopping
        except sqlite3.Error:
            live.wake()
            return
        log_lease("granted", live.lease)
        self._hold(live, live.expect(Granting))
        await self._control.lease_granted(live.lease.id)

    def _enqueue(self, live: LiveLease) -> None:
        """Add a lease on disk to the waiting requests.

        A timer ends its wait at its latest start.
        """
        self.requests.add_for_lease(live)
        if (seconds := seconds_until(live.lease.latest_start)) < math.inf:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, seconds), self._end_late, live)

    def _end_late(self, live: LiveLease) -> None:
        if isinstance(live.state, Waiting) and not self.stopped:
            self.requests.lease_ended(live)
            self.background.start(
                self.end_or_log_error(live, LeaseEndCause.NOT_GRANTED)
            )

    def _hold(self, live: LiveLease, state: Opening | Granting) -> None:
        live.touch()
        watch = asyncio.create_task(self._watch(live))
        live.move(state.written(watch))

    # a lease ends

    async def _watch(self, live: LiveLease) -> None:
        """End a held lease once it is idle too long, expires or has used its QPU seconds."""
        while not self.stopped:
            live.activity.clear()
            seconds, cause = self.ends.next_end(live)
            if seconds <= 0:
                self.background.start(self.end_or_log_error(live, cause))
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(None if seconds == math.inf else seconds):
                    await live.activity.wait()

    async def end_or_log_error(self, live: LiveLease, cause: LeaseEndCause) -> None:
        """End a lease when no client is waiting for the result.

        An error is logged instead of raised.
        """
        try:
            await self.end(live.lease.id, self.ends.lease_end(live.lease, cause))
        except (Refused, sqlite3.Error) as error:
            logger.error("lease %.8s could not be ended: %s", live.lease.id, error)

    async def _close(
        self,
        live: LiveLease,
        jobs: Sequence[LiveJob],
        record: Callable[[sqlite3.Connection], None] | None,
    ) -> Lease:
        lease, state = live.lease, live.expect(Ending)
        end, vqpu_use = state.end, state.vqpu_use
        closed = await write_until(
            lambda: self.stopped,
            lambda: self._store.leases.close(lease.id, end.reason, end.note, record),
        )
        live.move(state.written())
        held_seconds = 0.0 if vqpu_use is None else time.monotonic() - vqpu_use.since
        log_lease_end(closed, end.cause, held_seconds)
        if vqpu_use is not None:
            self._occupancy.end(lease)
        self._assign()
        await self._control.end_lease(lease.id, jobs)
        self.table.remove(live)
        return closed


def seconds_until(moment: float | None) -> float:
    """Return the seconds until a time in seconds since the epoch; infinity for ``None``."""
    return math.inf if moment is None else moment - time.time()

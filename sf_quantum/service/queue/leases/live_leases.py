"""The leases of one QPU, as users request, use and release them."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from sf_quantum.files import JSON
from sf_quantum.protocol.leases import LATEST_START, LEASE_HEADER
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, Lease, LeaseRequest
from sf_quantum.service.domain.reasons import RELEASED, LeaseEnd, end_message
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.leases import entitlements
from sf_quantum.service.queue.leases.lease_states import (
    Ended,
    Ending,
    Granting,
    Held,
    LiveLease,
    Opening,
)
from sf_quantum.service.queue.leases.slurm_jobs import OwnCluster
from sf_quantum.service.queue.leases.vqpus import STOPPING, VQpus, seconds_until
from sf_quantum.service.queue.leases.waiting_requests import (
    ClientRequest,
    not_granted,
)
from sf_quantum.service.store import audit
from sf_quantum.service.store.store import Store
from sf_quantum.text import plural, utc

# Longest wait for a lease's end to be written and its jobs to stop; a device may take
# worker.INTERRUPT_SECONDS to stop a job.
RELEASE_SECONDS = 8.0


class Leases:
    """The leases of one QPU; checks the permissions of users.

    Requests of a user with the same key share one lease. If no client waits for the grant
    (:meth:`request`), the lease is on disk while it waits for a vQPU: it survives restarts,
    accepts jobs, which wait with the lease, and may end before it is granted.
    """

    def __init__(self, vqpus: VQpus, store: Store, cluster: OwnCluster) -> None:
        self._vqpus = vqpus
        self._table = vqpus.table
        self._store = store
        self._cluster = cluster

    @property
    def settings(self) -> ServiceSettings:
        return self._vqpus.ends.settings

    @property
    def held(self) -> list[Lease]:
        """The leases that occupy a vQPU, oldest first."""
        return self._table.held

    @property
    def on_disk(self) -> list[Lease]:
        """The leases that are held or wait on disk, including leases being written."""
        return [live.lease for live in self._table if live.is_active]

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a vQPU."""
        return len(self._vqpus.requests)

    @property
    def waiting_on_disk(self) -> list[str]:
        """The ids of leases that wait on disk, in the order of their requests."""
        return [lease.id for lease in self._vqpus.requests.leases]

    async def acquire(
        self,
        who: Identity,
        request: LeaseRequest,
        wait_seconds: float = 0.0,
        gone: asyncio.Event | None = None,
    ) -> Lease:
        """Acquire a lease; wait for a vQPU in the order of class, priority and policy.

        :param gone: event that is set when the client has disconnected
        :raises Refused: 403 without permission, 409 if no vQPU became free in time, or no
            vQPU can become free by the request's latest start, 503 if the QPU accepts no work
        """
        user = entitlements.lease_user(self.settings, who, request.user)
        if (existing := await self._find_by_key(user, request.key)) is not None:
            return existing
        request = await entitlements.completed(
            self.settings, self._cluster, who, user, request
        )
        # the lease may have been granted while Slurm was queried
        if (existing := await self._find_by_key(user, request.key)) is not None:
            return existing
        entitlements.check_priority(self.settings, who, user, request)
        self._check_open(request)
        if wait_seconds > self.settings.leases.wait_seconds:
            detail = f"expected at most {self.settings.leases.wait_seconds:g} seconds"
            raise Refused(422, detail, "wait")
        seconds = min(wait_seconds, seconds_until(request.latest_start))
        vqpus, waiting = self._vqpus, self._add_request(user, request)
        try:
            await waiting.wait(gone, seconds)
            if vqpus.requests.withdraw(waiting):
                if seconds < wait_seconds:
                    raise not_granted(request)
                detail = f"{_all_held(vqpus.number)}, try again later"
                name = request.reservation
                if name is not None and name not in vqpus.reservations.running:
                    detail = vqpus.reservations.why(name)
                raise Refused(409, detail, headers={"Retry-After": "1"})
            live = waiting.granted.result()
            # the write to disk may take longer than the client's wait
            await live.opened()
        except asyncio.CancelledError:
            if not vqpus.requests.withdraw(waiting) and not waiting.granted.exception():
                vqpus.background.start(vqpus.client_gone(waiting.granted.result()))
            raise
        if gone is not None and gone.is_set():
            await vqpus.client_gone(live)
        return live.lease

    async def request(self, who: Identity, request: LeaseRequest) -> Lease:
        """Acquire a lease, or store a lease that accepts jobs while it waits for a vQPU.

        :param request: request with a key, without a Slurm job
        :raises Refused: 403 without permission, 409 if the user has too many leases or the
            latest start cannot be met, 503 if the QPU accepts no work
        """
        user = entitlements.lease_user(self.settings, who, request.user)
        existing = await self._find_by_key(user, request.key, waiting=True)
        if existing is not None:
            return existing
        entitlements.check_priority(self.settings, who, user, request)
        self._check_open(request)
        waiting = self._add_request(user, request)
        if waiting.granted.done():
            live = waiting.granted.result()
        else:
            live = self._vqpus.register(waiting)
        try:
            await live.opened()
        except asyncio.CancelledError:
            self._vqpus.background.start(self._vqpus.client_gone(live))
            raise
        return live.lease

    def use(
        self, who: Identity, lease_id: str | None, *, waiting: bool = False
    ) -> Lease:
        """Find a lease that accepts jobs, and mark it as used; refuse other leases with 403.

        :param waiting: whether the lease may still wait for a vQPU
        """
        live = self._table.get(lease_id or "")
        if (
            live is not None
            and visible(who, live.lease)
            and (isinstance(live.state, Held) or (waiting and live.accepts_jobs))
        ):
            live.touch()
            return live.lease
        detail = "needs a lease that is held"
        with suppress(Refused):
            lease = self.find(who, lease_id or "")
            reason = lease.reason
            if live is not None and isinstance(live.state, Ending | Ended):
                reason = live.state.end.reason
            if reason is not None:
                detail = end_message(reason)
            elif lease.waiting:
                detail = "the lease waits for a vQPU"
        raise Refused(403, detail, LEASE_HEADER)

    def is_active(self, lease_id: str) -> bool:
        live = self._table.get(lease_id)
        return live is not None and live.is_active

    def find(self, who: Identity, lease_id: str) -> Lease:
        """Find a lease, even if it has ended; refuse with 404 unless the sender may see it."""
        live = self._find_live(lease_id)
        lease = self._store.leases.get(lease_id) if live is None else live.lease
        if lease is None or not visible(who, lease):
            raise Refused(404, "no such lease")
        return lease

    def latest(self, who: Identity) -> list[Lease]:
        """List the latest 1000 leases, including ended leases, the latest first."""
        return self._store.leases.latest(None if who.admin else who.user)

    def list(self, who: Identity, *, waiting: bool = False) -> list[Lease]:
        """List the leases that occupy a vQPU, and with ``waiting`` also waiting leases."""
        return [
            live.lease
            for live in self._table
            if (live.vqpu_use is not None or (waiting and live.is_active))
            and visible(who, live.lease)
        ]

    def renew(self, who: Identity, lease_id: str) -> Lease:
        """Mark a lease as used; its expiry does not change."""
        self.find(who, lease_id)
        return self.use(who, lease_id)

    async def release(
        self, who: Identity, lease_id: str, *, keep_position: bool = False
    ) -> Lease:
        """End a lease and cancel its jobs; does nothing if the lease has ended.

        The release of another user's lease is recorded in the audit.

        :param keep_position: whether the next request with the lease's key, within
            :data:`.POSITION_SECONDS`, gets the position of the lease's request
        :raises Refused: 403 for ``keep_position`` unless the sender is an admin, 404 if the
            sender has no such lease, 503 if the end could not be written in time; the service
            continues to try
        """
        lease, record = self.find(who, lease_id), None
        if keep_position:
            # otherwise, a user could acquire one lease after another ahead of all others
            if not who.admin:
                raise Refused(403, "only an admin may have a place kept", "keep_place")
            live = self._table.get(lease.id)
            position = None if live is None else self._vqpus.position(live)
            if position is not None:
                requests = self._vqpus.requests
                requests.keep_position(lease.user, lease.key, position)
        if who.user != lease.user:
            about: dict[str, JSON] = {"lease": lease.id, "of": lease.user}
            old, new = {"held": True}, {"held": False}
            entry = audit.AuditEntry(who.user, "release", about, old, new)
            record = partial(audit.record, entry=entry)
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                return await self.end(lease_id, RELEASED, record)
        except TimeoutError as error:
            detail = "the lease is being released, but that is not on disk yet"
            raise Refused(503, detail, headers={"Retry-After": "1"}) from error

    async def end(
        self,
        lease_id: str,
        end: LeaseEnd,
        record: Callable[[sqlite3.Connection], None] | None = None,
    ) -> Lease:
        """End a lease, unless it is already ending.

        :param record: writes an audit entry in the same transaction
        """
        return await self._vqpus.end(lease_id, end, record)

    def touch(self, lease_id: str) -> None:
        """Mark a lease as used."""
        self._table.touch(lease_id)

    def idle_seconds_left(self, lease: Lease) -> float | None:
        """Return for how many more seconds a lease may be idle; ``None``: no limit."""
        live = self._find_live(lease.id)
        left = math.inf if live is None else self._vqpus.ends.idle_seconds_left(live)
        return None if left == math.inf else max(0.0, left)

    def seconds_left(self, lease: Lease) -> float | None:
        """Return for how many more seconds a lease is held at most; ``None``: no limit."""
        live = self._table.get(lease.id)
        vqpu_use = None if live is None else live.vqpu_use
        if vqpu_use is None or vqpu_use.expires is None:
            return None
        return max(0.0, vqpu_use.expires - time.monotonic())

    def idle_expires_at(self, lease: Lease) -> float | None:
        """Return when a lease ends if it is not used until then; ``None``: no limit."""
        left = self.idle_seconds_left(lease)
        return None if left is None else time.time() + left

    def _find_live(self, lease_id: str) -> LiveLease | None:
        """Find a lease whose end is not on disk."""
        live = self._table.get(lease_id)
        return None if live is None or isinstance(live.state, Ended) else live

    def _check_open(self, request: LeaseRequest) -> None:
        """Refuse a request if the QPU accepts no work, or opens after the latest start."""
        if seconds_until(latest := request.latest_start) <= 0:
            raise not_granted(request)
        if latest is not None and latest < self._vqpus.availability.opens_at:
            why = self._vqpus.availability.reason
            detail = f"cannot be granted by {utc(latest)}: {why}"
            raise Refused(409, detail, LATEST_START)
        self._vqpus.availability.check()
        self._vqpus.reservations.check(request)
        if self._vqpus.stopped:
            raise Refused(503, STOPPING)

    def _add_request(self, user: str, request: LeaseRequest) -> ClientRequest:
        """Add a request, which is granted immediately if a vQPU is free."""
        request = entitlements.with_share(self.settings, user, request)
        job_class = entitlements.lease_class(self.settings, user, request)
        limit = self.settings.limits.leases
        users = [lease.user for lease in self.held]
        users += [waiting.user for waiting in self._vqpus.requests]
        if users.count(user) >= limit:
            # 409, not 429: after 409, clients wait for a lease, as when all vQPUs are held
            detail = (
                f"the user holds or waits for {plural(limit, 'lease')}, try again later"
            )
            raise Refused(409, detail, headers={"Retry-After": "1"})
        return self._vqpus.request(user, job_class, request)

    async def _find_by_key(
        self, user: str, key: str | None, *, waiting: bool = False
    ) -> Lease | None:
        """Find the active lease with a key; wait until the lease is on disk.

        :param waiting: whether the lease may still wait for a vQPU
        """
        while key is not None:
            matches = (
                live
                for live in self._table
                if (live.lease.user, live.lease.key) == (user, key)
                and live.is_active
                and (waiting or isinstance(live.state, Granting | Opening | Held))
            )
            if (live := next(matches, None)) is None:
                return None
            if isinstance(live.state, Held) or (waiting and live.accepts_jobs):
                live.touch()
                live.clients += 1
                return live.lease
            await self._vqpus.settled(live)
        return None


def visible(who: Identity, lease: Lease) -> bool:
    return who.admin or who.user == lease.user


def _all_held(vqpus: int) -> str:
    return "the only vQPU is held" if vqpus == 1 else f"all {vqpus} vQPUs are held"

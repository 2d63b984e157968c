"""The life of a lease, from the request until its jobs have left the device.

::

    a request            a vQPU is free,             on disk
    ----------> WAITING -------------------> GRANTED --------> HELD <---- restart
                   |     and it is the next     |               |
                   |     of its class           |               | release, idle, expired,
     no vQPU in    |                            |               | its Slurm job is gone,
     time, client  |          cannot be written |               | its client is gone
     gone, QPU not v                            |               v
     open       refused                         |             ENDING   takes no jobs; those
                                                |               |      that wait or run
                                                |               |      are interrupted
                                                |               | on disk: the vQPU is free
                                                +---> ENDED <---+

Requests of a user with the same key share one lease. A request that no client waits on
(:meth:`Leases.request`) has its lease on disk already while that is ``WAITING``, also
after a restart; such a lease takes jobs, which wait with it, and it may end before it is
granted. At most as many leases as there are
vQPUs are ``GRANTED``, ``HELD`` or ``ENDING``, unless their number was lowered: that ends
no lease. The write of an end is repeated until it succeeds; a service that starts holds
all leases without an end on disk. An ``ENDED`` lease stays in memory until the device has
interrupted its job, and is in the store after that.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import sqlite3
import time
from bisect import insort
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from sf_quantum import backoff
from sf_quantum.files import JSON
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    CLASSES,
    RANKS,
    Identity,
    JobClass,
    Lease,
    LeaseRequest,
)
from sf_quantum.service.domain.reasons import RELEASED, LeaseEnd, LeaseEndCause
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.events import log_lease, log_lease_end
from sf_quantum.service.queue.jobs.live_jobs import LiveJob, LiveJobs
from sf_quantum.service.queue.leases import entitlements, slurm_jobs
from sf_quantum.service.store import audit
from sf_quantum.service.store.accounting import lease_seconds

# for the end of a lease to be written, and its job to be interrupted, which takes up to
# live_jobs.LET_GO_SECONDS
RELEASE_SECONDS = 8.0
# answers in a row: Slurm may not list a job between two of its states
CLEAR_ANSWERS = 2
# for which a refused request keeps its position, until it is repeated
POSITION_SECONDS = 60.0
STOPPING = "the service is being stopped"
_T = TypeVar("_T")
logger = logging.getLogger(__name__)


class LeaseState(Enum):
    """See the module."""

    WAITING = auto()
    GRANTED = auto()
    HELD = auto()
    ENDING = auto()
    ENDED = auto()


_W, _G, _H, _E, _X = LeaseState
#: from each state; ``None`` is before the request, or before the start of the service
TRANSITIONS: Mapping[LeaseState | None, set[LeaseState]] = {
    None: {_W, _H},
    _W: {_G, _E},
    _G: {_H, _X},
    _H: {_E},
    _E: {_X},
    _X: set(),
}


@dataclass(order=True)
class WaitingRequest:
    """A request for a lease that waits for a vQPU.

    :param rank: of its class
    :param granted: the lease, or the refusal
    :param request: with its project
    :param passed: how many later requests of the class were granted before it
    :param live: the lease, if it is on disk already
    """

    rank: int
    position: int
    user: str = field(compare=False)
    request: LeaseRequest = field(compare=False)
    passed: int = field(compare=False)
    granted: asyncio.Future[LiveLease] = field(
        compare=False, default_factory=asyncio.Future
    )
    live: LiveLease | None = field(default=None, compare=False)

    async def wait(self, gone: asyncio.Event | None, seconds: float) -> None:
        """Wait for the grant, the client's disconnection or the end of the time."""
        disconnected = asyncio.ensure_future((gone or asyncio.Event()).wait())
        waits: set[asyncio.Future[LiveLease] | asyncio.Task[bool]]
        waits = {self.granted, disconnected}
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        disconnected.cancel()


@dataclass(eq=False)
class LiveLease:
    """A lease that is granted or on disk, until its jobs are off the device.

    :param written: set when it is on disk, or could not be written
    :param granting: writes the grant of one that is on disk already
    :param error: of the write
    :param clients: requests that it was granted to, without those of lost clients
    :param granted: by the monotonic clock
    :param last_used: by the same clock
    :param expires: its latest end, by the same clock
    :param timer: of its next check
    :param closing: the task that ends it
    :param gone_answers: of Slurm, in a row, that its job is gone
    :param place: position of its request, and how many later ones were granted before it
    """

    lease: Lease
    granted: float
    state: LeaseState | None = None
    written: asyncio.Event = field(default_factory=asyncio.Event)
    granting: asyncio.Task[None] | None = None
    error: sqlite3.Error | None = None
    clients: int = 1
    last_used: float = field(default_factory=time.monotonic)
    expires: float = math.inf
    timer: asyncio.TimerHandle | None = None
    end: LeaseEnd | None = None
    closing: asyncio.Task[Lease] | None = None
    gone_answers: int = 0
    place: tuple[int, int] | None = None

    @property
    def active(self) -> bool:
        """Whether jobs may be submitted under it, once it is on disk."""
        return self.state in (_W, _G, _H)

    def move(self, state: LeaseState) -> None:
        """Change the state, as :data:`TRANSITIONS` allows."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a lease cannot move from {self.state} to {state}")
        self.state = state


class Leases:
    """The leases of one QPU; belongs to the event loop's thread.

    The policy of the jobs chooses among the waiting requests.
    """

    def __init__(self, settings: ServiceSettings, jobs: LiveJobs) -> None:
        self.vqpus = settings.vqpus
        self.settings = settings
        self._jobs = jobs
        self._store = jobs.store
        self._availability = jobs.availability
        self._policy = jobs.policy
        self._cluster = slurm_jobs.OwnCluster()
        self._leases: dict[str, LiveLease] = {}
        # the next one first
        self._waiting: list[WaitingRequest] = []
        self._requests = 0
        # by user and key: position, count of later grants, and expiry
        self._positions: dict[tuple[str, str | None], tuple[int, int, float]] = {}
        self._stopped = False
        jobs.job_over = self._job_over
        self._tasks: set[asyncio.Task[None]] = set()
        ages = self._store.lease_ages()
        for lease in self._store.held():
            if lease.waiting:
                self._leases[lease.id] = _waiting_lease(lease)
            else:
                self._add(lease, _H, age=ages[lease.id])

    def start(self) -> None:
        """Resume the leases of the previous service, held and waiting."""
        for live in self._leases.values():
            live.last_used = time.monotonic()
            if live.lease.waiting:
                waiting = self._wait(
                    live.lease.user, live.lease.job_class, _asked(live.lease)
                )
                waiting.live = live
                self._queue(waiting, live)
            else:
                self._hold(live)

    def reconfigure(self, settings: ServiceSettings) -> None:
        """Take other settings; another idle limit applies to the held leases, too."""
        self.settings = settings
        for live in self._leases.values():
            self._watch(live)

    def stop(self) -> None:
        """Refuse the waiting requests; leases stay held, on disk."""
        self._stopped = True
        self._refuse_waiting(STOPPING)
        for live in self._leases.values():
            if live.timer is not None:
                live.timer.cancel()

    @property
    def held(self) -> list[Lease]:
        """The leases that take a vQPU, oldest first."""
        taken = [one for one in self._leases.values() if one.state is not _X]
        return [one.lease for one in taken if not one.lease.waiting]

    @property
    def on_disk(self) -> list[Lease]:
        """The leases that are held, and those on disk that wait for a vQPU."""
        return [one.lease for one in self._leases.values() if one.active]

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting_on_disk(self) -> list[str]:
        """The ids of those that wait on disk, with jobs, in the order of their requests."""
        return [one.live.lease.id for one in self._waiting if one.live is not None]

    def resize(self, vqpus: int) -> None:
        """Change the number of vQPUs, which ends no lease."""
        self.vqpus = vqpus
        self._grant()

    def availability_changed(self) -> None:
        """Grant leases if the QPU takes work, else refuse the waiting requests."""
        self._grant()
        if not self._availability.works:
            self._refuse_waiting(self._availability.reason)

    async def acquire(
        self,
        who: Identity,
        request: LeaseRequest,
        wait_seconds: float = 0.0,
        gone: asyncio.Event | None = None,
    ) -> Lease:
        """Acquire a lease, or wait for one: by class, then as the policy chooses.

        :param gone: set when the client has disconnected
        :raises Refused: 403 without permission, 409 if no vQPU was free in time, 503 if
            the QPU takes no work
        """
        user = entitlements.lease_user(self.settings, who, request.user)
        if (same := await self._known(user, request.key)) is not None:
            return same
        request = await entitlements.completed(
            self.settings, self._cluster, who, user, request
        )
        # it may have been granted while Slurm was queried
        if (same := await self._known(user, request.key)) is not None:
            return same
        self._check_open()
        if wait_seconds > self.settings.leases.wait_seconds:
            detail = f"expected at most {self.settings.leases.wait_seconds:g} seconds"
            raise Refused(422, detail, "wait")
        waiting = self._ask(user, request)
        try:
            await waiting.wait(gone, wait_seconds)
            if self._stop_waiting(waiting):
                detail = f"all {self.vqpus} vQPUs are held, try again later"
                raise Refused(409, detail, headers={"Retry-After": "1"})
            live = waiting.granted.result()
            # not limited by the time for waiting
            await live.written.wait()
        except asyncio.CancelledError:
            if not self._stop_waiting(waiting) and not waiting.granted.exception():
                self._spawn(self._client_gone(waiting.granted.result()))
            raise
        if live.error is not None:
            raise live.error
        if gone is not None and gone.is_set():
            await self._client_gone(live)
        return live.lease

    async def request(self, who: Identity, request: LeaseRequest) -> Lease:
        """Acquire a lease, or put one on disk that waits for a vQPU, with its jobs.

        :param request: with a key, without a Slurm job
        :raises Refused: 403 without permission, 409 for too many leases of the user, 503
            if the QPU takes no work
        """
        user = entitlements.lease_user(self.settings, who, request.user)
        known = await self._known(user, request.key, waiting=True)
        if known is not None:
            return known
        self._check_open()
        waiting = self._ask(user, request)
        if waiting.granted.done():
            live = waiting.granted.result()
        else:
            # on disk before it may be granted; it keeps its position
            self._stop_waiting(waiting)
            live = _waiting_lease(replace(self._new_lease(waiting), waiting=True))
            live.written.clear()
            self._leases[live.lease.id] = live
            self._spawn(self._write_waiting(live, waiting.request))
        try:
            await live.written.wait()
        except asyncio.CancelledError:
            self._spawn(self._client_gone(live))
            raise
        if live.error is not None:
            raise live.error
        return live.lease

    def active(
        self, who: Identity, lease_id: str | None, *, waiting: bool = False
    ) -> Lease:
        """Find a lease to submit under, and mark it as used; refuse another with 403.

        :param waiting: whether one may do that waits for a vQPU
        """
        live = self._leases.get(lease_id or "")
        if live is not None and visible(who, live.lease):
            waits = waiting and live.active and live.written.is_set()
            if live.state is _H or waits:
                live.last_used = time.monotonic()
                return live.lease
        detail = "needs a lease that is held"
        with suppress(Refused):
            lease = self.find(who, lease_id or "")
            ended = (
                lease.reason if live is None or live.end is None else live.end.reason
            )
            if ended is not None:
                detail = f"the lease has ended: {ended}"
            elif lease.waiting:
                detail = "the lease waits for a vQPU"
        raise Refused(403, detail, entitlements.LEASE_HEADER)

    def holds(self, lease_id: str) -> bool:
        live = self._leases.get(lease_id)
        return live is not None and live.active

    def find(self, who: Identity, lease_id: str) -> Lease:
        """Find a lease, held or not; an unknown or another user's is refused with 404."""
        live = self._leases.get(lease_id)
        known = live is not None and live.state is not _X
        lease = live.lease if live and known else self._store.lease(lease_id)
        if lease is None or not visible(who, lease):
            raise Refused(404, "no such lease")
        return lease

    def list(self, who: Identity, *, held_only: bool = True) -> list[Lease]:
        if held_only:
            return [lease for lease in self.held if visible(who, lease)]
        return self._store.leases(None if who.admin else who.user)

    def renew(self, who: Identity, lease_id: str) -> Lease:
        """Mark a lease as used; its expiry does not change."""
        self.find(who, lease_id)
        return self.active(who, lease_id)

    async def release(
        self, who: Identity, lease_id: str, *, keep_place: bool = False
    ) -> Lease:
        """End a lease and cancel its jobs; releasing it again changes nothing.

        The release of another user's lease is recorded in the audit.

        :param keep_place: whether a request with the lease's key, within
            :data:`POSITION_SECONDS`, gets the position of the lease's own request
        :raises Refused: 403 for a place that only an admin may have kept, 404, or 503 while
            the end cannot be written, which is retried
        """
        lease, record = self.find(who, lease_id), None
        if keep_place:
            # a user could be ahead of all others with one lease after another
            if not who.admin:
                raise Refused(403, "only an admin may have a place kept", "keep_place")
            self._keep_place(lease)
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

    def _keep_place(self, lease: Lease) -> None:
        live = self._leases.get(lease.id)
        if live is not None and live.place is not None and lease.key is not None:
            until = time.monotonic() + POSITION_SECONDS
            self._positions[lease.user, lease.key] = *live.place, until

    def touch(self, lease_id: str) -> None:
        """Mark a lease as used."""
        if (live := self._leases.get(lease_id)) is not None:
            live.last_used = time.monotonic()

    def idle_seconds_left(self, lease: Lease) -> float | None:
        """Return for how long a lease is held without further use; ``None`` for ever."""
        idle, live = self.settings.leases.idle_seconds, self._leases.get(lease.id)
        if idle is None or live is None or live.state is _X:
            return None
        return max(0.0, idle - self._idle_seconds(live))

    def seconds_left(self, lease: Lease) -> float | None:
        """Return for how long a lease is held at most; ``None`` for ever."""
        live = self._leases.get(lease.id)
        if live is None or live.expires == math.inf:
            return None
        return max(0.0, live.expires - time.monotonic())

    def idle_expires_at(self, lease: Lease) -> float | None:
        """Return when a lease ends without further use; ``None`` for never."""
        left = self.idle_seconds_left(lease)
        return None if left is None else time.time() + left

    async def end(
        self,
        lease_id: str,
        end: LeaseEnd,
        record: Callable[[sqlite3.Connection], None] | None = None,
    ) -> Lease:
        """End a lease, unless it is ending; ``record`` is part of the same transaction."""
        live = self._leases.get(lease_id)

        def close() -> Future[Lease]:
            # a lease that has ended was recorded then
            also = None if live is None else record
            return self._store.close_lease(lease_id, end.reason, end.note, also)

        if live is None:
            return await asyncio.wrap_future(close())
        await live.written.wait()
        if live.granting is not None:
            await asyncio.wait({live.granting})
        if live.state in (_W, _H):
            live.move(_E)
            live.end = end
            self._waiting = [one for one in self._waiting if one.live is not live]
            jobs = self._jobs.interrupt_lease(lease_id, end)
            live.closing = asyncio.create_task(self._close(live, jobs, close))
        if live.closing is None:
            raise Refused(404, "no such lease")
        # the lease ends even if the caller is cancelled
        return await asyncio.shield(live.closing)

    async def _client_gone(self, live: LiveLease) -> None:
        """End a lease, unless another request with its key was granted it too."""
        live.clients -= 1
        if not live.clients:
            await self._end_logged(live, LeaseEndCause.CLIENT_GONE)

    # transitions

    def _check_open(self) -> None:
        self._availability.check()
        if self._stopped:
            raise Refused(503, STOPPING)

    def _ask(self, user: str, request: LeaseRequest) -> WaitingRequest:
        """Add a request, which is granted at once if a vQPU is free."""
        request = entitlements.with_share(self.settings, user, request)
        job_class = entitlements.lease_class(self.settings, user, request)
        self._check_number(user)
        waiting = self._wait(user, job_class, request)
        self._grant()
        return waiting

    def _wait(
        self, user: str, job_class: JobClass, request: LeaseRequest
    ) -> WaitingRequest:
        """Add a request, at the position of an earlier one with its key."""
        self._requests += 1
        now = time.monotonic()
        self._positions = {k: v for k, v in self._positions.items() if v[-1] > now}
        new = self._requests, 0, now
        position, passed, _ = self._positions.pop((user, request.key), new)
        waiting = WaitingRequest(RANKS[job_class], position, user, request, passed)
        insort(self._waiting, waiting)
        return waiting

    def _check_number(self, user: str) -> None:
        most = self.settings.limits.leases
        users = [lease.user for lease in self.held]
        users += [waiting.user for waiting in self._waiting]
        if users.count(user) >= most:
            # with 409 and not 429: clients try again, as while all vQPUs are held
            detail = f"the user holds or waits for {most} leases, try again later"
            raise Refused(409, detail, headers={"Retry-After": "1"})

    def _stop_waiting(self, waiting: WaitingRequest) -> bool:
        """Remove a request, keep its position, and return whether it was waiting."""
        if waiting not in self._waiting:
            return False
        self._waiting.remove(waiting)
        if (key := waiting.request.key) is not None:
            until = time.monotonic() + POSITION_SECONDS
            kept = waiting.position, waiting.passed, until
            self._positions[waiting.user, key] = kept
        return True

    def _refuse_waiting(self, reason: str) -> None:
        """Refuse the requests that a client waits on."""
        for waiting in self._waiting:
            if waiting.live is None:
                waiting.granted.set_exception(Refused(503, reason))
        self._waiting = [one for one in self._waiting if one.live is not None]

    def _queue(self, waiting: WaitingRequest, live: LiveLease) -> None:
        waiting.live = live
        self._jobs.open_lease(live.lease)

    async def _write_waiting(self, live: LiveLease, request: LeaseRequest) -> None:
        lease = live.lease
        try:
            await asyncio.wrap_future(self._store.add_lease(lease))
        except sqlite3.Error as error:
            live.error = error
            del self._leases[lease.id]
        else:
            self._queue(self._wait(lease.user, lease.job_class, request), live)
        live.written.set()
        self._grant()

    def _grant(self) -> None:
        while (
            self._waiting
            and not self._stopped
            and self._availability.works
            and len(held := self.held) < self.vqpus
        ):
            rank = self._waiting[0].rank
            first = [waiting for waiting in self._waiting if waiting.rank == rank]
            index = self._policy.choose(first, held)
            for passed in first[:index]:
                passed.passed += 1
            chosen = first[index]
            self._waiting.remove(chosen)
            if (known := chosen.live) is not None:
                self._take(known, self._new_lease(chosen, known.lease.id))
                known.move(_G)
                known.granting = asyncio.create_task(self._write_grant(known))
                continue
            live = self._add(self._new_lease(chosen), _W, _G)
            live.place = chosen.position, chosen.passed
            chosen.granted.set_result(live)
            for same in [*self._waiting]:
                keys = {(one.user, one.request.key) for one in (chosen, same)}
                shared = same.request.key is not None and len(keys) == 1
                if shared and same.live is None:
                    self._waiting.remove(same)
                    same.granted.set_result(live)
                    live.clients += 1
            self._spawn(self._write(live))

    def _new_lease(self, waiting: WaitingRequest, lease_id: str | None = None) -> Lease:
        request, total = waiting.request, self.settings.leases.total_seconds
        return Lease(
            id=lease_id or secrets.token_urlsafe(24),
            user=waiting.user,
            job_class=CLASSES[waiting.rank],
            job=request.job,
            slurm_job_id=request.slurm_job_id,
            partition=request.partition,
            expected_seconds=request.expected_seconds,
            pattern=request.pattern,
            key=request.key,
            opened=(opened := time.time()),
            expires=None if total is None else opened + total,
            project=request.project,
            tenths=request.tenths,
            slurm_cluster=request.slurm_cluster,
            slurm_account=request.account if request.slurm_job_id else None,
            max_qpu_seconds=request.max_qpu_seconds,
            max_shots=request.max_shots,
            max_qubits=request.max_qubits,
        )

    def _add(self, lease: Lease, *states: LeaseState, age: float = 0.0) -> LiveLease:
        live = self._leases[lease.id] = LiveLease(lease, 0.0)
        for state in states:
            live.move(state)
        self._take(live, lease, age)
        return live

    def _take(self, live: LiveLease, lease: Lease, age: float = 0.0) -> None:
        """Let a lease have a vQPU."""
        live.lease, live.granted = lease, time.monotonic() - age
        if lease.expires is not None:
            seconds = lease.expires - lease.opened
            live.expires = live.granted + seconds
            # by the policy's clock
            lease = replace(lease, expires=self._store.clock() - age + seconds)
        self._policy.leased(lease)
        self._jobs.estimator.held.add(lease)

    async def _write(self, live: LiveLease) -> None:
        try:
            await asyncio.wrap_future(self._store.add_lease(live.lease))
        except sqlite3.Error as error:
            live.error = error
            live.move(_X)
            self._released(live.lease)
            del self._leases[live.lease.id]
            live.written.set()
            self._grant()
        else:
            live.move(_H)
            log_lease("granted", live.lease)
            self._hold(live)

    async def _write_grant(self, live: LiveLease) -> None:
        try:
            await self._repeated(lambda: self._store.grant_lease(live.lease))
        except sqlite3.Error:  # the service stops
            return
        live.move(_H)
        log_lease("granted", live.lease)
        self._hold(live)
        await self._jobs.lease_granted(live.lease.id)

    async def _repeated(self, write: Callable[[], Future[_T]]) -> _T:
        """Write to disk, until it succeeds."""
        pauses = backoff.DATABASE.pauses()
        while True:
            try:
                return await asyncio.wrap_future(write())
            except sqlite3.Error as error:
                if self._stopped:  # the next service finds it as it was
                    raise
                logger.error("a lease could not be written, trying again: %s", error)
            await asyncio.sleep(next(pauses))

    def _released(self, lease: Lease) -> None:
        self._policy.released(lease)
        self._jobs.estimator.held.remove(lease.id)

    def _hold(self, live: LiveLease) -> None:
        live.written.set()
        self._jobs.open_lease(live.lease)
        self._watch(live)

    async def _close(
        self,
        live: LiveLease,
        jobs: Sequence[LiveJob],
        close: Callable[[], Future[Lease]],
    ) -> Lease:
        lease_id = live.lease.id
        if live.timer is not None:
            live.timer.cancel()
        closed = await self._repeated(close)
        live.move(_X)
        if live.end is not None:
            held = 0.0 if live.lease.waiting else time.monotonic() - live.granted
            log_lease_end(closed, live.end.cause, held)
        if not live.lease.waiting:
            self._released(live.lease)
        self._grant()
        await self._jobs.end_lease(lease_id, jobs)
        del self._leases[lease_id]
        return closed

    async def _known(
        self, user: str, key: str | None, *, waiting: bool = False
    ) -> Lease | None:
        """Find the lease with a key, once it is on disk.

        :param waiting: whether it may be one that waits for a vQPU
        """
        states = (_W, _G, _H) if waiting else (_G, _H)
        while key is not None:
            for live in self._leases.values():
                same = (live.lease.user, live.lease.key) == (user, key)
                if same and live.state in states:
                    break
            else:
                return None
            if live.written.is_set():
                live.last_used = time.monotonic()
                live.clients += 1
                return live.lease
            await live.written.wait()
        return None

    # leases that end by themselves

    def _idle_seconds(self, live: LiveLease) -> float:
        lease_id, now = live.lease.id, time.monotonic()
        if self._jobs.busy(lease_id):
            live.last_used = now
        return now - max(live.last_used, self._jobs.last_done.get(lease_id, 0.0))

    def _watch(self, live: LiveLease) -> None:
        """End an idle or expired lease, or check it again when it may be."""
        if live.timer is not None:
            live.timer.cancel()
        if live.state is not _H or self._stopped:
            return
        seconds, cause = live.expires - time.monotonic(), LeaseEndCause.EXPIRED
        if (idle := self.settings.leases.idle_seconds) is not None:
            left = idle - self._idle_seconds(live)
            if left < seconds:
                seconds, cause = left, LeaseEndCause.IDLE
        if seconds <= 0:
            self._spawn(self._end_logged(live, cause))
        elif seconds < math.inf:
            loop = asyncio.get_running_loop()
            live.timer = loop.call_later(seconds, self._watch, live)

    def _job_over(self, lease_id: str) -> None:
        """End a lease whose jobs have taken more of the QPU than was expected of them."""
        live = self._leases.get(lease_id)
        if live is None or live.state is not _H:
            return
        most = live.lease.max_qpu_seconds
        if most is None:
            return
        spent, _ = lease_seconds(self._store, lease_id)
        if spent > most * (1 + 1e-9):
            self._spawn(self._end_logged(live, LeaseEndCause.SPENT))

    async def follow_slurm(self) -> None:
        """End the leases whose Slurm jobs are gone, until cancelled."""
        while True:
            await asyncio.sleep(self.settings.slurm_poll_seconds)
            for live in [*self._leases.values()]:
                job, cluster = live.lease.slurm_job_id, live.lease.slurm_cluster
                own = self.settings.slurm_cluster
                if job is None or not await self._cluster.has(job, cluster, own):
                    continue
                gone = await slurm_jobs.is_gone(job)
                live.gone_answers = live.gone_answers + 1 if gone else 0
                if live.gone_answers >= CLEAR_ANSWERS:
                    await self._end_logged(live, LeaseEndCause.SLURM_JOB_GONE)

    async def _end_logged(self, live: LiveLease, cause: LeaseEndCause) -> None:
        idle, job = self.settings.leases.idle_seconds, live.lease.slurm_job_id
        budget = live.lease.max_qpu_seconds or 0.0
        end = LeaseEnd(cause, idle or 0.0, job or "", budget)
        try:
            await self.end(live.lease.id, end)
        except (Refused, sqlite3.Error) as error:
            logger.error("a lease could not be closed: %s", error)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _waiting_lease(lease: Lease) -> LiveLease:
    live = LiveLease(lease, time.monotonic())
    live.move(_W)
    live.written.set()
    return live


def _asked(lease: Lease) -> LeaseRequest:
    """Return the request for a lease that still waits after a restart."""
    return LeaseRequest(
        job=lease.job,
        partition=lease.partition,
        expected_seconds=lease.expected_seconds,
        pattern=lease.pattern,
        key=lease.key,
        project=lease.project,
        tenths=lease.tenths,
        max_qpu_seconds=lease.max_qpu_seconds,
        max_shots=lease.max_shots,
        max_qubits=lease.max_qubits,
    )


def visible(who: Identity, lease: Lease) -> bool:
    return who.admin or who.user == lease.user

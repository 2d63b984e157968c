"""Requests that wait for a vQPU: requests of clients, and of leases already on disk."""

from __future__ import annotations

import asyncio
import secrets
import time
from bisect import insort
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from sf_quantum.protocol.leases import LATEST_START
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import RANKS, JobClass, Lease, LeaseRequest
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.leases.lease_states import LiveLease, Position
from sf_quantum.service.scheduling.policies.base import Policy
from sf_quantum.service.store.file.clock import wall_clock
from sf_quantum.text import utc

# time for which a refused request keeps its position for a repetition
POSITION_SECONDS = 60.0


@dataclass(eq=False)
class WaitingRequest:
    """A request that waits for a vQPU.

    :param request: the request with its project
    :param number: number of the request; lower is earlier
    :param passed: number of later requests of the same class and priority that were
        granted before this request
    """

    user: str
    job_class: JobClass
    request: LeaseRequest
    number: int
    passed: int

    @property
    def position(self) -> Position:
        return Position(self.number, self.passed)

    @property
    def rank(self) -> tuple[int, int]:
        """The rank of the request's class and priority; the lowest is first."""
        return RANKS[self.job_class], -self.request.priority

    @property
    def order(self) -> tuple[int, int, int]:
        return *self.rank, self.number

    def new_lease(self, settings: ServiceSettings) -> Lease:
        """Make a lease that expires according to the settings."""
        request, opened = self.request, wall_clock()
        total_seconds = settings.leases.total_seconds
        return Lease(
            # hexadecimal: an id with a leading "-" would be an option of a command, or a
            # formula of a spreadsheet
            id=secrets.token_hex(16),
            user=self.user,
            job_class=self.job_class,
            job=request.job,
            slurm_job_id=request.slurm_job_id,
            partition=request.partition,
            expected_seconds=request.expected_seconds,
            pattern=request.pattern,
            key=request.key,
            latest_start=request.latest_start,
            priority=request.priority,
            reservation=request.reservation,
            opened=opened,
            expires=None if total_seconds is None else opened + total_seconds,
            project=request.project,
            tenths=request.tenths,
            slurm_cluster=request.slurm_cluster,
            slurm_account=request.account if request.slurm_job_id else None,
            max_qpu_seconds=request.max_qpu_seconds,
            max_shots=request.max_shots,
            max_qubits=request.max_qubits,
        )


@dataclass(eq=False)
class ClientRequest(WaitingRequest):
    """A request whose client waits.

    :param granted: future whose result is the lease, or whose exception is the refusal
    """

    granted: asyncio.Future[LiveLease] = field(default_factory=asyncio.Future)

    async def wait(self, gone: asyncio.Event | None, seconds: float) -> None:
        """Wait until the request is granted or refused, the client has gone, or time is up.

        :param gone: event that is set when the client has disconnected
        """
        disconnected = asyncio.ensure_future((gone or asyncio.Event()).wait())
        waits: set[asyncio.Future[LiveLease] | asyncio.Task[bool]]
        waits = {self.granted, disconnected}
        try:
            await asyncio.wait(
                waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            disconnected.cancel()


@dataclass(eq=False)
class StoredRequest(WaitingRequest):
    """The request of a lease that is on disk; no client waits for it."""

    live: LiveLease


class WaitingRequests:
    """The requests that wait for a vQPU, by class, priority and position."""

    def __init__(self) -> None:
        self._requests: list[WaitingRequest] = []
        self._last_number = 0
        # Positions with their expiry, by user and key, of requests that no longer wait: a
        # client that repeats its request gets the position back.
        self._kept_positions: dict[tuple[str, str | None], tuple[Position, float]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._requests)

    def add_for_client(
        self, user: str, job_class: JobClass, request: LeaseRequest
    ) -> ClientRequest:
        """Add a request whose client waits."""
        position = self._position(user, request.key)
        waiting = ClientRequest(user, job_class, request, *position)
        insort(self._requests, waiting, key=lambda one: one.order)
        return waiting

    def add_for_lease(self, live: LiveLease) -> None:
        """Add the request of a lease that is on disk."""
        lease = live.lease
        position = self._position(lease.user, lease.key)
        request = LeaseRequest(
            job=lease.job,
            partition=lease.partition,
            expected_seconds=lease.expected_seconds,
            pattern=lease.pattern,
            key=lease.key,
            latest_start=lease.latest_start,
            priority=lease.priority,
            reservation=lease.reservation,
            project=lease.project,
            tenths=lease.tenths,
            max_qpu_seconds=lease.max_qpu_seconds,
            max_shots=lease.max_shots,
            max_qubits=lease.max_qubits,
        )
        stored = StoredRequest(lease.user, lease.job_class, request, *position, live)
        insort(self._requests, stored, key=lambda one: one.order)

    def _position(self, user: str, key: str | None) -> Position:
        """Return the kept position for the key, or a new position behind all others."""
        self._last_number += 1
        now = time.monotonic()
        self._kept_positions = {
            k: v for k, v in self._kept_positions.items() if v[1] > now
        }
        return self._kept_positions.pop(
            (user, key), (Position(self._last_number, 0), now)
        )[0]

    def position(self, live: LiveLease) -> Position | None:
        """Return the position of a lease's request; ``None`` if the lease does not wait."""
        positions = (one.position for one in self._stored if one.live is live)
        return next(positions, None)

    def keep_position(self, user: str, key: str | None, position: Position) -> None:
        """Keep a position for the user's next request with the key."""
        if key is not None:
            self._kept_positions[user, key] = (
                position,
                time.monotonic() + POSITION_SECONDS,
            )

    def withdraw(self, waiting: WaitingRequest) -> bool:
        """Remove a request, keep its position, and return whether it was waiting."""
        if waiting not in self._requests:
            return False
        self._requests.remove(waiting)
        self.keep_position(waiting.user, waiting.request.key, waiting.position)
        return True

    def refuse(self, reason: str) -> None:
        """Refuse the requests whose clients wait, with 503."""
        for waiting in self._requests:
            if isinstance(waiting, ClientRequest):
                waiting.granted.set_exception(Refused(503, reason))
        self._requests = [*self._stored]

    def refuse_late(self) -> list[LiveLease]:
        """Refuse clients' requests whose latest start has passed, with 409.

        :returns: the waiting leases on disk whose latest start has passed
        """
        now = time.time()
        late = [
            request
            for request in self._requests
            if (latest := request.request.latest_start) is not None and latest < now
        ]
        for waiting in late:
            if isinstance(waiting, ClientRequest):
                waiting.granted.set_exception(not_granted(waiting.request))
                self._requests.remove(waiting)
        return [request.live for request in late if isinstance(request, StoredRequest)]

    def refuse_user(self, user: str, reason: str) -> None:
        """Refuse the requests of a user whose clients wait, with 403."""
        for waiting in [*self._requests]:
            if isinstance(waiting, ClientRequest) and waiting.user == user:
                waiting.granted.set_exception(Refused(403, reason))
                self._requests.remove(waiting)

    def lease_ended(self, live: LiveLease) -> None:
        """Remove the request of a lease if the lease waits."""
        self._requests = [
            waiting
            for waiting in self._requests
            if not (isinstance(waiting, StoredRequest) and waiting.live is live)
        ]

    def take(
        self,
        policy: Policy,
        held: Sequence[Lease],
        running: Container[str],
    ) -> WaitingRequest | None:
        """Remove and return the request that gets a vQPU; ``None`` if no request can.

        The policy chooses among the requests of the highest class and priority.

        :param running: names of the reservations whose time is in progress
        """
        ready = [
            waiting
            for waiting in self._requests
            if (name := waiting.request.reservation) is None or name in running
        ]
        if not ready:
            return None
        first = [waiting for waiting in ready if waiting.rank == ready[0].rank]
        index = policy.choose_request(first, held)
        for earlier in first[:index]:
            earlier.passed += 1
        self._requests.remove(first[index])
        return first[index]

    def take_duplicates(self, granted: ClientRequest) -> Iterator[ClientRequest]:
        """Remove the other requests of clients with the key of a granted request."""
        key = granted.request.key
        for other in [*self._requests] if key is not None else []:
            is_same = (other.user, other.request.key) == (granted.user, key)
            if is_same and isinstance(other, ClientRequest):
                self._requests.remove(other)
                yield other

    @property
    def leases(self) -> list[Lease]:
        """The leases that wait on disk, in the order of their requests."""
        return [stored.live.lease for stored in self._stored]

    @property
    def _stored(self) -> list[StoredRequest]:
        return [one for one in self._requests if isinstance(one, StoredRequest)]


def not_granted(request: LeaseRequest) -> Refused:
    """Return the refusal of a request that was not granted by its latest start."""
    return Refused(409, f"not granted by {utc(request.latest_start)}", LATEST_START)

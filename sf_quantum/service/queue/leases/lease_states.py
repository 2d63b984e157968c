"""The states of a lease, from its request until its jobs have left the device.

::

    a request without           a request with a client,      restart
    a client, no free vQPU      when a vQPU is free              |
        |                             |                          |
        v                             v                          v
    Registering --> Waiting         Opening ------------------> Held
        |            |   |             |                        ^  |
        |            |   +-> Granting -|------------------------+  |
        v            v                 v                           v
      Failed       Ending            Failed          Ending --> Ended

A request with a client has no lease while it waits for a vQPU. A lease occupies a vQPU while
it is ``Opening``, ``Granting``, ``Held``, or ``Ending`` after ``Held``; lowering the number of
vQPUs ends no lease. A restart restores all leases whose end is not on disk, as ``Waiting`` or
``Held``. :data:`TRANSITIONS` lists all transitions.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sf_quantum.service.domain.jobs import Lease
from sf_quantum.service.domain.reasons import LeaseEnd
from sf_quantum.service.queue.machine import Machine


class Position(NamedTuple):
    """The position of a request among the requests of its class and priority.

    :param number: number of the request; lower is earlier
    :param passed: number of later requests that were granted before this request
    """

    number: int
    passed: int


@dataclass(frozen=True)
class VQpuUse:
    """The use of a vQPU by a lease; times are by the monotonic clock.

    :param since: when the lease began to occupy the vQPU
    :param expires: latest end of the lease; ``None`` without a limit
    :param position: position of the lease's request; ``None`` after a restart
    """

    since: float
    expires: float | None = None
    position: Position | None = None


@dataclass(frozen=True)
class Failed:
    """The lease could not be written: it is not on disk, and its request is refused."""

    error: sqlite3.Error


@dataclass(frozen=True)
class Ended:
    """The lease's end is on disk, and its vQPU is free; its jobs may still be stopping."""

    end: LeaseEnd
    closing: asyncio.Task[Lease]


@dataclass(frozen=True)
class Ending:
    """Accepts no jobs; its jobs are being interrupted, and its end is being written.

    :param vqpu_use: the lease's use of its vQPU; ``None`` if the lease never had a vQPU
    :param closing: task that writes the end, with retries, and then waits for the jobs
    """

    end: LeaseEnd
    closing: asyncio.Task[Lease]
    vqpu_use: VQpuUse | None = None

    def written(self) -> Ended:
        return Ended(self.end, self.closing)


@dataclass(frozen=True)
class Held:
    """Has a vQPU and is on disk; accepts jobs.

    :param watch: task that ends the lease when it is idle, expired or spent
    """

    vqpu_use: VQpuUse
    watch: asyncio.Task[None]

    def ended(self, end: LeaseEnd, closing: asyncio.Task[Lease]) -> Ending:
        self.watch.cancel()
        return Ending(end, closing, self.vqpu_use)


@dataclass(frozen=True)
class Granting:
    """Has waited on disk, and now has a vQPU; the grant is being written, with retries.

    The lease accepts jobs, which still wait with the lease.
    """

    vqpu_use: VQpuUse

    def written(self, watch: asyncio.Task[None]) -> Held:
        return Held(self.vqpu_use, watch)


@dataclass(frozen=True)
class Opening:
    """Has a vQPU, and is being written to disk for the first time; accepts no jobs yet."""

    vqpu_use: VQpuUse

    def written(self, watch: asyncio.Task[None]) -> Held:
        return Held(self.vqpu_use, watch)

    def failed(self, error: sqlite3.Error) -> Failed:
        return Failed(error)


@dataclass(frozen=True)
class Waiting:
    """Is on disk and waits for a vQPU; accepts jobs, which wait with the lease."""

    def granted(self, vqpu_use: VQpuUse) -> Granting:
        return Granting(vqpu_use)

    def ended(self, end: LeaseEnd, closing: asyncio.Task[Lease]) -> Ending:
        return Ending(end, closing)


@dataclass(frozen=True)
class Registering:
    """Is being written to disk, and will then wait for a vQPU; accepts no jobs yet."""

    def written(self) -> Waiting:
        return Waiting()

    def failed(self, error: sqlite3.Error) -> Failed:
        return Failed(error)


LeaseState: TypeAlias = (
    Registering | Waiting | Granting | Opening | Held | Ending | Ended | Failed
)
TRANSITIONS: Mapping[type[LeaseState], frozenset[type[LeaseState]]] = {
    Registering: frozenset({Waiting, Failed}),
    Waiting: frozenset({Granting, Ending}),
    Granting: frozenset({Held}),
    Opening: frozenset({Held, Failed}),
    Held: frozenset({Ending}),
    Ending: frozenset({Ended}),
    Ended: frozenset(),
    Failed: frozenset(),
}


class LiveLease(Machine[LeaseState]):
    """A lease that is in memory.

    :ivar clients: number of requests that share the lease; a request is not counted once its
        client has disconnected
    :ivar last_used: time when a request or a job last used the lease, by the monotonic clock
    :ivar activity: set when a job of the lease has ended, or the limits have changed
    """

    transitions = TRANSITIONS

    def __init__(self, lease: Lease, state: LeaseState) -> None:
        super().__init__(state)
        self.lease = lease
        self.clients = 1
        self.last_used = time.monotonic()
        self.activity = asyncio.Event()

    @property
    def vqpu_use(self) -> VQpuUse | None:
        """The lease's use of a vQPU; ``None`` if it does not occupy a vQPU."""
        match self.state:
            case Opening() | Granting() | Held() | Ending():
                return self.state.vqpu_use
        return None

    @property
    def is_active(self) -> bool:
        """Whether the lease is on disk or being written, and its end has not begun."""
        return not isinstance(self.state, Ending | Ended | Failed)

    @property
    def accepts_jobs(self) -> bool:
        return isinstance(self.state, Waiting | Granting | Held)

    @property
    def jobs_wait(self) -> bool:
        """Whether the lease's jobs wait with it for a vQPU."""
        return isinstance(self.state, Waiting | Granting)

    def touch(self) -> None:
        """Note that the lease is used now."""
        self.last_used = time.monotonic()

    async def opened(self) -> None:
        """Wait until the lease is on disk.

        :raises sqlite3.Error: if the lease could not be written
        """
        while isinstance(self.state, Registering | Opening):
            await self.moved.wait()
        if isinstance(self.state, Failed):
            raise self.state.error

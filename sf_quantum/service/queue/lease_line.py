"""Those who wait for a lease: by class, then as the policy chooses."""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import RANKS, JobClass, Lease, LeaseRequest

# how long one who waited keeps the place in the line until the next request
PLACE_SECONDS = 60.0


@dataclass(order=True)
class Waiter:
    """One who waits.

    :param lease: the one that was granted, or why there is none
    :param request: with the project the lease is to be for
    :param passed: how often somebody of the class who came later went first
    """

    rank: int
    place: int
    lease: asyncio.Future[Lease] = field(compare=False)
    user: str = field(compare=False)
    job_class: JobClass = field(compare=False)
    request: LeaseRequest = field(compare=False)
    passed: int = field(compare=False, default=0)

    async def wait(self, gone: asyncio.Event | None, seconds: float) -> None:
        """Wait for the lease, for its caller to go away, or for the time to be over."""
        # a grant is already on its way to the disk: it takes no part of the wait
        waits: set[asyncio.Future[Lease] | asyncio.Task[bool]] = {self.lease}
        leaving = asyncio.ensure_future(gone.wait()) if gone is not None else None
        if leaving is not None:
            waits.add(leaving)
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if leaving is not None:
            leaving.cancel()


class LeaseLine:
    """The line for leases; belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._line: list[Waiter] = []
        self._arrivals = 0
        # by user and key: which, how often passed, and until when it is kept
        self._places: dict[tuple[str, str], tuple[int, int, float]] = {}

    def __len__(self) -> int:
        """Count those who wait."""
        return len(self._line)

    def pop(self, choose: Callable[[Sequence[Waiter]], int]) -> Waiter | None:
        """Let one go, with a lease.

        :param choose: tells which of those of the highest class there is
        """
        if not self._line:
            return None
        rank = self._line[0].rank
        first = [waiter for waiter in self._line if waiter.rank == rank]
        place = choose(first)
        for waiter in first[:place]:
            waiter.passed += 1
        return self._line.pop(self._line.index(first[place]))

    def pop_same(self, user: str, key: str | None) -> list[Waiter]:
        """Let all go who ask with a user's key: one lease is for all of them."""
        same = [
            waiter
            for waiter in self._line
            if key is not None and (waiter.user, waiter.request.key) == (user, key)
        ]
        for waiter in same:
            self._line.remove(waiter)
        return same

    def join(self, user: str, job_class: JobClass, request: LeaseRequest) -> Waiter:
        """Let somebody wait, who may have a place from before."""
        self._arrivals += 1
        now = time.monotonic()
        self._places = {k: v for k, v in self._places.items() if v[-1] > now}
        place, passed = self._arrivals, 0
        if request.key is not None:
            kept = self._places.pop((user, request.key), (place, passed, now))
            place, passed, _ = kept
        lease: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        waiter = Waiter(
            *(RANKS[job_class], place, lease, user, job_class, request, passed)
        )
        insort(self._line, waiter)
        return waiter

    def leave(self, waiter: Waiter) -> bool:
        """Let somebody go who may still wait, and keep the place for a while.

        :returns: whether there was no lease yet
        """
        if waiter not in self._line:
            return False
        self._line.remove(waiter)
        if (key := waiter.request.key) is not None:
            until = time.monotonic() + PLACE_SECONDS
            self._places[waiter.user, key] = waiter.place, waiter.passed, until
        return True

    def send_away(self, why: str) -> None:
        """Refuse all who wait."""
        for waiter in self._line:
            waiter.lease.set_exception(Refused(503, why))
        self._line.clear()

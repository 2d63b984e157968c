"""Who holds the QPU's leases, who waits for one, and when one ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Protocol

from sf_quantum.files import JSON
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.domain.jobs import Lease, LeaseRequest
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue import entitlements, slurm_jobs
from sf_quantum.service.queue.availability import Availability
from sf_quantum.service.queue.lease_line import LeaseLine, Waiter
from sf_quantum.service.scheduling.policies.base import Policy
from sf_quantum.service.store import audit
from sf_quantum.service.store.store import Store

RELEASED = "released"
# how long to wait for a released lease to be on disk as such, and its job to be off the
# device (cancelling.LET_GO_SECONDS)
RELEASE_SECONDS = 8.0
# one answer could be a moment between two states
CLEAR_ANSWERS = 2
# before a lease is closed again whose end could not be written down
RETRY_SECONDS = 1.0
logger = logging.getLogger(__name__)


class Jobs(Protocol):
    """The jobs of the leases."""

    def busy(self, lease_id: str) -> bool:
        """Say whether a lease has jobs that are not over."""

    def drop(self, lease_id: str, note: str) -> Callable[[], Awaitable[None]]:
        """Let none of a lease's jobs start any more, and stop the one that runs.

        :returns: waits until the device has let go of it
        """


class Leases:
    """The leases of one QPU; belongs to the event loop's thread.

    :param vqpus: how many are held at once; see :meth:`resize`
    :param jobs: told to stop the jobs of a lease that ends
    :param scheduling: chooses among those who wait, and is told of all leases
    """

    def __init__(
        self,
        store: Store,
        settings: ServiceSettings,
        availability: Availability,
        jobs: Jobs,
        scheduling: Policy,
    ) -> None:
        self.vqpus = settings.vqpus
        self._store = store
        self._settings = settings
        self._availability = availability
        self._jobs = jobs
        self._scheduling = scheduling
        self._held = {lease.id: lease for lease in store.held()}
        for lease in self._held.values():
            scheduling.leased(lease)
        self._ending: dict[str, asyncio.Task[Lease]] = {}
        self._reasons: dict[str, str] = {}
        self._writing: dict[str, asyncio.Event] = {}
        self._stopped = False
        self._used = dict.fromkeys(self._held, time.monotonic())
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._line = LeaseLine()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Watch over the leases that a service before this one left."""
        for lease_id in self._held:
            self._used[lease_id] = time.monotonic()
            self._watch(lease_id)
        self._spawn(self._follow_slurm())

    def stop(self) -> None:
        """Let nobody wait any more; leases stay held, on disk."""
        self._stopped = True
        self._line.send_away("the service is being stopped")
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    @property
    def held(self) -> list[Lease]:
        """The leases held, the oldest first."""
        return [*self._held.values()]

    @property
    def waiting(self) -> int:
        """How many requests for a lease wait."""
        return len(self._line)

    def resize(self, vqpus: int) -> None:
        """Change how many leases are held at once; those held now stay."""
        self.vqpus = vqpus
        self._grant()

    async def acquire(
        self,
        who: Identity,
        request: LeaseRequest,
        wait_seconds: float = 0.0,
        gone: asyncio.Event | None = None,
    ) -> Lease:
        """Take a lease, or wait for one: by class, then as the policy chooses.

        :param gone: set when the caller has gone away: it gets no lease then
        :raises Refused: 403 if the caller may not, 409 if there was none in time, 503 if
            the QPU is closed
        """
        user = entitlements.lease_user(self._settings, who, request.user)
        if (same := await self._known(user, request.key)) is not None:
            return same
        request = await entitlements.completed(self._settings, who, user, request)
        # Slurm takes its time
        if (same := await self._known(user, request.key)) is not None:
            return same
        self._availability.check()
        if wait_seconds > self._settings.leases.wait_seconds:
            detail = f"expected at most {self._settings.leases.wait_seconds:g} seconds"
            raise Refused(422, detail, "wait")
        request = entitlements.with_share(self._settings, user, request)
        job_class = entitlements.lease_class(self._settings, user, request)
        waiter = self._line.join(user, job_class, request)
        self._grant()
        try:
            await waiter.wait(gone, wait_seconds)
        finally:
            waits = self._line.leave(waiter)
        if waits:
            detail = f"all {self.vqpus} vQPUs are held, try again later"
            raise Refused(409, detail, headers={"Retry-After": "1"})
        granted = await waiter.lease
        if (writing := self._writing.get(granted.id)) is not None:
            await writing.wait()  # another request's, with the same key
            if not self.holds(granted.id):
                detail = "the lease could not be kept, try again later"
                raise Refused(503, detail, headers={"Retry-After": "1"})
        if gone is not None and gone.is_set():
            await self.end(granted.id, "the client went away", "cancelled")
        return granted

    def active(self, who: Identity, lease_id: str | None) -> Lease:
        """Find a lease under which the caller may submit, and count it as used.

        :raises Refused: 403 with the reason
        """
        lease = self._held.get(lease_id or "")
        if lease is not None and visible(who, lease) and self.holds(lease.id):
            self.touch(lease.id)
            return lease
        words = "needs a lease that is held (POST /v1/leases)"
        with suppress(Refused):
            reason = self.find(who, lease_id or "").reason
            words = (
                f"the lease has ended: {reason or self._reasons.get(lease_id or '')}"
            )
        raise Refused(403, words, entitlements.LEASE_HEADER)

    def get(self, lease_id: str) -> Lease | None:
        """Find a lease that is held, perhaps about to end."""
        return self._held.get(lease_id)

    def holds(self, lease_id: str) -> bool:
        """Say whether a lease is held and not about to end."""
        return lease_id in self._held and lease_id not in self._reasons

    def find(self, who: Identity, lease_id: str) -> Lease:
        """Find a lease, held or not.

        :raises Refused: 404
        """
        lease = self._held.get(lease_id) or self._store.lease(lease_id)
        if lease is None or not visible(who, lease):
            raise Refused(404, "no such lease")
        return lease

    def list(self, who: Identity, *, held_only: bool = True) -> list[Lease]:
        """List the caller's leases, an admin's being everybody's."""
        if held_only:
            return [lease for lease in self.held if visible(who, lease)]
        return self._store.leases(None if who.admin else who.user)

    def renew(self, who: Identity, lease_id: str) -> Lease:
        """Count a lease as used; when it ends in any case does not change.

        :raises Refused: 404, or 403 with the reason if it has ended
        """
        self.find(who, lease_id)
        return self.active(who, lease_id)

    async def release(self, who: Identity, lease_id: str) -> Lease:
        """End a lease and cancel its jobs, on the device too; again is fine.

        Who ends another user's is written down.

        :raises Refused: 404, or 503 while that cannot be written down: the lease ends
            as soon as it can
        """
        lease = self.find(who, lease_id)
        note = "cancelled: its lease was released"
        entry = _released(who, lease)
        also = None if entry is None else partial(audit.record, entry=entry)
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                return await self.end(lease_id, RELEASED, note, also)
        except TimeoutError as error:
            detail = "the lease is being released, but that is not on disk yet"
            raise Refused(503, detail, headers={"Retry-After": "1"}) from error

    def touch(self, lease_id: str) -> None:
        """Count a lease as used."""
        if lease_id in self._used:
            self._used[lease_id] = time.monotonic()

    def idle_expires_at(self, lease: Lease) -> float | None:
        """Tell when a lease ends if nothing happens; ``None`` if it does not."""
        if self._jobs.busy(lease.id):
            self.touch(lease.id)
        idle, used = self._settings.leases.idle_seconds, self._used.get(lease.id)
        if idle is None or used is None:
            return None
        return time.time() + max(0.0, used + idle - time.monotonic())

    async def end(
        self,
        lease_id: str,
        reason: str,
        note: str,
        also: Callable[[sqlite3.Connection], None] | None = None,
    ) -> Lease:
        """End a lease, whoever asks.

        :param reason: told to those who still come with it
        :param note: what its jobs say that are not over
        :param also: written in the same stroke, unless the lease ends already
        """
        if lease_id in self._held and lease_id not in self._ending:
            self._reasons[lease_id] = reason
            left = self._jobs.drop(lease_id, note)
            self._ending[lease_id] = asyncio.create_task(
                self._close(
                    *(lease_id, left),
                    lambda: self._store.close_lease(lease_id, reason, note, also),
                )
            )
        if lease_id in self._ending:
            # who gives up waiting does not stop the lease from ending
            return await asyncio.shield(self._ending[lease_id])
        return await asyncio.wrap_future(
            self._store.close_lease(lease_id, reason, note)
        )

    async def _close(
        self,
        lease_id: str,
        left: Callable[[], Awaitable[None]],
        write: Callable[[], Future[Lease]],
    ) -> Lease:
        try:
            closed = await self._closed(write)
            self._let_go(lease_id)
            self._grant()
            await left()
            return closed
        finally:
            del self._ending[lease_id], self._reasons[lease_id]
            if timer := self._timers.pop(lease_id, None):
                timer.cancel()

    async def _closed(self, write: Callable[[], Future[Lease]]) -> Lease:
        """Write down that a lease has ended; its jobs are out of the line by now."""
        while True:
            try:
                return await asyncio.wrap_future(write())
            except sqlite3.Error as error:
                if self._stopped:  # the next service finds it held
                    raise
                logger.error("a lease could not be closed, tried again: %s", error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _known(self, user: str, key: str | None) -> Lease | None:
        """Find the lease that a key made before, once it is on disk."""
        while (same := self._same(user, key)) is not None:
            if (writing := self._writing.get(same.id)) is None:
                self.touch(same.id)
                return same
            await writing.wait()
        return None

    def _same(self, user: str, key: str | None) -> Lease | None:
        same = (
            lease
            for lease in self._held.values()
            if key is not None and (lease.user, lease.key) == (user, key)
        )
        return next((lease for lease in same if lease.id not in self._reasons), None)

    def _grant(self) -> None:
        while self._availability.is_open and len(self._held) < self.vqpus:
            waiter = self._line.pop(
                lambda waiting: self._scheduling.choose(waiting, self.held)
            )
            if waiter is None:
                return
            lease = self._open(waiter)
            for same in self._line.pop_same(waiter.user, waiter.request.key):
                same.lease.set_result(lease)

    def _open(self, waiter: Waiter) -> Lease:
        now, total = time.time(), self._settings.leases.total_seconds
        request = waiter.request
        lease = Lease(
            id=secrets.token_urlsafe(24),
            user=waiter.user,
            job_class=waiter.job_class,
            job=request.job,
            slurm_job_id=request.slurm_job_id,
            partition=request.partition,
            expected_seconds=request.expected_seconds,
            pattern=request.pattern,
            key=request.key,
            opened=now,
            expires=None if total is None else now + total,
            project=request.project,
            tenths=request.tenths,
        )
        self._held[lease.id] = lease
        self._scheduling.leased(lease)
        self._used[lease.id] = time.monotonic()
        self._writing[lease.id] = asyncio.Event()
        self._spawn(self._write(lease, waiter.lease))
        return lease

    def _let_go(self, lease_id: str) -> None:
        del self._used[lease_id]
        self._scheduling.released(self._held.pop(lease_id))

    async def _write(self, lease: Lease, waiter: asyncio.Future[Lease]) -> None:
        try:
            await asyncio.wrap_future(self._store.add_lease(lease))
        except sqlite3.Error as error:
            self._let_go(lease.id)
            if not waiter.done():
                waiter.set_exception(error)
            return
        finally:
            self._writing.pop(lease.id).set()
        self._watch(lease.id)
        if waiter.done():
            await self.end(lease.id, "the client went away", "cancelled")
        else:
            waiter.set_result(lease)

    def availability_changed(self) -> None:
        """Grant leases once the QPU is open, refuse who waits once it is not."""
        self._grant()
        if not self._availability.is_open:
            self._line.send_away(self._availability.reason)

    def _watch(self, lease_id: str) -> None:
        """End a lease whose time is up, or look again when it may be."""
        lease = self._held.get(lease_id)
        if lease is None or lease_id in self._reasons:
            return
        if self._jobs.busy(lease_id):
            self.touch(lease_id)
        idle, left = self._settings.leases.idle_seconds, []
        if lease.expires is not None:
            left.append((lease.expires - time.time(), "its time is over"))
        if idle is not None:
            seconds = self._used[lease_id] + idle - time.monotonic()
            left.append((seconds, f"it was idle for {idle:g} seconds"))
        if not left:
            return
        seconds, why = min(left)
        if seconds <= 0:
            self._spawn(self._expire(lease_id, why))
        else:
            loop = asyncio.get_running_loop()
            self._timers[lease_id] = loop.call_later(seconds, self._watch, lease_id)

    async def _expire(self, lease_id: str, why: str) -> None:
        logger.info("a lease has ended: %s", why)
        try:
            await self.end(lease_id, why, f"cancelled: its lease has ended: {why}")
        except sqlite3.Error as error:
            logger.error("a lease could not be closed: %s", error)

    async def _follow_slurm(self) -> None:
        """Ask Slurm after the jobs that hold leases, from time to time."""
        answers: Counter[str] = Counter()
        while True:
            await asyncio.sleep(self._settings.slurm_poll_seconds)
            for lease in self.held:
                job = lease.slurm_job_id
                if job is None or not slurm_jobs.can_ask(job):
                    continue
                gone = await slurm_jobs.is_gone(job)
                answers[lease.id] = answers[lease.id] + 1 if gone else 0
                if answers[lease.id] >= CLEAR_ANSWERS:
                    await self._expire(lease.id, f"Slurm job {job} is gone")
            answers = Counter({id_: answers[id_] for id_ in self._held})

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _released(who: Identity, lease: Lease) -> audit.AuditEntry | None:
    if who.user == lease.user:
        return None
    about: dict[str, JSON] = {"lease": lease.id, "of": lease.user}
    return audit.AuditEntry(who.user, "release", about, {"held": True}, {"held": False})


def visible(who: Identity, lease: Lease) -> bool:
    """Say whether somebody may see a lease: an admin, or whose it is."""
    return who.admin or who.user == lease.user

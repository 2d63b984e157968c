"""Ends the leases and jobs of users who may no longer use the QPU."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TypeAlias

from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON, listing, parse_json, write_json
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Lease
from sf_quantum.service.domain.reasons import LeaseEnd, LeaseEndCause
from sf_quantum.service.queue.availability import SERVICE
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store import audit
from sf_quantum.text import plural

# time in which a mistake in the tokens file or the configuration can be corrected
GRACE_SECONDS = 60.0
POLL_SECONDS = 5.0
#: file next to the database with the users who had permission
FILE = "permitted-users.json"
REVOKED = LeaseEnd(LeaseEndCause.REVOKED)
logger = logging.getLogger(__name__)

#: returns the users who have a token; ``None`` if other users are also admitted
Users: TypeAlias = Callable[[], Awaitable[Collection[str] | None]]


class Revocations:
    """Watches which users are permitted: who has a token and is an authorized user.

    A user who loses this permission and does not regain it within :data:`GRACE_SECONDS`
    loses all leases and unfinished jobs. A user who never had the permission keeps their
    leases, which an admin or Slurm has acquired. The permitted users are stored on disk,
    since the service may restart meanwhile.
    """

    def __init__(self, queue: JobQueue, users: Users) -> None:
        self._queue = queue
        self._users = users
        self._file = queue.store.path.parent / FILE
        self._permitted = self._read()
        # when users were first found without their permission, by the monotonic clock
        self._since: dict[str, float] = {}

    async def run(self) -> None:
        """Check the permissions regularly, until cancelled."""
        while True:
            await self.check(time.monotonic())
            await asyncio.sleep(POLL_SECONDS)

    async def check(self, now: float) -> None:
        """Note who has lost permission, and end the leases of users whose grace is over.

        :param now: time by the monotonic clock
        """
        users = await self._users()
        authorized = {*self._queue.settings.leases.authorized_users}
        if users is None and not authorized:  # all users are permitted
            self._since.clear()
            await self._store_permitted(set())
            return
        permitted = authorized if users is None else {*users}
        if authorized:
            permitted &= authorized
        lost = self._permitted - permitted
        self._since = {user: self._since.get(user, now) for user in lost}
        due = {user for user in lost if now - self._since[user] >= GRACE_SECONDS}
        for user in sorted(due):
            await self._revoke(user)
        await self._store_permitted(permitted | (lost - due))

    async def _revoke(self, user: str) -> None:
        vqpus = self._queue.vqpus
        vqpus.requests.refuse_user(user, f"{user} may no longer use the QPU")
        leases = [live.lease for live in vqpus.table if live.lease.user == user]
        text = (
            "user %s may no longer use the QPU: %s ended, unfinished jobs are cancelled"
        )
        logger.warning(text, user, plural(len(leases), "lease"))
        await asyncio.gather(*map(self._end, leases))

    async def _end(self, lease: Lease) -> None:
        about: dict[str, JSON] = {
            **{"lease": lease.id, "of": lease.user},
            "reason": REVOKED.reason,
        }
        old, new = {"held": lease.held}, {"held": False}
        entry = audit.AuditEntry(SERVICE, "revoke", about, old, new)
        try:
            record = partial(audit.record, entry=entry)
            await self._queue.vqpus.end(lease.id, REVOKED, record)
        except (Refused, sqlite3.Error) as error:
            logger.error("lease %.8s could not be ended: %s", lease.id, error)

    async def _store_permitted(self, users: set[str]) -> None:
        if users == self._permitted:
            return
        self._permitted = users
        try:
            await asyncio.to_thread(write_json, self._file, [*sorted(users)])
        except QuantumError as error:
            logger.warning("who may use the QPU is not kept: %s", error)

    def _read(self) -> set[str]:
        try:
            return {*map(str, listing(parse_json(self._file.read_bytes())))}
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            text = "%s: cannot be read, so users who lost their tokens keep leases: %s"
            logger.warning(text, self._file, error)
        return set()

"""Leases on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Lease
from sf_quantum.service.store.file.clock import wall_clock
from sf_quantum.service.store.rows import (
    CANCELLED,
    QUEUED,
    SELECT_LEASE,
    Records,
    insert,
    lease_of,
)

_ON_DEVICE = "(state = 'Running' OR state = 'Queued' AND device IS NOT NULL)"


class StoredLeases(Records):
    """The leases of a service; ended leases are kept."""

    def add(self, lease: Lease) -> Future[None]:
        """Store a new lease; the lease of a quality job is closed from the start."""
        now = self._clock()
        ended = None if lease.closed is None else now
        steady = {"opened_steady": now, "closed_steady": ended}

        def change(db: sqlite3.Connection) -> None:
            insert(db, "leases", asdict(lease) | steady)

        return self._db.change(change)

    def grant(self, lease: Lease) -> Future[None]:
        """Note that a waiting lease is granted."""
        query = (
            "UPDATE leases SET waiting = 0, opened = ?, opened_steady = ?, expires = ? "
            "WHERE id = ?"
        )
        values = lease.opened, self._clock(), lease.expires, lease.id

        def change(db: sqlite3.Connection) -> None:
            db.execute(query, values)

        return self._db.change(change)

    def close(
        self,
        lease_id: str,
        reason: str,
        note: str,
        also: Callable[[sqlite3.Connection], None] | None = None,
    ) -> Future[Lease]:
        """Close a lease and cancel its queued jobs; does nothing if the lease is closed.

        :param reason: reason in responses to requests that still use the lease
        :param note: note of the cancelled jobs
        :param also: further change in the same transaction
        :raises Refused: 404 if there is no such lease
        """

        def change(db: sqlite3.Connection) -> Lease:
            now, steady = wall_clock(), self._clock()
            db.execute(
                # a lease that still waits has been held for no time
                "UPDATE leases SET closed = ?, closed_steady = ?, reason = ?, "
                "opened_steady = CASE WHEN waiting THEN ? ELSE opened_steady END "
                "WHERE id = ? AND closed IS NULL",
                (now, steady, reason, steady, lease_id),
            )
            db.execute(
                f"UPDATE jobs SET {CANCELLED} WHERE lease = ? AND {QUEUED}",
                (now, steady, note, lease_id),
            )
            # The service may die before the device releases the job; then recover() cancels
            # the job because of this note.
            db.execute(
                "UPDATE jobs SET cancelling = coalesce(cancelling, ?) "
                f"WHERE lease = ? AND {_ON_DEVICE}",
                (note, lease_id),
            )
            if also is not None:
                also(db)
            row = db.execute(SELECT_LEASE + "WHERE id = ?", (lease_id,)).fetchone()
            if row is None:
                raise Refused(404, "no such lease")
            return lease_of(row)

        return self._db.change(change)

    def get(self, lease_id: str) -> Lease | None:
        """Find a lease, even if it has ended."""
        return next(iter(self._select("WHERE id = ?", lease_id)), None)

    def latest(self, user: str | None = None, limit: int = 1000) -> list[Lease]:
        """List the leases of a user or of all users, the latest first."""
        if user is None:
            return self._select("ORDER BY opened DESC LIMIT ?", limit)
        where = "WHERE user = ? ORDER BY opened DESC LIMIT ?"
        return self._select(where, user, limit)

    def held(self) -> list[Lease]:
        """List the leases that are held or wait for a vQPU, the oldest first."""
        return self._select("WHERE closed IS NULL ORDER BY opened_steady")

    def ages(self) -> dict[str, float]:
        """Return for how many seconds each open lease has been held, or has waited."""
        query = "SELECT id, ? - opened_steady FROM leases WHERE closed IS NULL"
        return {row[0]: row[1] for row in self._db.read(query, self._clock())}

    def _select(self, where: str, *values: str | int) -> list[Lease]:
        return [*map(lease_of, self._db.read(SELECT_LEASE + where, *values))]

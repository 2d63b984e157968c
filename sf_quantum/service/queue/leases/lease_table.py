"""The leases in memory: leases that have not ended, or whose jobs have not stopped yet."""

from __future__ import annotations

from collections.abc import Iterator

from sf_quantum.service.domain.jobs import Lease
from sf_quantum.service.queue.leases.lease_states import LiveLease


class LeaseTable:
    """The live leases by id, the oldest first; jobs find their leases here."""

    def __init__(self) -> None:
        self._leases: dict[str, LiveLease] = {}

    def __iter__(self) -> Iterator[LiveLease]:
        return iter([*self._leases.values()])

    def get(self, lease_id: str) -> LiveLease | None:
        return self._leases.get(lease_id)

    def add(self, live: LiveLease) -> None:
        self._leases[live.lease.id] = live

    def remove(self, live: LiveLease) -> None:
        del self._leases[live.lease.id]

    @property
    def held(self) -> list[Lease]:
        """The leases that occupy a vQPU."""
        return [live.lease for live in self if live.vqpu_use is not None]

    def accepting(self, lease_id: str) -> LiveLease | None:
        """Find a lease that accepts jobs."""
        live = self._leases.get(lease_id)
        return live if live is not None and live.accepts_jobs else None

    def touch(self, lease_id: str) -> None:
        """Note that a lease is used now, if it is still in memory."""
        if (live := self._leases.get(lease_id)) is not None:
            live.touch()

    def job_ended(self, lease_id: str) -> None:
        """Note the end of a job, with which the lease may have spent its QPU seconds."""
        if (live := self._leases.get(lease_id)) is not None:
            live.touch()
            live.activity.set()

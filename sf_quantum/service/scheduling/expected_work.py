"""Work that leases are expected to submit, from their hints."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sf_quantum.service.domain.jobs import JobClass, Lease, Pattern
from sf_quantum.service.domain.settings import Account
from sf_quantum.service.scheduling.shares import account_of
from sf_quantum.service.scheduling.work import Clock

# fraction of the time in which a tenant has a job pending or running, by the pattern of
# its lease; no pattern is treated as balanced
LOAD: Mapping[Pattern | None, float] = {
    "cc-heavy": 0.1,
    "balanced": 0.5,
    None: 0.5,
    "qc-heavy": 0.9,
}


@dataclass
class _HintedLease:
    user: str
    load: float
    seconds: float
    expires: float | None

    def remaining(self, now: float) -> float:
        limit = math.inf if self.expires is None else self.load * (self.expires - now)
        return max(0.0, min(self.seconds, limit))


class ExpectedWork:
    """Device time that the holders of leases are expected to use.

    For a lease with a pattern and expected seconds, it is the fraction of the latter that
    the pattern stands for; for others, none. Usage before a restart is not deducted.

    :param clock: seconds since the epoch
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[str, tuple[JobClass, Account]] = {}
        self._leases: dict[tuple[JobClass, Account], dict[str, _HintedLease]] = {}

    def add(self, lease: Lease) -> None:
        """Add a lease."""
        if lease.pattern is None or lease.expected_seconds is None:
            return
        load = LOAD[lease.pattern]
        self._keys[lease.id] = key = lease.job_class, account_of(lease)
        self._leases.setdefault(key, {})[lease.id] = _HintedLease(
            lease.user, load, load * lease.expected_seconds, lease.expires
        )

    def remove(self, lease_id: str) -> None:
        """Remove a lease that has ended."""
        if (key := self._keys.pop(lease_id, None)) is not None:
            del self._leases[key][lease_id]
            if not self._leases[key]:
                del self._leases[key]

    def used(self, lease_id: str, seconds: float) -> None:
        """Deduct seconds that a lease has used; a negative number is a refund."""
        if (key := self._keys.get(lease_id)) is not None:
            self._leases[key][lease_id].seconds -= seconds

    def accounts(self, job_class: JobClass) -> list[Account]:
        """List the accounts with expected work of a class."""
        return [owner for name, owner in self._leases if name == job_class]

    def load(self, job_class: JobClass, owner: Account) -> float:
        """Return the load by an account's tenants, in QPUs."""
        leases = self._leases.get((job_class, owner), {})
        return sum(lease.load for lease in leases.values())

    def by_user(self, job_class: JobClass, owner: Account) -> Mapping[str, float]:
        """Return the expected seconds of each user of an account."""
        seconds: defaultdict[str, float] = defaultdict(float)
        now = self._clock()
        for lease in self._leases.get((job_class, owner), {}).values():
            seconds[lease.user] += lease.remaining(now)
        return seconds

"""What the holders of leases have yet to submit, as far as their hints say."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sf_quantum.service.domain.jobs import JobClass, Lease, Pattern
from sf_quantum.service.domain.settings import Account
from sf_quantum.service.scheduling.work import Clock

# the part of the time in which a tenant has a job pending or running, by the pattern of its
# lease; no hint counts as balanced
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
        most = math.inf if self.expires is None else self.load * (self.expires - now)
        return max(0.0, min(self.seconds, most))


class ExpectedWork:
    """Seconds on the device that are expected under the held leases.

    A lease with a pattern and expected seconds is expected to use that part of these; one
    without, nothing. After a restart all of it is expected once more.

    :param clock: seconds since the epoch
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._where: dict[str, tuple[JobClass, Account]] = {}
        self._leases: dict[tuple[JobClass, Account], dict[str, _HintedLease]] = {}

    def add(self, lease: Lease, named: Account) -> None:
        """Add a lease of an account."""
        if lease.pattern is None or lease.expected_seconds is None:
            return
        load = LOAD[lease.pattern]
        self._where[lease.id] = where = lease.job_class, named
        self._leases.setdefault(where, {})[lease.id] = _HintedLease(
            lease.user, load, load * lease.expected_seconds, lease.expires
        )

    def remove(self, lease_id: str) -> None:
        """Remove a lease that has ended."""
        if (where := self._where.pop(lease_id, None)) is not None:
            del self._leases[where][lease_id]
            if not self._leases[where]:
                del self._leases[where]

    def used(self, lease_id: str, seconds: float) -> None:
        """Note what a lease has used; less than 0 takes some of it back."""
        if (where := self._where.get(lease_id)) is not None:
            self._leases[where][lease_id].seconds -= seconds

    def accounts(self, job_class: JobClass) -> list[Account]:
        """List the accounts that work of a class is expected of."""
        return [named for name, named in self._leases if name == job_class]

    def load(self, job_class: JobClass, named: Account) -> float:
        """Return how many QPUs an account's tenants would keep busy."""
        leases = self._leases.get((job_class, named), {})
        return sum(lease.load for lease in leases.values())

    def by_user(self, job_class: JobClass, named: Account) -> Mapping[str, float]:
        """Return the seconds expected of each user of an account."""
        seconds: defaultdict[str, float] = defaultdict(float)
        now = self._clock()
        for lease in self._leases.get((job_class, named), {}).values():
            seconds[lease.user] += lease.remaining(now)
        return seconds

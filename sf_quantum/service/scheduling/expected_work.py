"""What those who hold leases have yet to submit, as far as their hints say."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sf_quantum.service.domain.jobs import JobClass, Lease, Pattern
from sf_quantum.service.domain.settings import Account

# the part of the time in which a tenant has a job on the QPU or waiting for it, as its
# pattern says; who says nothing counts as balanced
LOAD: Mapping[Pattern | None, float] = {
    "cc-heavy": 0.1,
    "balanced": 0.5,
    None: 0.5,
    "qc-heavy": 0.9,
}


@dataclass
class _Promise:
    user: str
    load: float
    seconds: float
    expires: float | None

    def left(self, now: float) -> float:
        """Tell the seconds that are yet to come, at most as long as it is held."""
        if self.expires is None:
            return max(0.0, self.seconds)
        return max(0.0, min(self.seconds, self.load * (self.expires - now)))


class Promises:
    """Seconds on the device that are to be expected under the leases held.

    A lease with a pattern and expected seconds promises that part of these. One without
    promises nothing, and after a restart what was used before is promised once more.

    :param clock: seconds since the epoch
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._leases: dict[str, tuple[JobClass, Account]] = {}
        self._of: dict[JobClass, dict[Account, dict[str, _Promise]]] = {}

    def add(self, lease: Lease, named: Account) -> None:
        """Take note of a lease."""
        if lease.pattern is None or lease.expected_seconds is None:
            return
        load = LOAD[lease.pattern]
        self._leases[lease.id] = where = lease.job_class, named
        accounts = self._of.setdefault(where[0], {})
        accounts.setdefault(named, {})[lease.id] = _Promise(
            lease.user, load, load * lease.expected_seconds, lease.expires
        )

    def remove(self, lease_id: str) -> None:
        """Take note that a lease has ended."""
        if (where := self._leases.pop(lease_id, None)) is not None:
            accounts = self._of[where[0]]
            del accounts[where[1]][lease_id]
            if not accounts[where[1]]:
                del accounts[where[1]]

    def used(self, lease_id: str, seconds: float) -> None:
        """Take note that a lease has used the QPU, or less of it than was noted."""
        if (where := self._leases.get(lease_id)) is not None:
            self._of[where[0]][where[1]][lease_id].seconds -= seconds

    def accounts(self, job_class: JobClass) -> list[Account]:
        """List who holds leases of a class that promise something."""
        return [*self._of.get(job_class, {})]

    def load(self, job_class: JobClass, named: Account) -> float:
        """Tell how many QPUs an account's tenants would keep busy."""
        leases = self._of.get(job_class, {}).get(named, {})
        return sum(promise.load for promise in leases.values())

    def users(self, job_class: JobClass, named: Account) -> Mapping[str, float]:
        """Tell the seconds that each user of an account has yet to use."""
        seconds: defaultdict[str, float] = defaultdict(float)
        now = self._clock()
        for promise in self._of.get(job_class, {}).get(named, {}).values():
            seconds[promise.user] += promise.left(now)
        return seconds

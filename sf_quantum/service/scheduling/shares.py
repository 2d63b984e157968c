"""Shares of the QPU of projects and users, their usage and their expected work."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sf_quantum.service.domain.jobs import JobClass, Lease, Pattern, Used
from sf_quantum.service.domain.settings import Account, Shares
from sf_quantum.service.scheduling.work import Clock, PendingJob

# an account, or a user within one
Sharer: TypeAlias = tuple[Account, str | None]

# half-lives after which the sums are rescaled, to avoid overflow at 2 ** 1023
MAX_HALF_LIVES = 500.0
# relative growth of the weight of a second after which tags are recomputed
STALE = 1e-3
# fraction of the time in which a tenant has a job pending or running, by the pattern of
# its lease; no pattern is treated as balanced
LOAD: Mapping[Pattern | None, float] = {
    "cc-heavy": 0.1,
    "balanced": 0.5,
    None: 0.5,
    "qc-heavy": 0.9,
}


def account(user: str, project: str | None) -> Account:
    return ("user", user) if project is None else ("project", project)


def account_of(item: PendingJob | Lease | Used) -> Account:
    return account(item.user, item.project)


# account, user, job or lease, and cluster
_SlurmJob: TypeAlias = tuple[Account, str, str, str | None]


class ActiveShares:
    """The effective shares: those of held leases, or those of the configuration.

    The leases of a Slurm job have one share together, that of the first.
    """

    def __init__(self, shares: Shares) -> None:
        self.configured = shares
        self._leased: Counter[Sharer] = Counter()
        # leases and share of each Slurm job
        self._jobs: dict[_SlurmJob, tuple[set[str], int]] = {}

    def leased(self, lease: Lease) -> None:
        """Add the share of a lease, unless another lease of its Slurm job is held."""
        if lease.tenths is not None:
            leases, share = self._jobs.setdefault(_job(lease), (set(), lease.tenths))
            if not leases:
                self._change(lease, share)
            leases.add(lease.id)

    def released(self, lease: Lease) -> None:
        """Remove the share of a lease if it is the last of its Slurm job."""
        leases, share = self._jobs.get(_job(lease), (set(), 0))
        if lease.id in leases:
            leases.remove(lease.id)
            if not leases:
                del self._jobs[_job(lease)]
                self._change(lease, -share)

    def of(self, sharer: Sharer) -> int:
        """Return the share of an account, or of a user within it, in tenths."""
        owner, user = sharer
        configured = owner if user is None else ("user", user)
        if leased := self._leased.get(sharer):
            return max(leased, self.configured.named(configured) or 0)
        return self.configured.of(configured)

    def _change(self, lease: Lease, share: int) -> None:
        owner = account_of(lease)
        for sharer in ((owner, None), (owner, lease.user)):
            self._leased[sharer] += share
            if not self._leased[sharer]:
                del self._leased[sharer]


def _job(lease: Lease) -> _SlurmJob:
    job = lease.slurm_job_id or lease.id
    return account_of(lease), lease.user, job, lease.slurm_cluster


class DecayingUsage:
    """QPU seconds used, with exponential decay.

    Instead of scaling down all sums as time passes, later seconds have a higher weight, so
    that usage changes only the sums of the account and the user who are charged.

    :param half_life_seconds: time after which a second counts half
    :param clock: see :meth:`Policy.from_config`
    """

    def __init__(self, half_life_seconds: float, clock: Clock) -> None:
        self._half_life_seconds = half_life_seconds
        self._clock = clock
        # the weight of a second is 2 ** (half-lives since the epoch)
        self._epoch = clock()
        self._sums: defaultdict[Sharer, float] = defaultdict(float)
        #: weight of a second at the last charge
        self.weight = 1.0

    def of(self, sharer: Sharer) -> float:
        """Return the weighted seconds that an account, or a user within it, has used."""
        return self._sums.get(sharer, 0.0)

    @property
    def stamp(self) -> tuple[float, float]:
        """The epoch of the weights and the present weight, for :meth:`is_stale`."""
        return self._epoch, self.weight

    def is_stale(self, stamp: tuple[float, float]) -> bool:
        """Return whether the weight has changed noticeably since a stamp."""
        epoch, weight = stamp
        return epoch != self._epoch or self.weight > weight * (1 + STALE)

    def charge(
        self, owner: Account, user: str, seconds: float, when: float | None = None
    ) -> None:
        """Charge QPU seconds to an account and a user within it, now or at a past time."""
        now = self._clock()
        if now - self._epoch > MAX_HALF_LIVES * self._half_life_seconds:
            factor = self._weight(now)
            self._sums.update({who: sum_ / factor for who, sum_ in self._sums.items()})
            self._epoch = now
        self.weight = self._weight(now)
        weight = self.weight if when is None else self._weight(min(when, now))
        for sharer in ((owner, None), (owner, user)):
            self._sums[sharer] += seconds * weight

    def _weight(self, when: float) -> float:
        half_lives = (when - self._epoch) / self._half_life_seconds
        # weights beyond this bound are negligible or overwhelming
        limit = 2 * MAX_HALF_LIVES
        return math.exp2(max(-limit, min(half_lives, limit)))


@dataclass
class _HintedLease:
    user: str
    load: float
    seconds: float
    expires: float


class ExpectedWork:
    """Device time that the holders of leases are expected to use.

    For a lease with a pattern and expected seconds, it is the fraction of the latter that
    the pattern stands for; for others, none. Usage before a restart is not deducted.

    :param clock: see :meth:`Policy.from_config`
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[str, tuple[JobClass, Account]] = {}
        self._leases: dict[tuple[JobClass, Account], dict[str, _HintedLease]] = {}

    def add(self, lease: Lease) -> None:
        if lease.pattern is None or lease.expected_seconds is None:
            return
        load = LOAD[lease.pattern]
        expires = math.inf if lease.expires is None else lease.expires
        self._keys[lease.id] = key = lease.job_class, account_of(lease)
        self._leases.setdefault(key, {})[lease.id] = _HintedLease(
            lease.user, load, load * lease.expected_seconds, expires
        )

    def remove(self, lease_id: str) -> None:
        if (key := self._keys.pop(lease_id, None)) is not None:
            del self._leases[key][lease_id]
            if not self._leases[key]:
                del self._leases[key]

    def used(self, lease_id: str, seconds: float) -> None:
        """Deduct seconds that a lease has used; a negative number is a refund."""
        if (key := self._keys.get(lease_id)) is not None:
            self._leases[key][lease_id].seconds -= seconds

    def accounts(self, job_class: JobClass) -> list[Account]:
        return [owner for name, owner in self._leases if name == job_class]

    def load(self, job_class: JobClass, owner: Account) -> float:
        """Return the load by the users of an account, in QPUs."""
        leases = self._leases.get((job_class, owner), {})
        return sum(lease.load for lease in leases.values())

    def by_user(self, job_class: JobClass, owner: Account) -> Mapping[str, float]:
        """Return the expected seconds of each user of an account."""
        seconds: defaultdict[str, float] = defaultdict(float)
        now = self._clock()
        for lease in self._leases.get((job_class, owner), {}).values():
            left = min(lease.seconds, lease.load * (lease.expires - now))
            seconds[lease.user] += max(0.0, left)
        return seconds

"""The share of the QPU that each project and user has, and what they have used of it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TypeAlias

from sf_quantum.service.domain.jobs import Lease, Used
from sf_quantum.service.domain.settings import Account, Shares
from sf_quantum.service.scheduling.work import Clock, PendingJob

# an account, or a user within one
Sharer: TypeAlias = tuple[Account, str | None]

# half-lives after which the sums are scaled down, long before a float overflows (2 ** 1023)
MAX_HALF_LIVES = 500.0
# growth of the weight of a second after which tags are computed anew
STALE = 1e-3


def account(user: str, project: str | None) -> Account:
    """Return the account that a user's job is charged to."""
    return ("user", user) if project is None else ("project", project)


def account_of(one: PendingJob | Lease | Used) -> Account:
    """Return the account that a job, a lease or usage is charged to."""
    return account(one.user, one.project)


class ActiveShares:
    """The shares that count now: those of the held leases, or of the configuration.

    The leases of one Slurm job have one share between them, that of the first.
    """

    def __init__(self, shares: Shares) -> None:
        self._configured = shares
        self._leased: Counter[Sharer] = Counter()
        # by Slurm job: its leases, and its share
        self._jobs: dict[tuple[Account, str, str], tuple[set[str], int]] = {}

    def leased(self, lease: Lease) -> None:
        """Count the share of a lease, unless another one of its Slurm job is held."""
        if lease.tenths is not None:
            leases, share = self._jobs.setdefault(_job(lease), (set(), lease.tenths))
            if not leases:
                self._change(lease, share)
            leases.add(lease.id)

    def released(self, lease: Lease) -> None:
        """Count a lease's share no longer, if it is the last of its Slurm job."""
        leases, share = self._jobs.get(_job(lease), (set(), 0))
        if lease.id in leases:
            leases.remove(lease.id)
            if not leases:
                del self._jobs[_job(lease)]
                self._change(lease, -share)

    def of(self, sharer: Sharer) -> int:
        """Return the share of an account, or of a user within it, in tenths."""
        named, user = sharer
        configured = named if user is None else ("user", user)
        if leased := self._leased.get(sharer):
            return max(leased, self._configured.named(configured) or 0)
        return self._configured.of(configured)

    def _change(self, lease: Lease, share: int) -> None:
        named = account_of(lease)
        for sharer in ((named, None), (named, lease.user)):
            self._leased[sharer] += share
            if not self._leased[sharer]:
                del self._leased[sharer]


def _job(lease: Lease) -> tuple[Account, str, str]:
    return account_of(lease), lease.user, lease.slurm_job_id or lease.id


class Usage:
    """QPU seconds used, each counting half as much after every half-life.

    Instead of scaling down all sums as time passes, a second weighs more the later it is
    used, so that only the sum of whoever uses the QPU changes.

    :param half_life_seconds: by the clock
    :param clock: seconds since the epoch
    """

    def __init__(self, half_life_seconds: float, clock: Clock) -> None:
        self._half_life_seconds = half_life_seconds
        self._clock = clock
        # a second used now weighs 2 ** (half-lives since then)
        self._epoch = clock()
        self._sums: defaultdict[Sharer, float] = defaultdict(float)
        #: of a second, the last time anybody used the QPU
        self.weight = 1.0

    def of(self, sharer: Sharer) -> float:
        """Return the weighted seconds that an account, or a user within it, has used."""
        return self._sums.get(sharer, 0.0)

    @property
    def stamp(self) -> tuple[float, float]:
        """When sums were read: the epoch of their weights, and the weight of a second."""
        return self._epoch, self.weight

    def is_stale(self, stamp: tuple[float, float]) -> bool:
        """Return whether seconds weigh noticeably more than when sums were read."""
        epoch, weight = stamp
        return epoch != self._epoch or self.weight > weight * (1 + STALE)

    def charge(
        self, named: Account, user: str, seconds: float, when: float | None = None
    ) -> None:
        """Charge QPU seconds to an account and to a user within it.

        :param when: since the epoch; ``None`` is now
        """
        now = self._clock()
        if now - self._epoch > MAX_HALF_LIVES * self._half_life_seconds:
            factor = self._weight(now)
            self._sums.update({who: sum_ / factor for who, sum_ in self._sums.items()})
            self._epoch = now
        self.weight = self._weight(now)
        weight = self.weight if when is None else self._weight(min(when, now))
        for sharer in ((named, None), (named, user)):
            self._sums[sharer] += seconds * weight

    def _weight(self, when: float) -> float:
        half_lives = (when - self._epoch) / self._half_life_seconds
        # beyond that one weighs nothing beside the other
        most = 2 * MAX_HALF_LIVES
        return math.exp2(max(-most, min(half_lives, most)))

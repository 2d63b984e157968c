"""The QPU shares of projects and users, and the QPU time that they have used."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TypeAlias

from sf_quantum.service.domain.jobs import Lease, Used
from sf_quantum.service.domain.settings import Account, Shares
from sf_quantum.service.scheduling.work import Clock, PendingJob

# an account, or a user within an account
Sharer: TypeAlias = tuple[Account, str | None]

# number of half-lives after which the sums are rescaled, to avoid overflow at 2 ** 1023
MAX_HALF_LIVES = 500.0
# pending jobs are sorted again once the weight of a newly used QPU second has grown by this
# fraction
STALE_GROWTH = 1e-3


def account_for(user: str, project: str | None) -> Account:
    return ("user", user) if project is None else ("project", project)


def account_of(item: PendingJob | Lease | Used) -> Account:
    return account_for(item.user, item.project)


# account, user, id of the Slurm job (of the lease if there is no Slurm job), and cluster
_SlurmJob: TypeAlias = tuple[Account, str, str, str | None]


class ActiveShares:
    """The shares in effect.

    An account or user with held leases that have shares gets the total of these shares, but
    at least the share that the configuration names for it, if any. Otherwise, the share of
    the configuration is in effect. The leases of a Slurm job count as a single share: that
    of the first lease.
    """

    def __init__(self, shares: Shares) -> None:
        self.configured = shares
        self._leased: Counter[Sharer] = Counter()
        # ids of the held leases of each Slurm job, and the share of the job
        self._jobs: dict[_SlurmJob, tuple[set[str], int]] = {}

    def leased(self, lease: Lease) -> None:
        """Add the share of a lease, unless another lease of its Slurm job is held."""
        if lease.tenths is not None:
            leases, share = self._jobs.setdefault(_job_of(lease), (set(), lease.tenths))
            if not leases:
                self._change(lease, share)
            leases.add(lease.id)

    def released(self, lease: Lease) -> None:
        """Remove the share of a lease if it is the last lease of its Slurm job."""
        leases, share = self._jobs.get(_job_of(lease), (set(), 0))
        if lease.id in leases:
            leases.remove(lease.id)
            if not leases:
                del self._jobs[_job_of(lease)]
                self._change(lease, -share)

    def of(self, sharer: Sharer) -> int:
        """Return the share of an account, or of a user within it, in tenths."""
        account, user = sharer
        configured = account if user is None else ("user", user)
        if leased := self._leased.get(sharer):
            return max(leased, self.configured.named(configured) or 0)
        return self.configured.of(configured)

    def _change(self, lease: Lease, share: int) -> None:
        account = account_of(lease)
        for sharer in ((account, None), (account, lease.user)):
            self._leased[sharer] += share
            if not self._leased[sharer]:
                del self._leased[sharer]


def _job_of(lease: Lease) -> _SlurmJob:
    job = lease.slurm_job_id or lease.id
    return account_of(lease), lease.user, job, lease.slurm_cluster


class DecayingUsage:
    """QPU seconds used, with exponential decay.

    Sums are not scaled down as time passes; instead, later seconds have a higher weight. So
    a charge changes only the sums of the charged account and user.

    :param half_life_seconds: time after which the weight of a used second has halved
    :param clock: see :meth:`Policy.from_config`
    """

    def __init__(self, half_life_seconds: float, clock: Clock) -> None:
        self._half_life_seconds = half_life_seconds
        self._clock = clock
        # the weight of a second is 2 ** (number of half-lives since the epoch)
        self._epoch = clock()
        self._sums: defaultdict[Sharer, float] = defaultdict(float)
        #: weight of a second at the last charge
        self.weight = 1.0

    def of(self, sharer: Sharer) -> float:
        """Return the weighted seconds that an account, or a user within it, has used."""
        return self._sums.get(sharer, 0.0)

    @property
    def stamp(self) -> tuple[float, float]:
        """The epoch of the weights and the current weight, for :meth:`is_stale`."""
        return self._epoch, self.weight

    def is_stale(self, stamp: tuple[float, float]) -> bool:
        """Return whether the weight has changed noticeably since a stamp."""
        epoch, weight = stamp
        return epoch != self._epoch or self.weight > weight * (1 + STALE_GROWTH)

    def charge(
        self, account: Account, user: str, seconds: float, when: float | None = None
    ) -> None:
        """Charge QPU seconds to an account and a user within it, now or at a past time."""
        now = self._clock()
        if now - self._epoch > MAX_HALF_LIVES * self._half_life_seconds:
            factor = self._weight(now)
            self._sums.update({who: sum_ / factor for who, sum_ in self._sums.items()})
            self._epoch = now
        self.weight = self._weight(now)
        weight = self.weight if when is None else self._weight(min(when, now))
        for sharer in ((account, None), (account, user)):
            self._sums[sharer] += seconds * weight

    def _weight(self, when: float) -> float:
        half_lives = (when - self._epoch) / self._half_life_seconds
        # beyond this limit, a charge is negligible, or outweighs all others, in any case
        limit = 2 * MAX_HALF_LIVES
        return math.exp2(max(-limit, min(half_lives, limit)))

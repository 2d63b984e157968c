"""What each project and user is to have of the QPU, and what they have had."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable

from sf_quantum.service.domain.jobs import Lease, Used
from sf_quantum.service.domain.settings import Account, Shares
from sf_quantum.service.scheduling.work import PendingJob

# halvings after which the sums are written anew, long before a float ends (2 ** 1023)
MOST_HALVINGS = 500.0
# by how much the worth of a second may grow before places in the line are made again
STALE = 1e-3


def account(user: str, project: str | None) -> Account:
    """Tell whose share a user's job uses."""
    return ("user", user) if project is None else ("project", project)


def account_of(one: PendingJob | Lease | Used) -> Account:
    """Tell whose share a job or a lease uses, or used."""
    return account(one.user, one.project)


class Weights:
    """The tenths that count now: those of the leases held, or of the configuration."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._leased: Counter[tuple[Account, str | None]] = Counter()
        # by whose job it is: its leases, and the tenths that it was given once
        self._jobs: dict[tuple[Account, str, str], tuple[set[str], int]] = {}

    def leased(self, lease: Lease) -> None:
        """Count the tenths of a lease, unless another one of its Slurm job's is held."""
        if lease.tenths is not None:
            leases, tenths = self._jobs.setdefault(_job(lease), (set(), lease.tenths))
            if not leases:
                self._change(lease, tenths)
            leases.add(lease.id)

    def released(self, lease: Lease) -> None:
        """Count a lease's tenths no longer, if it is the last of its Slurm job's."""
        leases, tenths = self._jobs.get(_job(lease), (set(), 0))
        if lease.id in leases:
            leases.remove(lease.id)
            if not leases:
                del self._jobs[_job(lease)]
                self._change(lease, -tenths)

    def of(self, who: tuple[Account, str | None]) -> int:
        """Tell the tenths of an account, or of a user within a project.

        :param who: the account, and the user or ``None``
        """
        named, user = who
        configured = named if user is None else ("user", user)
        if leased := self._leased.get(who):
            return max(leased, self._shares.named(configured) or 0)
        return self._shares.of(configured)

    def _change(self, lease: Lease, tenths: int) -> None:
        named = account_of(lease)
        for who in ((named, None), (named, lease.user)):
            self._leased[who] += tenths
            if not self._leased[who]:
                del self._leased[who]


def _job(lease: Lease) -> tuple[Account, str, str]:
    return account_of(lease), lease.user, lease.slurm_job_id or lease.id


class Usage:
    """QPU seconds used, each counting half as much after every half-life.

    Instead of the past fading, the present grows: a second is worth more the later it is
    used, and no sum changes but that of who uses the QPU.

    :param half_life_seconds: by the clock on the wall
    :param clock: seconds since the epoch
    """

    def __init__(
        self, half_life_seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._half_life_seconds = half_life_seconds
        self._clock = clock
        # a second used now counts 2 ** halvings since then
        self._epoch = clock()
        self._sums: defaultdict[tuple[Account, str | None], float] = defaultdict(float)
        # of a second, the last time anybody used the QPU
        self.worth = 1.0

    def of(self, who: tuple[Account, str | None]) -> float:
        """Tell what an account, or a user within it, has used, by the worth of it."""
        return self._sums.get(who, 0.0)

    @property
    def stamp(self) -> tuple[float, float]:
        """Of what was told: its epoch, and the worth of a second then."""
        return self._epoch, self.worth

    def is_stale(self, stamp: tuple[float, float]) -> bool:
        """Say whether seconds to come, as told then, are worth more by now."""
        epoch, worth = stamp
        return epoch != self._epoch or self.worth > worth * (1 + STALE)

    def charge(
        self, named: Account, user: str, seconds: float, when: float | None = None
    ) -> None:
        """Count seconds on the QPU, of the account and of the user in it.

        :param when: since the epoch; ``None`` is now
        """
        now = self._clock()
        if now - self._epoch > MOST_HALVINGS * self._half_life_seconds:
            factor = self._worth(now)
            self._sums.update({who: sum_ / factor for who, sum_ in self._sums.items()})
            self._epoch = now
        self.worth = self._worth(now)
        worth = self.worth if when is None else self._worth(min(when, now))
        for who in ((named, None), (named, user)):
            self._sums[who] += seconds * worth

    def _worth(self, when: float) -> float:
        halvings = (when - self._epoch) / self._half_life_seconds
        # beyond that something counts nothing beside something else
        return math.exp2(max(-2 * MOST_HALVINGS, min(halvings, 2 * MOST_HALVINGS)))

"""What each project and user is to have of the QPU, and what they have had."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

# a project, or else a user who has none: ("project", name) or ("user", name)
Account: TypeAlias = tuple[str, str]
# halvings after which the sums are written anew, long before a float ends (2 ** 1023)
MOST_HALVINGS = 500.0
# by how much the worth of a second may grow before places in the line are made again
STALE = 1e-3


@dataclass(frozen=True)
class Shares:
    """Shares in tenths, as ten licences or gres units of Slurm would give them.

    They are parts of what the active ones share: of 5 and 3 tenths alone one gets 5/8.
    The unit and its meaning are those of paper 004, section 3.5.

    :param default: of projects and users that are not named
    """

    projects: Mapping[str, int] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)
    default: int = 1

    def of(self, account: Account) -> int:
        """Tell the tenths of a project or user."""
        kind, name = account
        named = self.projects if kind == "project" else self.users
        return named.get(name, self.default)


def account(user: str, project: str | None) -> Account:
    """Tell whose share a user's job uses."""
    return ("user", user) if project is None else ("project", project)


class Weights:
    """The tenths that count now: those of the leases held, or else the configured ones."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._leased: Counter[tuple[Account, str | None]] = Counter()

    def change(self, who: tuple[Account, str | None], tenths: int) -> None:
        """Count tenths of a lease that begins, or negative ones of one that ends."""
        self._leased[who] += tenths
        if not self._leased[who]:
            del self._leased[who]

    def of(self, who: tuple[Account, str | None]) -> int:
        """Tell the tenths of an account, or of a user within a project.

        :param who: the account, and the user or ``None``
        """
        named, user = who
        configured = named if user is None else ("user", user)
        return self._leased.get(who) or self._shares.of(configured)


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

"""The QPU seconds that held leases are expected to submit, from hints and observed usage."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sf_quantum.service.domain.jobs import JobClass, Lease, Pattern
from sf_quantum.service.domain.settings import Account
from sf_quantum.service.scheduling.shares import account_of

# largest and smallest number of values in a measure, see :class:`HeldLeases`
LATEST = 100
FEW = 10
# fraction of the time in which a tenant has a job pending or running, by the pattern of
# the lease; a lease without a pattern is treated as balanced. Also used by the policy
# ``interleave``.
LOAD: Mapping[Pattern | None, float] = {
    "cc-heavy": 0.1,
    "balanced": 0.5,
    None: 0.5,
    "qc-heavy": 0.9,
}


class ExpectedLease(NamedTuple):
    """What a held lease is still expected to submit.

    :param seconds: QPU seconds
    :param load: fraction of the time in which the lease has a job pending or running
    """

    user: str
    seconds: float
    load: float


class Overtaking(NamedTuple):
    """Held leases whose later jobs run before a pending job.

    :param at_most: upper bound of the QPU seconds of these later jobs
    """

    leases: Sequence[ExpectedLease]
    at_most: float = math.inf

    def within(self, seconds: float) -> float:
        """Return the QPU seconds that the leases are expected to submit within a time."""
        submitted = sum(
            min(lease.seconds, lease.load * seconds) for lease in self.leases
        )
        return min(self.at_most, submitted)


@dataclass
class _HeldLease:
    key: tuple[JobClass, Account]
    user: str
    load: float
    hint: float | None
    submitted: float = 0.0
    # last computed expectation, or ``None`` after the lease has submitted a job since; and
    # the number of the measure that the expectation was computed with
    expected: ExpectedLease | None = None
    measure: int = 0


class HeldLeases:
    """The held leases, and the QPU seconds that they are expected to submit.

    Expectations are based on the *measure*, the usage of the latest ended leases:

    - A lease with a hint is expected to use its hint, bounded by the quartiles of the
      measure.
    - A lease without a hint is expected to use the median of the measure.
    - A lease that has already used that many seconds is expected to reach the mean of the
      larger values in the measure.

    Until :data:`FEW` leases have ended, the hints of all held leases are the measure; with
    fewer than :data:`FEW` hints, nothing is expected. Usage before a restart is not known.
    """

    def __init__(self) -> None:
        self._leases: dict[str, _HeldLease] = {}
        self._by_key: dict[tuple[JobClass, Account], dict[str, _HeldLease]] = {}
        # QPU seconds used by each of the latest ended leases, oldest first; ``_totals`` has
        # the same values in ascending order
        self._latest: deque[float] = deque()
        self._totals: list[float] = []
        # hints of all held leases, in ascending order
        self._hints: list[float] = []
        # number of the current measure; expectations by an earlier measure are recomputed
        self._measure_number = 0

    @property
    def measured(self) -> bool:
        """Whether the measure has enough values for expectations."""
        return len(self._measure) >= FEW

    @property
    def _measure(self) -> Sequence[float]:
        """The usage of the latest ended leases, or hints if too few have ended; ascending."""
        return self._totals if len(self._totals) >= FEW else self._hints

    def add(self, lease: Lease) -> None:
        held = self._leases[lease.id] = _HeldLease(
            key=(lease.job_class, account_of(lease)),
            user=lease.user,
            load=LOAD[lease.pattern],
            hint=lease.expected_seconds,
        )
        self._by_key.setdefault(held.key, {})[lease.id] = held
        if held.hint is not None:
            insort(self._hints, held.hint)
        self._measure_number += 1

    def remove(self, lease_id: str) -> None:
        held = self._leases.pop(lease_id, None)
        if held is None:
            return
        del self._by_key[held.key][lease_id]
        if not self._by_key[held.key]:
            del self._by_key[held.key]
        if held.hint is not None:
            del self._hints[bisect_left(self._hints, held.hint)]
        if held.submitted > 0:
            if len(self._latest) == LATEST:
                del self._totals[bisect_left(self._totals, self._latest.popleft())]
            self._latest.append(held.submitted)
            insort(self._totals, held.submitted)
        self._measure_number += 1

    def submitted(self, lease_id: str, seconds: float) -> None:
        """Add the QPU seconds of a submitted job; negative for a cancelled job."""
        if (held := self._leases.get(lease_id)) is not None:
            held.submitted += seconds
            held.expected = None

    def of_classes(self, classes: Collection[JobClass]) -> list[ExpectedLease]:
        if not self.measured:
            return []
        leases = [*self._leases.values()]  # a copy, since other threads may change them
        return [self._expected(held) for held in leases if held.key[0] in classes]

    def by_account(self, job_class: JobClass) -> Mapping[Account, list[ExpectedLease]]:
        leases: defaultdict[Account, list[ExpectedLease]] = defaultdict(list)
        if self.measured:
            for (name, owner), held in self._by_key.items():
                if name == job_class:
                    leases[owner] += map(self._expected, held.values())
        return leases

    def _expected(self, held: _HeldLease) -> ExpectedLease:
        expected = held.expected
        if expected is None or held.measure != self._measure_number:
            expected = ExpectedLease(held.user, self._seconds_left(held), held.load)
            held.expected, held.measure = expected, self._measure_number
        return expected

    def _seconds_left(self, held: _HeldLease) -> float:
        totals = self._measure
        count = len(totals)
        total = totals[count // 2]
        if held.hint is not None:
            total = min(max(held.hint, totals[count // 4]), totals[-1 - count // 4])
        if held.submitted < total:
            return total - held.submitted
        larger_totals = totals[bisect_right(totals, held.submitted) :]
        return (
            sum(larger_totals) / len(larger_totals) - held.submitted
            if larger_totals
            else 0.0
        )

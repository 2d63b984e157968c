"""Tenants that compute beside the QPU go first, so that others use it meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import RANKS, Lease, Pattern
from sf_quantum.service.domain.settings import Shares
from sf_quantum.service.scheduling.expected_work import LOAD
from sf_quantum.service.scheduling.policies.base import (
    Asking,
    ByClass,
    Keyed,
    check_options,
    number_option,
)
from sf_quantum.service.scheduling.work import PendingJob

# how much of its own length a job may be kept waiting for others, in parts of `patience`;
# who says nothing counts as balanced
_PATIENCE: Mapping[Pattern | None, float] = {
    "cc-heavy": 0.0,
    "balanced": 0.5,
    None: 0.5,
    "qc-heavy": 1.0,
}
PATIENCE = 10.0
# a lease goes past the same one who waits so many times at most
MOST_PASSES = 3


class Interleave(ByClass, Keyed[tuple[int, float]]):
    """Within a class, short jobs of cc-heavy tenants before long ones of qc-heavy ones.

    Paper 004, table 1, gives tenants with little quantum and much classical load the
    hint "interleave jobs to kill QPU idle time", and those of the opposite kind a
    "sequential QPU queue". A tenant's job and the computation after it are the two
    machines of a flow shop, whose makespan is least when jobs shorter on the first machine
    than on the second come first, the shortest of them first of all, and the others
    behind them (Johnson, Naval Research Logistics Quarterly 1, 1954, p. 61).

    Each job is due at its submission, and later by ``patience`` times its own length on
    the device if its lease is qc-heavy, half of that if it is balanced or has no
    pattern, not at all if it is cc-heavy. What is due first runs first. The bound: a job
    waits only for those due before it, so nobody of its class passes it who came after it
    was due; with the default, a job of a minute is passed for at most ten minutes of
    submissions, a cc-heavy one by nobody.

    A free lease goes to the tenant whose pattern brings the load of those held nearest to
    one QPU: beside qc-heavy tenants to a cc-heavy one, beside cc-heavy ones to a
    qc-heavy one. Of several alike, to the one who says to hold it for the shortest time
    (``expected_seconds``), then to the one who came first. The bound: nobody is passed
    more than three times.

    :param patience: in lengths of the job, above 0
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__()
        self._patience = patience

    @classmethod
    def from_config(cls, options: Mapping[str, JSON], shares: Shares) -> Self:
        """Take the option ``patience``."""
        check_options(options, ["patience"])
        return cls(number_option(options, "patience", PATIENCE))

    def key(self, entry: PendingJob) -> tuple[int, float]:
        """See :meth:`Keyed.key`: the class, and when the job is due."""
        late = _PATIENCE[entry.pattern] * self._patience * entry.seconds
        return RANKS[entry.job_class], entry.submitted + late

    def choose(self, waiting: Sequence[Asking], held: Sequence[Lease]) -> int:
        """See :meth:`Policy.choose`."""
        if waiting[0].passed >= MOST_PASSES:
            return 0
        # the leases held are to add up to one QPU
        load = sum(LOAD[lease.pattern] for lease in held)

        def badness(index: int) -> tuple[float, float, int]:
            request = waiting[index].request
            seconds = request.expected_seconds
            off = abs(load + LOAD[request.pattern] - 1)
            return off, float("inf") if seconds is None else seconds, index

        return min(range(len(waiting)), key=badness)

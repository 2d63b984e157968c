"""Tenants with much classical computation go first; others use the QPU meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import RANKS, Lease, Pattern
from sf_quantum.service.domain.settings import Shares
from sf_quantum.service.scheduling.expected_work import LOAD
from sf_quantum.service.scheduling.policies.base import (
    ByClass,
    Keyed,
    PendingLease,
    check_options,
    number_option,
)
from sf_quantum.service.scheduling.work import Clock, PendingJob

# the time within which later jobs may pass one, in parts of its length times `patience`; no
# hint counts as balanced
_PATIENCE: Mapping[Pattern | None, float] = {
    "cc-heavy": 0.0,
    "balanced": 0.5,
    None: 0.5,
    "qc-heavy": 1.0,
}
PATIENCE = 10.0
# how often a request for a lease may be passed by later ones
MOST_PASSES = 3


class Interleave(ByClass, Keyed[tuple[int, float]]):
    """Within a class, short jobs of cc-heavy tenants before long ones of qc-heavy ones.

    Paper 004, table 1, gives tenants with little quantum and much classical load the
    hint "interleave jobs to kill QPU idle time", and those of the opposite kind a
    "sequential QPU queue". A tenant's job and the computation after it are the two
    machines of a flow shop, whose makespan is least when jobs shorter on the first machine
    than on the second come first, the shortest of them first of all, and the others
    behind them (Johnson, Naval Research Logistics Quarterly 1, 1954, p. 61).

    Each job is due at its submission, plus ``patience`` times its own length on the
    device if its lease is qc-heavy, half of that if it is balanced or has no pattern,
    nothing if it is cc-heavy. The job due first runs first. This is bounded: a job waits
    only for those due before it, so no job of its class that is submitted after it was
    due passes it; with the default, a job of a minute is passed for at most ten minutes
    of submissions, a cc-heavy one by none.

    A free lease goes to the tenant whose pattern brings the load of the held leases
    nearest to one QPU: beside qc-heavy tenants to a cc-heavy one, beside cc-heavy ones to
    a qc-heavy one; of several alike, to the one with the shortest ``expected_seconds``,
    then to the first. This is bounded too: no request is passed more than three times.

    :param patience: in lengths of the job, above 0
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__()
        self._patience = patience

    @classmethod
    def from_config(
        cls, options: Mapping[str, JSON], shares: Shares, clock: Clock
    ) -> Self:
        """Take the option ``patience``."""
        check_options(options, ["patience"])
        return cls(number_option(options, "patience", PATIENCE))

    def key(self, job: PendingJob) -> tuple[int, float]:
        """See :meth:`Keyed.key`: the class, and when the job is due."""
        late = _PATIENCE[job.pattern] * self._patience * job.seconds
        return RANKS[job.job_class], job.submitted + late

    def choose(self, pending: Sequence[PendingLease], held: Sequence[Lease]) -> int:
        """See :meth:`Policy.choose`."""
        if pending[0].passed >= MOST_PASSES:
            return 0
        load = sum(LOAD[lease.pattern] for lease in held)

        def distance(index: int) -> tuple[float, float, int]:
            request = pending[index].request
            seconds = request.expected_seconds
            off = abs(load + LOAD[request.pattern] - 1)
            return off, float("inf") if seconds is None else seconds, index

        return min(range(len(pending)), key=distance)

"""Interleaving: jobs of tenants with much classical computation go first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Self

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import RANKS, Lease, Pattern
from sf_quantum.service.domain.settings import Shares
from sf_quantum.service.scheduling.held import LOAD
from sf_quantum.service.scheduling.policies.base import (
    ByClass,
    Keyed,
    PendingLease,
    number_options,
)
from sf_quantum.service.scheduling.work import Clock, PendingJob

# time in which later jobs may overtake one, relative to `patience` times its run time; no
# pattern is treated as balanced
_PATIENCE: Mapping[Pattern | None, float] = {
    "cc-heavy": 0.0,
    "balanced": 0.5,
    None: 0.5,
    "qc-heavy": 1.0,
}
PATIENCE = 10.0
# number of later requests for a lease that may be granted first
MOST_PASSES = 3


class Interleave(ByClass, Keyed[tuple[int, float]]):
    """Within a class, short jobs of cc-heavy tenants before long jobs of qc-heavy tenants.

    For tenants with little quantum and much classical load, Wennersteen et al. (2025),
    table 1, propose to "interleave jobs to kill QPU idle time"; for the opposite kind, a
    "sequential QPU queue". A tenant's job and its subsequent computation correspond to a
    two-machine flow shop. The makespan is minimal if jobs that are shorter on the first
    machine than on the second come first, in ascending order, followed by the others
    (Johnson, Naval Research Logistics Quarterly 1, 1954, p. 61).

    Jobs run in the order of due times. The due time is the submission time plus
    ``patience`` times the run time for qc-heavy leases, half of that for balanced leases
    and leases without a pattern, and nothing for cc-heavy leases. No job is overtaken by
    a job of its class that is submitted after its due time: by default, a qc-heavy job
    of one minute is overtaken by jobs submitted up to ten minutes later, a cc-heavy job
    by none.

    A free lease goes to the tenant whose pattern brings the load of the held leases
    closest to one QPU, then to the one with the fewest ``expected_seconds``, which of
    equal patterns holds it for the shortest time, then to the oldest request. At most
    three later requests are granted before any request.

    :param patience: how long a job may be overtaken, relative to its run time; above 0
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__()
        self._patience = patience

    @classmethod
    def from_config(
        cls, options: Mapping[str, JSON], shares: Shares, clock: Clock
    ) -> Self:
        return cls(**number_options(options, patience=PATIENCE))

    def key(self, job: PendingJob) -> tuple[int, float]:
        patience = _PATIENCE[job.pattern] * self._patience * job.seconds
        return RANKS[job.job_class], job.submitted + patience

    def choose(self, pending: Sequence[PendingLease], held: Sequence[Lease]) -> int:
        if pending[0].passed >= MOST_PASSES:
            return 0
        load = sum(LOAD[lease.pattern] for lease in held)

        def distance(index: int) -> tuple[float, float, int]:
            request = pending[index].request
            deviation = abs(load + LOAD[request.pattern] - 1)
            seconds = request.expected_seconds
            return deviation, math.inf if seconds is None else seconds, index

        return min(range(len(pending)), key=distance)

"""The policy ``interleave``: tenants with mostly classical computation go first."""

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

# Factors of `patience`: later jobs may overtake a job for this factor times `patience` times
# its run time. Jobs without a pattern are treated as balanced.
_PATIENCE_FACTORS: Mapping[Pattern | None, float] = {
    "cc-heavy": 0.0,
    "balanced": 0.5,
    None: 0.5,
    "qc-heavy": 1.0,
}
DEFAULT_PATIENCE = 10.0
# Number of later lease requests that may be granted before a request.
MAX_PASSES = 3


class Interleave(ByClass, Keyed[tuple[int, float]]):
    """Runs short jobs of cc-heavy tenants before long jobs of qc-heavy tenants.

    For tenants with little quantum and much classical load, Wennersteen et al. (2025),
    table 1, propose to "interleave jobs to kill QPU idle time"; for the opposite kind, a
    "sequential QPU queue". A tenant's job and its subsequent computation correspond to a
    two-machine flow shop. The makespan is minimal if jobs that are shorter on the first
    machine than on the second come first, in ascending order, followed by the others
    (Johnson, Naval Research Logistics Quarterly 1, 1954, p. 61).

    Within a class, jobs run in the order of their due times. The due time of a job is its
    submission time plus

    - ``patience`` times its run time if its lease is qc-heavy;
    - half of that if its lease is balanced or has no pattern;
    - nothing if its lease is cc-heavy.

    A job is never overtaken by a job of its class that is submitted after its due time. By
    default, jobs submitted up to ten minutes later may overtake a qc-heavy job of one
    minute; no job overtakes a cc-heavy job.

    A free vQPU is leased to the tenant whose pattern brings the total load of the leases
    closest to one QPU. Ties are resolved by the fewest ``expected_seconds``, then by the
    oldest request. At most three later requests are granted before a request.

    :param patience: time for which a job may be overtaken, relative to its run time;
        above 0
    """

    def __init__(self, patience: float = DEFAULT_PATIENCE) -> None:
        super().__init__()
        self._patience = patience

    @classmethod
    def from_config(
        cls, options: Mapping[str, JSON], shares: Shares, clock: Clock
    ) -> Self:
        return cls(**number_options(options, patience=DEFAULT_PATIENCE))

    def key(self, job: PendingJob) -> tuple[int, float]:
        patience = _PATIENCE_FACTORS[job.pattern] * self._patience * job.seconds
        return RANKS[job.job_class], job.submitted + patience

    def choose_request(
        self, pending: Sequence[PendingLease], held: Sequence[Lease]
    ) -> int:
        if pending[0].passed >= MAX_PASSES:
            return 0
        load = sum(LOAD[lease.pattern] for lease in held)

        def distance(index: int) -> tuple[float, float, int]:
            request = pending[index].request
            deviation = abs(load + LOAD[request.pattern] - 1)
            seconds = request.expected_seconds
            return deviation, math.inf if seconds is None else seconds, index

        return min(range(len(pending)), key=distance)

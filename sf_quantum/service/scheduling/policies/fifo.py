"""First come, first served, regardless of class: the baseline of benchmarks."""

from __future__ import annotations

from sf_quantum.service.scheduling.policies.base import Keyed
from sf_quantum.service.scheduling.work import PendingJob


class Fifo(Keyed[tuple[()]]):
    """Runs jobs in the order of submission, without pre-emption."""

    def key(self, job: PendingJob) -> tuple[()]:
        return ()

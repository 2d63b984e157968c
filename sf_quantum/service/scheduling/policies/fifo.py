"""First come, first served, whatever the class: the baseline of comparisons."""

from __future__ import annotations

from sf_quantum.service.scheduling.policies.base import Keyed
from sf_quantum.service.scheduling.work import PendingJob


class Fifo(Keyed[tuple[()]]):
    """Jobs run in the order of submission; none pre-empts another."""

    def key(self, job: PendingJob) -> tuple[()]:
        """See :meth:`Keyed.key`."""
        return ()

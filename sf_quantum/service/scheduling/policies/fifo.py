"""First come, first served, whatever the class: what the others are compared with."""

from __future__ import annotations

from sf_quantum.service.scheduling.policies.base import Keyed
from sf_quantum.service.scheduling.work import PendingJob


class Fifo(Keyed[tuple[()]]):
    """Jobs run as they came; none stops another."""

    def key(self, entry: PendingJob) -> tuple[()]:
        """See :meth:`Keyed.key`."""
        return ()

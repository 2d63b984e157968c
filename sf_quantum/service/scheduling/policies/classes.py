"""Class by class, and in each class as they came: the default."""

from __future__ import annotations

from sf_quantum.service.domain.jobs import RANKS
from sf_quantum.service.scheduling.policies.base import ByClass, Keyed
from sf_quantum.service.scheduling.work import PendingJob


class Classes(ByClass, Keyed[tuple[int]]):
    """Production before test before development (paper 004, section 3.3).

    A production job stops a running one of a lower class. That has the lowest number of
    its class: put back, it is first.
    """

    def key(self, entry: PendingJob) -> tuple[int]:
        """See :meth:`Keyed.key`."""
        return (RANKS[entry.job_class],)

"""Class by class, and first come, first served within each: the default."""

from __future__ import annotations

from sf_quantum.service.domain.jobs import RANKS
from sf_quantum.service.scheduling.policies.base import ByClass, Keyed
from sf_quantum.service.scheduling.work import PendingJob


class Classes(ByClass, Keyed[tuple[int]]):
    """Production before test before development (paper 004, section 3.3).

    A production job pre-empts a running one of a lower class, which has the lowest number
    of its class and is therefore first in it again.
    """

    def key(self, job: PendingJob) -> tuple[int]:
        """See :meth:`Keyed.key`."""
        return (RANKS[job.job_class],)

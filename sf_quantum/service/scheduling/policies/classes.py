"""First come, first served within each class: the default policy."""

from __future__ import annotations

from sf_quantum.service.domain.jobs import RANKS
from sf_quantum.service.scheduling.policies.base import ByClass, Keyed
from sf_quantum.service.scheduling.work import PendingJob


class Classes(ByClass, Keyed[tuple[int]]):
    """Production before test before development (Wennersteen et al. 2025, section 3.3).

    A job that a production job pre-empted is again the first job of its class, since it has
    the lowest number.
    """

    def key(self, job: PendingJob) -> tuple[int]:
        return (RANKS[job.job_class],)

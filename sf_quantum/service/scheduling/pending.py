"""The pending jobs, in the order of the scheduling policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from sf_quantum.service.domain.jobs import JobClass, Kind, Lease
from sf_quantum.service.scheduling.policies.base import Policy
from sf_quantum.service.scheduling.work import PendingJob, Work

# searched for one that may start where the first may not: done at each submission
SEARCHED = 1000


class PendingJobs:
    """Finds pending jobs by number and by lease, and the policy's next one.

    :param may_start: whether a job may start now; by default all may
    """

    def __init__(
        self,
        policy: Policy,
        *,
        may_start: Callable[[PendingJob], bool] = lambda _: True,
    ) -> None:
        self.policy = policy
        self._may_start = may_start
        self._jobs: dict[int, PendingJob] = {}
        self._by_lease: defaultdict[str, set[int]] = defaultdict(set)
        #: how many there are of each class
        self.lengths: Counter[JobClass] = Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[PendingJob]:
        """Iterate in the order of submission, whatever the policy's."""
        return iter([self._jobs[number] for number in sorted(self._jobs)])

    def get(self, number: int) -> PendingJob | None:
        """Find a pending job."""
        return self._jobs.get(number)

    def add(self, job: PendingJob) -> None:
        """Add a job at the position that the policy gives it."""
        self.policy.add(job)
        self._jobs[job.number] = job
        self.lengths[job.job_class] += 1
        self._by_lease[job.lease].add(job.number)

    def remove(self, number: int) -> PendingJob | None:
        """Remove and return a job; ``None`` if it is not pending."""
        job = self._jobs.pop(number, None)
        if job is not None:
            self.policy.remove(job)
            self.lengths[job.job_class] -= 1
            numbers = self._by_lease[job.lease]
            numbers.discard(number)
            if not numbers:
                del self._by_lease[job.lease]
        return job

    def first(self) -> PendingJob | None:
        """Find the job that runs next; ``None`` if there is none that may start.

        Where the policy's first job may not start, as it would run into a maintenance
        window, a later one that may goes before it, which does not delay the first.
        """
        first = self.policy.first() if self._jobs else None
        if first is None or self._may_start(first):
            return first
        return next(
            filter(self._may_start, islice(self.policy.order(), SEARCHED)), None
        )

    def pop(self) -> PendingJob | None:
        """Remove and return the job that runs next, as :meth:`first` finds it."""
        first = self.first()
        return None if first is None else self.remove(first.number)

    def move(self, number: int, lease: Lease) -> None:
        """Put a pending job under another lease, whose hints it takes."""
        if (job := self.remove(number)) is not None:
            job.move_to(lease)
            self.add(job)

    def of_lease(self, lease: str) -> list[int]:
        """List the numbers of a lease's pending jobs, sorted."""
        return sorted(self._by_lease.get(lease, ()))

    def ahead(self, job: PendingJob) -> tuple[dict[Kind, Work], float]:
        """Add up what runs before a job, which need not be pending yet.

        :returns: the pending work by kind, and the seconds of work that is expected but
            not submitted yet
        """
        if job.number in self._jobs:
            return self.policy.ahead(job), self.policy.coming(job)
        self.policy.add(job)
        try:
            return self.policy.ahead(job), self.policy.coming(job)
        finally:
            self.policy.remove(job)

    def order(self) -> Sequence[PendingJob]:
        """List the jobs in the order in which they would run as things stand."""
        return [*self.policy.order()]

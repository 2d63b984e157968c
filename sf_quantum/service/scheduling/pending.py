"""The pending jobs, in the order of the scheduling policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from sf_quantum.service.domain.jobs import JobClass, Kind
from sf_quantum.service.scheduling.held import HeldLeases, Overtaking
from sf_quantum.service.scheduling.policies.base import Policy
from sf_quantum.service.scheduling.work import PendingJob, Work

# number of jobs that are searched for one that may start, if the first job may not start
SEARCHED = 1000


class PendingJobs:
    """The pending jobs, found by number and by lease, and the policy's next job.

    :param may_start: returns whether a job may start now; by default, all jobs may
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
        #: number of pending jobs by class
        self.lengths: Counter[JobClass] = Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[PendingJob]:
        """Iterate in the order of submission, not of the policy."""
        return iter([self._jobs[number] for number in sorted(self._jobs)])

    def get(self, number: int) -> PendingJob | None:
        return self._jobs.get(number)

    def add(self, job: PendingJob) -> None:
        self.policy.add(job)
        self._jobs[job.number] = job
        self.lengths[job.job_class] += 1
        self._by_lease[job.lease].add(job.number)

    def remove(self, number: int) -> PendingJob | None:
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
        """Return the job that runs next; ``None`` if no job may start.

        If the policy's first job may not start, because it would run into a maintenance
        window, a later job that may start is backfilled without delaying the first.
        """
        first = self.policy.first() if self._jobs else None
        if first is None or self._may_start(first):
            return first
        searched = islice(self.policy.order(), SEARCHED)
        return next(filter(self._may_start, searched), None)

    def pop(self) -> PendingJob | None:
        first = self.first()
        return None if first is None else self.remove(first.number)

    def of_lease(self, lease: str) -> list[int]:
        return sorted(self._by_lease.get(lease, ()))

    def work_ahead(
        self, job: PendingJob, held: HeldLeases
    ) -> tuple[dict[Kind, Work], Sequence[Overtaking]]:
        """Sum the work ahead of a job; the job need not be pending yet.

        :returns: the pending work by kind, and the held leases whose later jobs overtake
            the job
        """
        pending = job.number in self._jobs
        if not pending:
            self.policy.add(job)
        try:
            return self.policy.work_ahead(job), self.policy.overtaking_leases(job, held)
        finally:
            if not pending:
                self.policy.remove(job)

    def order(self) -> Sequence[PendingJob]:
        """List the jobs in the order in which they run if no more jobs are submitted."""
        return [*self.policy.order()]

"""Shares between projects and users, by the QPU seconds they have used."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, Self, TypeAlias

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import CLASSES, RANKS, JobClass, Kind, Lease, Used
from sf_quantum.service.domain.settings import Account, Shares
from sf_quantum.service.scheduling.expected_work import ExpectedWork
from sf_quantum.service.scheduling.ordering import SortedJobs
from sf_quantum.service.scheduling.policies.base import (
    ByClass,
    PendingLease,
    Policy,
    check_options,
    number_option,
)
from sf_quantum.service.scheduling.shares import (
    ActiveShares,
    Sharer,
    Usage,
    account,
    account_of,
)
from sf_quantum.service.scheduling.work import Clock, PendingJob, Work

DAY = 24 * 3600.0
# usage of so many half-lives ago counts a thousandth
HALF_LIVES = 10
MAX_SHARE = 10

# usage per share when the job is next, and the job's number
Tag: TypeAlias = tuple[float, int]


class FairShare(ByClass, Policy):
    """Within a class, whoever has used the least of the QPU for their share goes next.

    A share belongs to a project, or to a user who has none; the users of a project divide
    its share between them by their own. Usage is in modelled QPU seconds of all classes,
    lost attempts included, each counting half as much after a half-life, so that someone
    who was away gets the QPU for a while, but not for all that time. Next is the account
    with the least usage per share, in it the user with the least, and of that user the
    oldest job; a job that begins counts at once, as long as it is expected to take. This
    is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with a memory; shares
    in tenths are from paper 004, section 3.5. A share that the batch system gave a lease
    counts while the lease is held, if it is more than the one configured by name, and
    once for all leases of a Slurm job.

    Nobody starves: each second that others use brings them nearer to going after those
    who wait. A free lease goes to the account that holds the fewest per share, but a
    request is passed at most ten times, with a share of two tenths five times, and so on.

    :param half_life_seconds: by the clock, above 0
    :param clock: seconds since the epoch
    """

    uses_shares: ClassVar[bool] = True

    def __init__(
        self, shares: Shares, clock: Clock, half_life_seconds: float = DAY
    ) -> None:
        self._half_life_seconds = half_life_seconds
        self._shares = ActiveShares(shares)
        self.usage = Usage(half_life_seconds, clock)
        self._expected = ExpectedWork(clock)
        self._queues: dict[JobClass, dict[Account, _AccountQueue]] = {
            name: {} for name in CLASSES
        }

    @classmethod
    def from_config(
        cls, options: Mapping[str, JSON], shares: Shares, clock: Clock
    ) -> Self:
        """Take the option ``half_life_seconds``."""
        check_options(options, ["half_life_seconds"])
        return cls(shares, clock, number_option(options, "half_life_seconds", DAY))

    def add(self, job: PendingJob) -> None:
        """See :meth:`Policy.add`."""
        named = account_of(job)
        queues = self._queues[job.job_class]
        if named not in queues:
            queues[named] = _AccountQueue(named, self, job.job_class)
        queues[named].add(job)
        self._changed(named, CLASSES[RANKS[job.job_class] + 1 :])

    def remove(self, job: PendingJob) -> None:
        """See :meth:`Policy.remove`."""
        named = account_of(job)
        queues = self._queues[job.job_class]
        queues[named].remove(job)
        if not len(queues[named]):
            del queues[named]
        self._changed(named, CLASSES[RANKS[job.job_class] + 1 :])

    def first(self) -> PendingJob | None:
        """See :meth:`Policy.first`; looks at each account once."""
        for queues in self._queues.values():
            if queues:
                _, first = min(queue.first() for queue in queues.values())
                return first
        return None

    def order(self) -> Iterator[PendingJob]:
        """See :meth:`Policy.order`."""
        for queues in self._queues.values():
            for _, job in heapq.merge(*(queue.order() for queue in queues.values())):
                yield job

    def ahead(self, job: PendingJob) -> dict[Kind, Work]:
        """See :meth:`Policy.ahead`; looks once at each account of its class and above."""
        works: defaultdict[Kind, Work] = defaultdict(Work)
        for name in CLASSES[: RANKS[job.job_class] + 1]:
            queues = self._queues[name]
            own = name == job.job_class
            tag = queues[account_of(job)].tag(job) if own else None
            for queue in queues.values():
                for kind, work in queue.before(tag).items():
                    works[kind] += work
        return works

    def coming(self, job: PendingJob) -> float:
        """See :meth:`Policy.coming`; from the hints of the held leases.

        Each account goes on to submit until its usage per share is that of the job's
        account when the job runs; at most what is expected under its leases, and no
        faster than its tenants can.
        """
        job_class, own = job.job_class, account_of(job)
        expecting = self._expected.accounts(job_class)
        if not (job.seconds and expecting):
            return 0.0
        # leases count seconds on the device, shares QPU seconds
        scale = job.seconds / job.qpu_seconds
        queues = self._queues[job_class]
        tag, user_tag = queues[own].tag(job), queues[own].user_tag(job)
        total = sum(self._shares.of((name, None)) for name in {*queues, *expecting})

        def speed(named: Account) -> float:
            share = self._shares.of((named, None)) / total
            return min(1.0, self._expected.load(job_class, named) / share)

        passing = 0.0
        for user, expected in self._expected.by_user(job_class, own).items():
            if user != job.user:
                more = self._until((own, user), job_class, user_tag, expected / scale)
                passing += max(0.0, more - queues[own].seconds(user))
        passing *= speed(own)
        until = tag[0] + passing * self.usage.weight / self._shares.of((own, None))
        seconds = passing
        for named in {*expecting} - {own}:
            expected = sum(self._expected.by_user(job_class, named).values()) / scale
            before = queues[named].seconds_before(tag) if named in queues else 0.0
            more = self._until((named, None), job_class, until, expected)
            seconds += speed(named) * max(0.0, more - before)
        return seconds * scale

    def _until(
        self, sharer: Sharer, job_class: JobClass, per_share: float, most: float
    ) -> float:
        """Return the QPU seconds a sharer has until its usage per share is so much."""
        (present,) = self.per_share(sharer, job_class, [0.0])
        missing = per_share - present
        seconds = missing * self._shares.of(sharer) / self.usage.weight
        return max(0.0, min(seconds, most))

    def per_share(
        self, sharer: Sharer, job_class: JobClass, more: Iterable[float]
    ) -> list[float]:
        """Return a sharer's weighted usage per share once some of its jobs have run.

        :param job_class: all jobs of the classes above it are taken to have run
        :param more: QPU seconds of this class that are taken to have run, too; a result
            for each
        """
        named, user = sharer
        above = sum(
            self._queues[name][named].seconds(user)
            for name in CLASSES[: RANKS[job_class]]
            if named in self._queues[name]
        )
        used, weight = self.usage.of(sharer), self.usage.weight
        share = self._shares.of(sharer)
        return [(used + (above + seconds) * weight) / share for seconds in more]

    def used(self, past: Used) -> None:
        """See :meth:`Policy.used`."""
        named = account_of(past)
        self.usage.charge(named, past.user, past.qpu_seconds, past.when)
        self._changed(named)

    def remembers_seconds(self) -> float:
        """See :meth:`Policy.remembers_seconds`."""
        return HALF_LIVES * self._half_life_seconds

    def began(self, job: PendingJob) -> None:
        """See :meth:`Policy.began`."""
        self._charge(job, job.qpu_seconds)
        self._expected.used(job.lease, job.seconds)

    def ended(self, job: PendingJob, qpu_seconds: float) -> None:
        """See :meth:`Policy.ended`."""
        self._charge(job, qpu_seconds - job.qpu_seconds)
        if job.qpu_seconds:
            more = qpu_seconds / job.qpu_seconds - 1
            self._expected.used(job.lease, more * job.seconds)

    def leased(self, lease: Lease) -> None:
        """See :meth:`Policy.leased`."""
        named = account_of(lease)
        self._expected.add(lease, named)
        self._shares.leased(lease)
        self._changed(named)

    def released(self, lease: Lease) -> None:
        """See :meth:`Policy.released`."""
        self._expected.remove(lease.id)
        self._shares.released(lease)
        self._changed(account_of(lease))

    def choose(self, pending: Sequence[PendingLease], held: Sequence[Lease]) -> int:
        """See :meth:`Policy.choose`."""
        holds = Counter(map(account_of, held))

        def per_share(index: int) -> tuple[float, int]:
            one = pending[index]
            held_then = holds[account(one.user, one.request.project)] + 1
            return held_then / self._share(one), index

        for index, one in enumerate(pending):
            if one.passed * self._share(one) >= MAX_SHARE:
                return index
        return min(range(len(pending)), key=per_share)

    def _share(self, pending: PendingLease) -> int:
        named = account(pending.user, pending.request.project)
        return pending.request.tenths or self._shares.of((named, None))

    def _charge(self, job: PendingJob, qpu_seconds: float) -> None:
        named = account_of(job)
        self.usage.charge(named, job.user, qpu_seconds)
        self._changed(named)

    def _changed(self, named: Account, classes: Sequence[JobClass] = CLASSES) -> None:
        for name in classes:
            if named in self._queues[name]:
                self._queues[name][named].changed = True


class _AccountQueue:
    """The pending jobs of one class and account, in the order among themselves.

    Each job has two tags, of usage per share when it is next: its user's, which orders it
    within the account, and the account's, which orders it among the accounts.
    """

    def __init__(self, named: Account, policy: FairShare, job_class: JobClass) -> None:
        #: whether the tags are to be computed anew
        self.changed = False
        self._named = named
        self._policy = policy
        self._job_class = job_class
        self._stamp = policy.usage.stamp
        # by number
        self._by_user: dict[str, list[PendingJob]] = {}
        self._seconds: dict[str, float] = {}
        self._user_tags: dict[int, float] = {}
        self._sorted: SortedJobs[Tag] = SortedJobs()
        # of the first so many jobs; computed again from the first change on
        self._tags: list[Tag] = []
        # before each of these jobs, and after the last
        self._seconds_before = [0.0]

    def __len__(self) -> int:
        return len(self._user_tags)

    def first(self) -> tuple[Tag, PendingJob]:
        """Return the first job with its tag; looks at each user at most once."""
        if self._is_current:
            job = self._sorted.jobs[0]
        else:
            firsts = [jobs[0] for jobs in self._by_user.values()]
            job = min(firsts, key=lambda j: (self._per_share(j.user, [0]), j.number))
        return (self._per_share(None, [0])[0], job.number), job

    def add(self, job: PendingJob) -> None:
        """Add a job."""
        jobs = self._by_user.setdefault(job.user, [])
        seconds = self._seconds.get(job.user, 0.0)
        self._seconds[job.user] = seconds + job.qpu_seconds
        if jobs and job.number < jobs[-1].number:
            self.changed = True  # the user's jobs after it run later
        insort(jobs, job, key=lambda one: one.number)
        (tag,) = self._per_share(job.user, [seconds])
        self._user_tags[job.number] = tag
        if not self.changed:
            self._forget(self._sorted.add((tag, job.number), job))

    def remove(self, job: PendingJob) -> None:
        """Remove a job."""
        jobs = self._by_user[job.user]
        if job.number != jobs[-1].number:
            self.changed = True  # the user's jobs after it run sooner
        del jobs[bisect_left(jobs, job.number, key=lambda one: one.number)]
        self._seconds[job.user] -= job.qpu_seconds
        tag = self._user_tags.pop(job.number)
        if not jobs:
            del self._by_user[job.user], self._seconds[job.user]
        if not self.changed:
            self._forget(self._sorted.remove((tag, job.number)))

    def tag(self, job: PendingJob) -> Tag:
        """Return a job's tag among the accounts."""
        user_tag = self.user_tag(job)
        index = bisect_left(self._sorted.keys, (user_tag, job.number))
        return self._compute_tags(index + 1)[index]

    def user_tag(self, job: PendingJob) -> float:
        """Return the usage per share of a job's user when the job is next."""
        self._refresh()
        return self._user_tags[job.number]

    def seconds_before(self, tag: Tag) -> float:
        """Add up the QPU seconds of the jobs with lower tags."""
        return self._seconds_before[bisect_left(self._compute_tags(len(self)), tag)]

    def before(self, tag: Tag | None) -> dict[Kind, Work]:
        """Add up the jobs with lower tags, or all."""
        self._refresh()
        if tag is None:
            return self._sorted.before(None)
        jobs = bisect_left(self._compute_tags(len(self)), tag)
        keys = self._sorted.keys
        return self._sorted.before(keys[jobs] if jobs < len(keys) else None)

    def order(self) -> Iterator[tuple[Tag, PendingJob]]:
        """Iterate over the jobs with their tags."""
        tags = self._compute_tags(len(self))
        return iter([*zip(tags, self._sorted.jobs, strict=True)])

    def seconds(self, user: str | None) -> float:
        """Add up the QPU seconds of the jobs, of all users or of one."""
        if user is None:
            return sum(self._seconds.values())
        return self._seconds.get(user, 0.0)

    def _per_share(self, user: str | None, more: Iterable[float]) -> list[float]:
        return self._policy.per_share((self._named, user), self._job_class, more)

    def _compute_tags(self, jobs: int) -> list[Tag]:
        """Compute the tags of the first so many jobs, as far as they are not known."""
        self._refresh()
        if (known := len(self._tags)) < jobs:
            added = self._sorted.jobs[known:jobs]
            seconds = [job.qpu_seconds for job in added]
            sums = [*accumulate(seconds, initial=self._seconds_before[-1])]
            tags = self._per_share(None, sums[:-1])
            self._tags += zip(tags, [job.number for job in added], strict=True)
            self._seconds_before += sums[1:]
        return self._tags

    @property
    def _is_current(self) -> bool:
        return not (self.changed or self._policy.usage.is_stale(self._stamp))

    def _forget(self, index: int) -> None:
        del self._tags[index:], self._seconds_before[index + 1 :]

    def _refresh(self) -> None:
        """Order the jobs anew if usage or shares have changed."""
        if self._is_current:
            return
        self.changed = False
        self._stamp = self._policy.usage.stamp
        self._forget(0)
        self._sorted = SortedJobs()
        for user, jobs in self._by_user.items():
            *before, total = accumulate([job.qpu_seconds for job in jobs], initial=0.0)
            for job, tag in zip(jobs, self._per_share(user, before), strict=True):
                self._user_tags[job.number] = tag
                self._sorted.add((tag, job.number), job)
            self._seconds[user] = total

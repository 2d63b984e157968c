"""Fair shares of QPU time between projects and users."""

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
from sf_quantum.service.scheduling.held import (
    ExpectedLease,
    HeldLeases,
    Overtaking,
)
from sf_quantum.service.scheduling.policies.base import (
    ByClass,
    PendingLease,
    Policy,
    SortedJobs,
    number_options,
)
from sf_quantum.service.scheduling.shares import (
    ActiveShares,
    DecayingUsage,
    Sharer,
    account_for,
    account_of,
)
from sf_quantum.service.scheduling.work import Clock, PendingJob, Work

DAY = 24 * 3600.0
# usage older than this many half-lives counts less than a thousandth
HALF_LIVES = 10
# A request is next once the number of later requests that were granted before it, times its
# share in tenths, reaches this.
MAX_SHARE = 10

# usage per share at the time when the job is next to run, and the number of the job
Tag: TypeAlias = tuple[float, int]


class FairShare(ByClass, Policy):
    """Within a class, the account with the least usage per share is next.

    An account is a project, or a user without a project. The users of a project divide its
    share in proportion to their own shares. Within the account, the user with the least
    usage per share is next, with their oldest job.

    Usage is the QPU seconds of all classes, without interrupted attempts. Usage decays with
    a half-life, so an account that was idle gets the QPU for a while, but is not compensated
    for its whole idle time. When a job begins, its expected time is charged. The charge is
    refunded if the attempt is interrupted: the user got no result, and the charge would
    delay the next attempt.

    This is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with decaying usage;
    shares in tenths are from Wennersteen et al. (2025), section 3.5. The share that the
    batch system assigned to a lease applies while the lease is held, if it exceeds the
    configured share, and only once for all leases of a Slurm job.

    No account starves, since the usage of every account that runs jobs increases until this
    account has to wait. A free vQPU is leased to the account that holds the fewest leases
    per share. But at most ten later requests are granted before a request of an account
    with a share of one tenth; at most five if the share is two tenths, and so on.

    :param half_life_seconds: half-life of usage, above 0
    :param clock: clock in seconds, unaffected by changes of the system's clock
    """

    uses_shares: ClassVar[bool] = True

    def __init__(
        self, shares: Shares, clock: Clock, half_life_seconds: float = DAY
    ) -> None:
        self._half_life_seconds = half_life_seconds
        self._shares = ActiveShares(shares)
        self.usage = DecayingUsage(half_life_seconds, clock)
        self._queues: dict[JobClass, dict[Account, _AccountQueue]] = {
            name: {} for name in CLASSES
        }

    @classmethod
    def from_config(
        cls, options: Mapping[str, JSON], shares: Shares, clock: Clock
    ) -> Self:
        return cls(shares, clock, **number_options(options, half_life_seconds=DAY))

    def add(self, job: PendingJob) -> None:
        owner = account_of(job)
        queues = self._queues[job.job_class]
        if owner not in queues:
            queues[owner] = _AccountQueue(owner, self, job.job_class)
        queues[owner].add(job)
        self._invalidate(owner, CLASSES[RANKS[job.job_class] + 1 :])

    def remove(self, job: PendingJob) -> None:
        owner = account_of(job)
        queues = self._queues[job.job_class]
        queues[owner].remove(job)
        if not len(queues[owner]):
            del queues[owner]
        self._invalidate(owner, CLASSES[RANKS[job.job_class] + 1 :])

    def first(self) -> PendingJob | None:
        """See :meth:`Policy.first`; linear in the number of accounts."""
        for queues in self._queues.values():
            if queues:
                _, first = min(queue.first() for queue in queues.values())
                return first
        return None

    def order(self) -> Iterator[PendingJob]:
        for queues in self._queues.values():
            for _, job in heapq.merge(*(queue.order() for queue in queues.values())):
                yield job

    def work_ahead(self, job: PendingJob) -> dict[Kind, Work]:
        """See :meth:`Policy.work_ahead`; linear in the number of accounts."""
        work_by_kind: defaultdict[Kind, Work] = defaultdict(Work)
        for name in CLASSES[: RANKS[job.job_class] + 1]:
            queues = self._queues[name]
            is_same_class = name == job.job_class
            tag = queues[account_of(job)].tag(job) if is_same_class else None
            for queue in queues.values():
                for kind, work in queue.before(tag).items():
                    work_by_kind[kind] += work
        return work_by_kind

    def overtaking_leases(
        self, job: PendingJob, held: HeldLeases
    ) -> Sequence[Overtaking]:
        """See :meth:`Policy.overtaking_leases`.

        Later jobs of another account run first until the usage per share of that account
        reaches the value that the job's account will have when the job is next. The same
        applies to the other users of the job's account.
        """
        job_class, owner = job.job_class, account_of(job)
        by_account = held.by_account(job_class)
        queues = self._queues[job_class]
        if not by_account:
            return ()
        overtaking = []
        by_user: defaultdict[str, list[ExpectedLease]] = defaultdict(list)
        for lease in by_account.get(owner, ()):
            by_user[lease.user].append(lease)
        queue = queues[owner]
        tag, user_tag = queue.tag(job), queue.user_tag(job)
        for user, leases in by_user.items():
            if user != job.user:
                seconds_until_tag = self._until((owner, user), job_class, user_tag)
                overtaking.append(
                    Overtaking(leases, seconds_until_tag - queue.seconds(user))
                )
        for other, leases in by_account.items():
            if other != owner:
                before = queues[other].seconds_before(tag) if other in queues else 0.0
                seconds_until_tag = self._until((other, None), job_class, tag[0])
                overtaking.append(Overtaking(leases, seconds_until_tag - before))
        return [leases for leases in overtaking if leases.at_most > 0]

    def _until(self, sharer: Sharer, job_class: JobClass, per_share: float) -> float:
        """Return the further QPU seconds with which a sharer reaches a usage per share."""
        (current,) = self.per_share(sharer, job_class, [0.0])
        missing = per_share - current
        return missing * self._shares.of(sharer) / self.usage.weight

    def per_share(
        self, sharer: Sharer, job_class: JobClass, more: Iterable[float]
    ) -> list[float]:
        """Return a sharer's weighted usage per share once some of its jobs have run.

        :param job_class: class of the jobs; the sharer's pending jobs of all higher classes
            are included
        :param more: for each result, the QPU seconds of the jobs of this class that have run
        """
        owner, user = sharer
        above = sum(
            self._queues[name][owner].seconds(user)
            for name in CLASSES[: RANKS[job_class]]
            if owner in self._queues[name]
        )
        used, weight = self.usage.of(sharer), self.usage.weight
        share = self._shares.of(sharer)
        return [(used + (above + seconds) * weight) / share for seconds in more]

    def add_usage(self, past: Used) -> None:
        owner = account_of(past)
        self.usage.charge(owner, past.user, past.qpu_seconds, past.when)
        self._invalidate(owner)

    def usage_window_seconds(self) -> float:
        return HALF_LIVES * self._half_life_seconds

    def began(self, job: PendingJob) -> None:
        self._charge(job, job.qpu_seconds)

    def ended(self, job: PendingJob, qpu_seconds: float) -> None:
        self._charge(job, qpu_seconds - job.qpu_seconds)

    def leased(self, lease: Lease) -> None:
        self._shares.leased(lease)
        self._invalidate(account_of(lease))

    def released(self, lease: Lease) -> None:
        self._shares.released(lease)
        self._invalidate(account_of(lease))

    def set_shares(self, shares: Shares) -> None:
        self._shares.configured = shares
        for owner in {owner for queues in self._queues.values() for owner in queues}:
            self._invalidate(owner)

    def choose_request(
        self, pending: Sequence[PendingLease], held: Sequence[Lease]
    ) -> int:
        counts = Counter(map(account_of, held))

        def per_share(index: int) -> tuple[float, int]:
            lease = pending[index]
            count = counts[account_for(lease.user, lease.request.project)] + 1
            return count / self._share(lease), index

        for index, lease in enumerate(pending):
            if lease.passed * self._share(lease) >= MAX_SHARE:
                return index
        return min(range(len(pending)), key=per_share)

    def _share(self, pending: PendingLease) -> int:
        owner = account_for(pending.user, pending.request.project)
        return pending.request.tenths or self._shares.of((owner, None))

    def _charge(self, job: PendingJob, qpu_seconds: float) -> None:
        owner = account_of(job)
        self.usage.charge(owner, job.user, qpu_seconds)
        self._invalidate(owner)

    def _invalidate(
        self, owner: Account, classes: Sequence[JobClass] = CLASSES
    ) -> None:
        for name in classes:
            if owner in self._queues[name]:
                self._queues[name][owner].changed = True


class _AccountQueue:
    """The sorted pending jobs of one class and account.

    Each job has two tags: the usage per share that its user, and that its account, will have
    when the job is next to run. The user's tag orders the jobs of the account; the account's
    tag orders the jobs of all accounts.
    """

    def __init__(self, owner: Account, policy: FairShare, job_class: JobClass) -> None:
        #: whether the tags are out of date
        self.changed = False
        self._owner = owner
        self._policy = policy
        self._job_class = job_class
        self._stamp = policy.usage.stamp
        # each user's jobs, sorted by number
        self._by_user: dict[str, list[PendingJob]] = {}
        self._seconds: dict[str, float] = {}
        self._user_tags: dict[int, float] = {}
        self._sorted: SortedJobs[Tag] = SortedJobs()
        # the account's tags of the first jobs of ``_sorted``; a change of the order truncates
        # the list
        self._tags: list[Tag] = []
        # total QPU seconds before each of these jobs, and after the last of them
        self._seconds_before = [0.0]

    def __len__(self) -> int:
        return len(self._user_tags)

    def first(self) -> tuple[Tag, PendingJob]:
        """Return the first job with its tag; takes time linear in the number of users."""
        if self._is_current:
            job = self._sorted.jobs[0]
        else:
            firsts = [jobs[0] for jobs in self._by_user.values()]
            job = min(firsts, key=lambda j: (self._per_share(j.user, [0]), j.number))
        return (self._per_share(None, [0])[0], job.number), job

    def add(self, job: PendingJob) -> None:
        jobs = self._by_user.setdefault(job.user, [])
        seconds = self._seconds.get(job.user, 0.0)
        self._seconds[job.user] = seconds + job.qpu_seconds
        if jobs and job.number < jobs[-1].number:
            self.changed = True  # the user's later jobs are delayed by this job
        insort(jobs, job, key=lambda other: other.number)
        (tag,) = self._per_share(job.user, [seconds])
        self._user_tags[job.number] = tag
        if not self.changed:
            self._truncate(self._sorted.add((tag, job.number), job))

    def remove(self, job: PendingJob) -> None:
        jobs = self._by_user[job.user]
        if job.number != jobs[-1].number:
            self.changed = True  # the user's later jobs run sooner without this job
        del jobs[bisect_left(jobs, job.number, key=lambda other: other.number)]
        self._seconds[job.user] -= job.qpu_seconds
        tag = self._user_tags.pop(job.number)
        if not jobs:
            del self._by_user[job.user], self._seconds[job.user]
        if not self.changed:
            self._truncate(self._sorted.remove((tag, job.number)))

    def tag(self, job: PendingJob) -> Tag:
        user_tag = self.user_tag(job)
        index = bisect_left(self._sorted.keys, (user_tag, job.number))
        return self._compute_tags(index + 1)[index]

    def user_tag(self, job: PendingJob) -> float:
        """Return the usage per share that a job's user will have when the job is next."""
        self._refresh()
        return self._user_tags[job.number]

    def seconds_before(self, tag: Tag) -> float:
        """Sum the QPU seconds of the jobs with lower tags."""
        return self._seconds_before[bisect_left(self._compute_tags(len(self)), tag)]

    def before(self, tag: Tag | None) -> dict[Kind, Work]:
        """Sum the work of the jobs with lower tags; of all jobs if the tag is ``None``."""
        self._refresh()
        if tag is None:
            return self._sorted.before(None)
        jobs = bisect_left(self._compute_tags(len(self)), tag)
        keys = self._sorted.keys
        return self._sorted.before(keys[jobs] if jobs < len(keys) else None)

    def order(self) -> Iterator[tuple[Tag, PendingJob]]:
        tags = self._compute_tags(len(self))
        return iter([*zip(tags, self._sorted.jobs, strict=True)])

    def seconds(self, user: str | None) -> float:
        """Sum the QPU seconds of a user's jobs; of all jobs if the user is ``None``."""
        if user is None:
            return sum(self._seconds.values())
        return self._seconds.get(user, 0.0)

    def _per_share(self, user: str | None, more: Iterable[float]) -> list[float]:
        return self._policy.per_share((self._owner, user), self._job_class, more)

    def _compute_tags(self, jobs: int) -> list[Tag]:
        """Return the account's tags of at least the given number of first jobs."""
        self._refresh()
        if (tagged := len(self._tags)) < jobs:
            added = self._sorted.jobs[tagged:jobs]
            seconds = [job.qpu_seconds for job in added]
            sums = [*accumulate(seconds, initial=self._seconds_before[-1])]
            tags = self._per_share(None, sums[:-1])
            self._tags += zip(tags, [job.number for job in added], strict=True)
            self._seconds_before += sums[1:]
        return self._tags

    @property
    def _is_current(self) -> bool:
        return not (self.changed or self._policy.usage.is_stale(self._stamp))

    def _truncate(self, index: int) -> None:
        del self._tags[index:], self._seconds_before[index + 1 :]

    def _refresh(self) -> None:
        """Sort the jobs again if usage or shares have changed."""
        if self._is_current:
            return
        self.changed = False
        self._stamp = self._policy.usage.stamp
        self._truncate(0)
        self._sorted = SortedJobs()
        for user, jobs in self._by_user.items():
            *before, total = accumulate([job.qpu_seconds for job in jobs], initial=0.0)
            for job, tag in zip(jobs, self._per_share(user, before), strict=True):
                self._user_tags[job.number] = tag
                self._sorted.add((tag, job.number), job)
            self._seconds[user] = total

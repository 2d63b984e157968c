"""Shares in tenths between projects and users, by the QPU seconds they have used."""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Self

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import CLASSES, RANKS, JobClass, Kind, Lease, Used
from sf_quantum.service.domain.settings import Account, Shares
from sf_quantum.service.scheduling.expected_work import Promises
from sf_quantum.service.scheduling.ordering import Sums
from sf_quantum.service.scheduling.policies.base import (
    Asking,
    ByClass,
    Policy,
    check_options,
    number_option,
)
from sf_quantum.service.scheduling.shares import Usage, Weights, account, account_of
from sf_quantum.service.scheduling.work import PendingJob, Work

DAY = 24 * 3600.0
# what was used so many half-lives ago counts a thousandth
HALF_LIVES = 10
MOST_TENTHS = 10


class FairShare(ByClass, Policy):
    """Within a class, whoever has used least of the QPU for their share goes next.

    A share belongs to a project, or to a user who has none; the users of a project divide
    its share between them by their own. Used are modelled QPU seconds of all classes,
    lost attempts included, each counting half as much after a half-life, so that who
    was away has the QPU back for a while, but not for all that time. Next is the account
    with the least seconds used per tenth, in it the user with the least, and of that
    user the oldest job; a job that begins counts at once, as long as it is expected to
    take. This is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with a
    memory; shares in tenths are from paper 004, section 3.5. Tenths of leases, which the
    batch system gave, count while they are held where they are more than those that are
    configured by name, once for all leases of a Slurm job.

    Nobody starves: with each second that others use, they come nearer to being behind
    those who wait. A free lease goes to the account that holds fewest per tenth, but
    nobody is passed more often than ten times, who has two tenths five times, and so on.

    :param half_life_seconds: by the clock on the wall, above 0
    :param clock: seconds since the epoch
    """

    uses_shares: ClassVar[bool] = True

    def __init__(
        self,
        shares: Shares,
        half_life_seconds: float = DAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._half_life_seconds = half_life_seconds
        self._weights = Weights(shares)
        self.usage = Usage(half_life_seconds, clock)
        self._promises = Promises(clock)
        self._accounts: dict[JobClass, dict[Account, _Waiting]] = {
            name: {} for name in CLASSES
        }

    @classmethod
    def from_config(cls, options: Mapping[str, JSON], shares: Shares) -> Self:
        """Take the option ``half_life_seconds``."""
        check_options(options, ["half_life_seconds"])
        return cls(shares, number_option(options, "half_life_seconds", DAY))

    def add(self, entry: PendingJob) -> None:
        """See :meth:`Policy.add`."""
        named = account_of(entry)
        accounts = self._accounts[entry.job_class]
        if named not in accounts:
            accounts[named] = _Waiting(named, self, entry.job_class)
        accounts[named].add(entry)
        self._changed(named, below=entry.job_class)

    def remove(self, entry: PendingJob) -> None:
        """See :meth:`Policy.remove`."""
        named = account_of(entry)
        accounts = self._accounts[entry.job_class]
        accounts[named].remove(entry)
        if not accounts[named].jobs:
            del accounts[named]
        self._changed(named, below=entry.job_class)

    def first(self) -> PendingJob | None:
        """See :meth:`Policy.first`; looks at each account once."""
        for accounts in self._accounts.values():
            if accounts:
                return min(one.first() for one in accounts.values())[-1]
        return None

    def order(self) -> Iterator[PendingJob]:
        """See :meth:`Policy.order`."""
        for accounts in self._accounts.values():
            for _, entry in heapq.merge(*(one.ordered() for one in accounts.values())):
                yield entry

    def ahead(self, entry: PendingJob) -> dict[Kind, Work]:
        """See :meth:`Policy.ahead`; looks once at each account of its class and above."""
        works: defaultdict[Kind, Work] = defaultdict(Work)
        for name, accounts in self._accounts.items():
            place = None
            if name == entry.job_class:
                place = accounts[account_of(entry)].place(entry)
            for one in accounts.values():
                for kind, work in one.before(place).items():
                    works[kind] += work
            if place is not None:
                break
        return works

    def coming(self, entry: PendingJob) -> float:
        """See :meth:`Policy.coming`; of those who hold leases, as their hints say.

        Each account goes on to submit until it has had, per tenth, what the job's has
        when the job runs; at most what its leases promise, and no faster than its
        tenants can.
        """
        promising = self._promises.accounts(entry.job_class)
        if not (entry.seconds and promising):
            return 0.0
        # leases count by the clock on the wall, shares in QPU seconds
        scale = entry.seconds / entry.qpu_seconds
        job_class, own = entry.job_class, account_of(entry)
        accounts = self._accounts[job_class]
        place = accounts[own].place(entry)
        names = {*accounts, *promising}
        tenths = sum(self._weights.of((named, None)) for named in names)

        def part(named: Account) -> float:
            share = self._weights.of((named, None)) / tenths
            return min(1.0, self._promises.load(job_class, named) / share)

        until = accounts[own].own_place(entry)
        passing = 0.0
        for user, promised in self._promises.users(job_class, own).items():
            if user != entry.user:
                more = self._more((own, user), job_class, until, promised / scale)
                passing += max(0.0, more - accounts[own].seconds(user))
        passing *= part(own)
        until = place[0] + passing * self.usage.worth / self._weights.of((own, None))
        seconds = passing
        for named in {*promising} - {own}:
            promised = sum(self._promises.users(job_class, named).values()) / scale
            waiting = accounts.get(named)
            before = waiting.seconds_before(place) if waiting else 0.0
            more = self._more((named, None), job_class, until, promised)
            seconds += part(named) * max(0.0, more - before)
        return seconds * scale

    def _more(
        self,
        who: tuple[Account, str | None],
        job_class: JobClass,
        until: float,
        most: float,
    ) -> float:
        """Tell the seconds that somebody has until they have had so much per tenth."""
        at_once = self.per_tenth(who, job_class, 0.0)
        behind = (until - at_once) * self._weights.of(who) / self.usage.worth
        return max(0.0, min(behind, most))

    def per_tenth(
        self, who: tuple[Account, str | None], job_class: JobClass, more: float
    ) -> float:
        """Tell the worth of what somebody will have used per tenth.

        :param job_class: of those above it all jobs that wait are taken to have run
        :param more: seconds of this class that are taken to have run, too
        """
        named, user = who
        for name in CLASSES[: RANKS[job_class]]:
            if (above := self._accounts[name].get(named)) is not None:
                more += above.seconds(user)
        used = self.usage.of(who) + more * self.usage.worth
        return used / self._weights.of(who)

    def used(self, past: Used) -> None:
        """See :meth:`Policy.used`."""
        named = account_of(past)
        self.usage.charge(named, past.user, past.qpu_seconds, past.when)
        self._changed(named)

    def remembers_seconds(self) -> float:
        """See :meth:`Policy.remembers_seconds`."""
        return HALF_LIVES * self._half_life_seconds

    def began(self, entry: PendingJob) -> None:
        """See :meth:`Policy.began`."""
        self._charge(entry, entry.qpu_seconds)
        self._promises.used(entry.lease, entry.seconds)

    def ended(self, entry: PendingJob, qpu_seconds: float) -> None:
        """See :meth:`Policy.ended`."""
        self._charge(entry, qpu_seconds - entry.qpu_seconds)
        if entry.qpu_seconds:
            more = qpu_seconds / entry.qpu_seconds - 1
            self._promises.used(entry.lease, more * entry.seconds)

    def leased(self, lease: Lease) -> None:
        """See :meth:`Policy.leased`."""
        named = account_of(lease)
        self._promises.add(lease, named)
        self._weights.leased(lease)
        self._changed(named)

    def released(self, lease: Lease) -> None:
        """See :meth:`Policy.released`."""
        self._promises.remove(lease.id)
        self._weights.released(lease)
        self._changed(account_of(lease))

    def choose(self, waiting: Sequence[Asking], held: Sequence[Lease]) -> int:
        """See :meth:`Policy.choose`."""
        holds: defaultdict[Account, int] = defaultdict(int)
        for lease in held:
            holds[account_of(lease)] += 1

        def tenths(asking: Asking) -> int:
            named = account(asking.user, asking.request.project)
            return asking.request.tenths or self._weights.of((named, None))

        def per_tenth(index: int) -> tuple[float, int]:
            asking = waiting[index]
            named = account(asking.user, asking.request.project)
            return (holds[named] + 1) / tenths(asking), index

        for index, asking in enumerate(waiting):
            if asking.passed * tenths(asking) >= MOST_TENTHS:
                return index
        return min(range(len(waiting)), key=per_tenth)

    def _charge(self, entry: PendingJob, qpu_seconds: float) -> None:
        named = account_of(entry)
        self.usage.charge(named, entry.user, qpu_seconds)
        self._changed(named)

    def _changed(self, named: Account, below: JobClass | None = None) -> None:
        """Let the jobs of an account be arranged anew, in all classes or lower ones."""
        for name in CLASSES[0 if below is None else RANKS[below] + 1 :]:
            if named in self._accounts[name]:
                self._accounts[name][named].changed = True


class _Waiting:
    """The jobs of one class and account, in the order they will run among themselves.

    Each has a place twice: among those of its account, by the seconds per tenth its user
    will have used when it is next; and among the accounts, by what the account will.
    """

    def __init__(self, named: Account, policy: FairShare, job_class: JobClass) -> None:
        self.changed = False
        self._named = named
        self._policy = policy
        self._job_class = job_class
        self._stamp = policy.usage.stamp
        # by number
        self._of_user: dict[str, list[PendingJob]] = {}
        self._seconds: dict[str, float] = {}
        self._own: dict[int, float] = {}
        self._order: list[tuple[float, int]] = []
        self._sums = Sums([])
        # of the first so many jobs; made again from the first change on
        self._places: list[tuple[float, int]] = []
        self._used: list[float] = []

    @property
    def jobs(self) -> int:
        """Count the jobs."""
        return len(self._own)

    def first(self) -> tuple[float, int, PendingJob]:
        """Tell the job of these that runs first, behind its place among the accounts.

        Looks at each user once.
        """
        firsts = [jobs[0] for jobs in self._of_user.values()]
        entry = min(firsts, key=lambda one: (self._per_tenth(one.user, 0), one.number))
        return self._per_tenth(None, 0), entry.number, entry

    def add(self, entry: PendingJob) -> None:
        """Let a job wait."""
        jobs = self._of_user.setdefault(entry.user, [])
        seconds = self._seconds.get(entry.user, 0.0)
        self._seconds[entry.user] = seconds + entry.qpu_seconds
        if jobs and entry.number < jobs[-1].number:
            self.changed = True  # all behind it come later
        insort(jobs, entry, key=lambda one: one.number)
        self._own[entry.number] = 0.0
        if not self.changed:
            self._insert(entry, self._per_tenth(entry.user, seconds))

    def remove(self, entry: PendingJob) -> None:
        """Let a job wait no longer."""
        jobs = self._of_user[entry.user]
        place = bisect_left(jobs, entry.number, key=lambda one: one.number)
        last = place == len(jobs) - 1
        del jobs[place]
        self._seconds[entry.user] -= entry.qpu_seconds
        own = self._own.pop(entry.number)
        if not jobs:
            del self._of_user[entry.user], self._seconds[entry.user]
        if not last:
            self.changed = True  # all behind it come sooner
        elif not self.changed:
            place = bisect_left(self._order, (own, entry.number))
            del self._order[place], self._places[place:], self._used[place:]
            self._sums.delete(place)

    def place(self, entry: PendingJob) -> tuple[float, int]:
        """Tell a job's place among the accounts."""
        self._arrange(0)
        place = bisect_left(self._order, (self._own[entry.number], entry.number))
        self._arrange(place + 1)
        return self._places[place]

    def own_place(self, entry: PendingJob) -> float:
        """Tell what a job's user will have used per tenth of theirs before it."""
        self._arrange(0)
        return self._own[entry.number]

    def seconds_before(self, place: tuple[float, int]) -> float:
        """Add up the QPU seconds of the jobs whose places are before one."""
        self._arrange(self.jobs)
        jobs = bisect_left(self._places, place)
        if not jobs:
            return 0.0
        return self._used[jobs - 1] + self._sums.entries[jobs - 1].qpu_seconds

    def before(self, place: tuple[float, int] | None) -> dict[Kind, Work]:
        """Add up the jobs whose places are before one, or all."""
        if place is None:
            self._arrange(0)
            return self._sums.first(self.jobs)
        self._arrange(self.jobs)
        return self._sums.first(bisect_left(self._places, place))

    def ordered(self) -> Iterator[tuple[tuple[float, int], PendingJob]]:
        """List the jobs with their places among the accounts."""
        self._arrange(self.jobs)
        return iter([*zip(self._places, self._sums.entries, strict=True)])

    def seconds(self, user: str | None) -> float:
        """Add up the QPU seconds of the jobs, of all users or of one."""
        if user is None:
            return sum(self._seconds.values())
        return self._seconds.get(user, 0.0)

    def _per_tenth(self, user: str | None, seconds: float) -> float:
        who = self._named, user
        return self._policy.per_tenth(who, self._job_class, seconds)

    def _insert(self, entry: PendingJob, own: float) -> None:
        self._own[entry.number] = own
        place = bisect_left(self._order, (own, entry.number))
        self._order.insert(place, (own, entry.number))
        self._sums.insert(place, entry)
        del self._places[place:], self._used[place:]

    def _arrange(self, jobs: int) -> None:
        """Bring everything up to date, the places of the first so many jobs too."""
        if self.changed or self._policy.usage.is_stale(self._stamp):
            self.changed = False
            self._stamp = self._policy.usage.stamp
            self._start_again()
        entries = self._sums.entries
        for place in range(len(self._places), jobs):
            before = 0.0
            if place:
                before = self._used[place - 1] + entries[place - 1].qpu_seconds
            self._used.append(before)
            per_tenth = self._per_tenth(None, before)
            self._places.append((per_tenth, entries[place].number))

    def _start_again(self) -> None:
        found = []
        for user, jobs in self._of_user.items():
            seconds = 0.0
            for entry in jobs:
                own = self._per_tenth(user, seconds)
                self._own[entry.number] = own
                found.append((own, entry.number, entry))
                seconds += entry.qpu_seconds
            self._seconds[user] = seconds
        found.sort(key=lambda one: one[:2])
        self._order = [one[:2] for one in found]
        self._sums = Sums([entry for *_, entry in found])
        self._places, self._used = [], []

"""The jobs that wait, in the order that the policy gives them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from sf_quantum.service.domain.jobs import Job, JobClass, Kind, Lease, Pattern

if TYPE_CHECKING:
    from sf_quantum.service.scheduling.policies.base import Policy

# of those that wait, where the first may not start: it is asked with each submission
LOOKED_AT = 1000


@dataclass(slots=True)
class Entry:
    """What is known of a live job without asking the disk, and told to the policy.

    :param lease: may change: a job moves to the lease that asks for it again
    :param seconds: on the device, as modelled and scaled
    :param qpu_seconds: as modelled: what hardware would take
    :param submitted: in seconds since the epoch
    :param project: of its lease
    :param pattern: of its lease
    :param expected_seconds: how long its lease said it would be held
    """

    number: int
    id: str
    user: str
    lease: str
    job_class: JobClass
    kind: Kind
    seconds: float
    qpu_seconds: float = 0.0
    submitted: float = 0.0
    project: str | None = None
    pattern: Pattern | None = None
    expected_seconds: float | None = None

    @classmethod
    def of(cls, job: Job, time_scale: float, lease: Lease | None = None) -> Entry:
        """Make the entry of a job.

        :param lease: its own; one that has ended gives no hints
        """
        entry = cls(
            *(job.number, job.id, job.user, job.lease, job.job_class, job.kind),
            seconds=job.model_seconds * time_scale,
            qpu_seconds=job.model_seconds,
            submitted=job.submitted,
        )
        if lease is not None:
            entry.under(lease)
        return entry

    def under(self, lease: Lease) -> None:
        """Take the hints of a lease."""
        self.lease = lease.id
        self.project = lease.project
        self.pattern = lease.pattern
        self.expected_seconds = lease.expected_seconds


@dataclass(frozen=True, slots=True)
class Work:
    """How many jobs, and how long on the device as modelled and scaled."""

    jobs: int = 0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        """Take both."""
        return Work(self.jobs + other.jobs, self.seconds + other.seconds)


class Line:
    """Knows the jobs that wait by number and by lease, and asks the policy who is next."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.may_start: Callable[[Entry], bool] = lambda _: True
        self._entries: dict[int, Entry] = {}
        self._by_lease: defaultdict[str, set[int]] = defaultdict(set)
        #: how many there are of each class
        self.lengths: Counter[JobClass] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """List the jobs in the order they came, whatever the policy's."""
        return iter([self._entries[number] for number in sorted(self._entries)])

    def get(self, number: int) -> Entry | None:
        """Find a job that waits."""
        return self._entries.get(number)

    def add(self, entry: Entry) -> None:
        """Let a job wait at its place."""
        self.policy.add(entry)
        self._entries[entry.number] = entry
        self.lengths[entry.job_class] += 1
        self._by_lease[entry.lease].add(entry.number)

    def remove(self, number: int) -> Entry | None:
        """Take a job out; ``None`` if it does not wait."""
        entry = self._entries.pop(number, None)
        if entry is not None:
            self.policy.remove(entry)
            self.lengths[entry.job_class] -= 1
            self._leave(entry)
        return entry

    def first(self) -> Entry | None:
        """Find the job that runs next; ``None`` if none waits, or none that may start.

        Where the first of all may not, as there is maintenance ahead that it would run
        into, one of the next does that may: the first loses nothing by that.
        """
        first = self.policy.first() if self._entries else None
        if first is None or self.may_start(first):
            return first
        nexts = islice(self.policy.order(), LOOKED_AT)
        return next(filter(self.may_start, nexts), None)

    def pop(self) -> Entry | None:
        """Take out the job that runs next; ``None`` if none waits."""
        first = self.first()
        return None if first is None else self.remove(first.number)

    def move(self, number: int, lease: Lease) -> None:
        """Put a job that waits under another lease, whose hints it takes."""
        if (entry := self.remove(number)) is not None:
            entry.under(lease)
            self.add(entry)

    def of_lease(self, lease: str) -> list[int]:
        """List the jobs of a lease that wait, by number."""
        return sorted(self._by_lease.get(lease, ()))

    def ahead(self, entry: Entry) -> tuple[dict[Kind, Work], float]:
        """Add up what runs before a job, also before one that would join.

        :returns: by kind what waits, and the seconds of what is yet to come
        """
        if entry.number in self._entries:
            return self.policy.ahead(entry), self.policy.coming(entry)
        self.policy.add(entry)
        try:
            return self.policy.ahead(entry), self.policy.coming(entry)
        finally:
            self.policy.remove(entry)

    def order(self) -> Sequence[Entry]:
        """List the jobs as they will run, as things stand now."""
        return [*self.policy.order()]

    def _leave(self, entry: Entry) -> None:
        numbers = self._by_lease[entry.lease]
        numbers.discard(entry.number)
        if not numbers:
            del self._by_lease[entry.lease]

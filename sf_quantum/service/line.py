"""The jobs that wait, in the order they will run."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from sf_quantum.service.records import CLASSES, RANKS, Job, JobClass, Kind


@dataclass
class Entry:
    """What is known of a live job without asking the disk.

    :param lease: may change: a job moves to the lease that asks for it again
    :param seconds: on the device, as modelled and scaled
    """

    number: int
    id: str
    user: str
    lease: str
    job_class: JobClass
    kind: Kind
    seconds: float

    @classmethod
    def of(cls, job: Job, time_scale: float) -> Entry:
        """Make the entry of a job."""
        return cls(
            *(job.number, job.id, job.user, job.lease, job.job_class, job.kind),
            seconds=job.model_seconds * time_scale,
        )


@dataclass(frozen=True)
class Work:
    """How many jobs, and how long on the device as modelled and scaled."""

    jobs: int = 0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        """Take both."""
        return Work(self.jobs + other.jobs, self.seconds + other.seconds)


class _Lane:
    """Jobs of one class and kind by number, with running sums of their seconds.

    Jobs come at the end and go at the start, so that a change costs next to nothing
    however many wait.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._seconds: list[float] = []
        # made again when asked for after a change that is not at the end
        self._sums: list[float] | None = [0.0]

    def add(self, number: int, seconds: float) -> None:
        place = self.place(number)
        at_end = place == len(self.numbers)
        self.numbers.insert(place, number)
        self._seconds.insert(place, seconds)
        if at_end and self._sums is not None:
            self._sums.append(self._sums[-1] + seconds)
        else:
            self._sums = None

    def remove(self, number: int) -> None:
        place = self.place(number)
        del self.numbers[place], self._seconds[place]
        self._sums = None

    def place(self, number: int) -> int:
        return bisect_left(self.numbers, number)

    def first(self, jobs: int) -> Work:
        if self._sums is None:
            self._sums = [0.0, *accumulate(self._seconds)]
        return Work(jobs, self._sums[jobs])


class Line:
    """Class by class, and in each class by number.

    A job that was running has the lowest number of its class: put back, it is first.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._lanes: dict[JobClass, dict[Kind, _Lane]] = {
            name: defaultdict(_Lane) for name in CLASSES
        }
        self._by_lease: defaultdict[str, set[int]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """List the jobs in the order they came, whatever their class."""
        return iter([self._entries[number] for number in sorted(self._entries)])

    def get(self, number: int) -> Entry | None:
        """Find a job that waits."""
        return self._entries.get(number)

    def add(self, entry: Entry) -> None:
        """Let a job wait at its place."""
        self._lanes[entry.job_class][entry.kind].add(entry.number, entry.seconds)
        self._entries[entry.number] = entry
        self._by_lease[entry.lease].add(entry.number)

    def remove(self, number: int) -> Entry | None:
        """Take a job out; ``None`` if it does not wait."""
        entry = self._entries.pop(number, None)
        if entry is not None:
            self._lanes[entry.job_class][entry.kind].remove(number)
            self._leave(entry)
        return entry

    def pop(self) -> Entry | None:
        """Take out the job that runs next; ``None`` if none waits."""
        for name in CLASSES:
            lanes = self._lanes[name].values()
            heads = [lane.numbers[0] for lane in lanes if lane.numbers]
            if heads:
                return self.remove(min(heads))
        return None

    def first_class(self) -> JobClass | None:
        """Tell the class of the job that runs next; ``None`` if none waits."""
        for name in CLASSES:
            if any(lane.numbers for lane in self._lanes[name].values()):
                return name
        return None

    def move(self, number: int, lease: str) -> None:
        """Put a job that waits under another lease; its place stays."""
        if entry := self._entries.get(number):
            self._leave(entry)
            entry.lease = lease
            self._by_lease[lease].add(number)

    def of_lease(self, lease: str) -> list[int]:
        """List the jobs of a lease that wait, by number."""
        return sorted(self._by_lease.get(lease, ()))

    def ahead(self, job_class: JobClass, number: int | None = None) -> dict[Kind, Work]:
        """Add up, by kind, what runs before a job.

        :param number: of a job of that class; ``None``: of one that joins now
        """
        works: defaultdict[Kind, Work] = defaultdict(Work)
        for name in CLASSES[: RANKS[job_class] + 1]:
            for kind, lane in self._lanes[name].items():
                jobs = len(lane.numbers)
                if name == job_class and number is not None:
                    jobs = lane.place(number)
                works[kind] += lane.first(jobs)
        return works

    def _leave(self, entry: Entry) -> None:
        numbers = self._by_lease[entry.lease]
        numbers.discard(entry.number)
        if not numbers:
            del self._by_lease[entry.lease]

"""The base classes of scheduling policies, and jobs sorted by a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import (
    CLASSES,
    RANKS,
    JobClass,
    Kind,
    Lease,
    LeaseRequest,
    Used,
)
from sf_quantum.service.domain.settings import Shares
from sf_quantum.service.scheduling.held import HeldLeases, Overtaking
from sf_quantum.service.scheduling.work import Clock, PendingJob, Work
from sf_quantum.text import unknown


class PendingLease(Protocol):
    """A request for a lease; the request waits for a free vQPU.

    :param request: the request with its hints, project and share
    :param passed: number of later requests that were granted before this request
    """

    user: str
    request: LeaseRequest
    passed: int


class Policy(ABC):
    """Selects the pending job that runs next, and the request that gets a free vQPU.

    A policy belongs to one queue and runs in the thread of its event loop; no method may
    block. The queue calls :meth:`add` and :meth:`remove` when a job becomes or ceases to be
    pending, :meth:`began` and :meth:`ended` around each attempt on the device, and
    :meth:`leased` and :meth:`released` for each lease. The queue queries the next job
    (:meth:`first`), whether this job pre-empts the running job (:meth:`preempts`), and, for
    positions and ETAs, the work ahead of a job (:meth:`work_ahead`,
    :meth:`overtaking_leases`).

    Subclasses implement :meth:`add`, :meth:`remove` and :meth:`order`. Policies that order
    jobs by a constant key derive from :class:`Keyed` and implement only :meth:`Keyed.key`.
    """

    # whether the policy uses the configured shares
    uses_shares: ClassVar[bool] = False

    @classmethod
    def from_config(
        cls, options: Mapping[str, JSON], shares: Shares, clock: Clock
    ) -> Self:
        """Create the policy; by default there are no options.

        :param options: all keys except ``type`` of the configuration's ``policy``
        :param shares: configured shares of projects and users
        :param clock: clock in seconds, unaffected by changes of the system's clock
        :raises InputError: if an option is unknown or invalid
        """
        number_options(options)
        return cls()

    @abstractmethod
    def add(self, job: PendingJob) -> None:
        """Add a pending job, which was submitted or pre-empted."""

    @abstractmethod
    def remove(self, job: PendingJob) -> None:
        """Remove a pending job, which is about to run or was cancelled."""

    @abstractmethod
    def order(self) -> Iterator[PendingJob]:
        """Iterate over the jobs in the order in which they run if no others are submitted."""

    def first(self) -> PendingJob | None:
        """Return the job that runs next; it stays pending until it is removed.

        The queue calls this at each submission and before each attempt.
        """
        return next(iter(self.order()), None)

    def preempts(self, pending: PendingJob, running: PendingJob) -> bool:
        """Return whether a pending job pre-empts the running job."""
        return False

    def overtaking_classes(self, job_class: JobClass) -> Sequence[JobClass]:
        """List the classes whose jobs always overtake the jobs of a class.

        ETAs include the expected arrivals of these classes.
        """
        return ()

    def work_ahead(self, job: PendingJob) -> dict[Kind, Work]:
        """Sum, by kind, the work ahead of a pending job.

        The queue calls this for each job that is submitted or queried. The default
        implementation iterates over :meth:`order`.
        """
        work_by_kind: defaultdict[Kind, Work] = defaultdict(Work)
        for other in self.order():
            if other.number == job.number:
                break
            work_by_kind[other.kind] += Work(1, other.seconds)
        return work_by_kind

    def overtaking_leases(
        self, job: PendingJob, held: HeldLeases
    ) -> Sequence[Overtaking]:
        """List the held leases whose later jobs will run before a pending job.

        The queue calls this for each job that is submitted or queried.

        :returns: leases of the job's class; the jobs of the :meth:`overtaking_classes` are
            estimated separately
        """
        return ()

    def add_usage(self, past: Used) -> None:  # noqa: B027 - optional
        """Add usage from before the service started."""

    def usage_window_seconds(self) -> float:
        """Return how far back, in seconds, earlier usage counts."""
        return 0.0

    def began(self, job: PendingJob) -> None:  # noqa: B027 - optional
        """Handle the start of an attempt; the job has already been removed."""

    def ended(  # noqa: B027 - optional
        self, job: PendingJob, qpu_seconds: float
    ) -> None:
        """Handle the end of an attempt, regardless of its outcome.

        :param qpu_seconds: QPU seconds that are charged for the attempt; 0 if the attempt
            was interrupted and the job is pending again
        """

    def leased(self, lease: Lease) -> None:  # noqa: B027 - optional
        """Handle a lease that was granted, or restored after a restart."""

    def released(self, lease: Lease) -> None:  # noqa: B027 - optional
        """Handle the end of a lease."""

    def set_shares(self, shares: Shares) -> None:  # noqa: B027 - optional
        """Apply new shares after a reload of the configuration."""

    def choose_request(
        self, pending: Sequence[PendingLease], held: Sequence[Lease]
    ) -> int:
        """Choose the request that gets a free vQPU.

        :param pending: requests of the highest class and priority, in order of arrival
        :param held: held leases
        :returns: the index of a pending request
        """
        return 0


SortKey = TypeVar("SortKey", bound="tuple[tuple[float, ...] | float, int]")
K = TypeVar("K", bound=tuple[float, ...])


class SortedJobs(Generic[SortKey]):
    """Parallel lists of keys and jobs, sorted by key; keys are unique.

    Operations linear in the length run in C: with 10,000 jobs, an addition takes a few
    microseconds, and :meth:`before` some tens of microseconds.
    """

    def __init__(self) -> None:
        self.keys: list[SortKey] = []
        self.jobs: list[PendingJob] = []
        self._by_kind: defaultdict[Kind, tuple[list[SortKey], list[float]]] = (
            defaultdict(lambda: ([], []))
        )

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: SortKey, job: PendingJob) -> int:
        """Add a job and return its index."""
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.jobs.insert(index, job)
        keys, seconds = self._by_kind[job.kind]
        kind_index = bisect_left(keys, key)
        keys.insert(kind_index, key)
        seconds.insert(kind_index, job.seconds)
        return index

    def remove(self, key: SortKey) -> int:
        """Remove the job with a key and return its previous index.

        :raises KeyError: if no job has the key
        """
        index = bisect_left(self.keys, key)
        if index == len(self.keys) or self.keys[index] != key:
            raise KeyError(key)
        del self.keys[index]
        keys, seconds = self._by_kind[self.jobs.pop(index).kind]
        kind_index = bisect_left(keys, key)
        del keys[kind_index], seconds[kind_index]
        return index

    def before(self, key: SortKey | None) -> dict[Kind, Work]:
        """Sum, by kind, the work of jobs with lower keys; of all jobs if key is ``None``."""
        work_by_kind = {}
        for kind, (keys, seconds) in self._by_kind.items():
            jobs = len(keys) if key is None else bisect_left(keys, key)
            work_by_kind[kind] = Work(jobs, sum(islice(seconds, jobs)))
        return work_by_kind


class Keyed(Policy, Generic[K]):
    """Runs the job with the lowest key first; of jobs with equal keys, the oldest."""

    def __init__(self) -> None:
        self._jobs: SortedJobs[tuple[K, int]] = SortedJobs()

    @abstractmethod
    def key(self, job: PendingJob) -> K:
        """Return a job's key; it must not change while the job is pending."""

    def add(self, job: PendingJob) -> None:
        self._jobs.add((self.key(job), job.number), job)

    def remove(self, job: PendingJob) -> None:
        self._jobs.remove((self.key(job), job.number))

    def order(self) -> Iterator[PendingJob]:
        return iter(self._jobs.jobs)

    def work_ahead(self, job: PendingJob) -> dict[Kind, Work]:
        return self._jobs.before((self.key(job), job.number))


class ByClass:
    """Mixin: production before test before development; production pre-empts other classes."""

    def preempts(self, pending: PendingJob, running: PendingJob) -> bool:
        return pending.job_class == CLASSES[0] != running.job_class

    def overtaking_classes(self, job_class: JobClass) -> Sequence[JobClass]:
        return CLASSES[: RANKS[job_class]]


def number_options(options: Mapping[str, JSON], **numbers: float) -> dict[str, float]:
    """Read the options of a policy if all its options are finite numbers above 0.

    :param numbers: all valid options with their defaults
    :raises InputError: if an option is unknown or invalid
    """
    for name, value in options.items():
        if not numbers:
            raise InputError(f"unknown key {name!r}: this policy has none")
        if name not in numbers:
            raise InputError(unknown("key", name, [*numbers]))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{name} {value!r:.40}: expected a number")
        if not 0 < value < float("inf"):
            raise InputError(f"{name} {value}: expected a finite number above 0")
        numbers[name] = float(value)
    return numbers

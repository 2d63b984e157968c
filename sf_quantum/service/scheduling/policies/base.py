"""The scheduling policy: what a class of one's own implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers import unknown
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
from sf_quantum.service.scheduling.ordering import SortedJobs
from sf_quantum.service.scheduling.work import Clock, PendingJob, Work


class PendingLease(Protocol):
    """A request for a lease that none is free for yet.

    :param request: with its hints, its project and the share the lease is to have
    :param passed: how often a later request was granted first
    """

    @property
    def user(self) -> str: ...
    @property
    def request(self) -> LeaseRequest: ...
    @property
    def passed(self) -> int: ...


class Policy(ABC):
    """Decides which pending job runs next, and which request gets a free lease.

    A policy belongs to one queue and to the thread of its event loop; no method may
    block. The queue calls :meth:`add` and :meth:`remove` as a job becomes pending and
    ceases to be, :meth:`began` and :meth:`ended` around each attempt on the device, and
    :meth:`leased` and :meth:`released` for each lease. It asks which job is next
    (:meth:`first`), whether that pre-empts the running one (:meth:`preempts`), and what
    runs before a job (:meth:`ahead`), for positions and ETAs.

    A subclass implements :meth:`add`, :meth:`remove` and :meth:`order`; one that orders
    jobs by a key which does not change derives from :class:`Keyed` and implements
    :meth:`Keyed.key` alone.
    """

    # whether the configuration's shares mean anything to the policy
    uses_shares: ClassVar[bool] = False

    @classmethod
    def from_config(
        cls, options: Mapping[str, JSON], shares: Shares, clock: Clock
    ) -> Self:
        """Make the policy; by default it takes no options.

        :param options: the keys beside ``type`` in the configuration's ``policy``
        :param shares: the share of each project and user
        :param clock: seconds since the epoch
        :raises InputError: if an option is unknown or wrong, naming it
        """
        check_options(options, [])
        return cls()

    @abstractmethod
    def add(self, job: PendingJob) -> None:
        """Add a pending job: one submitted, or one pre-empted that is to run again."""

    @abstractmethod
    def remove(self, job: PendingJob) -> None:
        """Remove a pending job: it runs now, or was cancelled."""

    @abstractmethod
    def order(self) -> Iterator[PendingJob]:
        """Iterate over the jobs as they would run if no more were submitted."""

    def first(self) -> PendingJob | None:
        """Return the job that runs next; it stays pending until it is removed.

        Called at each submission and before each attempt.
        """
        return next(iter(self.order()), None)

    def preempts(self, pending: PendingJob, running: PendingJob) -> bool:
        """Return whether a job stops the running one, which becomes pending again."""
        return False

    def passing(self, job_class: JobClass) -> Sequence[JobClass]:
        """List the classes whose later jobs all go before a job of a class.

        ETAs count them in, as often as they are submitted.
        """
        return ()

    def ahead(self, job: PendingJob) -> dict[Kind, Work]:
        """Add up, by kind, what runs before a pending job as things stand.

        Called for each job that is submitted or shown; by default it walks through
        :meth:`order`.
        """
        works: defaultdict[Kind, Work] = defaultdict(Work)
        for other in self.order():
            if other.number == job.number:
                break
            works[other.kind] += Work(1, other.seconds)
        return works

    def coming(self, job: PendingJob) -> float:
        """Estimate the work that is not submitted yet and will run before a pending job.

        :returns: seconds on the device, as modelled, times the time scale; without those
            of the classes in :meth:`passing`
        """
        return 0.0

    def used(self, past: Used) -> None:  # noqa: B027 - it may not care
        """Count usage from before the service started."""

    def remembers_seconds(self) -> float:
        """Return how far back it needs earlier usage, in seconds."""
        return 0.0

    def began(self, job: PendingJob) -> None:  # noqa: B027 - it may not care
        """Note that a job, removed before, is on the device now."""

    def ended(  # noqa: B027 - it may not care
        self, job: PendingJob, qpu_seconds: float
    ) -> None:
        """Note that an attempt has ended, whatever its outcome.

        :param qpu_seconds: that it took, as modelled
        """

    def leased(self, lease: Lease) -> None:  # noqa: B027 - it may not care
        """Note a lease with its hints and its share, also after a restart."""

    def released(self, lease: Lease) -> None:  # noqa: B027 - it may not care
        """Note that a lease has ended."""

    def choose(self, pending: Sequence[PendingLease], held: Sequence[Lease]) -> int:
        """Choose which request gets a free lease.

        :param pending: those of the highest class there is, in the order they came
        :returns: the index of one of them
        """
        return 0


K = TypeVar("K", bound=tuple[float, ...])


class Keyed(Policy, Generic[K]):
    """Runs the job with the lowest key first, and of equal ones the oldest."""

    def __init__(self) -> None:
        self._jobs: SortedJobs[tuple[K, int]] = SortedJobs()

    @abstractmethod
    def key(self, job: PendingJob) -> K:
        """Return a job's key, which must not change while the job is pending."""

    def add(self, job: PendingJob) -> None:
        """See :meth:`Policy.add`."""
        self._jobs.add((self.key(job), job.number), job)

    def remove(self, job: PendingJob) -> None:
        """See :meth:`Policy.remove`."""
        self._jobs.remove((self.key(job), job.number))

    def order(self) -> Iterator[PendingJob]:
        """See :meth:`Policy.order`."""
        return iter(self._jobs.jobs)

    def ahead(self, job: PendingJob) -> dict[Kind, Work]:
        """See :meth:`Policy.ahead`."""
        return self._jobs.before((self.key(job), job.number))


class ByClass:
    """Production before test before development; production pre-empts the others."""

    def preempts(self, pending: PendingJob, running: PendingJob) -> bool:
        """See :meth:`Policy.preempts`."""
        return pending.job_class == CLASSES[0] != running.job_class

    def passing(self, job_class: JobClass) -> Sequence[JobClass]:
        """See :meth:`Policy.passing`."""
        return CLASSES[: RANKS[job_class]]


def check_options(options: Mapping[str, JSON], known: list[str]) -> None:
    """Refuse unknown options.

    :raises InputError: naming the first, and those that are known
    """
    for name in options:
        if name not in known:
            if not known:
                raise InputError(f"unknown key {name!r}: this policy has none")
            raise InputError(unknown("key", name, known))


def number_option(
    options: Mapping[str, JSON], name: str, default: float, *, least: float = 0.0
) -> float:
    """Read a number from the options.

    :raises InputError: if it is not a finite number above the least
    """
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} {value!r:.40}: expected a number")
    if not least < value < float("inf"):
        raise InputError(f"{name} {value}: expected a finite number above {least:g}")
    return float(value)

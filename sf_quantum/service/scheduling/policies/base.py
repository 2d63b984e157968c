"""What a scheduling policy is told, and what it answers."""

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
from sf_quantum.service.scheduling.ordering import Row
from sf_quantum.service.scheduling.work import PendingJob, Work


class Asking(Protocol):
    """One who waits for a lease.

    :param request: with the hints, the project and the tenths the lease is to have
    :param passed: how often somebody who came later went first
    """

    @property
    def user(self) -> str: ...
    @property
    def request(self) -> LeaseRequest: ...
    @property
    def passed(self) -> int: ...


class Policy(ABC):
    """Decides which job runs next, and who of those who wait gets a lease.

    One policy belongs to one queue and to its event loop's thread; no method may block.
    It is told of each job as it begins to wait (:meth:`add`) and as it does so no more
    (:meth:`remove`), of each attempt on the device (:meth:`began`, :meth:`ended`), and of
    each lease (:meth:`leased`, :meth:`released`). It answers which job is next
    (:meth:`first`), whether that stops the one that runs (:meth:`preempts`), and what
    runs before a job (:meth:`ahead`), which positions and ETAs are made from.

    A subclass has :meth:`add`, :meth:`remove` and :meth:`order`; one whose order is that
    of a key which a job keeps is a :class:`Keyed` and has :meth:`Keyed.key` alone.
    """

    # whether the configuration's shares mean anything to it
    uses_shares: ClassVar[bool] = False

    @classmethod
    def from_config(cls, options: Mapping[str, JSON], shares: Shares) -> Self:
        """Make the policy; without a method of its own it takes no options.

        :param options: the keys beside ``type`` in the configuration's ``policy``
        :param shares: who is to have how much
        :raises InputError: if an option is unknown or wrong, naming it
        """
        check_options(options, [])
        return cls()

    @abstractmethod
    def add(self, entry: PendingJob) -> None:
        """Let a job wait: it came, or it was stopped and is to run again."""

    @abstractmethod
    def remove(self, entry: PendingJob) -> None:
        """Forget a job that waited: it runs now, or was cancelled."""

    @abstractmethod
    def order(self) -> Iterator[PendingJob]:
        """List the jobs as they would run if nothing came any more."""

    def first(self) -> PendingJob | None:
        """Tell the job that runs next, which goes on waiting until it is removed.

        Asked at each submission and before each attempt.
        """
        return next(iter(self.order()), None)

    def preempts(self, waiting: PendingJob, running: PendingJob) -> bool:
        """Say whether a job stops the one that runs, which then waits again."""
        return False

    def passing(self, job_class: JobClass) -> Sequence[JobClass]:
        """Name the classes of which all who are yet to come go before a job.

        ETAs count them in, as often as they come.
        """
        return ()

    def ahead(self, entry: PendingJob) -> dict[Kind, Work]:
        """Add up, by kind, what runs before a job that waits, as things stand now.

        Asked for each job that is submitted or shown; by default it walks the line.
        """
        works: defaultdict[Kind, Work] = defaultdict(Work)
        for other in self.order():
            if other.number == entry.number:
                break
            works[other.kind] += Work(1, other.seconds)
        return works

    def coming(self, entry: PendingJob) -> float:
        """Expect what runs before a job that waits and is yet to come.

        :returns: seconds on the device, as modelled and scaled, without those of the
            classes that go before it as :meth:`passing` says
        """
        return 0.0

    def used(self, past: Used) -> None:  # noqa: B027 - it may not care
        """Take note of what was used before the service started."""

    def remembers_seconds(self) -> float:
        """Tell how far back it wants to be told what was used."""
        return 0.0

    def began(self, entry: PendingJob) -> None:  # noqa: B027 - it may not care
        """Take note that a job, removed before, is on the device now."""

    def ended(  # noqa: B027 - it may not care
        self, entry: PendingJob, qpu_seconds: float
    ) -> None:
        """Take note that an attempt has ended, one way or another.

        :param qpu_seconds: that it took, as modelled
        """

    def leased(self, lease: Lease) -> None:  # noqa: B027 - it may not care
        """Take note of a lease with its hints and tenths, also after a restart."""

    def released(self, lease: Lease) -> None:  # noqa: B027 - it may not care
        """Take note that a lease has ended."""

    def choose(self, waiting: Sequence[Asking], held: Sequence[Lease]) -> int:
        """Choose who gets the lease that is free.

        :param waiting: those of the highest class there is, the first who came first
        :returns: the index of one of them
        """
        return 0


K = TypeVar("K", bound=tuple[float, ...])


class Keyed(Policy, Generic[K]):
    """Runs the job with the least key first; of equal ones, the one that came first."""

    def __init__(self) -> None:
        self._row: Row[tuple[K, int]] = Row()

    @abstractmethod
    def key(self, entry: PendingJob) -> K:
        """Tell a job's key, which stays as it is while the job waits."""

    def add(self, entry: PendingJob) -> None:
        """See :meth:`Policy.add`."""
        self._row.add(self._place(entry), entry)

    def remove(self, entry: PendingJob) -> None:
        """See :meth:`Policy.remove`."""
        self._row.remove(self._place(entry))

    def order(self) -> Iterator[PendingJob]:
        """See :meth:`Policy.order`."""
        return iter(self._row)

    def ahead(self, entry: PendingJob) -> dict[Kind, Work]:
        """See :meth:`Policy.ahead`; takes the square root of the line's length."""
        return self._row.before(self._place(entry))

    def _place(self, entry: PendingJob) -> tuple[K, int]:
        return self.key(entry), entry.number


class ByClass:
    """Production before test before development; production stops what is lower."""

    def preempts(self, waiting: PendingJob, running: PendingJob) -> bool:
        """See :meth:`Policy.preempts`."""
        highest = waiting.job_class == CLASSES[0]
        return highest and running.job_class != CLASSES[0]

    def passing(self, job_class: JobClass) -> Sequence[JobClass]:
        """See :meth:`Policy.passing`."""
        return CLASSES[: RANKS[job_class]]


def check_options(options: Mapping[str, JSON], known: list[str]) -> None:
    """Refuse an option that is not known.

    :raises InputError: naming it, and those that are known
    """
    for name in options:
        if name not in known:
            if not known:
                raise InputError(f"unknown key {name!r}: this policy has none")
            raise InputError(unknown("key", name, known))


def number_option(
    options: Mapping[str, JSON], name: str, default: float, *, least: float = 0.0
) -> float:
    """Read a number of the options.

    :raises InputError: if it is no finite number, or not above the least
    """
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} {value!r:.40}: expected a number")
    if not least < value < float("inf"):
        raise InputError(f"{name} {value}: expected a finite number above {least:g}")
    return float(value)

"""What scheduling policies order and add up: pending jobs, and the work in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sf_quantum.service.domain.jobs import Job, JobClass, Kind, Lease, Pattern

# seconds, of whatever epoch its user says; a virtual clock does as well
Clock: TypeAlias = Callable[[], float]


@dataclass(slots=True)
class PendingJob:
    """What a scheduling policy knows of a job, kept in memory.

    :param lease: the lease's id; changes if the job is submitted again under another
    :param seconds: on the device, as modelled, times the device's time scale
    :param qpu_seconds: as modelled: what the hardware would take
    :param submitted: in seconds since the epoch
    :param project: of its lease
    :param pattern: hint of its lease
    :param expected_seconds: hint of its lease: how long it is to be held
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
    def of(cls, job: Job, time_scale: float, lease: Lease | None = None) -> PendingJob:
        """Make it from a stored job.

        :param lease: the job's; one that has ended gives no hints
        """
        pending = cls(
            number=job.number,
            id=job.id,
            user=job.user,
            lease=job.lease,
            job_class=job.job_class,
            kind=job.kind,
            seconds=job.model_seconds * time_scale,
            qpu_seconds=job.model_seconds,
            submitted=job.submitted,
        )
        if lease is not None:
            pending.move_to(lease)
        return pending

    def move_to(self, lease: Lease) -> None:
        """Belong to a lease from now on, with its project and hints."""
        self.lease = lease.id
        self.project = lease.project
        self.pattern = lease.pattern
        self.expected_seconds = lease.expected_seconds


@dataclass(frozen=True, slots=True)
class Work:
    """A number of jobs and their seconds on the device, modelled times the time scale."""

    jobs: int = 0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.jobs + other.jobs, self.seconds + other.seconds)

"""Pending jobs, as scheduling policies see them, and sums of their work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sf_quantum.service.domain.jobs import Job, JobClass, Kind, Lease, Pattern

# a clock in seconds with any epoch; it may be virtual, as in the simulation of ``sfq plan``
Clock: TypeAlias = Callable[[], float]


@dataclass(slots=True)
class PendingJob:
    """A pending job, as scheduling policies see it.

    :param lease: id of its lease; changes if the job is resubmitted under another lease
    :param seconds: time for which it is expected to occupy the device
    :param qpu_seconds: expected QPU time, as billed
    :param submitted: time of its submission by the policy's clock
    :param project: project of its lease
    :param pattern: hint of its lease
    :param expected_seconds: hint of its lease: expected QPU seconds of the lease's jobs
    :param preemptible: whether the device allows a policy to pre-empt the job; otherwise the
        job stays on the device until it ends
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
    compute_seconds: float = 0.0
    payload_bytes: int = 0
    preemptible: bool = True

    @classmethod
    def of(cls, job: Job, seconds: float, lease: Lease | None = None) -> PendingJob:
        """Create a pending job from a stored job and its lease.

        :param lease: ``None`` if the lease has ended
        """
        pending = cls(
            number=job.number,
            id=job.id,
            user=job.user,
            lease=job.lease,
            job_class=job.job_class,
            kind=job.kind,
            seconds=seconds,
            qpu_seconds=job.model_seconds,
            submitted=job.submitted_steady,
            compute_seconds=job.compute_seconds,
            payload_bytes=job.bytes,
        )
        if lease is not None:
            pending.move_to(lease)
        return pending

    def move_to(self, lease: Lease) -> None:
        self.lease = lease.id
        self.project = lease.project
        self.pattern = lease.pattern
        self.expected_seconds = lease.expected_seconds


@dataclass(frozen=True, slots=True)
class Work:
    """A number of jobs, and the seconds for which they are expected to occupy the device."""

    jobs: int = 0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.jobs + other.jobs, self.seconds + other.seconds)

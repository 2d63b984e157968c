"""Why jobs are interrupted and leases end, as data and as texts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from sf_quantum.service.domain.jobs import JobClass

# the note of a job that failed because the device was offline
QPU_OFFLINE = "the QPU is offline"
# Notes of jobs whose outcome cannot be determined.
NOT_FOUND_AGAIN = (
    "it may have run, and cannot be found again on the device: submit it as a new job, "
    "as repeatable where it may run twice"
)
MAY_RUN_ON = "it is given up, and may run on at the vendor"
VANISHED = "it may have run, and has left no result: submit it as a new job"


class Cause(Enum):
    """What interrupts a job."""

    PREEMPTION = auto()
    CANCELLATION = auto()
    LEASE_END = auto()
    QPU_CLOSED = auto()
    SERVICE_STOP = auto()
    RESTART = auto()
    VENDOR = auto()


class LeaseEndCause(Enum):
    """What ends a lease; each value is the text of the reason."""

    RELEASED = "released"
    EXPIRED = "its time is over"
    IDLE = "it was idle for {idle_seconds:g} seconds"
    SLURM_JOB_GONE = "Slurm job {slurm_job_id} is gone"
    CLIENT_GONE = "the client went away"
    JOBS_OVER = "its problems are over"
    REVOKED = "its user may no longer use the QPU"
    NOT_GRANTED = "not granted by {latest_start}"
    SPENT = "its {qpu_seconds:g} QPU seconds are spent"


@dataclass(frozen=True)
class LeaseEnd:
    """Why a lease ended, with the values that its text contains."""

    cause: LeaseEndCause
    idle_seconds: float = 0.0
    slurm_job_id: str = ""
    qpu_seconds: float = 0.0
    latest_start: str = ""

    @property
    def reason(self) -> str:
        """The text on disk, and in lists of leases."""
        return self.cause.value.format_map(vars(self))

    @property
    def note(self) -> str:
        """The text for jobs that are cancelled with the lease."""
        if self.cause is LeaseEndCause.RELEASED:
            return "cancelled: its lease was released"
        return f"cancelled: its lease has ended: {self.reason}"


RELEASED = LeaseEnd(LeaseEndCause.RELEASED)


def end_message(reason: str) -> str:
    """Return the message for requests that still use an ended lease.

    :param reason: see :attr:`LeaseEnd.reason`
    """
    if reason == RELEASED.reason:
        return "the lease was released"
    return f"the lease has ended: {reason}"


@dataclass(frozen=True)
class Interruption:
    """Why a job was interrupted.

    :param preempted_by: class of the pre-empting job, if the cause is a pre-emption
    :param lease_end: end of the job's lease, if this is the cause
    :param lost: reason why the vendor ended the job, if the vendor is the cause
    """

    cause: Cause
    preempted_by: JobClass | None = None
    lease_end: LeaseEnd | None = None
    lost: str | None = None

    @property
    def cancels(self) -> bool:
        """Whether the interruption ends the job; otherwise the job is pending again."""
        return self.cause in (Cause.CANCELLATION, Cause.LEASE_END)

    def note(self, attempt: int = 1) -> str:
        if self.lease_end is not None:
            return self.lease_end.note
        during = f"during attempt {attempt}"
        return {
            Cause.PREEMPTION: f"pre-empted by a {self.preempted_by} job {during}",
            Cause.QPU_CLOSED: f"interrupted: the QPU was closed {during}",
            Cause.SERVICE_STOP: f"interrupted: the service was stopped {during}",
            Cause.RESTART: f"interrupted: the service died {during}",
            Cause.VENDOR: f"interrupted {during}: {self.lost}",
        }.get(self.cause, "cancelled")


CANCELLED = Interruption(Cause.CANCELLATION)

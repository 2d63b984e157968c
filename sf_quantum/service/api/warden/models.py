"""The requests and answers of warden's dialect."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from sf_quantum.service.api.common import utc
from sf_quantum.service.domain.jobs import Job, Lease, State

Status: TypeAlias = Literal["PENDING", "RUNNING", "DONE", "ERROR", "CANCELED"]
STATUSES: Mapping[State, Status] = {
    "Queued": "PENDING",
    "Running": "RUNNING",
    "Completed": "DONE",
    "Failed": "ERROR",
    "Cancelled": "CANCELED",
}
STATES: Mapping[Status, State] = {status: state for state, status in STATUSES.items()}
# some clients send numbers instead of strings
Text: TypeAlias = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(min_length=1, max_length=200),
]


def _utc(seconds: float | None) -> datetime | None:
    return None if seconds is None else utc(seconds)


@lru_cache(1024)
def user_name(number: str) -> str:
    """Return the name for a uid; a uid without a user on this machine stays a number."""
    try:
        return pwd.getpwuid(int(number)).pw_name if number.isdecimal() else number
    except (KeyError, OverflowError, ValueError):  # int() reads 4,300 digits at most
        return number


@lru_cache(1024)
def user_number(name: str) -> str:
    """Return the uid of a user, as in warden's answers; see :func:`user_name`."""
    try:
        return str(pwd.getpwnam(name).pw_uid)
    except (KeyError, ValueError):
        return name


class Accessible(BaseModel):
    """Whether the QPU takes sessions, and how many slots are available."""

    is_accessible: bool
    message: str
    qpu_slots_total: int
    qpu_slots_used: int
    qpu_slots_available: int


class SetAccessible(BaseModel):
    """Open or close the QPU."""

    is_accessible: bool
    message: str = Field(default="", max_length=1000)


class Slots(BaseModel):
    """The vQPUs: how many leases may be held, and how many are held."""

    qpu_slots_total: int
    qpu_slots_used: int
    qpu_slots_available: int


class CreateSession(BaseModel):
    """A session for a user and a Slurm job."""

    user_id: Text
    scheduler_job_id: Text = Field(
        validation_alias=AliasChoices("scheduler_job_id", "slurm_job_id")
    )
    partition: Text | None = Field(
        default=None,
        description="An extension: the Slurm partition, which determines the class.",
    )
    qpu_slots: int = Field(default=1, ge=1, strict=True)


class Session(BaseModel):
    """A lease; its id goes into `X-Warden-Session`."""

    id: str
    user_id: str
    slurm_job_id: str | None
    scheduler_job_id: str | None
    created_at: datetime
    revoked_at: datetime | None
    idle_expires_at: datetime | None
    expires_at: datetime | None
    qpu_slots: int = 1

    @classmethod
    def of(cls, lease: Lease, idle_expires: float | None) -> Self:
        """Show a lease."""
        return cls(
            id=lease.id,
            user_id=user_number(lease.user),
            slurm_job_id=lease.slurm_job_id,
            scheduler_job_id=lease.slurm_job_id,
            created_at=utc(lease.opened),
            revoked_at=_utc(lease.closed),
            idle_expires_at=_utc(idle_expires),
            expires_at=_utc(lease.expires),
        )


class CreateJob(BaseModel):
    """A pulse sequence and its number of shots."""

    sequence: str = Field(description="Pulser's abstract representation, JSON text.")
    shots: int = Field(ge=1, le=100_000, strict=True)


class WardenJob(BaseModel):
    """A job of any kind; its id is its number in the queue."""

    id: int
    user_id: str
    created_at: datetime
    status: Status
    results: str | None = Field(description='JSON text; a sequence\'s has "counter".')

    @classmethod
    def of(cls, job: Job, results: str | None = None) -> Self:
        """Show a job."""
        return cls(
            id=job.number,
            user_id=user_number(job.user),
            created_at=utc(job.submitted),
            status=STATUSES[job.state],
            results=results,
        )


class Logs(BaseModel):
    """The events of a job, a line each."""

    logs: str

    @classmethod
    def of(cls, job: Job) -> Self:
        """List when a job was queued, started and ended."""
        lines = [(job.submitted, f"queued as job {job.number}, class {job.job_class}")]
        if job.started is not None:
            lines.append((job.started, f"started, attempt {job.attempt}"))
        if job.ended is not None:
            note = f": {job.note}" if job.note else ""
            lines.append((job.ended, f"{STATUSES[job.state]}{note}"))
        elif job.note:
            lines.append((job.started or job.submitted, job.note))
        return cls(logs="".join(f"[{utc(at):%F %T}] {text}\n" for at, text in lines))


class Specs(BaseModel):
    """The device, as Pulser's abstract representation where Pulser is installed."""

    specs: str = Field(description="JSON text, with `name` at least.")


class CurrentJob(BaseModel):
    """The job on the device."""

    id: int
    session_id: str
    user_id: str
    started_at: datetime | None
    backend_id: str | None


class OpenSession(BaseModel):
    """A session that is held."""

    id: str
    user_id: str
    created_at: datetime
    slurm_job_id: str | None


class StatusAnswer(BaseModel):
    """The running job, the queue and the sessions."""

    pending_jobs_count: int
    current_job: CurrentJob | None
    open_sessions: list[OpenSession]

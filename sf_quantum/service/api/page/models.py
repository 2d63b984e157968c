"""The answer of ``GET /v1/activity``; times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal, Self, TypeAlias

from pydantic import Field

from sf_quantum.service.api.v1.models import Strict
from sf_quantum.service.domain.jobs import Forecast, Job, JobClass, Kind, Lease, State
from sf_quantum.service.queue.availability import MaintenanceWindow

Sees: TypeAlias = Literal["all", "own", "counts"]


class ShownJob(Strict):
    """A job whose details the caller may see."""

    id: str
    user: str
    job_class: JobClass = Field(alias="class")
    kind: Kind
    idempotency_key: str
    shots: int
    state: State
    attempt: int
    note: str | None
    position: int | None = Field(
        description="Jobs that run before it, the running one included; null once over."
    )
    starts: float | None = Field(
        description="When it is expected to start; null unless it is pending and may start."
    )
    ends: float | None = Field(
        description="When it is expected to end; null unless it runs."
    )
    submitted: float
    started: float | None
    ended: float | None
    seconds: float = Field(description="On the device, of all attempts.")

    @classmethod
    def of(cls, job: Job, forecast: Forecast | None, now: float) -> Self:
        """Show a job."""
        starts = ends = None
        if forecast is not None and job.state == "Running":
            ends = round((job.started or now) + forecast.expected_seconds, 1)
        elif forecast is not None and forecast.eta_seconds is not None:
            starts = round(now + forecast.eta_seconds, 1)
        return cls(
            idempotency_key=job.key,
            shots=job.parameters.get("num_reads") or 1,
            position=forecast.position if forecast else None,
            starts=starts,
            ends=ends,
            **{name: getattr(job, name) for name in _OF_JOB},
        )


_OF_JOB = ShownJob.model_fields.keys() & {field.name for field in fields(Job)}


class OtherJobs(Strict):
    """Consecutive jobs without their details."""

    jobs: int
    classes: dict[JobClass, int] = Field(
        description="How many of each class; jobs far back in the queue are left out."
    )


class ShownLease(Strict):
    """A lease, without its id, which is a secret."""

    user: str
    job_class: JobClass = Field(alias="class")
    job: str | None
    slurm_job_id: str | None
    opened: float
    expires: float | None

    @classmethod
    def of(cls, lease: Lease) -> Self:
        """Show a lease that is held."""
        return cls(**{name: getattr(lease, name) for name in cls.model_fields})


class LeasesShown(Strict):
    """The leases that are held."""

    vqpus: int = Field(description="How many may be held at once.")
    held: int
    waiting: int = Field(description="Pending requests for a lease.")
    shown: list[ShownLease] = Field(
        description="Those the caller may see, at most 100."
    )


class MaintenanceShown(Strict):
    """A maintenance window."""

    starts: float
    ends: float | None = Field(description="Null: when the operator opens the QPU.")
    message: str

    @classmethod
    def of(cls, window: MaintenanceWindow) -> Self:
        """Show a window."""
        return cls(starts=window.starts, ends=window.ends, message=window.message)


class DeviceShown(Strict):
    """The device."""

    name: str
    technology: str
    qubits: int
    out_of_service: int = Field(description="How many of these are out of service.")
    status: str = Field(description="online, draining, closed or offline")
    reason: str = Field(description="Why it is not online; empty if it is.")
    maintenance: MaintenanceShown | None = Field(description="The next, if any.")


class Utilisation(Strict):
    """How busy the device was."""

    until: float = Field(description="The beginning of the last minute.")
    minutes: list[float] = Field(
        description="The busy part of each of the last 60 minutes, 0 to 1; the last one is "
        "not over."
    )
    mean: float = Field(description="Of the same minutes.")


class CalibrationValue(Strict):
    """One error of the device."""

    name: str
    value: float
    history: list[float] = Field(
        description="Its values at `times` of the calibration."
    )


class CalibrationShown(Strict):
    """The present calibration, and the history of its values."""

    id: str
    made: float
    times: list[float] = Field(
        description="Those of the values' histories; the last is now."
    )
    renewals: list[float] = Field(
        description="When the calibration was renewed, within these times."
    )
    values: list[CalibrationValue]
    alarms: list[str] = Field(
        description="The values that drift, in the order of the alarms."
    )


class ActivityAnswer(Strict):
    """What the page shows: everything to admins, to others their own and counts."""

    viewer: str | None = Field(description="The caller; null without a credential.")
    sees: Sees
    device: DeviceShown
    waiting: dict[JobClass, int]
    running: ShownJob | OtherJobs | None
    line: list[ShownJob | OtherJobs] = Field(
        description="The pending jobs in the order they will run; empty for viewers who see "
        "counts only."
    )
    ended: list[ShownJob] = Field(description="The latest that are over, newest first.")
    leases: LeasesShown
    utilisation: Utilisation
    calibration: CalibrationShown

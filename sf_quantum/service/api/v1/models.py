"""The requests and answers of ``/v1``."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from sf_quantum.samplers.neal import READS, SEEDS, SWEEPS
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Forecast,
    Job,
    JobClass,
    Kind,
    Lease,
    LeaseRequest,
    Pattern,
    State,
    Submission,
    UserClass,
)

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class LeaseBody(Strict):
    """A request for a lease."""

    job: str | None = Field(
        default=None,
        max_length=1000,
        description="The purpose, for the operator and the accounting: `RUN:/step/tag` of "
        "a workflow's run, or any text.",
    )
    job_class: UserClass | None = Field(
        default=None,
        alias="class",
        description="The highest class to use; the answer has the one granted.",
    )
    wait: Seconds = Field(
        default=0.0, description="Seconds to wait while all vQPUs are leased."
    )
    key: Name | None = Field(
        default=None,
        description="A request with the same key gets the same lease while it is held, "
        "and keeps its position among the pending requests.",
    )
    slurm_job_id: Name | None = Field(
        default=None, description="The lease ends when this Slurm job is gone."
    )
    partition: Name | None = Field(
        default=None, description="The Slurm partition, which may determine the class."
    )
    expected_seconds: Seconds | None = Field(
        default=None, description="How long the lease is expected to be held."
    )
    pattern: Pattern | None = Field(
        default=None,
        description="Whether most time is spent on the QPU (qc-heavy) or beside it "
        "(cc-heavy).",
    )
    project: Name | None = Field(
        default=None,
        description="The project to charge, by default the user's first one.",
    )
    account: Name | None = Field(
        default=None,
        description="The Slurm account, used as the project if the user belongs to it.",
    )
    tenths: int | None = Field(
        default=None,
        ge=1,
        le=10,
        strict=True,
        description="The share that the batch system granted as licences or gres; only "
        "root and admins may set it.",
    )
    user: Name | None = Field(
        default=None,
        description="The owner of the lease; only root and admins may set it.",
    )

    def request(self) -> LeaseRequest:
        """Convert the body for the queue."""
        return LeaseRequest(**self.model_dump(exclude={"wait"}))


class Parameters(Strict):
    """How a job is run."""

    num_reads: int = Field(default=READS, ge=1, le=100_000, strict=True)
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=SEEDS,
        strict=True,
        description="By default drawn by the device.",
    )
    num_sweeps: int = Field(
        default=SWEEPS, ge=1, le=1_000_000, strict=True, description="Problems only."
    )


class JobBody(Strict):
    """A job: exactly one of problem, sequence and circuit."""

    problem: dict[str, JsonValue] | None = Field(
        default=None, description="A dimod BQM, `to_serializable()`."
    )
    sequence: str | None = Field(
        default=None, description="Pulser abstract representation."
    )
    circuit: str | None = Field(default=None, description="OpenQASM 3.")
    parameters: Parameters = Field(default_factory=Parameters)
    idempotency_key: Name = Field(
        description="A user's second submission with the same key is the same job."
    )
    purpose: str | None = Field(
        default=None,
        max_length=1000,
        description="As `job` of a lease; by default that of the job's lease.",
    )
    calibrated_within: Seconds | None = Field(
        default=None,
        description="Refuse the job unless the device has no drift alarm and its "
        "calibration is at most so many seconds old.",
    )

    def submission(self) -> Submission:
        """Convert the body for the queue.

        :raises Refused: 422 unless it has exactly one payload, with its own parameters
        """
        payloads: dict[Kind, JsonValue] = {
            "problem": self.problem,
            "sequence": self.sequence,
            "circuit": self.circuit,
        }
        given = [kind for kind in payloads if payloads[kind] is not None]
        if len(given) != 1:
            names = ", ".join(given) or "none"
            detail = f"give exactly one of {', '.join(payloads)}, not {names}"
            raise Refused(422, detail)
        parameters = self.parameters.model_dump()
        if given[0] != "problem":
            del parameters["num_sweeps"]
            if "num_sweeps" in self.parameters.model_fields_set:
                raise Refused(422, "only problems take it", "parameters.num_sweeps")
        content = payloads[given[0]]
        return Submission(
            given[0],
            content,
            parameters,
            self.idempotency_key,
            purpose=self.purpose,
            calibrated_within=self.calibrated_within,
        )


class CalibrationAnswer(Strict):
    """A calibration of the device."""

    id: str
    time: str = Field(description="When it was made.")
    values: dict[str, float] = Field(
        description="The errors that the device measured last, by name, as ratios."
    )


class JobAnswer(Strict):
    """A job; times are seconds since the epoch."""

    id: str
    user: str
    lease: str
    job_class: JobClass = Field(alias="class")
    kind: Kind
    idempotency_key: str
    parameters: dict[str, int | None]
    state: State
    attempt: int = Field(
        description="2 or more after a pre-emption, or a restart of the service."
    )
    note: str | None = Field(
        description="Why it failed, was cancelled or started again."
    )
    position: int | None = Field(
        description="Jobs that run before it, the running one included; null once over."
    )
    eta_seconds: float | None = Field(
        description="From now to its start, including maintenance; null once over, or "
        "while it is unknown when the QPU opens."
    )
    expected_seconds: float | None = Field(
        description="From its start to its end; null once over."
    )
    submitted: float
    started: float | None
    ended: float | None
    qpu_seconds: float = Field(
        description="Modelled time on hardware, over all attempts."
    )
    seconds: float = Field(description="Actual time on the device.")
    calibration: CalibrationAnswer | None = Field(
        description="The calibration it ran under; null unless it ran."
    )

    @classmethod
    def of(cls, job: Job, forecast: Forecast | None) -> Self:
        """Show a job."""
        return cls(
            idempotency_key=job.key,
            position=forecast.position if forecast else None,
            eta_seconds=forecast.eta_seconds if forecast else None,
            expected_seconds=forecast.expected_seconds if forecast else None,
            **{name: getattr(job, name) for name in _OF_JOB},
        )


_OF_JOB = JobAnswer.model_fields.keys() & {field.name for field in fields(Job)}


class LeaseAnswer(Strict):
    """A lease; its id is the acquisition token and goes into `X-SFQ-Lease`.

    Times are seconds since the epoch.
    """

    id: str
    user: str
    job_class: JobClass = Field(alias="class")
    job: str | None
    key: str | None
    slurm_job_id: str | None
    partition: str | None
    expected_seconds: float | None
    pattern: Pattern | None
    project: str | None = Field(
        description="The project that is charged, if it is not the user."
    )
    tenths: int | None = Field(description="The share that the batch system granted.")
    held: bool
    opened: float
    expires: float | None = Field(description="When it ends at the latest.")
    idle_expires: float | None = Field(
        description="When it ends unless it is renewed or used."
    )
    closed: float | None
    reason: str | None = Field(description="Why it ended.")
    jobs: list[JobAnswer] = Field(description="The latest 1000, oldest first.")

    @classmethod
    def of(
        cls, lease: Lease, idle_expires: float | None, jobs: list[JobAnswer]
    ) -> Self:
        """Show a lease."""
        given = {name: getattr(lease, name) for name in _OF_LEASE}
        return cls(idle_expires=idle_expires, jobs=jobs, **given)


_OF_LEASE = LeaseAnswer.model_fields.keys() - {"idle_expires", "jobs"}


class TimingAnswer(Strict):
    """Modelled seconds per job, per shot, and per read-out of a shot."""

    setup_seconds: float
    shot_seconds: float
    readout_seconds: float
    time_scale: float = Field(description="Seconds waited per modelled second.")


class DriftAnswer(Strict):
    """Whether the device drifts from its usual errors."""

    alarms: list[str] = Field(
        description="The values that drift, until the calibration is renewed."
    )
    sums: dict[str, float] = Field(
        description="The larger CUSUM of each value, in its standard deviations."
    )
    threshold: float = Field(description="An alarm is raised for a sum above it.")


class DeviceAnswer(Strict):
    """The device and how busy it is."""

    name: str
    technology: str
    status: str = Field(description="online, draining, closed or offline")
    reason: str = Field(description="Why it is not online; empty if it is.")
    qubits: int = Field(description="The largest problem, in variables.")
    out_of_service: list[int] = Field(description="Qubits that are out of service.")
    shots: int | None = Field(description="The limit of one job; null for none.")
    payloads: list[Kind] = Field(description="The payloads that a job may have.")
    vqpus: int = Field(description="How many leases may be held at once.")
    leases: int = Field(description="How many leases are held.")
    leases_waiting: int = Field(description="Pending requests for a lease.")
    queue_length: int = Field(description="Pending jobs and the running one.")
    policy: str = Field(description="The name of the scheduling policy.")
    job_class: JobClass = Field(
        alias="class", description="The class that position and eta_seconds are for."
    )
    position: int = Field(description="Jobs that would run before one submitted now.")
    eta_seconds: float | None = Field(
        description="From now to its start, including maintenance; null while it is "
        "unknown when the QPU opens."
    )
    cost_per_second: float | None = Field(
        description="Per second of modelled QPU time, in the site's unit; null if free."
    )
    maintenance: float | None = Field(
        description="When the next maintenance window starts, seconds since the epoch."
    )
    calibration: CalibrationAnswer
    calibration_age_seconds: float = Field(description="Since the calibration.")
    drift: DriftAnswer
    timing: TimingAnswer


class DeviceChange(Strict):
    """Settings that an admin may change until the next start of the service."""

    vqpus: int = Field(
        ge=1, le=10_000, strict=True, description="Leases that are held stay held."
    )


class Message(Strict):
    """The message for requests that are refused."""

    message: str = Field(default="", max_length=1000)


class HealthAnswer(Strict):
    """Whether the service works."""

    status: str

"""What travels over ``/v1``: requests, which are checked, and answers."""

from __future__ import annotations

from typing import Annotated, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from sf_quantum.samplers.neal import READS, SEEDS, SWEEPS
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    AskedClass,
    Forecast,
    Job,
    JobClass,
    Kind,
    Lease,
    LeaseRequest,
    Pattern,
    State,
    Submission,
)

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """A key that is not known is an error, not ignored."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class LeaseBody(Strict):
    """What a lease is for."""

    job: str | None = Field(
        default=None,
        max_length=1000,
        description="What it is for, for the operator's eyes and the accounts: "
        "`RUN:/step/tag` of a workflow's run, or any text.",
    )
    job_class: AskedClass | None = Field(
        default=None,
        alias="class",
        description="At most this; the answer tells which one it is.",
    )
    wait: Seconds = Field(
        default=0.0, description="Seconds to wait while all vQPUs are held."
    )
    key: Name | None = Field(
        default=None,
        description="The same key again is the same lease while that is held, and "
        "keeps its place between two requests that wait.",
    )
    slurm_job_id: Name | None = Field(
        default=None, description="The lease ends when this Slurm job is gone."
    )
    partition: Name | None = Field(
        default=None, description="Slurm's, which may say the class."
    )
    expected_seconds: Seconds | None = Field(
        default=None, description="How long the lease will be held."
    )
    pattern: Pattern | None = Field(
        default=None, description="Where the time goes: to the QPU or beside it."
    )
    project: Name | None = Field(
        default=None,
        description="Whose share of the QPU it uses: one of the user's projects, the "
        "first if none is named.",
    )
    account: Name | None = Field(
        default=None,
        description="Slurm's: the project, if it is one of the user's projects.",
    )
    tenths: int | None = Field(
        default=None,
        ge=1,
        le=10,
        strict=True,
        description="The share that the batch system gave it, by licences or gres; only "
        "root and admins may say.",
    )
    user: Name | None = Field(
        default=None, description="Whose it is to be; only root and admins may say."
    )

    def request(self) -> LeaseRequest:
        """Tell what is asked for."""
        return LeaseRequest(**self.model_dump(exclude={"wait"}))


class Parameters(Strict):
    """How a job is sampled."""

    num_reads: int = Field(default=READS, ge=1, le=100_000, strict=True)
    seed: int | None = Field(
        default=None, ge=0, lt=SEEDS, strict=True, description="Drawn by the device."
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
        description="The same key of the same user again is the same job."
    )
    purpose: str | None = Field(
        default=None,
        max_length=1000,
        description="What it is for, as `job` of a lease, whose it is otherwise.",
    )
    calibrated_within: Seconds | None = Field(
        default=None,
        description="Refused unless the device was calibrated within so many seconds "
        "and has no drift alarm.",
    )

    def submission(self) -> Submission:
        """Tell what is asked for.

        :raises Refused: unless it is exactly one payload, with parameters it knows
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
            *(given[0], content, parameters, self.idempotency_key),
            purpose=self.purpose,
            calibrated_within=self.calibrated_within,
        )


class CalibrationAnswer(Strict):
    """Which calibration the samples come from."""

    id: str
    time: str = Field(description="When it was made.")
    values: dict[str, float] = Field(
        description="The errors that the device measured last, by name: ratios."
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
        description="2 or more: it was pre-empted, or interrupted with the service."
    )
    note: str | None = Field(description="Why it failed, was cancelled or began again.")
    position: int | None = Field(
        description="Jobs that run before it, the running one included; null when over."
    )
    eta_seconds: float | None = Field(
        description="From now to its start, around maintenance; null when over, or while "
        "the QPU is shut and nobody can tell."
    )
    expected_seconds: float | None = Field(
        description="From its start to its end; null when over."
    )
    submitted: float
    started: float | None
    ended: float | None
    qpu_seconds: float = Field(
        description="As modelled: what hardware would take, for all attempts."
    )
    seconds: float = Field(description="As they went by on the device.")
    calibration: CalibrationAnswer | None = Field(
        description="Under which it ran; null unless it did."
    )

    @classmethod
    def of(cls, job: Job, forecast: Forecast | None) -> Self:
        """Show a job of the store."""
        return cls(
            idempotency_key=job.key,
            position=forecast.position if forecast else None,
            eta_seconds=forecast.eta_seconds if forecast else None,
            expected_seconds=forecast.expected_seconds if forecast else None,
            **{name: getattr(job, name) for name in _OF_JOB},
        )


_OF_JOB = [
    *"id user lease job_class kind parameters state attempt note".split(),
    *"submitted started ended qpu_seconds seconds calibration".split(),
]


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
    project: str | None = Field(description="Whose share it uses, if not the user's.")
    tenths: int | None = Field(description="The share that the batch system gave it.")
    held: bool
    opened: float
    expires: float | None = Field(description="When it ends in any case.")
    idle_expires: float | None = Field(
        description="When it ends if it is neither renewed nor used."
    )
    closed: float | None
    reason: str | None = Field(description="Why it ended.")
    jobs: list[JobAnswer] = Field(description="The latest 1000, oldest first.")

    @classmethod
    def of(
        cls, lease: Lease, idle_expires: float | None, jobs: list[JobAnswer]
    ) -> Self:
        """Show a lease of the store."""
        given = {name: getattr(lease, name) for name in _OF_LEASE}
        return cls(idle_expires=idle_expires, jobs=jobs, **given)


_OF_LEASE = LeaseAnswer.model_fields.keys() - {"idle_expires", "jobs"}


class TimingAnswer(Strict):
    """Modelled seconds: per job, per shot and per shot's read-out."""

    setup_seconds: float
    shot_seconds: float
    readout_seconds: float
    time_scale: float = Field(description="Seconds waited per modelled second.")


class DriftAnswer(Strict):
    """Whether the device drifts from what is usual."""

    alarms: list[str] = Field(
        description="What drifts, until the calibration is renewed; empty if all is well."
    )
    sums: dict[str, float] = Field(
        description="The larger CUSUM of each value, in its standard deviations."
    )
    threshold: float = Field(description="What a sum must exceed for an alarm.")


class DeviceAnswer(Strict):
    """The device and how busy it is."""

    name: str
    technology: str
    status: str = Field(description="online, draining, closed or offline")
    reason: str = Field(description="Why it is not online, else empty.")
    qubits: int = Field(description="The largest problem, in variables.")
    out_of_service: list[int] = Field(description="Qubits that cannot be used now.")
    shots: int | None = Field(description="The most of one job; null for no limit.")
    payloads: list[Kind] = Field(description="What a job may carry.")
    vqpus: int = Field(description="Leases that may be held at once.")
    leases: int = Field(description="Leases held.")
    leases_waiting: int = Field(description="Requests for a lease that wait.")
    queue_length: int = Field(description="Jobs that wait or run.")
    policy: str = Field(description="Says which job is next: the name of a policy.")
    job_class: JobClass = Field(
        alias="class", description="Of whom position and eta_seconds are told."
    )
    position: int = Field(description="Jobs that would run before one that joined now.")
    eta_seconds: float | None = Field(
        description="From now to its start, around maintenance; null while the QPU is shut "
        "and nobody can tell."
    )
    cost_per_second: float | None = Field(
        description="Of modelled QPU time, in the site's own unit; null if it is free."
    )
    maintenance: float | None = Field(
        description="When the next maintenance starts, since the epoch, if announced."
    )
    calibration: CalibrationAnswer
    calibration_age_seconds: float = Field(description="Since it was made.")
    drift: DriftAnswer
    timing: TimingAnswer


class DeviceChange(Strict):
    """What an admin changes while the service runs, until its next start."""

    vqpus: int = Field(
        ge=1, le=10_000, strict=True, description="Leases that are held stay."
    )


class Message(Strict):
    """What is told to those who are refused."""

    message: str = Field(default="", max_length=1000)


class HealthAnswer(Strict):
    """Whether the service works."""

    status: str

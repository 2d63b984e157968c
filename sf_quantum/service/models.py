"""What travels over ``/v1``: requests, which are checked, and answers."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from sf_quantum.samplers.neal import READS, SEEDS, SWEEPS
from sf_quantum.service.store import Job, State


class Strict(BaseModel):
    """A key that is not known is an error, not ignored."""

    model_config = ConfigDict(extra="forbid")


class Refusal(Strict):
    """Why a request was refused."""

    detail: str = Field(description="One sentence.")
    field: str | None = Field(default=None, description="The field that is wrong.")


class LeaseRequest(Strict):
    """What a lease is for."""

    job: str | None = Field(default=None, description="For the operator's eyes.")


class Parameters(Strict):
    """How a problem is sampled."""

    num_reads: int = Field(default=READS, ge=1, le=100_000, strict=True)
    seed: int | None = Field(
        default=None, ge=0, lt=SEEDS, strict=True, description="Drawn by the device."
    )
    num_sweeps: int = Field(default=SWEEPS, ge=1, le=1_000_000, strict=True)


class JobRequest(Strict):
    """A job: exactly one of problem, sequence and circuit."""

    problem: dict[str, JsonValue] | None = Field(
        default=None, description="A dimod BQM, `to_serializable()`."
    )
    sequence: str | None = Field(
        default=None, description="Pulser abstract representation; not run here."
    )
    circuit: str | None = Field(default=None, description="OpenQASM 3; not run here.")
    parameters: Parameters = Field(default_factory=Parameters)
    idempotency_key: str = Field(
        min_length=1,
        max_length=200,
        description="The same key again is the same job.",
    )


class JobAnswer(Strict):
    """A job; times are seconds since the epoch."""

    id: str
    lease: str
    idempotency_key: str
    parameters: dict[str, int | None]
    state: State
    attempt: int = Field(description="2 or more: the service died while it ran.")
    note: str | None = Field(description="Why it failed, was cancelled or began again.")
    queue_position: int | None = Field(
        description="Jobs before it, the running one included; null when over."
    )
    submitted: float
    started: float | None
    ended: float | None
    qpu_seconds: float = Field(description="As modelled: what hardware would take.")
    seconds: float = Field(description="As they went by on the device.")

    @classmethod
    def of(cls, job: Job) -> Self:
        """Show a job of the store."""
        return cls(
            idempotency_key=job.key,
            **{name: getattr(job, name) for name in _SAME},
        )


_SAME = tuple(name for name in JobAnswer.model_fields if name != "idempotency_key")


class LeaseAnswer(Strict):
    """A lease; its id is the acquisition token and goes into `X-SFQ-Lease`."""

    id: str
    job: str | None
    held: bool
    opened: float
    closed: float | None
    jobs: list[JobAnswer]


class CalibrationAnswer(Strict):
    """Which calibration the samples come from."""

    id: str
    time: str


class TimingAnswer(Strict):
    """Modelled seconds: per job, per shot and per shot's read-out."""

    setup_seconds: float
    shot_seconds: float
    readout_seconds: float
    time_scale: float = Field(description="Seconds waited per modelled second.")


class DeviceAnswer(Strict):
    """The device and how busy it is."""

    name: str
    technology: str
    status: str = Field(description="online or offline")
    reason: str = Field(description="Why it is offline, else empty.")
    qubits: int = Field(description="The largest problem, in variables.")
    vqpus: int = Field(description="Leases that may be held at once.")
    leases: int = Field(description="Leases held.")
    queue_length: int = Field(description="Jobs that wait or run.")
    calibration: CalibrationAnswer
    timing: TimingAnswer


class HealthAnswer(Strict):
    """Whether the service works."""

    status: str

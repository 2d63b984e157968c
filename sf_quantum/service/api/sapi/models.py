"""What travels in SAPI's dialect: problems, their parameters, their states.

Names and ranges are those that ``dwave-cloud-client`` 0.14.8 sends and reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sf_quantum.files import JSON
from sf_quantum.samplers.neal import SWEEPS
from sf_quantum.service.device.technologies import ANNEALING_SECONDS
from sf_quantum.service.domain.jobs import Job, State

Status: TypeAlias = Literal[
    "PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "CANCELLED"
]
Type: TypeAlias = Literal["ising", "qubo"]
STATUSES: Mapping[State, Status] = {
    "Queued": "PENDING",
    "Running": "IN_PROGRESS",
    "Completed": "COMPLETED",
    "Failed": "FAILED",
    "Cancelled": "CANCELLED",
}
TYPES: Mapping[Type, str] = {"ising": "SPIN", "qubo": "BINARY"}
MICROSECONDS = 1e6
READS = (1, 10_000)
ANNEALING = (0.5, 2000.0)  # microseconds
# the longest time on the QPU without programming and read-out, microseconds
RUN_DURATION = 1e6
LABEL = 1024


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


class Version(BaseModel):
    """Which graph a client knows."""

    graph_id: str | None = None


class SolverName(BaseModel):
    """Which solver a problem is for."""

    name: str
    version: Version | None = None


class Data(BaseModel):
    """A problem over all of a solver's qubits and couplers; see ``sapi_qp``."""

    format: Literal["qp"]
    lin: str
    quad: str
    offset: Annotated[float, AfterValidator(_finite)] = 0.0


class Params(BaseModel):
    """How a problem is sampled."""

    model_config = ConfigDict(extra="forbid")

    num_reads: int = Field(default=1, ge=READS[0], le=READS[1], strict=True)
    annealing_time: float = Field(
        default=ANNEALING_SECONDS * MICROSECONDS, ge=ANNEALING[0], le=ANNEALING[1]
    )
    answer_mode: Literal["histogram", "raw"] = "histogram"
    max_answers: int | None = Field(default=None, ge=1, strict=True)

    def parameters(self) -> dict[str, int | None]:
        """Say it in the queue's words: a sweep stands for a part of the annealing."""
        times = self.annealing_time / (ANNEALING_SECONDS * MICROSECONDS)
        return {
            "num_reads": self.num_reads,
            "num_sweeps": max(1, round(SWEEPS * times)),
        }


class Problem(BaseModel):
    """One problem of a submission."""

    solver: SolverName | str
    type: Type
    data: Data
    params: Params = Field(default_factory=Params)
    label: str | None = Field(default=None, max_length=LABEL)

    @property
    def identity(self) -> SolverName:
        """The solver, which older clients name by a text alone."""
        solver = self.solver
        return SolverName(name=solver) if isinstance(solver, str) else solver


class Asked(BaseModel):
    """What the queue keeps of a problem beside its BQM."""

    type: Type
    params: Params
    label: str | None = None


def status(job: Job, asked: Asked, solver: dict[str, JSON]) -> dict[str, JSON]:
    """Tell a problem's state.

    :param solver: its identity
    """
    told: dict[str, JSON] = {
        "id": job.id,
        "type": asked.type,
        "solver": solver,
        "label": asked.label,
        "status": STATUSES[job.state],
        "submitted_on": moment(job.submitted),
    }
    if job.ended is not None:
        told["solved_on"] = moment(job.ended)
    if job.state == "Failed":
        words = job.note or "no reason given"
        # what the client knows an offline solver by
        offline = "Solver is offline: " if "offline" in words else ""
        told["error_message"] = f"{offline}{words}"
    return told


def moment(seconds: float) -> str:
    """Write seconds since the epoch as SAPI writes times."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"

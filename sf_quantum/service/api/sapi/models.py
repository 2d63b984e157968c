"""SAPI's problems and their parameters.

Names and ranges are those that ``dwave-cloud-client`` 0.14.8 sends and reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sf_quantum.samplers.neal import SWEEPS
from sf_quantum.service.device.technologies import ANNEALING_SECONDS
from sf_quantum.service.domain.jobs import State

Status: TypeAlias = Literal[
    "PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "CANCELLED"
]
ProblemType: TypeAlias = Literal["ising", "qubo"]
STATUSES: Mapping[State, Status] = {
    "Queued": "PENDING",
    "Running": "IN_PROGRESS",
    "Completed": "COMPLETED",
    "Failed": "FAILED",
    "Cancelled": "CANCELLED",
}
VARTYPES: Mapping[ProblemType, str] = {"ising": "SPIN", "qubo": "BINARY"}
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


class SolverVersion(BaseModel):
    """The graph that a client knows."""

    graph_id: str | None = None


class SolverName(BaseModel):
    """The solver that a problem is for."""

    name: str
    version: SolverVersion | None = None


class ProblemData(BaseModel):
    """A problem over all qubits and couplers of a solver; see ``qp_format``."""

    format: Literal["qp"]
    lin: str
    quad: str
    offset: Annotated[float, AfterValidator(_finite)] = 0.0


class ProblemParameters(BaseModel):
    """How a problem is sampled."""

    model_config = ConfigDict(extra="forbid")

    num_reads: int = Field(default=1, ge=READS[0], le=READS[1], strict=True)
    annealing_time: float = Field(
        default=ANNEALING_SECONDS * MICROSECONDS, ge=ANNEALING[0], le=ANNEALING[1]
    )
    answer_mode: Literal["histogram", "raw"] = "histogram"
    max_answers: int | None = Field(default=None, ge=1, strict=True)

    def job_parameters(self) -> dict[str, int | None]:
        """Convert them for the queue; sweeps are proportional to the annealing time."""
        times = self.annealing_time / (ANNEALING_SECONDS * MICROSECONDS)
        return {
            "num_reads": self.num_reads,
            "num_sweeps": max(1, round(SWEEPS * times)),
        }


class Problem(BaseModel):
    """One problem of a submission."""

    solver: SolverName | str
    type: ProblemType
    data: ProblemData
    params: ProblemParameters = Field(default_factory=ProblemParameters)
    label: str | None = Field(default=None, max_length=LABEL)

    @property
    def solver_name(self) -> SolverName:
        """The solver; older clients send its name alone."""
        solver = self.solver
        return SolverName(name=solver) if isinstance(solver, str) else solver


class ProblemOptions(BaseModel):
    """The options stored with a problem's BQM."""

    type: ProblemType
    params: ProblemParameters
    label: str | None = None

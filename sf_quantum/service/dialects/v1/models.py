"""Parts that bodies and responses of ``/v1`` share, and the body of a job."""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sf_quantum.samplers.defaults import READS, SEEDS, SWEEPS
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.circuits import texts
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Kind, Submission
from sf_quantum.service.domain.photonic import PhotonicExperiment
from sf_quantum.text import LAST_SECOND

Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Moment: TypeAlias = Annotated[float, Field(ge=0, le=LAST_SECOND, allow_inf_nan=False)]


# Maximum number of keys in an object with fields: the response describes each unknown key in
# 1 kB, and a body may have many unknown keys.
MAX_KEYS = 100


class Strict(BaseModel):
    """A model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _check_number(cls, content: JsonValue) -> JsonValue:
        if isinstance(content, dict) and len(content) > MAX_KEYS:
            raise PydanticCustomError("keys", f"more than {MAX_KEYS} keys")
        return content


def _finite(values: JsonValue) -> JsonValue:
    """Refuse the first value that is not a number; pydantic would list all such values."""
    for value in values.values() if isinstance(values, dict) else ():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            finite = number and math.isfinite(cast("float", value))
        except OverflowError:
            finite = False
        if not finite:
            raise PydanticCustomError("finite_number", "expected finite numbers")
    return values


class Parameters(Strict):
    """The parameters of a job."""

    num_reads: int = Field(default=READS, ge=1, le=100_000, strict=True)
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=SEEDS,
        strict=True,
        description="By default, the device draws a seed.",
    )
    num_sweeps: int = Field(
        default=SWEEPS,
        ge=1,
        le=1_000_000,
        strict=True,
        description="Sweeps of each read; only for problems.",
    )


class CircuitProgram(Strict):
    """A circuit with parameters; it runs with all shots for each set of values."""

    program: str = Field(description="OpenQASM 3, with `input float` parameters.")
    values: Annotated[
        list[
            Annotated[
                dict[str, Annotated[float, Field(allow_inf_nan=False)]],
                BeforeValidator(_finite),
            ]
        ],
        Field(fail_fast=True),
    ] = Field(min_length=1, description="Sets of values of the parameters, by name.")


class JobBody(Strict):
    """A job: exactly one of problem, sequence, circuit and photonic."""

    problem: dict[str, JsonValue] | list[dict[str, JsonValue]] | None = Field(
        default=None,
        description="A dimod BQM, `to_serializable()`, or a list of 1 to 1000 BQMs, "
        "each of which is sampled with all reads; a list has at most "
        "4,194,304 characters. For an annealer of D-Wave, "
        "`info.solver_parameters` of a BQM contains parameters of "
        "D-Wave's solver.",
    )
    sequence: str | None = Field(
        default=None, description="Pulser abstract representation."
    )
    circuit: (
        str | Annotated[list[str], Field(fail_fast=True)] | CircuitProgram | None
    ) = Field(
        default=None,
        description="OpenQASM 3 or 2, a list of such texts, or a program with values "
        "of its parameters. Each circuit is run with all shots.",
    )
    photonic: PhotonicExperiment | None = Field(
        default=None, description="Photons in a circuit of linear optics."
    )
    parameters: Parameters = Field(default_factory=Parameters)
    idempotency_key: Name = Field(
        description="If the same user submits again with the same key, the answer is "
        "the existing job."
    )
    purpose: str | None = Field(
        default=None,
        max_length=1000,
        description="The purpose of the job, as in `job` of a lease; by default the "
        "purpose of the lease.",
    )
    calibrated_within: Seconds | None = Field(
        default=None,
        description="Reject the job if the device has a drift alarm, or if the "
        "device's calibration is older than this number of seconds.",
    )

    repeatable: bool | None = Field(
        default=None,
        strict=True,
        description="Whether the job may run twice, if it is unknown whether it has "
        "already run, for example after a crash, on a device that cannot "
        "report this. If false, the job then fails. By default, the "
        "service's configuration decides (`repeatable_users`).",
    )

    @field_validator("problem", mode="before")
    @classmethod
    def _check_problem(cls, problem: JsonValue) -> JsonValue:
        """Report one error, instead of an error for each form that a problem may have."""
        bqms = problem if isinstance(problem, list) else [problem]
        if problem is not None and not all(isinstance(one, dict) for one in bqms):
            raise PydanticCustomError("bqm", "expected a BQM, or a list of BQMs")
        return problem

    @field_validator("circuit", mode="before")
    @classmethod
    def _check_circuit(cls, content: JsonValue) -> JsonValue | CircuitProgram:
        """Report one error, instead of an error for each form that circuits may have."""
        if content is None:
            return None
        try:
            texts(content)
            if isinstance(content, dict):
                return CircuitProgram.model_validate(content)
        except FieldError as error:
            raise PydanticCustomError("circuit", error.detail) from error
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"[{n}]" for n in first["loc"] if isinstance(n, int))
            message = f"values{where}: {first['msg']}"
            raise PydanticCustomError("circuit", message) from error
        return content

    def submission(self) -> Submission:
        """Convert the body into a submission for the queue.

        :raises Refused: 422 unless the body has exactly one payload and valid parameters
        """
        kinds: tuple[Kind, ...] = get_args(Kind)
        payload_kinds = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(payload_kinds) != 1:
            names = ", ".join(payload_kinds) or "none"
            raise Refused(422, f"give exactly one of {', '.join(kinds)}, not {names}")
        (kind,) = payload_kinds
        content = getattr(self, kind)
        if isinstance(content, CircuitProgram | PhotonicExperiment):
            content = content.model_dump()
        parameters = self.parameters.model_dump()
        if kind != "problem":
            del parameters["num_sweeps"]
            if "num_sweeps" in self.parameters.model_fields_set:
                raise Refused(422, "only problems take it", "parameters.num_sweeps")
        return Submission(
            kind,
            content,
            parameters,
            self.idempotency_key,
            purpose=self.purpose,
            calibrated_within=self.calibrated_within,
            repeatable=self.repeatable,
        )


class CalibrationAnswer(Strict):
    """A calibration of the device."""

    id: str
    time: str | None = Field(
        default=None, description="Time of the calibration, if known."
    )
    values: dict[str, float] = Field(
        default_factory=dict,
        description="The latest measured values of the device, by name: errors as "
        "ratios, losses in dB.",
    )

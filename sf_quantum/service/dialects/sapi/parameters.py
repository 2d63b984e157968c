"""The solver parameters of SAPI: their allowed values, and their effect on a job.

Names, ranges and conditions agree with D-Wave's documentation and with
``DWaveSampler.validate_anneal_schedule`` in ``dwave-system`` 1.36. Refusals have the messages
of this function.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sf_quantum.files import JSON
from sf_quantum.protocol import solver_parameters
from sf_quantum.protocol.descriptions import Topology
from sf_quantum.samplers.defaults import SWEEPS
from sf_quantum.samplers.problem import NOT_A_DOUBLE, FieldError
from sf_quantum.service.device.emulator.annealing_schedules import Annealing, strength
from sf_quantum.service.device.emulator.device_errors import FIELD_RANGE
from sf_quantum.service.device.emulator.technologies import ANNEALING_SECONDS
from sf_quantum.service.domain.errors import Refused

if TYPE_CHECKING:
    from dimod import BinaryQuadraticModel

MICROSECONDS = 1e6
READS = (1, 10_000)
# times in microseconds
DEFAULT_ANNEALING = ANNEALING_SECONDS * MICROSECONDS
ANNEALING = (0.5, 2000.0)
FAST_ANNEALING = (0.005, 2000.0)
THERMALIZATION = (0.0, 10_000.0)
# the default, which the device's set-up time includes
PROGRAMMING_THERMALIZATION = 1000.0
# maximum total duration of all reads of a problem
RUN_DURATION = 1e6
# pause between reads to reduce their correlation: for the shortest, and the longest annealing
DECORRELATION = (500.0, 10_000.0)
SCHEDULE_POINTS = 12
GAIN_POINTS = 20
GAIN = (-3.0, 3.0)
OFFSET = (-0.5, 0.5)
# offset steps of Advantage_system4.1, as in dwave.system.testing
OFFSET_STEP = -0.0001500217998314891
OFFSET_STEP_PHI0 = 1.4303846404537006e-05
# value of an unused qubit in an initial state
UNUSED = 3
# parameters that only a device with custom annealing accepts, with their descriptions
CUSTOM = {
    "anneal_offsets": "By how much to advance the annealing of each qubit.",
    "anneal_schedule": "Points [t, s] of the annealing: microseconds, fraction.",
    "auto_scale": "Whether to scale the biases to the ranges of h and J.",
    "fast_anneal": "Whether to use the fast-anneal protocol.",
    "flux_biases": "A flux bias for each qubit, in units of the flux quantum.",
    "flux_drift_compensation": "Whether to correct the drift of the qubits' fluxes.",
    "h_gain_schedule": "Points [t, g] of the gain of the linear biases.",
    "initial_state": "The state of each qubit at the start of a reverse annealing.",
    "programming_thermalization": "Microseconds to wait after programming.",
    "readout_thermalization": "Microseconds to wait after each read-out.",
    "reduce_intersample_correlation": "Whether to pause between reads.",
    "reinitialize_state": "Whether each read starts from the initial state.",
}
PARAMETERS = {
    "annealing_time": "Duration of the annealing, in microseconds.",
    "answer_mode": "histogram (the default) merges equal answers; raw does not.",
    "max_answers": "How many answers to return at most.",
    "num_reads": "How many times to anneal.",
}
# Parameters of the answer's format. The service applies them itself, to the vendor's answer,
# which is always a histogram.
OF_ANSWERS = ("answer_mode", "max_answers")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _check_precision(value: JSON) -> JSON:
    # pydantic converts an int beyond the range of floats to infinity, which _finite() refuses
    if not isinstance(value, int) or abs(value) > sys.float_info.max:
        return value
    if (rounded := float(value)) != value:
        raise ValueError(f"{value} {NOT_A_DOUBLE} {rounded:.0f}")
    return value


Number = Annotated[float, BeforeValidator(_check_precision), AfterValidator(_finite)]
Wait = Annotated[float, Field(ge=THERMALIZATION[0], le=THERMALIZATION[1])]
Flag = Annotated[bool, Field(strict=True)]
# only the first invalid value is reported: pydantic would list all values in 200 bytes each
Numbers = Annotated[list[Number], Field(fail_fast=True)]
Points = Annotated[list[Numbers], Field(fail_fast=True)]


class ProblemParameters(BaseModel):
    """The parameters as a client sends them; ``None`` stands for the default."""

    # further parameters are those of a vendor's solver; others are refused later, by name
    model_config = ConfigDict(extra="allow")

    num_reads: int = Field(default=1, ge=READS[0], le=READS[1], strict=True)
    annealing_time: Number | None = None
    answer_mode: Literal["histogram", "raw"] = "histogram"
    max_answers: int | None = Field(default=None, ge=1, strict=True)
    anneal_offsets: Numbers | None = None
    anneal_schedule: Points | None = None
    auto_scale: Flag | None = None
    fast_anneal: Flag = False
    flux_biases: Numbers | None = None
    flux_drift_compensation: Flag = True
    h_gain_schedule: Points | None = None
    initial_state: Annotated[list[int], Field(fail_fast=True)] | None = None
    programming_thermalization: Wait = PROGRAMMING_THERMALIZATION
    readout_thermalization: Wait = 0.0
    reduce_intersample_correlation: Flag = False
    reinitialize_state: Flag = True

    @property
    def duration(self) -> float:
        """The annealing time of a read, in microseconds."""
        if self.anneal_schedule:
            return self.anneal_schedule[-1][0]
        return DEFAULT_ANNEALING if self.annealing_time is None else self.annealing_time

    @property
    def pause(self) -> float:
        """The time after each read-out, in microseconds."""
        if not self.reduce_intersample_correlation:
            return self.readout_thermalization
        shortest, longest = DECORRELATION
        pause = shortest + (longest - shortest) * self.duration / ANNEALING[1]
        return max(self.readout_thermalization, pause)

    @property
    def scaled(self) -> bool:
        """Whether the biases are scaled; the default is true without an h_gain_schedule."""
        if self.auto_scale is None:
            return self.h_gain_schedule is None
        return self.auto_scale

    @property
    def of_solver(self) -> dict[str, JSON]:
        """The parameters for a vendor's solver, without the number of reads."""
        names = {*OF_ANSWERS, "num_reads"}
        return self.model_dump(exclude=names, exclude_unset=True, exclude_none=True)

    @property
    def annealing(self) -> Annealing | None:
        """The problem's custom annealing; ``None`` for the usual annealing."""
        requested = Annealing(
            schedule=self.anneal_schedule,
            initial_state=self.initial_state,
            reinitialize_state=self.reinitialize_state,
            gains=self.h_gain_schedule,
            flux_biases=self.flux_biases,
            offsets=self.anneal_offsets,
            auto_scale=self.scaled,
            flux_drift_compensation=self.flux_drift_compensation,
        )
        return None if requested == Annealing() else requested

    def job_parameters(self, *, custom: bool) -> dict[str, int | None]:
        """Convert the parameters into those of a job in the queue.

        The number of sweeps is proportional to the annealing time.

        :param custom: whether the device supports custom annealing; if so, the job also has
            the times that differ from those of a usual job
        """
        sweeps = max(1, round(SWEEPS * self.duration / DEFAULT_ANNEALING))
        parameters: dict[str, int | None] = {
            "num_reads": self.num_reads,
            "num_sweeps": sweeps,
        }
        if not custom:
            return parameters
        further = {
            "annealing": int(self.annealing is not None),
            "setup_ns": self.programming_thermalization - PROGRAMMING_THERMALIZATION,
            "shot_ns": self.duration - sweeps * DEFAULT_ANNEALING / SWEEPS + self.pause,
        }
        further = {
            name: value if name == "annealing" else round(1000 * value)
            for name, value in further.items()
        }
        return parameters | {
            name: int(value) for name, value in further.items() if value
        }


def check(
    params: ProblemParameters,
    graph: Topology,
    bqm: Mapping[str, JSON],
    *,
    custom: bool,
) -> None:
    """Refuse parameters that D-Wave refuses, with 400.

    :param bqm: serialized problem
    :param custom: whether the device supports custom annealing, and so all parameters
    """
    allowed = {*PARAMETERS, *(CUSTOM if custom else ())}
    for name in sorted(params.model_fields_set - allowed):
        _refuse(name, "not a parameter of this solver")
    _check_time(params)
    _check_schedule(params)
    _check_arrays(params, graph)
    _check_start(params, bqm)
    _check_gains(params)
    _check_biases(params, bqm)
    total_duration = params.num_reads * (params.duration + params.pause)
    if total_duration > RUN_DURATION:
        _refuse(
            None,
            "Maximum problem-run duration exceeded due to specified timing parameters: "
            f"{total_duration:g} us of annealing and pauses, at most {RUN_DURATION:g}",
        )


def check_listed(
    params: ProblemParameters, graph: Topology, properties: Mapping[str, JSON]
) -> None:
    """Refuse parameters that a vendor's solver does not accept, with 400.

    :param properties: properties of the vendor's solver
    """
    solver = {**properties, "num_qubits": graph.labels}
    try:
        solver_parameters.check(params.of_solver, solver)
        all_parameters = {**params.of_solver, "num_reads": params.num_reads}
        solver_parameters.check_ranges(all_parameters, solver)
    except FieldError as error:
        _refuse(error.field, error.detail)


def vendor_job_parameters(
    params: ProblemParameters, properties: Mapping[str, JSON]
) -> dict[str, int | None]:
    """Convert parameters into those of a job, with the times by which they prolong the job."""
    setup, shot = solver_parameters.more_ns(params.of_solver, properties)
    more = {"setup_ns": setup, "shot_ns": shot}
    job_parameters: dict[str, int | None] = {"num_reads": params.num_reads}
    return job_parameters | {name: value for name, value in more.items() if value}


def _check_time(params: ProblemParameters) -> None:
    annealing_time = params.annealing_time
    if annealing_time is not None and params.anneal_schedule is not None:
        _refuse("anneal_schedule", "set only one of anneal_schedule or annealing_time")
    shortest, longest = FAST_ANNEALING if params.fast_anneal else ANNEALING
    if annealing_time is not None and not shortest <= annealing_time <= longest:
        _refuse(
            "annealing_time",
            f"{annealing_time:g} is not in the range [{shortest:g}, {longest:g}]",
        )


def _check_schedule(params: ProblemParameters) -> None:
    points, name = params.anneal_schedule, "anneal_schedule"
    if points is None:
        return
    _check_points(points, name, SCHEDULE_POINTS)
    if params.fast_anneal:
        _refuse(name, "fast anneals have an annealing_time only")
    first, last = points[0], points[-1]
    if last[0] > ANNEALING[1]:
        longest = ANNEALING[1]
        _refuse(
            name, f"schedule cannot be longer than the maximum anneal time of {longest}"
        )
    if not all(0 <= s <= 1 for _, s in points):
        _refuse(name, "anneal fraction s must be between 0 and 1")
    if last[1] != 1:
        _refuse(name, "In the final point, anneal fraction s must equal 1.")
    if first[1] not in (0, 1):
        _refuse(
            name,
            "In the first point, anneal fraction s must equal 0 for forward annealing "
            "or 1 for reverse annealing",
        )
    if first[1] == 0 and not all(
        previous[1] <= following[1] for previous, following in pairwise(points)
    ):
        _refuse(
            name, "For forward anneals, anneal fraction s must monotonically increase"
        )
    steepest = 1 / ANNEALING[0]
    for (t, s), (next_t, following) in pairwise(points):
        if round(abs((s - following) / (t - next_t)), 10) > steepest:
            _refuse(name, f"the maximum slope cannot exceed {steepest}")


def _check_points(
    points: Sequence[Sequence[float]], name: str, max_points: int
) -> None:
    if not 2 <= len(points) <= max_points:
        _refuse(
            name,
            f"{name} must contain between 2 and {max_points} points (contains {len(points)})",
        )
    if not all(len(point) == 2 for point in points):
        _refuse(name, f"{name} should be a list of 2-tuples")
    if points[0][0] != 0:
        _refuse(name, "In the first point, time t must equal 0")
    if not all(previous[0] < following[0] for previous, following in pairwise(points)):
        _refuse(name, "Time t must increase for all points in the schedule")


def _check_arrays(params: ProblemParameters, graph: Topology) -> None:
    for name in solver_parameters.ARRAYS:
        values: Sequence[float] | None = getattr(params, name)
        if values is not None and len(values) != graph.labels:
            detail = f"has {len(values)} values for {graph.labels} qubits"
            _refuse(name, detail)
    lowest, highest = OFFSET
    for qubit, offset in enumerate(params.anneal_offsets or ()):
        if not lowest <= offset <= highest:
            _refuse(
                "anneal_offsets",
                f"{offset:g} of qubit {qubit} is not in the range [{lowest:g}, {highest:g}]",
            )


def _check_start(params: ProblemParameters, bqm: Mapping[str, JSON]) -> None:
    points, state = params.anneal_schedule, params.initial_state
    reverse = points is not None and points[0][1] == 1
    if reverse and state is None:
        _refuse(
            "initial_state",
            "reverse annealing requested (anneal_schedule starts with s==1) but "
            "initial_state not provided",
        )
    if state is None:
        if not params.reinitialize_state:
            _refuse("reinitialize_state", "needs an initial_state")
        return
    if not reverse:
        _refuse("initial_state", "needs an anneal_schedule that starts with s==1")
    low = -1 if bqm["variable_type"] == "SPIN" else 0
    if not {*state} <= {low, 1, UNUSED}:
        _refuse("initial_state", f"expected {low}, 1, or {UNUSED} for unused qubits")
    for qubit in _labels(bqm):
        if state[qubit] == UNUSED:
            _refuse("initial_state", f"qubit {qubit} is used and has no state")


def _check_gains(params: ProblemParameters) -> None:
    points, name = params.h_gain_schedule, "h_gain_schedule"
    if points is None:
        return
    _check_points(points, name, GAIN_POINTS)
    if params.fast_anneal:
        _refuse(name, "fast anneals have no h_gain_schedule")
    if params.auto_scale:
        _refuse(name, "auto_scale must be false with an h_gain_schedule")
    if points[-1][0] != params.duration:
        _refuse(name, "the last time t must be that of the end of the anneal")
    lowest, highest = GAIN
    if not all(lowest <= gain <= highest for _, gain in points):
        _refuse(name, f"a gain is not in the range [{lowest:g}, {highest:g}]")


def _check_biases(params: ProblemParameters, bqm: Mapping[str, JSON]) -> None:
    if params.scaled and not params.fast_anneal:
        return
    model = _ising(bqm)
    if params.fast_anneal and any(model.linear.values()):
        _refuse("fast_anneal", "fast anneals have no linear biases: use flux_biases")
    if not params.scaled and strength(model) > 1:
        _refuse(
            "auto_scale",
            f"without it, h must be in the range [{-FIELD_RANGE:g}, {FIELD_RANGE:g}] "
            "J in the range [-2, 1], and the sum of a qubit's J in the range [-18, 15]",
        )


def _ising(bqm: Mapping[str, JSON]) -> BinaryQuadraticModel:
    from dimod import BinaryQuadraticModel, Vartype

    model = BinaryQuadraticModel.from_serializable(bqm)
    return model.change_vartype(Vartype.SPIN, inplace=False)


def _labels(bqm: Mapping[str, JSON]) -> Iterable[int]:
    labels = bqm["variable_labels"]
    return (
        [one for one in labels if isinstance(one, int)]
        if isinstance(labels, list)
        else []
    )


def _refuse(name: str | None, detail: str) -> None:
    raise Refused(400, detail, f"params.{name}" if name else "params")

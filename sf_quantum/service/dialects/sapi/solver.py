"""The device as a SAPI solver, and the bodies of problems.

Names and ranges are those that ``dwave-cloud-client`` 0.14.8 sends and reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

from pydantic import BaseModel, Field

from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.descriptions import Timing, Topology
from sf_quantum.service.device.emulator.annealing_schedules import COUPLING, NEGATIVE
from sf_quantum.service.device.emulator.device_errors import FIELD_RANGE
from sf_quantum.service.device.emulator.technologies import ANNEALING_SECONDS
from sf_quantum.service.device.interface import Device
from sf_quantum.service.dialects.common import qpu_status
from sf_quantum.service.dialects.sapi import parameters
from sf_quantum.service.dialects.sapi.parameters import (
    MICROSECONDS,
    Number,
    ProblemParameters,
)
from sf_quantum.service.dialects.sapi.refusals import graph
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import State
from sf_quantum.service.queue.job_queue import JobQueue

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
# parts of a description that may change at any time
CHANGING = frozenset(("status", "avg_load"))
LABEL = 1024
# maximum number of problems that D-Wave's client sends in one request, and maximum bytes of
# each problem in addition to its biases
BATCH, OTHER_BYTES = 20, 256 * 1024


class SolverVersion(BaseModel):
    """The version of a solver: the id of the graph for which the client made the problem."""

    graph_id: str | None = None


class SolverName(BaseModel):
    name: str
    version: SolverVersion | None = None


class ProblemData(BaseModel):
    """A problem over all qubits and couplers of a solver; see ``qp_format``."""

    format: Literal["qp"]
    lin: str
    quad: str
    offset: Number = 0.0


class Problem(BaseModel):
    solver: SolverName | str
    type: ProblemType
    data: ProblemData
    params: ProblemParameters = Field(default_factory=ProblemParameters)
    label: str | None = Field(default=None, max_length=LABEL)

    @property
    def solver_name(self) -> SolverName:
        """The name and version of the solver; older clients send only the name."""
        solver = self.solver
        return SolverName(name=solver) if isinstance(solver, str) else solver


class ProblemOptions(BaseModel):
    """The metadata of a problem's job."""

    type: ProblemType
    params: ProblemParameters
    label: str | None = None
    offset: float
    #: id of the graph for which the problem was submitted, since the QPU's graph may change;
    #: ``None`` for problems from version 0.1.0
    graph_id: str | None = None


def identity(device: Device, graph_id: str | None = None) -> dict[str, JSON]:
    """Return the names of the solver and of a graph, by default the current graph."""
    version: dict[str, JSON] = {"graph_id": graph_id or graph(device).id}
    return {"name": device.name, "version": version}


def batch_bytes(device: Device) -> int:
    """Return the maximum size of requests from D-Wave's client; 0 without a solver."""
    if (graph := device.description.graph) is None:
        return 0
    # a problem has a double for each bias, in base64
    biases = 4 * math.ceil(8 * (graph.labels + len(graph.couplers)) / 3)
    return BATCH * (biases + OTHER_BYTES)


def configuration(queue: JobQueue) -> dict[str, JSON]:
    """Describe the solver and its load."""
    device = queue.device
    return {
        "identity": identity(device),
        "status": "ONLINE" if qpu_status(queue) == "online" else "OFFLINE",
        "description": f"An annealer with a {graph(device).kind} graph.",
        "properties": _properties(device),
        # 0 for an empty queue, near 1 for a long queue
        "avg_load": queue.length / (queue.length + 1),
    }


def timing(device: Device, params: ProblemParameters, access: float) -> dict[str, JSON]:
    """Return the times of an answer in microseconds.

    :param access: total QPU time of the problem in seconds
    """
    per_sample = {
        "qpu_anneal_time_per_sample": params.duration,
        "qpu_readout_time_per_sample": _timing(device).readout_seconds * MICROSECONDS,
        "qpu_delay_time_per_sample": _delay(device) + params.pause,
    }
    programming = _programming(device) + params.programming_thermalization
    return {
        **per_sample,
        "qpu_sampling_time": params.num_reads * sum(per_sample.values()),
        "qpu_programming_time": programming,
        "qpu_access_time": access * MICROSECONDS,
        # 0, since the programming time includes the overhead
        "qpu_access_overhead_time": 0.0,
        "post_processing_overhead_time": 0.0,
        "total_post_processing_time": 0.0,
    }


def filtered(content: dict[str, JSON], filter_: str) -> dict[str, JSON]:
    """Select parts of a description.

    :param filter_: ``all`` or ``none``, then names to add (after ``+``) or to remove (after
        ``-``), as in ``all,-status,-avg_load``; a dot separates the names of nested parts
    :raises Refused: 400 if the filter is invalid
    """
    first, *rest = [word.strip() for word in filter_.split(",")]
    if first not in ("all", "none"):
        rest.insert(0, first)
    selected = {} if first == "none" else dict(content)
    for word in rest:
        sign, path = word[:1], word[1:].split(".")
        if sign not in ("+", "-") or not all(path):
            raise Refused(400, f"filter: {word!r} is not a name after + or -")
        selected = _add_or_remove(selected, content, path, keep=sign == "+")
    return selected


def _add_or_remove(
    kept: dict[str, JSON], content: dict[str, JSON], path: list[str], *, keep: bool
) -> dict[str, JSON]:
    """Add a part of the content to the kept parts, or remove the part.

    A part that does not exist is ignored.

    :param keep: whether to add the part
    """
    name, *rest = path
    part, inner = content.get(name), kept.get(name)
    if rest and isinstance(part, dict) and (keep or name in kept):
        kept_inner = inner if isinstance(inner, dict) else {}
        return {**kept, name: _add_or_remove(kept_inner, part, rest, keep=keep)}
    if keep and name in content:
        return {**kept, name: part}
    return {key: value for key, value in kept.items() if keep or key != name}


def _properties(device: Device) -> dict[str, JSON]:
    topology, vendor_properties = graph(device), device.description.solver
    service_properties: dict[str, JSON] = {
        "chip_id": device.name,
        "problem_timing_data": _timing_model(device),
    }
    if vendor_properties is None:
        emulated = _emulated_properties(topology, custom=device.custom_annealing)
        return {**emulated, **service_properties, **_graph_properties(topology)}
    answer_parameters = {
        name: parameters.PARAMETERS[name] for name in parameters.OF_ANSWERS
    }
    solver_parameters = {
        **mapping(vendor_properties.get("parameters")),
        **answer_parameters,
    }
    return {
        **service_properties,
        **vendor_properties,
        "parameters": solver_parameters,
        **_graph_properties(topology),
    }


@lru_cache(4)
def _graph_properties(graph: Topology) -> dict[str, JSON]:
    return {
        "topology": {"type": graph.kind, "shape": [*graph.shape]},
        "num_qubits": graph.labels,
        "qubits": [*graph.qubits],
        "couplers": [[*pair] for pair in graph.couplers],
    }


@lru_cache(4)
def _emulated_properties(graph: Topology, *, custom: bool) -> dict[str, JSON]:
    """Return the properties of an emulated solver.

    :param custom: whether the device supports custom annealing, and so all parameters
    """
    names = parameters
    return {
        "category": "qpu",
        "supported_problem_types": ["ising", "qubo"],
        "parameters": {**names.PARAMETERS, **(names.CUSTOM if custom else {})},
        "h_range": [-FIELD_RANGE, FIELD_RANGE],
        "j_range": [-1.0, 1.0],
        "extended_j_range": [-NEGATIVE, 1.0],
        "num_reads_range": [*names.READS],
        "annealing_time_range": [*names.ANNEALING],
        "default_annealing_time": names.DEFAULT_ANNEALING,
        "default_programming_thermalization": names.PROGRAMMING_THERMALIZATION,
        "default_readout_thermalization": 0.0,
        "problem_run_duration_range": [0.0, names.RUN_DURATION],
        "quota_conversion_rate": 1,
        "tags": ["emulated"],
        **(_custom_properties(graph) if custom else {}),
    }


def _custom_properties(graph: Topology) -> dict[str, JSON]:
    limits, working = parameters, frozenset(graph.qubits)
    return {
        "anneal_offset_ranges": [
            [*limits.OFFSET] if qubit in working else [0.0, 0.0]
            for qubit in range(graph.labels)
        ],
        "anneal_offset_step": limits.OFFSET_STEP,
        "anneal_offset_step_phi0": limits.OFFSET_STEP_PHI0,
        "fast_anneal_time_range": [*limits.FAST_ANNEALING],
        "h_gain_schedule_range": [*limits.GAIN],
        "per_qubit_coupling_range": [-COUPLING[0], COUPLING[1]],
        "max_anneal_schedule_points": limits.SCHEDULE_POINTS,
        "max_h_gain_schedule_points": limits.GAIN_POINTS,
        "programming_thermalization_range": [*limits.THERMALIZATION],
        "readout_thermalization_range": [*limits.THERMALIZATION],
    }


def _timing_model(device: Device) -> dict[str, JSON]:
    """Return the values that ``Solver.estimate_qpu_access_time`` uses, in microseconds."""
    timing = _timing(device)
    readout = timing.readout_seconds * MICROSECONDS
    return {
        "version": "1.0.0",
        "typical_programming_time": _programming(device),
        "reverse_annealing_with_reinit_prog_time_delta": 0.0,
        "reverse_annealing_without_reinit_prog_time_delta": 0.0,
        "default_programming_thermalization": parameters.PROGRAMMING_THERMALIZATION,
        "default_annealing_time": parameters.DEFAULT_ANNEALING,
        "readout_time_model": "pwl_linear",
        # equal read-out times for 0 and for all qubits
        "readout_time_model_parameters": [
            0.0,
            float(graph(device).labels),
            readout,
            readout,
        ],
        "qpu_delay_time_per_sample": _delay(device),
        "reverse_annealing_with_reinit_delay_time_delta": 0.0,
        "reverse_annealing_without_reinit_delay_time_delta": 0.0,
        "default_readout_thermalization": 0.0,
        "decorrelation_max_nominal_anneal_time": parameters.ANNEALING[1],
        "decorrelation_time_range": [*parameters.DECORRELATION],
    }


def _programming(device: Device) -> float:
    # In microseconds, without the thermalization, which SAPI reports separately. May be
    # negative for a device with a short set-up.
    seconds = _timing(device).setup_seconds * MICROSECONDS
    return seconds - parameters.PROGRAMMING_THERMALIZATION


def _delay(device: Device) -> float:
    # delay after the annealing of each read, in microseconds
    return (_timing(device).shot_seconds - ANNEALING_SECONDS) * MICROSECONDS


def _timing(device: Device) -> Timing:
    return device.description.timing or Timing()

"""The emulated annealer as SAPI describes a solver."""

from __future__ import annotations

from functools import lru_cache

from sf_quantum.files import JSON
from sf_quantum.service.api.common import qpu_status
from sf_quantum.service.api.sapi.models import (
    ANNEALING,
    MICROSECONDS,
    READS,
    RUN_DURATION,
    ProblemParameters,
    SolverName,
)
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.device.noise import FIELD_RANGE
from sf_quantum.service.device.technologies import ANNEALING_SECONDS
from sf_quantum.service.device.topology import Graph
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.queue.job_queue import JobQueue

PARAMETERS = {
    "annealing_time": "Duration of the annealing, in microseconds.",
    "answer_mode": "histogram (the default) merges equal answers; raw does not.",
    "max_answers": "How many answers to return at most.",
    "num_reads": "How many times to anneal.",
}


def graph(device: Device) -> Graph:
    """Return the graph of an annealer.

    :raises Refused: 404 if the device has none
    """
    if device.graph is None:
        raise Refused(404, f"{device.name} is not an annealer and has no solver")
    return device.graph


def identity(device: Device) -> dict[str, JSON]:
    """Name the solver and the graph that its problems refer to."""
    return {"name": device.name, "version": {"graph_id": graph(device).id}}


def check(device: Device, name: SolverName) -> None:
    """Refuse a problem for another solver, or for an earlier graph.

    :raises Refused: 404
    """
    known = graph(device).id
    if name.name != device.name:
        raise Refused(404, f"no solver {name.name!r}; the solver is {device.name!r}")
    if name.version is not None and name.version.graph_id not in (None, known):
        detail = (
            f"solver {device.name!r} has graph {known}, not "
            f"{name.version.graph_id!r}: fetch the solver again"
        )
        raise Refused(404, detail)


def configuration(queue: JobQueue) -> dict[str, JSON]:
    """Describe the solver and how busy it is."""
    device = queue.device
    return {
        "identity": identity(device),
        "status": "ONLINE" if qpu_status(queue) == "online" else "OFFLINE",
        "description": f"An emulated annealer with a {device.topology} graph.",
        "properties": {
            **_properties(graph(device)),
            "chip_id": device.name,
            "problem_timing_data": _timing_model(device),
        },
        # 0 for an empty queue, near 1 for a long one
        "avg_load": queue.length / (queue.length + 1),
    }


def timing(device: Device, params: ProblemParameters, access: float) -> dict[str, JSON]:
    """Return the times of an answer, in microseconds.

    :param access: the use of the QPU in all attempts
    """
    per_sample = {
        "qpu_anneal_time_per_sample": params.annealing_time,
        "qpu_readout_time_per_sample": device.timing.readout_seconds * MICROSECONDS,
        "qpu_delay_time_per_sample": _delay(device),
    }
    return {
        **per_sample,
        "qpu_sampling_time": params.num_reads * sum(per_sample.values()),
        "qpu_programming_time": device.timing.setup_seconds * MICROSECONDS,
        "qpu_access_time": access,
        # included in the programming time here
        "qpu_access_overhead_time": 0.0,
        "post_processing_overhead_time": 0.0,
        "total_post_processing_time": 0.0,
    }


def filtered(content: dict[str, JSON], filter_: str) -> dict[str, JSON]:
    """Select parts of a description.

    :param filter_: ``all`` or ``none``, then names after ``+`` or ``-``, as in
        ``all,-status,-avg_load``; a dot separates the names of nested parts
    :raises Refused: 400 if it is invalid
    """
    first, *rest = [word.strip() for word in filter_.split(",")]
    if first not in ("all", "none"):
        rest.insert(0, first)
    kept = {} if first == "none" else dict(content)
    for word in rest:
        sign, path = word[:1], word[1:].split(".")
        if sign not in ("+", "-") or not all(path):
            raise Refused(400, f"filter: {word!r} is not a name after + or -")
        kept = _without(kept, path) if sign == "-" else _with(kept, content, path)
    return kept


def _without(kept: dict[str, JSON], path: list[str]) -> dict[str, JSON]:
    name, *rest = path
    inner = kept.get(name)
    if rest and isinstance(inner, dict):
        return {**kept, name: _without(inner, rest)}
    return {key: value for key, value in kept.items() if key != name}


def _with(
    kept: dict[str, JSON], content: dict[str, JSON], path: list[str]
) -> dict[str, JSON]:
    name, *rest = path
    if name not in content:
        return kept
    whole, inner = content[name], kept.get(name)
    if rest and isinstance(whole, dict):
        known = inner if isinstance(inner, dict) else {}
        return {**kept, name: _with(known, whole, rest)}
    return {**kept, name: whole}


@lru_cache(4)
def _properties(graph: Graph) -> dict[str, JSON]:
    return {
        "category": "qpu",
        "supported_problem_types": ["ising", "qubo"],
        "parameters": {**PARAMETERS},
        "topology": {"type": graph.kind, "shape": [*graph.shape]},
        "num_qubits": graph.labels,
        "qubits": [*graph.qubits],
        "couplers": [[*pair] for pair in graph.couplers],
        "h_range": [-FIELD_RANGE, FIELD_RANGE],
        "j_range": [-1.0, 1.0],
        "extended_j_range": [-2.0, 1.0],
        "num_reads_range": [*READS],
        "annealing_time_range": [*ANNEALING],
        "default_annealing_time": ANNEALING_SECONDS * MICROSECONDS,
        "default_programming_thermalization": 0.0,
        "default_readout_thermalization": 0.0,
        "problem_run_duration_range": [0.0, RUN_DURATION],
        "quota_conversion_rate": 1,
        "tags": ["emulated"],
    }


def _timing_model(device: Device) -> dict[str, JSON]:
    """The figures that ``Solver.estimate_qpu_access_time`` uses, in microseconds."""
    timing = device.timing
    readout = timing.readout_seconds * MICROSECONDS
    return {
        "version": "1.0.0",
        "typical_programming_time": timing.setup_seconds * MICROSECONDS,
        "reverse_annealing_with_reinit_prog_time_delta": 0.0,
        "reverse_annealing_without_reinit_prog_time_delta": 0.0,
        "default_programming_thermalization": 0.0,
        "default_annealing_time": ANNEALING_SECONDS * MICROSECONDS,
        "readout_time_model": "pwl_linear",
        # the same for any number of qubits
        "readout_time_model_parameters": [0.0, float(device.qubits), readout, readout],
        "qpu_delay_time_per_sample": _delay(device),
        "reverse_annealing_with_reinit_delay_time_delta": 0.0,
        "reverse_annealing_without_reinit_delay_time_delta": 0.0,
        "default_readout_thermalization": 0.0,
        "decorrelation_max_nominal_anneal_time": ANNEALING[1],
        "decorrelation_time_range": [0.0, 0.0],
    }


def _delay(device: Device) -> float:
    # the delay of a read after its annealing, in microseconds
    return (device.timing.shot_seconds - ANNEALING_SECONDS) * MICROSECONDS

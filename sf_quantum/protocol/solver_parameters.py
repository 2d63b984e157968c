"""The parameters of an annealer's solver: stored with a problem, and checked before sending.

Parameters and properties have SAPI's names: the property ``parameters`` lists the solver's
parameters, and ``<name>_range`` is the least and the largest value of a parameter. Values
without a range are left to the vendor to check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.tasks import JobParameters, shots_of
from sf_quantum.protocol.values import number
from sf_quantum.samplers.defaults import SWEEPS
from sf_quantum.samplers.problem import FieldError

# Key of the parameters in the ``info`` of a serialized BQM.
KEY = "solver_parameters"
# Parameters with a value for each qubit.
ARRAYS = ("anneal_offsets", "flux_biases", "initial_state")
# Parameters that determine the annealing time of a read.
ANNEALING = frozenset(("annealing_time", "anneal_schedule"))


def given(bqm: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the parameters that are stored with a serialized BQM."""
    return {**mapping(mapping(bqm.get("info")).get(KEY))}


def sent(
    bqm: Mapping[str, JSON], job: JobParameters, properties: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Return the parameters with which a job's BQM is sent to the solver.

    A number of sweeps is converted to an annealing time: the samplers' default number is the
    solver's default time.
    """
    parameters = {**given(bqm), "num_reads": shots_of(job)}
    sweeps = job.get("num_sweeps") or SWEEPS
    if sweeps != SWEEPS and not parameters.keys() & ANNEALING:
        usual = time("annealing_time", {}, properties)
        parameters["annealing_time"] = usual * sweeps / SWEEPS
    return parameters


def more_ns(
    parameters: Mapping[str, JSON], properties: Mapping[str, JSON]
) -> tuple[int, int]:
    """Return by how many ns parameters lengthen the set-up and each read of a usual job."""
    (setup, shot), (usual_setup, usual_shot) = (
        (
            time("programming_thermalization", one, properties),
            duration(one, properties) + time("readout_thermalization", one, properties),
        )
        for one in (parameters, {})
    )
    return round(1000 * (setup - usual_setup)), round(1000 * (shot - usual_shot))


def check(parameters: Mapping[str, JSON], properties: Mapping[str, JSON]) -> None:
    """Refuse parameters that the solver certainly does not accept, before they are sent.

    :raises FieldError: if the solver does not accept a parameter; the error names it
    """
    accepted = mapping(properties.get("parameters"))
    for name in parameters:
        if name not in accepted:
            raise FieldError(name, "not a parameter of this solver")
        try:
            json.dumps(parameters[name], allow_nan=False)
        except ValueError as error:
            raise FieldError(name, "expected finite numbers") from error
    for name in ARRAYS:
        values, qubits = parameters.get(name), properties.get("num_qubits")
        if isinstance(values, list) and len(values) != qubits:
            raise FieldError(name, f"has {len(values)} values for {qubits} qubits")
    check_ranges(parameters, properties)


def check_ranges(
    parameters: Mapping[str, JSON], properties: Mapping[str, JSON]
) -> None:
    """Check numbers against the solver's ranges; a missing number is the solver's default.

    :raises FieldError: if a number is out of range; the error names the parameter
    """
    times = {
        name: time(name, parameters, properties)
        for name in ("programming_thermalization", "readout_thermalization")
    }
    reads = number(parameters.get("num_reads")) or 1
    anneal = duration(parameters, properties)
    values = {
        **times,
        "num_reads": reads,
        "annealing_time": anneal,
        # D-Wave's definition (Solver Properties: problem_run_duration_range)
        "problem_run_duration": reads * (anneal + times["readout_thermalization"])
        + times["programming_thermalization"],
    }
    ranges = {name: f"{name}_range" for name in values}
    if parameters.get("fast_anneal"):
        ranges["annealing_time"] = "fast_anneal_time_range"
    for name, value in values.items():
        match properties.get(ranges[name]):
            case [int() | float() as least, int() | float() as most] if (
                not least <= value <= most
            ):
                valid = f"the solver takes {least:g} to {most:g}"
                raise FieldError(name, f"{value:g} is out of range, {valid}")


def duration(parameters: Mapping[str, JSON], properties: Mapping[str, JSON]) -> float:
    """Return the annealing time of a read, in microseconds."""
    match parameters.get("anneal_schedule"):
        case [*_, [int() | float() as last, *_]]:
            return last
    return time("annealing_time", parameters, properties)


def time(
    name: str, parameters: Mapping[str, JSON], properties: Mapping[str, JSON]
) -> float:
    default = number(properties.get(f"default_{name}")) or 0.0
    match parameters.get(name):
        case int() | float() as value:
            return value
    return default

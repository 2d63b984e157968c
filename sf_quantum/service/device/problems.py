"""The BQMs of a job's payload: one BQM, or a list of BQMs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sf_quantum.files import JSON, mapping
from sf_quantum.protocol import solver_parameters
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import JobParameters
from sf_quantum.samplers import problem
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.domain.jobs import Size

# Limits on a list of BQMs, which the service parses in its own process.
MOST_PROBLEMS = 1000
MOST_CHARACTERS = 4 * 2**20
# In a sweep, a variable takes as long as this many interactions.
VARIABLE_UPDATES = 50


def check(content: JSON, qubits: int) -> Size:
    """Check the BQMs of a payload, and return their size.

    :param qubits: number of qubits of the device; 0 if unknown
    :raises FieldError: if a BQM is invalid; the error names the BQM and its field
    """
    if not isinstance(content, list):
        return _checked(content, "problem", qubits)
    if not 1 <= len(content) <= MOST_PROBLEMS:
        detail = f"{len(content)} BQMs; from 1 to {MOST_PROBLEMS} per job"
        raise FieldError("problem", detail)
    sizes = [
        _checked(one, f"problem[{number}]", qubits)
        for number, one in enumerate(content)
    ]
    if (long := len(json.dumps(content))) > MOST_CHARACTERS:
        detail = f"{long:,} characters; at most {MOST_CHARACTERS:,} for a list of BQMs"
        raise FieldError("problem", detail)
    return Size(
        sum(size.values for size in sizes),
        sum(size.updates for size in sizes),
        problems=len(sizes),
        # a BQM has as many variables as values
        qubits=max(size.values for size in sizes),
    )


def solver(description: Description) -> dict[str, JSON] | None:
    """Return the properties of a device's solver; ``None`` if the device reports none."""
    if description.solver is None:
        return None
    return {
        **description.solver,
        "num_qubits": description.topology.labels if description.topology else 0,
    }


def with_solver(
    size: Size, content: JSON, parameters: JobParameters, properties: JSON
) -> Size:
    """Check the parameters that a job's BQMs are sent to a solver with.

    :param size: size of the payload
    :param properties: see :func:`solver`
    :returns: the size, with the times that the parameters add
    :raises FieldError: if a parameter is invalid; the error names the BQM and the
        parameter
    """
    setup = shot = 0
    for field, bqm in each(content):
        given = solver_parameters.given(bqm)
        where = f"{field}.info.{solver_parameters.KEY}"
        if properties is None:
            if given:
                detail = "this device takes none here"
                detail = f"{detail}; an emulated annealer does over SAPI"
                raise FieldError(where, detail)
            continue
        solver_properties = mapping(properties)
        try:
            solver_parameters.check(given, solver_properties)
        except FieldError as error:
            raise FieldError(f"{where}.{error.field}", error.detail) from error
        sent = solver_parameters.sent(bqm, parameters, solver_properties)
        try:
            solver_parameters.check_ranges(sent, solver_properties)
        except FieldError as error:  # of a parameter that the BQM does not contain
            is_sweeps = error.field == "annealing_time"
            name = "num_sweeps" if is_sweeps else "num_reads"
            detail = f"{error.field}: {error.detail}"
            raise FieldError(f"parameters.{name}", detail) from error
        more = solver_parameters.more_ns(sent, solver_properties)
        setup, shot = setup + more[0], shot + more[1]
    count = size.problems or 1
    return replace(size, setup_ns=setup / count, shot_ns=shot / count)


def each(content: JSON) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """Yield the BQMs of a payload, each as a pair of its field's path and the BQM."""
    if not isinstance(content, list):
        yield "problem", mapping(content)
        return
    for number, one in enumerate(content):
        yield f"problem[{number}]", mapping(one)


def _checked(content: JSON, field: str, qubits: int) -> Size:
    size = problem_size(problem.check(content, field))
    if 0 < qubits < size.values:
        detail = f"{size.values} variables do not fit on {qubits} qubits"
        raise FieldError(f"{field}.variable_labels", detail)
    return size


def problem_size(bqm: Mapping[str, JSON]) -> Size:
    """Return the size of a serialized BQM, which must have been checked."""
    variables, pairs = problem.size(bqm), bqm["quadratic_head"]
    interactions = len(pairs) if isinstance(pairs, list) else 0
    updates = VARIABLE_UPDATES * variables + interactions
    return Size(variables, updates, qubits=variables)

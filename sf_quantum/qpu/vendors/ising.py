"""The conversion of problems to annealers' fields and couplings, and of spins to samples."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet, Vartype

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, parse_json
from sf_quantum.protocol.tasks import Task
from sf_quantum.samplers.energies import exact_energies
from sf_quantum.samplers.problem import check


def ising(task: Task) -> tuple[list[float], list[tuple[int, int, float]]]:
    """Convert a problem to a field for each spin, and couplings of pairs of spins.

    :returns: the fields, and for each coupling both spins and its strength
    :raises InputError: if the payload is not a problem
    """
    bqm = BinaryQuadraticModel.from_serializable(_checked(task)).spin
    place = {label: number for number, label in enumerate(bqm.variables)}
    return [float(bqm.linear[label]) for label in place], [
        (place[one], place[other], float(bias))
        for (one, other), bias in bqm.quadratic.items()
    ]


def samples(task: Task, spins: Sequence[Sequence[int]]) -> str:
    """Serialize spins as samples of a problem, with energies computed from the problem.

    :param spins: spins, 1 or -1, in one row per shot
    :returns: the text of a :class:`~sf_quantum.protocol.tasks.Result`
    :raises QpuError: if ``spins`` does not have all variables and shots, or other values
    """
    bqm = BinaryQuadraticModel.from_serializable(_checked(task))
    expected = task.shots, len(bqm.variables)
    try:
        rows = np.array(spins, dtype=np.int8)
    except (OverflowError, TypeError, ValueError) as error:
        raise QpuError("malformed result: spins are 1 or -1") from error
    if rows.shape != expected or not (abs(rows) == 1).all():
        words = f"expected {expected[0]} rows of {expected[1]} spins, each 1 or -1"
        raise QpuError(f"malformed result: {words}")
    if bqm.vartype is Vartype.BINARY:
        rows = (rows + 1) // 2
    labelled = rows, [*bqm.variables]
    sample_set = SampleSet.from_samples(  # type: ignore[no-untyped-call]
        labelled, bqm.vartype, energy=exact_energies(bqm, *labelled), sort_labels=False
    )
    document = sample_set.to_serializable()
    del document["info"]
    return json.dumps(document)


def _checked(task: Task) -> dict[str, JSON]:
    try:
        return check(parse_json(task.payload), task.kind)
    except ValueError as error:
        raise InputError(f"{task.kind}: not JSON: {error}") from error

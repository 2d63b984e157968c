"""Problems and answers in SAPI's ``qp`` format.

All arrays are little-endian and base64. In a problem, ``lin`` has a float64 for each of
the solver's qubits, in the solver's order, with NaN for an unused qubit. ``quad`` has a
float64 for each coupler of two used qubits, in the solver's order of couplers. An answer has
energies as float64, occurrences and used qubits as int32, and a row of bits for each sample,
padded to whole bytes (from ``dwave.cloud.coders``).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy

from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Topology
from sf_quantum.samplers.problem import MAX_BIAS, document
from sf_quantum.service.dialects.sapi.solver import VARTYPES, Problem, ProblemOptions
from sf_quantum.service.domain.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNUSED = float("nan")


def bqm(problem: Problem, graph: Topology) -> dict[str, JSON]:
    """Convert a problem into a BQM over qubits; refuse an invalid problem with 400."""
    numbers, pairs = _arrays(graph)
    linear = _decode_floats(problem.data.lin, "data.lin", len(numbers), "qubits")
    _check_biases(numpy.array([problem.data.offset]), "data.offset")
    used = ~numpy.isnan(linear)
    _check_biases(linear[used], "data.lin")
    if not used.any():
        raise Refused(400, "data.lin: the problem uses no qubit")
    qubits = numbers[used]
    active = numpy.zeros(graph.labels, dtype=bool)
    active[qubits] = True
    pairs = pairs[active[pairs].all(axis=1)]
    quadratic = _decode_floats(
        problem.data.quad, "data.quad", len(pairs), "couplers in use"
    )
    _check_biases(quadratic, "data.quad")
    pairs, quadratic = pairs[quadratic != 0], quadratic[quadratic != 0]
    positions = numpy.searchsorted(qubits, pairs)
    return document(
        qubits.tolist(),
        linear[used].tolist(),
        positions.tolist(),
        quadratic.tolist(),
        VARTYPES[problem.type],
        problem.data.offset,
    )


def problem_data(content: Mapping[str, JSON], graph: Topology) -> dict[str, JSON]:
    """Convert a BQM of :func:`bqm` back into a problem for the current graph.

    :raises Refused: 409 if the graph has lost a qubit or a coupler of the problem since
    """
    from dimod import BinaryQuadraticModel

    model = BinaryQuadraticModel.from_serializable(content)
    used, couplers = {*model.variables}, {*map(frozenset, model.quadratic)}
    lost = used - {*graph.qubits}
    if lost or couplers - {*map(frozenset, graph.couplers)}:
        lost_part = f"qubit {min(map(str, lost))}" if lost else "a coupler"
        detail = (
            f"the solver has lost {lost_part} of the problem since it was submitted"
        )
        raise Refused(409, detail)
    linear = [float(model.linear.get(qubit, _UNUSED)) for qubit in graph.qubits]
    quadratic = [
        float(model.get_quadratic(*pair, default=0.0))
        for pair in graph.couplers
        if all(qubit in model.linear for qubit in pair)
    ]
    offset = float(model.offset)
    lin, quad = (_encode(numpy.array(v, dtype="<f8")) for v in (linear, quadratic))
    return {"format": "qp", "lin": lin, "quad": quad, "offset": offset}


def answer(
    result: str,
    options: ProblemOptions,
    graph: Topology,
    content: Mapping[str, JSON] | None,
) -> dict[str, JSON]:
    """Convert a sample set into an answer, without its timing.

    The graph may have fewer qubits than when the problem was submitted: ``num_variables`` is
    then large enough for the qubits of the samples.

    :param result: serialized sample set, as JSON text
    :param content: BQM with a constant term, which SAPI's energies do not include; ``None``
        if the constant term is 0
    """
    from dimod import BinaryQuadraticModel, SampleSet

    from sf_quantum.samplers.energies import exact_energies

    # dimod leaves these methods untyped
    samples: SampleSet = SampleSet.from_serializable(json.loads(result))  # type: ignore[no-untyped-call]
    if options.params.answer_mode == "histogram":
        samples = samples.aggregate()  # type: ignore[no-untyped-call]
        record = numpy.sort(samples.record, order="energy", kind="stable")
    else:
        # the vendor may have merged equal samples
        record = numpy.repeat(samples.record, samples.record["num_occurrences"])
        record["num_occurrences"] = 1
    record = record[: options.params.max_answers]
    qubits = numpy.array(samples.variables)
    order = numpy.argsort(qubits)
    bits = numpy.packbits(record["sample"][:, order] > 0, axis=1)
    energies, offset = record["energy"], 0.0
    if content is not None:
        # not energy minus offset, since the difference of rounded numbers would be inexact
        bqm = BinaryQuadraticModel.from_serializable(content)
        energies = exact_energies(
            bqm, record["sample"], samples.variables, offset=False
        )
        offset = float(bqm.offset)
    return {
        "format": "qp",
        "active_variables": _encode(qubits[order].astype("<i4")),
        "energies": _encode(energies.astype("<f8")),
        "num_occurrences": _encode(record["num_occurrences"].astype("<i4")),
        "num_variables": max(graph.labels, int(qubits.max()) + 1),
        "offset": offset,
        "solutions": _encode(bits),
    }


@lru_cache(4)
def _arrays(graph: Topology) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Return qubits and couplers; cached, since converting them takes as long as a problem."""
    return numpy.array(graph.qubits), numpy.array(graph.couplers)


def _decode_floats(
    text: str, field: str, expected: int, what: str
) -> NDArray[numpy.float64]:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(400, f"{field}: not base64") from error
    if len(raw) != 8 * expected:
        detail = f"{field}: has {len(raw) / 8:g} numbers for {expected} {what}"
        raise Refused(400, detail)
    return numpy.frombuffer(raw, dtype="<f8").astype(numpy.float64)


def _check_biases(values: NDArray[numpy.float64], field: str) -> None:
    if not numpy.isfinite(values).all():
        raise Refused(400, f"{field}: a bias is not a finite number")
    if (numpy.abs(values) > MAX_BIAS).any():
        raise Refused(400, f"{field}: a bias is too large: at most {MAX_BIAS:g}")


def _encode(values: NDArray[numpy.generic]) -> str:
    return base64.b64encode(values.tobytes()).decode()

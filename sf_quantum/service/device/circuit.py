"""State-vector simulation of circuits in OpenQASM 3."""

from __future__ import annotations

import cmath
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.openqasm import Circuit, CircuitError, GateCall, parse

if TYPE_CHECKING:
    from numpy import complex128
    from numpy.typing import NDArray

    State = NDArray[complex128]

# 2^20 amplitudes take 16 MB, and a gate about 20 ms
MAX_QUBITS = 20
Matrix = tuple[tuple[complex, complex], tuple[complex, complex]]
_ROOT = 1 / math.sqrt(2)
_FIXED: Mapping[str, Matrix] = {
    "id": ((1, 0), (0, 1)),
    "x": ((0, 1), (1, 0)),
    "y": ((0, -1j), (1j, 0)),
    "z": ((1, 0), (0, -1)),
    "h": ((_ROOT, _ROOT), (_ROOT, -_ROOT)),
    "s": ((1, 0), (0, 1j)),
    "sdg": ((1, 0), (0, -1j)),
    "t": ((1, 0), (0, cmath.exp(0.25j * math.pi))),
    "tdg": ((1, 0), (0, cmath.exp(-0.25j * math.pi))),
    "sx": ((0.5 + 0.5j, 0.5 - 0.5j), (0.5 - 0.5j, 0.5 + 0.5j)),
}
# base gate and number of control qubits
_CONTROLLED: Mapping[str, tuple[str, int]] = {
    **{f"c{name}": (name, 1) for name in ("x", "y", "z", "h", "p", "rx", "ry", "rz")},
    "CX": ("x", 1),
    "cphase": ("p", 1),
    "ccx": ("x", 2),
}


class CircuitSimulator:
    """A :class:`~sf_quantum.service.device.runners.Runner` of circuits."""

    def check(
        self, content: JSON, parameters: Mapping[str, int | None], *, qubits: int
    ) -> None:
        if not isinstance(content, str):
            raise FieldError("circuit", "expected text")
        try:
            circuit = parse(content)
        except CircuitError as error:
            raise FieldError("circuit", str(error)) from error
        if circuit.qubits > qubits:
            detail = f"{circuit.qubits} qubits do not fit on {qubits}"
            raise FieldError("circuit", detail)
        if circuit.qubits > MAX_QUBITS:
            detail = f"{circuit.qubits} qubits; at most {MAX_QUBITS} can be simulated"
            raise FieldError("circuit", detail)

    def run(
        self,
        content: JSON,
        parameters: Mapping[str, int | None],
        interrupted: Callable[[], bool],
    ) -> dict[str, JSON]:
        """See :meth:`~sf_quantum.service.device.runners.Runner.run`.

        :returns: ``counter``, the counts of the bit strings, in Qiskit's order: the last
            bit of the last register first
        """
        import numpy

        try:
            circuit = parse(str(content))
        except CircuitError as error:
            raise InputError(str(error)) from error
        state = numpy.zeros((2,) * circuit.qubits, dtype=numpy.complex128)
        state[(0,) * circuit.qubits] = 1
        for operation in circuit.operations:
            if interrupted():
                return {}
            for matrix, target, controls in _steps(operation):
                _apply(state, matrix, target, controls)
        generator = numpy.random.default_rng(parameters.get("seed") or 0)
        probabilities = (abs(state) ** 2).reshape(-1)
        shots = parameters.get("num_reads") or 1
        counts = generator.multinomial(shots, probabilities / probabilities.sum())
        counter: Counter[str] = Counter()
        for outcome in counts.nonzero()[0].tolist():
            counter[_bit_string(circuit, outcome)] += int(counts[outcome])
        return {"counter": dict(sorted(counter.items()))}


def _bit_string(circuit: Circuit, outcome: int) -> str:
    qubits = format(outcome, f"0{circuit.qubits}b")
    source = circuit.measured
    bits = [qubits[source[i]] if i in source else "0" for i in range(circuit.bits)]
    return "".join(reversed(bits))


def _steps(operation: GateCall) -> list[tuple[Matrix, int, tuple[int, ...]]]:
    """Decompose a gate into controlled gates on one qubit: matrix, target, controls."""
    name, angles, qubits = operation.name, operation.angles, operation.qubits
    if name == "cu":
        theta, phi, lam, gamma = angles
        phased = _matrix("p", (gamma,)), qubits[0], ()
        return [phased, (_matrix("U", (theta, phi, lam)), qubits[1], qubits[:1])]
    if name in ("swap", "cswap"):
        *control, first, second = qubits
        cnot = _FIXED["x"], first, (second,)
        return [cnot, (_FIXED["x"], second, (*control, first)), cnot]
    base, controls = _CONTROLLED.get(name, (name, 0))
    return [(_matrix(base, angles), qubits[-1], qubits[:controls])]


def _matrix(name: str, angles: tuple[float, ...]) -> Matrix:
    if name in _FIXED:
        return _FIXED[name]
    half = angles[0] / 2
    cosine, sine = math.cos(half), math.sin(half)
    match name:
        case "rx":
            return (cosine, -1j * sine), (-1j * sine, cosine)
        case "ry":
            return (cosine, -sine), (sine, cosine)
        case "rz":
            return (cmath.exp(-1j * half), 0), (0, cmath.exp(1j * half))
        case "p" | "phase" | "u1":
            return (1, 0), (0, cmath.exp(1j * angles[0]))
        case "u2":
            return _matrix("U", (math.pi / 2, *angles))
    _, phi, lam = angles  # U and u3
    return (
        (cosine, -cmath.exp(1j * lam) * sine),
        (cmath.exp(1j * phi) * sine, cmath.exp(1j * (phi + lam)) * cosine),
    )


def _apply(
    state: State, matrix: Matrix, target: int, controls: tuple[int, ...]
) -> None:
    index: list[int | slice] = [slice(None)] * state.ndim
    for control in controls:
        index[control] = 1
    zero, one = list(index), list(index)
    zero[target], one[target] = 0, 1
    low, high = state[tuple(zero)].copy(), state[tuple(one)].copy()
    state[tuple(zero)] = matrix[0][0] * low + matrix[0][1] * high
    state[tuple(one)] = matrix[1][0] * low + matrix[1][1] * high

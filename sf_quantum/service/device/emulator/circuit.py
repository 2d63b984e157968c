"""State-vector simulation of circuits in OpenQASM 3."""

from __future__ import annotations

import cmath
import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from sf_quantum.files import JSON
from sf_quantum.qpu.jobs import JobParameters
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.computation import SeparateRunner
from sf_quantum.service.device.emulator.openqasm import Circuit, CircuitError
from sf_quantum.service.domain.jobs import Kind, Size

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


class CircuitSimulator(SeparateRunner):
    """A :class:`~sf_quantum.service.device.emulator.runners.Runner` of circuits."""

    kind: ClassVar[Kind] = "circuit"

    def check(self, content: JSON, *, qubits: int) -> Size:
        if not isinstance(content, str):
            raise FieldError("circuit", "expected text")
        try:
            circuit = Circuit(content)
        except CircuitError as error:
            raise FieldError("circuit", str(error)) from error
        size = circuit.sizes["qubit"]
        if size > qubits:
            raise FieldError("circuit", f"{size} qubits do not fit on {qubits}")
        if size > MAX_QUBITS:
            detail = f"{size} qubits; at most {MAX_QUBITS} can be simulated"
            raise FieldError("circuit", detail)
        amplitudes = len(circuit.operations) << size
        return Size(circuit.sizes["bit"], amplitudes=amplitudes)


def simulate(text: str, parameters: JobParameters) -> dict[str, int]:
    """Return the counts of the bit strings.

    They are in Qiskit's order: the last bit of the last register first.
    """
    import numpy

    circuit = Circuit(text)
    size = circuit.sizes["qubit"]
    state = numpy.zeros((2,) * size, dtype=numpy.complex128)
    state[(0,) * size] = 1
    for call in circuit.operations:
        *controls, target = call.qubits
        _apply(state, _matrix(call.base, call.angles), target, controls)
    generator = numpy.random.default_rng(parameters.get("seed") or 0)
    probabilities = (abs(state) ** 2).reshape(-1)
    shots = parameters.get("num_reads") or 1
    counts = generator.multinomial(shots, probabilities / probabilities.sum())
    counter: Counter[str] = Counter()
    for outcome in counts.nonzero()[0].tolist():
        word = format(outcome, f"0{size}b")
        bits = [
            word[circuit.measured[bit]] if bit in circuit.measured else "0"
            for bit in reversed(range(circuit.sizes["bit"]))
        ]
        counter["".join(bits)] += int(counts[outcome])
    return dict(sorted(counter.items()))


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
        case "p":
            return (1, 0), (0, cmath.exp(1j * angles[0]))
        case "u2":
            return _matrix("U", (math.pi / 2, *angles))
    _, phi, lam = angles  # U
    return (
        (cosine, -cmath.exp(1j * lam) * sine),
        (cmath.exp(1j * phi) * sine, cmath.exp(1j * (phi + lam)) * cosine),
    )


def _apply(state: State, matrix: Matrix, target: int, controls: list[int]) -> None:
    index: list[int | slice] = [slice(None)] * state.ndim
    for control in controls:
        index[control] = 1
    zero, one = list(index), list(index)
    zero[target], one[target] = 0, 1
    low, high = state[tuple(zero)].copy(), state[tuple(one)].copy()
    state[tuple(zero)] = matrix[0][0] * low + matrix[0][1] * high
    state[tuple(one)] = matrix[1][0] * low + matrix[1][1] * high

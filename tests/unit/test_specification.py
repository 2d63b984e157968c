"""The gates of stdgates.inc mean what the OpenQASM 3 specification defines them by.

The definitions are those of the specification's standard library, from U and gphase alone
(https://openqasm.com/language/standard_library.html); phases are seen under a control.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from qiskit import QuantumCircuit
from qiskit.circuit.library import UnitaryGate

from sf_quantum.service.device.emulator.batches import batch
from tests.circuits import Matrix, controlled, power, probabilities

PI = math.pi
ANGLES = (0.7, -1.9, 2.6, 0.4)


def u(theta: float, phi: float, lam: float) -> Matrix:
    """Return U of the specification, whose phase is that of theta / 2 more than SU(2)'s."""
    plus, minus = 1 + cmath.exp(1j * theta), 1 - cmath.exp(1j * theta)
    rows = [
        [plus, -1j * cmath.exp(1j * lam) * minus],
        [1j * cmath.exp(1j * phi) * minus, cmath.exp(1j * (phi + lam)) * plus],
    ]
    return np.array(rows, np.complex128) / 2


def phase(angle: float) -> complex:
    return cmath.exp(1j * angle)


def p(lam: float) -> Matrix:
    return np.diag([1, phase(lam)])


X = u(PI, 0, PI) * phase(-PI / 2)
Z = p(PI)
SWAP = np.eye(4)[[0, 2, 1, 3]].astype(np.complex128)


def rx(theta: float) -> Matrix:
    return u(theta, -PI / 2, PI / 2) * phase(-theta / 2)


def ry(theta: float) -> Matrix:
    return u(theta, 0, 0) * phase(-theta / 2)


def rz(lam: float) -> Matrix:
    return u(0, 0, lam) * phase(-lam / 2)


Y = u(PI, PI / 2, PI / 2) * phase(-PI / 2)
H = u(PI / 2, 0, PI) * phase(-PI / 4)
GATES: Mapping[str, tuple[int, Callable[..., Matrix]]] = {
    "p": (1, p),
    "x": (0, lambda: X),
    "y": (0, lambda: Y),
    "z": (0, lambda: Z),
    "h": (0, lambda: H),
    "s": (0, lambda: power(Z, 0.5)),
    "sdg": (0, lambda: power(Z, 0.5).conj().T),
    "t": (0, lambda: power(power(Z, 0.5), 0.5)),
    "tdg": (0, lambda: power(power(Z, 0.5), 0.5).conj().T),
    "sx": (0, lambda: power(X, 0.5)),
    "rx": (1, rx),
    "ry": (1, ry),
    "rz": (1, rz),
    "cx": (0, lambda: controlled(X)),
    "cy": (0, lambda: controlled(Y)),
    "cz": (0, lambda: controlled(Z)),
    "cp": (1, lambda lam: controlled(p(lam))),
    "crx": (1, lambda theta: controlled(rx(theta))),
    "cry": (1, lambda theta: controlled(ry(theta))),
    "crz": (1, lambda lam: controlled(rz(lam))),
    "ch": (0, lambda: controlled(H)),
    "swap": (0, lambda: SWAP),
    "ccx": (0, lambda: controlled(controlled(X))),
    "cswap": (0, lambda: controlled(SWAP)),
    "cu": (
        4,
        lambda theta, phi, lam, gamma: np.kron(np.eye(2), p(gamma - theta / 2))
        @ controlled(u(theta, phi, lam)),
    ),
    "phase": (1, p),
    "cphase": (1, lambda lam: controlled(p(lam))),
    "id": (0, lambda: np.eye(2, dtype=np.complex128)),
    "u1": (1, p),
}
MODIFIERS: Mapping[str, Callable[[Matrix], Matrix]] = {
    "": lambda one: one,
    "inv @ ": lambda one: one.conj().T,
    "pow(2) @ ": lambda one: one @ one,
    "pow(0.5) @ ": lambda one: power(one, 0.5),
}


@pytest.mark.parametrize("modifier", [*MODIFIERS])
@pytest.mark.parametrize("name", [*GATES])
def test_gates_have_the_phase_of_the_specification(name: str, modifier: str) -> None:
    count, definition = GATES[name]
    if count and "0.5" in modifier:
        return  # refused: of these gates, only those without angles have roots
    given = ANGLES[:count]
    matrix = MODIFIERS[modifier](definition(*given))
    text = f"{name}({', '.join(map(str, given))})" if given else name
    for control, value in (("ctrl", 1), ("negctrl", 0)):
        whole = controlled(matrix, value)
        width = int(math.log2(len(whole)))
        operands = ", ".join(f"q[{n}]" for n in range(width))
        lines = ['OPENQASM 3.0; include "stdgates.inc";', f"qubit[{width}] q;"]
        lines += [
            f"bit[{width}] c; ry(0.9) q; {control} @ {modifier}{text} {operands};"
        ]
        lines += ["rx(0.8) q; c = measure q;"]
        circuit = QuantumCircuit(width, width)
        circuit.ry(0.9, range(width))
        circuit.append(UnitaryGate(whole), range(width))
        circuit.rx(0.8, range(width))
        circuit.measure(range(width), range(width))
        (group,) = batch("\n".join(lines)).groups
        found = probabilities(next(group.bound()))
        assert found == pytest.approx(probabilities(circuit), abs=1e-9)

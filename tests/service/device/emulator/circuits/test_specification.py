"""The gates of OpenQASM's libraries mean what their specifications define them by.

The definitions of stdgates.inc are those of the standard library of OpenQASM 3, from U and
gphase alone (https://openqasm.com/language/standard_library.html); phases are seen under a
control. Those of qelib1.inc are in the paper on OpenQASM 2 (arXiv:1707.03429), from U and CX.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from qiskit import QuantumCircuit
from qiskit.circuit.library import UnitaryGate

from sf_quantum.service.device.emulator.circuits.batches import batch
from tests.support.circuits import Matrix, controlled, power, probabilities

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


# of these gates, only those without angles have roots
CASES = [
    (name, modifier)
    for name, (count, _) in GATES.items()
    for modifier in MODIFIERS
    if not (count and "0.5" in modifier)
]


@pytest.mark.parametrize(("name", "modifier"), CASES)
def test_gates_have_the_phase_of_the_specification(name: str, modifier: str) -> None:
    count, definition = GATES[name]
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


# The definitions of qelib1.inc, in the order of the paper's appendix: the gate, its angles and
# its qubits, and the U (with three angles) and CX of which it consists. cu3 has one gate more
# than there: u1 on its control, as in Qiskit's qelib1.inc, by which programs are written.
QELIB1 = """
u3(t,p,l) a: U(t,p,l) a
u2(p,l) a: U(pi/2,p,l) a
u1(l) a: U(0,0,l) a
cx a,b: CX a,b
id a: U(0,0,0) a
x a: U(pi,0,pi) a
y a: U(pi,pi/2,pi/2) a
z a: U(0,0,pi) a
h a: U(pi/2,0,pi) a
s a: U(0,0,pi/2) a
sdg a: U(0,0,-pi/2) a
t a: U(0,0,pi/4) a
tdg a: U(0,0,-pi/4) a
rx(t) a: U(t,-pi/2,pi/2) a
ry(t) a: U(t,0,0) a
rz(p) a: U(0,0,p) a
cz a,b: h b; CX a,b; h b
cy a,b: sdg b; CX a,b; s b
ch a,b: h b; sdg b; CX a,b; h b; t b; CX a,b; t b; h b; s b; x b; s a
ccx a,b,c: h c; CX b,c; tdg c; CX a,c; t c; CX b,c; tdg c; CX a,c; t b; t c; h c; CX a,b; t a; tdg b; CX a,b
crz(l) a,b: u1(l/2) b; CX a,b; u1(-l/2) b; CX a,b
cu1(l) a,b: u1(l/2) a; CX a,b; u1(-l/2) b; CX a,b; u1(l/2) b
cu3(t,p,l) a,b: u1((l+p)/2) a; u1((l-p)/2) b; CX a,b; u3(-t/2,0,-(p+l)/2) b; CX a,b; u3(t/2,p,0) b
"""
_CALL = re.compile(r"(\w+)(?:\((.*)\))? ([\w,]+)")


def qelib1() -> dict[str, tuple[list[str], list[str], list[str]]]:
    """Return the names of angles and qubits, and the calls, of each gate."""
    gates = {}
    for line in QELIB1.strip().splitlines():
        head, _, body = line.partition(": ")
        found = _CALL.fullmatch(head)
        assert found is not None
        name, angles, qubits = found.groups()
        names = angles.split(",") if angles else []
        gates[name] = (names, qubits.split(","), body.split("; "))
    return gates


def apply(
    state: Matrix, call: str, at: Mapping[str, int], known: Mapping[str, float]
) -> Matrix:
    """Apply a call of a gate, down to U and CX, to a state with an axis for each qubit."""
    found = _CALL.fullmatch(call)
    assert found is not None
    name, text, qubits = found.groups()
    given = (
        [float(eval(one, {"pi": PI, **known})) for one in text.split(",")]
        if text
        else []
    )
    axes = [at[qubit] for qubit in qubits.split(",")]
    if name == "U":
        moved = np.tensordot(u(*given), state, axes=(1, axes[0]))
        return np.moveaxis(moved, 0, axes[0])
    if name == "CX":
        control, target = axes
        flipped = np.flip(state, target)
        ones = np.arange(2).reshape(
            [2 if n == control else 1 for n in range(state.ndim)]
        )
        return np.where(ones == 1, flipped, state)
    angles, places, calls = qelib1()[name]
    for one in calls:
        inner = dict(zip(places, axes, strict=True))
        state = apply(state, one, inner, dict(zip(angles, given, strict=True)))
    return state


@pytest.mark.parametrize("name", [*qelib1()])
def test_gates_are_those_of_the_paper(name: str) -> None:
    angles, places, _ = qelib1()[name]
    width = len(places)
    before = [f"u3({0.3 + n},{0.9 - n},{1.1 * n}) q{n}" for n in range(width)]
    after = [f"u3({1.4 - n},{0.2 + n},{0.7 * n}) q{n}" for n in range(width)]
    given = f"({','.join(map(str, ANGLES[: len(angles)]))})" if angles else ""
    call = f"{name}{given} {','.join(f'q{n}' for n in range(width))}"
    state = np.zeros([2] * width, np.complex128)
    state[(0,) * width] = 1
    for one in [*before, call, *after]:
        state = apply(state, one, {f"q{n}": n for n in range(width)}, {})
    lines = [
        'OPENQASM 2.0; include "qelib1.inc";',
        f"qreg q[{width}]; creg c[{width}];",
    ]
    lines += [
        re.sub(r"\bq(\d)", r"q[\1]", f"{one};") for one in [*before, call, *after]
    ]
    (group,) = batch("\n".join([*lines, "measure q -> c;"])).groups
    found = probabilities(next(group.bound()))
    # the first qubit is the last character of a key
    expected = {
        "".join(map(str, reversed(index))): float(abs(amplitude) ** 2)
        for index, amplitude in np.ndenumerate(state)
    }
    assert found == pytest.approx(expected, abs=1e-9)

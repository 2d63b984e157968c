"""Circuits of every kind, and what they give: the reference of the differential tests.

The reference applies matrices to state vectors, and follows each outcome of a measurement;
nothing of it is Aer's or a parser's. The matrices of the gates that OpenQASM names are
computed here from their definitions in its paper and its two libraries; those of Qiskit's
circuits are Qiskit's.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np
from numpy.typing import NDArray
from qiskit import ClassicalRegister, QuantumCircuit, QuantumRegister
from qiskit.circuit import Clbit, Gate, Operation, Qubit
from qiskit.circuit.library import (
    RC3XGate,
    RCCXGate,
    UnitaryGate,
    get_standard_gate_name_mapping,
)
from qiskit.quantum_info import Operator
from scipy.linalg import schur
from scipy.stats import chi2

Matrix = NDArray[np.complex128]
#: of a test of counts: with fixed seeds it passes always or never, and with random ones it
#: fails once in a million times
LEAST_P = 1e-6
_LEAST_CHANCE = 1e-12
# of a cell of the test, so that the distribution of its statistic is chi squared
_LEAST_EXPECTED = 5


@dataclass(frozen=True)
class Case:
    """A circuit as its user wrote it.

    :param texts: the same in OpenQASM, if it was written so
    :param circuit: what it means
    """

    name: str
    circuit: QuantumCircuit
    texts: tuple[str, ...] = ()


# what a circuit gives


def probabilities(circuit: QuantumCircuit) -> dict[str, float]:
    """Return the probability of each word of a circuit's bits, the last bit first."""
    state = np.zeros((2,) * circuit.num_qubits, np.complex128)
    state[(0,) * circuit.num_qubits] = 1
    qubits = {qubit: n for n, qubit in enumerate(circuit.qubits)}
    bits = {bit: n for n, bit in enumerate(circuit.clbits)}
    chances: dict[str, float] = {}
    for word, left in _run(circuit, [(0, state)], qubits, bits):
        text = f"{word:0{circuit.num_clbits}b}"
        chances[text] = chances.get(text, 0.0) + float(np.vdot(left, left).real)
    return {word: chance for word, chance in chances.items() if chance > _LEAST_CHANCE}


Branches = list[tuple[int, Matrix]]


def _run(
    circuit: QuantumCircuit,
    branches: Branches,
    qubits: Mapping[Qubit, int],
    bits: Mapping[Clbit, int],
) -> Branches:
    for one in circuit.data:
        places = [qubits[qubit] for qubit in one.qubits]
        places_of_bits = [bits[bit] for bit in one.clbits]
        operation = one.operation
        match operation.name:
            case "barrier" | "delay":
                pass
            case "measure":
                branches = _measured(branches, places[0], places_of_bits[0])
            case "reset":
                branches = _reset(branches, places[0])
            case "if_else" | "for_loop" | "box":
                inner = []
                for branch in branches:
                    made = [branch]
                    for body in _bodies(operation, branch[0], bits):
                        of_body = dict(zip(body.qubits, places, strict=True))
                        its_bits = dict(zip(body.clbits, places_of_bits, strict=True))
                        made = _run(body, made, of_body, {**bits, **its_bits})
                    inner += made
                branches = inner
            case _:
                matrix = _matrix(operation)
                branches = [
                    (word, _applied(matrix, state, places)) for word, state in branches
                ]
    return branches


def _matrix(operation: Operation) -> Matrix:
    if isinstance(operation, Gate) and operation.name in _standard_gates():
        return _standard_matrix(operation.name, tuple(map(float, operation.params)))
    return np.asarray(Operator(operation).data, np.complex128)


@lru_cache(maxsize=1)
def _standard_gates() -> dict[str, Gate]:
    gates: dict[str, Gate] = get_standard_gate_name_mapping()
    return gates


@lru_cache(maxsize=10_000)
def _standard_matrix(name: str, angles: tuple[float, ...]) -> Matrix:
    gate = _standard_gates()[name].base_class(*angles)
    return np.asarray(Operator(gate).data, np.complex128)


def _bodies(
    operation: Operation, word: int, bits: Mapping[Clbit, int]
) -> Iterator[QuantumCircuit]:
    if operation.name == "box":
        yield operation.blocks[0]
    elif operation.name == "for_loop":
        values, variable, body = operation.params
        for value in values:
            given = {} if variable not in body.parameters else {variable: value}
            yield body.assign_parameters(given)
    else:
        tested, wanted = operation.condition
        tested = [tested] if isinstance(tested, Clbit) else [*tested]
        read = sum((word >> bits[bit] & 1) << n for n, bit in enumerate(tested))
        blocks = operation.blocks
        if read == int(wanted):
            yield blocks[0]
        elif len(blocks) > 1 and blocks[1] is not None:
            yield blocks[1]


def _applied(matrix: Matrix, state: Matrix, places: Sequence[int]) -> Matrix:
    axes = [state.ndim - 1 - place for place in reversed(places)]
    count = len(axes)
    if not count:
        return state * matrix.item()
    shaped = matrix.reshape((2,) * (2 * count))
    return np.moveaxis(
        np.tensordot(shaped, state, (range(count, 2 * count), axes)), range(count), axes
    )


def _projected(state: Matrix, place: int, value: int) -> Matrix:
    kept = np.zeros_like(state)
    index: list[slice | int] = [slice(None)] * state.ndim
    index[state.ndim - 1 - place] = value
    kept[tuple(index)] = state[tuple(index)]
    return kept


def _outcomes(state: Matrix, place: int) -> Iterator[tuple[int, Matrix]]:
    for value in (0, 1):
        left = _projected(state, place, value)
        if np.vdot(left, left).real > _LEAST_CHANCE:
            yield value, left


def _measured(branches: Branches, place: int, bit: int) -> Branches:
    return [
        (word & ~(1 << bit) | value << bit, left)
        for word, state in branches
        for value, left in _outcomes(state, place)
    ]


def _reset(branches: Branches, place: int) -> Branches:
    flip = np.array([[0, 1], [1, 0]], np.complex128)
    return [
        (word, _applied(flip, left, [place]) if value else left)
        for word, state in branches
        for value, left in _outcomes(state, place)
    ]


def p_value(counts: Mapping[str, int], chances: Mapping[str, float]) -> float:
    """Return the probability that counts are no nearer to what is expected than these."""
    shots = sum(counts.values())
    if counts.keys() - chances.keys():
        return 0.0
    cells, rest = [], [0.0, 0.0]
    for word, chance in sorted(chances.items(), key=lambda each: each[1]):
        cell = [rest[0] + shots * chance, rest[1] + counts.get(word, 0)]
        if cell[0] < _LEAST_EXPECTED:
            rest = cell
        else:
            cells.append(cell)
            rest = [0.0, 0.0]
    if len(cells) < 2:
        return 1.0
    statistic = sum((found - wanted) ** 2 / wanted for wanted, found in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def hellinger(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the Hellinger distance of two distributions, or of counts."""
    sums = sum(one.values()), sum(other.values())
    overlap = sum(
        math.sqrt(one[word] / sums[0] * other[word] / sums[1])
        for word in one.keys() & other.keys()
    )
    return math.sqrt(max(0.0, 1 - overlap))


# what OpenQASM's gates are


def u(theta: float, phi: float, lam: float) -> Matrix:
    """Return the matrix of OpenQASM 3's U."""
    cosine, sine = math.cos(theta / 2), math.sin(theta / 2)
    return np.array(
        [
            [cosine, -cmath.exp(1j * lam) * sine],
            [cmath.exp(1j * phi) * sine, cmath.exp(1j * (phi + lam)) * cosine],
        ]
    )


def controlled(matrix: Matrix, value: int = 1) -> Matrix:
    """Return a gate whose first qubit has to have a value for the others to change."""
    selected = np.diag([1.0 - value, float(value)])
    unit = np.eye(len(matrix))
    made = np.kron(matrix, selected) + np.kron(unit, np.eye(2) - selected)
    return np.asarray(made, np.complex128)


def power(matrix: Matrix, exponent: float) -> Matrix:
    """Return a power whose eigenvalues have their phases in (-pi, pi] times the exponent."""
    triangle, basis = schur(matrix, output="complex")
    phases = np.angle(np.diag(triangle))
    phases = np.where(phases < -math.pi + 1e-9, math.pi, phases)
    raised: Matrix = basis @ np.diag(np.exp(1j * exponent * phases)) @ basis.conj().T
    return raised


def _phased(lam: float) -> Matrix:
    return np.diag([1, cmath.exp(1j * lam)])


def _rotated_z(lam: float) -> Matrix:
    return cmath.exp(-0.5j * lam) * _phased(lam)


def _rotated_x(theta: float) -> Matrix:
    return u(theta, -math.pi / 2, math.pi / 2)


def _all(phase: float, *paulis: Matrix) -> Matrix:
    """Return the exponential of a product of Pauli matrices; the first qubit's is last."""
    product: Matrix = np.eye(1, dtype=np.complex128)
    for pauli in reversed(paulis):
        product = np.asarray(np.kron(product, pauli), np.complex128)
    unit = np.eye(len(product))
    made = math.cos(phase / 2) * unit - 1j * math.sin(phase / 2) * product
    return np.asarray(made, np.complex128)


X, Y, Z = u(math.pi, 0, math.pi), u(math.pi, math.pi / 2, math.pi / 2), _phased(math.pi)
H = u(math.pi / 2, 0, math.pi)
SWAP = np.eye(4)[[0, 2, 1, 3]].astype(np.complex128)
_ROOT = power(X, 0.5)
#: the number of angles, and the matrix
Known = tuple[int, Callable[..., Matrix]]


def _fixed(matrix: Matrix) -> Known:
    return 0, lambda: matrix


_BOTH: dict[str, Known] = {
    "p": (1, _phased),
    "x": _fixed(X),
    "y": _fixed(Y),
    "z": _fixed(Z),
    "h": _fixed(H),
    "s": _fixed(_phased(math.pi / 2)),
    "sdg": _fixed(_phased(-math.pi / 2)),
    "t": _fixed(_phased(math.pi / 4)),
    "tdg": _fixed(_phased(-math.pi / 4)),
    "sx": _fixed(_ROOT),
    "rx": (1, _rotated_x),
    "ry": (1, lambda theta: u(theta, 0, 0)),
    "rz": (1, _rotated_z),
    "cx": _fixed(controlled(X)),
    "cy": _fixed(controlled(Y)),
    "cz": _fixed(controlled(Z)),
    "cp": (1, lambda lam: controlled(_phased(lam))),
    "crx": (1, lambda theta: controlled(_rotated_x(theta))),
    "cry": (1, lambda theta: controlled(u(theta, 0, 0))),
    "crz": (1, lambda lam: controlled(_rotated_z(lam))),
    "ch": _fixed(controlled(H)),
    "swap": _fixed(SWAP),
    "ccx": _fixed(controlled(controlled(X))),
    "cswap": _fixed(controlled(SWAP)),
    "cu": (
        4,
        lambda theta, phi, lam, gamma: np.kron(np.eye(2), _phased(gamma))
        @ controlled(u(theta, phi, lam)),
    ),
    "id": _fixed(np.eye(2, dtype=np.complex128)),
    "u1": (1, _phased),
    "u2": (2, lambda phi, lam: u(math.pi / 2, phi, lam)),
    "u3": (3, u),
}
#: of OpenQASM 3: built in, and in stdgates.inc; U, u2 and u3 up to a phase
STDGATES: dict[str, Known] = {
    **_BOTH,
    "U": (3, u),
    "CX": _fixed(controlled(X)),
    "phase": (1, _phased),
    "cphase": (1, lambda lam: controlled(_phased(lam))),
}
#: of OpenQASM 2: built in, and in Qiskit's qelib1.inc, up to phases
QELIB1: dict[str, Known] = {
    **_BOTH,
    "U": (3, u),
    "CX": _fixed(controlled(X)),
    "u": (3, u),
    "u0(1)": _fixed(np.eye(2, dtype=np.complex128)),
    "sxdg": _fixed(_ROOT.conj().T),
    "cu1": (1, lambda lam: controlled(_phased(lam))),
    "cu3": (3, lambda theta, phi, lam: controlled(u(theta, phi, lam))),
    "csx": _fixed(controlled(_ROOT)),
    "rxx": (1, lambda theta: _all(theta, X, X)),
    "rzz": (1, lambda theta: _all(theta, Z, Z)),
    "rccx": _fixed(RCCXGate().to_matrix()),
    "rc3x": _fixed(RC3XGate().to_matrix()),
    "c3x": _fixed(controlled(controlled(controlled(X)))),
    "c3sqrtx": _fixed(controlled(controlled(controlled(_ROOT)))),
    "c4x": _fixed(controlled(controlled(controlled(controlled(X))))),
}


class Writer:
    """Writes a circuit as text and as matrices at once.

    :param version: of OpenQASM
    """

    def __init__(self, qubits: int, random: Random, version: int) -> None:
        self.circuit = QuantumCircuit(qubits, qubits)
        self.definitions: list[str] = []
        self._lines: list[str] = []
        self._random = random
        self._version = version

    def gate(self, text: str, matrix: Matrix) -> None:
        """Add a gate on qubits that are drawn."""
        count = int(math.log2(len(matrix)))
        places = self._random.sample(range(self.circuit.num_qubits), count)
        self.circuit.append(UnitaryGate(matrix), places)
        operands = ", ".join(f"q[{place}]" for place in places)
        self._lines.append(f"{text} {operands};")

    def mix(self) -> None:
        """Turn each qubit in a way that is drawn."""
        for place in range(self.circuit.num_qubits):
            angles = self.angles(3)
            self.circuit.append(UnitaryGate(u(*angles)), [place])
            self._lines.append(f"U({', '.join(map(repr, angles))}) q[{place}];")

    def angles(self, count: int) -> list[float]:
        """Draw angles."""
        return [
            round(self._random.uniform(-2 * math.pi, 2 * math.pi), 6)
            for _ in range(count)
        ]

    def case(self, name: str) -> Case:
        """Measure all qubits, and return the circuit."""
        count = self.circuit.num_qubits
        self.circuit.measure(range(count), range(count))
        if self._version == 3:
            head = ["OPENQASM 3.0;", 'include "stdgates.inc";']
            declared = [f"qubit[{count}] q;", f"bit[{count}] c;"]
            measured = ["c = measure q;"]
        else:
            head = ["OPENQASM 2.0;", 'include "qelib1.inc";']
            declared = [f"qreg q[{count}];", f"creg c[{count}];"]
            measured = ["measure q -> c;"]
        lines = [*head, *self.definitions, *declared, *self._lines, *measured, ""]
        return Case(name, self.circuit, ("\n".join(lines),))


def named_gates(version: int, seed: int, together: int = 1) -> Iterator[Case]:
    """Yield circuits with each gate of a library of OpenQASM.

    :param together: gates of a circuit
    """
    library = STDGATES if version == 3 else QELIB1
    for names in _parts([*library], together):
        random = Random(f"{names} {seed}")
        widths = [_width(*library[name]) for name in names]
        writer = Writer(max(2, *widths, 0), random, version)
        for name in (*names, *names):
            angles, matrix = library[name]
            writer.mix()
            given = writer.angles(angles)
            called = f"{name}({', '.join(map(repr, given))})" if given else name
            writer.gate(called, matrix(*given))
        writer.mix()
        yield writer.case(f"{', '.join(names)} of OpenQASM {version}")


def modified_gates(seed: int, together: int = 1) -> Iterator[Case]:
    """Yield circuits with each gate of stdgates.inc under each modifier, and pairs of them.

    :param together: gates of a circuit
    """
    modifiers: dict[str, Callable[[Matrix], Matrix]] = {
        "ctrl": controlled,
        "negctrl": lambda matrix: controlled(matrix, 0),
        "inv": lambda matrix: matrix.conj().T,
        "pow(2)": lambda matrix: matrix @ matrix,
        "pow(-1)": lambda matrix: matrix.conj().T,
        "pow(0.5)": lambda matrix: power(matrix, 0.5),
    }
    # of these Qiskit's have another phase, so that modifiers are refused
    known = [name for name in STDGATES if name not in ("U", "u2", "u3")]
    for names in _parts(known, together):
        random = Random(f"{names} {seed}")
        widths = [_width(*STDGATES[name]) for name in names]
        writer = Writer(min(5, max(widths) + 2), random, 3)
        for name in names:
            for first in ("", *modifiers):
                _add_modified(writer, name, first, modifiers, random)
        yield writer.case(f"modifiers of {', '.join(names)}")


def _add_modified(
    writer: Writer,
    name: str,
    first: str,
    modifiers: Mapping[str, Callable[[Matrix], Matrix]],
    random: Random,
) -> None:
    angles, matrix = STDGATES[name]
    given = writer.angles(angles)
    if given and first == "pow(0.5)":
        return  # refused: of these gates, only those without angles have roots
    # a root of a power is refused, too
    free = not given and first != "pow(0.5)"
    second = random.choice([*modifiers] if free else ["ctrl", "negctrl", "inv"])
    made, text = matrix(*given), name
    if given:
        text += f"({', '.join(map(repr, given))})"
    for modifier in filter(None, (second if first else "", first)):
        made, text = modifiers[modifier](made), f"{modifier} @ {text}"
    writer.mix()
    writer.gate(text, made)


def defined_gates(seed: int) -> Iterator[Case]:
    """Yield circuits with gates of their own, which use others of their own, for ever."""
    number = 0
    while True:
        random = Random(f"defined {seed} {number}")
        version = 2 + number % 2
        writer = Writer(3, random, version)
        known: dict[str, Known] = {
            name: one
            for name, one in (STDGATES if version == 3 else QELIB1).items()
            if _width(*one) <= 2
        }
        for level in range(3):
            name = f"own{level}"
            text, definition = _definition(name, known, random, version)
            writer.definitions.append(text)
            known[name] = definition
        for _ in range(2):
            writer.mix()
            for name in ("own2", "own1", "own0"):
                given = writer.angles(2)
                called = f"{name}({', '.join(map(repr, given))})"
                writer.gate(called, known[name][1](*given))
        writer.mix()
        yield writer.case(f"own gates {number}")
        number += 1


def _definition(
    name: str, known: Mapping[str, Known], random: Random, version: int
) -> tuple[str, Known]:
    """Return a gate of two qubits and two angles, whose names are not in their order."""
    forms: dict[str, Callable[[float, float], float]] = {
        "z": lambda z, a: z,
        "a": lambda z, a: a,
        "-a/2": lambda z, a: -a / 2,
        "z - a": lambda z, a: z - a,
        "pi/2 - z*2": lambda z, a: math.pi / 2 - 2 * z,
        "(z + a)/4.0": lambda z, a: (z + a) / 4,
        "-(pi - a)/3": lambda z, a: -(math.pi - a) / 3,
    }
    lines: list[str] = []
    steps: list[
        tuple[Callable[..., Matrix], list[Callable[[float, float], float]], list[int]]
    ] = []
    for _ in range(4):
        called = random.choice([*known])
        angles, matrix = known[called]
        given = random.choices([*forms], k=angles)
        places = random.sample((0, 1), _width(angles, matrix))
        text = f"{called}({', '.join(given)})" if given else called
        lines.append(
            f"{text} {', '.join(('right', 'left')[place] for place in places)};"
        )
        steps.append((matrix, [forms[one] for one in given], places))

    def made(z: float, a: float) -> Matrix:
        whole = np.eye(4, dtype=np.complex128)
        for matrix, given, places in steps:
            gate = matrix(*(one(z, a) for one in given))
            columns = [
                _applied(gate, column.reshape(2, 2), places).reshape(4)
                for column in whole.T
            ]
            whole = np.array(columns).T
        return whole

    return f"gate {name}(z, a) right, left {{ {' '.join(lines)} }}", (2, made)


def _width(angles: int, matrix: Callable[..., Matrix]) -> int:
    return int(math.log2(len(matrix(*[0.1] * angles))))


# circuits of Qiskit

_NOT_GATES = ("measure", "reset", "delay", "global_phase")


def qiskit_gates(seed: int, together: int = 1) -> Iterator[Case]:
    """Yield circuits with each of Qiskit's standard gates, its inverse and its controlled one.

    :param together: gates of a circuit
    """
    gates = get_standard_gate_name_mapping()
    known = [name for name in gates if name not in _NOT_GATES]
    for names in _parts(known, together):
        random = Random(f"{names} {seed}")
        width = max(gates[name].num_qubits for name in names)
        circuit = QuantumCircuit(max(2, min(5, width + 1)))
        for name in names:
            for modified in (_same, _inverse, _opened):
                drawn = _drawn(gates[name], random)
                if name != "id":  # which has no inverse
                    drawn = modified(drawn)
                if drawn.num_qubits <= circuit.num_qubits:
                    _mix(circuit, random)
                    circuit.append(drawn, _places(circuit, drawn.num_qubits, random))
        _mix(circuit, random)
        circuit.measure_all()
        yield Case(f"Qiskit's {', '.join(names)}", circuit)


def _parts(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (names[n : n + size] for n in range(0, len(names), size))


def _same(gate: Gate) -> Gate:
    return gate


def _inverse(gate: Gate) -> Gate:
    return gate.inverse()


def _opened(gate: Gate) -> Gate:
    return gate.control(1, ctrl_state=0)


def random_circuits(seed: int, *, conditionals: bool = True) -> Iterator[Case]:
    """Yield circuits of standard gates with bits in any registers, for ever.

    :param conditionals: whether a third of them measures in the middle, resets, and has
        conditions
    """
    number = 0
    while True:
        random = Random(f"random {seed} {number}")
        circuit = _registers(random, number % 5)
        middle = conditionals and number % 3 == 0
        _fill(circuit, random, random.randrange(6, 25), middle)
        bits = random.sample(circuit.clbits, len(circuit.clbits))
        circuit.measure(circuit.qubits[: len(bits)], bits)
        kind = "dynamic" if middle else "random"
        yield Case(f"{kind} {number}", circuit)
        number += 1


def _registers(random: Random, kind: int) -> QuantumCircuit:
    """Return an empty circuit; as many bits as qubits."""
    count = random.randrange(2, 5)
    bits = [Clbit() for _ in range(count)]
    if kind < 2:  # as most have them
        return QuantumCircuit(count, count)
    circuit = QuantumCircuit([Qubit() for _ in range(count)], bits)
    half = count // 2
    if kind == 2:  # in the order of neither
        circuit.add_register(ClassicalRegister(bits=bits[half:], name="a"))
        circuit.add_register(ClassicalRegister(bits=bits[:half], name="b"))
        circuit.add_register(QuantumRegister(bits=circuit.qubits[half:], name="second"))
    elif kind == 3:  # some in none
        circuit.add_register(ClassicalRegister(bits=bits[half:], name="angle0"))
    else:  # some in two
        circuit.add_register(ClassicalRegister(bits=bits[: half + 1], name="a"))
        circuit.add_register(ClassicalRegister(bits=bits[half:], name="b"))
    return circuit


def _fill(circuit: QuantumCircuit, random: Random, steps: int, middle: bool) -> None:
    gates = [
        gate
        for name, gate in get_standard_gate_name_mapping().items()
        if name not in _NOT_GATES and gate.num_qubits <= circuit.num_qubits
    ]
    _mix(circuit, random)
    for _ in range(steps):
        gate = _drawn(random.choice(gates), random)
        circuit.append(gate, _places(circuit, gate.num_qubits, random))
    if not middle:
        return
    for _ in range(2):
        qubit, bit = random.choice(circuit.qubits), random.choice(circuit.clbits)
        circuit.measure(qubit, bit)
        if random.random() < 0.5:
            circuit.reset(random.choice(circuit.qubits))
        tested = bit, random.choice((0, 1))
        if circuit.cregs and random.random() < 0.5:
            register = random.choice(circuit.cregs)
            tested = register, random.randrange(1 << len(register))
        with circuit.if_test(tested) as otherwise:
            _mix(circuit, random)
        if random.random() < 0.5:
            with otherwise:
                circuit.h(random.choice(circuit.qubits))


def _mix(circuit: QuantumCircuit, random: Random) -> None:
    for qubit in circuit.qubits:
        circuit.u(*(random.uniform(-math.pi, math.pi) for _ in range(3)), qubit)


def _drawn(gate: Gate, random: Random) -> Gate:
    angles = [random.uniform(-math.pi, math.pi) for _ in gate.params]
    return gate.base_class(*angles)


def _places(circuit: QuantumCircuit, count: int, random: Random) -> list[Qubit]:
    return random.sample(circuit.qubits, count)

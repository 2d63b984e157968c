"""Circuits of the kinds of QASMBench and MQT Bench, of 2 to 20 qubits, by own generators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import Random

from qiskit import ClassicalRegister, QuantumCircuit, QuantumRegister
from qiskit.circuit.library import CPhaseGate, RXXGate, RZXGate, XXPlusYYGate


def families() -> Iterator[tuple[str, QuantumCircuit]]:
    """Yield the circuits with their names."""
    for name, (make, sizes) in _FAMILIES.items():
        for size in sizes:
            circuit = make(size)
            if not circuit.num_clbits:
                circuit.measure_all()
            yield name, circuit


def _ghz(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits)
    circuit.h(0)
    for pair in pairwise(range(qubits)):
        circuit.cx(*pair)
    return circuit


def _w_state(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits)
    circuit.x(0)
    for place in range(qubits - 1):
        circuit.cry(2 * math.acos(math.sqrt(1 / (qubits - place))), place, place + 1)
        circuit.cx(place + 1, place)
    return circuit


def _fourier(circuit: QuantumCircuit, qubits: Sequence[int], sign: int = 1) -> None:
    """Add a Fourier transform without its swaps, or the inverse of one."""
    steps: list[tuple[float, int, int]] = []
    for place in reversed(range(len(qubits))):
        steps.append((0.0, place, place))
        steps += [
            (math.pi / 2 ** (place - n), n, place) for n in reversed(range(place))
        ]
    for angle, control, target in steps[::sign]:
        if control == target:
            circuit.h(qubits[target])
        else:
            circuit.cp(sign * angle, qubits[control], qubits[target])


def _qft(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits)
    for place in range(0, qubits, 2):
        circuit.x(place)
    _fourier(circuit, range(qubits))
    for place in range(qubits):  # so that phases are seen
        circuit.rx(0.3 + place / 7, place)
    _fourier(circuit, range(qubits), -1)
    return circuit


def _estimated(qubits: int, phase: float) -> QuantumCircuit:
    counted = qubits - 1
    circuit = QuantumCircuit(qubits, counted)
    circuit.x(counted)
    circuit.h(range(counted))
    for place in range(counted):
        circuit.cp(math.tau * phase * 2**place, place, counted)
    _fourier(circuit, range(counted), -1)
    circuit.measure(range(counted), range(counted))
    return circuit


def _qpe_exact(qubits: int) -> QuantumCircuit:
    return _estimated(qubits, 5 / 2 ** (qubits - 1))


def _qpe_inexact(qubits: int) -> QuantumCircuit:
    return _estimated(qubits, 0.3217)


def _iterative_estimation(bits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(QuantumRegister(2, "q"), ClassicalRegister(bits, "c"))
    circuit.x(1)
    for step in range(bits):
        circuit.reset(0)
        circuit.h(0)
        circuit.cp(math.tau * 0.3217 * 2 ** (bits - 1 - step), 0, 1)
        for earlier in range(step):
            with circuit.if_test((circuit.clbits[earlier], 1)):
                circuit.p(-math.pi / 2 ** (step - earlier), 0)
        circuit.h(0)
        circuit.measure(0, step)
    return circuit


def _hidden_string(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits, qubits - 1)
    circuit.x(qubits - 1)
    circuit.h(range(qubits))
    for place in range(0, qubits - 1, 3):
        circuit.cx(place, qubits - 1)
    circuit.h(range(qubits - 1))
    circuit.measure(range(qubits - 1), range(qubits - 1))
    return circuit


def _balanced(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits, qubits - 1)
    circuit.x(qubits - 1)
    circuit.h(range(qubits))
    for place in range(qubits - 1):
        circuit.cx(place, qubits - 1)
    circuit.h(range(qubits - 1))
    circuit.measure(range(qubits - 1), range(qubits - 1))
    return circuit


def _simon(qubits: int) -> QuantumCircuit:
    half = qubits // 2
    circuit = QuantumCircuit(qubits, half)
    circuit.h(range(half))
    for place in range(half):
        circuit.cx(place, half + place)
    circuit.cx(0, half)
    circuit.cx(0, half + 1)
    circuit.h(range(half))
    circuit.measure(range(half), range(half))
    return circuit


def _grover(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits)
    circuit.h(range(qubits))
    for _ in range(math.floor(math.pi / 4 * math.sqrt(2**qubits))):
        circuit.mcp(math.pi, [*range(qubits - 1)], qubits - 1)
        circuit.h(range(qubits))
        circuit.x(range(qubits))
        circuit.mcp(math.pi, [*range(qubits - 1)], qubits - 1)
        circuit.x(range(qubits))
        circuit.h(range(qubits))
    return circuit


def _adder(qubits: int) -> QuantumCircuit:
    """Cuccaro's: two numbers, a carry in and one out."""
    bits = (qubits - 2) // 2
    carry, last = 0, qubits - 1
    a = [1 + 2 * n for n in range(bits)]
    b = [2 + 2 * n for n in range(bits)]
    circuit = QuantumCircuit(qubits, bits + 1)
    circuit.h(a[0])
    circuit.x([a[-1], *b])
    chain = [carry, *a]
    for n in range(bits):
        circuit.cx(a[n], b[n])
        circuit.cx(a[n], chain[n])
        circuit.ccx(chain[n], b[n], a[n])
    circuit.cx(a[-1], last)
    for n in reversed(range(bits)):
        circuit.ccx(chain[n], b[n], a[n])
        circuit.cx(a[n], chain[n])
        circuit.cx(chain[n], b[n])
    circuit.measure([*b, last], range(bits + 1))
    return circuit


def _draper(qubits: int) -> QuantumCircuit:
    half = qubits // 2
    circuit = QuantumCircuit(qubits)
    circuit.h(0)
    circuit.x([half - 1, qubits - 1])
    target = [*range(half, qubits)]
    _fourier(circuit, target)
    for n in range(half):
        for k in range(n, half):
            circuit.cp(math.pi / 2 ** (k - n), n, target[k])
    _fourier(circuit, target, -1)
    return circuit


def _multiplier(qubits: int) -> QuantumCircuit:
    """A product of two numbers of a quarter of the qubits each."""
    bits = qubits // 4
    circuit = QuantumCircuit(qubits)
    circuit.h(0)
    circuit.x(range(bits - 1, 2 * bits))
    target = [*range(2 * bits, 4 * bits)]
    _fourier(circuit, target)
    for i in range(bits):
        for j in range(bits):
            for k in range(i + j, len(target)):
                circuit.mcp(math.pi / 2 ** (k - i - j), [i, bits + j], target[k])
    _fourier(circuit, target, -1)
    return circuit


def _qaoa(qubits: int) -> QuantumCircuit:
    random = Random(qubits)
    circuit = QuantumCircuit(qubits)
    circuit.h(range(qubits))
    edges = [*pairwise([*range(qubits), 0])]
    edges += [*pairwise(random.sample(range(qubits), qubits // 2))]
    for cost, mixer in ((0.4, 0.7), (0.8, 0.3)):
        for edge in edges:
            circuit.rzz(cost, *edge)
        circuit.rx(2 * mixer, range(qubits))
    return circuit


def _ansatz(qubits: int) -> QuantumCircuit:
    random = Random(qubits)
    circuit = QuantumCircuit(qubits)
    for _ in range(3):
        for place in range(qubits):
            circuit.ry(random.uniform(-3, 3), place)
            circuit.rz(random.uniform(-3, 3), place)
        for pair in pairwise(range(qubits)):
            circuit.cx(*pair)
    return circuit


def _neurons(qubits: int) -> QuantumCircuit:
    random = Random(qubits)
    circuit = QuantumCircuit(qubits)
    for _ in range(2):
        for place in range(qubits):
            circuit.u(*(random.uniform(-3, 3) for _ in range(3)), place)
        for a, b in pairwise(range(qubits)):
            circuit.crx(random.uniform(-3, 3), a, b)
            circuit.cu(*(random.uniform(-3, 3) for _ in range(4)), b, a)
    return circuit


def _swap_test(qubits: int) -> QuantumCircuit:
    half = (qubits - 1) // 2
    circuit = QuantumCircuit(qubits, 1)
    for place in range(1, qubits):
        circuit.ry(0.3 * place, place)
    circuit.h(0)
    for place in range(1, half + 1):
        circuit.cswap(0, place, half + place)
    circuit.h(0)
    circuit.measure(0, 0)
    return circuit


def _teleportation(_: int) -> QuantumCircuit:
    names = [ClassicalRegister(1, name) for name in ("a", "b", "result")]
    circuit = QuantumCircuit(QuantumRegister(3, "q"), *names)
    circuit.u(0.7, 0.4, 0.2, 0)
    circuit.h(1)
    circuit.cx(1, 2)
    circuit.cx(0, 1)
    circuit.h(0)
    circuit.measure([0, 1], [0, 1])
    with circuit.if_test((names[1], 1)):
        circuit.x(2)
    with circuit.if_test((names[0], 1)):
        circuit.z(2)
    circuit.measure(2, 2)
    return circuit


def _bit_flip_code(qubits: int) -> QuantumCircuit:
    data, helpers = (qubits + 1) // 2, qubits // 2
    syndrome = ClassicalRegister(helpers, "syndrome")
    result = ClassicalRegister(data, "data")
    circuit = QuantumCircuit(QuantumRegister(qubits, "q"), syndrome, result)
    circuit.ry(1.1, 0)
    for place in range(1, data):
        circuit.cx(0, place)
    circuit.rx(0.8, 0)  # an error
    for n in range(helpers):
        circuit.cx(n, data + n)
        circuit.cx(n + 1, data + n)
        circuit.measure(data + n, n)
    with circuit.if_test((syndrome, 1)):
        circuit.x(0)
    circuit.measure(range(data), result)
    return circuit


def _phase_flip_code(_: int) -> QuantumCircuit:
    circuit = QuantumCircuit(3, 1)
    circuit.ry(0.9, 0)
    circuit.cx(0, [1, 2])
    circuit.h(range(3))
    circuit.z(1)
    circuit.h(range(3))
    circuit.cx(0, [1, 2])
    circuit.ccx(1, 2, 0)
    circuit.measure(0, 0)
    return circuit


def _toffoli(_: int) -> QuantumCircuit:
    circuit = QuantumCircuit(3)
    circuit.h([0, 1])
    circuit.ccx(0, 1, 2)
    return circuit


def _fredkin(_: int) -> QuantumCircuit:
    circuit = QuantumCircuit(3)
    circuit.h(0)
    circuit.x(1)
    circuit.cswap(0, 1, 2)
    return circuit


def _ising(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits)
    for _ in range(4):
        for pair in pairwise(range(qubits)):
            circuit.rzz(0.3, *pair)
        circuit.rx(0.5, range(qubits))
    return circuit


def _heisenberg(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits)
    circuit.x(range(0, qubits, 2))
    for _ in range(3):
        for pair in pairwise(range(qubits)):
            circuit.rxx(0.4, *pair)
            circuit.ryy(0.4, *pair)
            circuit.rzz(0.4, *pair)
    return circuit


def _hidden_shift(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits)
    shifted = [*range(0, qubits, 3)]
    for mirrored in (shifted, []):
        circuit.h(range(qubits))
        for place in mirrored:
            circuit.x(place)
        for place in range(0, qubits - 1, 2):
            circuit.cz(place, place + 1)
        for place in mirrored:
            circuit.x(place)
    circuit.h(range(qubits))
    return circuit


def _graph_state(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits)
    circuit.h(range(qubits))
    for pair in pairwise([*range(qubits), 0]):
        circuit.cz(*pair)
    circuit.sxdg(range(qubits))
    return circuit


def _walk(qubits: int) -> QuantumCircuit:
    circuit = QuantumCircuit(qubits)
    for _ in range(3):
        circuit.h(0)
        for place in reversed(range(1, qubits)):
            circuit.mcx([*range(place)], place)
        circuit.x(0)
    return circuit


def _dense_coding(_: int) -> QuantumCircuit:
    circuit = _ghz(2)
    circuit.x(0)
    circuit.z(0)
    circuit.cx(0, 1)
    circuit.h(0)
    return circuit


def _random(qubits: int) -> QuantumCircuit:
    random = Random(qubits)
    circuit = QuantumCircuit(qubits)
    for _ in range(5):
        places = random.sample(range(qubits), qubits)
        for place in places:
            circuit.u(*(random.uniform(-3, 3) for _ in range(3)), place)
        for a, b in zip(places[::2], places[1::2], strict=False):
            circuit.append(random.choice(_TWO)(random.uniform(-3, 3)), [a, b])
    return circuit


_TWO = CPhaseGate, RXXGate, RZXGate, XXPlusYYGate
_FAMILIES: dict[str, tuple[Callable[[int], QuantumCircuit], Sequence[int]]] = {
    "Bell and GHZ states": (_ghz, (2, 5, 20)),
    "W state": (_w_state, (4, 9)),
    "Fourier transform": (_qft, (4, 10)),
    "phase estimation": (_qpe_exact, (5, 9)),
    "phase estimation, inexact": (_qpe_inexact, (6,)),
    "phase estimation, iterative": (_iterative_estimation, (4,)),
    "Bernstein-Vazirani": (_hidden_string, (8, 20)),
    "Deutsch-Jozsa": (_balanced, (2, 10)),
    "Simon": (_simon, (6,)),
    "Grover": (_grover, (3, 5)),
    "adder, Cuccaro": (_adder, (4, 10)),
    "adder, Draper": (_draper, (8,)),
    "multiplier": (_multiplier, (8,)),
    "QAOA": (_qaoa, (6, 12)),
    "VQE ansatz": (_ansatz, (4, 11)),
    "neural network": (_neurons, (6,)),
    "swap test": (_swap_test, (5,)),
    "teleportation": (_teleportation, (3,)),
    "bit-flip code": (_bit_flip_code, (5,)),
    "phase-flip code": (_phase_flip_code, (3,)),
    "Toffoli": (_toffoli, (3,)),
    "Fredkin": (_fredkin, (3,)),
    "Ising": (_ising, (10, 16)),
    "Heisenberg": (_heisenberg, (6,)),
    "hidden shift": (_hidden_shift, (8,)),
    "graph state": (_graph_state, (10,)),
    "quantum walk": (_walk, (4,)),
    "dense coding": (_dense_coding, (2,)),
    "random": (_random, (4, 8)),
}

"""Compares circuits of SDKs with the SDK's own simulator; see :mod:`.circuits`.

Each is run by the Python of an environment that has the SDK.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from qiskit import qasm3

from sf_quantum.protocol.descriptions import Description
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.circuits.batches import batch
from tests.benchmarks.circuits import EXACT, running
from tests.support.circuit_paths import SHOTS
from tests.support.circuits import LEAST_P, p_value, probabilities, random_circuits

if TYPE_CHECKING:
    from types import ModuleType

    from sf_quantum.qpu.sdks.qiskit import QpuBackend

WIRES = 3
#: counts, and the probabilities of the SDK's own simulator
Pair = tuple[Mapping[str, int], Mapping[str, float]]


def compare(sdk: str, count: int, seed: int) -> str:
    """Run circuits of an SDK; return a line of a table."""
    if sdk == "zne":
        wrong = sum(_folded(count, seed))
    else:
        made = {"pennylane": _pennylane, "qrisp": _qrisp, "cirq": _cirq}[sdk](seed)
        wrong = sum(p_value(*pair) < LEAST_P for pair in islice(made, count))
    return f"| {sdk} | {count} | 0 | {wrong} |"


def _folded(count: int, seed: int) -> Iterator[bool]:
    """Tell of each circuit whether one at a larger scale of noise does something else."""
    from sf_quantum.qpu.passes.zne import Zne

    folding = Zne(Description("superconducting", 5, ("circuit",)))
    for case in islice(random_circuits(seed, conditionals=False), 0, 5 * count, 5):
        wanted = probabilities(case.circuit)
        for text in folding.circuits(qasm3.dumps(case.circuit)):
            (group,) = batch(text).groups
            found = probabilities(next(group.bound()))
            words = found.keys() | wanted.keys()
            distance = max(abs(found.get(w, 0) - wanted.get(w, 0)) for w in words)
            if distance > EXACT:
                print(case.name, distance)
                yield True


def _backend(url: str, lease: str) -> QpuBackend:
    return SfqQpu("q", url, lease=lease).backend()


def _angles(random: Random, count: int) -> list[float]:
    return [random.uniform(-math.pi, math.pi) for _ in range(count)]


# names, wires and angles
_PENNYLANE = (
    *(("Hadamard", 1, 0), ("PauliX", 1, 0), ("PauliY", 1, 0), ("PauliZ", 1, 0)),
    *(("S", 1, 0), ("T", 1, 0), ("SX", 1, 0), ("RX", 1, 1), ("RY", 1, 1), ("RZ", 1, 1)),
    *(("PhaseShift", 1, 1), ("U1", 1, 1), ("U2", 1, 2), ("U3", 1, 3), ("Rot", 1, 3)),
    *(("CNOT", 2, 0), ("CZ", 2, 0), ("CY", 2, 0), ("CH", 2, 0), ("SWAP", 2, 0)),
    *(("ISWAP", 2, 0), ("ECR", 2, 0), ("CRX", 2, 1), ("CRY", 2, 1), ("CRZ", 2, 1)),
    *(("ControlledPhaseShift", 2, 1), ("IsingXX", 2, 1), ("IsingYY", 2, 1)),
    *(("IsingZZ", 2, 1), ("Toffoli", 3, 0), ("CSWAP", 3, 0)),
)


def _pennylane(seed: int) -> Iterator[Pair]:
    qml: ModuleType = importlib.import_module("pennylane")
    with running(6, "complete") as service:
        lease = service.acquire()
        device = SfqQpu("q", service.url, lease=lease).device(WIRES)
        number = 0
        while True:
            program = _pennylane_program(qml, f"{seed} {number}")
            node = qml.set_shots(qml.QNode(program(qml.counts), device), SHOTS)
            exact = qml.QNode(
                program(qml.probs), qml.device("default.qubit", wires=WIRES)
            )
            chances = {
                f"{n:0{WIRES}b}": float(p) for n, p in enumerate(exact()) if p > 1e-12
            }
            yield {str(word): int(n) for word, n in node().items()}, chances
            number += 1


def _pennylane_program(
    qml: ModuleType, seed: str
) -> Callable[[Callable[..., object]], Callable[[], object]]:
    def measured(by: Callable[..., object]) -> Callable[[], object]:
        def program() -> object:
            random = Random(seed)
            for wire in range(WIRES):
                qml.Rot(*_angles(random, 3), wires=wire)
            for _ in range(12):
                name, count, angles = random.choice(_PENNYLANE)
                wires = random.sample(range(WIRES), count)
                made = getattr(qml, name)
                if random.random() < 0.3:
                    made = qml.adjoint(made)
                made(*_angles(random, angles), wires=wires)
            return by(wires=range(WIRES))

        return program

    return measured


_QRISP = (
    *(("h", 1, 0), ("x", 1, 0), ("y", 1, 0), ("z", 1, 0), ("s", 1, 0), ("t", 1, 0)),
    *(("sx", 1, 0), ("rx", 1, 1), ("ry", 1, 1), ("rz", 1, 1), ("p", 1, 1)),
    *(("cx", 2, 0), ("cz", 2, 0), ("cp", 2, 1), ("crz", 2, 1), ("swap", 2, 0)),
    *(("rxx", 2, 1), ("rzz", 2, 1)),
)


def _qrisp(seed: int) -> Iterator[Pair]:
    qrisp: ModuleType = importlib.import_module("qrisp")
    interface: ModuleType = importlib.import_module("qrisp.interface")
    with running(6, "complete") as service:
        backend = interface.QiskitBackend(_backend(service.url, service.acquire()))
        number = 0
        while True:
            random = Random(f"{seed} {number}")
            variable = qrisp.QuantumVariable(WIRES)
            for qubit in variable:
                qrisp.u3(*_angles(random, 3), qubit)
            for _ in range(12):
                name, count, angles = random.choice(_QRISP)
                qubits = random.sample([*variable], count)
                getattr(qrisp, name)(*_angles(random, angles), *qubits)
            if number % 3 == 0:  # which Qrisp compiles itself
                qrisp.mcx([variable[0], variable[1]], variable[2])
            exact = {
                str(word): float(chance)
                for word, chance in variable.get_measurement().items()
            }
            shares = variable.get_measurement(backend=backend, shots=SHOTS)
            yield {
                str(word): round(share * SHOTS) for word, share in shares.items()
            }, exact
            number += 1


def _cirq(seed: int) -> Iterator[Pair]:
    cirq: ModuleType = importlib.import_module("cirq")
    iqm: ModuleType = importlib.import_module("iqm.cirq_iqm.iqm_sampler")
    one = (cirq.H, cirq.X, cirq.Y, cirq.Z, cirq.S, cirq.T, cirq.X**0.5, cirq.Y**0.3)
    two = (cirq.CNOT, cirq.CZ, cirq.SWAP, cirq.ISWAP, cirq.CZ**0.3, cirq.ZZ**0.7)
    with running(20, "square", tcp=True) as service:
        sampler = iqm.IQMSampler(service.url, token="any")
        qubits = cirq.LineQubit.range(WIRES)
        number = 0
        while True:
            random = Random(f"{seed} {number}")
            circuit = cirq.Circuit()
            for _ in range(14):
                gates = one if random.random() < 0.5 else two
                gate = random.choice(gates)
                circuit.append(gate(*random.sample(qubits, cirq.num_qubits(gate))))
                circuit.append(cirq.rx(*_angles(random, 1))(random.choice(qubits)))
            state = cirq.final_state_vector(circuit, qubit_order=qubits)
            chances = {
                f"{n:0{WIRES}b}": float(abs(amplitude) ** 2)
                for n, amplitude in enumerate(state)
                if abs(amplitude) ** 2 > 1e-9
            }
            circuit.append(cirq.measure(*qubits, key="m"))
            native = sampler.device.decompose_circuit(circuit)
            number += 1
            try:
                routed, _, _ = sampler.device.route_circuit(native)
            except IndexError:  # of Cirq's router, which fails with some circuits
                continue
            ready = sampler.device.decompose_circuit(routed)
            found = sampler.run(ready, repetitions=SHOTS).histogram(key="m")
            yield {f"{word:0{WIRES}b}": int(n) for word, n in found.items()}, chances

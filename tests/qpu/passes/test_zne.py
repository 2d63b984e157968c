"""Zero-noise extrapolation, and what it gains: with Mitiq, or what stands in for it."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from qiskit import QuantumCircuit, qasm3, transpile
from qiskit.primitives import BackendEstimatorV2
from qiskit.quantum_info import Operator, SparsePauliOp, Statevector

from sf_quantum.errors import InputError
from sf_quantum.protocol.descriptions import Description
from sf_quantum.qpu.passes import Passes, whole
from sf_quantum.qpu.passes.zne import Zne
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.service import running_service

ANY_GATES = Description("superconducting", 3, ("circuit",))
NATIVE = Description("superconducting", 3, ("circuit",), native_gates=("r", "cz"))
INSTALLED = importlib.util.find_spec("mitiq") is not None


@dataclass(frozen=True)
class Qubit:
    x: int


@dataclass(frozen=True)
class Gate:
    exponent: float = 1.0
    phase_exponent: float = 0.0

    def __call__(self, *qubits: Qubit) -> Operation:
        return Operation(self, qubits)

    def inverse(self) -> Gate:
        return type(self)(-self.exponent, self.phase_exponent)


class CZGate(Gate):
    """Another type, as in Cirq."""


@dataclass(frozen=True)
class Operation:
    gate: Gate
    qubits: tuple[Qubit, ...]


class Circuit:
    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = [*operations]

    def all_operations(self) -> list[Operation]:
        return self._operations

    def __bool__(self) -> bool:
        return bool(self._operations)


def fold_global(circuit: Circuit, scale: float) -> Circuit:
    once = circuit.all_operations()
    back = [one.gate.inverse()(*one.qubits) for one in reversed(once)]
    return Circuit([*once, *(back + once) * (int(scale - 1) // 2)])


class RichardsonFactory:
    @staticmethod
    def extrapolate(scales: Sequence[float], values: Sequence[float]) -> float:
        return sum(
            value * math.prod(other / (other - one) for other in scales if other != one)
            for one, value in zip(scales, values, strict=True)
        )


@pytest.fixture(autouse=True)
def mitiq(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pass needs of Mitiq and Cirq, where they are not installed."""
    if INSTALLED:
        return
    parts: dict[str, dict[str, Circuit | Gate | Callable[..., Any] | type]] = {
        "cirq": {
            "CZ": CZGate(),
            "CZPowGate": CZGate,
            "Circuit": Circuit,
            "LineQubit": Qubit,
            "PhasedXPowGate": Gate,
        },
        "mitiq": {},
        "mitiq.zne": {},
        "mitiq.zne.inference": {"RichardsonFactory": RichardsonFactory},
        "mitiq.zne.scaling": {"fold_global": fold_global},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        for key, value in content.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)


def trotter_step() -> QuantumCircuit:
    """A step of a chain's evolution in time."""
    circuit = QuantumCircuit(4)
    for qubit in range(3):
        circuit.rzz(-0.6, qubit, qubit + 1)
    circuit.rx(-0.6, range(4))
    return circuit


def energy() -> SparsePauliOp:
    """Ising's, of a chain of four in a transverse field."""
    terms = [("ZZ", [qubit, qubit + 1], -1.0) for qubit in range(3)]
    fields = [("X", [qubit], -1.0) for qubit in range(4)]
    energy: SparsePauliOp = SparsePauliOp.from_sparse_list([*terms, *fields], 4)
    return energy


def test_an_energy_comes_nearer_to_the_exact_one() -> None:
    device = EmulatedDevice(
        technology="superconducting",
        topology="square",
        qubits=5,
        time_scale=0.0,
        noise=1.0,
        seed=7,
    )
    exact = Statevector(trotter_step()).expectation_value(energy()).real
    errors = []
    with running_service(device) as service:
        backend = SfqQpu("q", service.url, lease=service.acquire()).backend()
        circuit = transpile(trotter_step(), backend, seed_transpiler=1)
        observable = energy().apply_layout(circuit.layout)
        for mitigation in ("", "zne", "zne, readout"):
            backend.set_options(mitigation=mitigation)
            estimator = BackendEstimatorV2(
                backend=backend,
                options={"seed_simulator": 1, "default_precision": 1 / 64},
            )
            values = estimator.run([(circuit, observable)]).result()[0].data
            errors.append(abs(float(values.evs) - exact))
    plain, extrapolated, both = errors
    assert plain > 0.45
    assert extrapolated < 0.3
    assert both < 0.2


@pytest.mark.parametrize("described", [ANY_GATES, NATIVE])
def test_a_circuit_is_folded_and_does_the_same(described: Description) -> None:
    circuit = QuantumCircuit(3, 2)
    circuit.r(0.3, 0.2, 2)
    circuit.cz(1, 2)
    circuit.barrier()
    circuit.r(-1.3, 7.2, 1)
    circuit.measure([2, 1], [0, 1])
    once, thrice, five = Zne(described).circuits(qasm3.dumps(circuit))
    folded = qasm3.loads(thrice)
    measured = folded.count_ops().pop("measure")
    assert (measured, folded.count_ops()["cz"], folded.count_ops()["r"]) == (2, 3, 6)
    assert qasm3.loads(five).count_ops()["cz"] == 5
    whole_circuit = circuit.remove_final_measurements(inplace=False)
    for text in (once, thrice, five):
        loaded = qasm3.loads(text)
        measures = [one for one in loaded.data if one.operation.name == "measure"]
        places = [
            (loaded.find_bit(one.qubits[0]).index, loaded.find_bit(one.clbits[0]).index)
            for one in measures
        ]
        assert places == [(2, 0), (1, 1)]
        loaded.data = [one for one in loaded.data if one.operation.name != "measure"]
        loaded.remove_final_measurements()
        assert Operator(loaded).equiv(Operator(whole_circuit))


def test_other_gates_are_translated_unless_the_qpu_lacks_them() -> None:
    circuit = QuantumCircuit(2)
    circuit.h(0)
    circuit.cx(0, 1)
    circuit.measure_all()
    text = qasm3.dumps(circuit)
    assert [one.count("cz ") for one in Zne(ANY_GATES).circuits(text)] == [1, 3, 5]
    with pytest.raises(InputError, match=r"mitigation zne: circuit: line .: h is not"):
        Zne(NATIVE).circuits(text)
    circuit.reset(0)
    circuit.measure(0, 0)
    with pytest.raises(InputError, match="mitigation zne: "):
        Zne(ANY_GATES).circuits(qasm3.dumps(circuit))


def test_a_qubit_that_is_used_after_its_measurement_is_refused() -> None:
    circuit = QuantumCircuit(1, 2)
    circuit.measure(0, 0)
    circuit.r(0.1, 0.2, 0)
    circuit.measure(0, 1)
    with pytest.raises(InputError, match="qubit 0 is used again after its measurement"):
        Zne(NATIVE).circuits(qasm3.dumps(circuit))


def test_without_gates_there_is_nothing_to_fold() -> None:
    circuit = QuantumCircuit(1, 1)
    circuit.measure(0, 0)
    first, second, third = Zne(NATIVE).circuits(qasm3.dumps(circuit))
    assert first == second == third
    assert "measure" in first


def test_counts_are_extrapolated_to_quasi_probabilities() -> None:
    """A parabola through the values; where they fall to nothing, below it."""
    counts = Zne(NATIVE).counts([{"0": 90, "1": 10}, {"0": 70, "1": 30}, {"1": 100}])
    assert counts == pytest.approx({"0": 81.25, "1": 18.75})
    constant = Zne(NATIVE).counts([{"0": 3, "1": 97}] * 3)
    assert constant == pytest.approx({"0": 3, "1": 97})
    below = Zne(NATIVE).counts([{"0": 99, "1": 1}, {"0": 95, "1": 5}, {"0": 100}])
    assert below["1"] < 0
    assert sum(whole(below).values()) == 100


def test_single_shots_and_negative_counts_are_refused() -> None:
    with pytest.raises(InputError, match="zne must be the first, since its counts may"):
        Passes("readout,zne", NATIVE)
    with pytest.raises(InputError, match="zne: it mitigates expectation values, which"):
        Passes("zne", NATIVE).check_shots()
    Passes("", NATIVE).check_shots()


def test_without_mitiq_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"mitiq is not installed \(pip install"):
        Zne(NATIVE)

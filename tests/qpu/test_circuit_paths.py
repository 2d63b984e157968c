"""Circuits compute what they say: on every path, against matrices and state vectors.

A benchmark runs more of them, also with the SDKs that the tests' environment lacks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from qiskit import QuantumCircuit, qasm2, qasm3, transpile
from qiskit.circuit import (
    AnnotatedOperation,
    ControlModifier,
    Instruction,
    InverseModifier,
    PowerModifier,
)
from qiskit.circuit.classical import expr
from qiskit.circuit.library import RYGate

from sf_quantum import qpu
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu.sdks.qiskit import QpuBackend
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.qpu.vendors.iqm import IqmServer
from sf_quantum.service.device.emulator.circuits.batches import batch
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.circuit_paths import Paths, differences, iqm_api, run
from tests.support.circuits import (
    LEAST_P,
    Case,
    defined_gates,
    modified_gates,
    named_gates,
    p_value,
    probabilities,
    qiskit_gates,
    random_circuits,
)
from tests.support.service import RunningService, running_service

pytestmark = pytest.mark.process

WRITTEN = [
    *named_gates(3, 1, 5),
    *named_gates(2, 1, 6),
    *modified_gates(1, 4),
    *islice(defined_gates(1), 4),
]
GATES = [*qiskit_gates(1, 5)]
RANDOM = [*islice(random_circuits(1), 20)]
EXACT = 1e-9


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    device = EmulatedDevice(
        technology="superconducting", qubits=6, time_scale=0.0, noise=0.0
    )
    with running_service(device) as running:
        yield running


@pytest.fixture(scope="module")
def paths(service: RunningService) -> Paths:
    return Paths(SfqQpu("q", service.url, lease=service.acquire()))


@pytest.fixture(scope="module")
def lattice() -> Iterator[RunningService]:
    device = EmulatedDevice(
        technology="superconducting", qubits=5, time_scale=0.0, noise=0.0
    )
    with running_service(device, tcp=True) as running:
        yield running


def distance(text: str, circuit: QuantumCircuit) -> float:
    """Return how far what is simulated for a text is from a circuit, at most."""
    (group,) = batch(text).groups
    (read,) = group.bound()
    found, wanted = probabilities(read), probabilities(circuit)
    words = found.keys() | wanted.keys()
    return max(abs(found.get(word, 0) - wanted.get(word, 0)) for word in words)


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case.name)
def test_texts_mean_what_their_matrices_are(case: Case) -> None:
    (text,) = case.texts
    assert distance(text, case.circuit) < EXACT


@pytest.mark.parametrize("case", GATES, ids=lambda case: case.name)
def test_gates_of_qiskit_are_what_qiskit_says(case: Case) -> None:
    for dumps in (qasm3.dumps, qasm2.dumps):
        assert distance(dumps(case.circuit), case.circuit) < EXACT


NAMES = [*Paths.named(Paths.__new__(Paths))]


@pytest.mark.parametrize("name", NAMES)
def test_counts_fit_on_each_path(paths: Paths, name: str) -> None:
    on_backend = name.startswith(("backend", "pass"))
    written = [case for case in RANDOM if on_backend or has_bits_in_order(case.circuit)]
    assert len(written) == (len(RANDOM) if on_backend else 8)
    # every path takes these gates alike, so that each has a third of them
    gates = GATES[NAMES.index(name) % 3 :: 3]
    found = [*differences([*gates, *written], paths.named()[name])]
    assert all("its registers share bits" in why for _, why in found)
    assert [case for case, _ in found] == [
        case for case in written if has_shared_conditions(case.circuit)
    ]


def has_bits_in_order(circuit: QuantumCircuit) -> bool:
    """Tell whether a circuit's bits are in the order in which Qiskit writes them."""
    return bool([bit for one in circuit.cregs for bit in one] == circuit.clbits)


def has_shared_conditions(circuit: QuantumCircuit) -> bool:
    """Tell whether a circuit has conditions, and registers that share bits."""
    bits = [bit for one in circuit.cregs for bit in one]
    return len({*bits}) < len(bits) and "if_else" in circuit.count_ops()


def test_texts_run_by_themselves(paths: Paths) -> None:
    for case in WRITTEN[::3]:
        found = paths.sent(case.texts[0])
        assert p_value(found[0], probabilities(case.circuit)) > LEAST_P


def test_counts_fit_on_a_lattice(lattice: RunningService) -> None:
    cases = [*islice(random_circuits(2, conditionals=False), 5)]
    lease = lattice.acquire()
    path = Paths(SfqQpu("q", lattice.url, lease=lease)).transpiled
    assert not [*differences(cases, path)]
    lattice.ask("DELETE", f"/v1/leases/{lease}")


def test_counts_fit_over_the_api_of_iqm(lattice: RunningService) -> None:
    pytest.importorskip("iqm.qiskit_iqm", reason="install iqm-client[qiskit]")
    # Qiskit on IQM takes no bits without a register
    made = random_circuits(3, conditionals=False)
    cases = [*islice((one for one in made if has_bits_in_order(one.circuit)), 5)]
    assert not [*differences(cases, iqm_api(lattice.url))]


def test_counts_fit_on_an_iqm_server(lattice: RunningService, tmp_path: Path) -> None:
    environment: JSON = {
        "QRMI_IQM_ISA_ENDPOINT": lattice.url,
        "QRMI_IQM_ISA_TOKEN": "secret",
    }
    entry: JSON = {
        "name": "emulator",
        "type": "iqm-server",
        "environment": environment,
    }
    file = tmp_path / "qrmi_config.json"
    file.write_text(json.dumps({"resources": [entry]}))
    client = qpu.load("iqm-server").from_config("emulator", {"qrmiConfig": str(file)})
    assert isinstance(client, IqmServer)
    cases = [*islice(random_circuits(4, conditionals=False), 5)]
    assert not [*differences(cases, Paths(client).transpiled)]


def expanded() -> dict[str, QuantumCircuit]:
    """Return circuits with what OpenQASM has no words for."""
    made = {
        name: QuantumCircuit(3, 3)
        for name in (
            "initialize",
            "annotations",
            "gates",
            "measures",
            "nested",
            "blocks",
        )
    }
    made["initialize"].h(0)
    made["initialize"].initialize([0.6, 0, 0, 0.8j], [2, 1])
    state = AnnotatedOperation(
        RYGate(0.7), [PowerModifier(2), InverseModifier(), ControlModifier(2, 1)]
    )
    made["annotations"].ry(1.0, [0, 1, 2])
    made["annotations"].append(state, [2, 0, 1])
    held = QuantumCircuit(2, name="held")
    held.ry(0.4, [0, 1])
    held.append(RYGate(0.7).control(1, annotated=True), [1, 0])
    held.prepare_state([0.6, 0.8j], 0)
    made["gates"].ry(1.0, [0, 1, 2])
    made["gates"].append(held.to_gate(), [2, 0])
    made["gates"].append(AnnotatedOperation(state, PowerModifier(2)), [1, 2, 0])
    twice = AnnotatedOperation(held.to_gate(), InverseModifier())
    made["gates"].append(AnnotatedOperation(twice, ControlModifier(1)), [0, 2, 1])
    inner = QuantumCircuit(2, 1, name="inner")
    inner.ry(0.9, 0)
    inner.measure(0, 0)
    inner.cx(0, 1)
    inner.reset(0)
    made["measures"].h(2)
    made["measures"].append(inner.to_instruction(), [1, 2], [2])
    outer = QuantumCircuit(3, 2, name="outer")
    outer.initialize("10", [0, 2])
    outer.append(inner.to_instruction(), [2, 1], [0])
    made["nested"].append(outer.to_instruction(), [1, 0, 2], [2, 0])
    made["blocks"].ry(0.8, 0)
    made["blocks"].measure(0, 0)
    with made["blocks"].if_test((made["blocks"].clbits[0], 1)) as otherwise:
        made["blocks"].initialize("1", 1)
    with otherwise, made["blocks"].for_loop(range(3)) as step:
        made["blocks"].rx(step * 0.4, 1)
        made["blocks"].append(RYGate(0.3).control(1, annotated=True), [1, 2])
    with made["blocks"].box():
        made["blocks"].h(0)
    for name, circuit in made.items():
        bits = [1] if name in ("measures", "nested") else [0, 1, 2]
        circuit.measure(bits, bits)
    return made


def loops(number: int) -> Iterator[QuantumCircuit]:
    """Yield a circuit with loops over ranges, and the same written out."""
    draws = random.Random(number)
    looped, plain = QuantumCircuit(2, 2), QuantumCircuit(2, 2)
    for _ in range(3):
        ends = draws.randint(-4, 4), draws.randint(-4, 4)
        values = range(*ends, draws.choice([-3, -2, -1, 1, 2]))
        with looped.for_loop(values) as value:
            looped.rx(value * 0.4 + 0.3, 0)
            with looped.for_loop(range(2, values.step, values.step)):
                looped.ry(0.5, 1)
            looped.cx(0, 1)
        for one in values:
            plain.rx(one * 0.4 + 0.3, 0)
            for _ in range(2, values.step, values.step):
                plain.ry(0.5, 1)
            plain.cx(0, 1)
    for circuit in (looped, plain):
        circuit.measure([0, 1], [0, 1])
        yield circuit


@pytest.mark.parametrize("compiled", [False, True])
def test_backend_runs_loops_over_any_range(paths: Paths, compiled: bool) -> None:
    backend = QpuBackend(paths.qpu)
    made = [[*loops(number)] for number in range(20)]
    looped = [one for one, _ in made]
    if compiled:
        looped = transpile(looped, backend, optimization_level=1)
    found = run(backend, looped)
    for counts, (_, plain) in zip(found, made, strict=True):
        assert p_value(counts, probabilities(plain)) > LEAST_P


@pytest.mark.parametrize("name", [*expanded()])
@pytest.mark.parametrize("compiled", [False, True])
def test_backend_runs_what_openqasm_has_no_words_for(
    paths: Paths, name: str, compiled: bool
) -> None:
    circuit = expanded()[name]
    plain = transpile(
        circuit,
        basis_gates=["u", "cx", "if_else", "for_loop", "box"],
        seed_transpiler=1,
    )
    if compiled:
        circuit = transpile(circuit, QpuBackend(paths.qpu), optimization_level=1)
    (found,) = run(QpuBackend(paths.qpu), [circuit])
    assert p_value(found, probabilities(plain)) > LEAST_P


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "run: expected a circuit or a list of them, not 'NoneType'"),
        (3, "run: expected a circuit or a list of them, not 'int'"),
        ([], "run: expected a circuit or a list of them, not an empty list"),
        ([None], "run: expected a circuit or a list of them, not others in it"),
        ("switch", "switch_case: only if, else, for and box run here"),
        ("while", "while_loop: only if, else, for and box run here"),
        ("break", "break_loop: loops run to their end here"),
        ("store", "store: bits and variables get no values here"),
        ("less", "a condition is a bit, !bit, bit == 1 or register == 2"),
        ("save", "save_statevector: it cannot be written in OpenQASM"),
    ],
)
def test_backend_tells_what_it_does_not_run(
    paths: Paths, given: list[None] | str | int | None, why: str
) -> None:
    circuit = QuantumCircuit(1, 2, name="mine")
    circuit.measure(0, 0)
    if given == "switch":
        with circuit.switch(circuit.cregs[0]) as case, case(1):
            circuit.x(0)
    elif given == "while":
        with circuit.while_loop((circuit.clbits[0], 0)):
            circuit.measure(0, 0)
    elif given == "break":
        with circuit.for_loop(range(2)):
            circuit.break_loop()
    elif given == "store":
        circuit.store(circuit.clbits[0], True)
    elif given == "less":
        with circuit.if_test(expr.less(circuit.cregs[0], 2)):
            circuit.x(0)
    elif given == "save":
        circuit.append(Instruction("save_statevector", 1, 0, []), [0])
    made = circuit if isinstance(given, str) else given
    with pytest.raises(InputError) as caught:
        QpuBackend(paths.qpu).run(made).result()
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200

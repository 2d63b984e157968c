"""Circuits in OpenQASM 3: what they give, and which are refused."""

from __future__ import annotations

import json
import math
import threading

import pytest

from sf_quantum.files import JSON
from sf_quantum.qpu.jobs import Task
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.circuit import CircuitSimulator, simulate
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.openqasm import Circuit, CircuitError
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
from tests.service import running_service

HEAD = 'OPENQASM 3.0;\ninclude "stdgates.inc";\n'
BELL = f"{HEAD}bit[2] c; qubit[2] q;\nh q[0];\ncx q[0], q[1];\nc = measure q;\n"


def counts(text: str, shots: int = 2000, seed: int = 1) -> dict[str, int]:
    parameters = {"num_reads": shots, "seed": seed}
    CircuitSimulator().check(text, qubits=10)
    found = simulate(text, parameters)
    assert sum(found.values()) == shots
    return found


def test_a_pair_is_read_alike() -> None:
    found = counts(BELL)
    assert found.keys() == {"00", "11"}
    assert found["00"] == pytest.approx(1000, abs=150)
    assert counts(BELL) == found != counts(BELL, seed=2)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        # the highest bit first, and the last register first
        ("qubit[3] q; bit[3] c; x q[0]; c = measure q;", "001"),
        ("qubit[2] q; bit a; bit[2] b; x q[0]; b[1] = measure q[0];", "100"),
        ("bit[2] c; x $7; c[0] = measure $7; c[1] = measure $3;", "01"),
        ("qubit[3] q; bit[3] c; x q; cx q[0], q[1]; c = measure q;", "101"),
        (
            "qubit[3] q; bit[3] c; x q[0]; x q[1]; ccx q[0],q[1],q[2]; c=measure q;",
            "111",
        ),
        ("qubit[2] q; bit[2] c; x q[0]; swap q[0], q[1]; c = measure q;", "10"),
        (
            "qubit[3] q; bit[3] c; x q[0]; x q[1]; cswap q[0],q[1],q[2]; c=measure q;",
            "101",
        ),
        ("qubit q; bit c; h q; z q; h q; c = measure q;", "1"),
        ("qubit q; bit c; rx(pi) q; c = measure q;", "1"),
        ("qubit q; bit c; ry(-(2*pi)/2 + 0.0) q; c = measure q;", "1"),
        ("qubit q; bit c; U(π, 0, pi) q; c = measure q;", "1"),
        ("qubit q; bit c; sx q; sx q; barrier q; c = measure q;", "1"),
        ("qubit q; bit c; h q; p(tau/2) q; h q; c = measure q;", "1"),
        ("qubit q; bit c; h q; s q; s q; t q; tdg q; h q; c = measure q;", "1"),
        (
            "qubit[2] q; bit[2] c; x q[0]; h q[1]; cz q[0], q[1]; h q[1]; c=measure q;",
            "11",
        ),
        ("qubit[2] q; bit[2] c; x q[0]; crx(pi) q[0], q[1]; c = measure q;", "11"),
        (
            "qubit[2] q; bit[2] c; x q[0]; cu(pi,0,pi,0.3) q[0], q[1]; c=measure q;",
            "11",
        ),
        ("qubit q; bit c; u2(0, pi) q; rz(cos(0)*pi) q; h q; c = measure q;", "1"),
        (
            "gate flip(a) one, two { rx(a) one; cx one, two; /* both */ }\n"
            "gate twice(b) one, two { flip(b / 2) one, two; barrier one; flip(b/2) two, one; }\n"
            "qubit[2] q; bit[2] c; flip(pi) q[0], q[1]; c = measure q; // done",
            "11",
        ),
    ],
)
def test_what_is_certain(body: str, word: str) -> None:
    assert counts(HEAD + body, 10) == {word: 10}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("qubit q;", "measures nothing"),
        (
            "qubit[2] q; bit[2] c; c = measure q; x q[0];",
            "line 3: x: its qubit was measured",
        ),
        ("qubit[2] q; bit c; c = measure q;", "2 qubits into 1 bits"),
        ("qubit q; bit[2] c; c[0] = measure q; c[1] = measure q;", "measured twice"),
        ("qubit q; bit c;\nnope q;", "line 4: unknown gate 'nope'"),
        ("qubit q; x q[1];", r"'q\[1\]': q has 1 qubits"),
        ("bit c; x c;", "'c' is not a qubit"),
        ("qubit[2] q; cx q[0], q[0];", "the same qubit twice"),
        ("qubit[2] q; qubit[3] r; cx q, r;", "registers of different sizes"),
        ("qubit q; rx q;", "rx: expected 1 angles and 1 qubits"),
        ("qubit q; rx(1/0) q;", "is not an angle"),
        ("qubit q; rx(sqrt(-1)) q;", "is not an angle"),
        ("qubit q; rx(1e999) q;", "is not an angle"),
        ("qubit q; rx(alpha) q;", "'alpha' is not an angle"),
        ("qubit q; rx(__import__('os')) q;", "is not an angle"),
        ("qubit q; rx(2**1000) q;", "is not an angle"),
        ("qubit q; qubit q;", "once"),
        ("qubit q; if (true) { x q; }", "control flow is not supported"),
        ("qubit q; ctrl @ x q;", "is not a qubit"),
        ("qubit q; gate g a { g a; } g q;", "g: more than 20 nested definitions"),
        ("qubit q; gate g a { x b; } g q;", "unknown qubits b"),
        ("qubit q; gate g a { x a;", "missing closing brace"),
        ("qubit q; x q", "missing ; after a statement"),
        ("reset q;", "reset|'q' is not a qubit"),
    ],
)
def test_what_is_refused(body: str, words: str) -> None:
    with pytest.raises(CircuitError, match=words):
        Circuit(HEAD + body)


LONG = f"u1({'+'.join('a' * 49)}) q; "
DEFINED = [f"gate g{i} a {{ g{i - 1} a; g{i - 1} a; }}" for i in range(1, 20)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        # each gate is two of the one before, and the first does nothing
        (f"gate g0 a {{ }} {' '.join(DEFINED)} qubit q; g19 q;", "more than 100000"),
        (
            f"gate g0 a {{ {'barrier a; ' * 50} }} {' '.join(DEFINED[:12])} "
            "qubit q; g12 q;",
            "more than 100000",
        ),
        ("qubit[999999] q; gate e a { } e q;", "more than 100000"),
        ("qubit[999999] q; bit[999999] c; c = measure q;", "more than 100000"),
        ("qubit q; " * 50_000, "once"),
        ("qubit q;" + "\n" * 200_000 + "x", "line 200003: missing ; after a statement"),
        ("qubit q; x" + " " * 200_000 + ") q;", "is not supported"),
        ("qubit" + " " * 200_000 + "(;", "expected qubit"),
        ("x" * 200_000 + ");", "is not supported"),
        ("/*" * 200_000, "unterminated comment"),
        (
            f"gate e(a) q {{ {LONG * 20} }} qubit[999999] q; e(1) q;",
            "more than 100000",
        ),
        ("barrier q;\n" * 200_000 + "y;", "more than 100000 statements"),
        (";" * 2**20, "more than 100000 statements"),
    ],
)
def test_no_text_keeps_it_long(body: str, words: str) -> None:
    """A pattern that tried a text in many ways would take hours."""
    with pytest.raises(CircuitError, match=words):
        Circuit(HEAD + body)


def test_what_does_not_fit() -> None:
    runner = CircuitSimulator()
    wide = HEAD + "qubit[{0}] q; bit c; c = measure q[0];"
    with pytest.raises(FieldError, match="6 qubits do not fit on 5"):
        runner.check(wide.format(6), qubits=5)
    with pytest.raises(FieldError, match="21 qubits; at most 20 can be simulated"):
        runner.check(wide.format(21), qubits=100)
    with pytest.raises(FieldError, match="expected OPENQASM 3"):
        runner.check("OPENQASM 2.0;", qubits=5)
    with pytest.raises(FieldError, match="expected text"):
        runner.check(3, qubits=5)


def test_as_qiskit_has_it() -> None:
    why = "qiskit is not installed"
    random = pytest.importorskip("qiskit.circuit.random", reason=why)
    qasm3 = pytest.importorskip("qiskit.qasm3", reason=why)
    info = pytest.importorskip("qiskit.quantum_info", reason=why)
    for seed in range(8):
        made = random.random_circuit(4, 6, max_operands=3, seed=seed)
        expected = info.Statevector(made).probabilities_dict()
        made.measure_all()
        found = counts(qasm3.dumps(made), 20_000)
        for word in expected.keys() | found.keys():
            chance = expected.get(word, 0.0)
            sigma = math.sqrt(20_000 * max(chance, 1e-4))
            assert found.get(word, 0) == pytest.approx(20_000 * chance, abs=6 * sigma)


def test_on_a_device_with_gates() -> None:
    device = EmulatedDevice(
        technology="superconducting", time_scale=0, noise=1, seed=1, qubits=5
    )
    text = HEAD + "qubit[4] q; bit[4] c; x q[0]; x q[1]; c = measure q;"
    task = Task("t", "circuit", json.dumps(text), {"num_reads": 5000}, 1)
    outcome = device.run(task, threading.Event())
    assert outcome.qpu_seconds == pytest.approx(9.75 + 5000 * 250e-6)
    assert outcome.result is not None
    counter = json.loads(outcome.result.text)["counter"]
    assert isinstance(counter, dict)
    shares = [
        sum(n for word, n in counter.items() if word[3 - bit] == "1" if type(n) is int)
        / 5000
        for bit in range(4)
    ]
    errors = TECHNOLOGIES["superconducting"].errors
    for share in shares[:2]:
        assert 1 - share == pytest.approx(errors.false_zero, abs=0.006)
    for share in shares[2:]:
        assert share == pytest.approx(errors.false_one, abs=0.008)


def test_through_the_service() -> None:
    device = EmulatedDevice(technology="superconducting", time_scale=0, qubits=5)
    with running_service(device) as service:
        assert service.ask("GET", "/v1/device").json()["payloads"] == [
            *("problem", "sequence", "circuit")
        ]
        lease = service.acquire()
        job: dict[str, JSON] = {"circuit": BELL, "idempotency_key": "k"}
        job["parameters"] = {"num_reads": 50, "seed": 3}
        answer = service.ask("POST", "/v1/jobs", job, lease=lease)
        assert answer.status == 201
        id_ = service.until(lease, "Completed")
        counter = service.ask("GET", f"/v1/jobs/{id_}/result").json()["counter"]
        assert counter == counts(BELL, 50, 3)
        job |= {"circuit": BELL.replace("cx", "cxx"), "idempotency_key": "other"}
        answer = service.ask("POST", "/v1/jobs", job, lease=lease)
        assert (answer.status, answer.json()["field"]) == (422, "circuit")
        assert "line 5: unknown gate 'cxx'" in str(answer.json()["detail"])

"""Circuits in OpenQASM: what they give, and which are refused."""

from __future__ import annotations

import importlib.util
import json
import math
import secrets
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

import pytest
from pydantic import TypeAdapter
from qiskit import QuantumCircuit, qasm2, qasm3
from qiskit.circuit.random import random_circuit
from qiskit.quantum_info import Statevector

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Task
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.circuits import aer, openqasm
from sf_quantum.service.device.emulator.circuits.aer import simulate, size
from sf_quantum.service.device.emulator.circuits.batches import batch
from sf_quantum.service.device.emulator.circuits.circuit import (
    ARCHITECTURE,
    Architecture,
    CircuitSimulator,
)
from sf_quantum.service.device.emulator.circuits.templates import template_of
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.device_errors import Noise
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES, Errors
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.device.processes.merging import merge
from sf_quantum.service.device.readings import Calibration
from tests.support.circuits import LEAST_P, p_value, probabilities
from tests.support.service import example_bqm, running_service

HEAD = 'OPENQASM 3.0;\ninclude "stdgates.inc";\n'
BELL = f"{HEAD}bit[2] c; qubit[2] q;\nh q[0];\ncx q[0], q[1];\nc = measure q;\n"


def counts(text: str, shots: int = 2000, seed: int = 1) -> dict[str, int]:
    device = Architecture(10)
    told = ARCHITECTURE.dump_python(device, mode="json")
    assert size(text, told, noisy=False, bond_dimension=64)["circuits"] == 1
    (found,) = counters(text, shots, seed)
    return found


def counters(content: JSON, shots: int, seed: int = 1) -> list[dict[str, int]]:
    result = simulate(content, {"num_reads": shots, "seed": seed}, None, 64)
    found = result.get("counters", [result.get("counter")])
    assert isinstance(found, list)
    read = [TypeAdapter(dict[str, int]).validate_python(each) for each in found]
    assert all(sum(each.values()) == shots for each in read)
    return read


@pytest.mark.parametrize("head", [HEAD, 'OPENQASM 2.0;\ninclude "qelib1.inc";\n'])
def test_a_byte_order_mark_begins_a_text(head: str) -> None:
    body = "qreg q[1]; creg c[1]; rx(pi) q[0]; measure q -> c;"
    text = f"\N{ZERO WIDTH NO-BREAK SPACE}{head}{body}"
    assert counts(text, 10) == {"1": 10}
    assert counters([text, text], 10) == [{"1": 10}] * 2
    assert counters({"program": text, "values": [{}]}, 10) == [{"1": 10}]


def test_controlled_phases_of_a_program_are_computed() -> None:
    """Aer loses them if it gets their angles beside the circuit."""
    body = "qubit[2] q; bit[2] c; x q[0]; h q[1]; cp(ANGLE) q[0], q[1]; h q[1]; c = measure q;"
    texts = [HEAD + body.replace("ANGLE", angle) for angle in ("pi", "0.0", "2*pi")]
    assert counters([*texts], 10) == [{"11": 10}, {"01": 10}, {"01": 10}]
    free = f"{HEAD}input float a; {body.replace('ANGLE', 'a/2')}"
    values: list[JSON] = [{"a": 2 * math.pi}, {"a": 0}]
    program: JSON = {"program": free, "values": values}
    assert counters(program, 10) == [{"11": 10}, {"01": 10}]


def test_long_batches_are_given_to_aer_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[JSON] = [
        f"{HEAD}qubit q; bit c; rx({n}*pi) q; c = measure q;" for n in range(7)
    ]
    texts += [f"{HEAD}qubit q; bit c; h q; c = measure q;"] * 3
    whole = counters(texts, 1000)
    monkeypatch.setattr(aer, "MOST_STEPS", 5)
    parts = counters(texts, 1000)
    assert parts == counters(texts, 1000)
    # each circuit has a seed of its own
    assert len({str(one) for one in parts[7:]}) == 3
    assert whole[:7] == parts[:7] == [{f"{n % 2}": 1000} for n in range(7)]


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
        # angles are in the order of the definition, not of their names
        (
            "gate prx(t, p) q { U(t, p - pi/2, pi/2 - p) q; } "
            "qubit q; bit c; prx(pi, 0) q; c = measure q;",
            "1",
        ),
        (
            "gate f(t, p) q { U(p, t, 0) q; } gate g(b, a) q { f(a, b) q; } "
            "qubit q; bit c; g(pi, 0) q; c = measure q;",
            "1",
        ),
        ("qubit q; bit c; rx(pi) q; c = measure q;", "1"),
        # constants, and what is made of them
        ("qubit[1+1] q; bit[2*2-2] c; x q[4/2-1]; c = measure q;", "10"),
        (
            "const uint[8] n = 3; const float a = 2; const int last = n - 1; "
            "qubit[n] q; bit[n] c; rx(pi/a*2) q[last]; c[0:last] = measure q[0:n-1];",
            "100",
        ),
        # slices whose ends are counted from the end, and which go back
        ("qubit[4] q; bit[4] c; x q[1:-1]; c = measure q;", "1110"),
        ("qubit[4] q; bit[4] c; x q[3:-1:0]; c = measure q;", "1111"),
        ("qubit[4] q; bit[4] c; x q[0]; c[3:-1:0] = measure q[:];", "1000"),
        (
            "qubit[4] q; bit[4] c; let a = q[2:] ++ q[{1}]; x a[-1]; c = measure q;",
            "0010",
        ),
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
        ("qubit q; bit c; u2(0, pi) q; rz(pi) q; h q; c = measure q;", "1"),
        (
            "gate flip(a) one, two { rx(a) one; cx one, two; /* both */ }\n"
            "gate twice(b) one, two { flip(b / 2) one, two; flip(b/2) two, one; }\n"
            "qubit[2] q; bit[2] c; flip(pi) q[0], q[1]; c = measure q; // done",
            "11",
        ),
    ],
)
def test_what_is_certain(body: str, word: str) -> None:
    assert counts(HEAD + body, 10) == {word: 10}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("qreg q[2]; creg c[2]; x q[0]; cx q[0], q[1]; measure q -> c;", "11"),
        ("qreg q[1]; creg c[1]; rx(pi*cos(0)) q[0]; measure q -> c;", "1"),
        ("qreg q[1]; creg a[1]; creg b[2]; x q[0]; measure q[0] -> b[1];", "100"),
        (
            "gate flip(a) one { rx(a) one; } qreg q[1]; creg c[1]; flip(pi) q[0]; "
            "measure q -> c;",
            "1",
        ),
        (
            "qreg q[2]; creg c[2]; x q[0]; measure q[0] -> c[0]; if (c==1) x q[1]; "
            "reset q[0]; measure q[1] -> c[1]; measure q[0] -> c[0];",
            "10",
        ),
    ],
)
def test_openqasm_2_too(body: str, word: str) -> None:
    assert counts(f'OPENQASM 2.0;\ninclude "qelib1.inc";\n{body}', 10) == {word: 10}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        # measurements in the middle, resets and what depends on them
        ("qubit q; bit[2] c; x q; c[0] = measure q; x q; c[1] = measure q;", "01"),
        ("qubit q; bit c; x q; reset q; c = measure q;", "0"),
        (
            "qubit[2] q; bit[2] c; x q[0]; c[0] = measure q[0]; "
            "if (c[0]) { x q[1]; } else { h q[1]; } c[1] = measure q[1];",
            "11",
        ),
        (
            "gate both a, b { x a; x b; } qubit[3] q; bit[3] c; c[0] = measure q[0]; "
            "if (c == 0) { both q[1], q[2]; } c[1] = measure q[1]; c[2] = measure q[2];",
            "110",
        ),
        ("qubit q; bit c; for int i in [0:2] { x q; } c = measure q;", "1"),
        ("qubit q; bit c; for uint i in [3:-1:1] { x q; } c = measure q;", "1"),
        # a bit is compared with a number, and the bits of another register stay
        (
            "qubit[2] q; bit[2] c; x q[0]; c = measure q; "
            "if (c[0] == 1) { x q[1]; } if (0 == c[0]) { x q[0]; } c = measure q;",
            "11",
        ),
        (
            "qubit[2] q; bit[70] c; x q[0]; c[69] = measure q[0]; "
            "if (c == 590295810358705651712) { x q[1]; } c[0] = measure q[1];",
            "1" + "0" * 68 + "1",
        ),
        (
            "qubit[2] q; bit c; x q[1]; box { c = measure q[0]; c = measure q[1]; }",
            "1",
        ),
        ("qubit q; bit c; for int i in {1, 2} { rx(i*pi/3) q; } c = measure q;", "1"),
    ],
)
def test_circuits_that_go_on_after_a_measurement(body: str, word: str) -> None:
    assert counts(HEAD + body, 10) == {word: 10}


def refusal(text: str, device: Architecture | None = None) -> str:
    with pytest.raises(InputError) as caught:
        batch(text, device or Architecture(10_000))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("qubit q;", "measures nothing"),
        ("qubit[2] q; bit c; c = measure q;", "line 3: "),
        ("qubit q; bit c;\nnope q;", "line 4: gate 'nope' is not defined"),
        ("qubit q; x q[1];", "line 3: a single qubit or bit has no index"),
        ("bit c; x c;", "line 3: c is a bit: expected a qubit"),
        ("qubit[2] q; cx q[0], q[0];", "line 3: cx: a qubit is there twice"),
        (
            "qubit[2] q; qubit[3] r; cx q, r;",
            "line 3: cx: its registers have 2 and 3 qubits",
        ),
        ("qubit q; rx q;", "line 3: "),
        ("qubit q; rx(1/0) q;", "line 3: a division by zero"),
        ("qubit q; rx(0.0/0.0) q;", "line 3: a division by zero"),
        ("qubit q; rx(1e999) q;", "line 3: inf is not an angle"),
        ("qubit q; rx(1e999-1e999) q;", "line 3: nan is not an angle"),
        ("qubit q; rx(alpha) q;", "line 3: alpha is not declared"),
        (
            "input float a; qubit q; bit c; rx(a) q; c = measure q;",
            "parameter a has no",
        ),
        ("qubit q; rx(__import__('os')) q;", "line 3: "),
        ("qubit q; qubit q;", "line 3: q is already a qubit on line 3"),
        (
            "qubit q; bit c; while (c == false) { c = measure q; }",
            "line 3: while is not supported",
        ),
        ("qubit q; gate g a { g a; } g q;", "line 3: gate 'g' is not defined"),
        ("qubit q; gate g a { x b; } g q;", "line 3: b is not declared"),
        ("qubit q; gate g a { x a;", "line 3: unexpected '<EOF>'"),
        ("qubit q; x q", "line 3: unexpected '<EOF>'"),
        ('include "/etc/passwd";', "line 3: "),
        ("qubit[3.5] q;", "line 3: expected a positive whole number"),
        ("x $2000000;", r"line 3: there is no qubit \$2000000"),
        # what Qiskit would compute as something else
        ("qubit q; rx(3/4) q;", "line 3: 3/4 of integers has no fraction"),
        ("qubit q; rx(-(1+2)/2) q;", "line 3: -3/2 of integers"),
        ("qubit q; pow(1/2) @ x q;", "line 3: 1/2 of integers"),
        (
            "qubit q; for int i in [1:3] { rx(i/2) q; }",
            "line 3: a division of integers",
        ),
        (
            "qubit[2] q; ctrl @ u3(1, 2, 3) q[0], q[1];",
            "line 3: ctrl @ u3: OpenQASM and",
        ),
        (
            "gate g(a) q { u2(a, 0) q; } gate f q { g(1) q; } qubit q; pow(0.5) @ f q;",
            "line 3: pow @ f: OpenQASM and",
        ),
        ("qubit q; pow(0.5) @ rx(4) q;", "line 3: pow @ rx: a root of rx, which has"),
        ("qubit q; pow(0.5) @ pow(3) @ s q;", "line 3: pow @ s: a root of a power"),
        ("qubit q; pow(0.5) @ gphase(4);", "line 3: pow @ gphase: a root of"),
        (
            "gate g(a) x, y, z { ctrl @ cu(a, 0, 0, a) x, y, z; }",
            "line 3: ctrl @ cu in a definition: write it",
        ),
        ("qubit[4] q; x q[0:4];", "line 3: slice 0:4 of a register of 4"),
        ("qubit[4] q; x q[0:0:3];", "line 3: the ends and the step of a slice"),
        ("qubit q; x q[0:0];", "line 3: only registers have slices"),
        (
            "qubit q; bit[2] c; if (c == 5) { x q; }",
            "line 3: if: 5 does not fit in 2 bits",
        ),
        ("qubit q; bit[2] c; if (c[0] == 2) { x q; }", "line 3: a bit is 0 or 1"),
        ("const int n = 2.5;", "line 3: expected a whole number as the constant"),
        ("const bit[2] n = 1;", "line 3: constants are int, uint, float or bool"),
        ("const angle x = 2*pi;", "line 3: constants are int, uint, float or bool"),
        ("const uint[2] n = 6;", "line 3: 6 is no uint of 2 bits"),
        ("const int[3] n = 7;", "line 3: 7 is no int of 3 bits"),
        ("const uint n = -1;", "line 3: -1 is no uint of 64 bits"),
        ("const float[32] x = 0.1;", "line 3: only float and float.64. are supported"),
        ("qubit q; for uint[2] i in {6} { rx(i) q; }", "line 3: 6 is no uint of 2"),
        ("qubit q; for int[3] i in [0:4] { rx(i) q; }", "line 3: 4 is no int of 3"),
        ("qubit[2] q; ctrl @ U(pi, 0, 0) q[0], q[1];", "line 3: ctrl @ U: OpenQASM"),
        (
            "gate f a { U(pi, 0, 0) a; } qubit[2] q; negctrl @ f q[0], q[1];",
            "line 3: negctrl @ f: OpenQASM and Qiskit",
        ),
        (
            "gate z a { rz(pi) a; } qubit[2] q; ctrl @ z q[0], q[1];",
            "line 3: ctrl @ z: Qiskit would take its own",
        ),
        ("const int n = 2; gate g(n) q { rx(n) q; }", "line 3: n is a constant: use"),
        ("qubit[2-2] q;", "line 3: expected a positive whole number as the size"),
        ("qubit\N{NO-BREAK SPACE}q;", r"line 3: unexpected '\\xa0'"),
        ("\N{ZERO WIDTH NO-BREAK SPACE}qubit q;", r"line 3: unexpected '\\ufeff'"),
    ],
)
def test_what_is_refused(body: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        batch(HEAD + body, Architecture(10_000))
    assert refusal(HEAD + body)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the text is empty"),
        ("// nothing", "the text is empty"),
        ("OPENQASM 4.0; qubit q;", "OPENQASM 4: expected 2 or 3"),
        ("OPENQASM 2.0; qreg q[1]; nope q[0];", "line 1: 'nope' is not defined"),
        ('OPENQASM 2.0; include "/etc/passwd"; qreg q[1];', "line 1: unable to find"),
        (
            "OPENQASM 2.0; opaque g a; qreg q[1]; g q[0];",
            "line 1: gate g has no definition",
        ),
        (
            "OPENQASM 2.0; qreg q[1]; creg c[2]; gate x a { U(pi,0,pi) a; } "
            "if (c==5) x q[0]; measure q[0] -> c[0];",
            "line 1: if: 5 does not fit in 2 bits",
        ),
        (
            'OPENQASM 2.0; include "qelib1.inc"; qreg q[1]; creg c[1]; u0(0.5) q[0];',
            "the number of single-qubit delay lengths must be an integer",
        ),
        ("OPENQASM 2.0; qreg q[999999999];", "999999999 qubits do not fit on 10000"),
        ("OPENQASM 2.0; qreg q[1]; creg c[999999999];", "999,999,999 bits; at most"),
    ],
)
def test_what_is_refused_in_any_version(text: str, words: str) -> None:
    assert refusal(text).startswith(words)


# each gate is two of the one before, and the first does nothing
DEFINED = [f"gate g{i} a {{ g{i - 1} a; g{i - 1} a; }}" for i in range(1, 20)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"gate g0 a {{ }} {' '.join(DEFINED)} qubit q; g19 q;", "more than 100,000"),
        ("qubit[9999] q; gate e a { } " + "e q; " * 11, "more than 100,000"),
        ("qubit[9999] q; " + "reset q; " * 11, "more than 100,000"),
        ("qubit q; bit[999999] c; c = measure q;", "999,999 bits; at most 10,000"),
        ("qubit[2000000] q;", "2000000 qubits do not fit on 10000"),
        (f"qubit q; rx({'(' * 1_000}0{')' * 1_000}) q;", "nested too deeply"),
        ("/*" * 200_000, "line 3: unexpected '\\*'"),
    ],
)
def test_no_text_makes_too_many_objects(body: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        batch(HEAD + body, Architecture(10_000))


def test_no_loop_makes_too_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openqasm, "MAX_STEPS", 1000)
    with pytest.raises(InputError, match="more than 1,000"):
        batch(f"{HEAD}qubit q; for int i in [0:9999] {{ x q; }}", None)


def checked(content: JSON, qubits: int = 10, **limits: float) -> str:
    """Return why the service refuses a payload."""
    runner = CircuitSimulator(None, ComputeLimits.model_validate(limits))
    with pytest.raises(FieldError) as caught:
        runner.check(content, qubits=qubits)
    assert caught.value.field == "circuit"
    assert "\n" not in caught.value.detail
    return caught.value.detail


def test_long_texts_are_refused_before_they_are_parsed() -> None:
    assert checked(";" * 2**20) == "more than 100,000 statements per job"
    assert checked("x" * 2**23) == "8,388,608 characters; at most 4,194,304 per job"
    assert checked([BELL] * 11, circuits=10) == "11 circuits; at most 10 per job"


@pytest.mark.process
def test_a_parser_that_takes_too_long_is_killed() -> None:
    slow = f"{HEAD}qubit q; bit c; rx({'+'.join('1' * 500_000)}) q; c = measure q;"
    assert checked(slow, cpu_seconds=1) == "the job needs more than 1 s of CPU time"


def test_forms_of_payloads() -> None:
    form = "expected OpenQASM, a list of such texts, or program and values"
    wrong: list[JSON] = [
        3,
        [],
        [3],
        {},
        {"program": BELL},
        {"program": BELL, "values": []},
    ]
    for content in wrong:
        assert checked(content) == form
    assert checked({"program": BELL, "values": [{}], "more": 1}) == form
    assert checked(f"{HEAD}qubit[6] q;", 5) == "6 qubits do not fit on 5 qubits"
    assert checked([BELL, "OPENQASM 4;"]) == "circuit[1]: OPENQASM 4: expected 2 or 3"


TURN = f"{HEAD}input float a; qubit q; bit c; rx(2*a) q; c = measure q;"


def test_a_batch_has_a_counter_of_each_circuit() -> None:
    word = [f"{HEAD}qubit q; bit c; {'x q;' * n} c = measure q;" for n in range(3)]
    assert counters([*word], 5) == [{"0": 5}, {"1": 5}, {"0": 5}]
    assert counters([BELL], 2000) == counters(BELL, 2000)
    one, other = counters([BELL, BELL], 2000)
    assert one.keys() == other.keys() == {"00", "11"}
    # they are independent
    assert one != other


def test_a_program_has_a_counter_of_each_set_of_values() -> None:
    values: list[JSON] = [{"a": 0}, {"a": math.pi / 2}, {"a": math.pi / 4}]
    none, all_, half = counters({"program": TURN, "values": values}, 2000)
    assert (none, all_) == ({"0": 2000}, {"1": 2000})
    assert half["0"] == pytest.approx(1000, abs=150)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "parameter a has no value"),
        ({"a": 1, "b": 1}, "there is no parameter b"),
        ({"a": "1"}, "parameter a: expected a number"),
        ({"a": True}, "parameter a: expected a number"),
        ({"a": math.inf}, "parameter a: inf is not finite"),
        ({"a": math.nan}, "parameter a: nan is not finite"),
    ],
)
def test_values_that_are_refused(values: dict[str, JSON], words: str) -> None:
    good: JSON = {"a": 1.0}
    with pytest.raises(InputError) as caught:
        batch({"program": TURN, "values": [good, {**values}]}, Architecture(1))
    assert str(caught.value).startswith(f"values[1]: {words}")


def test_slices_of_a_batch_are_merged_circuit_by_circuit() -> None:
    slices: list[dict[str, JSON]] = [
        {"counters": [{"0": 1}, {"0": 2}]},
        {"counters": [{"0": 3, "1": 1}, {"1": 4}]},
    ]
    assert merge(slices) == {"counters": [{"0": 4, "1": 1}, {"0": 2, "1": 4}]}


def test_its_size_and_cost() -> None:
    device = EmulatedDevice(technology="superconducting", time_scale=0, qubits=6)
    told = device.check("circuit", [BELL, BELL, BELL], {"num_reads": 100})
    assert (told.circuits, told.values, told.gates, told.shot_amplitudes) == (
        3,
        6,
        12,
        0,
    )
    # with the sampling of all shots
    assert told.amplitudes == 3 * (4 + 50) * 2**2
    once = device.cost({"num_reads": 300}).qpu_seconds
    assert device.cost({"num_reads": 100}, told).qpu_seconds == once
    task = Task("t", "circuit", json.dumps([BELL] * 3), {"num_reads": 100})
    assert device.run(task, threading.Event()).qpu_seconds == once
    middle = f"{HEAD}qubit[2] q; bit c; c = measure q[0]; x q[0]; c = measure q[0];"
    told = device.check("circuit", middle, {"num_reads": 1})
    # a measurement between gates counts for ten of them, and a shot takes its time
    assert (told.amplitudes, told.shot_amplitudes) == (0, 21 * 2 + 50_000)
    few = device.model_copy(update={"compute": ComputeLimits(gate_shots=1000)})
    with pytest.raises(
        FieldError, match="251 shots of 4 gates are 1,004 gates; at most"
    ):
        few.check("circuit", BELL, {"num_reads": 251})


PRX = "gate prx(t, p) q { U(t, p - pi/2, pi/2 - p) q; }"


def on_star(body: str, *broken: int, head: str = PRX) -> str:
    """Check a circuit on five qubits, of which the third is coupled to the others."""
    device = EmulatedDevice(
        technology="superconducting", qubits=5, out_of_service=frozenset(broken)
    )
    text = f"{HEAD}{head} qubit[5] q; bit[2] c; {body}"
    try:
        device.check("circuit", text, {"num_reads": 1})
    except FieldError as error:
        return f"{error}".removeprefix("circuit: ").removeprefix("line 3: ")
    return ""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("cz q[0], q[2]; cz q[4], q[2]; c[0] = measure q[0];", ""),
        ("prx(pi/2, 0.3) q[0]; barrier q; c[0] = measure q[0]; reset q[0];", ""),
        ("x $1; c[0] = measure $1;", "$0 and declared qubits are not mixed"),
        (
            "h q[3]; c[0] = measure q[3];",
            "gate h on qubit 3 is not native: transpile the circuit to cz,",
        ),
        ("cx q[0], q[2];", "gate cx on qubits 0 and 2 is not native: transpile"),
        (
            "cz q[1], q[0];",
            "gate cz on qubits 1 and 0: these are not coupled: transpile",
        ),
        ("c[0] = measure q[0]; if (c[0]) { prx(1, 0) q[2]; }", "if on qubit"),
        ("qubit extra;", "6 qubits do not fit on 5 qubits"),
    ],
)
def test_native_gates_on_a_lattice(body: str, why: str) -> None:
    assert on_star(body).startswith(why)
    assert bool(on_star(body)) == bool(why)


@pytest.mark.parametrize(
    ("head", "body", "why"),
    [
        # as Qiskit's exporter writes it
        ("gate r(p0, p1) a { U(p0, -pi/2 + p1, pi/2 - p1) a; }", "r(1, 2) q[0];", ""),
        # up to a global phase
        ("gate r(a, b) q { rz(-b) q; rx(a) q; rz(b) q; }", "r(1, 2) q[0];", ""),
        (
            "gate r(a, b) q { rz(b) q; rx(a) q; }",
            "r(1, 2) q[0];",
            "gate r is not defined",
        ),
        ("gate prx(a, b, c) q { }", "prx(1, 2, 3) q[0];", "gate prx is not defined"),
        ("gate prx(a, b) q, p { }", "prx(1, 2) q[0], q[2];", "gate prx is not defined"),
        # of native gates, and of others
        (f"{PRX} gate f q, p {{ prx(1, 2) q; cz q, p; }}", "f q[0], q[2];", ""),
        (
            f"{PRX} gate f q, p {{ prx(1, 2) q; cz q, p; }}",
            "f q[0], q[1];",
            "gate cz on qubits 0 and 1: these are not coupled: transpile",
        ),
        (
            "gate cz2 q, p { h p; cx q, p; h p; }",
            "cz2 q[0], q[2];",
            "gate h on qubit 2",
        ),
    ],
)
def test_gates_that_a_text_defines_on_a_lattice(head: str, body: str, why: str) -> None:
    found = on_star(f"{body} c[0] = measure q[0];", head=head)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_a_native_gate_with_parameters() -> None:
    device = EmulatedDevice(technology="superconducting", qubits=5)
    text = f"{HEAD}{PRX} input float a; qubit[5] q; bit c; prx(2*a, a) q[0]; c = measure q[0];"
    device.check("circuit", {"program": text, "values": [{"a": 0.3}]}, {"num_reads": 1})


def test_qubits_out_of_service_are_not_used() -> None:
    measured = "c[0] = measure q[0];"
    assert on_star(measured, 3) == ""
    assert on_star(measured, 0) == "measure: qubit 0 is out of service"
    assert on_star(f"prx(1, 2) q[3]; {measured}", 3) == "prx: qubit 3 is out of service"
    assert on_star(f"cz q[0], q[2]; {measured}", 2) == "cz: qubit 2 is out of service"
    device = EmulatedDevice(
        technology="superconducting", qubits=5, out_of_service=frozenset({0})
    )
    told = device.description.topology
    assert told is not None
    assert told.couplers == ((1, 2), (2, 3), (2, 4))


@pytest.mark.parametrize(
    ("qubits", "topology", "couplers"),
    [
        *((5, None, 4), (20, None, 30), (54, None, 90), (6, None, 0)),
        *((5, "complete", 0), (9, "square", 12), (7, "square", 8), (1, "square", 0)),
    ],
)
def test_lattices(qubits: int, topology: str | None, couplers: int) -> None:
    device = EmulatedDevice(
        technology="superconducting", qubits=qubits, topology=topology
    )
    told = device.description
    assert len(told.topology.couplers if told.topology else ()) == couplers
    assert told.native_gates == (("r", "cz") if told.topology else ())
    # SAPI is for annealers
    assert device.description.graph is None


@pytest.mark.parametrize(
    ("technology", "topology", "why"),
    [
        ("superconducting", "pegasus", "has square or complete, not pegasus"),
        ("annealer", "square", "has pegasus or zephyr, not square"),
        ("neutral-atom", "square", "has none, not square"),
    ],
)
def test_topologies_of_other_technologies(
    technology: str, topology: str, why: str
) -> None:
    with pytest.raises(InputError, match=f"^topology: a device of .*{why}"):
        EmulatedDevice(technology=technology, topology=topology)


def test_clients_learn_the_lattice() -> None:
    device = EmulatedDevice(
        technology="superconducting", qubits=5, out_of_service=frozenset({4})
    )
    with running_service(device) as service:
        told = SfqQpu("q", service.url).describe()
    assert told.native_gates == ("r", "cz")
    assert told.topology == device.description.topology
    assert (told.qubits, told.out_of_service) == (4, frozenset({4}))


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the texts that are read from now on."""
    read: list[str] = []
    original = openqasm._read3

    def noted(text: str, holes: int) -> tuple[QuantumCircuit, Sequence[int]]:
        read.append(text)
        return original(text, holes)

    monkeypatch.setattr(openqasm, "_read3", noted)
    return read


def test_a_circuit_is_read_once_for_its_check_and_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = f"{BELL} // {secrets.token_hex()}"
    told, read = ARCHITECTURE.dump_python(Architecture(3), mode="json"), reads(
        monkeypatch
    )
    size(text, told, noisy=True, bond_dimension=64)
    simulate(text, {"num_reads": 1}, None, 64, architecture=told)
    assert len(read) == 1
    # also several circuits, of which few are kept
    texts = [f"{BELL} // {secrets.token_hex()}" for _ in range(100)]
    size([*texts], told, noisy=True, bond_dimension=64)
    simulate([*texts], {"num_reads": 1}, None, 64, architecture=told)
    assert len(read) == 101
    monkeypatch.setattr(openqasm, "MOST_WEIGHT", 0)
    for _ in range(2):
        assert counters(texts[0], 5)
    assert len(read) == 103


ANGLES = (
    f"{HEAD}qubit[2] q; bit[2] c; rx(0.5) q[0]; u2(0.25, -pi/2) q[1]; c = measure q;"
)


def test_texts_that_differ_in_angles_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"c{secrets.token_hex(4)}"
    text = ANGLES.replace("bit[2] c", f"bit[2] {name}").replace("c =", f"{name} =")
    texts = [text.replace("0.5", f"{n}") for n in (0, "1e-1", ".5", "pi", "3*pi/2")]
    expected = [counters(f"{one} /* alone */", 4000)[0] for one in texts]
    read = reads(monkeypatch)
    found = counters([*texts, BELL, texts[2]], 4000)
    assert len([one for one in read if name in one]) == 1
    del found[5]
    for one, other in zip(found, [*expected, expected[2]], strict=True):
        for word in one.keys() | other.keys():
            assert one.get(word, 0) == pytest.approx(other.get(word, 0), abs=250)
    # and in the next job of a loop
    assert counters(text.replace("0.5", "-2.25"), 10)
    assert len([one for one in read if name in one]) == 1


@pytest.mark.parametrize(
    ("body", "angles"),
    [
        ("rx(0.5) q[0]; U(1, 2.5e-1, - pi) q; cp(7*pi/4) $0, q[1];", 5),
        ("gate g(a) p { rx(0.5) p; } g(a) q; g(2) q;", 1),
        ("// {'@': /*} rx(0.5) q;\rrx(0.5) q; // rx(0.5) q;", 1),
        # what is not by itself an angle stays as it is
        ("rx(3/4) q; rx(2*0.5) q; rx(sin(0.5)) q; rx((0.5)) q; rx(1_0) q;", 0),
        (
            "rx(0x10) q; rx(+1) q; rx(1.0im) q; rx(2ns) q; gphase(0.5); delay[1.0ns] q;",
            0,
        ),
        ("const float a = 0.5; rx(a) q; for float f in {0.5} { rx(0.5) q; }", 0),
        # what is in doubt has no template
        ("rx(0.5) q; if (c) { x q; }", 0),
        ("rx(0.5) q; /* rx(0.5) q; */", 0),
        ("/* // */ rx(0.5) q; //", 0),
        ('rx(0.5) q; include "a//b"; include "c//d";', 0),
        ("rx(0.5) q; ctrl @ rx(0.5) q[0], q[1];", 0),
        ("rx(0.5) q; include 'more.inc';", 0),
        ('rx(0.5) q; include "more.inc";', 0),
        ("rx(_sfq_angle_0) q; rx(0.5) q;", 0),
        ("rx(1e999) q;", 0),
        ("rx(pi/0) q;", 0),
        # which the parser refuses
        ("rx(\N{ARABIC-INDIC DIGIT THREE}) q;", 0),
        ("rx(1\N{NO-BREAK SPACE}) q;", 0),
        ("rx(1\f) q;", 0),
        # what takes hours if its time grows faster than its length
        pytest.param(f"rx({' ' * 500_000}a) q;", 0, id="blanks"),
    ],
)
def test_templates(body: str, angles: int) -> None:
    template, found = template_of(HEAD + body)
    assert len(found) == angles
    if not angles:
        assert template == HEAD + body
    assert not template_of(f"OPENQASM 2.0; {body}")[1]


def test_texts_that_look_alike_keep_their_meaning() -> None:
    one = f"{HEAD}qubit q; bit c; rx(0.0) q; x q; c = measure q;"
    own = one.replace("0.0", "_sfq_angle_0").replace("x q;", "h q;")
    with pytest.raises(
        InputError, match=r"^circuit\[1\]: line 3: _sfq_angle_0 is not declared"
    ):
        batch([one, own])
    wrong = [one.replace("0.0", "0.1"), one.replace("0.0", "1e999"), one]
    with pytest.raises(InputError, match=r"^circuit\[1\]: line 3: inf is not"):
        batch([*wrong])
    free = one.replace("bit c", "input float a; bit c").replace("x q", "rx(a) q")
    with pytest.raises(InputError, match=r"^circuit\[1\]: parameter a has no value"):
        batch([one, free])


def test_expressions_of_parameters_are_evaluated() -> None:
    gate = "gate turn(t) q { rx(t / 2) q; rx(t / 2) q; } "
    text = f"{HEAD}{gate}input float a; input float b; qubit q; bit c; "
    body = "turn(a * b) q; rz(a) q; c = measure q; "
    values: list[JSON] = [{"a": 2, "b": math.pi / 2}, {"a": 0, "b": 1e300}]
    program: JSON = {"program": text + body, "values": values}
    assert counters(program, 5) == [{"1": 5}, {"0": 5}]
    then = "if (c) { rx(a * b) q; } c = measure q;"
    program = {"program": text + body + then, "values": values}
    assert counters(program, 5) == [{"0": 5}, {"0": 5}]
    values[1] = {"a": 1e300, "b": 1e300}
    for content in (text + body, text + body + then):
        with pytest.raises(InputError, match=r"^values\[1\]: "):
            batch({"program": content, "values": values})


def test_as_qiskit_has_it() -> None:
    for seed, dumps in [*((n, qasm3.dumps) for n in range(6)), (1, qasm2.dumps)]:
        made = random_circuit(4, 6, max_operands=3, seed=seed)
        expected = Statevector(made).probabilities_dict()
        made.measure_all()
        found = counts(dumps(made), 20_000)
        for word in expected.keys() | found.keys():
            chance = expected.get(word, 0.0)
            sigma = math.sqrt(20_000 * max(chance, 1e-4))
            assert found.get(word, 0) == pytest.approx(20_000 * chance, abs=6 * sigma)


def noisy(
    body: str, errors: Errors, age: float = 0.0, seed: int = 1
) -> dict[str, float]:
    """Return the shares of the words that a device with errors gives."""
    calibration = Calibration("c", datetime.now(UTC), age, False, 1)
    noise = Noise(errors, calibration, seed)
    result = simulate(HEAD + body, {"num_reads": SHOTS, "seed": 1}, noise, 64)
    found = TypeAdapter(dict[str, int]).validate_python(result["counter"])
    return {word: count / SHOTS for word, count in found.items()}


SHOTS = 4000
# of a share, more than 4 standard deviations
CLOSE = 0.035


# a density matrix, or shot by shot
@pytest.mark.parametrize("idle", [1, 11])
@pytest.mark.parametrize(
    ("gates", "errors", "zeros"),
    [
        # each gate leaves the state with 1 - p, and else has it anything
        ("x q[0]; " * 20, Errors(one_qubit=0.02), 0.5 + 0.98**20 / 2),
        ("rz(0.1) q[0]; s q[0]; " * 20, Errors(one_qubit=0.5), 1.0),
        ("swap q[0], q[1]; " * 20, Errors(two_qubits=0.02), 0.5 + 0.98**20 / 2),
        # of 42 ns each; after the last one, too
        ("x q[0]; " + "rx(0) q[0]; " * 19, Errors(t1=1e-6), 1 - math.exp(-0.84)),
        # the last gate is followed by what is not seen
        (
            f"h q[0]; {'rx(0) q[0]; ' * 20} h q[0]; ",
            Errors(t2=1e-6),
            0.5 + math.exp(-21 * 0.042) / 2,
        ),
        ("", Errors(false_one=0.1), 0.9),
        ("x q[0];", Errors(false_zero=0.1), 0.1),
    ],
)
def test_errors_of_gates_relaxation_and_read_out(
    idle: int, gates: str, errors: Errors, zeros: float
) -> None:
    text = (
        f"qubit[{idle + 1}] q; bit c; {gates} barrier q; reset q[1]; c = measure q[0];"
    )
    if idle == 1:
        text = text.replace("reset q[1];", "")
    assert noisy(text, errors).get("0", 0.0) == pytest.approx(zeros, abs=CLOSE)


def test_errors_grow_until_the_calibration_is_renewed() -> None:
    text = f"qubit q; bit c; {'x q; ' * 20} c = measure q;"
    errors = Errors(one_qubit=0.02, false_one=0.01, t1=1e-3, t2=1e-3)
    fresh, old = (noisy(text, errors, age)["0"] for age in (0.0, 1.0))
    assert fresh - old > 0.5 * (0.98**20 - 0.96**20) - CLOSE > 0.05
    # another attempt has other errors
    assert noisy(text, errors, seed=2) != noisy(text, errors) == noisy(text, errors)


def test_errors_in_the_middle_of_a_circuit() -> None:
    text = "qubit[2] q; bit[2] c; c[0] = measure q[0]; if (c[0]) { x q[1]; } "
    found = noisy(f"{text} c[1] = measure q[1];", Errors(false_one=0.1))
    # what was misread is acted upon
    assert found["11"] == pytest.approx(0.1, abs=CLOSE)
    assert found["10"] == pytest.approx(0.09, abs=CLOSE)


def _branched(random: Random) -> tuple[str, str]:
    """Return the same gates as a text without branches, and in nested branches."""
    gates = [
        random.choice(["x q[0];", "sx q[1];", "ry(0.4) q[2];", "cx q[0], q[1];"])
        for _ in range(random.randrange(10, 30))
    ]
    cut = random.randrange(len(gates))
    first, last = " ".join(gates[:cut]), " ".join(gates[cut:])
    head, end = "qubit[3] q; bit[3] c; bit zero;", "c = measure q;"
    branches = f"if (zero == 0) {{ {first} if (zero) {{}} else {{ {last} }} }}"
    return f"{head} {first} {last} {end}", f"{head} {branches} {end}"


@pytest.mark.parametrize("seed", range(6))
def test_gates_in_branches_count_and_have_errors(seed: int) -> None:
    texts = _branched(Random(seed))
    errors = Errors(one_qubit=0.03, two_qubits=0.06)
    plain, branched = (noisy(text, errors) for text in texts)
    words = plain.keys() | branched.keys()
    assert all(abs(plain.get(w, 0) - branched.get(w, 0)) < CLOSE for w in words)
    device = ARCHITECTURE.dump_python(Architecture(3), mode="json")
    for bond_dimension in (2, 64):
        one, other = (
            size(HEAD + text, device, noisy=True, bond_dimension=bond_dimension)
            for text in texts
        )
        assert other["gates"] == int(str(one["gates"])) + 2
    most = int(str(other["gates"])) - 1
    simulator = CircuitSimulator(limits=ComputeLimits(gate_shots=10 * most))
    checked = simulator.check(HEAD + texts[1], qubits=3)
    with pytest.raises(FieldError, match="at most"):
        simulator.limits.check(checked, {"num_reads": 10})


def test_work_in_branches_is_estimated() -> None:
    device = ARCHITECTURE.dump_python(Architecture(40), mode="json")
    layer = "".join(f"cx q[{n}], q[{n + 1}]; " for n in range(39)) * 4
    for qubits in (3, 40):
        gates = layer if qubits == 40 else "h q[0]; cx q[0], q[1]; x q[2]; " * 50
        # a conditional operation, so that both simulate each shot
        start = f"qubit[{qubits}] q; bit c; c = measure q[0]; if (c) {{ x q[0]; }}"
        texts = [f"{start} {gates} c = measure q[1];"]
        texts.append(f"{start} if (c) {{ {gates} }} c = measure q[1];")
        plain, branched = (
            int(str(size(HEAD + text, device, False, 64)["shot_amplitudes"]))
            for text in texts
        )
        assert plain <= branched < 1.1 * plain


def _conditional(random: Random) -> str:
    """Return a circuit with conditions, few measurements and unused qubits."""
    qubits, sizes = random.randrange(2, 7), [random.randrange(1, 4) for _ in range(2)]
    bits = [
        (name, n) for name, size in zip("cd", sizes, strict=True) for n in range(size)
    ]
    used = random.sample(range(qubits), min(qubits, 4))

    def operation() -> str:
        first, *others = random.sample(used, len(used))
        name, bit = random.choice(bits)
        choices = [f"sx q[{first}]", f"h q[{first}]", f"reset q[{first}]"]
        choices += [f"measure q[{first}] -> {name}[{bit}]"] * 2
        return f"{random.choice([*choices, f'cx q[{first}], q[{others[0]}]'])};"

    lines = [f"qreg q[{qubits}]; creg c[{sizes[0]}]; creg d[{sizes[1]}];"]
    for _ in range(random.randrange(3, 12)):
        place = random.randrange(2)
        number = random.randrange(1 << sizes[place])
        condition = f"if ({'cd'[place]} == {number}) " if random.random() < 0.4 else ""
        lines.append(condition + operation())
    return "\n".join([*lines, f"measure q[{used[0]}] -> d[0];"])


@pytest.mark.parametrize("seed", range(40))
def test_conditions_on_qubits_that_nothing_measures(seed: int) -> None:
    body = _conditional(Random(seed))
    for head in (HEAD, 'OPENQASM 2.0;\ninclude "qelib1.inc";\n'):
        (group,) = batch(head + body).groups
        expected = probabilities(group.circuit)
        assert p_value(counts(head + body), expected) > LEAST_P, body


def test_a_device_tells_its_errors_and_has_none_without_noise() -> None:
    keys: dict[str, JSON] = {"technology": "superconducting", "qubits": 2}
    device = EmulatedDevice.from_config({**keys, "noise": 1.0})
    values = device.calibrations.data.values
    usual = TECHNOLOGIES["superconducting"].errors
    assert values["gate_error_two_qubits"] == pytest.approx(usual.two_qubits, rel=0.3)
    assert values["t2_seconds"] == pytest.approx(usual.t2, rel=0.3)
    noisier = EmulatedDevice.from_config({**keys, "noise": 3.0}).errors
    assert noisier.one_qubit == pytest.approx(3 * usual.one_qubit)
    assert noisier.t1 == pytest.approx(usual.t1 / 3)
    ideal = EmulatedDevice.from_config({**keys, "noise": 0.0})
    assert (ideal.errors, ideal.calibrations.data.values) == (Errors(), {})
    middle = f"{HEAD}qubit q; bit c; {'h q; ' * 10} c = measure q;"
    told, exact = (one.check("circuit", middle, {}) for one in (device, ideal))
    # with the errors of the ten gates, and the sampling of all shots
    assert (told.amplitudes, exact.amplitudes) == (71 * 4, 61 * 2)


def test_many_qubits_by_matrix_product_states() -> None:
    chain = "".join(f"cx q[{n}], q[{n + 1}];" for n in range(39))
    text = f"{HEAD}qubit[40] q; bit[40] c; h q[0]; {chain} c = measure q;"
    (found,) = counters(text, 200)
    assert found.keys() == {"0" * 40, "1" * 40}


def test_on_a_device_with_gates() -> None:
    device = EmulatedDevice(
        technology="superconducting", time_scale=0, noise=1, seed=1, qubits=6
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


@pytest.mark.process
def test_through_the_service() -> None:
    device = EmulatedDevice(technology="superconducting", time_scale=0, qubits=6)
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
        assert "line 5: gate 'cxx' is not defined" in str(answer.json()["detail"])
        job |= {"circuit": [BELL, BELL], "idempotency_key": "two"}
        assert service.ask("POST", "/v1/jobs", job, lease=lease).status == 201
        id_ = service.until(lease, "Completed", 1)
        found = service.ask("GET", f"/v1/jobs/{id_}/result").json()["counters"]
        assert found == counters([BELL, BELL], 50, 3)
        qpu = SfqQpu("q", service.url, lease=lease)
        assert [*qpu.counters(id_)] == found
        answer = service.ask("GET", f"/v1/jobs/{id_}/counters?first=1")
        lines = [json.loads(line) for line in answer.body.splitlines()]
        last = {"next": 2, "state": "Completed", "over": False}
        assert lines == [{"circuit": 1, "counter": found[1]}, last]
        job |= {
            "circuit": {"program": TURN, "values": [{"a": 0}]},
            "idempotency_key": "3",
        }
        assert service.ask("POST", "/v1/jobs", job, lease=lease).status == 201
        id_ = service.until(lease, "Completed", 2)
        found = service.ask("GET", f"/v1/jobs/{id_}/result").json()["counters"]
        assert found == [{"0": 50}]
        bqm: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "bqm"}
        assert service.ask("POST", "/v1/jobs", bqm, lease=lease).status == 201
        id_ = service.until(lease, "Completed", 3)
        answer = service.ask("GET", f"/v1/jobs/{id_}/counters")
        detail = "the job is a problem, it has no circuits"
        assert (answer.status, answer.json()["detail"]) == (409, detail)
        # larger than what is read on the event loop, and than what a thread reads
        for blanks in (2**17, 2**21):
            job |= {"circuit": BELL.replace("cx", "cxx") + " " * blanks}
            job["idempotency_key"] = f"bad{blanks}"
            answer = service.ask("POST", "/v1/jobs", job, lease=lease)
            assert "line 5: gate 'cxx' is not defined" in str(answer.json()["detail"])
            job |= {"circuit": BELL + " " * blanks, "idempotency_key": f"k{blanks}"}
            assert service.ask("POST", "/v1/jobs", job, lease=lease).status == 201


def test_counts_of_a_job_that_does_not_complete() -> None:
    faults = Faults(fail=1.0)
    device = EmulatedDevice(
        technology="superconducting", time_scale=0, qubits=6, faults=faults
    )
    with running_service(device) as service:
        qpu = SfqQpu("q", service.url, lease=service.acquire())
        job = qpu.submit(Task("t", "circuit", json.dumps(BELL), {"num_reads": 1}))
        with pytest.raises(QpuError, match=f"job {job}: the QPU failed"):
            next(qpu.counters(job))


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "aer" in name else find(name)
    )
    lacking = (
        "this service cannot run circuits: qiskit-aer is not installed (pip install"
    )
    assert checked(BELL).startswith(lacking)
    device = EmulatedDevice(technology="superconducting", time_scale=0, qubits=6)
    task = Task("t", "circuit", json.dumps(BELL), {"num_reads": 1})
    with pytest.raises(InputError, match="qiskit-aer is not installed"):
        device.run(task, threading.Event())

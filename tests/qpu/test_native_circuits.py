"""Circuits of native gates, as Qiskit writes them and as hands do."""

from __future__ import annotations

import math

import pytest

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu.native_circuits import Operation, read
from sf_quantum.samplers.problem import FieldError

HALF = math.pi / 2


def test_rotations_and_their_names() -> None:
    text = """OPENQASM 3.0; include "stdgates.inc";
    // h q[0];
    qubit[3] q; /* of two
    lines */ bit[2] c;
    x q[0]; y q[1]; sx q[2]; rx(tau/8) q[0]; ry(-pi) q[0];
    r(3*pi/4, (1 - 0.5)*2) q[0]; prx(1e-1, 0) q[1]; id q[0];
    barrier q; barrier q[1], q[0];
    cz q[0], q[2];
    c[0] = measure q[2];
    c[1] = measure q[0];
    """
    (circuit,) = read(text)
    assert (circuit.qubits, circuit.bits) == (3, 2)
    assert circuit.operations == [
        Operation("prx", (0,), (math.pi, 0.0)),
        Operation("prx", (1,), (math.pi, HALF)),
        Operation("prx", (2,), (HALF, 0.0)),
        Operation("prx", (0,), (math.pi / 4, 0.0)),
        Operation("prx", (0,), (-math.pi, HALF)),
        Operation("prx", (0,), (3 * math.pi / 4, 1.0)),
        Operation("prx", (1,), (0.1, 0.0)),
        Operation("barrier", (0, 1, 2)),
        Operation("barrier", (1, 0)),
        Operation("cz", (0, 2)),
        Operation("measure", (2,), bit=0),
        Operation("measure", (0,), bit=1),
    ]


@pytest.mark.parametrize(
    "definition",
    [
        "gate r(p0, p1) a { U(p0, -pi/2 + p1, pi/2 - p1) a; }",
        "gate r(a, b) q { rz(-b) q; rx(a) q; rz(b) q; }",
        "gate prx(t, p) q { u3(t, p - pi/2, pi/2 - p) q; }",
    ],
)
def test_gates_may_be_defined_as_they_are(definition: str) -> None:
    name = definition[5:].partition("(")[0]
    head = "\N{ZERO WIDTH NO-BREAK SPACE}OPENQASM 3.0; "
    text = f"{head}{definition} qubit q; bit c; {name}(6/2, 1) q; c = measure q;"
    assert read(text)[0].operations[0] == Operation("prx", (0,), (3.0, 1.0))
    old = "OPENQASM 2.0; qreg q[1]; creg c[1]; rx(3/4) q[0]; measure q -> c;"
    assert read(old)[0].operations[0] == Operation("prx", (0,), (0.75, 0.0))


def test_registers_follow_each_other() -> None:
    old = "OPENQASM 2.0; qreg a[1]; qreg b[2]; creg c[3]; x b[1];"
    (circuit,) = read(
        f"{old} measure a[0] -> c[2]; measure b -> d; creg e[1];".replace(
            "creg c[3]", "creg c[3]; creg d[2]"
        )
    )
    assert (circuit.qubits, circuit.bits) == (3, 6)
    assert circuit.operations == [
        Operation("prx", (2,), (math.pi, 0.0)),
        Operation("measure", (0,), bit=2),
        Operation("measure", (1,), bit=3),
        Operation("measure", (2,), bit=4),
    ]
    (physical,) = read("bit[2] c; rx(1) $3; c[1] = measure $3;")
    assert (physical.qubits, physical.bits) == (4, 2)
    assert physical.operations[-1] == Operation("measure", (3,), bit=1)


def test_what_qiskit_writes_is_read() -> None:
    qiskit = pytest.importorskip("qiskit", reason="qiskit is not installed")
    from qiskit import qasm3

    circuit = qiskit.QuantumCircuit(3)
    circuit.h(0)
    circuit.cx(0, 2)
    circuit.measure_all()
    compiled = qiskit.transpile(circuit, basis_gates=["r", "cz"], seed_transpiler=1)
    (told,) = read(qasm3.dumps(compiled))
    assert (told.qubits, told.bits) == (3, 3)
    names = [one.name for one in told.operations]
    assert names.count("prx") == compiled.count_ops()["r"]
    assert names.count("cz") == compiled.count_ops()["cz"]
    assert [one.bit for one in told.operations if one.name == "measure"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qubit q;\nh q;", "line 2: h is not native"),
        ("qubit q;\n\n  if (c) { x q; }", "line 3: if is not native"),
        ("gate mine q {\n x q; }\nqubit q; mine q;", "line 1: mine is not native"),
        ("qubit[2] q; cz q;", "cz is on two qubits"),
        ("qubit q; rx(a) q;", "a has no value: bind the parameters"),
        ("qubit q; rx() q;", "rx has too few angles"),
        ("qubit q; rx q;", "rx has too few angles"),
        ("qubit q; rx(1, 2) q;", "rx has too many angles"),
        ("qubit q; rx(1e400) q;", "an angle is not finite"),
        ("qubit q; rx(1/0) q;", "division by zero"),
        ("qubit q; rx(3/4) q;", "it divides integers: divide by a float"),
        (
            "gate r(a, b) q { rz(b) q; rx(a) q; rz(-b) q; }",
            "gate r is not defined as that of the QPU",
        ),
        ("gate prx(a, b) q { h q; }", "gate prx is not defined as that of the QPU"),
        ("gate r(a) q { rx(a) q; }", "gate r is not defined as that of the QPU"),
        ("qubit q; rx('1') q;", "an angle is no number"),
        ("qubit q; rx(True) q;", "an angle is no number"),
        ("qubit q; rx(1 2) q;", "cannot read the angle '1 2'"),
        (f"qubit q; rx({'-' * 300}1) q;", "an angle is too long"),
        ("qubit[2] q; x q[2];", r"q\[2\]: there are 2"),
        ("qubit q; x p;", "p is not declared"),
        ("qubit q; bit c; x c;", "c is not declared"),
        ("qubit q; x q[;", "cannot read 'q"),
        ("qubit q; x );", r"cannot read 'x \)'"),
        ("qubit q; bit q;", "q is declared twice"),
        ("qubit[2] q; bit c; c = measure q;", r"zip\(\)"),
        ("qubit q; bit c; c = measure q; c = measure q;", "bit 0 is measured twice"),
        ("qubit q; x q;", "the circuit measures nothing"),
        ("qubit[3] q; bit[3] c = measure q; x q[0:1];", r"cannot read 'q\[0:1\]'"),
        ("qubit q; qubit c = measure q;", "c is not declared"),
        ("input float a; qubit q; rx(a) q;", "a has no value: bind the parameters"),
        ("qubit q;\nx q", "line 2: the last statement has no end"),
        ("gate r(a, b) q {", "line 1: the last statement has no end"),
        ("gate r(a, b) q { U(a, b) q;", "the last statement has no end"),
        ("qubit q; x q; }", "} is not native"),
        ("x" * 4_000_001, "more than 4000000 characters"),
        ("qubit[999999] q; barrier q; barrier q;", "more than 1000000 operands"),
    ],
)
def test_the_rest_is_refused_in_one_line(text: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        read(text)
    assert str(caught.value).startswith("circuit: ")
    assert "\n" not in str(caught.value)


# what a pattern that is not linear in the text needs hours for
LONG = 300_000


@pytest.mark.parametrize(
    "text",
    [
        f"qubit q; x{' ' * LONG});",
        f"qubit q; x/*{'*' * LONG}*/);",
        f"qubit q; x{'(' * LONG};",
        f"qubit q; x{'()' * LONG}(;",
        f"qubit q; {'x' * LONG}(;",
        f"qubit q; {'->' * LONG}= measure;",
        f"qubit q; measure {'->' * LONG}>;",
        f"qubit q; bit c; c = measure{' ' * LONG}q q;",
        f"qubit q; x q{' ' * LONG}[;",
        f"qubit q; x {'q' * LONG}[;",
        f"qubit{' ' * LONG}[;",
        f"qreg {'q' * LONG}{' ' * LONG};",
        f"gate {'a' * LONG}",
        "gate a " * LONG,
        f"OPENQASM{' ' * LONG}4;",
        f"include {'x' * LONG};",
        "/*" * LONG,
        "//" * LONG,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert len(str(caught.value)) < 200


PROGRAM = "input float a; input angle[32] b; qubit q; r(a, 2*b) q; bit c = measure q;"


def test_values_are_put_into_the_text() -> None:
    sets: JSON = [{"a": 1, "b": 0.5}, {"a": -2.5, "b": 0}]
    assert [one.operations for one in read({"program": PROGRAM, "values": sets})] == [
        [Operation("prx", (0,), values), Operation("measure", (0,), bit=0)]
        for values in [(1.0, 1.0), (-2.5, 0.0)]
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"program": PROGRAM, "values": [{"a": 1}]}, "line 1: b has no value"),
        (
            {"program": PROGRAM, "values": [{"a": 1, "b": 1, "c": 1}]},
            "the text has no parameter c",
        ),
        ({"program": PROGRAM, "values": [{"a": True}]}, "a has a value that is no num"),
        ({"program": PROGRAM, "values": [{"a": 10**400}]}, "value of a is not finite"),
        ({"program": PROGRAM, "values": [{"a": math.nan}]}, "a is not finite"),
        ({"program": PROGRAM, "values": []}, "expected text"),
        ({"program": PROGRAM, "values": [{}], "more": 1}, "expected text"),
        ({"program": 1, "values": [{}]}, "expected text"),
        ([], "expected text"),
        (["bit c = measure $0;", 1], "expected text"),
        # bounds are of a job, however many circuits it has
        (["bit c = measure $0;" + " " * 3_000_000] * 2, "more than 4000000 characters"),
        (
            {"program": "bit c = measure $0;", "values": [{}] * 300_000},
            "more than 4000000 characters",
        ),
        (
            ["qubit[600000] q; barrier q; bit c = measure q[0];"] * 2,
            "more than 1000000 operands",
        ),
    ],
)
def test_jobs_that_are_no_circuits(content: JSON, expected: str) -> None:
    with pytest.raises(FieldError, match=expected) as caught:
        read(content)
    assert caught.value.field == "circuit"

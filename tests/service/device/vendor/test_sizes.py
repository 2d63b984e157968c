"""The sizes of circuits at a vendor, compared with those that Qiskit's parsers find."""

from __future__ import annotations

import importlib
import time
from random import Random
from typing import Any

import pytest

from sf_quantum.service.device.vendor.sizes import operands, qubits
from sf_quantum.service.dialects.iqm.circuits import PRX

MIB = 2**20
# Registers and parameters of gates share these names.
NAMES = ("q", "r", "t", "p", "θ")
SPACES = (" ", "\n", "\t", "\r\n", "  ", ' // qubit[9] z; "/*\n', " /* q; '}' */ ")
LIBRARIES = {2: "qelib1.inc", 3: "stdgates.inc"}
# An angle, and a first and a second operand, which the body uses.
BODY = "U({angle}, 0, -{angle}) {one}; U(pi, 0, 0) {two};"


class Circuit:
    """Generates a circuit, and records whether all of its qubits count as used.

    They do if a statement names a register as a whole, or a name is not in ASCII.
    """

    def __init__(self, seed: int, version: int) -> None:
        self.random, self.version = Random(seed), version
        names = self.random.sample(NAMES[: 5 if version == 3 else 4], 3)
        self.singles: set[str] = set()
        self.registers = {name: self.random.randrange(1, 6) for name in names}
        self.names_whole = not all(map(str.isascii, names))
        parts = [f"OPENQASM {version}.0;"]
        if not {"t", "p"} & {*names}:  # the names of its gates
            parts += [f"include '{LIBRARIES[version]}';"]
        parts += [self._declaration(*one) for one in self.registers.items()]
        gates = [self._gate(f"g{number}") for number in range(3)]
        parts += [*gates, PRX]
        parts += [self._statement() for _ in range(self.random.randrange(9))]
        if version == 3 and self.random.random() < 0.3:
            parts += [self._alias()]
        self.text = "".join(f"{one}{self._space()}" for one in parts)

    def _space(self) -> str:
        spaces = [one for one in SPACES if self.version == 3 or "/*" not in one]
        return self.random.choice(spaces)

    def _declaration(self, name: str, width: int) -> str:
        if self.version == 2:
            return f"qreg{self._space()}{name}[{width}];"
        if width == 1 and self.random.random() < 0.3:
            self.singles.add(name)
            return f"qubit{self._space()}{name};"
        forms = [f"qubit{self._space()}[ {width} ] {name};", f"qreg {name}[{width}] ;"]
        return self.random.choice(forms)

    def _gate(self, name: str) -> str:
        names = NAMES if self.version == 3 else NAMES[:4]
        angle, one, two = self.random.sample(names, 3)
        body = BODY.format(angle=angle, one=one, two=two)
        blank = self._space()
        return f"gate {name}({angle}){blank}{one},{two}{blank}{{{blank}{body}{blank}}}"

    def _qubit(self) -> str:
        name, width = self.random.choice([*self.registers.items()])
        if name in self.singles:
            self.names_whole = True
            return name
        return f"{name}[{self.random.randrange(width)}]"

    def _statement(self) -> str:
        kind, blank, one = self.random.randrange(20), self._space(), self._qubit()
        if kind == 0:
            self.names_whole = True
            return f"reset {self.random.choice([*self.registers])};"
        if kind < 10:
            return f"prx(0.5,{blank}-1){blank}{one};"
        other = self._qubit()
        if other == one:
            return f"U(0, 0, pi) {one}; reset{blank}{one};"
        return f"g{kind % 3}(0.5) {one},{blank}{other};"

    def _alias(self) -> str:
        name, width = self.random.choice([*self.registers.items()])
        if name in self.singles:
            return ""
        self.names_whole = True
        part = self.random.choice([f"0:{width - 1}", f"{{{width - 1}}}"])
        return f"let a = {name}[{part}]; reset a;"


def parsed(text: str, version: int) -> tuple[int, int]:
    """Return the numbers of qubits that Qiskit's parser finds: declared, and used."""
    qasm: Any = importlib.import_module(f"qiskit.qasm{version}")
    circuit = qasm.loads(text)
    used = {bit for one in circuit.data for bit in one.qubits}
    return circuit.num_qubits, len(used)


@pytest.mark.parametrize("version", [2, 3])
def test_counted_qubits_are_those_of_qiskits_parser(version: int) -> None:
    pytest.importorskip("qiskit_qasm3_import")
    exact = 0
    for seed in range(150):
        circuit = Circuit(seed, version)
        declared, used = parsed(circuit.text, version)
        counted = operands(circuit.text)
        assert qubits(circuit.text) == declared, circuit.text
        expected = declared if circuit.names_whole else used
        assert counted == expected >= used, circuit.text
        exact += expected < declared
    assert exact > 25


@pytest.mark.parametrize("seed", range(20))
def test_counted_physical_qubits_are_those_of_qiskits_parser(seed: int) -> None:
    pytest.importorskip("qiskit_qasm3_import")
    random = Random(seed)
    numbers = [random.randrange(30) for _ in range(random.randrange(1, 9))]
    parts = [f"prx(1, 2){random.choice(SPACES)}${number};" for number in numbers]
    text = f"OPENQASM 3.0;\n{PRX}\n" + random.choice(SPACES).join(parts)
    assert qubits(text) == operands(text) == parsed(text, 3)[1]


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ("gate g(t) q { U(t, 0, 0) q; } g(1) q[1];", 1),
        ("gate g(q) a { U(q, 0, 0) a; } g(1) q[1];", 1),
        ("gate g a {} gate h q { g q; } h q[1];", 1),
        ("x $7; gate g q {} g $8;", 2),
        # a body that names a register, or has a block, may be none, for some parser
        ("gate g a { x q[3]; } g q[1];", 2),
        ("gate g(θq) a { x q[3]; } g(1) q[1];", 5),
        ("gate q a { x q[3]; }", 5),
        ("gate g q { if (true) { x q; } } g q[1];", 5),
        ("gate g a { x a; } x q;", 5),
        # no definition is complete
        ("gate g q; x q[1];", 5),
        ("gate g q { x q[1];", 5),
        ("x q[1]; } gate g q } {", 5),
        ("xgate g q { x q; }", 5),
        # characters that a parser may skip
        ("x ²q[1]; x q[2]²;", 2),
    ],
)
def test_only_certain_definitions_of_gates_do_not_count(
    statements: str, expected: int
) -> None:
    assert operands(f"qubit[5] q; {statements}") == expected


def test_a_register_with_a_name_in_other_letters_counts_whole() -> None:
    text = "qubit[5] θ; x θ[1];"
    assert (qubits(text), operands(text)) == (5, 5)


@pytest.mark.parametrize(
    "hidden",
    [
        "// \rqubit[9] r;",
        "@note /*\nqubit[9] r;\n// */",
        "'qubit[9] r;'",
        'include /* "a"; qubit[9] r; include */ "b";',
        'include "\t"/*"; qubit[9] r; //*/',
        'include "a" "/*"; qubit[9] r; // "*/',
        'defcalgrammar "/*"; qubit[9] r; // */',
    ],
)
def test_a_declaration_that_another_parser_may_see_is_not_missed(hidden: str) -> None:
    assert qubits(f"qubit[2] q; {hidden}") is None
    assert qubits(f"OPENQASM {hidden} 3.0; qubit[2] q;") is None


def test_a_declaration_after_a_character_that_is_skipped_counts() -> None:
    assert qubits("qubit[2] q; ²qubit[9] r;") == 11


@pytest.mark.parametrize(
    "unit",
    [
        "gate ",
        "gate a ",
        "gate a { ",
        "gate a q { x q; ",
        "; gate a q {",
        "gate g(t) q { x q; } ",
        "a",
        "qubit ",
        "qubit[1",
        "qubit[9] q;",
        "qreg a [ ",
        "q[1",
        "$0",
        "0",
        " ",
        "\t",
        '"',
        "\"'",
        'include "a',
        "include \t",
        "/*",
        "//",
        "OPENQASM  ",
        "\n@",
    ],
)
@pytest.mark.parametrize("start", ["", "qubit[5] q; gate g "])
def test_hostile_text_is_read_in_linear_time(unit: str, start: str) -> None:
    def seconds(length: int) -> float:
        text = start + unit * (length // len(unit))
        began = time.process_time()
        operands(text), qubits(text)
        return time.process_time() - began

    # four times the text takes four times as long, not sixteen times
    short, long = (min(map(seconds, [size] * 3)) for size in (MIB // 16, MIB // 4))
    # a clock may have large steps
    assert long < 8 * max(short, 0.002)

"""Each statement and expression of OpenQASM 3 runs as specified, or is refused with its line."""

from __future__ import annotations

import math
import operator
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeAlias

import pytest

from sf_quantum.errors import InputError
from sf_quantum.service.device.emulator.circuits import openqasm, programs, unrolling
from sf_quantum.service.device.emulator.circuits.batches import batch
from sf_quantum.service.device.emulator.circuits.circuit import Architecture
from tests.support.circuits import probabilities

HEAD = 'OPENQASM 3.0;\ninclude "stdgates.inc";\n'
DEVICE = Architecture(8)
# What is said by Python, pydantic or Qiskit rather than by us.
FOREIGN = re.compile(
    r"Input should|Error\b|__|\bNone\b|object|Qiskit value|Clbit|Qubit\b|Gate\b|"
    r"Register\b|Scope|Expecting|const (int|bool|float)|positional|node of type|"
    r"argument '|instance|module|str\b|tuple|list index"
)
MOST_CHARACTERS = 200
# of a reference: what runs statements, given the variables of the loops around them, and
# the size and the qubits of a register or alias
Run: TypeAlias = Callable[[Mapping[str, int]], None]
Part: TypeAlias = tuple[int, Callable[[Mapping[str, int]], list[int]]]


def chances(body: str) -> dict[str, float]:
    (group,) = batch(HEAD + body, DEVICE).groups
    return probabilities(next(group.bound()))


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        batch(text, DEVICE)
    return str(caught.value)


def is_ours(why: str) -> bool:
    """Tell whether a reason is one short line in the words of this project."""
    return len(why) <= MOST_CHARACTERS and "\n" not in why and not FOREIGN.search(why)


# expressions

WHOLE: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
REAL: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
}
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "arccos": math.acos,
    "arcsin": math.asin,
    "arctan": math.atan,
    "ceiling": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}


def expression(random: Random, depth: int = 2) -> tuple[str, float]:
    """Return an expression of numbers, and its value."""
    kind = random.randrange(5 if depth else 2)
    if kind == 0:
        constants = {"pi": math.pi, "τ": math.tau, "euler": math.e}
        return random.choice([*constants.items()])
    if kind == 1:
        given = round(random.uniform(0.1, 3), 3)
        return f"{given}", given
    text, known = expression(random, depth - 1)
    if kind == 2:
        return f"-({text})", -known
    if kind == 3:
        name = random.choice([*FUNCTIONS])
        try:
            return f"{name}({text})", FUNCTIONS[name](known)
        except (ValueError, OverflowError):
            return text, known
    other, more = expression(random, depth - 1)
    name = random.choice([*REAL])
    try:
        found = REAL[name](known, more)
    except ArithmeticError:
        return text, known
    real = isinstance(found, float) and abs(found) < 1e6
    return (f"({text}) {name} ({other})", found) if real else (text, known)


def turned(angle: float) -> dict[str, float]:
    """Return what a turn by an angle, after one by 0.3, gives; it tells the angle's sign."""
    one = math.sin((angle + 0.3) / 2) ** 2
    return {word: p for word, p in (("0", 1 - one), ("1", one)) if p > 1e-12}


@pytest.mark.parametrize("place", ["angle", "constant"])
@pytest.mark.parametrize("seed", range(40))
def test_expressions_have_the_specified_value(seed: int, place: str) -> None:
    text, angle = expression(Random(f"{seed}"))
    given = "a" if place == "constant" else text
    declared = f"const float a = {text}; " if place == "constant" else ""
    body = f"{declared}qubit q; bit c; ry(0.3) q; ry({given}) q; c = measure q;"
    assert chances(body) == pytest.approx(turned(angle), abs=1e-6)


@pytest.mark.parametrize("name", [*WHOLE])
def test_whole_numbers_have_the_specified_value(name: str) -> None:
    random = Random(name)
    for _ in range(5):
        left, right = random.randrange(2, 9), random.randrange(1, 6)
        body = f"qubit q; bit c; ry(0.3) q; ry({left} {name} {right}) q; c = measure q;"
        wanted = turned(WHOLE[name](left, right))
        assert chances(body) == pytest.approx(wanted, abs=1e-6)
        constant = f"const int n = {left} {name} {right}; "
        body = f"{constant}qubit q; bit c; ry(0.3) q; ry(n) q; c = measure q;"
        assert chances(body) == pytest.approx(wanted, abs=1e-6)


# statements

RUN = {
    # loops, whose variable may be anywhere
    "for int i in [0:2] { x q[i]; }": "0111",
    "for uint i in {0, 3} x q[i];": "1001",
    "for int i in [3:-2:0] { x q[i]; }": "1010",
    "for int i in [5:0] { x q[0]; }": "0000",
    "x q[0]; for int i in [0:2] { cx q[i], q[i + 1]; }": "1111",
    "for int i in [0:1] { for int j in [2*i:2*i + 1] { x q[j]; } }": "1111",
    "for int i in [0:3] { for int i in [0:0] { x q[i]; } x q[i]; }": "1111",
    "for int i in [0:3] { if (i == 1 || i > 2) { x q[i]; } }": "1010",
    "for int i in [0:3] { if (i % 2 == 0) x q[i]; else y q[i]; }": "1111",
    "for int i in [1:3] { rx(i*pi) q[0]; }": "0000",
    "for int i in [1:2] { rx(pi**i/pi) q[0]; }": None,
    "for int i in [1:3] { pow(i) @ x q[i]; }": "1010",
    "for int i in [0:1] { x q[2*i:2*i + 1]; }": "1111",
    "for int i in [0:1] { c[i] = measure q[i]; }": "0000",
    "box { for int i in [0:1] { x q[i]; } }": "0011",
    "gate g a, b { for int i in [0:2] { x a; } } g q[0], q[1];": "0001",
    "for int i in [0:1] { let a = q[i:3]; x a; }": "0001",
    "for int i in [0:1] { if (i == 0) { let a = q[1:2]; x a[i]; } x q[3]; }": "0010",
    "for int i in [3:2:1] { x q[0]; }": "0000",
    "const int n = 0; for uint i in [0:n - 1] { x q[i]; }": "0000",
    "for int i in [0:1] { rx(pi) q[0]; } gate g(i) a { rx(i/2) a; } g(tau) q[1];": "0010",
    # branches
    "if (true) { let a = q[1:2]; x a[1]; }": "0100",
    "if (true) { x q[1]; }": "0010",
    "const bool b = 2 > 1 && !false; if (b) x q[0]; else x q[1];": "0001",
    "if (c[0] == 2 - 1) x q[0]; else x q[1];": "0010",
    "if (c == 0) { x q[3]; } else { x q[2]; }": "1000",
    'if (c[0:1] == "00") { x q[3]; }': "1000",
    "if (!c[0]) x q[0];": "0001",
    "if (~c[0]) x q[0];": "0001",
    "if (c[1]) x q[0];": "0000",
    "if (c[1] != 1) x q[0];": "0001",
    "if (false == c[1]) x q[0];": "0001",
    "if (0 == c) x q[0];": "0001",
    # aliases, which are seen in their own block only
    "qubit[3] r; let a = r; if (!c[0]) { let a = q[0:1]; x a[1]; } x a[1:];": "0010",
    "let a = q[1:3]; box { let a = q[0:1]; x a[1]; } x a[-1:-1];": "1010",
    "let a = q[1:3]; if (!c[0]) { let a = q[0:1]; x a[:]; } x a[1:];": "1111",
    # operands
    "x q;": "1111",
    "x q[-1];": "1000",
    "x q[{0, 2}];": "0101",
    "x q[1:2];": "0110",
    "x q[:2];": "0111",
    "let a = q[2:3] ++ q[0:0]; x a[0]; x a[-1];": "0101",
    "x q[0]; cx q[0], q[1:3];": "1111",
    "x q[0:1]; cx q[0:1], q[2:3];": "1111",
    "barrier q; barrier; barrier q[0], q[1]; x q[0]; reset q[1];": "0001",
    "x q[0]; reset q;": "0000",
    "delay[100ns] q[0]; delay[1.5us] q; delay[3dt]; x q[0];": "0001",
    "box [1ms] { x q[0]; }": "0001",
    "@mine of any kind\nbox { x q[0]; }": "0001",
    "@mine\nx q[0];": "0001",
    # gates
    "U(pi, 0, pi) q[0]; gphase(1); gphase(pi/2);": "0001",
    "h q[0]; ctrl @ gphase(pi) q[0]; h q[0];": "0001",
    "x q[0]; ctrl @ x q[0], q[1]; negctrl @ x q[2], q[3];": "1011",
    "x q[0:1]; ctrl(2) @ x q[0], q[1], q[2];": "0111",
    "negctrl(2) @ x q[0], q[1], q[2];": "0100",
    "pow(0.5) @ x q[0]; pow(0.5) @ x q[0];": "0001",
    "inv @ s q[0]; pow(-2) @ x q[0]; x q[1];": "0010",
    "gate both(pi) a, b { rx(pi) a; rx(pi) b; } both(tau/2) q[0], q[1];": "0011",
    "gate g a { barrier a; delay[1ns] a; x a; } g q[1];": "0010",
    "gate g x { h x; z x; h x; } g q[0];": "0001",
    "const float x = 3/4; rx(x) q[0];": "0000",
    "const int x = 7/2; rx(x*pi) q[0];": "0001",
    "rx(0x2 * pi/0b10) q[0]; rx(0o1 * π) q[1]; rx(1_0*pi) q[2];": "0011",
    "measure q[0] -> c[1];": "0000",
    "bit d = measure q[0]; bit[2] e; e = measure q[1:2];": "0000000",
}
REFUSED = {
    # sizes
    "const uint[4] n = 1; rx(-n * 0.1) q[0];": "-1 does not fit uint[4]",
    "const int[4] n = -8; rx(-n * 0.1) q[0];": "8 does not fit int[4]",
    "for uint[2] i in [0:3] { rx((i + 3) * 0.1) q[0]; }": "4 does not fit uint[2]",
    # statements
    "break;": "break",
    "for int i in [0:1] { break; }": "break is not",
    "for int i in [0:1] { x q[i]; continue; }": "continue is not",
    "while (c[0]) { x q[0]; }": "while is not",
    "switch (1) { case 1 { x q[0]; } }": "switch is not",
    "def f(qubit a) { x a; }": "def is not",
    "extern f(int) -> int;": "extern is not",
    'defcalgrammar "openpulse";': "defcalgrammar is not",
    "cal { }": "cal is not",
    "defcal x $0 { }": "defcal is not",
    "pragma of mine": "pragmas are not",
    "end;": "end is not",
    "return;": "return",
    "{ x q[0]; }": "a block of its own",
    "1 + 1;": "a statement that is an expression",
    "c[0] = 1;": "assignments are not",
    "c[0] ^= 1;": "assignments are not",
    'include "mine.inc";': "'mine.inc' cannot be included",
    'include "stdgates.inc";': "stdgates.inc is included twice",
    "nop q[0];": "gate 'nop' is not defined",
    "x[100ns] q[0];": "x: gates have no duration",
    "measure q;": "a measurement is of bits",
    # declarations
    "int i = 3;": "variables of type int",
    "uint[8] i;": "variables of type uint",
    "float f = 1.0;": "variables of type float",
    "angle[4] f = pi;": "variables of type angle",
    "bool b = true;": "variables of type bool",
    "complex[float] f = 1im;": "variables of type complex",
    "duration d = 1ns;": "variables of type duration",
    "stretch d;": "variables of type stretch",
    "array[int[8], 2] a = {1, 2};": "variables of type array",
    "const duration d = 1ns;": "constants are int",
    "const bool b = 1;": "expected true or false",
    "const int n = c;": "expected a whole number",
    "const float f = foo(1);": "expected a number",
    "const int n = 2 ** 64;": "expected a whole number",
    "const uint[30000000000] n = 1;": "whole numbers have 1 to 64 bits",
    "const float f = -3/2;": "-3/2 of integers: OpenQASM 3 leaves",
    "const float f = 1 + (1 - 4)/2;": "-3/2 of integers: OpenQASM 3 leaves",
    "const int f = 3/(-2);": "3/-2 of integers: OpenQASM 3 leaves",
    "const float x1 = 1; gate g(x1) a { rx(x1) a; }": "x1 is a constant",
    "const float pi = 3.0;": "pi is there already",
    "const int q = 2;": "q is there already",
    "bit d = 1;": "bits get values by measure",
    'bit[2] d = "01";': "bits get values by measure",
    "output bit d;": "output is not",
    "input int n;": "inputs are float",
    "input float[32] f;": "inputs are float",
    "input float t;": "t is already a gate of stdgates.inc",
    "input float q;": "q is already a qubit on line",
    "input float pi;": "pi is a number of OpenQASM",
    "qubit x;": "x is already a gate",
    "bit q;": "q is already a qubit",
    "qubit[c] d;": "expected a positive whole number",
    "gate x a { h a; }": "x is already a gate",
    "gate g a, a { x a; }": "a is there twice",
    "gate g(a) a { x a; }": "a is there twice",
    "gate g a { x q[0]; }": "q is not visible in a gate",
    "gate g a { x $0; }": "$0: a gate has no",
    "gate g a { if (c[0]) x a; }": "a gate consists of",
    "gate g a { measure a; }": "measure",
    "gate g a { x a[0]; }": "a single qubit or bit has no index",
    "if (c[0]) { bit d; }": "bits are declared outside",
    "if (c[0]) { const int n = 1; }": "constants are declared outside",
    "let a = q[0];": "a: an alias is of a register",
    "let a = q ++ c;": "c is a bit: expected a qubit",
    "let a = q[0:1] ++ q[2];": "++ joins registers",
    "let a = q[0:1] ++ q[1:2];": "++: a qubit is there twice",
    "let a = c ++ c;": "++: a bit is there twice",
    "x q[{0, 0}];": "an index is there twice",
    "x q[{0, -4}];": "an index is there twice",
    "c[{0, 0}] = measure q[0:1];": "an index is there twice",
    "let a = b;": "b is not declared",
    # gates and operands
    "rx q[0];": "rx takes 1 angle, not 0",
    "rx(1, 2) q[0];": "rx takes 1 angle, not 2",
    "x(1) q[0];": "x takes 0 angles, not 1",
    "U(1) q[0];": "U takes 3 angles, not 1",
    "x q[0], q[1];": "x takes 1 qubit, not 2",
    "cx q[0];": "cx takes 2 qubits, not 1",
    "cx q[0], q;": "cx: a qubit is there twice",
    "cx q[0:1], q[1:3];": "cx: its registers have 2 and 3",
    "x q[4];": "index 4 of a register of 4",
    "x q[-5];": "index -5 of a register of 4",
    "x q[0:4];": "slice 0:4",
    "x q[0, 1];": "a register has one index",
    "x q[1.5];": "an index is a whole number",
    "x q[c];": "an index is a whole number",
    "x q[0][0];": "a single qubit or bit has no index",
    "x c[0];": "c is a bit: expected a qubit",
    "x $0;": "$0 and declared qubits",
    "x $9;": "there is no qubit $9",
    "c[5] = measure q[0];": "index 5 of a register of 4",
    "c = measure q[0];": "measure: 1 qubit into 4 bits",
    "q = measure q;": "q is a qubit: expected a bit",
    "reset c;": "c is a bit: expected a qubit",
    "barrier z;": "z is a gate of stdgates.inc",
    "ctrl(0) @ x q[0];": "ctrl takes a whole number from 1",
    "ctrl(1.5) @ x q[0], q[1];": "ctrl takes a whole number from 1",
    "ctrl(999999999999) @ x q[0], q[1];": "x takes 1000000000000 qubits",
    "ctrl @ gphase(1);": "gphase takes 1 qubit, not 0",
    "gphase(1) q[0];": "gphase takes 0 qubits, not 1",
    "pow(c) @ x q[0];": "pow takes a number",
    "pow(1e999) @ x q[0];": "pow takes a finite number",
    # angles
    "rx(1e999) q[0];": "inf is not an angle",
    "rx(1/0) q[0];": "a division by zero",
    "rx(sqrt(-1)) q[0];": "this expression has no finite",
    "rx(10.0**400) q[0];": "this expression has no finite",
    "rx(3/4) q[0];": "3/4 of integers",
    "rx(true) q[0];": "expected a number as the angle",
    "rx(c[0]) q[0];": "a bit is not a number",
    "rx(c) q[0];": "c is a bit: expected a number",
    "rx(h) q[0];": "h is a gate of stdgates.inc: expected a number",
    "rx(w) q[0];": "w is not declared",
    "rx(1im) q[0];": "an imaginary number is not",
    "rx(1ns) q[0];": "a duration is not",
    'rx("01") q[0];': "a string of bits is not",
    "rx(int(1.5)) q[0];": "a cast is not",
    "rx(sizeof(c)) q[0];": "sizeof is not",
    "rx(foo(1)) q[0];": "foo is not a function",
    "rx(~1) q[0];": "this expression is not",
    "rx(-7 % 3) q[0];": "% is of whole numbers",
    # loops, conditions and durations
    "for float f in {0.5} { rx(f) q[0]; }": "f: the variable of a loop",
    "for bit b in c { x q[0]; }": "b: the variable of a loop",
    "for int i in [0:] { x q[0]; }": "the range of a loop has",
    "for int i in [0:0:3] { x q[0]; }": "the step of a range",
    "for int i in {c} { x q[0]; }": "a loop is over whole numbers",
    "for int i in [0:1] { x q[i + 3]; }": "index 4 of a register of 4",
    "for int i in [0:99999999999] { }": "more than 100,000 gates",
    "for int x in [0:1] { x q[x]; }": "x is the variable of a loop",
    "for int q in [0:1] { x q[q]; }": "q is the variable of a loop",
    "for int i in [0:1] { let i = q[i:3]; x q[0]; }": "i is the variable of a loop",
    "let a = q; for int a in [0:1] { x a[0]; }": "a is the variable of a loop",
    "for int i in [0:1] { rx(i/2) q[0]; }": "a division of integers",
    "for uint[2] i in [0:2:4] { x q[0]; }": "4 is no uint of 2 bits",
    "if (c) x q[0];": "a condition is",
    "if (!c) x q[0];": "a condition is",
    "if (c != 1) x q[0];": "a register is compared by ==",
    "if (c > 1) x q[0];": "a condition is",
    "if (c == 16) x q[0];": "if: 16 does not fit in 4 bits",
    "if (c == -1) x q[0];": "if: -1 does not fit in 4 bits",
    'if (c == "1") x q[0];': "4 bits compared with 1",
    "if (c == true) x q[0];": "a condition is",
    "if (c[0] == 2) x q[0];": "a bit is 0 or 1",
    "if (c[0] && c[1]) x q[0];": "a condition is",
    "if (c[0] == c[1]) x q[0];": "a condition is",
    "if (q == 1) x q[0];": "a condition is",
    "if (foo(1) == 1) x q[0];": "a condition is",
    "for int i in [0:1] { if (foo(1) == i) x q[i]; }": "a condition is",
    "if (int(c) == 1) x q[0];": "a condition is",
    "delay[100] q;": "expected a duration",
    "delay[-1ns] q;": "expected a duration",
    "delay[2*1ns] q;": "expected a duration",
    "box [durationof({x q[0];})] { x q[0]; }": "expected a duration",
    # what is not OpenQASM
    "rx(pi*) q[0];": "unexpected",
    "x q[0]": "unexpected",
    "inv(1) @ x q[0];": "unexpected",
    "gphase pi;": "'gphase' takes exactly one argument",
}
DECLARED = "qubit[4] q; bit[4] c;"


@pytest.mark.parametrize("statement", [*RUN])
def test_statements_run_as_specified(statement: str) -> None:
    body = f"{DECLARED} {statement} c = measure q;"
    found, word = chances(body), RUN[statement]
    if word is not None:
        assert found == {word: pytest.approx(1)}
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize("statement", [*REFUSED])
def test_statements_are_refused_with_their_line(statement: str) -> None:
    random = Random(statement)
    before = [
        f"{DECLARED}",
        *["h q[0];", "", "/* a\ncomment */"][: random.randrange(4)],
    ]
    text = HEAD + "\n".join([*before, statement, "c = measure q;"])
    line = text.index(statement, len(HEAD)) if statement in text[len(HEAD) :] else 0
    line = text.count("\n", 0, line) + 1
    # The parser finds the end of a statement that lacks one in the next line.
    lines = (line + 1,) if statement == "x q[0]" else (line,)
    why = refusal(text)
    assert [f"line {number}: " for number in lines] == [re.sub(r"(: ).*", r"\1", why)]
    assert REFUSED[statement] in why
    assert is_ours(why), why


@pytest.mark.parametrize("block", ["x q[{i, i}];", "if (c[0]) { x q[i % 2]; }", "y q;"])
def test_loops_are_refused_before_they_are_written_out(block: str) -> None:
    text = f"{HEAD}{DECLARED} for int i in [0:300] {{ {block * 400} }} c = measure q;"
    assert refusal(text) == "line 3: more than 100,000 gates and measurements"


@pytest.mark.parametrize(("operand", "most"), [("q[i % 2]", 96), ("q[0]", 95)])
def test_rounds_of_loops_count_as_their_gates(
    monkeypatch: pytest.MonkeyPatch, operand: str, most: int
) -> None:
    for module in (openqasm, programs, unrolling):
        monkeypatch.setattr(module, "MAX_STEPS", 100)
    # The measurement is 4 steps, and a loop that is not written out one.
    body = "for int i in [1:{}] {{ x {}; }} c = measure q;"
    found = chances(DECLARED + body.format(most, operand))
    assert found == {"0000" if "i" in operand else "0001": pytest.approx(1)}
    why = refusal(HEAD + DECLARED + body.format(most + 1, operand))
    assert "more than 100 gates" in why


@pytest.mark.parametrize("operand", ["q[0]", "q[i0]"])
@pytest.mark.parametrize("place", ["a circuit", "a gate"])
def test_nested_loops_are_bounded(place: str, operand: str) -> None:
    nested = "".join(f"for int i{n} in [0:1] {{ " for n in range(40))
    if place == "a gate":
        nested = f"gate g a {{ {nested} x a; {'}' * 41} g q[0];"
    else:
        nested = f"{nested} x {operand}; {'}' * 40}"
    assert "more than 100,000" in refusal(f"{HEAD}{DECLARED} {nested} c = measure q;")


def test_aliases_are_bounded() -> None:
    doubled = " ".join(f"let a{n + 1} = a{n} ++ a{n};" for n in range(40))
    body = f"{DECLARED} let a0 = q; {doubled} let b = a40[0:-1]; c = measure q;"
    assert "aliases of more than 100,000 qubits" in refusal(HEAD + body)


@pytest.mark.parametrize("seed", range(20))
def test_mod_of_floats_is_a_remainder(seed: int) -> None:
    random = Random(seed)
    above, below = round(random.uniform(0, 9), 2), round(random.uniform(0.5, 2), 2)
    body = f"qubit q; bit c; ry(0.3) q; ry(mod({above}, {below})) q; c = measure q;"
    assert chances(body) == pytest.approx(turned(math.fmod(above, below)), abs=1e-6)


def test_loops_of_an_input_name_do_not_change_it() -> None:
    declared = "input float i; qubit q; bit c;"
    body = f"{declared} ry(i/2) q; for int i in [0:1] {{ x q; }} c = measure q;"
    (group,) = batch({"program": HEAD + body, "values": [{"i": 1.0}]}, DEVICE).groups
    wanted = turned(0.5 - 0.3)
    assert probabilities(next(group.bound())) == pytest.approx(wanted, abs=1e-6)


# programs of x and cx, which are computed here as bits


class Written:
    """A random program, and the bits that it leaves, by a reference of its own."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.bits = [0] * 4
        self.names = 0

    def block(
        self, parts: ChainMap[str, Part], loops: Mapping[str, int], depth: int
    ) -> tuple[str, Run]:
        """Return statements of a scope, and what runs them.

        :param parts: the registers and aliases
        :param loops: the variables of the loops around, and their largest values
        """
        made = [
            self.statement(parts, loops, depth)
            for _ in range(self.random.randrange(1, 5))
        ]

        def run(values: Mapping[str, int]) -> None:
            for _, one in made:
                one(values)

        return " ".join(text for text, _ in made), run

    def statement(
        self, parts: ChainMap[str, Part], loops: Mapping[str, int], depth: int
    ) -> tuple[str, Run]:
        kind = self.random.randrange(7 if depth else 4)
        if kind == 0:
            return self.alias(parts, loops)
        if kind == 1:
            return self.controlled(parts)
        if kind < 4:
            return self.flip(parts, loops)
        if kind == 4:
            return self.loop(parts, loops, depth)
        text, run = self.block(parts.new_child(), loops, depth - 1)
        if kind == 5:
            return f"box {{ {text} }}", run
        other, run_other = self.block(parts.new_child(), loops, depth - 1)
        if loops and self.random.random() < 0.5:
            name = self.random.choice([*loops])

            def choose(values: Mapping[str, int]) -> None:
                (run if values[name] % 2 == 0 else run_other)(values)

            return f"if ({name} % 2 == 0) {{ {text} }} else {{ {other} }}", choose
        return f"if (c[1]) {{ {other} }} else {{ {text} }}", run

    def loop(
        self, parts: ChainMap[str, Part], loops: Mapping[str, int], depth: int
    ) -> tuple[str, Run]:
        self.names += 1
        name, rounds = f"i{self.names}", self.random.randrange(1, 4)
        inner = {**loops, name: rounds - 1}
        text, run = self.block(parts.new_child(), inner, depth - 1)

        def repeat(values: Mapping[str, int]) -> None:
            for number in range(rounds):
                run({**values, name: number})

        return f"for int {name} in [0:{rounds - 1}] {{ {text} }}", repeat

    def alias(
        self, parts: ChainMap[str, Part], loops: Mapping[str, int]
    ) -> tuple[str, Run]:
        target = self.random.choice(["a", "b", "q"])
        if target in parts.maps[0]:
            return self.flip(parts, loops)
        name = self.random.choice([*parts])
        size, bits = parts[name]
        fits = [one for one, last in loops.items() if last + 1 < size]
        if fits and self.random.random() < 0.5:
            index = self.random.choice(fits)
            parts[target] = 2, lambda values: bits(values)[values[index] :][:2]
            text = f"let {target} = {name}[{index}:{index} + 1];"
        elif size > 1 and self.random.random() < 0.5:
            first = self.random.randrange(1, size)
            parts[target] = size, lambda values: [
                *bits(values)[first:],
                *bits(values)[:first],
            ]
            text = f"let {target} = {name}[{first}:] ++ {name}[:{first - 1}];"
        else:
            first = self.random.randrange(size)
            parts[target] = size - first, lambda values: bits(values)[first:]
            text = f"let {target} = {name}[{first - size}:-1];"
        return text, lambda values: None

    def controlled(self, parts: ChainMap[str, Part]) -> tuple[str, Run]:
        name = self.random.choice(
            [one for one, part in parts.items() if part[0] > 1] or ["q"]
        )
        size, bits = parts[name]
        if size < 2:
            return f"barrier {name};", lambda values: None
        one, other = self.random.sample(range(size), 2)

        def run(values: Mapping[str, int]) -> None:
            place = bits(values)
            self.bits[place[other]] ^= self.bits[place[one]]

        return f"cx {name}[{one}], {name}[{other - size}];", run

    def flip(
        self, parts: ChainMap[str, Part], loops: Mapping[str, int]
    ) -> tuple[str, Run]:
        name = self.random.choice([*parts])
        size, bits = parts[name]
        fits = [one for one, last in loops.items() if last < size]
        kind = self.random.randrange(3)
        chosen: Callable[[Mapping[str, int]], Sequence[int]]
        if fits and kind:
            index = self.random.choice(fits)
            text, chosen = f"[{index}]", lambda values: [values[index]]
        elif kind == 0:
            first, last = sorted(self.random.choices(range(size), k=2))
            text, chosen = f"[{first}:{last}]", lambda _: [*range(first, last + 1)]
        elif kind == 1:
            numbers = self.random.sample(
                range(size), self.random.randrange(1, size + 1)
            )
            shown = ", ".join(map(str, numbers))
            text, chosen = f"[{{{shown}}}]", lambda _: numbers
        else:
            text, chosen = "", lambda _: [*range(size)]

        def run(values: Mapping[str, int]) -> None:
            place = bits(values)
            for one in chosen(values):
                self.bits[place[one]] ^= 1

        return f"x {name}{text};", run


@pytest.mark.parametrize("seed", range(60))
def test_blocks_and_aliases_run_as_a_reference(seed: int) -> None:
    written = Written(f"{seed}")
    parts: ChainMap[str, Part] = ChainMap({"q": (4, lambda values: [0, 1, 2, 3])})
    text, run = written.block(parts.new_child() if seed % 2 else parts, {}, 3)
    run({})
    if seed % 2:
        text = f"box {{ {text} }}"
    word = "".join(map(str, reversed(written.bits)))
    assert chances(f"{DECLARED} {text} c = measure q;") == {
        word: pytest.approx(1)
    }, text


WORDS = (
    """qubit bit q c q[0] c[0] [ ] ( ) { } ; , : = == != ++ @ -> x cx rx(1) h U(1,2,3) i
    for int in [0:3] {0,1} if else while measure reset barrier gate g a let const float 0 1 -1
    2.5 pi 3/4 "01" true input angle ctrl inv pow(2) negctrl gphase(1) $0 box delay[1ns] sin
    sqrt( % ** << ! ~ && break uint switch def return include""".split()
)
TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


def mutated(random: Random) -> str:
    """Return a program with some of its tokens changed."""
    statements = random.choices([*RUN, *REFUSED], k=2)
    tokens = TOKEN.findall(" ".join([DECLARED, *statements, "c = measure q;"]))
    for _ in range(random.randrange(1, 3)):
        place = random.randrange(len(tokens))
        change = random.randrange(3)
        if change == 0:
            del tokens[place]
        elif change == 1:
            tokens[place] = f" {random.choice(WORDS)} "
        else:
            tokens.insert(place, f" {random.choice(WORDS)} ")
    return "".join(tokens)


@pytest.mark.parametrize("seed", range(40))
def test_changed_programs_run_or_are_refused_in_our_words(seed: int) -> None:
    random = Random(seed)
    for _ in range(5):
        text = HEAD + mutated(random)
        try:
            batch(text, DEVICE)
        except InputError as error:
            why = str(error)
            known = why.startswith(("line ", "parameter ", "the circuit measures"))
            assert known or " qubits do not fit " in why, (why, text)
            assert is_ours(why), (why, text)


def sized(draws: Random, depth: int) -> tuple[str, int | None]:
    """Return an expression of uint[4] a = 9 and b = 3, and its value if each part has room."""
    if not depth:
        return draws.choice([("a", 9), ("b", 3)])
    name = draws.choice(["+", "-", "*", "<<", ">>", "&", "|", "^", "%"])
    (left, one), (right, two) = sized(draws, depth - 1), sized(draws, depth - 1)
    text = f"({left} {name} {right})"
    if one is None or two is None or (name == "%" and not two):
        return text, None
    known = {
        "+": one + two,
        "-": one - two,
        "*": one * two,
        "<<": one << two,
        ">>": one >> two,
        "&": one & two,
        "|": one | two,
        "^": one ^ two,
        "%": one % two if two else 0,
    }
    return text, known[name] if 0 <= known[name] < 16 else None


@pytest.mark.parametrize("seed", range(60))
def test_what_a_type_has_no_room_for_is_refused(seed: int) -> None:
    text, known = sized(Random(seed), 2)
    lines = f"const uint[4] a = 9; const uint[4] b = 3; rx({text}*0.1) q[0];"
    program = f'OPENQASM 3.0; include "stdgates.inc"; qubit[1] q; {lines} bit c = measure q[0];'
    if known is None:
        with pytest.raises(InputError, match=r"does not fit uint\[4\]|by zero"):
            batch(program)
    else:
        (group,) = batch(program).groups
        (found,) = (one.operation.params[0] for one in next(group.bound()).data[:1])
        assert float(found) == pytest.approx(known * 0.1)


GATE = "gate g(a) r { rx(a) r; }"


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (
            "gate l(b) r { pow(2) @ g(b) r; } l(pi) q[0];",
            "pow of this gate needs angles that are numbers",
        ),
        (
            "gate k(b) r, s { ctrl @ g(b) r, s; } inv @ k(pi) q[0], q[1];",
            "is not supported: write pow(-1)",
        ),
    ],
)
def test_gates_of_ones_own_are_refused_in_our_words(
    statements: str, expected: str
) -> None:
    with pytest.raises(InputError) as it:
        batch(f"{HEAD} {GATE} qubit[2] q; {statements} bit c = measure q[0];")
    assert expected in str(it.value)
    assert is_ours(str(it.value))

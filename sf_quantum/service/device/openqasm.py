"""Reads circuits in OpenQASM 3: those that act on all their qubits and measure at the end.

That is what ``qiskit.qasm3.dumps`` writes of a circuit without control flow: registers,
the gates of ``stdgates.inc``, gates that are defined on the way, physical qubits (``$0``)
and measurements (https://openqasm.com/versions/3.0/).
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

#: gates that are built in or in stdgates.inc: how many angles and qubits they take
GATES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("id", "x", "y", "z", "h", "s", "sdg", "t", "tdg", "sx"), (0, 1)),
    **dict.fromkeys(("p", "phase", "u1", "rx", "ry", "rz"), (1, 1)),
    **dict.fromkeys(("U", "u3"), (3, 1)),
    "u2": (2, 1),
    **dict.fromkeys(("cx", "CX", "cy", "cz", "ch", "swap"), (0, 2)),
    **dict.fromkeys(("cp", "cphase", "crx", "cry", "crz"), (1, 2)),
    "cu": (4, 2),
    **dict.fromkeys(("ccx", "cswap"), (0, 3)),
}
_CONSTANTS = {
    **dict.fromkeys(("pi", "π"), math.pi),
    **dict.fromkeys(("tau", "τ"), math.tau),
    **dict.fromkeys(("euler", "ℇ"), math.e),
}
_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    name: getattr(math, name) for name in "sin cos tan exp log sqrt".split()
}
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# No pattern may try one text in many ways: texts come from users, of whatever length.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(\*/|\Z)", re.DOTALL)
_WORD = re.compile(r"\S")
_END = re.compile(r"[;{}]")
_DECLARED = re.compile(r"(qubit|bit)(?:\s*+\[\s*(\d{1,6})\s*\]\s*+|\s++)(\w+)")
_MEASURED = re.compile(r"([^=]+)=\s*measure\s+(.+)", re.DOTALL)
_GATE = re.compile(r"([^\W\d]\w*+)\s*+(?:\((.*)\))?\s*+([^()]*+)", re.DOTALL)
_OPERAND = re.compile(r"(\w+)\s*(?:\[\s*(\d{1,6})\s*\])?")
# gates within gates
_DEEPEST = 20
#: gates and measurements, each use of a gate that is defined counted too
LONGEST = 100_000
# what a gate's definition has beyond this many characters in a statement, or a use of it
# beyond as many qubits, takes as long as further gates do, and counts as these
_LINE = 25


class Unreadable(ValueError):
    """A circuit that cannot run here; the text says where and why."""


@dataclass(frozen=True)
class GateCall:
    """A gate of :data:`GATES` on qubits."""

    name: str
    angles: tuple[float, ...]
    qubits: tuple[int, ...]


@dataclass
class Circuit:
    """What a text says.

    :param bits: of all classical registers, in the order of their declaration
    :param measured: by bit, the qubit it is read from
    """

    qubits: int = 0
    bits: int = 0
    operations: list[GateCall] = field(default_factory=list)
    measured: dict[int, int] = field(default_factory=dict)


def parse(text: str) -> Circuit:
    """Read a circuit.

    :raises Unreadable: with the line
    """
    reader = _Reader()
    for line, statement, body in _statements(text):
        try:
            reader.read(statement, body)
        except Unreadable as error:
            raise Unreadable(f"line {line}: {error}") from error
    circuit = reader.circuit
    if not circuit.measured:
        raise Unreadable("it measures nothing")
    return circuit


@dataclass(frozen=True)
class _Defined:
    angles: list[str]
    qubits: list[str]
    body: list[str]


class _Reader:
    def __init__(self) -> None:
        self.circuit = Circuit()
        self._registers: dict[str, tuple[str, int, int]] = {}
        self._physical: dict[str, int] = {}
        self._defined: dict[str, _Defined] = {}
        self._read: set[int] = set()
        self._steps = 0

    def read(self, statement: str, body: str | None) -> None:
        word = re.split(r"[\s\[(]", statement, maxsplit=1)[0]
        if body is not None:
            self._define(statement, body)
        elif word == "OPENQASM":
            if not re.fullmatch(r"OPENQASM\s+3(\.\d+)?", statement):
                raise Unreadable(f"{statement!r:.60}: expected OPENQASM 3")
        elif word == "include":
            if not re.fullmatch(r"include\s*[\"']stdgates\.inc[\"']", statement):
                raise Unreadable(f"{statement!r:.60}: only stdgates.inc is known")
        elif word in ("qubit", "bit"):
            self._declare(statement)
        elif measured := _MEASURED.fullmatch(statement):
            self._measure(measured[1], measured[2])
        elif word not in ("barrier", "gphase", ""):  # which nothing here depends on
            for name, angles, operands in _applied(statement, {}):
                self._broadcast(name, angles, operands)

    def _declare(self, statement: str) -> None:
        found = _DECLARED.fullmatch(statement)
        if found is None or found[3] in self._registers:
            expected = "expected qubit[4] q or bit[4] c, once"
            raise Unreadable(f"{statement!r:.60}: {expected}")
        size = int(found[2] or 1)
        kind = found[1]
        start = self.circuit.qubits if kind == "qubit" else self.circuit.bits
        self._registers[found[3]] = (kind, start, size)
        if kind == "qubit":
            self.circuit.qubits += size
        else:
            self.circuit.bits += size

    def _define(self, statement: str, body: str) -> None:
        found = _GATE.fullmatch(statement.removeprefix("gate").strip())
        if not statement.startswith("gate ") or found is None:
            raise Unreadable(f"{statement!r:.60}: control flow does not run here")
        statements = [inner for _, inner, _ in _statements(body)]
        defined = _Defined(_names(found[2]), _names(found[3]), statements)
        self._defined[found[1]] = defined

    def _measure(self, bits: str, qubits: str) -> None:
        targets, sources = self._places("bit", bits), self._places("qubit", qubits)
        if len(targets) != len(sources):
            raise Unreadable(f"{len(sources)} qubits into {len(targets)} bits")
        self._count(len(sources))
        for bit, qubit in zip(targets, sources, strict=True):
            if qubit in self._read or bit in self.circuit.measured:
                raise Unreadable("a qubit or a bit is measured twice")
            self.circuit.measured[bit] = qubit
            self._read.add(qubit)

    def _broadcast(self, name: str, angles: list[float], operands: list[str]) -> None:
        places = [self._places("qubit", operand) for operand in operands]
        width = max(map(len, places), default=0)
        if any(len(place) not in (1, width) for place in places):
            raise Unreadable(f"{name}: registers of different sizes")
        for number in range(width):
            chosen = [place[number if len(place) > 1 else 0] for place in places]
            self._apply(name, angles, chosen, 0)

    def _apply(
        self, name: str, angles: list[float], qubits: list[int], depth: int
    ) -> None:
        self._count(1 + len(qubits) // _LINE)
        if len(set(qubits)) < len(qubits):
            raise Unreadable(f"{name}: the same qubit twice")
        if defined := self._defined.get(name):
            self._expand(name, defined, angles, qubits, depth)
            return
        if name not in GATES:
            raise Unreadable(f"{name!r} is no gate that is known here")
        if (len(angles), len(qubits)) != GATES[name]:
            known = "{} angles and {} qubits".format(*GATES[name])
            raise Unreadable(f"{name}: expected {known}")
        if not self._read.isdisjoint(qubits):
            raise Unreadable(f"{name}: its qubit has been measured before")
        operation = GateCall(name, tuple(angles), tuple(qubits))
        self.circuit.operations.append(operation)

    def _expand(
        self,
        name: str,
        defined: _Defined,
        angles: list[float],
        qubits: list[int],
        depth: int,
    ) -> None:
        expected = (len(defined.angles), len(defined.qubits))
        if (len(angles), len(qubits)) != expected or depth >= _DEEPEST:
            raise Unreadable(f"{name}: is not defined for this")
        known = dict(zip(defined.angles, angles, strict=True))
        place = dict(zip(defined.qubits, qubits, strict=True))
        for statement in defined.body:
            self._count(len(statement) // _LINE)
            if statement.startswith(("gphase", "barrier")):
                self._count(1)
                continue
            for inner, values, operands in _applied(statement, known):
                if not place.keys() >= set(operands):
                    raise Unreadable(f"{name}: {', '.join(operands)} are not its own")
                self._apply(inner, values, [place[q] for q in operands], depth + 1)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > LONGEST:
            counted = "those within gates and measurements included"
            raise Unreadable(f"more than {LONGEST} gates, {counted}")

    def _places(self, kind: str, operand: str) -> Sequence[int]:
        operand = operand.strip()
        if kind == "qubit" and re.fullmatch(r"\$\d{1,6}", operand):
            if operand not in self._physical:
                self._physical[operand] = self.circuit.qubits
                self.circuit.qubits += 1
            return [self._physical[operand]]
        found = _OPERAND.fullmatch(operand)
        register = self._registers.get(found[1]) if found else None
        if found is None or register is None or register[0] != kind:
            raise Unreadable(f"{operand!r:.60} is no {kind}")
        _, start, size = register
        if found[2] is None:
            return range(start, start + size)
        if int(found[2]) >= size:
            raise Unreadable(f"{operand!r}: {found[1]} has {size} {kind}s")
        return [start + int(found[2])]


def _statements(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield each statement with its line, and its body if it has one in braces."""
    # the lines stay as they are
    text = _COMMENT.sub(_lines, text)
    place, line = 0, 1
    while word := _WORD.search(text, place):
        start = word.start()
        line += text.count("\n", place, start)
        found = _END.search(text, start)
        if found is None or found[0] == "}":
            raise Unreadable(f"line {line}: a statement does not end")
        place, body = found.end(), None
        if found[0] == "{":
            end = text.find("}", place)
            if end < 0:
                raise Unreadable(f"line {line}: a brace does not close")
            body, place = text[place:end], end + 1
        yield line, text[start : found.start()].strip(), body
        line += text.count("\n", start, place)


def _lines(comment: re.Match[str]) -> str:
    if comment[1] == "":
        raise Unreadable("a comment does not end")
    return "\n" * comment[0].count("\n")


def _applied(
    statement: str, known: Mapping[str, float]
) -> Iterator[tuple[str, list[float], list[str]]]:
    found = _GATE.fullmatch(statement)
    if found is None:
        raise Unreadable(f"{statement!r:.60} does not run here")
    angles = [] if not (found[2] or "").strip() else _values(found[2], known)
    yield found[1], angles, _names(found[3])


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _values(text: str, known: Mapping[str, float]) -> list[float]:
    if len(text) > 1000:
        raise Unreadable("an angle is too long")
    try:
        # between commas OpenQASM writes sums and products as Python does
        parsed = ast.parse(f"({text},)", mode="eval").body
        elements = parsed.elts if isinstance(parsed, ast.Tuple) else []
        values = [_value(element, known) for element in elements]
    except Unreadable:
        raise
    except (ValueError, SyntaxError, ArithmeticError, RecursionError) as error:
        raise Unreadable(f"{text!r:.60} is no angle") from error
    if not all(map(math.isfinite, values)):
        raise Unreadable(f"{text!r:.60} is no angle")
    return values


def _value(node: ast.expr, known: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) if name in known or name in _CONSTANTS:
            return known.get(name, _CONSTANTS.get(name, 0.0))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, known)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left, known), _value(right, known))
        case ast.Call(func=ast.Name(id=name), args=[inner]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(inner, known))
    raise Unreadable(f"{ast.unparse(node)[:60]!r} is no angle")

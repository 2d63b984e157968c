"""A parser of OpenQASM 3 circuits without control flow and mid-circuit measurement.

The subset is that of ``qiskit.qasm3.dumps``: registers, the gates of ``stdgates.inc``, gate
definitions, physical qubits (``$0``) and measurements
(https://openqasm.com/versions/3.0/).
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

#: numbers of angles and qubits of the gates that are built in or in stdgates.inc
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
# No pattern may backtrack much: texts come from users and may be long.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(\*/|\Z)", re.DOTALL)
_START = re.compile(r"\S")
_END = re.compile(r"[;{}]")
_DECLARATION = re.compile(r"(qubit|bit)(?:\s*+\[\s*(\d{1,6})\s*\]\s*+|\s++)(\w+)")
_MEASUREMENT = re.compile(r"([^=]+)=\s*measure\s+(.+)", re.DOTALL)
_GATE = re.compile(r"([^\W\d]\w*+)\s*+(?:\((.*)\))?\s*+([^()]*+)", re.DOTALL)
_OPERAND = re.compile(r"(\w+)\s*(?:\[\s*(\d{1,6})\s*\])?")
# nesting of gate definitions
_MAX_DEPTH = 20
#: gates and measurements, including each use of a defined gate
MAX_STEPS = 100_000
# characters of a statement in a definition, or qubits of a gate, that count as a step
_STEP_SIZE = 25


class CircuitError(ValueError):
    """A circuit that is invalid or not supported; the message has the line and the reason."""


@dataclass(frozen=True)
class GateCall:
    """A gate of :data:`GATES` on qubits."""

    name: str
    angles: tuple[float, ...]
    qubits: tuple[int, ...]


@dataclass
class Circuit:
    """A parsed circuit.

    :param bits: number of bits of all classical registers, in order of declaration
    :param measured: the measured qubit of each bit
    """

    qubits: int = 0
    bits: int = 0
    operations: list[GateCall] = field(default_factory=list)
    measured: dict[int, int] = field(default_factory=dict)


def parse(text: str) -> Circuit:
    """Parse a circuit.

    :raises CircuitError: if it is invalid or not supported
    """
    parser = _CircuitParser()
    for line, statement, body in _statements(text):
        try:
            parser.parse(statement, body)
        except CircuitError as error:
            raise CircuitError(f"line {line}: {error}") from error
    if not parser.circuit.measured:
        raise CircuitError("the circuit measures nothing")
    return parser.circuit


@dataclass(frozen=True)
class _GateDefinition:
    angles: list[str]
    qubits: list[str]
    body: list[str]


class _CircuitParser:
    def __init__(self) -> None:
        self.circuit = Circuit()
        self._registers: dict[str, tuple[str, int, int]] = {}
        self._physical: dict[str, int] = {}
        self._definitions: dict[str, _GateDefinition] = {}
        self._measured: set[int] = set()
        self._steps = 0

    def parse(self, statement: str, body: str | None) -> None:
        keyword = re.split(r"[\s\[(]", statement, maxsplit=1)[0]
        if body is not None:
            self._define(statement, body)
        elif keyword == "OPENQASM":
            if not re.fullmatch(r"OPENQASM\s+3(\.\d+)?", statement):
                raise CircuitError(f"{statement!r:.60}: expected OPENQASM 3")
        elif keyword == "include":
            if not re.fullmatch(r"include\s*[\"']stdgates\.inc[\"']", statement):
                raise CircuitError(f"{statement!r:.60}: only stdgates.inc is supported")
        elif keyword in ("qubit", "bit"):
            self._declare(statement)
        elif measurement := _MEASUREMENT.fullmatch(statement):
            self._measure(measurement[1], measurement[2])
        elif keyword not in ("barrier", "gphase", ""):  # these have no effect
            name, angles, operands = _gate_call(statement, {})
            self._broadcast(name, angles, operands)

    def _declare(self, statement: str) -> None:
        match = _DECLARATION.fullmatch(statement)
        if match is None or match[3] in self._registers:
            expected = "expected qubit[4] q or bit[4] c, once"
            raise CircuitError(f"{statement!r:.60}: {expected}")
        kind, size, name = match[1], int(match[2] or 1), match[3]
        if kind == "qubit":
            self._registers[name] = (kind, self.circuit.qubits, size)
            self.circuit.qubits += size
        else:
            self._registers[name] = (kind, self.circuit.bits, size)
            self.circuit.bits += size

    def _define(self, statement: str, body: str) -> None:
        match = _GATE.fullmatch(statement.removeprefix("gate").strip())
        if not statement.startswith("gate ") or match is None:
            raise CircuitError(f"{statement!r:.60}: control flow is not supported")
        statements = [inner for _, inner, _ in _statements(body)]
        self._definitions[match[1]] = _GateDefinition(
            _names(match[2]), _names(match[3]), statements
        )

    def _measure(self, bits: str, qubits: str) -> None:
        targets, sources = self._indices("bit", bits), self._indices("qubit", qubits)
        if len(targets) != len(sources):
            raise CircuitError(f"{len(sources)} qubits into {len(targets)} bits")
        self._count(len(sources))
        for bit, qubit in zip(targets, sources, strict=True):
            if qubit in self._measured or bit in self.circuit.measured:
                raise CircuitError("a qubit or a bit is measured twice")
            self.circuit.measured[bit] = qubit
            self._measured.add(qubit)

    def _broadcast(self, name: str, angles: list[float], operands: list[str]) -> None:
        registers = [self._indices("qubit", operand) for operand in operands]
        width = max(map(len, registers), default=0)
        if any(len(register) not in (1, width) for register in registers):
            raise CircuitError(f"{name}: registers of different sizes")
        for number in range(width):
            qubits = [qs[number if len(qs) > 1 else 0] for qs in registers]
            self._apply(name, angles, qubits, 0)

    def _apply(
        self, name: str, angles: list[float], qubits: list[int], depth: int
    ) -> None:
        self._count(1 + len(qubits) // _STEP_SIZE)
        if len(set(qubits)) < len(qubits):
            raise CircuitError(f"{name}: the same qubit twice")
        if definition := self._definitions.get(name):
            self._expand(name, definition, angles, qubits, depth)
            return
        if name not in GATES:
            raise CircuitError(f"unknown gate {name!r}")
        if (len(angles), len(qubits)) != GATES[name]:
            expected = "{} angles and {} qubits".format(*GATES[name])
            raise CircuitError(f"{name}: expected {expected}")
        if not self._measured.isdisjoint(qubits):
            raise CircuitError(f"{name}: its qubit was measured before")
        call = GateCall(name, tuple(angles), tuple(qubits))
        self.circuit.operations.append(call)

    def _expand(
        self,
        name: str,
        definition: _GateDefinition,
        angles: list[float],
        qubits: list[int],
        depth: int,
    ) -> None:
        expected = (len(definition.angles), len(definition.qubits))
        if (len(angles), len(qubits)) != expected:
            counts = "{} angles and {} qubits".format(*expected)
            raise CircuitError(f"{name}: expected {counts}")
        if depth >= _MAX_DEPTH:
            raise CircuitError(f"{name}: more than {_MAX_DEPTH} nested definitions")
        known = dict(zip(definition.angles, angles, strict=True))
        numbers = dict(zip(definition.qubits, qubits, strict=True))
        for statement in definition.body:
            self._count(len(statement) // _STEP_SIZE)
            if statement.startswith(("gphase", "barrier")):
                self._count(1)
                continue
            inner, values, operands = _gate_call(statement, known)
            if unknown := set(operands) - numbers.keys():
                listed = ", ".join(sorted(unknown))
                raise CircuitError(f"{name}: unknown qubits {listed}")
            self._apply(inner, values, [numbers[q] for q in operands], depth + 1)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise CircuitError(f"more than {MAX_STEPS} gates and measurements")

    def _indices(self, kind: str, operand: str) -> Sequence[int]:
        operand = operand.strip()
        if kind == "qubit" and re.fullmatch(r"\$\d{1,6}", operand):
            if operand not in self._physical:
                self._physical[operand] = self.circuit.qubits
                self.circuit.qubits += 1
            return [self._physical[operand]]
        match = _OPERAND.fullmatch(operand)
        register = self._registers.get(match[1]) if match else None
        if match is None or register is None or register[0] != kind:
            raise CircuitError(f"{operand!r:.60} is not a {kind}")
        _, start, size = register
        if match[2] is None:
            return range(start, start + size)
        if int(match[2]) >= size:
            raise CircuitError(f"{operand!r}: {match[1]} has {size} {kind}s")
        return [start + int(match[2])]


def _statements(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield the line, the text and the body in braces, if any, of each statement."""
    text = _COMMENT.sub(_newlines, text)
    position, line = 0, 1
    while first := _START.search(text, position):
        start = first.start()
        line += text.count("\n", position, start)
        match = _END.search(text, start)
        if match is None or match[0] == "}":
            raise CircuitError(f"line {line}: missing ; after a statement")
        position, body = match.end(), None
        if match[0] == "{":
            end = text.find("}", position)
            if end < 0:
                raise CircuitError(f"line {line}: missing closing brace")
            body, position = text[position:end], end + 1
        yield line, text[start : match.start()].strip(), body
        line += text.count("\n", start, position)


def _newlines(comment: re.Match[str]) -> str:
    if comment[1] == "":
        raise CircuitError("unterminated comment")
    return "\n" * comment[0].count("\n")


def _gate_call(
    statement: str, known: Mapping[str, float]
) -> tuple[str, list[float], list[str]]:
    match = _GATE.fullmatch(statement)
    if match is None:
        raise CircuitError(f"{statement!r:.60} is not supported")
    angles = _angles(match[2], known) if (match[2] or "").strip() else []
    return match[1], angles, _names(match[3])


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _angles(text: str, known: Mapping[str, float]) -> list[float]:
    if len(text) > 1000:
        raise CircuitError("an angle is too long")
    try:
        # expressions have the syntax of Python
        parsed = ast.parse(f"({text},)", mode="eval").body
        elements = parsed.elts if isinstance(parsed, ast.Tuple) else []
        values = [_value(element, known) for element in elements]
    except CircuitError:
        raise
    except (ValueError, SyntaxError, ArithmeticError, RecursionError) as error:
        raise CircuitError(f"{text!r:.60} is not an angle") from error
    if not all(map(math.isfinite, values)):
        raise CircuitError(f"{text!r:.60} is not an angle")
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
    raise CircuitError(f"{ast.unparse(node)[:60]!r} is not an angle")

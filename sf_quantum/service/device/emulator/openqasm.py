"""A parser of OpenQASM 3 circuits without control flow and mid-circuit measurement.

The subset is that of ``qiskit.qasm3.dumps``: registers, the gates of ``stdgates.inc``, gate
definitions, physical qubits (``$0``) and measurements
(https://openqasm.com/versions/3.0/).
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

#: the gates that are built in or in stdgates.inc: the base gate on the last qubit, which
#: the others control, and the numbers of angles and qubits
GATES: Mapping[str, tuple[str, int, int]] = {
    **{name: (name, 0, 1) for name in "id x y z h s sdg t tdg sx".split()},
    **{name: (name, 1, 1) for name in ("rx", "ry", "rz")},
    **dict.fromkeys(("p", "phase", "u1"), ("p", 1, 1)),
    "u2": ("u2", 2, 1),
    **dict.fromkeys(("U", "u3"), ("U", 3, 1)),
    **{f"c{name}": (name, 0, 2) for name in ("x", "y", "z", "h")},
    **{f"c{name}": (name, 1, 2) for name in ("p", "rx", "ry", "rz")},
    "CX": ("x", 0, 2),
    "cphase": ("p", 1, 2),
    "ccx": ("x", 0, 3),
    # sequences of base gates, see _base_gates()
    **{"cu": ("U", 4, 2), "swap": ("x", 0, 2), "cswap": ("x", 0, 3)},
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
# leading space, text, and the end with a body in braces or without
_STATEMENT = re.compile(r"(?!\Z)(\s*+)([^;{}]*+)(;|\{([^}]*+)\}?|)")
_DECLARATION = re.compile(r"(qubit|bit)(?:\s*+\[\s*(\d{1,6})\s*\]\s*+|\s++)(\w+)")
_MEASUREMENT = re.compile(r"([^=]+)=\s*measure\s+(.+)", re.DOTALL)
_GATE = re.compile(r"([^\W\d]\w*+)\s*+(?:\((.*)\))?\s*+([^()]*+)", re.DOTALL)
_OPERAND = re.compile(r"(\w+)\s*(?:\[\s*(\d{1,6})\s*\])?")
# nesting of gate definitions
_MAX_DEPTH = 20
#: gates and measurements, including each use of a defined gate
MAX_STEPS = 100_000
#: statements of the text; those of definitions count
MAX_STATEMENTS = 100_000
# characters of a statement in a definition, or qubits of a gate, that count as a step
_STEP_SIZE = 25


class CircuitError(ValueError):
    """A circuit that is invalid or not supported; the message has the line and the reason."""


@dataclass(frozen=True)
class GateCall:
    """A base gate of :data:`GATES` on the last qubit, controlled by the others."""

    base: str
    angles: tuple[float, ...]
    qubits: tuple[int, ...]


@dataclass(frozen=True)
class _GateDefinition:
    angles: list[str]
    qubits: list[str]
    body: list[str]


class Circuit:
    """A circuit, parsed from its text.

    :raises CircuitError: if it is invalid or not supported
    """

    def __init__(self, text: str) -> None:
        #: numbers of qubits ("qubit") and bits ("bit") of all registers
        self.sizes = Counter[str]()
        self.operations: list[GateCall] = []
        #: the measured qubit of each bit; bits are in order of declaration
        self.measured: dict[int, int] = {}
        self._measured_qubits: set[int] = set()
        # kind, number of the first qubit or bit, and size
        self._registers: dict[str, tuple[str, int, int]] = {}
        self._definitions: dict[str, _GateDefinition] = {}
        self._steps = 0
        # comments count, which bounds the time to remove them
        if text.count(";") > MAX_STATEMENTS:
            raise CircuitError(f"more than {MAX_STATEMENTS} statements")
        for line, statement, body in _statements(text):
            try:
                self._parse(statement, body)
            except CircuitError as error:
                raise CircuitError(f"line {line}: {error}") from error
        if not self.measured:
            raise CircuitError("the circuit measures nothing")

    def _parse(self, statement: str, body: str | None) -> None:
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
            match = _DECLARATION.fullmatch(statement)
            if match is None or match[3] in self._registers:
                expected = "expected qubit[4] q or bit[4] c, once"
                raise CircuitError(f"{statement!r:.60}: {expected}")
            self._declare(match[1], match[3], int(match[2] or 1))
        elif measurement := _MEASUREMENT.fullmatch(statement):
            self._measure(measurement[1], measurement[2])
        elif keyword not in ("barrier", "gphase", ""):  # these have no effect
            self._broadcast(*_gate_call(statement, _CONSTANTS))

    def _declare(self, kind: str, name: str, size: int) -> None:
        self._registers[name] = (kind, self.sizes[kind], size)
        self.sizes[kind] += size

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
            if qubit in self._measured_qubits or bit in self.measured:
                raise CircuitError("a qubit or a bit is measured twice")
            self.measured[bit] = qubit
            self._measured_qubits.add(qubit)

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
        if (len(angles), len(qubits)) != (expected := self._arity(name)):
            counts = "{} angles and {} qubits".format(*expected)
            raise CircuitError(f"{name}: expected {counts}")
        if (definition := self._definitions.get(name)) is None:
            if not self._measured_qubits.isdisjoint(qubits):
                raise CircuitError(f"{name}: its qubit was measured before")
            self.operations += _base_gates(name, tuple(angles), tuple(qubits))
            return
        if depth >= _MAX_DEPTH:
            raise CircuitError(f"{name}: more than {_MAX_DEPTH} nested definitions")
        known = {**_CONSTANTS, **dict(zip(definition.angles, angles, strict=True))}
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

    def _arity(self, name: str) -> tuple[int, int]:
        if definition := self._definitions.get(name):
            return len(definition.angles), len(definition.qubits)
        if name not in GATES:
            raise CircuitError(f"unknown gate {name!r}")
        return GATES[name][1:]

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise CircuitError(f"more than {MAX_STEPS} gates and measurements")

    def _indices(self, kind: str, operand: str) -> Sequence[int]:
        operand = operand.strip()
        if kind == "qubit" and re.fullmatch(r"\$\d{1,6}", operand):
            if operand not in self._registers:
                self._declare(kind, operand, 1)
            return [self._registers[operand][1]]
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
    line = 1
    for match in _STATEMENT.finditer(_COMMENT.sub(_newlines, text).rstrip()):
        space, statement, end, body = match.groups()
        line += space.count("\n")
        if not end:
            raise CircuitError(f"line {line}: missing ; after a statement")
        if body is not None and not end.endswith("}"):
            raise CircuitError(f"line {line}: missing closing brace")
        yield line, statement.strip(), body
        line += (statement + end).count("\n")


def _newlines(comment: re.Match[str]) -> str:
    if comment[1] == "":
        raise CircuitError("unterminated comment")
    return "\n" * comment[0].count("\n")


def _base_gates(
    name: str, angles: tuple[float, ...], qubits: tuple[int, ...]
) -> list[GateCall]:
    base = GATES[name][0]
    if name == "cu":
        phase = GateCall("p", angles[3:], qubits[:1])
        return [phase, GateCall(base, angles[:3], qubits)]
    if name in ("swap", "cswap"):
        *control, first, second = qubits
        cnot = GateCall(base, (), (second, first))
        return [cnot, GateCall(base, (), (*control, first, second)), cnot]
    return [GateCall(base, angles, qubits)]


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
        values = [_value(element, known) for element in _expressions(text)]
    except CircuitError:
        raise
    except (ValueError, SyntaxError, ArithmeticError, RecursionError) as error:
        raise CircuitError(f"{text!r:.60} is not an angle") from error
    if not all(map(math.isfinite, values)):
        raise CircuitError(f"{text!r:.60} is not an angle")
    return values


@functools.lru_cache(maxsize=100)  # a definition is parsed for each of its uses
def _expressions(text: str) -> list[ast.expr]:
    # expressions have the syntax of Python
    parsed = ast.parse(f"({text},)", mode="eval").body
    return parsed.elts if isinstance(parsed, ast.Tuple) else []


def _value(node: ast.expr, known: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, known)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left, known), _value(right, known))
        case ast.Call(func=ast.Name(id=name), args=[inner]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(inner, known))
    raise CircuitError(f"{ast.unparse(node)[:60]!r} is not an angle")

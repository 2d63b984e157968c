"""Reads circuits in OpenQASM that contain only native gates.

A QPU of superconducting qubits has two gates, a phased x-rotation and a controlled Z. This
module reads only the statements that Qiskit writes for circuits transpiled to these gates.
Qiskit's own parsers read all of OpenQASM, but take half a millisecond for each statement.
"""

from __future__ import annotations

import ast
import cmath
import math
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sf_quantum.files import JSON, mapping
from sf_quantum.samplers.problem import FieldError

Name: TypeAlias = Literal["prx", "cz", "measure", "barrier"]
# Rotations by their names in OpenQASM: angle and phase, if fixed.
_ROTATIONS: Mapping[str, tuple[float | None, float | None]] = {
    "r": (None, None),
    "prx": (None, None),
    "rx": (None, 0.0),
    "ry": (None, math.pi / 2),
    "x": (math.pi, 0.0),
    "y": (math.pi, math.pi / 2),
    "sx": (math.pi / 2, 0.0),
}
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# The gates that a definition of r may contain, each with a function from its angles to the
# equivalent angles of U, up to a global phase.
_EULER: Mapping[str, Callable[..., tuple[float, float, float]]] = {
    **dict.fromkeys(("U", "u", "u3"), lambda theta, phi, lam: (theta, phi, lam)),
    **dict.fromkeys(("rz", "p", "u1"), lambda lam: (0.0, 0.0, lam)),
    "rx": lambda theta: (theta, -math.pi / 2, math.pi / 2),
    "ry": lambda theta: (theta, 0.0, 0.0),
}
# Angles and phases at which a definition is compared with the QPU's gate.
_SAMPLES = ((0.7, 1.9), (2.1, -0.4))
# Maximum characters of a job's texts; a text with parameters counts once per set of values.
MOST_CHARACTERS = 4_000_000
# Largest number of operands in a job: a barrier may be on a whole register.
MOST_OPERANDS = 1_000_000
#: character with which some editors begin a file
BYTE_ORDER_MARK = "\ufeff"
# Longest angle, in characters.
MOST_ANGLE = 200
# Each pattern takes linear time: any user may send a text, and `re` blocks all threads.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_END = re.compile(r"([;{}])")
# the following patterns match statements in which all blanks are single spaces
_DEFINITION = re.compile(r"gate (\w+)")
_ROTATION = re.compile(r"gate (\w+) ?\( ?(\w+) ?, ?(\w+) ?\) ?\w+")
_OLD = re.compile(r"\s*OPENQASM 2")
_HEADER = re.compile(r'OPENQASM [23](?:\.\d+)?|include ?"[^"]*"')
_REGISTER = re.compile(r"(qubit|bit)(?: ?\[ ?(\d{1,6}) ?\] ?| )(\w+)")
_PARAMETER = re.compile(r"input (?:float|angle)(?: ?\[ ?\d{1,6} ?\] ?| )(\w+)")
_OLD_REGISTER = re.compile(r"(q|c)reg (\w++) ?\[ ?(\d{1,6}) ?\]")
_MEASUREMENT = re.compile(r"([^=]++)= ?measure ([^=]+)|measure ([^>]+)->([^>]+)")
_GATE = re.compile(r"(\w++) ?(?:\((.*)\))? ?([^()]*)")
_OPERAND = re.compile(r"\$(\d{1,6})|(\w++) ?(?:\[ ?(\d{1,6}) ?\])?")


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on qubits.

    :param values: angle and phase of a rotation, in radians
    :param bit: number of the bit that a measurement writes
    """

    name: Name
    qubits: tuple[int, ...]
    values: tuple[float, ...] = ()
    bit: int = -1


@dataclass
class NativeCircuit:
    """A circuit; qubits and bits are numbered in the order of their declaration."""

    qubits: int = 0
    bits: int = 0
    operations: list[Operation] = field(default_factory=list)


def read(content: JSON) -> list[NativeCircuit]:
    """Read the circuits of a job: one text, several, or one with values of its parameters.

    :raises FieldError: if a circuit is invalid; the error names the line, and the gate
        that is not native
    """
    texts: Sequence[JSON]
    match content:
        case {"program": program, "values": [_, *_] as sets, **rest} if not rest:
            texts, values = [program] * len(sets), [_values(one) for one in sets]
        case [_, *_]:
            texts, values = content, [{} for _ in content]
        case _:
            texts, values = [content], [{}]
    characters = operands = 0
    circuits = []
    for text, given in zip(texts, values, strict=True):
        if not isinstance(text, str):
            raise FieldError("circuit", "expected text")
        text = text.removeprefix(BYTE_ORDER_MARK)
        characters += max(1, len(text))
        if characters > MOST_CHARACTERS:
            raise FieldError("circuit", f"more than {MOST_CHARACTERS} characters")
        reader = _Reader(given, operands)
        circuits.append(reader.whole(text))
        operands = reader.operands
    return circuits


def number_of(content: JSON) -> int | None:
    """Count the circuits of a checked job; ``None`` if the content is a single circuit."""
    values = content.get("values") if isinstance(content, dict) else content
    return len(values) if isinstance(values, list) else None


def _values(arguments: JSON) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, value in mapping(arguments).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FieldError("circuit", f"{name[:40]} has a value that is no number")
        if not abs(value) <= sys.float_info.max:
            raise FieldError("circuit", f"the value of {name[:40]} is not finite")
        values[name] = float(value)
    return values


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and statements, without the definitions of ``r`` and ``prx``."""
    # comments keep their line ends, so line numbers stay correct
    parts = _END.split(_COMMENT.sub(_blank, text))
    line = 1
    # a definition's line, and its statements so far
    definition: tuple[int, list[str]] | None = None
    for part, end in zip(parts[::2], [*parts[1::2], ""], strict=True):
        statement_text = part.lstrip()
        begin = line + part.count("\n", 0, len(part) - len(statement_text))
        line += part.count("\n")
        statement = " ".join(statement_text.split())
        if not end and (statement or definition):
            detail = f"line {begin}: the last statement has no end"
            raise FieldError("circuit", detail)
        if definition:
            definition[1].append(statement)
            if end == "}":
                _check_definition(*definition)
                definition = None
        elif end == ";":
            yield begin, statement
        elif end:
            match = _DEFINITION.match(statement)
            name = match[1] if match else statement.partition(" ")[0] or end
            if end == "}" or not match or name not in ("r", "prx"):
                raise _not_native(begin, name)
            definition = begin, [statement]


def _check_definition(line: int, statements: Sequence[str]) -> None:
    """Reject a definition of ``r`` or ``prx`` that is not the QPU's gate."""
    head, *body = statements
    match = _ROTATION.fullmatch(head)
    if match is None or not all(
        _is_rotation(body, match[2], match[3], angle, phase)
        for angle, phase in _SAMPLES
    ):
        name = head.removeprefix("gate ").partition("(")[0].strip()
        detail = f"gate {name[:40]} is not defined as that of the QPU"
        raise FieldError("circuit", f"line {line}: {detail}")


def _is_rotation(
    body: Sequence[str], first: str, second: str, angle: float, phase: float
) -> bool:
    """Return whether statements are a phased x-rotation, up to a global phase."""
    values, product = {first: angle, second: phase}, (1 + 0j, 0j, 0j, 1 + 0j)
    for statement in filter(None, body):
        match = _GATE.fullmatch(statement)
        if match is None or (gate := _EULER.get(match[1])) is None:
            return False
        try:
            given = [
                _value(ast.parse(one.strip(), mode="eval").body, values)
                for one in (match[2] or "").split(",")
            ]
            theta, phi, lam = gate(*given)
        except (SyntaxError, TypeError, ValueError, ArithmeticError):
            return False
        product = _product(_unitary(theta, phi, lam), product)
    rotation = _unitary(angle, phase - math.pi / 2, math.pi / 2 - phase)
    # The overlap of two unitary matrices is 2 if they differ only in a phase.
    overlap = abs(
        sum(a.conjugate() * b for a, b in zip(rotation, product, strict=True))
    )
    return math.isclose(overlap, 2, abs_tol=1e-9)


Matrix: TypeAlias = tuple[complex, complex, complex, complex]


def _unitary(theta: float, phi: float, lam: float) -> Matrix:
    """Return OpenQASM's U, row by row."""
    cosine, sine = math.cos(theta / 2), math.sin(theta / 2)
    return (
        cosine + 0j,
        -cmath.rect(sine, lam),
        cmath.rect(sine, phi),
        cmath.rect(cosine, phi + lam),
    )


def _product(a: Matrix, b: Matrix) -> Matrix:
    return (
        a[0] * b[0] + a[1] * b[2],
        a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2],
        a[2] * b[1] + a[3] * b[3],
    )


class _Reader:
    """Reads a circuit.

    :param values: values of the circuit's parameters, by name
    :param operands: number of operands in the job's previous circuits
    """

    def __init__(self, values: Mapping[str, float], operands: int) -> None:
        self.circuit = NativeCircuit()
        self.operands = operands
        self._values = values
        self._parameters: set[str] = set()
        # by name: whether the register is of qubits, its first qubit or bit, and its size
        self._registers: dict[str, tuple[bool, int, int]] = {}
        self._measured: set[int] = set()
        # whether the text is OpenQASM 2, in which 1/2 is 0.5
        self._old = False

    def whole(self, text: str) -> NativeCircuit:
        self._old = _OLD.match(_COMMENT.sub(" ", text)) is not None
        for line, statement in _statements(text):
            try:
                self._read(statement, line)
            except (ValueError, ArithmeticError) as error:
                raise FieldError("circuit", f"line {line}: {error}") from error
        if unknown := self._values.keys() - self._parameters:
            name = min(unknown)[:40]
            raise FieldError("circuit", f"the text has no parameter {name}")
        if not self._measured:
            raise FieldError("circuit", "the circuit measures nothing")
        return self.circuit

    def _read(self, statement: str, line: int) -> None:
        if not statement or _HEADER.fullmatch(statement):
            return
        if match := _REGISTER.fullmatch(statement):
            self._declare(match[1] == "qubit", match[3], int(match[2] or 1))
        elif match := _PARAMETER.fullmatch(statement):
            self._parameters.add(match[1])
        elif match := _OLD_REGISTER.fullmatch(statement):
            self._declare(match[1] == "q", match[2], int(match[3]))
        elif match := _MEASUREMENT.fullmatch(statement):
            self._measure(match[2] or match[3], match[1] or match[4])
        elif (match := _GATE.fullmatch(statement)) is None:
            raise ValueError(f"cannot read {statement[:40]!r}")
        else:
            self._gate(match[1], match[2], match[3], line)

    def _declare(self, qubits: bool, name: str, size: int) -> None:
        circuit = self.circuit
        if name in self._registers:
            raise ValueError(f"{name[:40]} is declared twice")
        first = circuit.qubits if qubits else circuit.bits
        self._registers[name] = (qubits, first, size)
        if qubits:
            circuit.qubits += size
        else:
            circuit.bits += size

    def _measure(self, qubits: str, bits: str) -> None:
        if match := _REGISTER.fullmatch(bits.strip()):  # declares the bits
            self._declare(match[1] == "qubit", match[3], int(match[2] or 1))
            bits = match[3]
        pairs = zip(
            self._numbers(qubits), self._numbers(bits, qubits=False), strict=True
        )
        for qubit, bit in pairs:
            if bit in self._measured:
                raise ValueError(f"bit {bit} is measured twice")
            self._measured.add(bit)
            self.circuit.operations.append(Operation("measure", (qubit,), bit=bit))

    def _gate(self, name: str, angles: str | None, operands: str, line: int) -> None:
        if name not in (*_ROTATIONS, "cz", "barrier", "id"):
            raise _not_native(line, name)
        values = [self._angle(one) for one in angles.split(",")] if angles else []
        parts = [self._numbers(part) for part in operands.split(",")]
        add = self.circuit.operations.append
        if name in _ROTATIONS:
            (qubits,) = parts
            given = iter(values)
            rotation_angles = (
                next(given) if fixed is None else fixed for fixed in _ROTATIONS[name]
            )
            rotation = _both(name, rotation_angles, given)
            for qubit in qubits:
                add(Operation("prx", (qubit,), rotation))
        elif name == "barrier":
            add(Operation("barrier", tuple({q: None for part in parts for q in part})))
        elif name == "cz" and [len(part) for part in parts] == [1, 1]:
            add(Operation("cz", (parts[0][0], parts[1][0])))
        elif name == "cz":
            raise ValueError("cz is on two qubits")

    def _angle(self, text: str) -> float:
        if len(text) > MOST_ANGLE:
            raise ValueError("an angle is too long")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            if not self._old:
                _check_division(tree)
            value = _value(tree, self._values)
        except (SyntaxError, RecursionError, MemoryError) as error:
            detail = f"cannot read the angle {text.strip()[:40]!r}"
            raise ValueError(detail) from error
        if not math.isfinite(value):
            raise ValueError("an angle is not finite")
        return value

    def _numbers(self, operand: str, *, qubits: bool = True) -> list[int]:
        """Return the numbers of an operand's qubits or bits."""
        match = _OPERAND.fullmatch(operand.strip())
        if match is None:
            raise ValueError(f"cannot read {operand.strip()[:40]!r}")
        if match[1] and qubits:
            numbers = [int(match[1])]
            self.circuit.qubits = max(self.circuit.qubits, numbers[0] + 1)
        else:
            numbers = self._of_register(match[2], match[3], qubits)
        self.operands += len(numbers)
        if self.operands > MOST_OPERANDS:
            raise ValueError(f"more than {MOST_OPERANDS} operands")
        return numbers

    def _of_register(self, name: str, index: str | None, qubits: bool) -> list[int]:
        register = self._registers.get(name)
        if register is None or register[0] != qubits:
            raise ValueError(f"{name[:40]} is not declared")
        _, first, size = register
        if index is None:
            return [*range(first, first + size)]
        if int(index) >= size:
            raise ValueError(f"{name}[{index}]: there are {size}")
        return [first + int(index)]


def _both(
    name: str, angles: Iterator[float], given: Iterator[float]
) -> tuple[float, float]:
    try:
        angle, phase = angles
    except (RuntimeError, ValueError) as error:  # too few angles
        raise ValueError(f"{name} has too few angles") from error
    if next(given, None) is not None:
        raise ValueError(f"{name} has too many angles")
    return angle, phase


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=bool() | complex() | str() | bytes()):
            pass
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id="pi" | "π"):
            return math.pi
        case ast.Name(id="tau" | "τ"):
            return math.tau
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Name(id=name):
            raise ValueError(f"{name[:40]} has no value: bind the parameters")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
    raise ValueError("an angle is no number")


def _check_division(tree: ast.expr) -> None:
    """Reject a division of integers with a remainder, which OpenQASM 3 would drop."""
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                if not (_is_integer(left) and _is_integer(right)):
                    continue
                below = _value(right, {})
                if below and _value(left, {}) % below:
                    raise ValueError(
                        "it divides integers: divide by a float, as in 1/2.0"
                    )


def _is_integer(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int()):
            return True
        case ast.UnaryOp(operand=operand):
            return _is_integer(operand)
        case ast.BinOp(left=left, right=right):
            return _is_integer(left) and _is_integer(right)
    return False


def _blank(match: re.Match[str]) -> str:
    return " " + "\n" * match[0].count("\n")


def _not_native(line: int, name: str) -> FieldError:
    detail = f"{name[:40]} is not native: transpile the circuit to r (prx) and cz"
    return FieldError("circuit", f"line {line}: {detail}")

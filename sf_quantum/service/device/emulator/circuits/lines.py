"""The line numbers of instructions in OpenQASM 2, which Qiskit's parser does not keep."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_REGISTER = re.compile(r"\b[qc]reg\s+(\w+)\s*\[\s*(\d+)\s*\]")
_DEFINITION = re.compile(r"\bgate\s[^{}]*\{[^{}]*\}")
_DECLARES = re.compile(r"(OPENQASM|include|qreg|creg|opaque)\b")
_CONDITION = re.compile(r"if\s*\([^()]*\)\s*")
# A call of a gate: the gate's name and angles, and a group with the operands.
_CALL = re.compile(r"\w+\s*(?:\(.*\))?(.*)", re.DOTALL)


def lines_of(text: str, instructions: int) -> Sequence[int]:
    """Return the line number of each instruction of a text without comments.

    :param instructions: number of instructions that the circuit has
    :returns: the lines; empty if their number differs from ``instructions``
    """
    sizes = {name: int(size) for name, size in _REGISTER.findall(text)}
    bare = _DEFINITION.sub(lambda one: "\n" * one[0].count("\n"), text)
    lines = [line for line, width in _widths(bare, sizes) for _ in range(max(1, width))]
    return lines if len(lines) == instructions else ()


def _widths(text: str, sizes: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Yield the line number of each statement, and its number of instructions."""
    line = 1
    for part in text.split(";")[:-1]:
        statement = part.lstrip()
        first = line + part[: len(part) - len(statement)].count("\n")
        line += part.count("\n")
        statement = _CONDITION.sub("", statement, count=1)
        if _DECLARES.match(statement) or (call := _CALL.match(statement)) is None:
            continue
        operands = re.split(r",|->", call[1])
        widths = [sizes.get(one.strip(), 1) for one in operands]
        yield first, 1 if statement.startswith("barrier") else max(widths)

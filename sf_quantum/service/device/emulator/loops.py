"""The loops of programs in OpenQASM 3, of which Qiskit's converter knows some.

The converter has the variable of a loop in angles only. A loop that uses it elsewhere, as in
an index, is written out, and a branch whose condition is known is replaced by its block.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from sf_quantum.errors import InputError
from sf_quantum.service.device.emulator.circuit import MAX_STEPS
from sf_quantum.service.device.emulator.expressions import (
    ARITHMETIC,
    ROOM,
    Value,
    integer,
    literal,
    loop_values,
    value,
)
from sf_quantum.service.device.emulator.syntax import nodes, refusal, statements

if TYPE_CHECKING:
    from openqasm3.ast import ClassicalType, Expression, ForInLoop, QASMNode

T = TypeVar("T", bound="QASMNode")
# Of integers without a size.
_BITS = 64


def too_many_steps(most: int) -> str:
    """Return the reason for which a circuit is too long."""
    return f"more than {most:,} gates and measurements"


class Unrolling:
    """Writes out the loops whose variables the converter does not know how to use."""

    def __init__(self) -> None:
        self._steps = 0

    def unrolled(self, given: Sequence[T]) -> list[T]:
        """Return statements in which such loops are written out.

        :raises InputError: naming the line, if there are too many, or a value does not fit
        """
        from openqasm3 import ast

        written: list[T] = []
        for statement in given:
            if isinstance(statement, ast.ForInLoop) and _needs_values(statement):
                written += cast("list[T]", self._written_out(statement))
                continue
            if (block := _known_branch(statement)) is not None:
                written += cast("list[T]", self.unrolled(block))
                continue
            for name in ("if_block", "else_block", "block"):
                if block := getattr(statement, name, None):
                    setattr(statement, name, self.unrolled(block))
            if isinstance(statement, ast.Box | ast.QuantumGateDefinition):
                statement.body = self.unrolled(statement.body)
            written.append(statement)
        return written

    def _written_out(self, loop: ForInLoop) -> list[QASMNode]:
        check_values(loop)
        numbers = loop_values(loop.set_declaration)
        if numbers is None:
            raise refusal(
                loop, "the range of a loop is of whole numbers that are known"
            )
        written: list[QASMNode] = []
        for number in numbers:
            self._steps += 1 + len(loop.block)
            if self._steps > MAX_STEPS:
                raise InputError(too_many_steps(MAX_STEPS))
            replacement = literal(number, loop)
            setattr(replacement, ROOM, check_fits(loop, loop.type, number))
            once = [
                cast("QASMNode", _with(statement, loop.identifier.name, replacement))
                for statement in loop.block
            ]
            written += self.unrolled(once)
        return written


def _known_branch(statement: QASMNode) -> Sequence[QASMNode] | None:
    """Return the block of a branch whose condition is known; ``None`` of any other."""
    from openqasm3 import ast

    if not isinstance(statement, ast.BranchingStatement):
        return None
    if not isinstance(known := value(statement.condition), bool):
        return None
    block = statement.if_block if known else statement.else_block
    # The names that it declares are its own.
    is_open = not any(isinstance(one, _of_scopes()) for one in statements(block))
    return block if is_open else None


def _of_scopes() -> tuple[type[QASMNode], ...]:
    """Return the statements that may declare a name in a block, or leave a loop."""
    from openqasm3 import ast

    return (ast.AliasStatement, ast.BreakStatement, ast.ContinueStatement)


def _needs_values(loop: ForInLoop) -> bool:
    """Tell whether a loop's variable is in other places than sums and products."""
    from openqasm3 import ast

    name = loop.identifier.name
    within = [*statements(loop.block)]
    if any(isinstance(one, _of_scopes()) for one in within):
        return False
    if isinstance(loop.type, ast.UintType) or getattr(loop.type, "size", None):
        return True  # whose sums are checked
    for node in nodes(loop):
        match node:
            case ast.UnaryExpression() | ast.BinaryExpression():
                needs = node.op.name not in ARITHMETIC
            case _:
                needs = isinstance(node, _of_known_numbers())
        if needs and any(
            isinstance(one, ast.Identifier) and one.name == name for one in nodes(node)
        ):
            return True
    return False


def _of_known_numbers() -> tuple[type[QASMNode], ...]:
    """Return the nodes in which the converter takes no variables."""
    from openqasm3 import ast

    return (
        ast.IndexedIdentifier,
        ast.IndexExpression,
        ast.RangeDefinition,
        ast.DiscreteSet,
        ast.FunctionCall,
        ast.QuantumGateModifier,
    )


def _with(node: Value, name: str, number: Expression) -> Value:
    """Return a copy of a node in which a name is replaced by a number."""
    from openqasm3 import ast

    if isinstance(node, list):
        return [_with(one, name, number) for one in node]
    if isinstance(node, ast.Identifier):
        return number if node.name == name else node
    if not isinstance(node, ast.QASMNode):
        return node
    kept = {"identifier", "name", "span"}
    if isinstance(node, ast.ForInLoop) and node.identifier.name == name:
        kept.add("block")  # of which the variable is another one
    made = copy.copy(node)
    for key, one in vars(node).items():
        if key not in kept:
            setattr(made, key, _with(one, name, number))
    return made


def check_values(loop: ForInLoop) -> None:
    """Refuse a loop over numbers that its variable's type would change."""
    from openqasm3 import ast

    told = loop.set_declaration
    if isinstance(told, ast.DiscreteSet):
        ends = [*told.values]
    elif isinstance(told, ast.RangeDefinition):
        ends = [end for end in (told.start, told.end) if end is not None]
    else:
        return
    for whole in map(integer, ends):
        if whole is not None:
            check_fits(loop, loop.type, whole)


def check_fits(statement: QASMNode, type_: ClassicalType, number: int) -> range:
    """Refuse a number that its type has no room for, and would change in silence.

    :returns: the numbers of the type
    """
    from openqasm3 import ast

    size = getattr(type_, "size", None)
    bits = _BITS if size is None else integer(size)
    if bits is None or not isinstance(type_, ast.IntType | ast.UintType):
        raise refusal(statement, "whole numbers are int or uint, of a literal size")
    signed = isinstance(type_, ast.IntType)
    least, most = (
        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    )
    if not least <= number <= most:
        raise refusal(
            statement, f"{number} is no {'int' if signed else 'uint'} of {bits} bits"
        )
    return range(least, most + 1)

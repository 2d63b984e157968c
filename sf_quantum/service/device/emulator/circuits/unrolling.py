"""The loops of programs in OpenQASM 3 that Qiskit's converter does not support.

The converter supports the variable of a loop only in angles. A loop that uses its variable
elsewhere, such as in an index, is unrolled. A branch whose condition is known is replaced
by the block that the condition selects.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from sf_quantum.service.device.emulator.circuits.circuit import MAX_STEPS
from sf_quantum.service.device.emulator.circuits.expressions import (
    ARITHMETIC,
    ROOM,
    Value,
    integer,
    literal,
    loop_values,
    value,
)
from sf_quantum.service.device.emulator.circuits.syntax import blocks, nodes, refusal

if TYPE_CHECKING:
    from openqasm3.ast import (
        Box,
        ClassicalType,
        Expression,
        ForInLoop,
        Identifier,
        QASMNode,
        QuantumStatement,
    )

T = TypeVar("T", bound="QASMNode")
# Size in bits of an integer type without a size, and also the largest size.
_BITS = 64


def too_many_steps(most: int) -> str:
    """Return the message that a circuit is too long."""
    return f"more than {most:,} gates and measurements"


class Unrolling:
    """Unrolls loops whose use of their variables the converter does not support."""

    def __init__(self) -> None:
        self._steps = 0
        self._depth = 0

    def unrolled(self, given: Sequence[T]) -> list[T]:
        """Return the statements with such loops unrolled.

        :raises InputError: if there are too many steps, or a value does not fit; the message
            names the line
        """
        from openqasm3 import ast

        written: list[T] = []
        for statement in given:
            if isinstance(statement, ast.ForInLoop):
                self._check_length(steps([statement]), statement)
                if _needs_values(statement):
                    written += cast("list[T]", self._written_out(statement))
                    continue
            if (block := _known_branch(statement)) is not None:
                written += cast("list[T]", _scope(self.unrolled(block)))
                continue
            for name in ("if_block", "else_block", "block"):
                if block := getattr(statement, name, None):
                    setattr(statement, name, self.unrolled(block))
            if isinstance(statement, ast.Box | ast.QuantumGateDefinition):
                statement.body = self.unrolled(statement.body)
            written.append(statement)
            if self._depth:
                self._count(_width(statement), statement)
        return written

    def _written_out(self, loop: ForInLoop) -> list[QASMNode]:
        check_values(loop)
        numbers = loop_values(loop.set_declaration)
        if numbers is None:
            raise refusal(
                loop, "the range of a loop is of whole numbers that are known"
            )
        written: list[QASMNode] = []
        self._depth += 1
        for number in numbers:
            replacement = literal(number, loop)
            setattr(replacement, ROOM, check_fits(loop, loop.type, number))
            statements = [
                cast("QASMNode", _with(statement, loop.identifier.name, replacement))
                for statement in loop.block
            ]
            unrolled = self.unrolled(statements)
            self._count(0 if unrolled else 1, loop)
            written += _scope(unrolled)
        self._depth -= 1
        return written

    def _count(self, more: int, statement: QASMNode) -> None:
        self._steps += more
        self._check_length(0, statement)

    def _check_length(self, more: int, statement: QASMNode) -> None:
        if self._steps + more > MAX_STEPS:
            raise refusal(statement, too_many_steps(MAX_STEPS))


def _width(statement: QASMNode) -> int:
    """Return the number of indices in the longest set of a statement; 1 without a set."""
    from openqasm3 import ast

    sets = (
        len(one.values)
        for one in nodes(statement, within=False)
        if isinstance(one, ast.DiscreteSet)
    )
    return max(1, *sets, 0)


def steps(
    block: Sequence[QASMNode],
    of: Callable[[QASMNode], int] = _width,
    variables: frozenset[str] = frozenset(),
) -> int:
    """Return the minimum number of steps of a block.

    A branch that depends on the variable of a loop counts as 0 steps, as it may not be
    taken. An empty round of a loop counts as 1 step.

    :param of: function that returns the number of steps of any other statement
    :param variables: variables of the loops around the block
    """
    from openqasm3 import ast

    total = 0
    for statement in block:
        inner = variables
        if isinstance(statement, ast.ForInLoop):
            inner = variables | {statement.identifier.name}
        within = sum(steps(one, of, inner) for one in blocks(statement))
        match statement:
            case ast.ForInLoop():
                numbers = loop_values(statement.set_declaration)
                rounds = 1 if numbers is None else _length(numbers)
                total += rounds * max(1, within)
            case ast.Box():
                total += within
            case ast.BranchingStatement():
                names = {
                    one.name
                    for one in nodes(statement, within=False)
                    if isinstance(one, ast.Identifier)
                }
                is_open = value(statement.condition) is None and names.isdisjoint(
                    variables
                )
                total += within if is_open else 0
            case _:
                total += of(statement)
    return total


def _length(numbers: Sequence[int]) -> int:
    """Return the length of a sequence, even of a range that is too long for ``len()``."""
    if isinstance(numbers, range):
        first, last, step = numbers.start, numbers.stop, numbers.step
        return max(0, (last - first + step - (1 if step > 0 else -1)) // step)
    return len(numbers)


def _known_branch(statement: QASMNode) -> Sequence[QASMNode] | None:
    """Return the block of a branch whose condition is known, or ``None``."""
    from openqasm3 import ast

    if not isinstance(statement, ast.BranchingStatement):
        return None
    if not isinstance(condition := value(statement.condition), bool):
        return None
    return statement.if_block if condition else statement.else_block


def _scope(block: list[T]) -> list[T] | list[Box]:
    """Put statements with alias declarations into a box, which is a scope."""
    from openqasm3 import ast

    if not any(isinstance(one, ast.AliasStatement) for one in block):
        return block
    box = ast.Box(None, cast("list[QuantumStatement]", block))
    box.span = block[0].span
    return [box]


def _needs_values(loop: ForInLoop) -> bool:
    """Return whether a loop's variable is used outside sums and products."""
    from openqasm3 import ast

    name = loop.identifier.name
    if isinstance(loop.type, ast.UintType) or getattr(loop.type, "size", None):
        return True  # sums are checked against the type
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
    """Return the types of nodes in which the converter accepts no variables."""
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
    if (used := _uses(node)) is not None and used.name == name:
        raise refusal(used, f"{name} is the variable of a loop: use another name")
    if not isinstance(node, ast.QASMNode):
        return node
    unchanged = {"identifier", "name", "span"}
    if isinstance(node, ast.ForInLoop) and node.identifier.name == name:
        unchanged.add("block")  # the block has its own variable of that name
    copied = copy.copy(node)
    for key, one in vars(node).items():
        if key not in unchanged:
            setattr(copied, key, _with(one, name, number))
    return copied


def _uses(node: Value) -> Identifier | None:
    """Return the name of the register, gate or function that a node uses."""
    from openqasm3 import ast

    if isinstance(node, ast.IndexedIdentifier | ast.QuantumGate | ast.FunctionCall):
        return node.name
    return node.target if isinstance(node, ast.AliasStatement) else None


def check_values(loop: ForInLoop) -> None:
    """Reject a loop over numbers that do not fit its variable's type."""
    numbers = loop_values(loop.set_declaration) or ()
    ends = (
        (numbers[0], numbers[-1]) if isinstance(numbers, range) and numbers else numbers
    )
    for number in ends:
        check_fits(loop, loop.type, number)


def check_fits(statement: QASMNode, type_: ClassicalType, number: int) -> range:
    """Reject a number that does not fit its type: the type would silently change it.

    :returns: the numbers that the type allows
    """
    from openqasm3 import ast

    size = getattr(type_, "size", None)
    bits = _BITS if size is None else integer(size)
    if bits is None or not isinstance(type_, ast.IntType | ast.UintType):
        raise refusal(statement, "whole numbers are int or uint, of a literal size")
    if not 1 <= bits <= _BITS:
        raise refusal(statement, f"whole numbers have 1 to {_BITS} bits, not {bits}")
    signed = isinstance(type_, ast.IntType)
    least, most = (
        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    )
    if not least <= number <= most:
        raise refusal(
            statement, f"{number} is no {'int' if signed else 'uint'} of {bits} bits"
        )
    return range(least, most + 1)

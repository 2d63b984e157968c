"""The syntax tree of a program in OpenQASM 3: its statements, nodes and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError

if TYPE_CHECKING:
    from openqasm3.ast import QASMNode


def refusal(node: QASMNode, why: str) -> InputError:
    """Return the error for a rejected node, with its line and the reason."""
    return InputError(f"line {node.span.start_line}: {why}" if node.span else why)


def statements(program: Sequence[QASMNode]) -> Iterator[QASMNode]:
    """Yield statements, including nested statements, except those in gate definitions."""
    for statement in program:
        yield statement
        for block in blocks(statement):
            yield from statements(block)


def blocks(statement: QASMNode) -> Iterator[Sequence[QASMNode]]:
    """Yield the blocks of a statement, each of which is a separate scope."""
    from openqasm3 import ast

    for block in ("if_block", "else_block", "block"):
        yield getattr(statement, block, ())
    if isinstance(statement, ast.Box):
        yield statement.body


def nodes(node: QASMNode, *, within: bool = True) -> Iterator[QASMNode]:
    """Yield the descendants of a node.

    :param within: whether to include the statements within the node, and their descendants
    """
    from openqasm3 import ast

    pending = [*vars(node).values()]
    while pending:
        item = pending.pop()
        if isinstance(item, list | tuple):
            pending += item
        elif isinstance(item, ast.QASMNode) and (
            within or not isinstance(item, ast.Statement)
        ):
            yield item
            pending += vars(item).values()

"""The names of a program in OpenQASM 3, and the qubits and bits of its operands.

An invalid name or operand raises an :class:`.InputError` that names the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sf_quantum.service.device.emulator.circuits.expressions import CONSTANTS, integer
from sf_quantum.service.device.emulator.circuits.syntax import refusal

if TYPE_CHECKING:
    from openqasm3.ast import Expression, IndexElement, QASMNode

_MIXED = "$0 and declared qubits are not mixed: use one kind in a circuit"


@dataclass(frozen=True)
class Symbol:
    """The meaning of a name.

    :param kind: qubit, bit, gate, input or variable of a loop
    :param line: line of the declaration; 0 if the name is built in
    :param bits: numbers of the qubits or bits
    :param is_register: whether the name is of a register, not of a single qubit or bit
    :param shape: number of angles and number of qubits of a gate
    """

    kind: str
    line: int = 0
    bits: Sequence[int] = ()
    is_register: bool = False
    shape: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Operand:
    bits: Sequence[int]
    is_register: bool = False


class Scopes:
    """The names that are declared so far, by scope, outermost first.

    :ivar in_gate: whether the definition of a gate is being read
    """

    def __init__(self) -> None:
        self.outermost = {"U": Symbol("gate", shape=(3, 1))}
        self._scopes = [self.outermost]
        self.in_gate = False
        self._count = 0
        self._has_physical = self._has_virtual = False

    def __contains__(self, name: str) -> bool:
        return any(name in scope for scope in self._scopes)

    @property
    def are_nested(self) -> bool:
        """Whether a block or gate is being read."""
        return len(self._scopes) > 1

    def use_virtual(self, node: QASMNode) -> None:
        """Record that the program declares qubits."""
        if self._has_physical:
            raise refusal(node, _MIXED)
        self._has_virtual = True

    def declare(self, name: str, node: QASMNode, symbol: Symbol) -> None:
        """Declare a name in the innermost scope."""
        if name in CONSTANTS and not self.in_gate:
            raise refusal(node, f"{name} is a number of OpenQASM: use another name")
        if (other := self._scopes[-1].get(name)) is not None:
            where = f" on line {other.line}" if other.line else ""
            what = f"{name} is already {named(other.kind)}{where}"
            raise refusal(node, f"{what}: use another name")
        self._scopes[-1][name] = symbol

    def new_bits(self, kind: str, size: Expression | None, node: QASMNode) -> Symbol:
        """Return the symbol of a qubit or bit, or of a register of them."""
        width = 1 if size is None else integer(size) or 0
        first, self._count = self._count, self._count + width
        bits = range(first, first + width)
        return Symbol(kind, line(node), bits, size is not None)

    @contextmanager
    def open(self, *, in_gate: bool = False) -> Iterator[None]:
        """Open a nested scope."""
        before = self.in_gate
        self.in_gate = before or in_gate
        self._scopes.append({})
        yield
        self._scopes.pop()
        self.in_gate = before

    def find(self, name: str, node: QASMNode) -> Symbol:
        """Find the meaning of a name."""
        for place, scope in reversed([*enumerate(self._scopes)]):
            if (symbol := scope.get(name)) is not None:
                if self.in_gate and place == 0 and not symbol.shape[1]:
                    why = f"{name} is not visible in a gate: pass it as an argument"
                    raise refusal(node, why)
                return symbol
        raise refusal(node, f"{name} is not declared")

    def kind(self, node: QASMNode) -> str:
        """Return the kind of the first name in an operand."""
        from openqasm3 import ast

        match node:
            case ast.Identifier():
                is_physical = node.name.startswith("$")
                return "qubit" if is_physical else self.find(node.name, node).kind
            case ast.Concatenation():
                return self.kind(node.lhs)
            case ast.IndexExpression():
                return self.kind(node.collection)
        return ""

    def operand(self, node: QASMNode, kind: str) -> Operand:
        """Return the bits or qubits of an operand."""
        from openqasm3 import ast

        match node:
            case ast.Identifier():
                return self._named(node.name, kind, node)
            case ast.IndexedIdentifier():
                operand = self._named(node.name.name, kind, node)
                for index in node.indices:
                    operand = _indexed(operand, index, node)
                return operand
            case ast.IndexExpression():
                return _indexed(self.operand(node.collection, kind), node.index, node)
            case ast.Concatenation():
                both = [self.operand(one, kind) for one in (node.lhs, node.rhs)]
                if not all(one.is_register for one in both):
                    why = "++ joins registers: write a slice of one, as in q[0:0]"
                    raise refusal(node, why)
                joined = (*both[0].bits, *both[1].bits)
                if len({*joined}) < len(joined):
                    why = f"++: a {kind} is there twice: use different ones"
                    raise refusal(node, why)
                return Operand(joined, True)
        raise refusal(node, f"expected a {kind}")

    def _named(self, name: str, kind: str, node: QASMNode) -> Operand:
        if name.startswith("$"):
            return self._physical(name, kind, node)
        symbol = self.find(name, node)
        if symbol.kind != kind or kind not in ("qubit", "bit"):
            what = "qubit" if kind not in ("qubit", "bit") else kind
            raise refusal(node, f"{name} is {named(symbol.kind)}: expected a {what}")
        return Operand(symbol.bits, symbol.is_register)

    def _physical(self, name: str, kind: str, node: QASMNode) -> Operand:
        if kind != "qubit":
            raise refusal(node, f"{name} is a qubit: expected a {kind}")
        if self.in_gate:
            why = f"{name}: a gate has no qubits of the device: pass it as an operand"
            raise refusal(node, why)
        if self._has_virtual:
            raise refusal(node, _MIXED)
        self._has_physical = True
        return Operand((-1 - int(name[1:]),))


def _indexed(operand: Operand, index: IndexElement, node: QASMNode) -> Operand:
    from openqasm3 import ast

    if not operand.is_register:
        raise refusal(node, "a single qubit or bit has no index: declare a register")
    if isinstance(index, ast.DiscreteSet):
        bits = [_bit(operand, one, node) for one in index.values]
        if not bits:
            raise refusal(node, "a set of indices has at least one")
        if len({*bits}) < len(bits):
            raise refusal(node, "an index is there twice: use different ones")
        return Operand(bits, True)
    if len(index) != 1:
        raise refusal(node, "a register has one index: for several, write q[{0, 1}]")
    return Operand([_bit(operand, index[0], node)])


def _bit(operand: Operand, index: QASMNode, node: QASMNode) -> int:
    size = len(operand.bits)
    if (place := integer(index)) is None:
        raise refusal(node, "an index is a whole number that is known")
    if not -size <= place < size:
        raise refusal(node, f"index {place} of a register of {size}: 0 to {size - 1}")
    return operand.bits[place]


def named(kind: str) -> str:
    """Return a kind with its article."""
    return f"an {kind}" if kind == "input" else f"a {kind}"


def line(node: QASMNode) -> int:
    """Return the line of a node; 0 if it is unknown."""
    return node.span.start_line if node.span else 0

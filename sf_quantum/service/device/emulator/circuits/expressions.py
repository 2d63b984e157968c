"""Numeric expressions in OpenQASM 3, computed according to its specification.

Qiskit's converter supports only sums, products and quotients. Any other expression of literals
and built-in constants is replaced by its value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from sf_quantum.service.device.emulator.circuits.syntax import refusal

if TYPE_CHECKING:
    from openqasm3.ast import BinaryExpression, Expression, QASMNode

Number: TypeAlias = int | float | bool
# The value of an attribute of a node.
Value: TypeAlias = "QASMNode | list[Value] | str | int | float | None"
CONSTANTS: Mapping[str, float] = {
    **dict.fromkeys(("pi", "π"), math.pi),
    **dict.fromkeys(("tau", "τ"), math.tau),
    **dict.fromkeys(("euler", "ℇ"), math.e),
}
#: operators that the converter computes itself, even with parameters
ARITHMETIC = frozenset("+-*/")
#: attribute of a literal that has replaced a name: the integers that the name's type allows
ROOM = "room"
# Integers of OpenQASM have 64 bits.
_MOST = 2**63
_COMPARISONS: Mapping[str, Callable[[Number, Number], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LOGIC: Mapping[str, Callable[[bool, bool], bool]] = {
    "&&": lambda left, right: left and right,
    "||": lambda left, right: left or right,
}
_SUMS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
# Operators whose results for negative numbers the specification leaves open.
_OF_NATURAL: Mapping[str, Callable[[int, int], int]] = {
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
_OF_FLOATS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": math.pow,
}
_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
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
FUNCTIONS = frozenset((*_FUNCTIONS, "mod"))


def value(node: QASMNode | None) -> Number | None:
    """Return the value of an expression; ``None`` if it is unknown before the program runs.

    :raises InputError: if the expression has no value, such as a root of -1; the message
        names the line
    """
    from openqasm3 import ast

    match node:
        case ast.IntegerLiteral() | ast.FloatLiteral() | ast.BooleanLiteral():
            return node.value
        case ast.Identifier():
            return CONSTANTS.get(node.name)
        case ast.UnaryExpression():
            result = _unary(node.op.name, value(node.expression))
            _check_room(node, result)
            return result
        case ast.BinaryExpression():
            left, right = value(node.lhs), value(node.rhs)
            if left is None or right is None:
                return None
            result = _computed(node, lambda: _binary(node.op.name, left, right))
            _check_room(node, result)
            return result
        case ast.FunctionCall():
            given = [value(one) for one in node.arguments]
            return _computed(node, lambda: _called(node.name.name, given))
    return None


def _called(name: str, given: Sequence[Number | None]) -> Number | None:
    match given:
        case [int() | float() as one] if name in _FUNCTIONS and not isinstance(
            one, bool
        ):
            return float(_FUNCTIONS[name](one))
        case [int() | float() as left, int() | float() as right] if name == "mod":
            if isinstance(left, float) or isinstance(right, float):
                return math.fmod(left, right)
            return _binary("%", left, right)
    return None


def integer(node: QASMNode | None) -> int | None:
    """Return the value of an expression if it is a whole number, or ``None``."""
    whole = value(node)
    if isinstance(whole, bool) or not isinstance(whole, int):
        return None
    return whole


def _computed(node: QASMNode, compute: Callable[[], Number | None]) -> Number | None:
    try:
        return compute()
    except ZeroDivisionError:
        raise refusal(node, "a division by zero") from None
    except (ArithmeticError, ValueError):
        raise refusal(node, "this expression has no finite real value") from None


def _check_room(node: QASMNode, number: Number | None) -> None:
    """Reject an integer that does not fit its type: the type would silently change it."""
    room = _room(node)
    if room is not None and type(number) is int and number not in room:
        bits = (room.stop - room.start - 1).bit_length()
        name = "int" if room.start else "uint"
        raise refusal(node, f"{number} does not fit {name}[{bits}]")


def _room(node: QASMNode) -> range | None:
    """Return the integers of an expression's type; ``None`` if no name in it has a type."""
    from openqasm3 import ast

    match node:
        case ast.UnaryExpression():
            return _room(node.expression)
        case ast.BinaryExpression():
            left = _room(node.lhs)
            if node.op.name in ("<<", ">>"):
                return left
            rooms = [one for one in (left, _room(node.rhs)) if one is not None]
            return max(rooms, key=lambda one: one.stop, default=None)
    room: range | None = getattr(node, ROOM, None)
    return room


def _unary(name: str, given: Number | None) -> Number | None:
    if given is None:
        return None
    if isinstance(given, bool):
        return not given if name == "!" else None
    return -given if name == "-" else None


def _binary(name: str, left: Number, right: Number) -> Number | None:
    if isinstance(left, bool) or isinstance(right, bool):
        if not (isinstance(left, bool) and isinstance(right, bool)):
            return None
        if name in _LOGIC:
            return _LOGIC[name](left, right)
        return _COMPARISONS[name](left, right) if name in ("==", "!=") else None
    if name in _COMPARISONS:
        return _COMPARISONS[name](left, right)
    if isinstance(left, int) and isinstance(right, int):
        return _of_integers(name, left, right)
    return _OF_FLOATS[name](left, right) if name in _OF_FLOATS else None


def _of_integers(name: str, left: int, right: int) -> int | None:
    """Compute with integers; ``None`` if the result is undefined or too large."""
    if name in _SUMS:
        return _SUMS[name](left, right)
    if name == "/":
        # The specification leaves open to which side a negative quotient is rounded.
        exact = left % right == 0 or (left > 0 and right > 0)
        return left // right if exact else None
    if not (0 <= left < _MOST and 0 <= right < _MOST):
        return None
    if name == "**":
        if left > 1 and right > _MOST.bit_length():
            return None
        result = left**right
    elif name in _OF_NATURAL and (name != "<<" or right < _MOST.bit_length()):
        result = _OF_NATURAL[name](left, right)
    else:
        return None
    return result if result < _MOST else None


def fold(node: QASMNode) -> None:
    """Replace expressions that the converter does not support with their values, if known."""
    for name, one in vars(node).items():
        setattr(node, name, _folded(one))


def _folded(one: Value) -> Value:
    """Return a value of a node's field with its constant expressions computed."""
    from openqasm3 import ast

    if isinstance(one, list):
        return [_folded(each) for each in one]
    if not isinstance(one, ast.QASMNode):
        return one
    unknown = isinstance(one, ast.FunctionCall | ast.UnaryExpression) or (
        isinstance(one, ast.BinaryExpression) and one.op.name not in ARITHMETIC
    )
    if unknown and (constant := value(one)) is not None:
        return literal(constant, one)
    fold(one)
    return one


def literal(number: Number, node: QASMNode) -> Expression:
    """Return a number as an expression that replaces a node."""
    from openqasm3 import ast

    replacement: Expression
    if isinstance(number, bool):
        replacement = ast.BooleanLiteral(number)
    elif isinstance(number, int):
        replacement = ast.IntegerLiteral(number)
    else:
        replacement = ast.FloatLiteral(number)
    replacement.span = node.span
    setattr(replacement, ROOM, _room(node))
    return replacement


def check_division(node: BinaryExpression, integers: set[str]) -> None:
    """Reject a division of integers with a remainder, which OpenQASM 3 drops.

    :param integers: names of integers whose values are not known yet
    :raises InputError: if there may be a remainder; the message names the line
    """
    if node.op.name != "/" or not all(
        _is_integer(one, integers) for one in (node.lhs, node.rhs)
    ):
        return
    above, below = integer(node.lhs), integer(node.rhs)
    if below == 0 or (above is not None and below and above % below == 0):
        return
    shown = "a division" if above is None or below is None else f"{above}/{below}"
    detail = "has no fraction in OpenQASM 3: divide by a float, as in 1/2.0"
    raise refusal(node, f"{shown} of integers {detail}")


def check_rounding(node: QASMNode) -> None:
    """Reject an expression that has no value because of a negative quotient of integers.

    :raises InputError: if the expression has no value; the message names the line
    """
    from openqasm3 import ast

    if not isinstance(node, ast.BinaryExpression):
        return
    if node.op.name == "/":
        above, below = integer(node.lhs), integer(node.rhs)
        if above is not None and below is not None and value(node) is None:
            detail = (
                "OpenQASM 3 leaves its rounding open: divide by a float, as in 1/2.0"
            )
            raise refusal(node, f"{above}/{below} of integers: {detail}")
    for one in (node.lhs, node.rhs):
        check_rounding(one)


def _is_integer(node: Expression, integers: set[str]) -> bool:
    from openqasm3 import ast

    match node:
        case ast.IntegerLiteral():
            return True
        case ast.Identifier():
            return node.name in integers
        case ast.UnaryExpression():
            return _is_integer(node.expression, integers)
        case ast.BinaryExpression():
            return _is_integer(node.lhs, integers) and _is_integer(node.rhs, integers)
    return False


def loop_values(node: QASMNode) -> Sequence[int] | None:
    """Return the numbers of a range or set; ``None`` if they are not known yet.

    :raises InputError: if a range has no end, or a step of 0; the message names the
        line
    """
    from openqasm3 import ast

    if isinstance(node, ast.DiscreteSet):
        values = [integer(one) for one in node.values]
        numbers = [one for one in values if one is not None]
        return numbers if len(numbers) == len(values) else None
    if not isinstance(node, ast.RangeDefinition):
        return None
    if node.start is None or node.end is None:
        raise refusal(node, "the range of a loop has a start and an end: [0:3]")
    start, end = integer(node.start), integer(node.end)
    step = 1 if node.step is None else integer(node.step)
    if step == 0:
        raise refusal(node, "the step of a range is not 0")
    if start is None or end is None or step is None:
        return None
    return range(start, end + (1 if step > 0 else -1), step)

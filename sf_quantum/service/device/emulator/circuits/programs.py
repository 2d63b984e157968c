"""The preparation of parsed programs in OpenQASM 3 for Qiskit's converter.

The converter (qiskit-qasm3-import 0.6.0) creates an unlimited number of objects, and silently
misreads some statements. So the size of a program is checked before the conversion, and
statements that the converter would misread are rewritten or rejected.
"""

from __future__ import annotations

import math
import re
import sys
from collections import ChainMap
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.service.device.emulator.circuits import supported
from sf_quantum.service.device.emulator.circuits.circuit import (
    MAX_BITS,
    MAX_QUBITS,
    MAX_STEPS,
)
from sf_quantum.service.device.emulator.circuits.expressions import (
    CONSTANTS,
    ROOM,
    Value,
    check_division,
    check_rounding,
    fold,
    integer,
    literal,
    value,
)
from sf_quantum.service.device.emulator.circuits.syntax import (
    blocks,
    nodes,
    refusal,
    statements,
)
from sf_quantum.service.device.emulator.circuits.unrolling import (
    Unrolling,
    check_fits,
    check_values,
    steps,
    too_many_steps,
)

if TYPE_CHECKING:
    from openqasm3.ast import (
        AliasStatement,
        BinaryExpression,
        ConstantDeclaration,
        Expression,
        Identifier,
        IndexElement,
        Program,
        QASMNode,
        QuantumGate,
        QuantumGateDefinition,
        QuantumPhase,
        RangeDefinition,
    )

# Gates whose phase differs between Qiskit and OpenQASM 3: stdgates.inc multiplies u2
# and u3 by exp(-i (phi + lambda) / 2); the specification multiplies U by exp(i theta / 2).
_PHASE_DIFFERS = frozenset(("U", "u2", "u3"))
_CONTROLS = ("ctrl", "negctrl")
_MOST_FLOAT = sys.float_info.max


def prepare(program: Program, qiskit_names: Container[str]) -> None:
    """Check a program's size, and rewrite the program so that the converter understands it.

    :param qiskit_names: the names of Qiskit's own gates
    :raises InputError: if the program is too large, or the converter would misread it; the
        message names the line
    """
    from openqasm3 import ast

    supported.check_statements(program)
    _replace_constants(program)
    program.statements = Unrolling().unrolled(program.statements)
    definitions = _Definitions()
    _count_steps(program.statements, _Registers(), definitions)
    _check_divisions(program.statements, set())
    for node in nodes(program):
        if isinstance(node, ast.QuantumGate):
            definitions.check_name(node, qiskit_names)
            definitions.check_phase(node)
            definitions.check_power(node)
            # Controls come first: they commute with inv and pow, and Qiskit inverts
            # ctrl @ cu wrongly.
            node.modifiers.sort(key=lambda one: one.modifier.name not in _CONTROLS)
        elif isinstance(node, ast.QuantumPhase):
            _check_power(node, "gphase", has_angles=True)
        elif isinstance(node, ast.QuantumGateDefinition):
            _check_controlled(node)
    fold(program)
    supported.check(program)


def _count_steps(
    block: Sequence[QASMNode],
    registers: _Registers,
    definitions: _Definitions,
    steps: int = 0,
) -> int:
    """Record the declarations of a block, replace its slices, and count its steps.

    :param steps: number of steps before the block
    :returns: number of steps before the block and in it
    :raises InputError: if there are too many steps, or an operand is invalid; the
        message names the line
    """
    from openqasm3 import ast

    for statement in block:
        registers.visit(statement)
        if isinstance(statement, ast.QuantumGateDefinition):
            definitions.add(statement)
        elif operands := _operands(statement):
            width = max(registers.qubits(operand) for operand in operands)
            steps += width * definitions.steps(statement)
        if steps > MAX_STEPS:
            raise InputError(too_many_steps(MAX_STEPS))
        for inner in blocks(statement):
            with registers.scope():
                steps = _count_steps(inner, registers, definitions, steps)
    return steps


def check_size(qubits: int, bits: int, most: int = MAX_QUBITS) -> None:
    """Reject a circuit that is too large.

    :param most: largest number of qubits
    :raises InputError: if the circuit is too large; the message has the number and the limit
    """
    if qubits > most:
        raise InputError(f"{qubits} qubits do not fit on {most} qubits")
    if bits > MAX_BITS:
        raise InputError(f"{bits:,} bits; at most {MAX_BITS:,} per circuit")


def _replace_constants(program: Program) -> None:
    """Replace constants with their values: the converter does not support constants.

    :raises InputError: if the name of a constant is also used for something else, or its
        value does not match its type; the message names the line
    """
    from openqasm3 import ast

    values: dict[str, Expression] = {}
    kept: list[ast.Statement | ast.Pragma] = []
    others = {*CONSTANTS, "U"}
    for statement in program.statements:
        if values:
            if used := values.keys() & _declared(statement):
                why = f"{min(used)} is a constant: use another name"
                raise refusal(statement, why)
            _replace(statement, values)
        if isinstance(statement, ast.ConstantDeclaration):
            if (name := statement.identifier.name) in others:
                raise refusal(statement, f"{name} is there already: use another name")
            values[name] = _constant(statement)
        else:
            others |= _declared(statement)
            kept.append(statement)
    program.statements = kept


def _replace(node: QASMNode, values: Mapping[str, Expression]) -> None:
    """Replace identifiers within a node."""
    for name, content in vars(node).items():
        if name != "name":  # names of gates, functions and registers stay
            setattr(node, name, _replacement(content, values))


def _replacement(content: Value, values: Mapping[str, Expression]) -> Value:
    from openqasm3 import ast

    if isinstance(content, list):
        return [_replacement(item, values) for item in content]
    if isinstance(content, ast.Identifier):
        return values.get(content.name, content)
    if isinstance(content, ast.QASMNode):
        _replace(content, values)
    return content


def _declared(statement: QASMNode) -> set[str]:
    """Return the names that a statement, or a statement within it, declares."""
    from openqasm3 import ast

    names: set[str] = set()
    for node in (statement, *nodes(statement)):
        match node:
            case ast.QubitDeclaration():
                names.add(node.qubit.name)
            case ast.QuantumGateDefinition():
                names.update(one.name for one in (*node.arguments, *node.qubits))
                names.add(node.name.name)
            case ast.AliasStatement():
                names.add(node.target.name)
            case ast.Statement():
                names.add(getattr(getattr(node, "identifier", None), "name", ""))
    return names


def _constant(statement: ConstantDeclaration) -> Expression:
    """Check the declaration of a constant, and return its value as a literal."""
    from openqasm3 import ast

    given, allowed = value(statement.init_expression), None
    is_number = given is not None and not isinstance(given, bool)
    if isinstance(statement.type, ast.IntType | ast.UintType):
        if not isinstance(given, int) or not is_number:
            check_rounding(statement.init_expression)
            raise refusal(statement, "expected a whole number as the constant")
        allowed = check_fits(statement, statement.type, given)
    elif isinstance(statement.type, ast.FloatType):
        if statement.type.size is not None and integer(statement.type.size) != 64:
            raise refusal(statement, "only float and float[64] are supported")
        if given is None or not is_number:
            check_rounding(statement.init_expression)
            raise refusal(statement, "expected a number as the constant")
        # An integer in a program may be larger than any float.
        given = float(given) if abs(given) <= _MOST_FLOAT else math.inf
    elif not isinstance(statement.type, ast.BoolType):
        raise refusal(statement, "constants are int, uint, float or bool")
    elif not isinstance(given, bool):
        raise refusal(statement, "expected true or false as the constant")
    replacement = literal(given, statement.init_expression)
    setattr(replacement, ROOM, allowed)
    return replacement


def _check_divisions(block: Sequence[QASMNode], integers: set[str]) -> None:
    """Reject possibly inexact integer divisions, and loop numbers that do not fit their type.

    :param integers: variables of the loops around the block
    """
    from openqasm3 import ast

    for statement in block:
        inner = integers
        if isinstance(statement, ast.ForInLoop):
            check_values(statement)
            inner = integers | {statement.identifier.name}
        elif isinstance(statement, ast.QuantumGateDefinition):
            _check_divisions(statement.body, set())
        for node in nodes(statement, within=False):
            if isinstance(node, ast.BinaryExpression):
                check_division(node, integers)
        for one in blocks(statement):
            _check_divisions(one, inner)


class _Registers:
    """The registers and aliases of a program, and their sizes."""

    def __init__(self) -> None:
        # The size None means a single qubit or bit.
        self._sizes: ChainMap[str, int | None] = ChainMap()
        self._total = {"qubit": 0, "bit": 0}
        self._aliased = 0

    def visit(self, statement: QASMNode) -> None:
        """Record what a statement declares, and replace its slices with sets of indices."""
        from openqasm3 import ast

        match statement:
            case ast.QubitDeclaration():
                self._declare("qubit", statement.qubit.name, statement)
            case ast.ClassicalDeclaration():
                self._declare("bit", statement.identifier.name, statement)
        within = [*nodes(statement, within=False)]
        for node in within:
            if isinstance(node, ast.IndexedIdentifier | ast.IndexExpression):
                self._expand_slices(node)
        for node in within:
            if isinstance(node, ast.BinaryExpression):
                self._compare_bits(node)
        if isinstance(statement, ast.AliasStatement):
            self._alias(statement)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Open the scope of a block; its declarations are forgotten afterwards."""
        self._sizes = self._sizes.new_child()
        yield
        self._sizes = self._sizes.parents

    def _alias(self, statement: AliasStatement) -> None:
        size = self._size(statement.value)
        self._aliased += size or 1
        if self._aliased > MAX_STEPS:
            why = f"aliases of more than {MAX_STEPS:,} qubits and bits in total"
            raise refusal(statement, why)
        self._sizes[statement.target.name] = size

    def qubits(self, operand: QASMNode) -> int:
        """Return the number of qubits of an operand; 1 if the number is unknown."""
        return self._size(operand) or 1

    def _compare_bits(self, node: BinaryExpression) -> None:
        """Replace 0 and 1 with false and true where they are compared with a bit."""
        if node.op.name not in ("==", "!="):
            return
        for bit, number, side in (
            (node.lhs, node.rhs, "rhs"),
            (node.rhs, node.lhs, "lhs"),
        ):
            if (whole := integer(number)) is not None and self._is_bit(bit):
                if whole not in (0, 1):
                    raise refusal(node, f"a bit is 0 or 1, and never {whole}")
                setattr(node, side, literal(bool(whole), number))

    def _is_bit(self, node: Expression) -> bool:
        from openqasm3 import ast

        if isinstance(node, ast.Identifier) and node.name not in self._sizes:
            return False
        is_named = isinstance(node, ast.Identifier | ast.IndexExpression)
        return is_named and self._size(node) is None

    def _declare(self, kind: str, name: str, statement: QASMNode) -> None:
        size = getattr(statement, "size", None) or getattr(
            getattr(statement, "type", None), "size", None
        )
        width = None
        if size is not None:
            width = integer(size)
            if width is None or width < 1:
                expected = "expected a positive whole number as the size of a register"
                raise refusal(statement, expected)
        self._sizes[name] = width
        self._total[kind] += 1 if width is None else width
        check_size(self._total["qubit"], self._total["bit"])

    def _size(self, node: QASMNode) -> int | None:
        from openqasm3 import ast

        match node:
            case ast.Identifier():
                return self._sizes.get(node.name)
            case ast.Concatenation():
                return (self._size(node.lhs) or 0) + (self._size(node.rhs) or 0)
            case ast.IndexedIdentifier():
                size = self._sizes.get(node.name.name)
                for index in node.indices:
                    size = _selected_bits(index)
                return size
            case ast.IndexExpression():
                return _selected_bits(node.index)
        return None

    def _expand_slices(self, node: QASMNode) -> None:
        """Replace slices with their indices: Qiskit's slices would exclude the end."""
        from openqasm3 import ast

        if isinstance(node, ast.IndexExpression):
            size = self._size(node.collection)
            node.index = _expanded(node.index, size, node)
        elif isinstance(node, ast.IndexedIdentifier):
            size = self._sizes.get(node.name.name)
            for place, index in enumerate(node.indices):
                node.indices[place] = _expanded(index, size, node)
                size = _selected_bits(node.indices[place])


def _selected_bits(index: IndexElement) -> int | None:
    """Return how many bits an index selects; ``None`` for a single bit."""
    return None if isinstance(index, list) else len(getattr(index, "values", ()))


def _expanded(index: IndexElement, size: int | None, node: QASMNode) -> IndexElement:
    from openqasm3 import ast

    if not isinstance(index, list) or not isinstance(index[0], ast.RangeDefinition):
        return index
    if size is None:
        raise refusal(node, "only registers have slices")
    return ast.DiscreteSet(
        [ast.IntegerLiteral(number) for number in _slice(index[0], size, node)]
    )


def _slice(bounds: RangeDefinition, size: int, node: QASMNode) -> range:
    """Return the indices of a slice, including its end."""
    step = 1 if bounds.step is None else integer(bounds.step)
    ends = (0, size - 1) if step is None or step > 0 else (size - 1, 0)
    start, end = (
        default if one is None else integer(one)
        for one, default in zip((bounds.start, bounds.end), ends, strict=True)
    )
    if start is None or end is None or not step:
        raise refusal(node, "the ends and the step of a slice are whole numbers")
    # Negative indices count from the register's end.
    first, last = (one + size if one < 0 else one for one in (start, end))
    if not (0 <= first < size and 0 <= last < size):
        raise refusal(node, f"slice {start}:{end} of a register of {size}")
    return range(first, last + (1 if step > 0 else -1), step)


class _Definitions:
    """The gates that a program defines."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._phases = {*_PHASE_DIFFERS}

    def add(self, definition: QuantumGateDefinition) -> None:
        """Record a definition and its steps, which the converter copies at each use."""
        from openqasm3 import ast

        names = [one.name for one in (*definition.arguments, *definition.qubits)]
        for name in names:
            if names.count(name) > 1:
                raise refusal(definition, f"{name} is there twice: use another name")
        _order_angles(definition, len(self._steps))
        name = definition.name.name
        inner = steps(definition.body, self.steps)
        self._steps[name] = min(1 + inner, MAX_STEPS + 1)
        used = {
            one.name.name
            for one in statements(definition.body)
            if isinstance(one, ast.QuantumGate)
        }
        if self._phases.isdisjoint(used):
            self._phases.discard(name)
        else:
            self._phases.add(name)

    def steps(self, statement: QASMNode) -> int:
        """Return how many steps the gate of a statement has."""
        return self._steps.get(_gate_name(statement), 1)

    def check_power(self, gate: QuantumGate) -> None:
        """Reject roots (fractional powers) of library gates with angles, and of powers."""
        name = gate.name.name
        has_angles = bool(gate.arguments) and name not in self._steps
        _check_power(gate, name, has_angles=has_angles)

    def check_name(self, gate: QuantumGate, qiskit_names: Container[str]) -> None:
        """Reject controls of gates that the program defines under names of Qiskit gates.

        Qiskit adds controls to some gates by name, regardless of their definitions.
        """
        name = gate.name.name
        if name in self._steps and name in qiskit_names:
            for modifier in gate.modifiers:
                if (control := modifier.modifier.name) in _CONTROLS:
                    detail = "Qiskit would take its own: use another name for this gate"
                    raise refusal(gate, f"{control} @ {name}: {detail}")

    def check_phase(self, gate: QuantumGate) -> None:
        """Reject modifiers with which the phases of OpenQASM and Qiskit differ in effect."""
        if gate.name.name not in self._phases:
            return
        for modifier in gate.modifiers:
            argument = getattr(modifier, "argument", None)
            name = modifier.modifier.name
            is_whole_power = name == "pow" and integer(argument) is not None
            if name != "inv" and not is_whole_power:
                raise refusal(
                    gate,
                    f"{name} @ {gate.name.name}: OpenQASM and Qiskit "
                    "differ in the phase of U, u2 and u3: use cu",
                )


def _check_power(
    gate: QuantumGate | QuantumPhase, name: str, *, has_angles: bool
) -> None:
    """Reject a root (fractional power) of a gate if Qiskit would compute it wrongly.

    The principal root of rx(7) is not rx(3.5): the phase of each eigenvalue, taken between
    -pi and pi, is halved.
    """
    powers = [one for one in gate.modifiers if one.modifier.name == "pow"]
    for place, power in enumerate(powers):
        if integer(power.argument) is None and (has_angles or powers[place + 1 :]):
            of = "of a power" if powers[place + 1 :] else f"of {name}, which has angles"
            detail = "only whole powers are supported"
            raise refusal(gate, f"pow @ {name}: a root {of}: {detail}")


def _check_controlled(definition: QuantumGateDefinition) -> None:
    """Reject ctrl @ cu in a definition: Qiskit would invert the definition wrongly."""
    from openqasm3 import ast

    for statement in statements(definition.body):
        if isinstance(statement, ast.QuantumGate) and statement.name.name == "cu":
            for modifier in statement.modifiers:
                if modifier.modifier.name in _CONTROLS:
                    detail = "write it without ctrl, by p, cu and ccx"
                    raise refusal(statement, f"ctrl @ cu in a definition: {detail}")


def _operands(statement: QASMNode) -> list[QASMNode]:
    measure = getattr(statement, "measure", None)
    operands = getattr(measure, "qubit", None) or getattr(statement, "qubits", None)
    return operands if isinstance(operands, list) else [operands] if operands else []


#: name that ``_order_angles`` gives to an angle of a gate
ANGLE_OF_A_GATE = re.compile(r"angle\d+_\d{6}")


def _order_angles(definition: QuantumGateDefinition, number: int) -> None:
    """Rename a gate's angles so that their names are in order and unique among all gates.

    The converter (qiskit-qasm3-import 0.6.0) assigns values to angles in the order of their
    names, regardless of their order in the gate, and rejects some values if another gate
    has angles of the same names.

    :param number: number of the definition
    """
    names = {
        one.name: f"angle{number}_{n:06}" for n, one in enumerate(definition.arguments)
    }
    for statement in (*definition.arguments, *definition.body):
        for identifier in _angle_names(statement):
            identifier.name = names.get(identifier.name, identifier.name)


def _angle_names(node: QASMNode) -> Iterator[Identifier]:
    from openqasm3 import ast

    if isinstance(node, ast.Identifier):
        yield node
        return
    for key, content in vars(node).items():
        if key == "qubits" or (key == "name" and isinstance(node, ast.QuantumGate)):
            continue
        for item in content if isinstance(content, list) else [content]:
            if isinstance(item, ast.QASMNode):
                yield from _angle_names(item)


def _gate_name(statement: QASMNode) -> str:
    return _name_of(getattr(statement, "name", statement))


def _name_of(operand: QASMNode) -> str:
    name = getattr(operand, "name", "")
    return name if isinstance(name, str) else ""

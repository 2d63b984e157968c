"""The statements of OpenQASM 3 that are supported, and the errors for all others.

A program is checked after its constants, loops and slices have been expanded. Statements
that Qiskit's converter would not understand are rejected with an error that names the line and
uses OpenQASM's terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sf_quantum.service.device.emulator.circuits.expressions import (
    ARITHMETIC,
    CONSTANTS,
    FUNCTIONS,
    integer,
    loop_values,
    value,
)
from sf_quantum.service.device.emulator.circuits.scopes import (
    Operand,
    Scopes,
    Symbol,
    line,
    named,
)
from sf_quantum.service.device.emulator.circuits.syntax import refusal, statements

if TYPE_CHECKING:
    from openqasm3.ast import (
        AliasStatement,
        BinaryExpression,
        ClassicalDeclaration,
        Expression,
        ForInLoop,
        Include,
        IODeclaration,
        Program,
        QASMNode,
        QuantumGate,
        QuantumGateDefinition,
        QuantumGateModifier,
        QuantumMeasurement,
        QuantumMeasurementStatement,
        QuantumPhase,
        QubitDeclaration,
    )

#: the gates of stdgates.inc, with their numbers of angles and qubits
STDGATES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys("x y z h s sdg t tdg sx id".split(), (0, 1)),
    **dict.fromkeys("p rx ry rz phase u1".split(), (1, 1)),
    "u2": (2, 1),
    "u3": (3, 1),
    **dict.fromkeys("cx cy cz ch swap CX".split(), (0, 2)),
    **dict.fromkeys("cp crx cry crz cphase".split(), (1, 2)),
    "cu": (4, 2),
    **dict.fromkeys(("ccx", "cswap"), (0, 3)),
}
_INCLUDED = "stdgates.inc"
#: errors for statements that cannot run, by the class of the statement
UNSUPPORTED: Mapping[str, str] = {
    "BreakStatement": "break is not supported: write what the loop does before it",
    "CalibrationDefinition": "defcal is not supported: there are no pulses here",
    "CalibrationGrammarDeclaration": "defcalgrammar is not supported: there are no pulses here",
    "CalibrationStatement": "cal is not supported: there are no pulses here",
    "ClassicalAssignment": "assignments are not supported: bits get values by measure only",
    "CompoundStatement": "a block of its own is not supported: leave out its braces",
    "ContinueStatement": "continue is not supported: write what the loop does before it",
    "EndStatement": "end is not supported: leave out what follows it",
    "ExpressionStatement": "a statement that is an expression has no effect: leave it out",
    "ExternDeclaration": "extern is not supported: there are no functions outside the circuit",
    "Pragma": "pragmas are not supported: leave it out",
    "ReturnStatement": "return is not supported: there are no subroutines",
    "SubroutineDefinition": "def is not supported: write a gate, or the statements themselves",
    "SwitchStatement": "switch is not supported: write if for each case",
    "WhileLoop": "while is not supported: write for, or if for each round",
}
# statements that the definition of a gate may contain
_IN_GATES = (
    "QuantumGate QuantumPhase QuantumBarrier DelayInstruction ForInLoop Box".split()
)
_CONDITIONS = "a bit, !bit, bit == 1 or register == 2"
# end of a message about an expression that is not supported, after a text of _EXPRESSIONS
_NO = "is not a number here: write the number itself"
_EXPRESSIONS: Mapping[str, str] = {
    "BitstringLiteral": "a string of bits",
    "Cast": "a cast",
    "DurationLiteral": "a duration",
    "DurationOf": "durationof",
    "ImaginaryLiteral": "an imaginary number",
    "IndexExpression": "a bit",
    "SizeOf": "sizeof",
}


def check_statements(program: Program) -> None:
    """Reject statements that cannot run, regardless of their contents.

    :raises InputError: if a statement cannot run; the message names the line and the
        remedy
    """
    for statement in statements(program.statements):
        if why := UNSUPPORTED.get(type(statement).__name__):
            raise refusal(statement, why)


def check(program: Program) -> None:
    """Reject statements that the converter would not understand.

    :raises InputError: if there is such a statement; the message names the line and the
        remedy
    """
    checking = _Check()
    for statement in program.statements:
        checking.visit(statement)


class _Check:
    def __init__(self) -> None:
        self._names = Scopes()

    def visit(self, statement: QASMNode) -> None:
        """Check a statement, and record its declarations."""
        kind = type(statement).__name__
        if kind == "ConstantDeclaration":
            why = "constants are declared outside of blocks and gates"
            raise refusal(statement, why)
        if self._names.in_gate and kind not in _IN_GATES:
            raise refusal(statement, "a gate consists of gates, barriers and loops")
        if not self._declares(statement):
            self._operates(statement)

    def _declares(self, statement: QASMNode) -> bool:
        """Check a statement if it is a declaration, and return whether it is."""
        from openqasm3 import ast

        match statement:
            case ast.Include():
                self._include(statement)
            case ast.QubitDeclaration():
                self._declare_qubits(statement)
            case ast.ClassicalDeclaration():
                self._declare_bits(statement)
            case ast.IODeclaration():
                self._declare_input(statement)
            case ast.QuantumGateDefinition():
                self._define(statement)
            case ast.AliasStatement():
                self._alias(statement)
            case _:
                return False
        return True

    def _operates(self, statement: QASMNode) -> None:
        """Check a statement that may be in a block."""
        from openqasm3 import ast

        match statement:
            case ast.QuantumGate():
                self._gate(statement)
            case ast.QuantumPhase():
                self._phase(statement)
            case ast.QuantumMeasurementStatement():
                self._measure(statement)
            case ast.QuantumReset():
                self._names.operand(statement.qubits, "qubit")
            case ast.QuantumBarrier():
                for operand in statement.qubits:
                    self._names.operand(operand, "qubit")
            case ast.DelayInstruction():
                self._duration(statement.duration, statement)
                for one in statement.qubits:
                    self._names.operand(one, "qubit")
            case _:
                self._block(statement)

    # declarations

    def _include(self, statement: Include) -> None:
        if (name := statement.filename) != _INCLUDED:
            why = f"{name!r:.60} cannot be included: only {_INCLUDED} can"
            raise refusal(statement, why)
        other = self._names.outermost.get("cphase")
        if other is not None and not other.line:
            raise refusal(statement, f"{_INCLUDED} is included twice: leave this out")
        for gate, shape in STDGATES.items():
            if (other := self._names.outermost.get(gate)) is not None:
                what = f"{gate} of {_INCLUDED} is declared on line {other.line}"
                raise refusal(statement, f"{what}: use another name there")
            self._names.outermost[gate] = Symbol("gate of stdgates.inc", shape=shape)

    def _declare_qubits(self, statement: QubitDeclaration) -> None:
        if self._names.are_nested:
            raise refusal(statement, "qubits are declared outside of blocks and gates")
        self._names.use_virtual(statement)
        symbol = self._names.new_bits("qubit", statement.size, statement)
        self._names.declare(statement.qubit.name, statement, symbol)

    def _declare_bits(self, statement: ClassicalDeclaration) -> None:
        from openqasm3 import ast

        type_ = statement.type
        if not isinstance(type_, ast.BitType):
            what = f"variables of type {_type(type_)} are not supported"
            raise refusal(statement, f"{what}: only bit, and const for numbers")
        if self._names.are_nested:
            raise refusal(statement, "bits are declared outside of blocks and gates")
        symbol = self._names.new_bits("bit", type_.size, statement)
        self._names.declare(statement.identifier.name, statement, symbol)
        if (given := statement.init_expression) is None:
            return
        if not isinstance(given, ast.QuantumMeasurement):
            why = "bits get values by measure only: they are 0 before"
            raise refusal(statement, why)
        self._measured(given, Operand(symbol.bits, symbol.is_register), statement)

    def _declare_input(self, statement: IODeclaration) -> None:
        from openqasm3 import ast

        if statement.io_identifier.name != "input":
            why = "output is not supported: all bits are in the counts"
            raise refusal(statement, why)
        type_ = statement.type
        size = getattr(type_, "size", None)
        whole = 64 if size is None else integer(size)
        if not isinstance(type_, ast.FloatType) or whole != 64:
            # an input of type angle would be taken modulo 2 pi, which changes quotients
            raise refusal(statement, "inputs are float or float[64]")
        name = statement.identifier.name
        self._names.declare(name, statement, Symbol("input", line(statement)))

    def _define(self, definition: QuantumGateDefinition) -> None:
        if self._names.are_nested:
            raise refusal(definition, "gates are defined outside of blocks and gates")
        with self._names.open(in_gate=True):
            for angle in definition.arguments:
                self._names.declare(angle.name, definition, Symbol("input"))
            for qubit in definition.qubits:
                symbol = self._names.new_bits("qubit", None, definition)
                self._names.declare(qubit.name, definition, symbol)
            for statement in definition.body:
                self.visit(statement)
        shape = len(definition.arguments), len(definition.qubits)
        symbol = Symbol("gate", line(definition), shape=shape)
        self._names.declare(definition.name.name, definition, symbol)

    def _alias(self, statement: AliasStatement) -> None:
        kind = self._names.kind(statement.value)
        operand = self._names.operand(statement.value, kind)
        name = statement.target.name
        if not operand.is_register:
            why = f"{name}: an alias is of a register, as in q[0:1]"
            raise refusal(statement, why)
        symbol = Symbol(kind, line(statement), operand.bits, True)
        self._names.declare(name, statement, symbol)

    def _application(
        self, name: str, width: int, given: Sequence[QASMNode], node: QASMNode
    ) -> None:
        """Check the qubits that a gate is applied to."""
        if len(given) != width:
            raise refusal(
                node, f"{name} takes {_plural(width, 'qubit')}, not {len(given)}"
            )
        operands = [self._names.operand(one, "qubit") for one in given]
        sizes = {len(one.bits) for one in operands if one.is_register}
        if len(sizes) > 1:
            sizes_text = " and ".join(map(str, sorted(sizes)))
            raise refusal(
                node, f"{name}: its registers have {sizes_text} qubits: as many each"
            )
        for place in range(max(sizes, default=1)):
            used = [one.bits[place if one.is_register else 0] for one in operands]
            if len({*used}) < len(used):
                raise refusal(
                    node, f"{name}: a qubit is there twice: use different ones"
                )

    # operations

    def _gate(self, gate: QuantumGate) -> None:
        name = gate.name.name
        if gate.duration is not None:
            raise refusal(gate, f"{name}: gates have no duration here: leave it out")
        if name not in self._names:
            raise refusal(gate, f"gate {name!r} is not defined{_include_hint(name)}")
        if not (symbol := self._names.find(name, gate)).shape[1]:
            raise refusal(gate, f"{name} is {named(symbol.kind)}: expected a gate")
        angles, qubits = symbol.shape
        if len(gate.arguments) != angles:
            why = f"{name} takes {_plural(angles, 'angle')}, not {len(gate.arguments)}"
            raise refusal(gate, why)
        for angle in gate.arguments:
            _check_angle(angle, self._names)
        width = qubits + sum(map(self._controls, gate.modifiers))
        self._application(name, width, gate.qubits, gate)

    def _phase(self, phase: QuantumPhase) -> None:
        _check_angle(phase.argument, self._names)
        width = sum(map(self._controls, phase.modifiers))
        self._application("gphase", width, phase.qubits, phase)

    def _controls(self, modifier: QuantumGateModifier) -> int:
        """Return the number of qubits that a modifier adds."""
        name, argument = modifier.modifier.name, modifier.argument
        if name == "inv":
            return 0
        if name == "pow":
            exponent = None if argument is None else value(argument)
            if exponent is None or isinstance(exponent, bool):
                raise refusal(modifier, "pow takes a number, as in pow(2) @ x q;")
            if not math.isfinite(exponent):
                raise refusal(modifier, f"pow takes a finite number, not {exponent}")
            return 0
        controls = 1 if argument is None else integer(argument)
        if controls is None or controls < 1:
            raise refusal(modifier, f"{name} takes a whole number from 1")
        return controls

    def _measure(self, statement: QuantumMeasurementStatement) -> None:
        if statement.target is None:
            why = "a measurement is of bits: write c = measure q;"
            raise refusal(statement, why)
        target = self._names.operand(statement.target, "bit")
        self._measured(statement.measure, target, statement)

    def _measured(
        self, measure: QuantumMeasurement, target: Operand, statement: QASMNode
    ) -> None:
        qubits = self._names.operand(measure.qubit, "qubit")
        if len(qubits.bits) != len(target.bits):
            sizes = f"{_plural(len(qubits.bits), 'qubit')} into {_plural(len(target.bits), 'bit')}"
            raise refusal(statement, f"measure: {sizes}: as many of each")

    def _duration(self, duration: Expression | None, node: QASMNode) -> None:
        from openqasm3 import ast

        if not isinstance(duration, ast.DurationLiteral) or not (
            0 <= duration.value < math.inf
        ):
            raise refusal(node, "expected a duration, as in 100ns")

    # blocks

    def _block(self, statement: QASMNode) -> None:
        """Check a statement that contains blocks."""
        from openqasm3 import ast

        match statement:
            case ast.BranchingStatement():
                _check_condition(statement.condition, self._names)
                for block in (statement.if_block, statement.else_block):
                    with self._names.open():
                        for one in block:
                            self.visit(one)
            case ast.ForInLoop():
                self._loop(statement)
            case ast.Box():
                # Annotations have no effect on an emulator.
                statement.annotations = []
                if statement.duration is not None:
                    self._duration(statement.duration, statement)
                with self._names.open():
                    for one in statement.body:
                        self.visit(one)
            case _:
                kind = type(statement).__name__
                raise refusal(statement, f"a statement of kind {kind} is not supported")

    def _loop(self, loop: ForInLoop) -> None:
        from openqasm3 import ast

        name = loop.identifier.name
        if not isinstance(loop.type, ast.IntType | ast.UintType):
            why = f"{name}: the variable of a loop is an int or uint"
            raise refusal(loop, why)
        if loop_values(loop.set_declaration) is None:
            why = "a loop is over whole numbers that are known, as in [0:3] or {1, 3}"
            raise refusal(loop, why)
        with self._names.open():
            self._names.declare(name, loop, Symbol("variable", line(loop)))
            for one in loop.block:
                self.visit(one)


def _check_angle(node: Expression, names: Scopes) -> None:
    if (angle := value(node)) is None:
        _number(node, names)
    elif isinstance(angle, bool):
        raise refusal(node, "expected a number as the angle")
    elif not math.isfinite(angle):
        raise refusal(node, f"{angle} is not an angle")


def _number(node: Expression, names: Scopes) -> None:
    """Check an expression with numbers that are not known yet."""
    from openqasm3 import ast

    match node:
        case ast.IntegerLiteral() | ast.FloatLiteral():
            return
        case ast.UnaryExpression() if node.op.name == "-":
            _number(node.expression, names)
        case ast.BinaryExpression():
            _calculation(node, names)
        case ast.Identifier():
            _variable(node.name, node, names)
        case ast.FunctionCall():
            name = node.name.name
            why = f"{name} is not a function that is known here"
            if name in FUNCTIONS:
                why = f"{name} takes numbers, and no inputs: compute it before"
            raise refusal(node, why)
        case _:
            raise refusal(
                node,
                f"{_EXPRESSIONS.get(type(node).__name__, 'this expression')} {_NO}",
            )


def _calculation(node: BinaryExpression, names: Scopes) -> None:
    if node.op.name not in ARITHMETIC:
        why = f"{node.op.name} is of whole numbers from 0 only, and of no inputs"
        raise refusal(node, why)
    for one in (node.lhs, node.rhs):
        _number(one, names)


def _variable(name: str, node: QASMNode, names: Scopes) -> None:
    if name in CONSTANTS:
        return
    if (symbol := names.find(name, node)).kind not in ("input", "variable"):
        raise refusal(node, f"{name} is {named(symbol.kind)}: expected a number")


def _check_condition(node: Expression, names: Scopes) -> None:
    """Check the condition of a branch, which must be a bit or a comparison with a number."""
    from openqasm3 import ast

    match node:
        case ast.UnaryExpression() if node.op.name in "!~":
            _bit(node.expression, node, names)
        case ast.BinaryExpression() if node.op.name in ("==", "!="):
            _comparison(node, names)
        case ast.Identifier() | ast.IndexExpression():
            _bit(node, node, names)
        case _:
            raise refusal(node, f"a condition is {_CONDITIONS}")


def _bit(node: Expression, condition: Expression, names: Scopes) -> None:
    if names.kind(node) != "bit" or names.operand(node, "bit").is_register:
        raise refusal(condition, f"a condition is {_CONDITIONS}")


def _comparison(node: BinaryExpression, names: Scopes) -> None:
    sides = [node.lhs, node.rhs]
    if names.kind(node.lhs) != "bit":
        sides.reverse()
    if names.kind(sides[0]) != "bit":
        raise refusal(node, f"a condition is {_CONDITIONS}")
    operand, number = names.operand(sides[0], "bit"), sides[1]
    if not operand.is_register:
        if not isinstance(value(number), bool):
            raise refusal(node, f"a condition is {_CONDITIONS}")
    elif node.op.name == "!=":
        raise refusal(node, "a register is compared by ==: write if ... else")
    else:
        _check_comparable(number, len(operand.bits), node)


def _check_comparable(number: Expression, width: int, node: QASMNode) -> None:
    """Reject a comparison of a register with a value that it cannot have."""
    from openqasm3 import ast

    if isinstance(number, ast.BitstringLiteral):
        if number.width != width:
            why = (
                f"{_plural(width, 'bit')} compared with {number.width}: as many of each"
            )
            raise refusal(node, why)
        return
    if (wanted := integer(number)) is None:
        raise refusal(node, f"a condition is {_CONDITIONS}")
    if not 0 <= wanted < 1 << width:
        raise refusal(node, f"if: {wanted} does not fit in {_plural(width, 'bit')}")


def _include_hint(name: str) -> str:
    if name in STDGATES:
        return f': include "{_INCLUDED}"'
    return f": define it, since {_INCLUDED} does not"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _type(type_: QASMNode) -> str:
    return type(type_).__name__.removesuffix("Type").lower()

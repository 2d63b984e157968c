"""Circuits in OpenQASM 3 and 2, read by Qiskit's parsers and checked against a device.

Only separate processes import Qiskit, which takes half a second. A text may be hostile:
it may take any time and memory within the limits of the process that reads it.
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.service.device.emulator.circuits.circuit import (
    MAX_QUBITS,
    MAX_STEPS,
    Architecture,
)
from sf_quantum.service.device.emulator.circuits.lines import lines_of
from sf_quantum.service.device.emulator.circuits.programs import check_size, prepare
from sf_quantum.service.device.emulator.circuits.templates import HOLE
from sf_quantum.service.device.emulator.circuits.unrolling import too_many_steps
from sf_quantum.text import one_line

if TYPE_CHECKING:
    from openqasm3.ast import Program
    from qiskit import QuantumCircuit
    from qiskit.circuit import Clbit, Operation, Qubit

# Gates of one or two qubits that every method of Aer supports.
GATES = frozenset(
    "cp cx cy cz ecr h id p r rx rxx ry ryy rz rzx rzz s sdg swap sx sxdg t tdg u u1 u2 "
    "u3 x y z".split()
)
# the gate of IQM's QPUs: its names in Qiskit and in IQM's own software
PHASED_RX = ("r", "prx")
# operations that run on any device
PLAIN = ("measure", "reset", "barrier", "delay")
# number of qubits of an operation, such as a barrier, that count as an additional step
STEP_QUBITS = 25
# Weights in the cache of circuits, in steps, qubits and bits: the overhead of each circuit,
# and the limit on all circuits together.
LEAST_WEIGHT, MOST_WEIGHT = 100, 2 * MAX_STEPS
# Value of an angle that is not known yet.
SOME_ANGLE = 0.7
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_VERSION = re.compile(r"\s*OPENQASM\s+(\d+)")
_REGISTER = re.compile(r"\b(qreg|creg)\s+\w+\s*\[\s*(\d+)\s*\]")
_PHYSICAL = re.compile(r"\$(\d+)")
# Messages of the parsers: the line of an error; a character that no token begins with.
_WHERE = re.compile(r"(?:<input>:|L)?(\d+)[,:]C?\d+: *(.*)")
_TOKEN = re.compile(r"L(\d+):C\d+: token recognition error at: '(.)", re.DOTALL)
#: character with which some editors begin a file
BYTE_ORDER_MARK = "\ufeff"


def check_angles(gate: Operation) -> None:
    """Reject angles that are not finite numbers."""
    for angle in gate.params:
        if getattr(angle, "parameters", None):  # bound later
            continue
        try:
            finite = math.isfinite(angle)
        except (TypeError, ValueError, OverflowError):
            finite = False
        if not finite:
            raise InputError(f"gate {gate.name}: {angle!s:.60} is not an angle")


# Reading: text to circuit.


def flat(
    text: str, architecture: Architecture | None, holes: int = 0
) -> QuantumCircuit:
    """Read a circuit, check it, and expand the gates that it defines.

    :param architecture: architecture of the device; ``None`` for any
    :param holes: number of holes of a template, see :mod:`.templates`
    :returns: the circuit, which must not be changed: the latest circuits are cached, for
        the job that follows a check and for the next job of a loop
    :raises InputError: if the circuit is invalid; the message names its line or gate
    """
    about = f"{holes} {architecture} {text}"
    key = hashlib.sha256(about.encode(errors="surrogatepass")).digest()
    if (kept := _cache.get(key)) is None:
        kept, steps = _flat(text, architecture, holes)
        _cache.keep(key, kept, steps + kept.num_qubits + kept.num_clbits)
    return kept


def _flat(
    text: str, architecture: Architecture | None, holes: int
) -> tuple[QuantumCircuit, int]:
    if not (bare := _COMMENT.sub(_blank, text)).strip():
        raise InputError("the text is empty")
    most = architecture.qubits if architecture else MAX_QUBITS
    _check_numbers(bare, most)
    version = _version(bare)
    circuit, lines = _read(text.rstrip(), version, holes)
    check_size(circuit.num_qubits, circuit.num_clbits, most)
    flattening = _Flattening(architecture)
    try:
        # Qiskit builds the definition of a gate when the definition is accessed.
        with _refusals():
            flattened = flattening.flat(circuit)
    except InputError as error:
        places = lines if version == 3 else lines_of(bare, len(circuit.data))
        place = flattening.place
        where = f"line {places[place]}: " if place < len(places) else ""
        raise InputError(f"{where}{error}") from error
    if not measures(flattened):
        raise InputError("the circuit measures nothing")
    return flattened, flattening.steps


class _CircuitCache:
    """The cache of the latest circuits, each with its weight."""

    def __init__(self) -> None:
        self._circuits: OrderedDict[bytes, tuple[QuantumCircuit, int]] = OrderedDict()
        self._weight = 0

    def get(self, key: bytes) -> QuantumCircuit | None:
        if key not in self._circuits:
            return None
        self._circuits.move_to_end(key)
        return self._circuits[key][0]

    def keep(self, key: bytes, circuit: QuantumCircuit, weight: int) -> None:
        self._circuits[key] = circuit, LEAST_WEIGHT + weight
        self._weight += LEAST_WEIGHT + weight
        while self._weight > MOST_WEIGHT:
            self._weight -= self._circuits.popitem(last=False)[1][1]


_cache = _CircuitCache()


def measures(circuit: QuantumCircuit) -> bool:
    """Return whether a circuit measures a qubit."""
    return any(
        one.operation.name == "measure"
        or any(map(measures, getattr(one.operation, "blocks", ())))
        for one in circuit.data
    )


def _version(text: str) -> int:
    match = _VERSION.match(text)
    version = int(match[1][:9]) if match else 3
    if version not in (2, 3):
        raise InputError(f"OPENQASM {version}: expected 2 or 3")
    return version


def _check_numbers(text: str, most: int) -> None:
    """Reject sizes for which a parser would create too many objects."""
    total = {"qreg": 0, "creg": 0}
    for kind, size in _REGISTER.findall(text):
        total[kind] += int(size[:9])
    check_size(total["qreg"], total["creg"], most)
    for match in _PHYSICAL.finditer(text):
        if int(match[1][:9]) >= most:
            line = text.count("\n", 0, match.start()) + 1
            why = f"there is no qubit ${match[1][:9]}, but $0 to ${most - 1}"
            raise InputError(f"line {line}: {why}")


def _blank(comment: re.Match[str]) -> str:
    return " " + "\n" * comment[0].count("\n")


def _read(text: str, version: int, holes: int) -> tuple[QuantumCircuit, Sequence[int]]:
    """Read a circuit.

    :returns: the circuit, and the line of each of its instructions if it is in OpenQASM
        3
    """
    with _refusals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (_read2(text), ()) if version == 2 else _read3(text, holes)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise errors of Qiskit and its parsers as :class:`InputError` of one line."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except RecursionError:
        raise InputError("it is nested too deeply") from None
    except Exception as error:
        raise InputError(_reason(error)) from error


def _read2(text: str) -> QuantumCircuit:
    from qiskit import qasm2

    # no file of this machine can be included
    gates = qasm2.LEGACY_CUSTOM_INSTRUCTIONS
    return qasm2.loads(text, include_path=(), custom_instructions=gates)


def _read3(text: str, holes: int) -> tuple[QuantumCircuit, Sequence[int]]:
    import openqasm3
    from openqasm3 import ast
    from qiskit.circuit.library.standard_gates import get_standard_gate_name_mapping

    # As qiskit.qasm3.loads() does, but with declarations of a template's angles.
    program = openqasm3.parse(text)
    program.statements[:0] = [
        ast.IODeclaration(
            ast.IOKeyword.input, ast.FloatType(), ast.Identifier(f"{HOLE}{n}")
        )
        for n in range(holes)
    ]
    prepare(program, get_standard_gate_name_mapping())
    return _converted(program)


def _converted(program: Program) -> tuple[QuantumCircuit, Sequence[int]]:
    """Return the circuit of a program, and the line of each of its instructions."""
    from qiskit_qasm3_import.converter import ConvertVisitor
    from qiskit_qasm3_import.state import State

    lines: list[int] = []

    class Noting(ConvertVisitor):
        """Records the lines of instructions, which the circuit does not contain."""

        def visit_Program(self, node: Program, context: State) -> State:
            for statement in node.statements:
                context = self.visit(statement, context)
                line = statement.span.start_line if statement.span else 0
                lines.extend([line] * (len(context.circuit.data) - len(lines)))
            return context

    return Noting().convert(program).circuit, lines


def _reason(error: BaseException) -> str:
    """Return the message of a parser, with the line if it is known."""
    whole = str(getattr(error, "message", error))
    if match := _TOKEN.match(whole):
        return f"line {match[1]}: unexpected {match[2]!r}"
    message = one_line(whole)
    if match := _WHERE.fullmatch(message):
        return f"line {match[1]}: {match[2][:200].removesuffix('.')}"
    cause = error.__cause__
    reason = cause.args[0] if cause is not None and cause.args else None
    if (token := getattr(reason, "offendingToken", None)) is not None:
        return f"line {token.line}: unexpected {one_line(token.text)[:40]!r}"
    # the converter does not report the line if Qiskit rejects a gate
    line, powers, trace = None, False, error.__traceback__
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        span = getattr(node, "span", None)
        line, trace = span.start_line if span else line, trace.tb_next
        modifiers = getattr(node, "modifiers", ())
        powers = powers or any(one.modifier.name == "pow" for one in modifiers)
    where = f"line {line}: " if line else ""
    # The message of a Python error says nothing about the circuit.
    if bool(message) and hasattr(error, "message"):
        return f"{where}{message[:200]}"
    if powers:
        why = (
            "pow of this gate needs angles that are numbers: write the gate repeatedly"
        )
        return f"{where}{why}"
    return f"{where}this is not read as a circuit"


# Flattening: from any circuit to gates that the device and Aer support.


class _Flattening:
    """Replaces gates with their definitions, and checks the result.

    The number of steps is limited, including steps without effect, since each level of
    definitions may double it.
    """

    def __init__(self, architecture: Architecture | None) -> None:
        self._architecture = architecture
        native = architecture or Architecture(0)
        self._gates = {*native.gates}
        if not self._gates.isdisjoint(PHASED_RX):
            self._gates.update(PHASED_RX)
        self._pairs = {(low, high) for low, high in native.couplers}
        self._broken = {*native.out_of_service}
        #: Number of steps that have been flattened.
        self.steps = 0
        #: the number of the instruction that is being flattened
        self.place = 0

    def flat(
        self, circuit: QuantumCircuit, places: Sequence[int] | None = None
    ) -> QuantumCircuit:
        """Flatten a circuit.

        :param places: numbers of the circuit's qubits on the device
        """
        flat = circuit.copy_empty_like()
        numbers = range(circuit.num_qubits) if places is None else places
        place = dict(zip(circuit.qubits, numbers, strict=True))
        for n, one in enumerate(circuit.data):
            if places is None:  # the place in the circuit, not in a block
                self.place = n
            self._add(flat, one.operation, one.qubits, one.clbits, place)
        return flat

    def _add(
        self,
        flat: QuantumCircuit,
        operation: Operation,
        qubits: Sequence[Qubit],
        bits: Sequence[Clbit],
        place: Mapping[Qubit, int],
    ) -> None:
        """Append an operation, flattened; ``place`` maps qubits to their numbers."""
        self._count(1 + len(qubits) // STEP_QUBITS)
        name, numbers = operation.name, [place[qubit] for qubit in qubits]
        if name in PLAIN:
            if name != "barrier":
                self._check_service(name, numbers)
            flat.append(operation, qubits, bits, copy=False)
        elif name == "if_else":
            self._branch(flat, operation, qubits, bits, numbers)
        elif name == "for_loop":
            self._unroll(flat, operation, qubits, bits, place)
        elif name == "box":
            (body,) = operation.blocks
            self._inline(flat, body, qubits, bits, place)
        elif hasattr(operation, "blocks"):
            raise InputError(f"{name}: only if, else, for and box are supported")
        elif (gate := self._native(operation, numbers)) is not None:
            check_angles(gate)
            flat.append(gate, qubits, bits, copy=False)
        else:
            self._define(flat, operation, qubits, place)

    def _count(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise InputError(too_many_steps(MAX_STEPS))

    def _native(self, gate: Operation, numbers: Sequence[int]) -> Operation | None:
        """Return the gate to apply; ``None`` if the gate must be replaced."""
        name, is_custom = gate.name, not _standard(gate)
        if not self._gates:
            is_supported = not is_custom and name in GATES
            return gate if is_supported else None
        if name in PHASED_RX and name in self._gates:
            self._check_service(name, numbers)
            return _phased_rx(gate) if is_custom else gate
        if is_custom:
            return None
        if name not in self._gates:
            gates = ", ".join(sorted(self._gates))
            where = _where(numbers)
            detail = f"transpile the circuit to {gates}"
            raise InputError(f"gate {name} on {where} is not native: {detail}")
        self._check_service(name, numbers)
        pair = (min(numbers), max(numbers))
        if len(numbers) > 1 and pair not in self._pairs:
            detail = "these are not coupled: transpile the circuit for this QPU"
            raise InputError(f"gate {name} on {_where(numbers)}: {detail}")
        return gate

    def _check_service(self, name: str, numbers: Sequence[int]) -> None:
        if broken := self._broken.intersection(numbers):
            raise InputError(f"{name}: qubit {min(broken)} is out of service")

    def _define(
        self,
        flat: QuantumCircuit,
        gate: Operation,
        qubits: Sequence[Qubit],
        place: Mapping[Qubit, int],
    ) -> None:
        """Append the operations of a gate's definition."""
        definition = getattr(gate, "definition", None)
        if definition is None:
            raise InputError(f"gate {gate.name} has no definition")
        actual = dict(zip(definition.qubits, qubits, strict=True))
        for one in definition.data:
            inner = [actual[qubit] for qubit in one.qubits]
            self._add(flat, one.operation, inner, (), place)

    def _branch(
        self,
        flat: QuantumCircuit,
        operation: Operation,
        qubits: Sequence[Qubit],
        bits: Sequence[Clbit],
        numbers: Sequence[int],
    ) -> None:
        """Append an ``if`` with flattened blocks."""
        from qiskit.circuit import Clbit

        if self._gates:
            raise InputError(
                f"if on {_where(numbers)}: this device has no conditionals"
            )
        register, value = operation.condition
        # Aer would compare only the lowest bits of the number.
        if not isinstance(register, Clbit) and not 0 <= value < 1 << len(register):
            raise InputError(f"if: {value} does not fit in {len(register)} bits")
        blocks = [self.flat(block, numbers) for block in operation.blocks]
        flat.append(operation.replace_blocks(blocks), qubits, bits, copy=False)

    def _unroll(
        self,
        flat: QuantumCircuit,
        operation: Operation,
        qubits: Sequence[Qubit],
        bits: Sequence[Clbit],
        place: Mapping[Qubit, int],
    ) -> None:
        """Append the body of a loop once for each value."""
        values, variable, body = operation.params
        for value in values if body.data else ():
            once = body
            if variable is not None and variable in body.parameters:
                once = body.assign_parameters({variable: value})
            self._inline(flat, once, qubits, bits, place)

    def _inline(
        self,
        flat: QuantumCircuit,
        body: QuantumCircuit,
        qubits: Sequence[Qubit],
        bits: Sequence[Clbit],
        place: Mapping[Qubit, int],
    ) -> None:
        """Append the operations of a block."""
        actual = dict(zip(body.qubits, qubits, strict=True))
        actual_bits = dict(zip(body.clbits, bits, strict=True))
        for one in body.data:
            inner = [actual[qubit] for qubit in one.qubits]
            inner_bits = [actual_bits[bit] for bit in one.clbits]
            self._add(flat, one.operation, inner, inner_bits, place)


def _where(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"qubit {numbers[0]}"
    return f"qubits {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _standard(gate: Operation) -> bool:
    """Return whether a gate is from Qiskit's library, not defined in the circuit."""
    return str(gate.base_class.__module__).startswith("qiskit.circuit.library.")


def _phased_rx(gate: Operation) -> Operation:
    """Return Qiskit's ``r`` for a gate defined in the circuit, which must equal ``r``."""
    from qiskit.circuit.library import RGate
    from qiskit.quantum_info import Operator

    definition = getattr(gate, "definition", None)
    if gate.num_qubits == 1 and len(gate.params) == 2 and definition is not None:
        expected = RGate(*gate.params)
        free = {*definition.parameters, *getattr(expected, "parameters", ())}
        values = {parameter: SOME_ANGLE + n for n, parameter in enumerate(free)}
        angles = [
            (
                float(angle.bind(values, allow_unknown_parameters=True))
                if getattr(angle, "parameters", None)
                else angle
            )
            for angle in gate.params
        ]
        check_angles(gate)
        bound = definition.assign_parameters(values, strict=False)
        if Operator(bound).equiv(RGate(*angles)):
            return expected
    raise InputError(f"gate {gate.name} is not defined as that of the device, r")

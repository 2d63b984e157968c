"""A QPU as a backend of Qiskit, for Qiskit's primitives and for SDKs that use Qiskit."""

from __future__ import annotations

import json
import math
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from qiskit import ClassicalRegister, QuantumCircuit, qasm3
from qiskit.circuit import (
    AnnotatedOperation,
    BoxOp,
    Clbit,
    ControlModifier,
    Delay,
    ForLoopOp,
    Gate,
    IfElseOp,
    InverseModifier,
    Measure,
    Operation,
    Parameter,
    PowerModifier,
    Reset,
)
from qiskit.circuit.library import (
    CZGate,
    RGate,
    get_standard_gate_name_mapping,
)
from qiskit.exceptions import QiskitError
from qiskit.providers import BackendV2, JobStatus, JobTimeoutError, JobV1, Options
from qiskit.result import Result as Results
from qiskit.result.models import ExperimentResult, ExperimentResultData
from qiskit.transpiler import Target

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import JobParameters, Outcome, Task
from sf_quantum.protocol.values import counters
from sf_quantum.qpu import running
from sf_quantum.qpu.passes import Combine, Passes, whole
from sf_quantum.qpu.running import JobSide, not_taken
from sf_quantum.text import described, unknown
from sf_quantum.threads import in_thread

SHOTS = 1024
#: Largest number of circuits in a job; Qiskit's primitives send more circuits as more jobs.
MOST_CIRCUITS = 100
# gates of OpenQASM 3's stdgates.inc, with their names in this file
STANDARD = """x y z h s sdg t tdg sx rx ry rz p u cx cy cz cp crx cry crz ch swap ccx
    cswap id""".split()
# Qiskit's module of standard gates, and OpenQASM's instructions other than gates and blocks
_STANDARD_GATES = "qiskit.circuit.library.standard_gates."
_PLAIN = ("measure", "reset", "barrier", "delay")
_BLOCKS = {IfElseOp: "if_else", ForLoopOp: "for_loop", BoxOp: "box"}
# Maximum values of a range that is expanded: the maximum number of gates of a circuit.
MOST_VALUES = 100_000
# error messages for instructions that no QPU here runs
_UNSUPPORTED = {
    "break_loop": "loops run to their end here: write what they do before it",
    "continue_loop": "loops run to their end here: write what they do before it",
    "store": "bits and variables get no values here but by measure",
    "switch_case": "only if, else, for and box run here: write if_test for each case",
    "while_loop": "only if, else, for and box run here: write for_loop",
}


class QpuBackend(BackendV2):
    """The QPU of a job's lease, for Qiskit and for software that uses Qiskit's backends.

    :param qpu: job's side of a QPU that accepts circuits
    :raises InputError: if the QPU accepts no circuits
    :raises QpuError: if the QPU does not answer
    """

    def __init__(self, qpu: JobSide) -> None:
        super().__init__(name=qpu.name)
        self._qpu = qpu
        described = qpu.describe()
        if "circuit" not in described.kinds:
            raise not_taken(qpu, described, "circuits")
        #: Description of the QPU at the time when the backend was made.
        self.described = described
        self._target = target(described)
        self._most_shots = described.shots

    @property
    def target(self) -> Target:
        return self._target

    @property
    def max_circuits(self) -> int:
        return MOST_CIRCUITS

    @classmethod
    def _default_options(cls) -> Options:
        return Options(shots=SHOTS, memory=False, seed_simulator=None, mitigation="")

    def run(
        self,
        run_input: QuantumCircuit | Sequence[QuantumCircuit],
        **options: int | str | None,
    ) -> QpuJob:
        """Run circuits as one job; return immediately.

        :param options: ``shots``, by default 1024; ``memory``, whether the result also
            contains the bits of each shot, in an arbitrary order; ``seed_simulator``, seed
            of an emulated QPU; ``mitigation``, names of :mod:`~sf_quantum.qpu.passes`
        :raises InputError: if an option is unknown, a job may not have so many shots, a
            pass cannot be used, a circuit's parameter has no value, or a circuit contains
            an operation that no QPU here runs
        """
        circuits = _given(run_input)
        for name in options:
            if name not in self.options:
                raise InputError(unknown("option", name, [*self.options]))
        set_ = {name: value for name, value in options.items() if value is not None}
        given = {**self.options, **set_}
        shots, mitigation = given["shots"], given["mitigation"]
        if isinstance(shots, bool) or not isinstance(shots, int) or shots < 1:
            wrong = f"shots: {shots!r:.40}: expected a whole number from 1"
            raise InputError(wrong)
        if self._most_shots is not None and shots > self._most_shots:
            most = f"at most {self._most_shots:,}"
            raise InputError(f"shots: {shots:,}; QPU {self.name!r} takes {most}")
        if not isinstance(mitigation, str):
            expected = "expected names of passes, separated by commas"
            wrong = f"mitigation: {mitigation!r:.40}: {expected}"
            raise InputError(wrong)
        _check_bound(circuits)
        parameters = {"num_reads": shots, "seed": given["seed_simulator"]}
        passes = Passes(mitigation, self.described)
        if memory := bool(given["memory"]):
            passes.check_shots()
        return QpuJob(self, self._qpu, circuits, parameters, passes, memory)


def _given(
    run_input: QuantumCircuit | Sequence[QuantumCircuit],
) -> Sequence[QuantumCircuit]:
    """Return the circuits of a job."""
    if isinstance(run_input, QuantumCircuit):
        return [run_input]
    given = [*run_input] if isinstance(run_input, Iterable) else []
    if not given or not all(isinstance(one, QuantumCircuit) for one in given):
        what = f"{type(run_input).__name__!r:.40}" if not given else "others in it"
        what = "an empty list" if run_input == [] else what
        raise InputError(f"run: expected a circuit or a list of them, not {what}")
    return given


def _plain(circuit: QuantumCircuit) -> QuantumCircuit:
    """Replace operations that OpenQASM cannot express with their definitions.

    Such operations are composite instructions that measure, reset or initialize, and
    operations with annotations.

    :raises InputError: if a circuit contains an operation that no QPU here runs
    """
    if all(_is_plain(one.operation) for one in circuit.data):
        return circuit
    replaced = circuit.copy_empty_like()
    for one in circuit.data:
        operation = one.operation
        if operation.name in _BLOCKS.values():
            blocks = [block and _plain(block) for block in operation.blocks]
            replaced.append(operation.replace_blocks(blocks), one.qubits, one.clbits)
        elif _is_plain(operation):
            replaced.append(operation, one.qubits, one.clbits)
        elif isinstance(operation, AnnotatedOperation):
            gate = _unannotated(circuit, operation)
            replaced.append(gate, one.qubits, one.clbits)
        elif (definition := getattr(operation, "definition", None)) is not None:
            replaced.compose(_plain(definition), one.qubits, one.clbits, inplace=True)
        else:
            why = _UNSUPPORTED.get(operation.name, "it cannot be written in OpenQASM")
            raise InputError(f"circuit {circuit.name!r}: {operation.name}: {why}")
    return replaced


def _is_plain(operation: Operation) -> bool:
    """Return whether OpenQASM can express an operation and its definition."""
    if operation.name in _BLOCKS.values():
        return all(
            _is_plain(one.operation)
            for block in operation.blocks
            if block is not None
            for one in block.data
        )
    if isinstance(operation, Gate):
        # The parameters of a state preparation are complex numbers or a text.
        if any(isinstance(one, complex | str) for one in operation.params):
            return False
        definition = None if _is_standard(operation) else operation.definition
        return definition is None or all(
            _is_plain(one.operation) for one in definition.data
        )
    return operation.name in _PLAIN


def _written_out(circuit: QuantumCircuit) -> QuantumCircuit:
    """Replace ranges that count down with their values, and remove loops without values.

    Qiskit's export to OpenQASM ends such a range one below Python's end instead of one above
    it, so the loop would run too often (seen up to Qiskit 2.6).

    :raises InputError: if there are more values than a circuit may have gates
    """
    blocks = (*_BLOCKS,)
    if not any(isinstance(one.operation, blocks) for one in circuit.data):
        return circuit
    replaced = circuit.copy_empty_like()
    for one in circuit.data:
        operation = one.operation
        if isinstance(operation, blocks):
            operation = operation.replace_blocks(map(_written_out, operation.blocks))
        if isinstance(operation, ForLoopOp):
            values, parameter, body = operation.params
            if not len(values):
                continue
            if isinstance(values, range) and values.step < 0:
                if len(values) > MOST_VALUES:
                    why = f"a loop has at most {MOST_VALUES:,} values that count down"
                    raise InputError(f"circuit {circuit.name!r}: {why}")
                operation = ForLoopOp(tuple(values), parameter, body)
        replaced.append(operation, one.qubits, one.clbits)
    return replaced


def _is_standard(gate: Gate) -> bool:
    return str(gate.base_class.__module__).startswith(_STANDARD_GATES)


def _unannotated(circuit: QuantumCircuit, operation: AnnotatedOperation) -> Gate:
    """Apply the annotations of an operation to its gate."""
    gate = operation.base_op
    if isinstance(gate, AnnotatedOperation):
        gate = _unannotated(circuit, gate)
    elif isinstance(gate, Gate) and not _is_plain(gate):
        gate = _plain(gate.definition).to_gate(label=gate.label)
    for modifier in operation.modifiers:
        if not isinstance(gate, Gate):
            why = "only gates have annotations here"
            raise InputError(f"circuit {circuit.name!r}: {operation.name}: {why}")
        match modifier:
            case InverseModifier():
                gate = gate.inverse()
            case ControlModifier():
                state = modifier.ctrl_state
                gate = gate.control(
                    modifier.num_ctrl_qubits, ctrl_state=state, annotated=False
                )
            case PowerModifier():
                gate = gate.power(modifier.power)
    return gate


def _check_bound(circuits: Sequence[QuantumCircuit]) -> None:
    """Reject circuits with parameters that have no value."""
    for number, circuit in enumerate(circuits):
        if names := [parameter.name for parameter in circuit.parameters]:
            values = ", ".join(f"{name!r}: 0.5" for name in names[:3])
            more = ", ..." if len(names) > 3 else ""
            raise InputError(
                f"circuit {number}: parameter {names[0]} has no value; bind the "
                f"parameters: circuit.assign_parameters({{{values}{more}}})"
            )


class QpuJob(JobV1):
    """Circuits on a QPU; made by :meth:`QpuBackend.run`."""

    def __init__(
        self,
        backend: QpuBackend,
        qpu: JobSide,
        circuits: Sequence[QuantumCircuit],
        parameters: JobParameters,
        passes: Passes,
        memory: bool,
    ) -> None:
        tag = f"sfq-{secrets.token_hex(8)}"
        super().__init__(backend, tag)
        self._qpu = qpu
        self._circuits = circuits
        self._passes = passes
        self._memory = memory
        self._cancelled = False
        self._sent = len(circuits)
        sent = [_in_order(_written_out(_plain(circuit))) for circuit in circuits]
        self._places = [places for _, places in sent]
        alike = None if passes.names else program([circuit for circuit, _ in sent])
        if alike is not None:
            self._combine: list[Combine] = [next for _ in circuits]
            payload = json.dumps(alike)
        else:
            expanded = [passes.expanded(_openqasm(circuit)) for circuit, _ in sent]
            self._combine = [combine for _, combine in expanded]
            texts = [text for made, _ in expanded for text in made]
            self._sent = len(texts)
            payload = json.dumps(texts[0] if len(texts) == 1 else texts)
        self._task = Task(tag, "circuit", payload, parameters)
        self._outcome: Future[Outcome] = in_thread(lambda: qpu.run_job(self._task))

    def submit(self) -> None:
        """Do nothing: :meth:`QpuBackend.run` has submitted the job."""

    def result(self, timeout: float | None = None) -> Results:
        """Wait for the counts.

        :param timeout: longest wait in seconds; ``None`` for no limit
        :raises InputError: if the QPU rejects a circuit
        :raises QpuError: if the QPU fails or does not answer, or the job was cancelled
        """
        try:
            outcome = self._outcome.result(timeout)
        except TimeoutError as error:
            raise JobTimeoutError(f"no result within {timeout:g} s") from error
        who = f"QPU {self._qpu.name!r}"
        if outcome.result is None:
            raise QpuError(f"{who}: {outcome.failure}")
        shots = self._task.parameters["num_reads"]
        counts = iter(counters(who, outcome.result.text, self._sent))
        return Results(
            backend_name=self._qpu.name,
            job_id=self.job_id(),
            success=True,
            results=[
                self._experiment(circuit, places, whole(combine(counts)), shots)
                for circuit, places, combine in zip(
                    self._circuits, self._places, self._combine, strict=True
                )
            ],
            info={**outcome.result.info, "mitigation": self._passes.names},
        )

    def _experiment(
        self,
        circuit: QuantumCircuit,
        places: Sequence[int],
        counter: Mapping[str, int],
        shots: int | None,
    ) -> ExperimentResult:
        """Make Qiskit's result of one circuit."""
        if any(len(word) != len(places) for word in counter):
            raise QpuError(f"QPU {self._qpu.name!r}: its counts are of other bits")
        counts = {
            hex(int("".join([word[place] for place in places]), 2)): n
            for word, n in counter.items()
        }
        more = {}
        if self._memory:
            more["memory"] = [*Counter(counts).elements()]
            random.Random(self._task.tag).shuffle(more["memory"])
        data = ExperimentResultData(counts=counts, **more)
        header = {
            "name": circuit.name,
            "creg_sizes": [[one.name, one.size] for one in circuit.cregs],
            "memory_slots": circuit.num_clbits,
            "metadata": circuit.metadata,
        }
        return ExperimentResult(shots, True, data, header=header)

    def cancel(self) -> None:
        """Cancel the job on the QPU.

        :raises QpuError: if the QPU cannot look up jobs by their tags, or does not answer
        """
        self._cancelled |= running.cancel(self._qpu, self._task.tag, self._outcome)

    def status(self) -> JobStatus:
        """Return the status of the job, without a request to the QPU."""
        if not self._outcome.done():
            return JobStatus.RUNNING
        if self._outcome.exception() is not None:
            return JobStatus.ERROR
        outcome = self._outcome.result()
        if outcome.result is not None:
            return JobStatus.DONE
        return JobStatus.CANCELLED if self._cancelled else JobStatus.ERROR


def target(described: Description) -> Target:
    """Make the target of Qiskit's transpiler: a lattice of native gates, or standard gates."""
    topology = described.topology
    if topology is None or not described.native_gates:
        made = Target(num_qubits=described.qubits)
        gates = get_standard_gate_name_mapping()
        for name in STANDARD:
            made.add_instruction(gates[name])
        for instruction in (Measure(), Reset()):
            made.add_instruction(instruction)
        for block in (IfElseOp, ForLoopOp, BoxOp):
            made.add_instruction(block, name=_BLOCKS[block])
        made.add_instruction(Delay(Parameter("duration")))
        return made
    made = Target(num_qubits=topology.labels)
    qubits = dict.fromkeys((qubit,) for qubit in topology.qubits)
    made.add_instruction(RGate(Parameter("theta"), Parameter("phi")), qubits)
    couplers = [pair for one in topology.couplers for pair in (one, one[::-1])]
    made.add_instruction(CZGate(), dict.fromkeys(couplers))
    for instruction in (Measure(), Reset()):
        made.add_instruction(instruction, qubits)
    return made


def program(circuits: Sequence[QuantumCircuit]) -> dict[str, JSON] | None:
    """Convert circuits that differ only in angles to one circuit with parameter values.

    :returns: the circuit and the values; ``None`` if the circuits also differ otherwise, or
        are fewer than two
    """
    if len(circuits) < 2:
        return None
    first, *others = (_structure(circuit) for circuit in circuits)
    if first is None:
        return None
    rows = [first[1]]
    for other in others:
        if other is None or other[0] != first[0]:
            return None
        rows.append(other[1])
    columns = [*zip(*rows, strict=True)]
    # an angle that is equal in all circuits is kept; angles with equal values in every
    # circuit share a parameter
    names: dict[tuple[float, ...], Parameter] = {}
    for column in columns:
        if len(set(column)) > 1 and column not in names:
            names[column] = Parameter(f"angle{len(names)}")
    common = circuits[0].copy()
    position = 0
    for place, one in enumerate(common.data):
        if count := len(one.params):
            angles = columns[position : (position := position + count)]
            operation = one.operation.to_mutable()
            operation.params = [names.get(column, column[0]) for column in angles]
            common.data[place] = one.replace(operation=operation)
    values: list[JSON] = [
        {one.name: column[number] for column, one in names.items()}
        for number in range(len(rows))
    ]
    return {"program": qasm3.dumps(common), "values": values}


@dataclass(frozen=True)
class _Structure:
    """A circuit without the values of its angles.

    :param steps: each operation's name, number of angles, and numbers of its qubits and bits
    :param registers: each register's name, and the numbers of its qubits or bits
    :param size: numbers of qubits and of bits
    :param placed: whether the circuit was transpiled to the qubits of the QPU
    """

    steps: list[tuple[str, int, list[int]]]
    registers: list[tuple[str, list[int]]]
    size: tuple[int, int]
    placed: bool


def _structure(circuit: QuantumCircuit) -> tuple[_Structure, list[float]] | None:
    """Separate a circuit into its structure and its angles.

    :returns: ``None`` if the circuit contains anything but standard gates with numbers,
        measurements, resets and barriers
    """
    numbers = {bit: n for n, bit in enumerate((*circuit.qubits, *circuit.clbits))}
    angles: list[float] = []
    steps = []
    for one in circuit.data:
        given = one.params
        if one.is_standard_gate():
            for angle in given:
                if not isinstance(angle, float | int) or not math.isfinite(angle):
                    return None
                angles.append(float(angle))
        elif given or one.name not in ("measure", "reset", "barrier"):
            return None
        bits = [numbers[bit] for bit in (*one.qubits, *one.clbits)]
        steps.append((one.name, len(given), bits))
    registers = [
        (register.name, [numbers[bit] for bit in register])
        for register in (*circuit.qregs, *circuit.cregs)
    ]
    placed = circuit.layout is not None
    size = circuit.num_qubits, circuit.num_clbits
    return _Structure(steps, registers, size, placed), angles


def _in_order(circuit: QuantumCircuit) -> tuple[QuantumCircuit, Sequence[int]]:
    """Return an equivalent circuit whose bits are in the order of its registers.

    OpenQASM declares bits in registers. In Qiskit, the bits of a circuit may be in any order,
    in no register or in several registers, and counts follow the circuit's order.

    :returns: the circuit, and for each bit of the given circuit, last bit first, its place in
        the QPU's bit strings
    :raises InputError: if a circuit whose registers share bits has conditions
    """
    bits = order = circuit.clbits
    registered = [bit for register in circuit.cregs for bit in register]
    qubits = [qubit for register in circuit.qregs for qubit in register]
    if registered != bits or qubits != circuit.qubits:
        written = QuantumCircuit(circuit.num_qubits, name=circuit.name)
        if not any(hasattr(one.operation, "blocks") for one in circuit.data):
            written.add_register(ClassicalRegister(len(bits), "c"))
        elif len({*registered}) < len(registered):
            raise InputError(
                f"circuit {circuit.name!r}: its registers share bits, so that its "
                "conditions cannot be written in OpenQASM: use others"
            )
        else:
            loose = [bit for bit in bits if bit not in {*registered}]
            order = [*loose, *registered]
            written.add_bits([Clbit() for _ in loose])
            for register in circuit.cregs:
                written.add_register(ClassicalRegister(len(register), register.name))
        actual = dict(zip(order, written.clbits, strict=True))
        try:
            written.compose(
                circuit, written.qubits, [actual[bit] for bit in bits], inplace=True
            )
        except QiskitError as error:
            raise InputError(f"circuit {circuit.name!r}: {described(error)}") from error
        circuit = written
    places = {bit: len(bits) - 1 - n for n, bit in enumerate(order)}
    return circuit, [places[bit] for bit in reversed(bits)]


def _openqasm(circuit: QuantumCircuit) -> str:
    try:
        text: str = qasm3.dumps(circuit)
        return text
    except (QiskitError, ArithmeticError, ValueError) as error:
        wrong = (
            f"{one.name} has the angle {angle}"
            for one in circuit.data
            for angle in one.params
            if isinstance(angle, float) and not math.isfinite(angle)
        )
        raise InputError(f"circuit {circuit.name!r}: {next(wrong, error)}") from error

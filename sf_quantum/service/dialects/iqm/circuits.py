"""Circuits as IQM's clients send them, and their conversion to and from OpenQASM 3.

The OpenQASM text has a statement for each instruction, on the QPU's physical qubits. Its
first comment is one line of JSON with data that OpenQASM cannot express: the circuit's name
and metadata, and the keys of its measurements in their order, with their numbers of bits.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from sf_quantum import structs
from sf_quantum.files import JSON, listing
from sf_quantum.service.dialects.iqm.architecture import (
    IMPLEMENTATIONS,
    Architecture,
    qubit_name,
)
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Submission

#: maximum numbers of circuits per job, instructions per circuit, shots per circuit, and
#: circuits times shots per job; clients can query these
CIRCUITS, INSTRUCTIONS, SHOTS, EXECUTIONS = 200, 10_000, 100_000, 1_000_000
# maximum size of a job's options, without its circuits, since every list of jobs reads them
OPTIONS_BYTES = 16 * 1024
# maximum number of entries in a mapping of qubit names
MAX_QUBITS = 10_000
# maximum number of a name's characters, and of qubits, that a message quotes
SHOWN, SHOWN_QUBITS = 100, 5
# prx as iqm-client defines it, up to a global phase
PRX = "gate prx(t, p) q { U(t, p - pi/2, pi/2 - p) q; }"
# names of the arguments of each operation
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "prx": ("angle", "phase"),
    "cz": (),
    "measure": (),
    "barrier": (),
    "delay": ("duration",),
}
# names of angles in radians, by the names of the same angles in full turns
TURNS = {"angle_t": "angle", "phase_t": "phase"}
MOST_TURNS = 1e300
QUBITS = {"prx": 1, "cz": 2}
_STATEMENT = re.compile(r"(?:m\[\d+\] = )?(\w+)(?:\(([^)]*)\)|\[([^]]*)ns\])? (.*);")
_QUBIT = re.compile(r"q\[(\d+)\]")
_NANO = 1e9
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=1000)]


def _read_mapping(mapping: JsonValue) -> JsonValue:
    """Convert a mapping of qubits from IQM's list of pairs, if it has this form."""
    if isinstance(mapping, dict | list) and len(mapping) > MAX_QUBITS:
        raise ValueError(f"more than {MAX_QUBITS} qubits")
    if not isinstance(mapping, list):
        return mapping
    physical: dict[str, JsonValue] = {}
    for pair in mapping:
        name = pair.get("logical_name") if isinstance(pair, dict) else None
        if not isinstance(pair, dict) or not isinstance(name, str):
            raise ValueError("expected logical_name and physical_name")
        if name in physical:
            raise ValueError(f"{name[:SHOWN]!r} stands twice")
        physical[name] = pair.get("physical_name")
    return physical


def _convert_to_radians(args: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Convert angles in full turns, which older clients send, into radians."""
    for turns, angle in TURNS.items():
        if turns not in args:
            continue
        if angle in args:
            raise ValueError(f"give {angle} or {turns}, not both")
        given = args.pop(turns)
        if isinstance(given, int | float) and not isinstance(given, bool):
            # larger angles are refused later, as infinite: their product would overflow
            given = given * math.tau if abs(given) < MOST_TURNS else math.inf
        args[angle] = given
    return args


class Instruction(BaseModel):
    """An operation on qubits, its locus; older clients name the locus ``qubits``."""

    name: Name
    locus: Annotated[list[Name], Field(fail_fast=True)] = Field(
        min_length=1, validation_alias=AliasChoices("locus", "qubits")
    )
    args: Annotated[dict[str, JsonValue], AfterValidator(_convert_to_radians)] = Field(
        default_factory=dict
    )
    implementation: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_qubits(cls, content: JsonValue) -> JsonValue:
        if isinstance(content, dict) and "locus" in content and "qubits" in content:
            raise ValueError("give locus or qubits, not both")
        return content


class Circuit(BaseModel):
    """A circuit."""

    name: Name
    instructions: Annotated[list[Instruction], Field(fail_fast=True)] = Field(
        min_length=1, max_length=INSTRUCTIONS
    )
    metadata: dict[str, JsonValue] | None = None


def _refuse_qir(circuit: JsonValue) -> JsonValue:
    if isinstance(circuit, str):
        raise ValueError("QIR is not supported by this device")
    return circuit


class CircuitJob(BaseModel):
    """A batch of circuits; as in IQM's API, unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    circuits: Annotated[
        list[Annotated[Circuit, BeforeValidator(_refuse_qir)]], Field(fail_fast=True)
    ] = Field(min_length=1, max_length=CIRCUITS)
    shots: int = Field(default=1, ge=1, le=SHOTS, strict=True)
    calibration_set_id: UUID | None = None
    qubit_mapping: Annotated[dict[str, Name] | None, BeforeValidator(_read_mapping)] = (
        None
    )
    max_circuit_duration_over_t2: float | None = Field(
        default=None, ge=0, allow_inf_nan=False
    )
    heralding_mode: Literal["none"] = "none"
    move_gate_validation: str | None = None
    move_gate_frame_tracking: str | None = None
    active_reset_cycles: None = None
    dd_mode: Literal["disabled", "enabled"] = "disabled"
    dd_strategy: dict[str, JsonValue] | None = None

    def submission(self, chip: Architecture, tag: str | None = None) -> Submission:
        """Convert the batch into a submission for the queue.

        :param tag: tag of the request
        :raises Refused: 400 if a circuit does not fit on the QPU
        """
        if (names := self.qubit_mapping) and len({*names.values()}) < len(names):
            # otherwise, the circuit could be shown with other names than it was sent with
            raise Refused(400, "two names have the same qubit", "qubit_mapping")
        if len(self.circuits) * self.shots > EXECUTIONS:
            detail = f"circuits times shots exceed {EXECUTIONS}"
            raise Refused(400, detail, "shots")
        texts: list[JSON] = [
            text(circuit, index, chip, self.qubit_mapping)
            for index, circuit in enumerate(self.circuits)
        ]
        options = self.model_dump(mode="json", exclude={"circuits"}, exclude_unset=True)
        metadata = Metadata(tag, options).to_json()
        if len(json.dumps(metadata)) > OPTIONS_BYTES:
            raise Refused(400, f"the options exceed {OPTIONS_BYTES} bytes")
        return Submission(
            "circuit",
            texts if len(texts) > 1 else texts[0],
            {"num_reads": self.shots},
            # IQM has no idempotency keys: a repeated request submits a second job
            f"iqm-{secrets.token_hex(16)}",
            dialect="iqm",
            implicit_lease=True,
            metadata=metadata,
        )


@dataclass(frozen=True)
class Metadata:
    """What a job keeps for IQM's clients.

    :param tag: tag of the request
    :param options: the fields that the client has set, without the circuits
    :param messages: messages about the submission
    """

    tag: str | None = None
    options: dict[str, JSON] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, job: Job | Submission) -> Metadata:
        return structs.read(cls, job.metadata or {})

    @property
    def calibration(self) -> JSON:
        """The calibration set that the client has asked for."""
        return self.options.get("calibration_set_id")

    @property
    def mapping(self) -> dict[str, str] | None:
        """The names of the QPU's qubits, by the circuits' names, if there are such."""
        names = self.options.get("qubit_mapping")
        if not isinstance(names, dict):
            return None
        return {logical: str(physical) for logical, physical in names.items()}

    def to_json(self) -> dict[str, JSON]:
        """Return the metadata of a submission."""
        content: dict[str, JSON] = {} if self.tag is None else {"tag": self.tag}
        content["options"] = self.options
        return content | ({"messages": [*self.messages]} if self.messages else {})


def read(content: JSON, chip: Architecture, tag: str | None) -> Submission:
    """Read the content of a body.

    :param tag: tag of the request
    :raises Refused: 400 if the content is invalid, or a circuit does not fit on the QPU
    """
    try:
        job = CircuitJob.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(400, str(first["msg"]), where or None) from error
    return job.submission(chip, tag)


@dataclass(frozen=True)
class Reading:
    """What :func:`read` needs in another process."""

    architecture: Architecture
    tag: str | None


def submission_of(content: JSON, more: Mapping[str, JSON]) -> Submission:
    """Read the content of a body like :func:`read`; called in another process.

    :param more: the fields of a :class:`Reading`
    """
    reading = TypeAdapter(Reading).validate_python(more)
    return read(content, reading.architecture, reading.tag)


def text(
    circuit: Circuit,
    index: int,
    chip: Architecture,
    mapping: Mapping[str, str] | None = None,
) -> str:
    """Write a circuit as OpenQASM 3.

    :param index: index of the circuit in its batch, for messages
    :param mapping: names of the QPU's qubits, by the names in the circuit
    :raises Refused: 400, with the message of ``iqm-client``, if the circuit does not fit on
        the QPU
    """
    field = f"circuits.{index}"
    keys: dict[str, int] = {}
    lines: list[str] = []
    bits = 0
    for number, instruction in enumerate(circuit.instructions):
        try:
            name = _operation(instruction)
            qubits = _qubits(instruction, name, chip, mapping)
            if name == "measure":
                key = instruction.args.get("key")
                if not isinstance(key, str) or not key:
                    raise ValueError("'measure' needs the argument 'key', a text")
                if key in keys:
                    raise ValueError(f"non-unique measurement key {_quote(key)}")
                keys[key] = len(qubits)
                for qubit in qubits:
                    lines.append(f"m[{bits}] = measure q[{qubit}];")
                    bits += 1
            else:
                lines.append(_statement(instruction, name, qubits))
        except ValueError as error:
            where = f"{field}.instructions.{number}"
            raise Refused(400, str(error), where) from error
    if not bits:
        raise Refused(400, "the circuit measures nothing", field)
    about: dict[str, JSON] = {
        "name": circuit.name,
        "keys": [[*instruction] for instruction in keys.items()],
    }
    if circuit.metadata is not None:
        about["metadata"] = circuit.metadata
    head = f'OPENQASM 3.0; include "stdgates.inc";\n// {json.dumps(about)}\n{PRX}\nqubit[{chip.labels}] q;'
    return "\n".join((head, f"bit[{bits}] m;", *lines, ""))


def _operation(instruction: Instruction) -> str:
    name = "measure" if instruction.name == "measurement" else instruction.name
    if name not in ARGUMENTS:
        if name in ("cc_prx", "move", "reset"):
            raise ValueError(
                f"Operation '{name}' is not supported by the dynamic quantum architecture."
            )
        raise ValueError(f"Unknown quantum operation {_quote(name)}.")
    if instruction.implementation not in (None, IMPLEMENTATIONS.get(name)):
        raise ValueError(
            f"Operation '{name}' implementation {_quote(str(instruction.implementation))} "
            "is not supported by the dynamic quantum architecture."
        )
    return name


def _qubits(
    instruction: Instruction,
    name: str,
    chip: Architecture,
    mapping: Mapping[str, str] | None,
) -> list[int]:
    """Return the numbers of an instruction's qubits."""
    if mapping is not None:
        if missing := [qubit for qubit in instruction.locus if qubit not in mapping]:
            detail = "is not found in the provided qubit mapping"
            raise ValueError(f"The qubit {_quote(missing[0])} {detail}.")
        locus = [mapping[qubit] for qubit in instruction.locus]
    else:
        locus = instruction.locus
    for qubit in locus:
        if qubit not in chip.numbers:
            raise ValueError(f"{_quote(qubit)} is not allowed as locus for '{name}'")
    qubits = [chip.numbers[qubit] for qubit in locus]
    # not shortened: the names of the QPU's qubits are short
    shown = f"{tuple(locus[:SHOWN_QUBITS])}"
    if len({*qubits}) < len(qubits):
        raise ValueError(f"{shown} has a qubit twice")
    is_wrong_number = len(qubits) != QUBITS.get(name, len(qubits))
    if is_wrong_number or (name == "cz" and (qubits[0], qubits[1]) not in chip.pairs):
        raise ValueError(f"{shown} is not allowed as locus for '{name}'")
    return qubits


def _quote(text: str) -> str:
    return repr(text[:SHOWN])


def _statement(instruction: Instruction, name: str, qubits: Sequence[int]) -> str:
    values = [_number(instruction, argument) for argument in ARGUMENTS[name]]
    operands = ", ".join(f"q[{qubit}]" for qubit in qubits)
    match name:
        case "prx":
            return f"prx({values[0]!r}, {values[1]!r}) {operands};"
        case "delay":
            if values[0] < 0:
                raise ValueError("'duration' is negative")
            return f"delay[{values[0] * _NANO!r}ns] {operands};"
    return f"{name} {operands};"


def _number(instruction: Instruction, argument: str) -> float:
    value = instruction.args.get(argument)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"'{instruction.name}' needs the argument '{argument}', a number"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"'{argument}' is not finite")
    return number


def _keys(value: JSON) -> list[tuple[str, int]]:
    pairs = (item for item in listing(value) if isinstance(item, list))
    return [(str(key), structs.whole(bits)) for key, bits in pairs]


@dataclass(frozen=True)
class _Header:
    """The comment of a text, see the module."""

    name: str
    keys: Annotated[list[tuple[str, int]], _keys]
    metadata: JSON = None


def _header(text: str) -> _Header:
    _, comment, _ = text.split("\n", 2)
    return structs.read(_Header, json.loads(comment.removeprefix("// ")))


def keys(text: str) -> list[tuple[str, int]]:
    """List the keys of the measurements in a text, with their numbers of bits."""
    return _header(text).keys


def circuit(text: str, mapping: Mapping[str, str] | None) -> dict[str, JSON]:
    """Convert a text back to the circuit as it was submitted."""
    header = _header(text)
    names = {physical: logical for logical, physical in (mapping or {}).items()}
    return {
        "name": header.name,
        "instructions": [*_instructions(text, names)],
        "metadata": header.metadata,
    }


def _instructions(text: str, names: Mapping[str, str]) -> Iterator[JSON]:
    remaining_keys = iter(keys(text))
    key, bits = next(remaining_keys)
    measured: list[JSON] = []
    for line in text.splitlines()[5:]:
        match = _STATEMENT.fullmatch(line)
        if match is None:
            continue
        name, angles, duration, operands = match.groups()
        physical = [qubit_name(int(number)) for number in _QUBIT.findall(operands)]
        locus: list[JSON] = [names.get(qubit, qubit) for qubit in physical]
        values = [float(angle) for angle in angles.split(",")] if angles else []
        if duration:
            values = [float(duration) / _NANO]
        args: dict[str, JSON] = dict(zip(ARGUMENTS[name], values, strict=True))
        if name == "measure":
            measured += locus
            if len(measured) < bits:
                continue
            locus, measured, args = measured, [], {"key": key}
            key, bits = next(remaining_keys, ("", 0))
        yield {"name": name, "locus": locus, "args": args, "implementation": None}

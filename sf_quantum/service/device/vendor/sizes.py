"""The sizes of circuits, sequences and photonic experiments, read without their parsers."""

from __future__ import annotations

import re

from sf_quantum.files import JSON, mapping, parse_json
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import Kind
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.circuits import texts as circuit_texts
from sf_quantum.service.device.emulator.photons import photonic
from sf_quantum.service.domain.jobs import Size

# A declaration of qubits, in OpenQASM 3 or in OpenQASM 2.
_REGISTER = re.compile(
    r"^[ \t]*(?:qubit[ \t]*\[[ \t]*(\d{1,9})[ \t]*\]"
    r"|qreg[ \t]+\w+[ \t]*\[[ \t]*(\d{1,9})[ \t]*\])",
    re.MULTILINE,
)
_NAMES = re.compile(
    r"^[ \t]*(?:qubit[ \t]*\[[ \t]*\d+[ \t]*\][ \t]*(\w+)|qreg[ \t]+(\w+))",
    re.MULTILINE,
)


def checked(kind: Kind, content: JSON, description: Description) -> Size:
    """Return the size of a payload, other than a problem, if it fits on a device.

    :raises FieldError: if it does not fit; the error names its kind
    """
    most = description.qubits
    if kind == "photonic":
        experiment = photonic.experiment(content)
        if 0 < most < experiment.modes:
            detail = f"{experiment.modes} modes; the device has {most}"
            raise FieldError("photonic.input_state", detail)
        return photonic.size(experiment)
    texts, what, circuits, native = [content], "atoms", 1, False
    if kind == "circuit":
        listed, circuits = circuit_texts(content)
        texts, what = [*listed], "qubits"
        native = bool(description.native_gates)
        if native and description.topology is not None:
            # a register may have all qubits, including those out of service
            most = description.topology.labels
    largest = 0
    for text in texts:
        if not isinstance(text, str):
            raise FieldError(kind, "expected text")
        count = qubits(text) if kind == "circuit" else atoms(text)
        if 0 < most < count:
            raise FieldError(kind, f"{count} {what} do not fit on {most} qubits")
        largest = max(largest, min(count, operands(text)) if native else count)
    return Size(circuits=circuits, qubits=largest)


def qubits(text: str) -> int:
    """Count the qubits that a circuit declares, by a pattern for its declarations."""
    if "/*" in text:  # what is in a comment is not declared
        return 0
    return sum(int(new or old) for new, old in _REGISTER.findall(text))


def operands(text: str) -> int:
    """Count the qubits that the statements of a circuit name, likewise by a pattern.

    If a statement names a whole register, all declared qubits count.
    """
    names = {new or old for new, old in _NAMES.findall(text)}
    words = re.findall(r"\b(\w+)\b(?:\[[ \t]*(\d+)[ \t]*\])?", _NAMES.sub("", text))
    used = {(name, index) for name, index in words if name in names}
    return len(used) if all(index for _, index in used) else qubits(text)


def atoms(text: str) -> int:
    """Count the atoms of a sequence.

    :raises FieldError: if it is not JSON
    """
    try:
        register = mapping(parse_json(text)).get("register")
    except ValueError as error:
        detail = "expected Pulser's abstract representation, JSON"
        raise FieldError("sequence", detail) from error
    return len(register) if isinstance(register, list) else 0

"""The sizes of circuits, sequences and photonic experiments, without their full parsers."""

from __future__ import annotations

import re

from sf_quantum.files import JSON, mapping, parse_json
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import Kind
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.circuits import texts as circuit_texts
from sf_quantum.service.device.emulator.photons import photonic
from sf_quantum.service.domain.jobs import Size

# Declarations of qubits that contain their number, in OpenQASM 3 or in OpenQASM 2; as all
# patterns but the last two, for texts in which all white space is single blanks.
_REGISTER = re.compile(
    r"\bqubit\b ?(?:\[ ?(\d{1,9}) ?\])? ?(\w+) ?;"
    r"|\bqreg (\w+) ?(?:\[ ?(\d{1,9}) ?\])? ?;"
)
_DECLARES = re.compile(r"\b(?:qubit|qreg)\b")
_PHYSICAL = re.compile(r"\$0*(\d+)")
_OPERAND = re.compile(r"\b(\w+)\b(?: ?\[ ?(\d+) ?\])?")
# Strings, since they may contain what begins a comment, and comments.
_TEXT = re.compile(r"""("[^"\n]*"|'[^'\n]*')|//[^\n]*|/\*.*?(?:\*/|\Z)""", re.DOTALL)
# Lines and blocks with a syntax of their own, in which nothing begins a comment.
_FOREIGN = re.compile(r"\b(?:pragma|cal|defcal)\b|^[ \t]*@", re.MULTILINE)


def checked(kind: Kind, content: JSON, description: Description) -> Size:
    """Return the size of a payload other than a problem, if the payload fits on a device.

    :raises FieldError: if the payload does not fit; the error names its kind
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
    largest, are_known = 0, True
    for text in texts:
        if not isinstance(text, str):
            raise FieldError(kind, "expected text")
        count = qubits(text) if kind == "circuit" else atoms(text)
        if 0 < most < count:
            raise FieldError(kind, f"{count} {what} do not fit on {most} qubits")
        are_known = are_known and count > 0
        largest = max(largest, min(count, operands(text)) if native else count)
    return Size(circuits=circuits, qubits=largest if are_known else 0)


def qubits(text: str) -> int:
    """Count the qubits of a circuit, without a parser; 0 if some may be missed."""
    bare = _without_comments(text)
    if _FOREIGN.search(bare):
        return 0
    bare = " ".join(bare.split())
    sizes = [int(new or old or 1) for new, _, _, old in _REGISTER.findall(bare)]
    if len(sizes) < len(_DECLARES.findall(bare)):
        return 0
    return sum(sizes) + len({*_PHYSICAL.findall(bare)})


def operands(text: str) -> int:
    """Count the qubits that the statements of a circuit name, likewise without a parser.

    If a statement names a whole register, all declared qubits are counted.
    """
    bare = " ".join(_without_comments(text).split())
    names = {new or old for _, new, old, _ in _REGISTER.findall(bare)}
    words = _OPERAND.findall(_REGISTER.sub("", bare))
    used = {(name, index) for name, index in words if name in names}
    if not all(index for _, index in used):
        return qubits(text)
    return len(used) + len({*_PHYSICAL.findall(bare)})


def _without_comments(text: str) -> str:
    return _TEXT.sub(lambda one: '""' if one[1] else " ", text)


def atoms(text: str) -> int:
    """Count the atoms of a sequence.

    :raises FieldError: if the sequence is not JSON
    """
    try:
        register = mapping(parse_json(text)).get("register")
    except ValueError as error:
        detail = "expected Pulser's abstract representation, JSON"
        raise FieldError("sequence", detail) from error
    return len(register) if isinstance(register, list) else 0

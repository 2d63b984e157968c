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

# The patterns look for ASCII words, so a word counts even if it follows a character that only
# the vendor's parser skips. No two attempts of a pattern read the same long part of a text, so
# the time is linear in the length of a hostile text, too.
_NAME = r"[\w\x80-\U0010ffff]++"
# Declarations of qubits that contain their number, in OpenQASM 3 or in OpenQASM 2; as all
# patterns but the last two, for texts in which all white space is single blanks.
_REGISTER = re.compile(
    rf"\bqubit\b ?(?:\[ ?(\d{{1,9}}) ?\])? ?({_NAME}) ?;"
    rf"|\bqreg ({_NAME}) ?(?:\[ ?(\d{{1,9}}) ?\])? ?;",
    re.ASCII,
)
_DECLARES = re.compile(r"\b(?:qubit|qreg)\b", re.ASCII)
# The definition of a gate: its parameters and its body, without blocks in it.
_GATE = re.compile(
    rf"(?:\A|(?<=[;}}])) ?gate {_NAME}([\w ,()\x80-\U0010ffff]*+)\{{([^{{}}]*+)\}}",
    re.ASCII,
)
_PHYSICAL = re.compile(r"\$0*(\d+)", re.ASCII)
_OPERAND = re.compile(r"\b(\w+)\b(?: ?\[ ?(\d+) ?\])?", re.ASCII)
# Comments, and strings and versions: nothing in or directly before those begins a comment.
_TEXT = re.compile(
    r"""\binclude\s*+(?:"[^"\t\n]+"|'[^'\t\n]+')|"[01_]+"|\bOPENQASM\s++[\d.]+"""
    r"|//[^\n]*|/\*.*?(?:\*/|\Z)",
    re.ASCII | re.DOTALL,
)
# What has a syntax of its own: there, comments may begin or end elsewhere than they seem to.
_FOREIGN = re.compile(
    r"""\b(?:pragma|cal|defcal|defcalgrammar|include|OPENQASM)\b|["']|@\S|^[ \t]*@""",
    re.ASCII | re.MULTILINE,
)
# Why the number of qubits of a job is unknown.
_UNCERTAIN: dict[Kind, str] = {
    "circuit": "the number of qubits is not certain: declare them as in qubit[5] q; and "
    "without pragmas or annotations",
    "sequence": "the number of qubits is not certain",
}


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
    largest, is_certain = 0, True
    for text in texts:
        if not isinstance(text, str):
            raise FieldError(kind, "expected text")
        count = qubits(text) if kind == "circuit" else atoms(text)
        if count is None:
            is_certain = False
            continue
        if 0 < most < count:
            raise FieldError(kind, f"{count} {what} do not fit on {most} qubits")
        used = operands(text) if native else count
        largest = max(largest, count if used is None else min(count, used))
    if is_certain:
        return Size(circuits=circuits, qubits=largest)
    return Size(circuits=circuits, qubits_problem=_UNCERTAIN[kind])


def qubits(text: str) -> int | None:
    """Count the qubits of a circuit, without a parser.

    :returns: the number of qubits; ``None`` if some may be missed, or none is declared, since
        such a text may be in another language
    """
    return _declared(_bare(text))


def _declared(bare: str) -> int | None:
    """Do as :func:`qubits`, in a circuit without comments."""
    sizes = [int(new or old or 1) for new, _, _, old in _REGISTER.findall(bare)]
    if len(sizes) < len(_DECLARES.findall(bare)):
        return None
    return sum(sizes) + len({*_PHYSICAL.findall(bare)}) or None


def operands(text: str) -> int | None:
    """Count the qubits that the statements of a circuit name, likewise without a parser.

    If a statement names a whole register, all declared qubits are counted. A parameter in
    the definition of a gate is no qubit, even if it has the name of a register.
    """
    bare = _bare(text)
    if (declared := _declared(bare)) is None:
        return None
    names = {new or old for _, new, old, _ in _REGISTER.findall(bare)}
    statements = _REGISTER.sub(";", _GATE.sub(lambda one: _kept(one, names), bare))
    words = _OPERAND.findall(statements)
    used = {(name, index) for name, index in words if name in names}
    if not all(index for _, index in used) or not all(map(str.isascii, names)):
        return declared
    return len(used) + len({*_PHYSICAL.findall(bare)})


def _kept(gate: re.Match[str], registers: set[str]) -> str:
    """Return the definition of a gate if its body names a register; otherwise nothing."""
    parameters, body = gate.groups()
    named = {word for word, _ in _OPERAND.findall(body)} & registers
    return gate[0] if named - {*re.findall(r"[^ ,()]+", parameters)} else ""


def _bare(text: str) -> str:
    """Return a circuit without comments; nothing if it is not certain what they are."""
    text = text.replace("\r\n", "\n")
    bare = _TEXT.sub(" ", text)
    # for some parsers, a carriage return ends a comment
    return "" if "\r" in text or _FOREIGN.search(bare) else " ".join(bare.split())


def atoms(text: str) -> int | None:
    """Count the atoms of a sequence; ``None`` if it has no list of them.

    :raises FieldError: if the sequence is not JSON
    """
    try:
        register = mapping(parse_json(text)).get("register")
    except ValueError as error:
        detail = "expected Pulser's abstract representation, JSON"
        raise FieldError("sequence", detail) from error
    return len(register) if isinstance(register, list) else None

"""The size of a circuit or a sequence, as far as a look at its text tells."""

from __future__ import annotations

import re

from sf_quantum.files import mapping, parse_json
from sf_quantum.samplers.problem import FieldError

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


def qubits(text: str) -> int:
    """Count the qubits that a circuit declares, as far as a look at its lines tells."""
    if "/*" in text:  # what is in a comment is not declared
        return 0
    return sum(int(new or old) for new, old in _REGISTER.findall(text))


def operands(text: str) -> int:
    """Count the qubits that statements of a circuit name, likewise.

    With other than single ones, such as a whole register, all that it has count.
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

"""What a held job may ask for: the words, bounds and hints of its request.

A job of Slurm has the words in its comment, one of Flux in an attribute, and the gate of OpenPBS
makes them of its resources.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from sf_quantum.errors import InputError
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.text import unknown

_WORD = re.compile(r"(?:^|[\s,])qpu(?:-(\w*))?=([^\s,]*)")
_WHOLE = re.compile(r"[1-9]\d{0,8}")
_SECONDS = re.compile(r"(?=.*[1-9])\d{1,9}(\.\d{1,9})?")
_BOUNDS = {
    "seconds": (_SECONDS, "a number of seconds above 0"),
    "shots": (_WHOLE, "a whole number of at least 1"),
    "qubits": (_WHOLE, "a whole number of at least 1"),
}
#: name of a QPU and bounds of its lease; the name is empty if the job requests none
JobRequest: TypeAlias = tuple[str, LeaseHints]
NO_REQUEST: JobRequest = "", LeaseHints()


def parse_request(text: str) -> JobRequest:
    """Read the QPU and the bounds of a job, such as ``qpu=fresnel qpu-shots=100``.

    :raises InputError: if a word is malformed, or there are bounds and no QPU
    """
    words = dict(_WORD.findall(text))
    qpu = words.pop("", "")
    for word, value in words.items():
        if word not in _BOUNDS:
            raise InputError(
                unknown("bound", f"qpu-{word}", [f"qpu-{name}" for name in _BOUNDS])
            )
        pattern, expected = _BOUNDS[word]
        if not pattern.fullmatch(value):
            raise InputError(f"qpu-{word}: expected {expected}, not {value!r}")
    if words and not qpu:
        raise InputError("bounds without a QPU; name one: qpu=NAME")
    seconds = float(words["seconds"]) if "seconds" in words else None
    return qpu, LeaseHints(
        expected_seconds=seconds,
        max_qpu_seconds=seconds,
        max_shots=int(words["shots"]) if "shots" in words else None,
        max_qubits=int(words["qubits"]) if "qubits" in words else None,
    )

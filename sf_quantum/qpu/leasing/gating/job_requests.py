"""The requests of held jobs: the QPU, and the bounds and hints of its lease.

A Slurm job has the words of its request in its comment, a Flux job in attributes; for OpenPBS,
the gate makes the words from a job's resources.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from sf_quantum.errors import InputError
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.text import unknown

# A word of a request: its key, which is empty for the QPU's name, and its value.
_WORD = re.compile(r"(?:^|[\s,])qpu(?:-(\w*))?=([^\s,]*)")
_WHOLE = re.compile(r"[1-9]\d{0,8}")
_SECONDS = re.compile(r"(?=.*[1-9])\d{1,9}(\.\d{1,9})?")
_BOUNDS = {
    "seconds": (_SECONDS, "a number of seconds above 0"),
    "shots": (_WHOLE, "a whole number of at least 1"),
    "qubits": (_WHOLE, "a whole number of at least 1"),
}
#: name of a QPU and bounds of its lease; the name is empty if the job requests no QPU
JobRequest: TypeAlias = tuple[str, LeaseHints]
NO_REQUEST: JobRequest = "", LeaseHints()


def parse_request(text: str) -> JobRequest:
    """Read the QPU and the bounds of a job, such as ``qpu=fresnel qpu-shots=100``.

    :raises InputError: if a word is malformed, or the request has bounds but no QPU
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

"""A process that checks or simulates one pulse sequence with Pulser.

It is separate from the service because Pulser and QuTiP take a second and 150 MB to
import, simulations cannot be interrupted, and a short sequence may need more memory than
there is.

The request is a line of JSON on standard input,
``{"sequence", "qubits", "shots", "seed"}``; the answer on standard output is
``{"counter"}`` or ``{"error"}``. Without ``shots`` the sequence is only checked. Without
``sequence`` the answer is the device, ``{"specs"}``.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from pulser import Sequence
    from pulser.devices._device_datacls import BaseDevice

# A state of n atoms has 2^n amplitudes: 12 atoms take 2 s, 14 take 15 s, 16 take 75 s
# (2 us of constant pulse, one core).
ATOMS = 14
CPU_SECONDS = 300
MEMORY_BYTES = 4 << 30


def main() -> None:
    """Answer one request."""
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore")
    sys.stdout.write(json.dumps(answered(**json.loads(line))))
    sys.stdout.flush()
    # a regular exit would wait for the lock on standard input, which the thread holds
    os._exit(0)


def answered(
    qubits: int, sequence: str | None = None, shots: int | None = None, seed: int = 0
) -> dict[str, JSON]:
    """Answer a request; errors are part of the answer."""
    try:
        if sequence is None:
            return {"specs": _specs(qubits)}
        parsed = _parse(sequence)
        _check(parsed, qubits)
        if shots is None:
            return {"counter": {}}
        return {"counter": {**_simulate(parsed, shots, seed)}}
    except InputError as refused:
        return {"error": str(refused)}
    except MemoryError:
        limit = f"{MEMORY_BYTES >> 30} GiB"
        return {"error": f"the simulation needs more than {limit} of memory"}
    except Exception as error:  # noqa: BLE001 - Pulser raises errors of any type
        return {"error": f"Pulser cannot parse the sequence ({type(error).__name__})"}


def _end_with_parent() -> None:
    # the pipe is closed when the service ends
    sys.stdin.buffer.read()
    os._exit(1)


def _specs(qubits: int) -> str:
    from pulser import AnalogDevice

    # The name is unchanged, since clients compare it with that of a sequence's device.
    return replace(AnalogDevice, max_atom_num=min(qubits, ATOMS)).to_abstract_repr()


def _parse(text: str) -> Sequence[BaseDevice]:
    from jsonschema.exceptions import ValidationError
    from pulser import Sequence
    from pulser.exceptions.base import PulserError

    try:
        return Sequence.from_abstract_repr(text)
    except ValidationError as error:
        raise InputError(_deepest(error)) from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {_one_line(error)}") from error
    except (PulserError, ValueError, RuntimeError) as error:
        raise InputError(_one_line(error)) from error


def _deepest(error: ValidationError) -> str:
    # The schema has alternatives: report the deepest error of the closest one.
    while error.context:
        branches: dict[str | int, list[ValidationError]] = {}
        for cause in error.context:
            branches.setdefault(cause.relative_schema_path[0], []).append(cause)
        closest = min(branches.values(), key=len)
        error = max(closest, key=lambda cause: len(cause.absolute_path))
    path = ".".join(str(part) for part in error.absolute_path)
    return f"{path}: {error.message:.200}".removeprefix(": ")


def _check(sequence: Sequence[BaseDevice], qubits: int) -> None:
    if sequence.is_parametrized() or sequence.is_register_mappable():
        raise InputError("the sequence has variables: build() it with their values")
    if not sequence.declared_channels:
        raise InputError("the sequence declares no channel")
    atoms = len(sequence.register.qubit_ids)
    if atoms > qubits:
        raise InputError(f"{atoms} atoms do not fit on {qubits} qubits")
    if atoms > ATOMS:
        raise InputError(f"{atoms} atoms; at most {ATOMS} can be simulated")
    if sequence.get_duration() == 0:
        raise InputError("the sequence has no pulse")


def _simulate(sequence: Sequence[BaseDevice], shots: int, seed: int) -> dict[str, int]:
    import numpy
    from pulser.backend import BitStrings, EmulationConfig
    from pulser_simulation import QutipBackendV2

    # Pulser uses numpy's global generator
    numpy.random.seed(seed % 2**32)
    observable = BitStrings(evaluation_times=[1.0], num_shots=shots)
    backend = QutipBackendV2(sequence, config=EmulationConfig(observables=[observable]))
    # the declared type includes the results of remote backends
    bits = getattr(backend.run(), "final_bitstrings")  # noqa: B009
    return {str(word): int(count) for word, count in sorted(bits.items())}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


if __name__ == "__main__":
    main()

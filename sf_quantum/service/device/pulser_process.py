"""The process that checks or simulates one pulse sequence with Pulser, and ends.

Pulser, its plots and QuTiP take a second and 150 MB to import, a simulation cannot be
interrupted, and a sequence of a few bytes can ask for more memory than there is: none of
this happens in the service.

One line of JSON comes on standard input, one goes out:
``{"sequence", "qubits", "shots", "seed"}``, then ``{"counter"}`` or ``{"error"}``;
without ``shots`` the sequence is checked only, without ``sequence`` the answer is the
device, ``{"specs"}``.
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


class _Refused(Exception):
    """A sequence that cannot run; the text goes to its user."""


def main() -> None:
    """Read one request and answer it."""
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # Pulser's warnings are for authors of sequences, not for a service's log
    warnings.simplefilter("ignore")
    answer = answered(json.loads(line))
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    # the thread that watches standard input holds its lock: a normal end would wait
    os._exit(0)


def answered(request: dict[str, JSON]) -> dict[str, JSON]:
    """Answer a request, with an error if it cannot be answered."""
    try:
        return _answer(request)
    except _Refused as refused:
        return {"error": str(refused)}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY_BYTES >> 30} GiB of memory"}
    except Exception as error:  # noqa: BLE001 - Pulser raises errors of any type
        return {"error": f"Pulser cannot read it ({type(error).__name__})"}


def _end_with_parent() -> None:
    # the service never closes this pipe, so its end is the service's end
    sys.stdin.buffer.read()
    os._exit(1)


def _answer(request: dict[str, JSON]) -> dict[str, JSON]:
    if "sequence" not in request:
        return {"specs": _specs(_int(request["qubits"]))}
    sequence = _parsed(str(request["sequence"]))
    _check(sequence, _int(request["qubits"]))
    shots = request.get("shots")
    if shots is None:
        return {"counter": {}}
    counter = _simulate(sequence, _int(shots), _int(request["seed"]))
    return {"counter": {**counter}}


def _specs(qubits: int) -> str:
    from pulser import AnalogDevice

    # Under its own name: Pulser's clients compare it with that of a sequence's device.
    return replace(AnalogDevice, max_atom_num=min(qubits, ATOMS)).to_abstract_repr()


def _parsed(text: str) -> Sequence[BaseDevice]:
    from jsonschema.exceptions import ValidationError
    from pulser import Sequence
    from pulser.exceptions.base import PulserError

    try:
        return Sequence.from_abstract_repr(text)
    except ValidationError as error:
        raise _Refused(_deepest(error)) from error
    except json.JSONDecodeError as error:
        raise _Refused(f"not JSON: {_line(error)}") from error
    except (PulserError, ValueError, RuntimeError) as error:
        raise _Refused(_line(error)) from error


def _deepest(error: ValidationError) -> str:
    # The schema is a choice of formats: the deepest error of the closest format is the
    # one that its author made.
    while error.context:
        branches: dict[str | int, list[ValidationError]] = {}
        for cause in error.context:
            branches.setdefault(cause.relative_schema_path[0], []).append(cause)
        closest = min(branches.values(), key=len)
        error = max(closest, key=lambda cause: len(cause.absolute_path))
    where = ".".join(str(part) for part in error.absolute_path)
    return f"{where}: {error.message:.200}".removeprefix(": ")


def _check(sequence: Sequence[BaseDevice], qubits: int) -> None:
    if sequence.is_parametrized() or sequence.is_register_mappable():
        raise _Refused("it has variables: build() it with their values")
    if not sequence.declared_channels:
        raise _Refused("it declares no channel")
    atoms = len(sequence.register.qubit_ids)
    if atoms > qubits:
        raise _Refused(f"{atoms} atoms do not fit on {qubits} qubits")
    if atoms > ATOMS:
        raise _Refused(f"{atoms} atoms are more than the {ATOMS} that are simulated")
    if sequence.get_duration() == 0:
        raise _Refused("it is empty: it has no pulse")


def _simulate(sequence: Sequence[BaseDevice], shots: int, seed: int) -> dict[str, int]:
    import numpy
    from pulser.backend import BitStrings, EmulationConfig
    from pulser_simulation import QutipBackendV2

    # Pulser draws from numpy's global state
    numpy.random.seed(seed % 2**32)
    observed = BitStrings(evaluation_times=[1.0], num_shots=shots)
    backend = QutipBackendV2(sequence, config=EmulationConfig(observables=[observed]))
    # a typed union with what a remote backend returns
    bits = getattr(backend.run(), "final_bitstrings")  # noqa: B009
    return {str(word): int(count) for word, count in sorted(bits.items())}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _int(value: JSON) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, not {value!r:.40}")
    return value


if __name__ == "__main__":
    main()

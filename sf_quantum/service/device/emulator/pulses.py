"""Pulse sequences in Pulser, checked and simulated.

Only separate processes import Pulser and QuTiP, which take a second and 150 MB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu.jobs import JobParameters
from sf_quantum.samplers.neutral_atom import ATOMS, contract, tensor_networks
from sf_quantum.text import described

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from pulser import Sequence
    from pulser.devices._device_datacls import BaseDevice

# A state of n atoms has 2^n amplitudes: 12 atoms take 0.4 s, 14 take 1.8 s (2 us of
# constant pulse, one core). Those of more are contracted, in steps of nanoseconds.
EXACT = ATOMS["qutip"]
STEP = 10
EXTRA = "the extra emu-mps (pip install 'sf-quantum[emu-mps]')"


def check(payload: str, qubits: int) -> dict[str, JSON]:
    """Reject a sequence that a device of some qubits cannot run, JSON text.

    :returns: ``atoms``, their number, and ``nanoseconds``, the duration
    :raises InputError: with the reason
    """
    sequence = _parse(json.loads(payload))
    _check(sequence, qubits)
    atoms = len(sequence.register.qubit_ids)
    return {"atoms": atoms, "nanoseconds": sequence.get_duration()}


def simulate(
    text: str, parameters: JobParameters, bond_dimension: int
) -> Mapping[str, int]:
    """Return the counts of the bit strings, with atoms in the order of the register.

    :raises InputError: if the sequence cannot be simulated
    """
    sequence = _parse(text)
    _check(sequence, _most())
    shots, seed = parameters.get("num_reads") or 1, parameters.get("seed") or 0
    if len(sequence.register.qubit_ids) <= EXACT:
        return _simulate(sequence, shots, seed)
    return contract(sequence, shots, seed, step=STEP, bond_dimension=bond_dimension)


def specs(_: str, qubits: int) -> dict[str, JSON]:
    """Return Pulser's abstract representation of a device."""
    from pulser import AnalogDevice

    # The name is unchanged, since clients compare it with that of a sequence's device.
    device = replace(AnalogDevice, max_atom_num=min(qubits, _most()))
    return {"specs": device.to_abstract_repr()}


def _most() -> int:
    return ATOMS["emu-mps"] if tensor_networks() else EXACT


def _parse(text: str) -> Sequence[BaseDevice]:
    from jsonschema.exceptions import ValidationError
    from pulser import Sequence
    from pulser.exceptions.base import PulserError

    try:
        return Sequence.from_abstract_repr(text)
    except ValidationError as error:
        raise InputError(_deepest(error)) from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {described(error)}") from error
    except (PulserError, ValueError, RuntimeError) as error:
        raise InputError(described(error)) from error
    except MemoryError:
        raise
    except Exception as error:
        detail = f"Pulser cannot parse the sequence ({type(error).__name__})"
        raise InputError(detail) from error


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
    if atoms > (most := _most()):
        more = "" if tensor_networks() else f", or {ATOMS['emu-mps']} with {EXTRA}"
        raise InputError(f"{atoms} atoms; at most {most} can be simulated{more}")
    bases = {channel.basis for channel in sequence.declared_channels.values()}
    if atoms > EXACT and "digital" in bases:
        detail = f"{atoms} atoms with digital channels; at most {EXACT}"
        raise InputError(f"{detail} can be simulated")
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

"""The emulated neutral-atom device, and the sequences that it accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.defaults import ATOMS
from sf_quantum.samplers.neutral_atom import tensor_networks

if TYPE_CHECKING:
    from pulser import Sequence
    from pulser.devices._device_datacls import BaseDevice

# Maximum atoms with an exact state, of 2^n amplitudes: 12 atoms take 0.4 s, 14 take 1.8 s
# (2 us of constant pulse, one core). Larger registers use matrix-product states.
EXACT = ATOMS["qutip"]
# Shortest sequence, in nanoseconds: QuTiP needs at least this many points.
SHORTEST = 4
# Longest sequence, in nanoseconds: Pulser samples each, and more would fill the memory.
LONGEST = 1_000_000
EXTRA = "the extra emu-mps (pip install 'sf-quantum[emu-mps]')"


def specs(_: str, qubits: int) -> dict[str, JSON]:
    """Return Pulser's abstract representation of a device."""
    from pulser import AnalogDevice

    # The device keeps its name, since clients compare it with the name of a sequence's
    # device.
    device = replace(AnalogDevice, max_atom_num=min(qubits, most()))
    return {"specs": device.to_abstract_repr()}


def check(sequence: Sequence[BaseDevice], qubits: int) -> None:
    """Reject a sequence that the device cannot run, or that cannot be simulated.

    :param qubits: number of qubits of the device
    :raises InputError: if the sequence is rejected; the message gives the reason
    """
    if sequence.is_parametrized() or sequence.is_register_mappable():
        raise InputError("the sequence has variables: build() it with their values")
    if not sequence.declared_channels:
        raise InputError("the sequence declares no channel")
    atoms = len(sequence.register.qubit_ids)
    if atoms > qubits:
        raise InputError(f"{atoms} atoms do not fit on {qubits} qubits")
    if atoms > (limit := most()):
        more = "" if tensor_networks() else f", or {ATOMS['emu-mps']} with {EXTRA}"
        raise InputError(f"{atoms} atoms; at most {limit} can be simulated{more}")
    bases = {channel.basis for channel in sequence.declared_channels.values()}
    if atoms > EXACT and "digital" in bases:
        detail = f"{atoms} atoms with digital channels; at most {EXACT}"
        raise InputError(f"{detail} can be simulated")
    if (nanoseconds := sequence.get_duration()) == 0:
        raise InputError("the sequence has no pulse")
    if not SHORTEST <= nanoseconds <= LONGEST:
        least = nanoseconds < SHORTEST
        detail = f"at least {SHORTEST}" if least else f"at most {LONGEST:,}"
        detail = f"the sequence takes {nanoseconds} ns; {detail}"
        raise InputError(f"{detail} can be simulated")


def most() -> int:
    """Return the maximum number of atoms that can be simulated."""
    return ATOMS["emu-mps"] if tensor_networks() else EXACT

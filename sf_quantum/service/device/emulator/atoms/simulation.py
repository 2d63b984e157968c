"""The check and the simulation of pulse sequences with Pulser.

Only separate processes import Pulser and QuTiP, which take a second and 150 MB.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import JobParameters, shots_of
from sf_quantum.samplers.neutral_atom import contract
from sf_quantum.service.device.emulator.atoms import device, parsing
from sf_quantum.text import described

if TYPE_CHECKING:
    from pulser import Sequence
    from pulser.backend.state import Eigenstate
    from pulser.devices._device_datacls import BaseDevice
    from pulser.sampler import SequenceSamples
    from pulser_simulation import QutipBackendV2

# Maximum atoms if both transitions are driven: each atom then has three levels, and 3^9 is
# about 2^14.
EXACT_OF_THREE = 9
# emu-mps's time step in nanoseconds
STEP = 10
# Maximum steps of the integrator between two readings. With QuTiP's own limit, sequences with
# strong interactions would fail; the limit on CPU time ends endless runs.
STEPS = 10**9
BYTE_ORDER_MARK = "\ufeff"
# the state that is read as 1, by measurement basis
ONE: Mapping[str, Eigenstate] = {"ground-rydberg": "r", "digital": "h", "XY": "d"}


def check(payload: str, qubits: int) -> dict[str, JSON]:
    """Reject a sequence that a device cannot run.

    A sequence that passes can be simulated: everything except the evolution is done here.

    :param payload: the sequence, as a JSON string
    :param qubits: number of qubits of the device
    :returns: ``atoms``, the number of atoms; ``levels``, the levels of each atom;
        ``nanoseconds``, the duration; and ``radians``, the largest angle by which the
        sequence turns a state
    :raises InputError: if a device cannot run the sequence; the message gives the reason
    """
    program = _program(json.loads(payload), qubits)
    if program.exact:
        program.backend(1)
    return {
        "atoms": program.atoms,
        "levels": len(program.bases) + 1,
        "nanoseconds": program.nanoseconds,
        "radians": program.radians(),
    }


def simulate(
    text: str, parameters: JobParameters, bond_dimension: int
) -> Mapping[str, int]:
    """Return the counts of the bit strings, with atoms in the order of the register.

    :raises InputError: if the sequence cannot be simulated
    """
    program = _program(text, device.most())
    shots, seed = shots_of(parameters), parameters.get("seed") or 0
    if not program.measured & program.bases:
        return {"0" * program.atoms: shots}
    if program.exact:
        return _simulate(program.backend(shots), seed)
    return contract(
        program.sequence, shots, seed, step=STEP, bond_dimension=bond_dimension
    )


@dataclass(frozen=True)
class _Program:
    """A sequence that has been checked.

    :param bases: bases of the transitions that the pulses drive
    :param measured: set of the one basis in which the atoms are read, driven or not
    """

    sequence: Sequence[BaseDevice]
    samples: SequenceSamples
    bases: Set[str]
    measured: Set[str]

    @property
    def atoms(self) -> int:
        return len(self.sequence.register.qubit_ids)

    @property
    def nanoseconds(self) -> int:
        # Pulser may return a NumPy integer, for example if a channel's target was changed
        return int(self.sequence.get_duration())

    @property
    def exact(self) -> bool:
        return self.atoms <= device.EXACT

    def backend(self, shots: int) -> QutipBackendV2:
        """Prepare the simulation.

        :raises InputError: if Pulser cannot simulate the sequence
        """
        from pulser.backend import BitStrings, EmulationConfig
        from pulser_simulation import QutipBackendV2

        (measured,) = self.measured
        observable = BitStrings(
            evaluation_times=[1.0], num_shots=shots, one_state=ONE[measured]
        )
        with _as_input_errors("Pulser cannot simulate the sequence"):
            backend = QutipBackendV2(
                self.sequence, config=EmulationConfig(observables=[observable])
            )
        backend._qutip_options["nsteps"] = STEPS
        return backend

    def radians(self) -> int:
        """Return a bound on the norm of the Hamiltonian, integrated over time.

        The larger the bound, the shorter the steps of the integrator.

        :raises InputError: if a number of the sequence is not finite
        """
        import numpy

        driven = self.samples.to_nested_dict(all_local=True)["Local"]
        total = 0.0 if self.bases == {"digital"} else self._interaction()
        total *= self.nanoseconds
        for atom in (atom for basis in driven.values() for atom in basis.values()):
            total += float(numpy.abs(atom["amp"]).sum() + numpy.abs(atom["det"]).sum())
        if not math.isfinite(total):
            raise InputError("the sequence has a number that is not finite")
        return math.ceil(total / 1000)

    def _interaction(self) -> float:
        """Return the sum of the interactions of all pairs of atoms, in rad/us."""
        import numpy

        own, of = self.sequence.device, self.sequence.register.qubits
        places = numpy.array([place.as_array() for place in of.values()])
        first, second = numpy.triu_indices(len(places), 1)
        distances = numpy.linalg.norm(places[first] - places[second], axis=1)
        # exchange is twice as strong along the magnetic field as across it
        exchange = 2 * (own.interaction_coeff_xy or 0.0), 3
        strength, power = exchange if "XY" in self.bases else (own.interaction_coeff, 6)
        with numpy.errstate(divide="ignore"):
            return float((abs(strength) / distances**power).sum())


def _program(text: str, qubits: int) -> _Program:
    """Read and check a sequence.

    :raises InputError: if the sequence cannot run; the message gives the reason
    """
    from pulser.sampler import sample

    sequence = parsing.parse(text.removeprefix(BYTE_ORDER_MARK))
    device.check(sequence, qubits)
    with _as_input_errors("Pulser cannot sample the sequence"):
        samples = sample(sequence)
    declared = sequence.get_addressed_bases()
    bases = samples.used_bases or {declared[0]}
    atoms = len(sequence.register.qubit_ids)
    if len(bases) > 1 and atoms > EXACT_OF_THREE:
        detail = f"{atoms} atoms with Rydberg and Raman pulses; at most"
        raise InputError(f"{detail} {EXACT_OF_THREE} can be simulated")
    if sequence.is_measured():
        measured = sequence.get_measurement_basis()
    else:
        # Pulser's own simulator uses this basis if a sequence has no measurement.
        measured = "digital" if len(bases) > 1 else next(iter(bases))
    return _Program(sequence, samples, bases, {measured})


@contextmanager
def _as_input_errors(what: str) -> Iterator[None]:
    """Raise any error of Pulser as an :class:`InputError` of one line."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {described(error)}") from error


def _simulate(backend: QutipBackendV2, seed: int) -> dict[str, int]:
    import numpy

    # Pulser uses NumPy's global generator
    numpy.random.seed(seed % 2**32)
    # the declared type includes the results of remote backends
    bits = getattr(backend.run(), "final_bitstrings")  # noqa: B009
    return {str(word): int(count) for word, count in sorted(bits.items())}

"""Pulse sequences in Pulser, checked and simulated.

Only separate processes import Pulser and QuTiP, which take a second and 150 MB.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, check_nesting, unique
from sf_quantum.protocol.tasks import JobParameters, shots_of
from sf_quantum.samplers.defaults import ATOMS
from sf_quantum.samplers.neutral_atom import contract, tensor_networks
from sf_quantum.text import described, shortened

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from pulser import Sequence
    from pulser.backend.state import Eigenstate
    from pulser.devices._device_datacls import BaseDevice
    from pulser.sampler import SequenceSamples
    from pulser_simulation import QutipBackendV2

# A state of n atoms has 2^n amplitudes: 12 atoms take 0.4 s, 14 take 1.8 s (2 us of
# constant pulse, one core). Those of more are contracted, in steps of nanoseconds.
EXACT = ATOMS["qutip"]
# With both transitions driven, atoms have three levels: 3^9 amplitudes are about 2^14.
EXACT_OF_THREE = 9
# QuTiP takes this many points of a sequence at least.
SHORTEST = 4
# Pulser samples each nanosecond; more would fill the memory.
LONGEST = 1_000_000
STEP = 10
# Steps of the integrator between two readings. QuTiP's own limit fails sequences with
# strong interactions; the limit on CPU time bounds these.
STEPS = 10**9
EXTRA = "the extra emu-mps (pip install 'sf-quantum[emu-mps]')"
BYTE_ORDER_MARK = "\ufeff"
# the state that is read as 1, by the basis of the measurement
ONE: Mapping[str, Eigenstate] = {"ground-rydberg": "r", "digital": "h", "XY": "d"}


def check(payload: str, qubits: int) -> dict[str, JSON]:
    """Reject a sequence that a device of some qubits cannot run, JSON text.

    Whatever passes can be simulated: all is done here but the evolution itself.

    :returns: ``atoms``, their number; ``levels`` of each; ``nanoseconds``, the duration;
        and ``radians``, by which the sequence turns a state at most
    :raises InputError: if a device cannot run it; the message says why
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
    program = _program(text, _most())
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

    :param bases: bases of the transitions that its pulses drive
    :param measured: the basis in which its atoms are read, in a set; no pulse may drive it
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
        # Pulser's may be NumPy's, as after a change of a channel's target
        return int(self.sequence.get_duration())

    @property
    def exact(self) -> bool:
        return self.atoms <= EXACT

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
        with _refusing("Pulser cannot simulate the sequence"):
            backend = QutipBackendV2(
                self.sequence, config=EmulationConfig(observables=[observable])
            )
        backend._qutip_options["nsteps"] = STEPS
        return backend

    def radians(self) -> int:
        """Return a bound on the norm of the Hamiltonian, integrated over time.

        The integrator's steps shrink with it.

        :raises InputError: if there is none
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

        device, of = self.sequence.device, self.sequence.register.qubits
        places = numpy.array([place.as_array() for place in of.values()])
        first, second = numpy.triu_indices(len(places), 1)
        distances = numpy.linalg.norm(places[first] - places[second], axis=1)
        # exchange is twice as strong along the magnetic field as across it
        exchange = 2 * (device.interaction_coeff_xy or 0.0), 3
        strength, power = (
            exchange if "XY" in self.bases else (device.interaction_coeff, 6)
        )
        with numpy.errstate(divide="ignore"):
            return float((abs(strength) / distances**power).sum())


def _program(text: str, qubits: int) -> _Program:
    """Read and check a sequence.

    :raises InputError: if it cannot run; the message says why
    """
    from pulser.sampler import sample

    sequence = _parse(text.removeprefix(BYTE_ORDER_MARK))
    _check(sequence, qubits)
    with _refusing("Pulser cannot sample the sequence"):
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
        # Pulser's own simulator measures a sequence without a measurement in this
        # basis.
        measured = "digital" if len(bases) > 1 else next(iter(bases))
    return _Program(sequence, samples, bases, {measured})


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

    _check_numbers(text)
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


def _check_numbers(text: str) -> None:
    """Refuse JSON whose numbers are not finite, which Python reads and Pulser believes."""
    try:
        check_nesting(text)
        json.loads(
            text,
            parse_constant=_refuse,
            parse_float=_finite,
            object_pairs_hook=lambda pairs: _evaluated(unique(pairs)),
        )
    except json.JSONDecodeError:
        return  # Pulser says what is wrong
    except ValueError as error:
        raise InputError(f"not JSON: {shortened(str(error))}") from error


# What Pulser computes of whole numbers exactly, however many digits they then have. Results of
# its other functions are floats.
_EXACT: Mapping[str, Callable[..., JSON]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "truediv": operator.truediv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
}


def _evaluated(content: dict[str, JSON]) -> JSON:
    """Refuse an expression of too large a value; return that of one without variables.

    Its inner expressions have been evaluated before, as floats, which does not take long.
    """
    name = content.get("expression")
    if not isinstance(name, str):
        return content
    sides = [content[side] for side in ("lhs", "rhs") if side in content]
    if name == "index":
        return _indexed(*sides) if len(sides) == 2 else None
    if name not in _EXACT or not all(type(side) in (int, float) for side in sides):
        return None
    try:
        value = _EXACT[name](*(float(cast(float, side)) for side in sides))
    except OverflowError:
        value = math.inf
    except (ZeroDivisionError, TypeError):
        return None  # Pulser says what is wrong
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"the value of an expression ({name}) is too large")
    return value if isinstance(value, float) else None


def _indexed(values: JSON, index: JSON) -> JSON:
    if isinstance(values, list) and isinstance(index, int | float):
        with suppress(IndexError, OverflowError):
            return values[int(index)]
    return None


def _refuse(constant: str) -> float:
    raise InputError(f"{constant} is not a number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise InputError(f"{text:.40} is too large")
    return number


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Report any error of Pulser in one line."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {described(error)}") from error


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
    if (nanoseconds := sequence.get_duration()) == 0:
        raise InputError("the sequence has no pulse")
    if not SHORTEST <= nanoseconds <= LONGEST:
        least = nanoseconds < SHORTEST
        detail = f"at least {SHORTEST}" if least else f"at most {LONGEST:,}"
        detail = f"the sequence takes {nanoseconds} ns; {detail}"
        raise InputError(f"{detail} can be simulated")


def _simulate(backend: QutipBackendV2, seed: int) -> dict[str, int]:
    import numpy

    # Pulser uses numpy's global generator
    numpy.random.seed(seed % 2**32)
    # the declared type includes the results of remote backends
    bits = getattr(backend.run(), "final_bitstrings")  # noqa: B009
    return {str(word): int(count) for word, count in sorted(bits.items())}

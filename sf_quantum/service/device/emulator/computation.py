"""Computations in a separate process, and estimates of their CPU time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import TypeAdapter

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import JobParameters, Result, shots_of
from sf_quantum.service.device.emulator.device_errors import Noise
from sf_quantum.service.device.processes.limits import (
    ComputeLimits,
    evolution_of,
    updates_of,
)
from sf_quantum.service.device.processes.process_pool import ask
from sf_quantum.service.domain.jobs import Kind, Size

NOISE: TypeAdapter[Noise | None] = TypeAdapter(Noise | None)


# Seconds on a core of 3 GHz: per interaction and sweep, per amplitude and gate, and per
# amplitude and nanosecond of a sequence (2 to 14 atoms, constant pulses, ramps and delays).
UPDATE_SECONDS = 0.3e-9
AMPLITUDE_SECONDS = 2e-9
EVOLUTION_SECONDS = 50e-9
# Seconds per gate and per circuit for parsing and for preparing the simulation.
GATE_SECONDS = 0.2e-3
CIRCUIT_SECONDS = 2e-3
# Seconds per shot and atom, and per sequence.
ATOM_SHOT_SECONDS = 20e-9
SEQUENCE_SECONDS = 0.05
# Overhead of each nanosecond of a sequence, in amplitudes.
STEP_AMPLITUDES = 64
# Additional steps of the integrator per radian, for strong interactions: 1.4 to 10 were
# measured (2 to 14 atoms that are 1.5 to 8 um apart).
RADIAN_STEPS = 3


def compute_seconds(
    size: Size, parameters: JobParameters, limits: ComputeLimits | None = None
) -> float:
    """Estimate the CPU time of a computation."""
    bond_dimension = (limits or ComputeLimits()).bond_dimension
    if evolution := evolution_of(size, bond_dimension):
        shots = size.values * shots_of(parameters)
        seconds = SEQUENCE_SECONDS + evolution * EVOLUTION_SECONDS
        return seconds + shots * ATOM_SHOT_SECONDS
    if size.gates or size.shot_amplitudes:
        shots = shots_of(parameters)
        amplitudes = size.amplitudes + shots * size.shot_amplitudes
        each = size.circuits * CIRCUIT_SECONDS + size.gates * GATE_SECONDS
        return each + amplitudes * AMPLITUDE_SECONDS
    return updates_of(size, parameters) * UPDATE_SECONDS


def evolution(
    atoms: int, nanoseconds: int, *, radians: int = 0, levels: int = 2
) -> int:
    """Return the computing work of a sequence, for :class:`Size`.

    :param radians: largest angle by which the sequence turns a state
    :param levels: number of levels of an atom
    """
    steps = nanoseconds + RADIAN_STEPS * radians
    return int(steps * (levels**atoms + STEP_AMPLITUDES))


@dataclass(frozen=True)
class Computation:
    """The computation of one attempt.

    :param payload: JSON text
    :param parameters: parameters of the job, including ``num_reads`` and ``seed``
    :param noise: ``None`` for an ideal device
    """

    payload: str
    parameters: JobParameters
    noise: Noise | None = None
    limits: ComputeLimits = field(default_factory=ComputeLimits)


class SeparateRunner:
    """Runs jobs of a kind in a separate process; see :class:`.runners.Runner`."""

    kind: ClassVar[Kind]

    def run(self, computation: Computation, interrupted: Callable[[], bool]) -> Result:
        """See :meth:`.runners.Runner.run`.

        :raises InputError: if the job cannot be computed, or exceeds a limit
        """
        arguments, limits = self.arguments(computation), computation.limits
        answer = ask("run", arguments, computation.payload, interrupted, limits)
        return answer or Result()

    def arguments(self, computation: Computation) -> dict[str, JSON]:
        """Return arguments of :func:`~sf_quantum.service.device.processes.program.run`."""
        return {
            "kind": self.kind,
            "parameters": dict(computation.parameters),
            "noise": NOISE.dump_python(computation.noise, mode="json"),
        }

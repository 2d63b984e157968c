"""What a separate process is asked to compute, and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import TypeAdapter

from sf_quantum.qpu.jobs import JobParameters
from sf_quantum.samplers.neal import SWEEPS
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.noise import Noise
from sf_quantum.service.domain.jobs import Size
from sf_quantum.service.domain.settings import Count, Positive
from sf_quantum.validation import Section

NOISE: TypeAdapter[Noise | None] = TypeAdapter(Noise | None)


# on a core of 3 GHz: of an interaction per sweep, of an amplitude per gate, and of an
# amplitude per nanosecond of a sequence (2 to 14 atoms, constant pulses, ramps and delays)
UPDATE_SECONDS = 0.3e-9
AMPLITUDE_SECONDS = 20e-9
EVOLUTION_SECONDS = 50e-9
# a shot of an atom, and what every sequence takes
ATOM_SHOT_SECONDS = 20e-9
SEQUENCE_SECONDS = 0.05
# a nanosecond of a sequence takes as long as that of so many more amplitudes
STEP_AMPLITUDES = 64
# the sweep of a variable takes as long as that of so many interactions
VARIABLE_UPDATES = 50


class ComputeLimits(Section):
    """Limits of the computation of a job.

    A job that would exceed ``values``, ``updates`` or ``evolution`` is refused; one that
    exceeds the others fails.

    :param memory_gib: address space of the process, in GiB
    :param cpu_seconds: CPU time of the process
    :param values: shots times variables, atoms or classical bits
    :param updates: reads times sweeps times interactions of a problem, where a variable
        counts as 50 interactions
    :param evolution: nanoseconds of a sequence times its amplitudes, 2 to the power of its
        atoms, and 64
    """

    memory_gib: Positive = 4.0
    cpu_seconds: Count = 300
    values: Count = 100_000_000
    updates: Count = 300_000_000_000
    evolution: Count = 2_000_000_000

    def check(self, size: Size, parameters: JobParameters) -> None:
        """Refuse a job that would cost too much.

        :raises FieldError: naming the field of the request
        """
        shots = parameters.get("num_reads") or 1
        if (values := shots * size.values) > self.values:
            detail = f"{shots:,} shots of {size.values:,} variables or bits"
            detail = f"{detail} are {values:,} values; at most {self.values:,} per job"
            raise FieldError("parameters.num_reads", detail)
        if (updates := _updates(size, parameters)) > self.updates:
            detail = f"reads times sweeps of this problem are {updates:,} updates"
            detail = f"{detail}; at most {self.updates:,} per job"
            raise FieldError("parameters.num_sweeps", detail)
        if size.evolution > self.evolution:
            detail = f"its duration times its amplitudes are {size.evolution:,}"
            raise FieldError(
                "sequence", f"{detail}; at most {self.evolution:,} per job"
            )


def compute_seconds(size: Size, parameters: JobParameters) -> float:
    """Estimate the CPU time of a computation."""
    if size.evolution:
        shots = size.values * (parameters.get("num_reads") or 1)
        seconds = SEQUENCE_SECONDS + size.evolution * EVOLUTION_SECONDS
        return seconds + shots * ATOM_SHOT_SECONDS
    updates = _updates(size, parameters) * UPDATE_SECONDS
    return updates + size.amplitudes * AMPLITUDE_SECONDS


def evolution(atoms: int, nanoseconds: int) -> int:
    """Return the cost of a sequence, for :class:`Size`."""
    return nanoseconds * ((1 << atoms) + STEP_AMPLITUDES)


def _updates(size: Size, parameters: JobParameters) -> int:
    reads = parameters.get("num_reads") or 1
    return reads * (parameters.get("num_sweeps") or SWEEPS) * size.updates


@dataclass(frozen=True)
class Computation:
    """The computation of one attempt.

    :param payload: JSON text
    :param parameters: at least ``num_reads`` and ``seed``
    :param noise: ``None`` for an ideal device
    """

    payload: str
    parameters: JobParameters
    noise: Noise | None = None
    limits: ComputeLimits = field(default_factory=ComputeLimits)

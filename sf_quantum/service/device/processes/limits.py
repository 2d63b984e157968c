"""The limits of a computation on the service's own machine."""

from __future__ import annotations

from sf_quantum.protocol.tasks import JobParameters, shots_of
from sf_quantum.samplers.defaults import SWEEPS
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.domain.jobs import Size
from sf_quantum.service.domain.settings import Count, Positive
from sf_quantum.validation import Section

# Time of a site of a matrix-product state with few bonds, in amplitudes.
SITE = 18_000


class ComputeLimits(Section):
    """Limits on the computation of a job.

    A job that would exceed ``values``, ``updates``, ``evolution``, ``circuits`` or
    ``gate_shots`` is rejected; a job that exceeds ``memory_gib`` or ``cpu_seconds`` fails.

    :param memory_gib: maximum address space of the process, in GiB
    :param cpu_seconds: maximum CPU time of the process
    :param values: maximum product of the shots and the size of a job: the variables of its
        problems, the atoms of a sequence, or the classical bits of all circuits
    :param updates: maximum product of the reads, sweeps and interactions of a problem, where
        a variable counts as 50 interactions
    :param evolution: maximum work to simulate a sequence. Up to 14 atoms, the work is
        ``(A + 64) * (T + 3 * R)``, where A is the number of amplitudes (2 or 3 to the power
        of the number of atoms), T is the duration in nanoseconds, and R is the angle in
        radians by which the sequence may turn a state. Above 14 atoms, the work is
        ``N * T * (18000 + 0.4 * B**3)``, where N is the number of atoms and B is
        ``bond_dimension``
    :param circuits: maximum number of circuits in a job
    :param gate_shots: maximum product of the shots and the number of gates, measurements
        and resets of all circuits
    :param bond_dimension: largest bond dimension of the matrix-product states that simulate
        circuits of many qubits and sequences of more than 14 atoms; larger bonds are
        truncated
    """

    memory_gib: Positive = 4.0
    cpu_seconds: Count = 300
    values: Count = 100_000_000
    updates: Count = 300_000_000_000
    evolution: Count = 2_000_000_000
    circuits: Count = 1000
    gate_shots: Count = 1_000_000_000
    bond_dimension: Count = 64

    def check(self, size: Size, parameters: JobParameters) -> None:
        """Reject a job that would exceed a limit.

        :raises FieldError: if a limit is exceeded; the error names the field of the request
        """
        shots = shots_of(parameters)
        if (values := shots * size.values) > self.values:
            detail = f"{shots:,} shots of {size.values:,} variables or bits"
            detail = f"{detail} are {values:,} values; at most {self.values:,} per job"
            raise FieldError("parameters.num_reads", detail)
        if (updates := updates_of(size, parameters)) > self.updates:
            detail = f"reads times sweeps of this problem are {updates:,} updates"
            detail = f"{detail}; at most {self.updates:,} per job"
            raise FieldError("parameters.num_sweeps", detail)
        if (gates := shots * size.gates) > self.gate_shots:
            detail = f"{shots:,} shots of {size.gates:,} gates are {gates:,} gates"
            detail = f"{detail}; at most {self.gate_shots:,} per job"
            raise FieldError("parameters.num_reads", detail)
        if (evolution := evolution_of(size, self.bond_dimension)) > self.evolution:
            detail = (
                f"its duration and interactions times its amplitudes are {evolution:,}"
            )
            raise FieldError(
                "sequence", f"{detail}; at most {self.evolution:,} per job"
            )


def evolution_of(size: Size, bond_dimension: int) -> int:
    """Return the cost of a sequence, in nanoseconds times amplitudes.

    Matrix-product states are converted to amplitudes by their run time: per atom and
    nanosecond, 1 ms with a bond dimension of 16, 1.6 ms with 32, and at most 6 ms with 64.
    """
    return size.evolution + size.sites * (SITE + bond_dimension**3 * 2 // 5)


def updates_of(size: Size, parameters: JobParameters) -> int:
    """Return reads times sweeps times interactions of a problem."""
    reads = shots_of(parameters)
    return reads * (parameters.get("num_sweeps") or SWEEPS) * size.updates

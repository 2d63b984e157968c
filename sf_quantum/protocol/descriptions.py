"""QPUs as their vendors describe them: technology, working graph, run times, limits."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import Kind


@dataclass(frozen=True)
class Topology:
    """The working graph of an annealer or of a gate-based QPU.

    :param kind: kind of graph, such as ``pegasus``, ``zephyr``, ``chimera`` or ``square``
    :param shape: parameters of the graph, in the vendor's notation
    :param labels: upper bound of the qubit numbers, some of which are unused
    :param couplers: sorted pairs of qubits, lower number first
    """

    kind: str
    shape: tuple[int, ...]
    labels: int
    couplers: tuple[tuple[int, int], ...]

    @cached_property
    def qubits(self) -> tuple[int, ...]:
        """The numbers of the qubits, sorted."""
        return tuple(sorted({qubit for pair in self.couplers for qubit in pair}))

    @cached_property
    def id(self) -> str:
        """Hash of the graph."""
        text = f"{self.kind}{self.shape}{self.couplers}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __hash__(self) -> int:
        # A hash of all couplers would take a millisecond in each cache look-up.
        return hash(self.id)

    def without(self, qubits: Collection[int]) -> Topology:
        """Return the graph without some qubits and their couplers."""
        if not qubits:
            return self
        removed = set(qubits)
        couplers = tuple(pair for pair in self.couplers if removed.isdisjoint(pair))
        return replace(self, couplers=couplers)


@dataclass(frozen=True)
class Timing:
    """Parts of a job's run time; the time of a shot includes delays, but not the read-out."""

    setup_seconds: float = 0.0
    shot_seconds: float = 0.0
    readout_seconds: float = 0.0

    def job_seconds(self, shots: int) -> float:
        """Return ``setup + shots * (shot + readout)``."""
        return self.setup_seconds + shots * (self.shot_seconds + self.readout_seconds)


@dataclass(frozen=True)
class Description:
    """A QPU as its vendor describes it now.

    :param qubits: number of qubits in service, which limits the variables, qubits or modes of
        a job; 0 if unknown
    :param out_of_service: numbers of the qubits out of service
    :param shots: largest number of shots of a job, if limited
    :param kinds: kinds of jobs that the QPU accepts
    :param timing: run times; ``None`` if unknown
    :param calibration: latest calibration, if reported
    :param specs: JSON text: Pulser's abstract representation of a neutral-atom device, or
        Perceval's specifications of a photonic device
    :param solver: properties of an annealer's solver except its graph, with SAPI's names;
        ``None`` if the solver does not accept the parameters that they would list
    :param native_gates: OpenQASM names of the gates that circuits may have on the couplers
        of ``topology``; empty if any gate may act on any qubits
    """

    technology: str
    qubits: int
    kinds: tuple[Kind, ...]
    out_of_service: frozenset[int] = frozenset()
    shots: int | None = None
    timing: Timing | None = None
    calibration: CalibrationData | None = None
    topology: Topology | None = None
    specs: str | None = None
    native_gates: tuple[str, ...] = ()
    solver: dict[str, JSON] | None = None

    @property
    def graph(self) -> Topology | None:
        """The working graph of an annealer; ``None`` for other technologies."""
        return self.topology if self.technology == "annealer" else None

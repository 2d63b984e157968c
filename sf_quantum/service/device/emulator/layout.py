"""The qubits of an emulated device: their number and couplings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sf_quantum.errors import InputError
from sf_quantum.protocol.descriptions import Topology
from sf_quantum.service.device.emulator.photons import photonic
from sf_quantum.service.device.emulator.settings import GATES, GRAPHS, PHOTONIC
from sf_quantum.service.device.emulator.topology import (
    COMPLETE,
    DEFAULT_TOPOLOGY,
    LATTICES,
    SQUARE,
    TOPOLOGIES,
    square,
    working,
)


@dataclass(frozen=True)
class Layout:
    """The qubits of a device; the parameters are those of :class:`.DeviceSettings`."""

    technology: str
    qubits: int
    topology: str | None
    out_of_service: frozenset[int]

    def check(self) -> None:
        """Check that a device of this technology can have these qubits and topology.

        :raises InputError: if the technology has no such topology, if a qubit out of
            service does not exist, or if no qubit is left
        """
        graphs = GRAPHS.get(self.technology, ())
        if self.topology is not None and self.topology not in graphs:
            has = f"has {' or '.join(graphs)}" if graphs else "has none"
            detail = f"a device of technology {self.technology} {has}"
            raise InputError(f"topology: {detail}, not {self.topology}")
        if self.out_of_service:
            qubits: Collection[int] = range(self.present)
            if self.technology == "annealer":
                qubits = TOPOLOGIES[self.topology or DEFAULT_TOPOLOGY](
                    self.qubits
                ).qubits
            if missing := self.out_of_service.difference(qubits):
                raise InputError(f"out_of_service: there is no qubit {min(missing)}")
            if self.size < 1:
                raise InputError("out_of_service: no qubit is left")

    @property
    def size(self) -> int:
        """Number of qubits in service, the size of the largest problem."""
        return self.present - len(self.out_of_service)

    @property
    def present(self) -> int:
        """Number of qubits, including those out of service."""
        if self.technology == PHOTONIC:
            return min(self.qubits, photonic.MOST_MODES)
        return self.qubits

    @property
    def graph(self) -> Topology | None:
        """Build the working graph of an annealer; ``None`` for other technologies."""
        if self.technology != "annealer":
            return None
        kind = self.topology or DEFAULT_TOPOLOGY
        return working(kind, self.qubits, self.out_of_service)

    @property
    def lattice(self) -> Topology | None:
        """The couplings of a gate-based device; ``None`` if all qubits are coupled."""
        usual = SQUARE if self.qubits in LATTICES else COMPLETE
        if self.technology != GATES or (self.topology or usual) == COMPLETE:
            return None
        return square(self.qubits, self.out_of_service)

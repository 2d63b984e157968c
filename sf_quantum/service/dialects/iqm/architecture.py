"""A gate-based QPU as IQM describes one: its qubits, couplings, operations and identity.

Names of qubits and implementations are those that ``iqm-client`` 36 knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from uuid import NAMESPACE_OID, uuid5

from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Description
from sf_quantum.service.device.interface import Device
from sf_quantum.service.dialects.common import utc

# Implementation of each operation, by IQM's names.
IMPLEMENTATIONS = {"prx": "drag_crf", "cz": "tgss_crf", "measure": "constant"}
# Largest QPU without known couplings: every pair of its qubits is listed as coupled.
MOST_COUPLED = 64


@dataclass(frozen=True)
class Architecture:
    """The qubits and couplings of a QPU.

    :param labels: upper bound of the numbers of qubits
    :param qubits: numbers of the qubits in service, sorted
    :param couplings: sorted pairs of these qubits, lower number first
    """

    labels: int
    qubits: tuple[int, ...]
    couplings: tuple[tuple[int, int], ...]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The qubits in service by their names."""
        return {qubit_name(number): number for number in self.qubits}

    @cached_property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """The couplings, in both orders."""
        return frozenset(self.couplings) | {(b, a) for a, b in self.couplings}


def of(description: Description) -> Architecture | None:
    """Read the architecture of a device; ``None`` unless it is a gate-based QPU."""
    if "circuit" not in description.kinds:
        return None
    if description.topology is None:
        if not 0 < description.qubits <= MOST_COUPLED:
            return None
        # all qubits are equivalent, so only their number matters
        qubits = tuple(range(description.qubits))
        return Architecture(description.qubits, qubits, tuple(combinations(qubits, 2)))
    working = description.topology.without(description.out_of_service)
    return Architecture(working.labels, working.qubits, working.couplers)


def qubit_name(number: int) -> str:
    """Return IQM's name of a qubit; IQM counts qubits from 1."""
    return f"QB{number + 1}"


def time(seconds: float) -> str:
    """Write a time, in seconds since the epoch, as IQM's clients read it."""
    return utc(seconds).isoformat()


def identity(device: Device) -> str:
    """Return the UUID of a QPU."""
    return str(uuid5(NAMESPACE_OID, f"sf_quantum/{device.identity}"))


def static(device: Device, chip: Architecture) -> dict[str, JSON]:
    """Describe the properties of the QPU that do not depend on its calibration."""
    out = device.description.out_of_service.intersection(range(chip.labels))
    return {
        "dut_label": device.name,
        "qubits": [qubit_name(number) for number in sorted({*chip.qubits, *out})],
        "computational_resonators": [],
        "connectivity": [[*map(qubit_name, pair)] for pair in chip.couplings],
    }

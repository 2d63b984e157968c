"""A gate-based QPU in IQM's form: its qubits, couplings, operations and identity.

Names of qubits and implementations are the names that ``iqm-client`` 36 uses.
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

# IQM's name of each operation, and the name of its implementation
IMPLEMENTATIONS = {"prx": "drag_crf", "cz": "tgss_crf", "measure": "constant"}
# Maximum number of qubits of a QPU whose couplings are unknown: every pair of qubits is then
# listed as coupled.
MOST_COUPLED = 64


@dataclass(frozen=True)
class Architecture:
    """The qubits and couplings of a QPU.

    :param labels: upper bound of the qubits' numbers
    :param qubits: numbers of the qubits in service, in ascending order
    :param couplings: coupled pairs of these qubits, in ascending order, each pair with the
        lower number first
    """

    labels: int
    qubits: tuple[int, ...]
    couplings: tuple[tuple[int, int], ...]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of the qubits in service, by IQM's names."""
        return {qubit_name(number): number for number in self.qubits}

    @cached_property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """The coupled pairs of qubits, each pair in both orders."""
        return frozenset(self.couplings) | {(b, a) for a, b in self.couplings}


def of(description: Description) -> Architecture | None:
    """Read the architecture of a device; ``None`` unless it is a gate-based QPU."""
    if "circuit" not in description.kinds:
        return None
    if description.topology is None:
        if not 0 < description.qubits <= MOST_COUPLED:
            return None
        # all qubits are equivalent, so only the number of qubits matters
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

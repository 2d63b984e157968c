"""A gate-based QPU as IQM describes one: its architecture, and its set of calibrations.

Names of qubits, gates, implementations and observations are those that ``iqm-client`` 36
knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from uuid import NAMESPACE_OID, UUID, uuid5

from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.service.device.protocol import Device
from sf_quantum.service.dialects.common import utc

# Implementation of each operation, by IQM's names.
IMPLEMENTATIONS = {"prx": "drag_crf", "cz": "tgss_crf", "measure": "constant"}
# Largest QPU without known couplings: every pair of its qubits is listed as coupled.
MOST_COUPLED = 64
# what the observations are called, by the name of the device's reading
_READ_OUT = {
    "readout_false_one": "error_0_to_1",
    "readout_false_zero": "error_1_to_0",
}
_TIMES = {"t1_seconds": "t1_time", "t2_seconds": "t2_time"}


@dataclass(frozen=True)
class Architecture:
    """The qubits and couplings of a QPU.

    :param labels: upper bound of the numbers of qubits
    :param qubits: numbers of those in service, sorted
    :param couplings: sorted pairs of these, lower number first
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
        # each is as good as another, so that only their number counts
        qubits = tuple(range(description.qubits))
        return Architecture(description.qubits, qubits, tuple(combinations(qubits, 2)))
    working = description.topology.without(description.out_of_service)
    return Architecture(working.labels, working.qubits, working.couplers)


def qubit_name(number: int) -> str:
    """Return IQM's name of a qubit; theirs are counted from 1."""
    return f"QB{number + 1}"


def time(seconds: float) -> str:
    """Write a time, in seconds since the epoch, as IQM's clients read it."""
    return utc(seconds).isoformat()


def identity(device: Device) -> str:
    """Return the UUID of a QPU."""
    return str(uuid5(NAMESPACE_OID, f"sf_quantum/{device.identity}"))


def calibration_set(device: Device, calibration: Mapping[str, JSON] | None) -> str:
    """Return the UUID of a calibration; a vendor's own stays as it is."""
    name = CalibrationData.read(calibration).id
    try:
        return str(UUID(name))
    except ValueError:
        return str(uuid5(NAMESPACE_OID, f"sf_quantum/{device.identity}/{name}"))


def static(device: Device, chip: Architecture) -> dict[str, JSON]:
    """Describe the QPU, whatever its calibration."""
    out = device.description.out_of_service.intersection(range(chip.labels))
    return {
        "dut_label": device.name,
        "qubits": [qubit_name(number) for number in sorted({*chip.qubits, *out})],
        "computational_resonators": [],
        "connectivity": [[*map(qubit_name, pair)] for pair in chip.couplings],
    }


def dynamic(device: Device, chip: Architecture) -> dict[str, JSON]:
    """Describe the operations that are calibrated."""
    names = [*chip.numbers]
    single: list[JSON] = [[name] for name in names]
    pairs: list[JSON] = [[*map(qubit_name, pair)] for pair in chip.couplings]
    loci = {"prx": single, "cz": pairs, "measure": single}
    return {
        "calibration_set_id": calibration_set(device, device.description.calibration),
        "qubits": [*names],
        "computational_resonators": [],
        "gates": {
            gate: {
                "implementations": {IMPLEMENTATIONS[gate]: {"loci": where}},
                "default_implementation": IMPLEMENTATIONS[gate],
                "override_default_implementation": {},
            }
            for gate, where in loci.items()
        },
    }


def observations(
    device: Device, chip: Architecture, *, metrics: bool
) -> dict[str, JSON]:
    """List what the calibration has measured.

    :param metrics: the quality of the operations, instead of the calibration's own data,
        of which there is none
    """
    id_ = calibration_set(device, device.description.calibration)
    made = time(device.calibrations.made or 0.0)
    values = _metrics(device, chip) if metrics else ()
    return {
        "observation_set_type": "quality-metric-set" if metrics else "calibration-set",
        "observation_set_id": str(uuid5(UUID(id_), "metrics")) if metrics else id_,
        "describes_id": id_ if metrics else None,
        "dut_label": device.name,
        "invalid": False,
        "created_timestamp": made,
        "end_timestamp": made,
        "observations": [
            {
                "observation_id": number,
                "observation_set_ids": [],
                "dut_label": device.name,
                "dut_field": name,
                "value": value,
                "unit": "s" if name.endswith("_time") else "",
                "uncertainty": None,
                "invalid": False,
                "source": {"type": "measurement_source"},
                "tags": [],
                "created_timestamp": made,
                "modified_timestamp": made,
            }
            for number, (name, value) in enumerate(values, 1)
        ],
    }


def _metrics(device: Device, chip: Architecture) -> Iterator[tuple[str, float]]:
    """List names and values of what is known, the same for all qubits."""
    values = device.calibrations.data.values
    qubits, single = [*chip.numbers], values.get("gate_error_one_qubit")
    for name in qubits:
        path = f"metrics.ssro.measure.{IMPLEMENTATIONS['measure']}.{name}"
        errors = {
            reading: values[reading] for reading in _READ_OUT if reading in values
        }
        for reading, error in errors.items():
            yield f"{path}.{_READ_OUT[reading]}", error
        if len(errors) == len(_READ_OUT):
            yield f"{path}.fidelity", 1.0 - sum(errors.values()) / 2
        for reading, field in _TIMES.items():
            if reading in values:
                yield f"characterization.model.{name}.{field}", values[reading]
        if single is not None:
            # A depolarising error with parameter p on d levels has fidelity 1 - (1 -
            # 1/d) p.
            path = f"metrics.rb.prx.{IMPLEMENTATIONS['prx']}.{name}"
            yield f"{path}.fidelity", 1.0 - single / 2
    if (double := values.get("gate_error_two_qubits")) is not None:
        for pair in chip.couplings:
            locus = "__".join(map(qubit_name, pair))
            path = f"metrics.irb.cz.{IMPLEMENTATIONS['cz']}.{locus}"
            yield f"{path}.fidelity", 1.0 - double * 3 / 4

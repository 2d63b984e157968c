"""A calibration in IQM's format: its id, the calibrated gates, and measured values.

Names of gates, implementations and observations are the names that ``iqm-client`` 36 uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import NAMESPACE_OID, UUID, uuid5

from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData, calibration_id
from sf_quantum.service.device.interface import Device
from sf_quantum.service.dialects.iqm.architecture import (
    IMPLEMENTATIONS,
    Architecture,
    qubit_name,
    time,
)

# IQM's names of observations, by the names of the device's values
_READ_OUT = {
    "readout_false_one": "error_0_to_1",
    "readout_false_zero": "error_1_to_0",
}
_TIMES = {"t1_seconds": "t1_time", "t2_seconds": "t2_time"}


def calibration_set(device: Device, calibration: CalibrationData | None) -> str:
    """Return the UUID of a calibration; a vendor's UUID is returned unchanged."""
    name = calibration_id(calibration)
    try:
        return str(UUID(name))
    except ValueError:
        return str(uuid5(NAMESPACE_OID, f"sf_quantum/{device.identity}/{name}"))


def dynamic(device: Device, chip: Architecture) -> dict[str, JSON]:
    """Describe the calibrated operations."""
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
    """Describe a set of observations: the values that the calibration has measured.

    :param metrics: whether the set lists the quality of the operations; otherwise, it is
        the calibration set, which is empty, since there is no other data
    """
    id_ = calibration_set(device, device.description.calibration)
    created = time(device.calibrations.made or 0.0)
    values = _metrics(device, chip) if metrics else ()
    return {
        "observation_set_type": "quality-metric-set" if metrics else "calibration-set",
        "observation_set_id": str(uuid5(UUID(id_), "metrics")) if metrics else id_,
        "describes_id": id_ if metrics else None,
        "dut_label": device.name,
        "invalid": False,
        "created_timestamp": created,
        "end_timestamp": created,
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
                "created_timestamp": created,
                "modified_timestamp": created,
            }
            for number, (name, value) in enumerate(values, 1)
        ],
    }


def _metrics(device: Device, chip: Architecture) -> Iterator[tuple[str, float]]:
    """Yield names and values of the device's metrics; values are the same for all qubits."""
    values = device.calibrations.data.values
    qubits, one_qubit_error = [*chip.numbers], values.get("gate_error_one_qubit")
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
        if one_qubit_error is not None:
            # a depolarising error with parameter p on d levels has fidelity 1 - (1 - 1/d) p
            path = f"metrics.rb.prx.{IMPLEMENTATIONS['prx']}.{name}"
            yield f"{path}.fidelity", 1.0 - one_qubit_error / 2
    if (two_qubit_error := values.get("gate_error_two_qubits")) is not None:
        for pair in chip.couplings:
            locus = "__".join(map(qubit_name, pair))
            path = f"metrics.irb.cz.{IMPLEMENTATIONS['cz']}.{locus}"
            yield f"{path}.fidelity", 1.0 - two_qubit_error * 3 / 4

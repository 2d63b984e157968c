"""A QPU as a device of PennyLane, by its plugin for Qiskit."""

from __future__ import annotations

import pennylane
from pennylane.devices import Device as Device

from sf_quantum.qpu.qiskit import SHOTS, QpuBackend


def device(backend: QpuBackend, wires: int, shots: int | None = None) -> Device:
    """Make a device that runs on a backend.

    :param wires: number of qubits
    :param shots: for each circuit, by default 1024
    """
    return pennylane.device(
        "qiskit.remote", wires=wires, backend=backend, shots=shots or SHOTS
    )

"""A QPU as a device of PennyLane, with PennyLane's plugin for Qiskit."""

from __future__ import annotations

import pennylane
from pennylane.devices import Device as Device

from sf_quantum.qpu.sdks.qiskit import QpuBackend


def device(backend: QpuBackend, wires: int) -> Device:
    """Make a device that runs on a backend, with 1024 shots by default.

    :param wires: number of qubits
    """
    return pennylane.device("qiskit.remote", wires=wires, backend=backend)

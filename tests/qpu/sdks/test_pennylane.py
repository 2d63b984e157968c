"""A QPU as a device of PennyLane, where its plugin for Qiskit is installed."""

from __future__ import annotations

import importlib.util

import pytest

from sf_quantum.errors import InputError
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.service import running_service

INSTALLED = importlib.util.find_spec("pennylane_qiskit") is not None


@pytest.mark.skipif(
    not INSTALLED, reason="the package pennylane-qiskit is not installed"
)
def test_a_node_runs_on_the_qpu() -> None:
    import pennylane

    device = EmulatedDevice(technology="superconducting", qubits=6, time_scale=0.0)
    with running_service(device) as service:
        qpu = SfqQpu("q", service.url, lease=service.acquire())

        def correlation() -> object:
            pennylane.Hadamard(0)
            pennylane.CNOT([0, 1])
            z = pennylane.PauliZ
            return pennylane.expval(z(0) @ z(1)), pennylane.expval(z(0))

        node = pennylane.QNode(correlation, qpu.device(2))
        both, one = pennylane.set_shots(node, 500)()
        assert both == 1.0
        assert abs(one) < 0.3
        assert [
            job.parameters["num_reads"] for job in service.queue.store.jobs.latest()
        ] == [500]


@pytest.mark.skipif(INSTALLED, reason="the package pennylane-qiskit is installed")
def test_without_its_plugin_one_line_says_what_to_install() -> None:
    qpu = SfqQpu("q", "http://127.0.0.1:1", lease="t")
    with pytest.raises(InputError, match="package pennylane-qiskit is not installed"):
        qpu.device(2)

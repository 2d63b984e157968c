"""IQM's client from PyPI, unmodified, on the service: its API over our queue."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.vendor.device import QpuDevice
from tests.support.service import RunningService, running_service
from tests.support.waiting import SECONDS, until

if TYPE_CHECKING:
    from iqm.iqm_client import IQMClient
    from iqm.qiskit_iqm import IQMBackend
    from qiskit import QuantumCircuit

# The client takes seconds to import, which each worker of a run would spend to collect.
INSTALLED = importlib.util.find_spec("iqm") and importlib.util.find_spec("qiskit")

pytestmark = [
    pytest.mark.skipif(not INSTALLED, reason="install iqm-client[qiskit]"),
    pytest.mark.process,
    # the client's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    device = EmulatedDevice(
        name="star", technology="superconducting", qubits=5, time_scale=0
    )
    with running_service(device, tcp=True) as running:
        yield running


@pytest.fixture
def client(service: RunningService) -> IQMClient:
    from iqm.iqm_client import IQMClient

    made: IQMClient = IQMClient.from_url(service.url, token="any")
    return made


@pytest.fixture
def backend(service: RunningService) -> IQMBackend:
    from iqm.qiskit_iqm import IQMProvider

    provider = IQMProvider(service.url, quantum_computer="star", token="any")
    made: IQMBackend = provider.get_backend(use_metrics=True)
    return made


def ghz(backend: IQMBackend, qubits: int = 3) -> QuantumCircuit:
    from qiskit import QuantumCircuit, transpile

    circuit = QuantumCircuit(qubits, name="ghz", metadata={"of": "ghz"})
    circuit.h(0)
    for qubit in range(1, qubits):
        circuit.cx(qubit - 1, qubit)
    circuit.measure_all()
    return transpile(circuit, backend)


def test_what_the_client_reads_of_the_qpu(client: IQMClient) -> None:
    from exa.common.errors import iqm_error as errors

    assert client.get_health()["healthy"]
    assert client.get_about()["software"] == "sf_quantum"
    static = client.get_static_quantum_architecture()
    assert static.qubits == ["QB1", "QB2", "QB3", "QB4", "QB5"]
    dynamic = client.get_dynamic_quantum_architecture()
    assert {*dynamic.gates} == {"prx", "cz", "measure"}
    known = client.get_dynamic_quantum_architecture(dynamic.calibration_set_id)
    assert known == dynamic
    calibration = client.get_calibration_set()
    assert calibration.observation_set_id == dynamic.calibration_set_id
    assert client.get_quality_metric_set().dut_label == "star"
    assert client.get_feedback_groups() == ()
    with pytest.raises(errors.NotFoundError):
        client.get_chip_label()


def test_qiskit_from_the_circuit_to_its_counts(backend: IQMBackend) -> None:
    job = backend.run(ghz(backend), shots=200)
    result = job.result(timeout=SECONDS)
    counts = result.get_counts()
    assert {*counts} == {"000", "111"}
    assert sum(counts.values()) == 200
    # as another session finds it
    found = backend.retrieve_job(job.job_id())
    again = found.result(timeout=SECONDS)
    assert again.get_counts() == counts
    assert again.get_memory() == result.get_memory()
    assert again.results[0].data.metadata == {"of": "ghz"}
    (sent,) = found._job_tracker.payload().circuits
    (given,) = job._job_tracker.payload().circuits
    assert sent == given


def test_a_batch_of_circuits(backend: IQMBackend) -> None:
    circuits = [ghz(backend, qubits) for qubits in (2, 3, 2)]
    counts = backend.run(circuits, shots=100).result(timeout=SECONDS).get_counts()
    assert [{*one} for one in counts] == [{"00", "11"}, {"000", "111"}, {"00", "11"}]
    assert [sum(one.values()) for one in counts] == [100] * 3


def test_cirq(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    cirq = pytest.importorskip("cirq", reason="install iqm-client[cirq]")
    iqm = importlib.import_module("iqm.cirq_iqm.iqm_sampler")
    alice, bob = cirq.NamedQubit.range(2, prefix="q")
    bell = [cirq.H(alice), cirq.CNOT(alice, bob), cirq.measure(alice, bob, key="m")]
    sampler = iqm.IQMSampler(service.url, token="any")
    routed, *_ = sampler.device.route_circuit(
        sampler.device.decompose_circuit(cirq.Circuit(bell))
    )
    done = sampler.run(sampler.device.decompose_circuit(routed), repetitions=100)
    assert {*done.histogram(key="m")} == {0, 3}


def test_through_an_iqm_server_behind_the_service(
    service: RunningService, tmp_path: Path
) -> None:
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    environment: JSON = {
        "QRMI_IQM_ISA_ENDPOINT": service.url,
        "QRMI_IQM_ISA_TOKEN": "any",
    }
    entry: JSON = {"name": "star", "type": "iqm-server", "environment": environment}
    file = tmp_path / "qrmi_config.json"
    file.write_text(json.dumps({"resources": [entry]}))
    device = QpuDevice.from_config(
        {
            "qpu": "iqm-server",
            "name": "star",
            "config": {"qrmiConfig": str(file)},
            "poll_seconds": 0.05,
        }
    )
    device.refresh()
    assert device.status.online
    from iqm.iqm_client import IQMClient
    from iqm.qiskit_iqm import IQMProvider

    with running_service(device, tcp=True) as front:
        provider = IQMProvider(front.url, token="any")
        backend = provider.get_backend()
        # the set of calibrations is the vendor's
        known = IQMClient.from_url(service.url).get_calibration_set()
        assert backend.architecture.calibration_set_id == known.observation_set_id
        circuits = [ghz(backend), ghz(backend, 2)]
        first, second = (
            backend.run(circuits, shots=50).result(timeout=SECONDS).get_counts()
        )
        assert ({*first}, {*second}) == ({"000", "111"}, {"00", "11"})
    device.close()


def test_qrmi(service: RunningService) -> None:
    qrmi = pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    where = {"QRMI_IQM_ISA_ENDPOINT": service.url, "QRMI_IQM_ISA_TOKEN": "any"}
    star = qrmi.QuantumResource.from_config("star", qrmi.ResourceType.IQMServer, where)
    assert str(star.status().status).endswith("Online")
    told = json.loads(star.target().value)
    assert told["static_quantum_architecture"][0]["dut_label"] == "star"
    flip: JSON = {
        "name": "prx",
        "locus": ["QB2"],
        "args": {"angle": math.pi, "phase": 0},
    }
    read: JSON = {"name": "measure", "locus": ["QB2", "QB1"], "args": {"key": "m"}}
    circuit: JSON = {"name": "flip", "instructions": [flip, read]}
    payload = qrmi.Payload.IQMServer(
        iqmjson=json.dumps({"circuits": [circuit], "shots": 3}),
        job_type="circuit",
        use_timeslot=False,
        tag="mine",
    )
    task = star.task_start(payload)
    # it waits for the end
    until(lambda: str(star.task_status(task)).endswith("Completed"), "it is over")
    result = json.loads(star.task_result(task).value)
    assert result["measurements"] == [{"m": [[1, 0]] * 3}]
    assert result["measurement_counts"][0]["counts"] == {"10": 3}
    assert "ready" in star.task_logs(task)
    star.task_stop(task)


def test_the_clients_errors(client: IQMClient, backend: IQMBackend) -> None:
    from exa.common.errors import iqm_error as errors

    job = backend.run(ghz(backend), shots=1)
    job.result(timeout=SECONDS)
    with pytest.warns(UserWarning, match="completed already"):
        assert not job.cancel()
    tracked = UUID(job.job_id())
    with pytest.raises(errors.ForbiddenError) as caught:
        client.cancel_job(tracked)
    assert caught.value.error_code == "illegal_job_status"
    client.delete_job(tracked)
    with pytest.raises(errors.NotFoundError) as missing:
        client.get_job(tracked)
    assert missing.value.error_code == "job_not_found"


def test_a_circuit_that_the_client_has_not_checked(
    service: RunningService, client: IQMClient, backend: IQMBackend
) -> None:
    from exa.common.errors import iqm_error as errors

    definition = backend.create_circuit_job_definition(ghz(backend), shots=1)
    definition.circuits[0].instructions = definition.circuits[0].instructions[:-3]
    with pytest.raises(
        errors.InvalidOperationError, match="measures nothing"
    ) as caught:
        client.submit_circuit_job(definition)
    assert caught.value.error_code == "invalid_job_payload"
    with pytest.raises(errors.ForbiddenError) as booked:
        backend.run(ghz(backend), shots=1, use_timeslot=True)
    assert booked.value.error_code == "no_booked_timeslots"

"""How long a job is expected to run: told by each dialect, and bounded by `limits`."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Callable, Iterator

import numpy
import pytest
from dimod import BinaryQuadraticModel

from sf_quantum.files import JSON
from sf_quantum.net.transport import Response
from sf_quantum.protocol.tasks import Task
from sf_quantum.qpu.sfq import service_job, service_jobs
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.computation import compute_seconds
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.settings import ServiceSettings, UserLimits
from sf_quantum.service.queue.jobs.slices import slice_parts
from sf_quantum.threads import in_thread
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import until

pytestmark = pytest.mark.devices("sfq")

QUBITS, SHOTS = 20, 2000
CHAIN = [f"cx q[{n}], q[{n + 1}];" for n in range(QUBITS - 1)]
LONG = "\n".join(
    (
        'OPENQASM 3.0; include "stdgates.inc";',
        f"qubit[{QUBITS}] q; bit[{QUBITS}] c; h q[0];",
        *CHAIN,
        "c = measure q;",
    )
)
PARAMETERS = {"num_reads": SHOTS, "seed": 1}


def gates() -> EmulatedDevice:
    """A gate-based QPU with errors, whose circuits of 20 qubits take seconds a shot."""
    return EmulatedDevice(
        technology="superconducting", qubits=QUBITS, topology="complete", noise=1.0
    )


def limited(seconds: float) -> ServiceSettings:
    return ServiceSettings(limits=UserLimits(run_seconds=seconds))


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(gates()) as running:
        yield running


def submitted(service: RunningService, lease: str) -> Response:
    job: dict[str, JSON] = {"circuit": LONG, "idempotency_key": "k"}
    job["parameters"] = {**PARAMETERS}
    return service.ask("POST", "/v1/jobs", job, lease=lease)


@pytest.mark.process
def test_a_circuit_of_many_minutes_says_so(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    lease = service.acquire()
    job = submitted(service, lease).json()
    expected = job["expected_run_seconds"]
    assert isinstance(expected, float)
    assert 600 < expected < 3600
    limits = service.ask("GET", "/v1/device").json()["limits"]
    assert isinstance(limits, dict)
    assert limits["run_seconds"] is None
    # our client logs it, and warns
    qpu = SfqQpu.from_environment(
        "q", {"q_SFQ_URL": service.url, "q_QRMI_JOB_ACQUISITION_TOKEN": lease}
    )
    with caplog.at_level(logging.INFO, "sf_quantum.qpu.sfq.service_job"):
        qpu.submit(Task("tag", "circuit", json.dumps(LONG), PARAMETERS, 1, 1, 0))
    # a busy service logs lines of its own
    client = service_job.__name__
    (record,) = (one for one in caplog.records if one.name == client)
    assert record.levelno == logging.WARNING
    assert "(circuit) starts in about " in record.getMessage()
    assert "is expected to run for" in record.getMessage()
    for each in service.queue.store.jobs.latest(lease=lease):
        service.ask("DELETE", f"/v1/jobs/{each.id}")


def sampled(qpu: SfqQpu) -> None:
    qpu.sampler().sample(BinaryQuadraticModel.from_serializable(example_bqm()))


def run(qpu: SfqQpu) -> None:
    task = Task("tag", "problem", json.dumps(example_bqm()), {"num_reads": 1000})
    outcome = qpu.run_job(task)
    assert outcome.result is None


@pytest.mark.parametrize("wait", [sampled, run])
def test_a_job_of_seconds_says_so_while_it_waits(
    wait: Callable[[SfqQpu], None], caplog: pytest.LogCaptureFixture
) -> None:
    # 1000 reads take 0.1 s on hardware, and ten minutes at this scale
    device = EmulatedDevice(time_scale=5000.0, qubits=20)
    with (
        running_service(device) as service,
        caplog.at_level(logging.INFO, "sf_quantum"),
    ):
        lease = service.acquire()
        first: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "k"}
        ahead = service.ask("POST", "/v1/jobs", first, lease=lease).json()["id"]
        service.until(lease, "Running")
        waiting = in_thread(lambda: wait(SfqQpu("q", service.url, lease=lease)))
        lines = until(
            lambda: [r.getMessage() for r in caplog.records if "expected" in r.msg],
            "a line about the job",
        )
        # it is told while the job waits, and once
        (job,) = service.queue.store.jobs.latest(lease=lease)[1:]
        assert job.state == "Queued"
        assert not waiting.done()
        for each in (job.id, ahead):
            service.ask("DELETE", f"/v1/jobs/{each}", lease=lease)
        assert waiting.exception() is None or wait is sampled
        (line,) = lines
        assert f"job {job.id} (problem) starts in about " in line
        assert ", after 1 other job; it is expected to run for " in line
        told = [r for r in caplog.records if "expected" in r.msg]
        assert len(told) == 1


def test_a_job_that_has_ended_needs_no_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_jobs, "_SUBMISSIONS", "/v1/jobs?wait=30")
    device = EmulatedDevice(time_scale=0, qubits=20)
    with (
        running_service(device) as service,
        caplog.at_level(logging.INFO, "sf_quantum"),
    ):
        sampled(SfqQpu("q", service.url, lease=service.acquire()))
    assert not [r for r in caplog.records if "expected" in r.msg]


def test_a_limit_refuses_it_in_one_line() -> None:
    with running_service(gates(), settings=limited(600.0)) as service:
        lease = service.acquire()
        answer = submitted(service, lease)
        assert answer.status == 422
        detail = str(answer.json()["detail"])
        assert detail.startswith("the job is expected to run for 1,")
        assert detail.endswith(" s; at most 600 s are allowed (limits.run_seconds)")
        assert "\n" not in detail
        small: dict[str, JSON] = {"circuit": LONG, "idempotency_key": "s"}
        small["parameters"] = {"num_reads": 1}
        assert service.ask("POST", "/v1/jobs", small, lease=lease).status == 201


def test_a_long_circuit_is_computed_in_slices() -> None:
    device = gates()
    size = device.check("circuit", LONG, PARAMETERS)
    whole = device.cost(PARAMETERS, size)
    assert whole.compute_seconds == compute_seconds(size, PARAMETERS, device.compute)
    shots = slice_parts(device, PARAMETERS, 60.0, whole, size=size)
    assert 50 < device.cost({"num_reads": shots}, size).compute_seconds <= 60
    # without errors, one run of the circuit suffices for all shots
    ideal = device.model_copy(update={"noise": 0.0})
    size = ideal.check("circuit", LONG, PARAMETERS)
    assert ideal.cost(PARAMETERS, size) == ideal.cost(PARAMETERS, size)
    assert (
        slice_parts(ideal, PARAMETERS, 60.0, ideal.cost(PARAMETERS, size), size=size)
        == SHOTS
    )


def test_bonds_of_little_entanglement_are_cheap() -> None:
    device = EmulatedDevice(technology="superconducting", qubits=40, noise=1.0)
    chain = "\n".join(f"cx q[{n}], q[{n + 1}];" for n in range(39))
    layers = "\n".join([chain] * 20)

    def seconds(gates: str) -> float:
        text = (
            'OPENQASM 3.0; include "stdgates.inc"; qubit[40] q; bit[40] c;'
            f"h q; {gates} c = measure q;"
        )
        size = device.check("circuit", text, {"num_reads": 100})
        return device.cost({"num_reads": 100}, size).compute_seconds

    assert seconds(chain) < 0.5
    assert seconds(layers) > 100 * seconds(chain)


def annealer_problem(service: RunningService) -> dict[str, JSON]:
    graph = service.queue.device.description.graph
    assert graph is not None
    lin = numpy.ones(len(graph.qubits))
    quad = numpy.zeros(len(graph.couplers))
    data = {
        name: b64encode(v.astype("<f8").tobytes()).decode()
        for name, v in (("lin", lin), ("quad", quad))
    }
    name = service.queue.device.name
    data_: dict[str, JSON] = {"format": "qp", **data}
    return {
        "solver": {"name": name},
        "type": "ising",
        "data": data_,
        "params": {"num_reads": 10_000},
    }


@pytest.mark.process
def test_sapi_tells_it_as_a_message_and_refuses() -> None:
    slow = EmulatedDevice(qubits=100, time_scale=1000.0)
    with running_service(slow) as service:
        problem = annealer_problem(service)
        job = service.ask("POST", "/sapi/v2/problems/", problem).json()
        assert "id" in job, job
        path = f"/sapi/v2/problems/{job['id']}"
        (message,) = json.loads(service.ask("GET", f"{path}/messages").body)
        assert message["message"].startswith("expected to run for ")
        assert message["severity"] == "INFO"
        service.ask("DELETE", path)
    with running_service(slow, settings=limited(60.0)) as service:
        answer = service.ask("POST", "/sapi/v2/problems/", problem)
        assert answer.status == 400
        assert "at most 60 s are allowed" in str(answer.json()["error_msg"])


@pytest.mark.process
def test_iqms_api_tells_it_as_a_message_and_refuses() -> None:
    measure: JSON = {"name": "measure", "locus": ["QB1"], "args": {"key": "m"}}
    circuit: JSON = {"name": "one", "instructions": [measure]}
    body: dict[str, JSON] = {"circuits": [circuit], "shots": 10_000}
    slow = EmulatedDevice(technology="superconducting", qubits=5, time_scale=100.0)
    with running_service(slow) as service:
        job = service.ask("POST", "/api/v1/jobs/emulator/circuit", body).json()
        assert "id" in job, job
        told = service.ask("GET", f"/api/v1/jobs/{job['id']}").json()["messages"]
        assert isinstance(told, list)
        words = [str(one["message"]) for one in told if isinstance(one, dict)]
        assert any(one.startswith("expected to run for ") for one in words), told
        service.ask("POST", f"/api/v1/jobs/{job['id']}/cancel")
    with running_service(slow, settings=limited(60.0)) as service:
        answer = service.ask("POST", "/api/v1/jobs/emulator/circuit", body)
        assert answer.status in (400, 422)
        assert "at most 60 s are allowed" in answer.body.decode()


def test_warden_tells_it_in_the_log_and_refuses() -> None:
    sequence = pytest.importorskip("pulser").Sequence
    from pulser import Pulse, Register
    from pulser.devices import AnalogDevice

    made = sequence(Register({"q0": (0.0, 0.0)}), AnalogDevice)
    made.declare_channel("g", "rydberg_global")
    made.add(Pulse.ConstantPulse(1000, 1.0, 0.0, 0.0), "g")
    made.measure("ground-rydberg")
    body: dict[str, JSON] = {"sequence": made.to_abstract_repr(), "shots": 100}
    session: dict[str, JSON] = {"user_id": "0", "slurm_job_id": "1"}
    slow = EmulatedDevice(technology="neutral-atom", qubits=5)
    with running_service(slow) as service:
        held = str(service.ask("POST", "/sessions", session).json()["id"])
        under = {"X-Warden-Session": held}
        job = service.ask("POST", "/jobs", body, headers=under).json()
        logs = str(service.ask("GET", f"/jobs/{job['id']}/logs").json()["logs"])
        assert "expected to run for 220 s" in logs
        service.ask("DELETE", f"/sessions/{held}")
    with running_service(slow, settings=limited(60.0)) as service:
        held = str(service.ask("POST", "/sessions", session).json()["id"])
        under = {"X-Warden-Session": held}
        answer = service.ask("POST", "/jobs", body, headers=under)
        assert answer.status == 422
        assert "at most 60 s are allowed" in str(answer.json()["detail"])

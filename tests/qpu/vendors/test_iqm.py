"""The client of IQM's servers: on our own service, and on one that answers as it is told."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from dimod import BinaryQuadraticModel

from sf_quantum import qpu
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import NotAccepted, Task, UnknownJob
from sf_quantum.qpu import AuthenticationError
from sf_quantum.qpu.vendors.iqm import IqmServer
from sf_quantum.samplers.presolve import LeasedPresolve
from sf_quantum.samplers.problem import FieldError
from sf_quantum.samplers.qaoa import QaoaSampler
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import DeviceSettings
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.twin import TwinDevice, original
from tests.support.service import RunningService, running_service
from tests.support.waiting import until

TEXT = "qubit[2] q; bit[3] c; x q[1]; c[2] = measure q[1]; c[0] = measure q[0];"
ONE = Task("sfq-1", "circuit", json.dumps(TEXT), {"num_reads": 7})


def client(url: str, folder: Path, name: str = "emulator") -> IqmServer:
    environment: JSON = {
        "QRMI_IQM_ISA_ENDPOINT": url,
        "QRMI_IQM_ISA_TOKEN": "secret",
    }
    entry: JSON = {"name": name, "type": "iqm-server", "environment": environment}
    file = folder / "qrmi_config.json"
    file.write_text(json.dumps({"resources": [entry]}))
    made = qpu.load("iqm-server").from_config(name, {"qrmiConfig": str(file)})
    assert isinstance(made, IqmServer)
    return made


def import_packages(vendor: EmulatedDevice) -> None:
    """Check a circuit, so that the process for checks has imported Qiskit.

    On a busy machine, that may take longer than the client waits for the answer to a
    submission, and a job whose submission is not answered cannot be found at IQM.
    """
    vendor.check("circuit", "qubit q; bit c = measure q;", {"num_reads": 1})


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    device = EmulatedDevice(
        technology="superconducting", qubits=5, shots=1000, time_scale=0
    )
    import_packages(device)
    with running_service(device, tcp=True) as running:
        yield running


def test_a_job_from_its_submission_to_its_outcome(
    service: RunningService, tmp_path: Path
) -> None:
    garnet = client(service.url, tmp_path)
    job_id = garnet.submit(ONE)
    until(lambda: garnet.poll(job_id).state == "Completed", "it is completed")
    outcome = garnet.result(job_id, ONE)
    assert outcome.result is not None
    told = json.loads(outcome.result.whole)
    assert told["counter"] == {"100": 7}
    assert told["info"]["job"] == job_id
    # as billed: the emulated device has the run times of real ones
    assert outcome.qpu_seconds is not None
    assert outcome.qpu_seconds > 5
    described = garnet.describe().calibration
    assert described is not None
    assert outcome.calibration == CalibrationData(described.id)
    garnet.cancel(job_id)


def test_what_it_tells_of_the_qpu(service: RunningService, tmp_path: Path) -> None:
    told = client(service.url, tmp_path).describe()
    assert (told.technology, told.qubits, told.shots) == ("superconducting", 5, 1000)
    assert told.kinds == ("circuit",)
    assert told.native_gates == ("r", "cz")
    assert told.topology is not None
    assert told.topology.labels == 5
    assert (0, 2) in told.topology.couplers


def test_qubits_that_are_out_of_service(tmp_path: Path) -> None:
    device = EmulatedDevice(
        technology="superconducting",
        qubits=5,
        out_of_service=frozenset({1}),
        time_scale=0,
        noise=1.0,
    )
    with running_service(device, tcp=True) as service:
        told = client(service.url, tmp_path).describe()
        known = service.queue.device.calibrations.data.values
    assert (told.qubits, told.out_of_service) == (4, frozenset({1}))
    assert told.topology is not None
    assert told.topology.qubits == (0, 2, 3, 4)
    assert told.calibration is not None
    # by way of fidelities
    assert told.calibration.values == pytest.approx(known)
    assert {"readout_false_one", "gate_error_one_qubit"} <= {*known}


def test_a_register_has_the_qubits_out_of_service_too(tmp_path: Path) -> None:
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    vendor = EmulatedDevice(
        technology="superconducting",
        qubits=5,
        out_of_service=frozenset({1}),
        time_scale=0,
    )
    import_packages(vendor)
    text = "qubit[5] q; bit c; x q[4]; c = measure q[4];"
    with running_service(vendor, tcp=True) as service:
        client(service.url, tmp_path)
        config: JSON = {"qrmiConfig": str(tmp_path / "qrmi_config.json")}
        device = QpuDevice.from_config(
            {"qpu": "iqm-server", "name": "emulator", "config": config}
        )
        device.refresh()
        with running_service(device) as front:
            lease = front.acquire()
            body: dict[str, JSON] = {"circuit": text, "idempotency_key": "a"}
            front.ask("POST", "/v1/jobs", body, lease=lease)
            until(lambda: front.queue.store.jobs.latest()[0].final, "the job is over")
            (job,) = front.queue.store.jobs.latest()
            assert (job.state, job.note) == ("Completed", None)
            body |= {"circuit": text.replace("5", "6"), "idempotency_key": "b"}
            refused = front.ask("POST", "/v1/jobs", body, lease=lease).json()
        device.close()
    assert refused["detail"] == "6 qubits do not fit on 5 qubits"


BATCH: JSON = {
    "program": "input float a; qubit q; rx(a) q; bit c = measure q;",
    "values": [{"a": 0}, {"a": 3.141592653589793}],
}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (BATCH, {"counters": [{"0": 7}, {"1": 7}]}),
        ([TEXT, TEXT], {"counters": [{"100": 7}, {"100": 7}]}),
    ],
)
def test_several_circuits_are_one_job(
    service: RunningService, tmp_path: Path, content: JSON, expected: JSON
) -> None:
    garnet = client(service.url, tmp_path)
    task = Task("sfq-n", "circuit", json.dumps(content), {"num_reads": 7})
    outcome = garnet.run_job(task)
    assert outcome.result is not None
    assert json.loads(outcome.result.text) == expected


# what the twin's parser wants to know, too
GATES = 'include "stdgates.inc"; gate r(t, p) a { U(t, p - pi/2, pi/2 - p) a; } '
UNSENDABLE: list[tuple[JSON, str]] = [
    (
        GATES + "qubit q; bit c; reset q; c = measure q;",
        "line 1: reset is not native: transpile the circuit to r (prx) and cz",
    ),
    (
        GATES + "qubit q; bit c; c = measure q; c = measure q;",
        "line 1: bit 0 is measured twice",
    ),
    (
        GATES + "gate my a { r(1, 0) a; } qubit q; bit c; my q; c = measure q;",
        "line 1: my is not native: transpile the circuit to r (prx) and cz",
    ),
]


def test_the_unsendable_is_refused_by_submission_and_twin(
    service: RunningService, tmp_path: Path
) -> None:
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    client(service.url, tmp_path)
    config: JSON = {"qrmiConfig": str(tmp_path / "qrmi_config.json")}
    keys: dict[str, JSON] = {"qpu": "iqm-server", "name": "emulator", "config": config}
    file = tmp_path / "service.yml"
    file.write_text(json.dumps({"device": {"type": "qpu", **keys}}))
    twin = TwinDevice.of(original(str(file)), DeviceSettings(time_scale=0))
    text = "input float a; qubit q; bit c; r(a, 0) q; c = measure q;"
    batch: JSON = {"program": GATES + text, "values": [{"a": 0}, {"a": math.pi}]}
    device = QpuDevice.from_config(keys)
    device.refresh()
    with running_service(device) as front:
        lease = front.acquire()
        for content, detail in UNSENDABLE:
            body: dict[str, JSON] = {"circuit": content, "idempotency_key": "a"}
            answer = front.ask("POST", "/v1/jobs", body, lease=lease)
            told = answer.json()
            assert (answer.status, told["field"]) == (422, "circuit")
            assert told["detail"] == detail
            with pytest.raises(FieldError) as refused:
                twin.check("circuit", content, {"num_reads": 7})
            assert refused.value.detail == detail
        twin.check("circuit", batch, {"num_reads": 7})
        body = {"circuit": batch, "idempotency_key": "b"}
        assert front.ask("POST", "/v1/jobs", body, lease=lease).status == 201
        until(lambda: front.queue.store.jobs.latest()[0].final, "the job is over")
        (job,) = front.queue.store.jobs.latest()
        assert (job.state, job.note) == ("Completed", None)
    device.close()


def test_a_qubo_is_compiled_run_and_read(
    service: RunningService, tmp_path: Path
) -> None:
    pytest.importorskip("qiskit", reason="qiskit is not installed")
    sampler = client(service.url, tmp_path).sampler()
    # no two candidates alike, so that bits out of order would show
    bqm = BinaryQuadraticModel(
        {"a": -1.0, "b": -0.9, "c": -1.0, "d": -0.5},
        {"ab": 1.2, "bc": 1.3, "cd": 1.1},
        0.0,
        "BINARY",
    )
    samples, here = (
        one.sample(bqm, num_reads=400, optimiser="none", depth=6, seed=1)
        for one in (sampler, QaoaSampler())
    )
    assert samples.record.energy == pytest.approx(bqm.energies(samples))
    assert (samples.info["machine"], samples.info["reads"]) == ("emulator", 400)
    # the same circuit, up to compilation and luck
    for label in bqm.variables:
        shares = [
            found.record.sample[:, found.variables.index(label)].mean()
            for found in (samples, here)
        ]
        assert shares[0] == pytest.approx(shares[1], abs=0.12)


def test_what_does_not_fit_is_refused(service: RunningService, tmp_path: Path) -> None:
    garnet = client(service.url, tmp_path)
    outside = Task("a", "circuit", json.dumps("bit c; x $9; c = measure $9;"), {})
    with pytest.raises(InputError, match=r"instructions\.0: 'QB10' is not allowed"):
        garnet.submit(outside)
    with pytest.raises(InputError, match="circuit: expected text"):
        garnet.submit(Task("a", "circuit", "{}", {}))
    pytest.importorskip("qiskit", reason="qiskit is not installed")
    bqm = BinaryQuadraticModel("BINARY")
    bqm.add_linear_from((i, -1.0) for i in range(7))
    bqm.add_quadratic_from((i, (i + 1) % 7, 2.0) for i in range(7))
    with pytest.raises(InputError, match="7 variables interact, emulator has 5 qubits"):
        LeasedPresolve(garnet.sampler()).sample(bqm, num_reads=5)


class Server:
    """Answers every request of a path's end as it is told."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, JSON, dict[str, str]]] = {}
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                server.asked.append(f"{self.command} {self.path}")
                status, told, headers = server.answers[path.rpartition("/")[2]]
                content = told if isinstance(told, str) else json.dumps(told)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content.encode())

            do_GET = do_POST = answer

            def log_message(self, *_: str) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @contextmanager
    def running(self) -> Iterator[Server]:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()

    def tell(
        self,
        end: str,
        told: JSON,
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Answer requests whose path ends so."""
        self.answers[end] = (status, told, headers or {})


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().running() as running:
        yield running


def refusal(code: str) -> JSON:
    return {"error_code": code, "message": "why not", "request_id": "1"}


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "invalid_job_payload", InputError),
        (401, "unauthorized", AuthenticationError),
        (403, "quota_exceeded", AuthenticationError),
        (404, "qc_not_found", InputError),
        (413, "request_payload_too_large", InputError),
        (429, "rate_limit_exceeded", NotAccepted),
        (500, "internal_error", QpuError),
        (502, "", QpuError),
        (408, "request_timeout", NotAccepted),
        (503, "qc_not_available", NotAccepted),
        # a proxy's: behind it, there may be a job
        (408, "", QpuError),
        (503, "", QpuError),
    ],
)
def test_refusals_of_a_submission(
    server: Server, tmp_path: Path, status: int, code: str, expected: type[Exception]
) -> None:
    server.tell("circuit", refusal(code), status, {"Retry-After": "3"})
    with pytest.raises((InputError, QpuError), match="why not") as caught:
        client(server.url, tmp_path, "garnet_mock").submit(ONE)
    assert type(caught.value) is expected
    if isinstance(caught.value, NotAccepted):
        assert caught.value.retry_seconds == 3
    assert server.asked == [
        "POST /api/v1/jobs/garnet:mock/circuit?use_timeslot=false&tag=sfq-1"
    ]


def test_a_connection_that_is_refused_has_made_no_job(tmp_path: Path) -> None:
    garnet = client("http://127.0.0.1:1", tmp_path)
    with pytest.raises(NotAccepted, match="does not answer"):
        garnet.submit(ONE)


def test_a_job_that_is_not_known(server: Server, tmp_path: Path) -> None:
    garnet = client(server.url, tmp_path)
    server.tell("1", refusal("job_not_found"), 404)
    server.tell("cancel", refusal("job_not_found"), 404)
    for ask in (garnet.poll, lambda job_id: garnet.result(job_id, ONE)):
        with pytest.raises(UnknownJob):
            ask("1")
    garnet.cancel("1")
    server.tell("cancel", refusal("illegal_job_status"), 403)
    garnet.cancel("1")
    server.tell("cancel", refusal("forbidden"), 403)
    with pytest.raises(AuthenticationError):
        garnet.cancel("1")


def test_how_jobs_end(server: Server, tmp_path: Path) -> None:
    garnet = client(server.url, tmp_path)
    server.tell("1", {"status": "waiting", "queue_position": 2})
    assert garnet.poll("1").position == 2
    with pytest.raises(QpuError, match="job 1 is Queued"):
        garnet.result("1", ONE)
    server.tell("1", {"status": "asleep"})
    with pytest.raises(QpuError, match="unknown state 'asleep'"):
        garnet.poll("1")
    server.tell("1", [])
    with pytest.raises(QpuError, match="malformed answer"):
        garnet.poll("1")
    errors: JSON = [{"message": "out of\nhelium"}, {"message": "twice"}]
    server.tell("1", {"status": "failed", "errors": errors, "runtime_ms": 250})
    outcome = garnet.result("1", ONE)
    assert (outcome.failure, outcome.qpu_seconds) == ("out of helium; twice", 0.25)
    silences: list[dict[str, JSON]] = [{}, {"errors": None}]
    for silent in silences:
        server.tell("1", {"status": "failed", "runtime_ms": 250, **silent})
        outcome = garnet.result("1", ONE)
        assert (outcome.failure, outcome.qpu_seconds) == ("no reason given", 0.25)
    server.tell(
        "1", {"status": "cancelled", "messages": [{"message": "by the operator"}]}
    )
    outcome = garnet.result("1", ONE)
    assert (outcome.result, outcome.failure) == (None, None)
    assert outcome.note == "by the operator"


@pytest.mark.parametrize(
    "counts",
    [
        [],
        "no JSON",
        [{"measurement_keys": [], "counts": {}}],
        [{"measurement_keys": ["m_3_0"], "counts": {"0": -1}}],
        [{"measurement_keys": ["m_3_0"], "counts": {"2": 1}}],
        [{"measurement_keys": ["m_3_0"], "counts": {"01": 1}}],
        [{"measurement_keys": ["m_3_9"], "counts": {"0": 1}}],
        [{"measurement_keys": ["m_3_3"], "counts": {"0": 1}}],
        [{"measurement_keys": ["m_999999999_0"], "counts": {"0": 1}}],
        [{"measurement_keys": ["other"], "counts": {"0": 1}}],
    ],
)
def test_counts_that_are_none(server: Server, tmp_path: Path, counts: JSON) -> None:
    server.tell("1", {"status": "completed"})
    server.tell("measurement_counts", counts)
    with pytest.raises(QpuError, match="no counts of bit strings"):
        client(server.url, tmp_path).result("1", ONE)


def test_counts_of_several_circuits_in_any_order(
    server: Server, tmp_path: Path
) -> None:
    server.tell("1", {"status": "completed"})
    known: JSON = {"measurement_keys": ["m_3_2", "m_3_0"], "counts": {"10": 4, "11": 3}}
    server.tell("measurement_counts", [known, known])
    both = Task("a", "circuit", json.dumps([TEXT, TEXT]), {"num_reads": 7})
    outcome = client(server.url, tmp_path).result("1", both)
    assert outcome.result is not None
    counter = {"100": 4, "101": 3}
    assert json.loads(outcome.result.text) == {"counters": [counter, counter]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"computational_resonators": ["COMP_R"]}, "coupled by resonators"),
        ({"qubits": ["Q1"]}, "architecture cannot be read: 'Q1' is no name of a qubit"),
        ({"gates": {}}, "malformed answer: gates.cz: Field required"),
    ],
)
def test_architectures_that_have_no_circuits(
    server: Server, tmp_path: Path, changes: dict[str, JSON], expected: str
) -> None:
    dynamic: dict[str, JSON] = {
        "calibration_set_id": "7",
        "qubits": ["QB1"],
        "gates": {"cz": {"implementations": {}}},
    }
    server.tell("emulator", {"limits": {}})
    server.tell("metrics", {"observations": []})
    server.tell("static-quantum-architectures", refusal("qc_artifact_not_found"), 404)
    server.tell("dynamic-quantum-architecture", dynamic)
    garnet = client(server.url, tmp_path)
    assert garnet.describe().qubits == 1
    server.tell("static-quantum-architectures", "[" * 100_000)
    with pytest.raises(QpuError, match="malformed answer"):
        garnet.describe()
    server.tell("static-quantum-architectures", [])
    server.tell("dynamic-quantum-architecture", {**dynamic, **changes})
    with pytest.raises((InputError, QpuError), match=expected):
        garnet.describe()

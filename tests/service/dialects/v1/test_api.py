"""``/v1`` as a client sees it."""

from __future__ import annotations

import http.client
import math
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from dimod import BinaryQuadraticModel, SampleSet
from pydantic import ValidationError

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client, Response
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.dialects import large_bodies
from sf_quantum.service.dialects.v1.models import CircuitProgram
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import until

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")

MakeJob = Callable[[str], dict[str, JSON]]


@pytest.fixture
def bqm() -> dict[str, JSON]:
    return example_bqm()


@pytest.fixture
def job(bqm: dict[str, JSON]) -> MakeJob:
    """Makes the body of a submission with a key."""

    def make(key: str) -> dict[str, JSON]:
        parameters: dict[str, JSON] = {"num_reads": 10, "seed": 1}
        return {"problem": bqm, "parameters": parameters, "idempotency_key": key}

    return make


@pytest.fixture
def service() -> Iterator[RunningService]:
    """A service that does not wait."""
    with running_service() as running:
        yield running


@pytest.fixture
def slow() -> Iterator[RunningService]:
    """A service whose jobs take minutes, with two virtual QPUs."""
    with running_service(EmulatedDevice(technology="neutral-atom"), vqpus=2) as running:
        yield running


def _submit(service: RunningService, lease: str, body: dict[str, JSON]) -> str:
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    assert answer.status == 201, answer.body
    return str(answer.json()["id"])


# the emulated annealer has its own number of qubits
@pytest.mark.devices("sfq")
def test_the_device_reports_its_price_and_maintenance() -> None:
    with running_service(EmulatedDevice(time_scale=0, cost_per_second=0.5)) as service:
        asked = SfqQpu("qpu", service.url).status()
        assert (asked.cost_per_second, asked.maintenance_seconds) == (0.5, None)
        starts = time.time() + 600
        path = "/v1/device/maintenance"
        assert service.ask("POST", path, {"starts": starts}).status == 200
        seconds = SfqQpu("qpu", service.url).status().maintenance_seconds
        assert seconds is not None
        assert 0 < seconds <= 600
        service.ask("POST", "/v1/device/open", {})
        assert SfqQpu("qpu", service.url).status().maintenance_seconds is None


def _waited(service: RunningService, job: str) -> dict[str, JSON]:
    return service.ask("GET", f"/v1/jobs/{job}?wait=60").json()


# the graph has qubits out of service
@pytest.mark.devices("sfq")
def test_the_graph_of_an_annealer_is_told() -> None:
    device = EmulatedDevice(qubits=40, out_of_service=frozenset({34}))
    with running_service(device) as service:
        told = service.ask("GET", "/v1/device/topology").json()
    assert device.description.graph is not None
    assert told.keys() == {"kind", "shape", "labels", "couplers"}
    assert told["couplers"] == [[*pair] for pair in device.description.graph.couplers]
    assert (told["kind"], told["shape"]) == (
        "pegasus",
        [*device.description.graph.shape],
    )
    with running_service(EmulatedDevice(technology="neutral-atom")) as service:
        answer = service.ask("GET", "/v1/device/topology")
    assert answer.status == 404
    assert answer.json()["detail"] == "this device tells no graph"


# the time scale is the emulated device's
@pytest.mark.devices
def test_health_device_and_openapi(service: RunningService) -> None:
    assert service.ask("GET", "/v1/health").json() == {"status": "ok"}
    service.acquire()
    device = service.ask("GET", "/v1/device").json()
    assert isinstance(device["calibration"], dict)
    assert device["calibration"].keys() == {"id", "time", "values"}
    assert device == {
        "name": "emulator",
        "technology": "annealer",
        "status": "online",
        "reason": "",
        "trouble": "",
        "qubits": 5000,
        "vqpus": 1,
        "leases": 1,
        "leases_waiting": 0,
        "queue_length": 0,
        "payloads": device["payloads"],
        "reservations": [],
        "class": "development",
        "position": 0,
        "eta_seconds": 0.0,
        "job_qpu_seconds": pytest.approx(0.01802 + 4.054e-05 + 4.532e-05),
        "job_run_seconds": 0.005,
        "cost_per_second": None,
        "maintenance": None,
        "maintenance_seconds": None,
        "calibration": device["calibration"],
        "calibration_age_seconds": device["calibration_age_seconds"],
        "drift": {"alarms": [], "sums": {}, "threshold": 5.0},
        "out_of_service": [],
        "policy": "classes",
        "native_gates": [],
        "shots": None,
        "timing": {
            "setup_seconds": 0.01802,
            "shot_seconds": 4.054e-05,
            "readout_seconds": 4.532e-05,
            "time_scale": 0.0,
        },
        "bounds": device["bounds"],
        "limits": {
            "jobs": 10_000,
            "run_seconds": None,
            "leases": 100,
            "body_mib": 8,
            "pending_mib": 512,
            "kept_mib": 1024,
        },
    }
    paths = service.ask("GET", "/openapi.json").json()["paths"]
    assert isinstance(paths, dict)
    for operations in paths.values():
        assert isinstance(operations, dict)
        for operation in operations.values():
            assert isinstance(operation, dict)
            assert operation["summary"]
            assert operation["description"]


# others sample otherwise
@pytest.mark.devices("sfq")
def test_a_job_gives_the_samples_of_the_local_sampler(
    service: RunningService, job: MakeJob, bqm: dict[str, JSON]
) -> None:
    lease = service.acquire()
    id_ = _submit(service, lease, job("a"))
    done = _waited(service, id_)
    assert (done["state"], done["attempt"], done["lease"]) == ("Completed", 1, lease)
    assert done["position"] is None
    submitted, started, ended = (done[key] for key in ("submitted", "started", "ended"))
    assert isinstance(submitted, float)
    assert isinstance(started, float)
    assert isinstance(ended, float)
    assert submitted <= started <= ended
    result = service.ask("GET", f"/v1/jobs/{id_}/result").json()
    remote = SampleSet.from_serializable(result)  # type: ignore[no-untyped-call]
    local = NealSampler().sample(
        BinaryQuadraticModel.from_serializable(bqm), num_reads=10, seed=1
    )
    info = dict(remote.info)
    timing = info.pop("timing")
    assert timing.keys() == {"queued_seconds", "qpu_seconds", "seconds"}
    assert timing["qpu_seconds"] == done["qpu_seconds"]
    assert info.pop("calibration")["id"].startswith("emulated-")
    expected = {"qpu": "emulator", "technology": "annealer", "job": id_, "attempt": 1}
    # the QPU's kind, since it samples itself
    expected["sampler"] = "emulated"
    assert info == {**local.info, **expected}
    remote.info.clear()
    local.info.clear()
    assert remote == local


def test_leases_are_limited_and_shown(service: RunningService, job: MakeJob) -> None:
    lease = service.acquire()
    refused = service.ask("POST", "/v1/leases", {"job": None})
    assert refused.status == 409
    assert "the only vQPU is held" in str(refused.json()["detail"])
    id_ = _submit(service, lease, job("a"))
    _waited(service, id_)
    shown = service.ask("GET", f"/v1/leases/{lease}").json()
    assert (shown["held"], shown["job"]) == (True, "test")
    assert isinstance(shown["jobs"], list)
    assert [entry["id"] for entry in shown["jobs"] if isinstance(entry, dict)] == [id_]
    for _ in range(2):  # releasing again changes nothing
        released = service.ask("DELETE", f"/v1/leases/{lease}")
        assert (released.status, released.json()["held"]) == (200, False)
    assert service.ask("POST", "/v1/leases", {}).status == 201


def test_a_key_is_one_job(service: RunningService, job: MakeJob) -> None:
    lease = service.acquire()
    id_ = _submit(service, lease, job("a"))
    again = service.ask("POST", "/v1/jobs", job("a"), lease=lease)
    assert (again.status, again.json()["id"]) == (200, id_)
    other = service.ask("POST", "/v1/jobs", {**job("a"), "parameters": {}}, lease=lease)
    assert (other.status, other.json()["field"]) == (409, "idempotency_key")
    listed = service.ask("GET", "/v1/jobs", lease=lease)
    assert listed.body.count(b'"idempotency_key"') == 1


def test_jobs_need_a_lease_that_is_held(service: RunningService, job: MakeJob) -> None:
    lease = service.acquire()
    service.ask("DELETE", f"/v1/leases/{lease}")
    for wrong in (None, "unknown", lease):
        refused = service.ask("POST", "/v1/jobs", job("a"), lease=wrong)
        assert (refused.status, refused.json()["field"]) == (403, "X-SFQ-Lease")
    assert "the lease was released" in str(refused.json()["detail"])
    assert service.ask("GET", "/v1/jobs", lease="unknown").status == 404
    assert service.ask("GET", "/v1/jobs").body == b"[]"


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"problem": None}, None, "exactly one of"),
        ({"circuit": "OPENQASM 3;"}, None, "not problem, circuit"),
        ({"problem": None, "circuit": "x"}, "circuit", "this device runs problem"),
        ({"problem": {}}, "problem", "expected a BQM"),
        ({"problem": 3}, "problem", "expected a BQM, or a list"),
        ({"parameters": {"num_reads": 0}}, "parameters.num_reads", "greater than"),
        ({"parameters": {"num_reads": "9"}}, "parameters.num_reads", "valid integer"),
        (
            {"problem": None, "sequence": "{}", "parameters": {"num_sweeps": 1}},
            "parameters.num_sweeps",
            "only problems",
        ),
        ({"parameters": {"seed": -1}}, "parameters.seed", "greater than"),
        ({"parameters": {"reads": 1}}, "parameters.reads", "not permitted"),
        ({"idempotency_key": ""}, "idempotency_key", "at least 1 character"),
        ({"priority": 1}, "priority", "not permitted"),
    ],
)
def test_wrong_jobs_name_the_field(
    service: RunningService,
    job: MakeJob,
    change: dict[str, JSON],
    field: str | None,
    words: str,
) -> None:
    lease = service.acquire()
    refused = service.ask("POST", "/v1/jobs", {**job("a"), **change}, lease=lease)
    assert (refused.status, refused.json()["field"]) == (422, field)
    assert words in str(refused.json()["detail"])


# its problem is larger than a small annealer's graph
@pytest.mark.process
@pytest.mark.devices("sfq")
def test_a_large_job_is_what_a_small_one_is(
    service: RunningService, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = service.acquire()
    small = _waited(service, _submit(service, lease, job("small")))
    monkeypatch.setattr(large_bodies, "LARGE_BYTES", 0)
    monkeypatch.setattr(large_bodies, "PROCESS_BYTES", 0)
    large = _waited(service, _submit(service, lease, job("large")))
    assert (large["state"], large["kind"]) == ("Completed", "problem")
    assert large["parameters"] == small["parameters"]
    again = service.ask("POST", "/v1/jobs", job("small"), lease=lease)
    assert (again.status, again.json()["id"]) == (200, small["id"])
    results = [
        service.ask("GET", f"/v1/jobs/{one['id']}/result").json()
        for one in (small, large)
    ]
    assert results[0]["sample_data"] == results[1]["sample_data"]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"problem": None, "circuit": "x"}, "circuit", "this device runs problem"),
        ({"problem": {}}, "problem", "expected a BQM"),
        ({"problem": 3}, "problem", "expected a BQM, or a list"),
        ({"circuit": "OPENQASM 3;"}, None, "not problem, circuit"),
    ],
)
def test_wrong_large_jobs_name_the_field_too(
    service: RunningService,
    job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, JSON],
    field: str | None,
    words: str,
) -> None:
    monkeypatch.setattr(large_bodies, "LARGE_BYTES", 0)
    lease = service.acquire()
    refused = service.ask("POST", "/v1/jobs", {**job("a"), **change}, lease=lease)
    assert (refused.status, refused.json()["field"]) == (422, field)
    assert words in str(refused.json()["detail"])


@pytest.mark.process
def test_a_large_body_is_read_for_those_who_may_only(
    service: RunningService, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_bodies, "LARGE_BYTES", 0)
    monkeypatch.setattr(large_bodies, "PROCESS_BYTES", 0)
    client = _RawClient(service.url, {"X-SFQ-Lease": "none"})
    assert client.send(b"{").status == 403
    client = _RawClient(service.url, {"X-SFQ-Lease": service.acquire()})
    refused = client.send(b"{")
    assert refused.status == 422
    assert refused.json() == {"detail": "the body is not JSON", "field": None}


@pytest.mark.process
@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        # its own limit of CPU time, which the same body would exceed again
        ("kill -XCPU $$", 422, "reading the body takes more than 60 s of CPU time"),
        # what the kernel does if memory is short, and what a busy machine does
        ("kill -KILL $$", 503, "this machine is too busy to read the body now"),
        ("exec sleep 60", 503, "this machine is too busy to read the body now"),
    ],
)
def test_a_large_body_that_takes_too_long(
    service: RunningService,
    job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    end: str,
    status: int,
    words: str,
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o700)
    lease = service.acquire()
    monkeypatch.setattr(large_bodies, "LARGE_BYTES", 0)
    monkeypatch.setattr(large_bodies, "PROCESS_BYTES", 0)
    if "sleep" in end:
        monkeypatch.setattr(large_bodies, "PATIENCE_SECONDS", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        refused = service.ask("POST", "/v1/jobs", job("a"), lease=lease)
    assert refused.status == status
    assert words in str(refused.json()["detail"])
    assert (refused.retry_seconds is not None) == (status == 503)


# two qubits are no annealer's
@pytest.mark.devices("sfq")
def test_problems_that_cannot_run(job: MakeJob, bqm: dict[str, JSON]) -> None:
    with running_service(EmulatedDevice(time_scale=0, qubits=2)) as service:
        lease = service.acquire()
        refused = service.ask("POST", "/v1/jobs", job("a"), lease=lease)
        assert refused.status == 422
        assert refused.json() == {
            "detail": "3 variables do not fit on 2 qubits",
            "field": "problem.variable_labels",
        }
        assert service.ask("GET", "/v1/jobs", lease=lease).body == b"[]"


def test_not_a_number_and_not_json(service: RunningService, job: MakeJob) -> None:
    # what no client of ours sends
    client = _RawClient(service.url, {"X-SFQ-Lease": service.acquire()})
    text = str(job("a")).replace("'", '"').replace("-0.5", "NaN")
    refused = client.send(text.replace("False", "false").encode())
    assert refused.status == 422
    assert refused.json()["field"] == "problem.linear_biases[1]"
    refused = client.send(b"{")
    assert refused.json() == {"detail": "the body is not JSON", "field": None}


class _RawClient(Client):
    def send(self, body: bytes) -> Response:
        with closing(http.client.HTTPConnection("localhost")) as connection:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self.url.removeprefix("unix:"))
            headers = {**self._headers, "Content-Type": "application/json"}
            connection.request("POST", "/v1/jobs", body, headers)
            response = connection.getresponse()
            return Response(response.status, response.read())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/jobs/unknown", 404),
        ("GET", "/v1/jobs/unknown/result", 404),
        ("DELETE", "/v1/jobs/unknown", 404),
        ("GET", "/v1/leases/unknown", 404),
        ("DELETE", "/v1/leases/unknown", 404),
        ("GET", "/v2/jobs", 404),
        ("PUT", "/v1/jobs", 405),
        ("GET", "/v1/jobs/unknown?wait=1000", 422),
    ],
)
def test_what_is_not_there(
    service: RunningService, method: str, path: str, status: int
) -> None:
    answer = service.ask(method, path)
    assert answer.status == status
    assert answer.json().keys() == {"detail", "field"}


# its modelled time, which an interrupted annealer bills, is not that which it took
@pytest.mark.devices("sfq", "acme")
def test_jobs_run_one_at_a_time_and_are_cancelled_there(
    slow: RunningService, job: MakeJob
) -> None:
    first, second = slow.acquire(), slow.acquire()
    running = _submit(slow, first, job("a"))
    waiting = _submit(slow, second, job("b"))
    slow.until(first, "Running")
    shown = slow.ask("GET", f"/v1/jobs/{waiting}").json()
    assert (shown["state"], shown["position"]) == ("Queued", 1)
    refused = slow.ask("GET", f"/v1/jobs/{running}/result")
    assert refused.status == 409
    assert "is Running and has no result" in str(refused.json()["detail"])
    cancelled = slow.ask("DELETE", f"/v1/jobs/{running}").json()
    assert (cancelled["state"], cancelled["note"]) == ("Cancelled", "cancelled")
    assert cancelled["qpu_seconds"] == pytest.approx(cancelled["seconds"])
    slow.until(second, "Running")
    again = slow.ask("DELETE", f"/v1/jobs/{running}").json()
    assert again == cancelled


def test_release_cancels_all_jobs_of_the_lease(
    slow: RunningService, job: MakeJob
) -> None:
    lease, other = slow.acquire(), slow.acquire()
    for key in "ab":
        _submit(slow, lease, job(key))
    _submit(slow, other, job("c"))
    slow.until(lease, "Running")
    jobs = slow.ask("DELETE", f"/v1/leases/{lease}").json()["jobs"]
    assert isinstance(jobs, list)
    for entry in jobs:
        assert isinstance(entry, dict)
        assert entry["state"] == "Cancelled"
        assert entry["note"] == "cancelled: its lease was released"
    assert isinstance(jobs[1], dict)
    assert jobs[1]["started"] is None
    slow.until(other, "Running")


def test_those_who_wait_are_told_at_once(slow: RunningService, job: MakeJob) -> None:
    lease = slow.acquire()
    id_ = _submit(slow, lease, job("a"))
    slow.until(lease, "Running")
    shown = slow.ask("GET", f"/v1/jobs/{id_}?wait=0.05").json()
    assert shown["state"] == "Running"
    answers: list[dict[str, JSON]] = []
    waiter = threading.Thread(target=lambda: answers.append(_waited(slow, id_)))
    waiter.start()
    slow.ask("DELETE", f"/v1/leases/{lease}")
    waiter.join()
    assert [answer["state"] for answer in answers] == ["Cancelled"]


# the vendor's words are others
@pytest.mark.devices("sfq")
def test_failed_jobs_say_why(job: MakeJob) -> None:
    with running_service(
        EmulatedDevice(time_scale=0, faults=Faults(fail=1))
    ) as service:
        id_ = _submit(service, service.acquire(), job("a"))
        failed = _waited(service, id_)
        assert (failed["state"], failed["note"]) == ("Failed", "the QPU failed")
        result = service.ask("GET", f"/v1/jobs/{id_}/result")
        assert result.status == 409
        assert "the QPU failed" in str(result.json()["detail"])


# elsewhere, the job on the device goes on over a restart
@pytest.mark.devices
def test_stopped_and_started_again(tmp_path: Path, job: MakeJob) -> None:
    state = tmp_path / "service.sqlite"
    with running_service(
        EmulatedDevice(technology="neutral-atom"), state=state
    ) as service:
        lease = service.acquire()
        running, waiting = (_submit(service, lease, job(key)) for key in "ab")
        service.until(lease, "Running")
    with running_service(state=state) as service:
        assert _waited(service, waiting)["state"] == "Completed"
        stopped = _waited(service, running)
        assert (stopped["state"], stopped["attempt"]) == ("Completed", 2)
        words = "interrupted: the service was stopped during attempt 1"
        assert stopped["note"] == words
        assert service.ask("GET", f"/v1/leases/{lease}").json()["held"] is True


def test_a_queue_that_breaks_says_so(
    service: RunningService, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: float) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    lease = service.acquire()
    monkeypatch.setattr(service.queue.store.progress, "start", broken)
    service.ask("POST", "/v1/jobs", job("a"), lease=lease)
    until(lambda: service.queue.broken, "the queue did not break")
    health = service.ask("GET", "/v1/health")
    assert health.status == 503
    assert "database disk image is malformed" in str(health.json()["detail"])
    assert service.ask("GET", "/v1/device").json()["status"] == "offline"
    assert service.ask("POST", "/v1/jobs", job("b"), lease=lease).status == 503


@pytest.mark.parametrize("value", ["1", True, None, [1], math.nan, math.inf, 10**400])
def test_values_of_parameters_are_numbers(value: JSON) -> None:
    with pytest.raises(ValidationError, match="expected finite numbers"):
        CircuitProgram.model_validate({"program": "", "values": [{"a": value}]})
    read = CircuitProgram.model_validate(
        {"program": "", "values": [{"a": 1, "b": 2.5}]}
    )
    assert read.values == [{"a": 1.0, "b": 2.5}]

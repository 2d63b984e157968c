"""The contract of sf_quantum, on a server-in for Acme's machine.

========================  =============================================================
``GET /machine``          ``Machine``
``PUT /bookings/ID``      423 while another booking is open
``GET /bookings/ID``      410 after its end
``DELETE /bookings/ID``   ends it, and stops its jobs
``POST /jobs``            ``{tag, booking, h, J: [[i, j, value]], shots, seed}``: ``Job``
``GET /jobs?tag=TAG``     ``[Job]``, oldest first; also ``?booking=ID``
``GET /jobs/ID``          ``Job``
``GET /jobs/ID/spins``    ``[[1, -1, ...]]``, a row for each shot
``DELETE /jobs/ID``       stops it, unless it is over
========================  =============================================================

A refusal is ``{error}``: 401 of the key, 404 of what is not there, 410 of a booking that has
ended, or a job under it; 423, 429 and 503 for as long as it is booked, too many ask, or it is
in maintenance.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest
from dimod import BinaryQuadraticModel
from dwave.samplers import SimulatedAnnealingSampler

from sf_quantum import qpu
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import LeaseJob, LeaseLost, NotAccepted, Progress, Task
from sf_quantum.qpu import AuthenticationError, NoLease, Qpu, selection
from sf_quantum.qpu.environment import from_environment, job_environment
from sf_quantum.qpu.selection import QpuSelection
from sf_quantum.testing.qpus import JobContract, QpuContract, problem

KEY, SHOTS = "a user's", 10_000
CALIBRATION: JSON = {"id": "c1", "time": "2026-01-01T00:00:00+00:00", "values": {}}


class Refused(Exception):
    """With its status and reason."""


class Request(BaseHTTPRequestHandler):
    """A request to Acme's REST API."""

    def handle_one_request(self) -> None:
        """Handle a request with any method."""
        self.raw_requestline = self.rfile.readline()
        if self.raw_requestline and self.parse_request():
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or "{}")
            key = self.headers.get("X-Acme-Key")
            status, answer = 200, None
            try:
                answer = cast("AcmeServer", self.server).answer(
                    key, self.command, self.path, body
                )
            except Refused as error:
                status, answer = error.args[0], {"error": error.args[1]}
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            if status in (429, 503):
                self.send_header("Retry-After", "1")
            self.end_headers()
            self.wfile.write(text)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class AcmeServer(ThreadingHTTPServer):
    """Acme's server; each job is seen waiting and running once before it ends."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.state, self.reason, self.booking = "up", "", ""
        self.phase = "done"
        self.refusals: list[int] = []
        self.jobs: list[dict[str, JSON]] = []
        self.spins: list[JSON] = []
        self.sent: list[dict[str, JSON]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(
        self, key: str | None, method: str, path: str, body: dict[str, JSON]
    ) -> JSON:
        if key != KEY:
            raise Refused(401, "this key is not known")
        match method, path.replace("?", "/").replace("=", "/").strip("/").split("/"):
            case _, ["machine"]:
                return self.machine()
            case _, ["bookings", booking]:
                return self.book(method, booking)
            case "POST", ["jobs"]:
                return self.accept(body)
            case _, ["jobs", "tag" | "booking" as field, value]:
                pairs = zip(self.jobs, self.sent, strict=True)
                return [job for job, sent in pairs if sent[field] == value]
            case _, ["jobs", job, *what] if job.isdecimal() and int(job) < len(
                self.sent
            ):
                return self.job(method, int(job), bool(what))
        raise Refused(404, "there is no such thing")

    def machine(self) -> JSON:
        machine: dict[str, JSON] = {"state": self.state, "reason": self.reason}
        machine |= {"qubits": 62, "dead": [3, 9], "shots": SHOTS}
        machine |= {"ahead": 0, "wait": 0.0, "setup": 10, "shot": 0.1}
        return machine | {"calibration": CALIBRATION}

    def book(self, method: str, booking: str) -> JSON:
        if method == "GET" and self.booking != booking:
            raise Refused(410, "the booking has ended")
        if method == "PUT":
            other = self.booking not in ("", booking)
            if other or self.state != "up":
                raise Refused(423 if other else 503, "it is not free")
            self.booking = booking
        if method == "DELETE" and self.booking == booking:
            self.booking = ""
            for number in range(len(self.jobs)):
                self.job(method, number)
        return {}

    def accept(self, sent: dict[str, JSON]) -> JSON:
        if sent["booking"] != self.booking:
            raise Refused(410, "the booking has ended")
        if self.refusals:
            raise Refused(self.refusals.pop(), "too many ask")
        bqm = BinaryQuadraticModel("SPIN")
        for number, bias in enumerate(cast("list[float]", sent["h"])):
            bqm.add_linear(number, bias)
        for u, v, bias in cast("list[tuple[int, int, float]]", sent["J"]):
            bqm.add_quadratic(u, v, bias)
        if len(bqm.variables) > 62:
            raise Refused(422, f"{len(bqm.variables)} spins on 62 qubits")
        if not 1 <= cast("int", sent["shots"]) <= SHOTS:
            raise Refused(422, f"{sent['shots']} shots")
        samples = SimulatedAnnealingSampler().sample(
            bqm, num_reads=int(str(sent["shots"]))
        )
        order = [
            samples.variables.index(number) for number in range(len(bqm.variables))
        ]
        self.spins.append(samples.record.sample[:, order].tolist())
        self.sent.append(sent)
        job: dict[str, JSON] = {"job": str(len(self.jobs)), "phase": "waiting"}
        job |= {"ahead": 2, "wait": 3e6, "took": 0, "billed": 0, "error": ""}
        self.jobs.append({**job, "calibration": None})
        return self.jobs[-1]

    def job(self, method: str, number: int, spins: bool = False) -> JSON:
        if spins:
            return self.spins[number]
        job = self.jobs[number]
        answer, now = {**job}, job["phase"]
        if now in ("waiting", "running"):
            job |= {"phase": "running", "ahead": None, "wait": None}
            if method == "DELETE":
                job |= {"phase": "stopped"}
            elif now == "running":
                job |= {"phase": self.phase, "took": 25.0, "billed": 20.0}
                job |= {"calibration": CALIBRATION}
                job |= {"error": "it burnt" if self.phase == "failed" else ""}
        return answer


@pytest.fixture
def server() -> Iterator[AcmeServer]:
    with AcmeServer() as started:
        thread = threading.Thread(target=started.serve_forever, args=(0.01,))
        thread.start()
        yield started
        started.shutdown()
        thread.join()


@pytest.fixture
def config(server: AcmeServer, tmp_path: Path) -> dict[str, JSON]:
    """The configuration of the QPU."""
    (tmp_path / "key").write_text(f"{KEY}\n")
    return {"url": server.url, "keyFile": str(tmp_path / "key")}


def job_side(driver: Qpu, lease: str) -> Qpu:
    """The job's side of a QPU."""
    job = from_environment(job_environment([(driver, lease)]))
    assert job is not None
    return job


def task() -> Task:
    """A job with a problem of two variables."""
    return Task("first", "problem", json.dumps(problem()), {"num_reads": 3})


class TestAcme(QpuContract, JobContract):
    """All that sf_quantum expects of a QPU."""

    @pytest.fixture
    def driver(self, config: dict[str, JSON]) -> Qpu:
        return qpu.load("acme").from_config("one", config)

    @pytest.fixture(autouse=True)
    def set_server(self, server: AcmeServer) -> None:
        self.server = server

    def refuse(self, driver: Qpu, status: int) -> None:
        self.server.refusals = [status]

    def test_one_booking_at_a_time(self, driver: Qpu, lease: str) -> None:
        with pytest.raises(NoLease, match="'one': it is not free"):
            driver.acquire()
        assert driver.renew(lease) is None

    def test_a_repeated_request_gets_the_same_booking(self, driver: Qpu) -> None:
        tokens = {driver.acquire_waiting(None, wait_seconds=0, key="k") for _ in "ab"}
        assert len(tokens) == 1
        driver.release(*tokens)
        driver.release(driver.acquire_waiting(None, wait_seconds=0, key="another"))

    def test_the_jobs_of_a_released_lease_are_listed(self, driver: Qpu) -> None:
        token = driver.acquire()
        job_side(driver, token).solve(problem(), {"num_reads": 1})
        driver.release(token)
        (used,) = driver.jobs(token) or []
        assert used.qpu_seconds == pytest.approx(20e-6)
        assert used == LeaseJob("0", "Completed", qpu_seconds=used.qpu_seconds)

    def test_a_sites_file_describes_it(
        self, config: dict[str, JSON], tmp_path: Path
    ) -> None:
        entry = {"name": "one", "type": "acme", "environment": config}
        file = tmp_path / "qrmi_config.json"
        file.write_text(json.dumps({"resources": [entry]}))
        (client,) = QpuSelection(["one"], qrmi_config=str(file)).qpus({})
        assert client.status().online
        of_rest = selection.client(
            "acme", "q", {"qrmiConfig": str(file), "resource": "one"}
        )
        assert of_rest.status().online
        file.write_text(file.read_text().replace('"url"', '"uri"'))
        with pytest.raises(
            InputError, match=r"qrmi_config.json: resources\[0\]: unknown key 'uri'"
        ):
            QpuSelection(["one"], qrmi_config=str(file)).qpus({})

    def test_the_description_is_the_vendors(self, driver: Qpu) -> None:
        device = driver.describe()
        assert (device.qubits, device.shots) == (62, SHOTS)
        assert sorted(device.out_of_service) == [3, 9]
        assert device.timing is not None
        assert device.timing.job_seconds(1000) == pytest.approx(110e-6)
        assert device.calibration == CalibrationData.read(CALIBRATION)

    def test_a_queued_job_has_a_position_and_an_eta(self, job: Qpu) -> None:
        number = job.submit(task())
        queued = job.poll(number)
        assert (queued.state, queued.position, queued.eta_seconds) == ("Queued", 2, 3.0)
        assert job.poll(number) == Progress("Running")

    def test_vendor_errors_are_reported(
        self, driver: Qpu, server: AcmeServer, config: dict[str, JSON]
    ) -> None:
        server.state = "down"
        assert driver.status().reason == "it is down"
        with pytest.raises(NoLease):
            driver.acquire()
        server.state, server.reason = "maintenance", "a new cryostat"
        assert driver.status().reason == "a new cryostat"
        server.state, server.phase = "up", "failed"
        token = driver.acquire()
        job = job_side(driver, token)
        with pytest.raises(QpuError, match="job 0: it burnt"):
            job.solve(problem(), {"num_reads": 1})
        with pytest.raises(InputError, match="num_sweeps"):
            job.solve(problem(), {"num_sweeps": 1})
        server.refusals = [429]
        with pytest.raises(NotAccepted, match="too many ask") as caught:
            job.submit(task())
        assert caught.value.retry_seconds == 1
        driver.release(token)
        with pytest.raises(LeaseLost, match="the booking has ended"):
            job.submit(task())
        with pytest.raises(LeaseLost, match="the booking has ended"):
            driver.renew(token)
        Path(str(config["keyFile"])).write_text("another's")
        with pytest.raises(AuthenticationError, match="not known"):
            driver.status()

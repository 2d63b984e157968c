"""The contract of sf_quantum, on a stand-in for Acme's machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest
from dimod import BinaryQuadraticModel
from neal import SimulatedAnnealingSampler

from sf_quantum import qpu
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import NoLease, Qpu, selection
from sf_quantum.qpu.selection import QpuSelection
from sf_quantum.testing.qpus import QpuContract, problem


class Machine(BaseHTTPRequestHandler):
    """Acme's REST API."""

    def handle_one_request(self) -> None:
        """Take any method."""
        self.raw_requestline = self.rfile.readline()
        if self.raw_requestline and self.parse_request():
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or "{}")
            status, answer = self.answer(self.path.strip("/").split("/"), body)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        self.close_connection = True

    def answer(
        self, path: list[str], body: dict[str, JSON]
    ) -> tuple[int, dict[str, JSON]]:
        server = cast("Stand", self.server)
        match self.command, path:
            case "GET", ["machine"]:
                return 200, {"state": server.state, "spins": 64, "jobs": 0}
            case "PUT", ["booking", booking]:
                if server.booking:
                    return 423, {}
                server.booking = booking
                return 201, {}
            case "DELETE", ["booking", booking]:
                if server.booking == booking:
                    server.booking = ""
                return 200, {}
            case "GET", ["booking", booking]:
                return 200, {"runs": server.of.get(booking, [])}
            case "POST", ["booking", booking, "run"] if booking == server.booking:
                return 202, {"run": server.run(body)}
            case "GET", ["run", number]:
                return 200, server.told(int(number))
        return 404, {}

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Stand(ThreadingHTTPServer):
    """The machine; each run is seen running once before it is over."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Machine)
        self.state, self.phase, self.booking = "up", "done", ""
        self.runs: list[dict[str, JSON]] = []
        self.of: dict[str, list[JSON]] = {}
        self.seen: set[int] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def run(self, body: dict[str, JSON]) -> int:
        bqm = BinaryQuadraticModel("SPIN")
        for number, bias in enumerate(cast("list[float]", body["h"])):
            bqm.add_linear(number, bias)
        for u, v, bias in cast("list[tuple[int, int, float]]", body["J"]):
            bqm.add_quadratic(u, v, bias)
        found = SimulatedAnnealingSampler().sample(bqm, num_reads=body["shots"])
        rows: list[JSON] = [
            [int(row[number]) for number in range(len(bqm.variables))]
            for row in found.samples()
        ]
        self.runs.append({"phase": self.phase, "spins": rows, "micros": 20.0})
        told: JSON = {
            "run": len(self.runs) - 1,
            "phase": self.phase,
            "micros": 20.0,
        }
        self.of.setdefault(self.booking, []).append(told)
        return len(self.runs) - 1

    def told(self, number: int) -> dict[str, JSON]:
        if number in self.seen:
            return self.runs[number]
        self.seen.add(number)
        return {"phase": "running"}


@pytest.fixture
def stand() -> Iterator[Stand]:
    with Stand() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class TestAcme(QpuContract):
    """All that sf_quantum expects of a QPU."""

    @pytest.fixture
    def driver(self, stand: Stand) -> Qpu:
        return qpu.load("acme").from_config("one", {"url": stand.url})

    def test_one_booking_at_a_time(self, driver: Qpu) -> None:
        token = driver.acquire()
        with pytest.raises(NoLease, match="'one' is booked"):
            driver.acquire()
        driver.release(token)

    def test_what_a_lease_was_used_for_is_told(self, driver: Qpu) -> None:
        token = driver.acquire()
        job = qpu.from_environment(qpu.environment([(driver, token)]))
        assert job is not None
        job.solve(problem(), {"num_reads": 1})
        driver.release(token)
        told = driver.jobs(token)
        assert told == [{"id": "0", "state": "Completed", "qpu_seconds": 20e-6}]

    def test_a_sites_file_describes_it(self, stand: Stand, tmp_path: Path) -> None:
        entry = {"name": "one", "type": "acme", "environment": {"url": stand.url}}
        file = tmp_path / "qrmi_config.json"
        file.write_text(json.dumps({"resources": [entry]}))
        (found,) = QpuSelection(["one"], qrmi_config=str(file)).qpus({})
        assert found.status().online
        of_rest = selection.client(
            "acme", "q", {"qrmiConfig": str(file), "resource": "one"}
        )
        assert of_rest.status().online
        file.write_text(file.read_text().replace('"url"', '"uri"'))
        with pytest.raises(
            InputError, match=r"qrmi_config.json: one: unknown key 'uri'"
        ):
            QpuSelection(["one"], qrmi_config=str(file)).qpus({})

    def test_trouble_is_told(self, driver: Qpu, stand: Stand) -> None:
        stand.state = "down"
        assert driver.status().reason == "it is down"
        stand.phase = "burnt"
        token = driver.acquire()
        job = qpu.from_environment(qpu.environment([(driver, token)]))
        assert job is not None
        with pytest.raises(QpuError, match="run 0 burnt"):
            job.solve(problem(), {"num_reads": 1})
        driver.release(token)
        with pytest.raises(InputError, match="status 404"):
            job.solve(problem(), {"num_reads": 1})

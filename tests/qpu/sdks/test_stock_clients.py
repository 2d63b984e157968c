"""What the clients of SDKs ask goes to the service under the job's lease."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sf_quantum.cli import main
from sf_quantum.net import local_server
from sf_quantum.net.bounded_answers import Timed
from sf_quantum.net.transport import Client
from sf_quantum.protocol.leases import LEASE_HEADER
from sf_quantum.qpu import QpuStatus
from sf_quantum.qpu.environment import job_environment
from sf_quantum.qpu.sdks import stock_clients
from sf_quantum.qpu.sfq.credentials import Credentials
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support import forking
from tests.support.service import RunningService, running_service
from tests.support.waiting import SECONDS, until

OCEAN = """
from dwave.system import DWaveSampler
sampler = DWaveSampler()
qubit = sampler.nodelist[0]
print(sampler.sample_ising({qubit: 1.0}, {}, num_reads=10).first.energy)
"""


FLIP = """
import json
from qrmi import Payload, QRMIService
(star,) = QRMIService().resources()
flip = {"name": "prx", "locus": ["QB2"], "args": {"angle": 3.141592653589793, "phase": 0}}
read = {"name": "measure", "locus": ["QB2", "QB1"], "args": {"key": "m"}}
circuit = {"name": "flip", "instructions": [flip, read]}
job = json.dumps({"circuits": [circuit], "shots": 3})
task = star.task_start(
    Payload.IQMServer(iqmjson=job, job_type="circuit", use_timeslot=False, tag=None)
)
while not str(star.task_status(task)).endswith("Completed"):
    pass
counts = json.loads(star.task_result(task).value)["measurement_counts"]
print(star.resource_id(), counts[0]["counts"])
"""


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(qubits=40, time_scale=0.0)) as running:
        yield running


def status(technology: str) -> QpuStatus:
    return QpuStatus("q", technology, True, "", 5, 1, 0, 0)


def forwarding(service: RunningService) -> AbstractContextManager[dict[str, str]]:
    client = SfqQpu("q", service.url, lease=service.acquire())
    return stock_clients.variables(client, client.status(), {})


class Asked:
    """A client that knows nothing but the variables."""

    def __init__(self, variables: dict[str, str]) -> None:
        url = urlsplit(variables["DWAVE_API_ENDPOINT"])
        self.path = url.path
        self._address = str(url.hostname), url.port
        self._secret = variables["DWAVE_API_TOKEN"]

    def __call__(
        self, method: str, path: str, body: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self._address, timeout=SECONDS)
        try:
            connection.putrequest(method, path)
            for name, value in {"X_Auth_Token": self._secret, **headers}.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders(body.encode() if body else None)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


def test_requests_are_sent_on_with_their_headers(service: RunningService) -> None:
    with forwarding(service) as variables:
        ask = Asked(variables)
        status, headers, body = ask("GET", f"{ask.path}/solvers/remote/")
        assert status == 200
        assert json.loads(body)[0]["properties"]["topology"]["type"] == "pegasus"
        assert "application/json" in headers["content-type"]
        empty = ask("HEAD", f"{ask.path}/solvers/remote/")[2]
        assert empty == b""


def test_only_who_knows_the_secret_is_answered(service: RunningService) -> None:
    with forwarding(service) as variables:
        ask = Asked(variables)
        secret = variables["DWAVE_API_TOKEN"]
        for given in ("", secret[:-1], f"Bearer {secret}x", "\u00e9"):
            assert ask("GET", "/v1/device", X_Auth_Token=given)[0] == 401
        bearer = f"Bearer {secret}"
        assert ask("GET", "/v1/device", X_Auth_Token="", Authorization=bearer)[0] == 200


def test_the_lease_is_the_jobs(service: RunningService) -> None:
    with forwarding(service) as variables:
        assert Asked(variables)("GET", "/v1/jobs", x_sfq_lease="another")[0] == 200


def test_clients_in_trouble_leave_the_jobs_standard_error_alone(
    service: RunningService, capfd: pytest.CaptureFixture[str]
) -> None:
    with forwarding(service) as variables:
        url = urlsplit(variables["DWAVE_API_ENDPOINT"])
        with socket.create_connection((url.hostname, url.port), SECONDS) as client:
            secret = variables["DWAVE_API_TOKEN"]
            path = "/v1/\u00e9"
            client.sendall(
                f"GET {path} HTTP/1.1\r\nX-Auth-Token: {secret}\r\n".encode()
            )
            client.sendall(b"\r\n")
            assert b" 400 " in client.recv(100)
        with socket.create_connection((url.hostname, url.port), SECONDS) as client:
            client.sendall(b"GET ")
            linger = struct.pack("ii", 1, 0)  # the connection is reset
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        until(no_request, "no request is left")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("says", [b"", b"GET /accessible HTTP/1.1\r\n"])
def test_connections_without_a_credential_release_keeping_position(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    monkeypatch.setattr(local_server, "MOST_CONNECTIONS", 2)
    with forwarding(service) as variables, ExitStack() as strangers:
        ask = Asked(variables)
        url = urlsplit(variables["DWAVE_API_ENDPOINT"])
        for _ in range(5):
            stranger = socket.create_connection((url.hostname, url.port), SECONDS)
            strangers.enter_context(stranger).sendall(says)
        assert ask("GET", "/v1/device")[0] == 200
    until(no_request, "the connections have ended")


def test_strangers_requests_have_no_credential(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a token of the job\n")
    token.chmod(0o600)
    sent: list[tuple[str, set[str]]] = []
    request = http.client.HTTPConnection.request

    def noted(
        connection: http.client.HTTPConnection,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
    ) -> None:
        if "x-sfq-test" in headers:
            sent.append((url, {name.lower() for name in headers}))
        request(connection, method, url, body, headers)

    credentials = Credentials(token_file=str(token))
    monkeypatch.setattr(Timed, "request", noted, raising=False)
    client = SfqQpu("q", service.url, credentials=credentials, lease=service.acquire())
    own = {"authorization", LEASE_HEADER.lower()}
    with stock_clients.variables(client, status("annealer"), {}) as variables:
        ask = Asked(variables)
        for path in ("/accessible", "/v1/device"):
            assert ask("GET", path, x_sfq_test="1")[0] == 200
        assert ask("GET", "/accessible", X_Auth_Token="", x_sfq_test="1")[0] == 200
        assert ask("GET", "/v1/device", X_Auth_Token="", x_sfq_test="1")[0] == 401
    assert [path for path, _ in sent] == ["/accessible", "/v1/device", "/accessible"]
    assert [own & names for _, names in sent] == [own, own, set()]


def test_strangers_requests_that_wait_leave_places(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service answers some paths without a credential, perhaps slowly."""
    monkeypatch.setattr(stock_clients, "MOST_PUBLIC", 1)
    waits, go = threading.Event(), threading.Event()
    exchange = Client.exchange

    def slow(
        client: Client, method: str, path: str, *more: object, **options: object
    ) -> object:
        if path == "/accessible":
            waits.set()
            go.wait(SECONDS)
        return exchange(client, method, path, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "exchange", slow)
    with forwarding(service) as variables, ExitStack() as strangers:
        url = urlsplit(variables["DWAVE_API_ENDPOINT"])
        asking = b"GET /accessible HTTP/1.1\r\nHost: x\r\n\r\n"
        first = socket.create_connection((url.hostname, url.port), SECONDS)
        strangers.enter_context(first).sendall(asking)
        assert waits.wait(SECONDS)
        for _ in range(3):
            other = socket.create_connection((url.hostname, url.port), SECONDS)
            strangers.enter_context(other).sendall(asking)
            assert b" 503 " in other.recv(100)
        assert Asked(variables)("GET", "/v1/device")[0] == 200
        go.set()
        assert b" 200 " in first.recv(100)
    until(no_request, "the connections have ended")


def test_connections_with_the_credential_have_a_bound(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "MOST_CONNECTIONS", 1)
    with forwarding(service) as variables:
        ask = Asked(variables)
        url = urlsplit(variables["DWAVE_API_ENDPOINT"])
        kept = http.client.HTTPConnection(f"{url.hostname}:{url.port}", timeout=SECONDS)
        with closing(kept):
            kept.request(
                "GET",
                "/v1/device",
                headers={"X-Auth-Token": variables["DWAVE_API_TOKEN"]},
            )
            assert kept.getresponse().read()
            with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
                ask("GET", "/v1/device")
        until(no_request, "the connection has ended")
        assert ask("GET", "/v1/device")[0] == 200


def no_request() -> bool:
    return not any("request" in thread.name for thread in threading.enumerate())


def test_a_body_has_a_length_and_a_bound(service: RunningService) -> None:
    most = stock_clients.MOST_BYTES
    with forwarding(service) as variables:
        ask = Asked(variables)
        path = f"{ask.path}/problems/"
        assert ask("POST", path, Content_Length=f"{most + 1}")[0] == 413
        assert ask("POST", path, Content_Length="-1")[0] == 411
        assert ask("POST", path, Transfer_Encoding="chunked")[0] == 411


def test_a_service_that_is_gone_is_a_bad_gateway(tmp_path: Path) -> None:
    gone = SfqQpu("q", f"unix:{tmp_path}/gone", lease="t")
    with stock_clients.variables(gone, status("annealer"), {}) as variables:
        ask = Asked(variables)
        assert ask("GET", f"{ask.path}/solvers/remote/")[0] == 502


@pytest.mark.process
def test_stock_ocean_finds_the_qpu_of_its_step(
    service: RunningService, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("dwave.system", reason="the extra dwave is not installed")
    program = tmp_path / "program.py"
    program.write_text(OCEAN)
    words = [forking.python(), str(program)]
    assert main(["lease", "--url", service.url, "--clients", "--", *words]) == 0
    assert capfd.readouterr().out == "-1.0\n"
    (job,) = service.queue.store.jobs.latest()
    (lease,) = json.loads(service.ask("GET", "/v1/leases?closed=true").body)
    assert (job.lease, lease["job"]) == (lease["id"], "python")


@pytest.mark.process
def test_stock_qrmi_finds_the_circuits_qpu_of_its_step(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    program = tmp_path / "program.py"
    program.write_text(FLIP)
    device = EmulatedDevice(
        name="a_star", technology="superconducting", qubits=5, time_scale=0.0
    )
    with running_service(device) as service:
        words = [forking.python(), str(program)]
        assert main(["lease", "--url", service.url, "--clients", "--", *words]) == 0
        # as QRMI writes the name of a quantum computer
        assert capfd.readouterr().out == "a:star {'10': 3}\n"
        (job,) = service.queue.store.jobs.latest()
        (lease,) = json.loads(service.ask("GET", "/v1/leases?closed=true").body)
        assert job.lease == lease["id"]


@pytest.mark.process
def test_under_a_lease_that_is_held(
    service: RunningService,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = SfqQpu("q", service.url)
    variables = job_environment([(client, service.acquire())])
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    words = ["sh", "-c", "echo $DWAVE_API_ENDPOINT"]
    assert main(["lease", "--held", "--clients", "--", *words]) == 0
    assert capfd.readouterr().out.endswith("/sapi/v2\n")


def test_a_technology_without_a_client_has_no_variables(
    service: RunningService,
) -> None:
    client = SfqQpu("q", service.url, lease="t")
    with stock_clients.variables(client, status("photonic"), {}) as variables:
        assert variables == {}


def test_other_types_have_clients_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "chip")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "dwave")
    monkeypatch.setenv("chip_QRMI_JOB_ACQUISITION_TOKEN", "t")
    monkeypatch.setenv("DWAVE_API_ENDPOINT", "https://vendor.example/sapi/v2")
    monkeypatch.setenv("DWAVE_API_TOKEN", "t")
    monkeypatch.setenv("chip_DWAVE_API_ENDPOINT", "https://vendor.example/sapi/v2")
    monkeypatch.setenv("chip_DWAVE_API_TOKEN", "t")
    assert main(["lease", "--held", "--clients", "--", "true"]) == 2
    assert "--clients: QPU 'chip' has the type dwave" in capsys.readouterr().err

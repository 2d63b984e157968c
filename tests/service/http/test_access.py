"""``sfq serve`` and who may use it: tokens, MUNGE, TLS; what it drains and what it logs."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.net import munge
from sf_quantum.net.transport import Client, Response, Unreachable
from sf_quantum.service import run
from sf_quantum.service.http.tokens import new_token, token_entry
from tests.support import forking
from tests.support.service import example_bqm
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.process

# in the problem, so that a log that has it can be told
LABEL = "s3cret-label"


def _sfq() -> str:
    return f"{forking.stand_ins()}/sfq"


class Service:
    """A process, its URL and what it writes to standard error."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        self.url = str(json.loads(line)["url"])

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, JSON] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        return Client(self.url, headers or {}).request(method, path, body)

    def stop(self) -> str:
        """:returns: everything it logged"""
        self.process.terminate()
        assert self.process.wait(SECONDS) == 0
        return self.log.read_text()


@contextmanager
def serving(
    *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Service]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sfq-")))
        log = stack.enter_context(open(folder / "log", "wb"))
        # killed, it could not remove a temporary one
        state = [] if "--state" in options else ["--state", str(folder / "state")]
        process = stack.enter_context(
            subprocess.Popen(
                [_sfq(), "serve", "--log", "debug", *state, *options],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        )
        stack.callback(process.send_signal, signal.SIGINT)
        yield Service(process, folder / "log")


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Tokens by user, and the tokens file as the user ``file``."""
    path = tmp_path / "tokens.yml"
    made = {"ada": new_token(), "bob": new_token(), "root": new_token()}
    path.touch(0o600)
    path.write_text(
        json.dumps(
            [token_entry(name, made[name], admin=name == "root") for name in made]
        )
    )
    return {**made, "file": str(path)}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def job(key: str) -> dict[str, JSON]:
    bqm = example_bqm()
    bqm["variable_labels"] = [LABEL, "b", "c"]
    return {"problem": bqm, "idempotency_key": key, "parameters": {"num_reads": 3}}


def test_tokens_tell_users_apart_and_stay_out_of_the_log(
    tokens: dict[str, str],
) -> None:
    ada, bob = bearer(tokens["ada"]), bearer(tokens["bob"])
    options = ["--auth", "token", "--tokens", tokens["file"], "--time-scale", "0"]
    with serving(*options, "--vqpus", "2") as service:
        for headers in ({}, bearer(f"{tokens['ada']}x"), bearer(f"{LABEL}")):
            refused = service.ask("POST", "/v1/leases", {}, headers)
            assert refused.status == 401
            assert refused.json()["field"] == "Authorization"
        lease = str(service.ask("POST", "/v1/leases", {}, ada).json()["id"])
        mine = {**ada, "X-SFQ-Lease": lease}
        id_ = str(service.ask("POST", "/v1/jobs", job("key-of-ada"), mine).json()["id"])
        shown = service.ask("GET", f"/v1/jobs/{id_}?wait=60", headers=ada).json()
        assert shown["state"] == "Completed"
        assert (
            LABEL.encode()
            in service.ask("GET", f"/v1/jobs/{id_}/result", headers=ada).body
        )
        # a job with a mistake in it, of which an error could tell too much
        wrong = {**job("key-of-ada-2"), LABEL: LABEL}
        assert service.ask("POST", "/v1/jobs", wrong, mine).status == 422
        for path in (f"/v1/jobs/{id_}", f"/v1/leases/{lease}"):
            assert service.ask("GET", path, headers=bob).status == 404
            assert service.ask("DELETE", path, headers=bob).status == 404
            assert (
                service.ask("GET", path, headers=bearer(tokens["root"])).status == 200
            )
        log = service.stop()
    assert "user=ada method=POST route=/v1/leases status=201" in log
    assert "user=@127.0.0.1 method=POST route=/v1/leases status=401" in log
    secrets = [*tokens.values(), lease, LABEL, "key-of-ada"]
    assert [secret for secret in secrets if secret in log] == []


def test_a_refusal_says_how_to_be_let_in(tokens: dict[str, str]) -> None:
    with serving("--auth", "token", "--tokens", tokens["file"]) as service:
        address = service.url.removeprefix("http://")
        connection = http.client.HTTPConnection(address)
        connection.request("GET", "/v1/leases")
        answer = connection.getresponse()
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="sfq"'
        connection.close()


def test_munge_over_a_socket_that_is_open_to_all(
    munge_socket: Path, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(prefix="sfq-") as folder:
        path = Path(folder) / "s"
        options = ["--socket", str(path), "--time-scale", "0"]
        options += ["--auth", "munge", "--munge-socket", str(munge_socket)]
        with serving(*options) as service:
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            credential = munge.encode(str(munge_socket))
            first = service.ask("POST", "/v1/leases", {}, {"X-Munge-Cred": credential})
            assert first.status == 201
            again = service.ask("POST", "/v1/leases", {}, {"X-Munge-Cred": credential})
            assert (again.status, again.json()["field"]) == (401, "X-Munge-Cred")
            assert again.json()["detail"] == "replayed credential"
            log = service.stop()
    assert credential not in log


def test_a_munge_daemon_that_is_missing() -> None:
    command = [_sfq(), "serve", "--auth", "munge", "--munge-socket", "/nowhere/s"]
    done = subprocess.run(command, capture_output=True, text=True)
    # 2: there is no libmunge either
    assert done.returncode in (2, 75)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_tls_for_other_machines(
    tokens: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    certificate, key = str(tmp_path / "certificate"), str(tmp_path / "key")
    request = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    renew = [openssl, *request.split(), "-out", certificate, "-keyout", key]
    subprocess.run(renew, check=True, capture_output=True)
    options = ["--host", "0.0.0.0", "--certificate", certificate, "--key", key]
    options += ["--auth", "token", "--tokens", tokens["file"]]
    with serving(*options) as service:
        assert service.url.startswith("https://0.0.0.0:")
        service.url = service.url.replace("0.0.0.0", "localhost")
        asked = [_sfq(), "lease", "--url", service.url, "--", "true"]
        done = subprocess.run(asked, capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"{service.url}: the certificate cannot be verified: " in done.stderr
        assert "SSL_CERT_FILE" in done.stderr
        plain = service.url.replace("https", "http")
        asked = [_sfq(), "lease", "--url", plain, "--", "true"]
        done = subprocess.run(asked, capture_output=True, text=True)
        line = f"sfq lease: {plain}: speaks TLS only; use {service.url}\n"
        assert (done.returncode, done.stderr) == (2, line)
        port = int(service.url.rpartition(":")[2])
        first = ssl.get_server_certificate(("localhost", port))
        subprocess.run(renew, check=True, capture_output=True)
        service.process.send_signal(signal.SIGHUP)
        until(
            lambda: ssl.get_server_certificate(("localhost", port)) != first,
            "the new certificate",
        )
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        headers = bearer(tokens["ada"])
        assert service.ask("POST", "/v1/leases", {}, headers).status == 201
    os.chmod(key, 0o644)
    done = subprocess.run([_sfq(), "serve", *options], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{key}: mode 0644 is open to others" in done.stderr
    os.chmod(key, 0o600)
    Path(certificate).write_text("nonsense")
    done = subprocess.run([_sfq(), "serve", *options], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be used for TLS" in done.stderr


# the most that it takes
DRAIN_SECONDS = 3.0


def test_sigterm_lets_the_running_job_end(tmp_path: Path) -> None:
    state = ["--state", str(tmp_path / "state")]
    # jobs of 0.2 seconds, so many that one runs whenever the signal comes
    options = ["--technology", "superconducting", "--time-scale", "0.02", *state]
    options += ["--drain", f"{DRAIN_SECONDS:g}"]
    with serving(*options) as service:
        lease = str(service.ask("POST", "/v1/leases", {}).json()["id"])
        held = {"X-SFQ-Lease": lease}
        ids = [
            service.ask("POST", "/v1/jobs", job(f"{number}"), held).json()["id"]
            for number in range(50)
        ]
        sent = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(SECONDS) == 0
        stood_still = time.monotonic() - sent >= DRAIN_SECONDS
    with serving("--time-scale", "0", *state) as service:
        shown = [service.ask("GET", f"/v1/jobs/{id_}?wait=60").json() for id_ in ids]
    assert [one["state"] for one in shown] == ["Completed"] * 50
    # none was interrupted, or the one whose time was over
    interrupted = sum(one["attempt"] != 1 for one in shown)
    assert interrupted <= stood_still


def test_asked_twice_it_stops() -> None:
    with serving("--technology", "neutral-atom", "--drain", "3") as service:
        lease = str(service.ask("POST", "/v1/leases", {}).json()["id"])
        body = service.ask("POST", "/v1/jobs", job("a"), {"X-SFQ-Lease": lease}).json()
        _until_running(service, str(body["id"]))
        service.process.terminate()
        _until_refused(service)
        service.process.terminate()
        assert service.process.wait(SECONDS) == 0


def test_systemd_is_told() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="sfq-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
    ):
        path = f"{folder}/notify"
        listener.bind(path)
        listener.settimeout(SECONDS)
        environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "600000000"}
        config = Path(folder) / "qpu-service.yml"
        config.write_text("vqpus: 1\n")
        options = ("--log-format", "json", "--config", str(config))
        with serving(*options, environment=environment) as service:
            assert listener.recv(100) == b"WATCHDOG=1"
            assert listener.recv(100) == b"READY=1"
            for content, status in (
                ("leases: {idle_seconds: 60}", b"reloaded the configuration"),
                ("vqpus: 2", b"reloaded; vqpus changed, but needs a restart"),
                ("vqpus: many", b"the configuration is not reloaded: "),
            ):
                config.write_text(content)
                began = time.monotonic_ns() // 1000
                service.process.send_signal(signal.SIGHUP)
                what, _, clock = listener.recv(100).partition(b"\nMONOTONIC_USEC=")
                assert what == b"RELOADING=1"
                assert int(clock) >= began
                assert listener.recv(1000).startswith(b"READY=1\nSTATUS=" + status)
            service.stop()
            assert listener.recv(100) == b"STOPPING=1"
            lines = service.log.read_text().splitlines()
            assert {"time", "level", "message"} <= json.loads(lines[0]).keys()


def _until_refused(service: Service) -> None:
    def refused() -> bool:
        try:
            return service.ask("POST", "/v1/leases", {}).status == 503
        except Unreachable:  # the time to end was over before it was asked
            return True

    until(refused, "a refusal")


def _until_running(service: Service, job_id: str) -> None:
    until(
        lambda: service.ask("GET", f"/v1/jobs/{job_id}").json()["state"] == "Running",
        "a running job",
    )


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    with (
        run._tcp("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

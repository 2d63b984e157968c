"""``sfq serve`` as a process: how it starts, how it ends, what survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from tests.support import forking
from tests.support.forking import BIN
from tests.support.service import example_bqm
from tests.support.service_process import over_device, until_ready
from tests.support.waiting import SECONDS, until

# jobs of minutes: whatever ends them within a test is not their time
MINUTES = ["--technology", "neutral-atom", "--time-scale", "1"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("measured")]
# Over a real QPU, a job that ran when the service ended is found again, and does not run
# twice: that is for test_service_crash.py. Others rewrite the configuration, or have no device.
over_real_clients = pytest.mark.devices("sfq", "dwave", "acme")


class Service:
    """A process and the client of its socket."""

    def __init__(
        self, sfq: str, folder: Path, options: Sequence[str], more: Mapping[str, str]
    ) -> None:
        self.socket = folder / "s"
        self.state = folder / "state"
        where = ["--socket", str(self.socket), "--state", str(self.state)]
        self.process = subprocess.Popen(
            [sfq, "serve", *where, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **more},
        )
        self.url = f"unix:{self.socket}"

    def ready(self) -> dict[str, JSON]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        content: dict[str, JSON] = json.loads(line)
        return content

    def errors(self) -> str:
        self.close_input()
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, JSON] | None = None,
        lease: str | None = None,
    ) -> dict[str, JSON]:
        headers = {"X-SFQ-Lease": lease} if lease else {}
        answer = Client(self.url, headers).request(method, path, body)
        assert answer.status < 400, answer.body
        return answer.json()

    def acquire(self) -> str:
        return str(self.ask("POST", "/v1/leases", {})["id"])

    def submit(self, lease: str, key: str) -> str:
        parameters: dict[str, JSON] = {"num_reads": 5, "seed": 1}
        job: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": key}
        job["parameters"] = parameters
        return str(self.ask("POST", "/v1/jobs", job, lease)["id"])

    def until(self, lease: str, state: str) -> dict[str, JSON]:
        """Wait until the first job of a lease is in a state."""

        def first() -> dict[str, JSON]:
            jobs = self.ask("GET", f"/v1/leases/{lease}")["jobs"]
            assert isinstance(jobs, list)
            job = jobs[0] if jobs else None
            return job if isinstance(job, dict) and job["state"] == state else {}

        return until(first, f"a job that is {state}")


Start = Callable[..., Service]


@pytest.fixture
def sfq() -> str:
    """The command."""
    return f"{forking.stand_ins()}/sfq"


@pytest.fixture
def start(sfq: str) -> Iterator[Start]:
    """Starts services in one folder and waits until they are ready."""
    with _starting(sfq) as start:
        yield start


@pytest.fixture
def start_to_kill() -> Iterator[Start]:
    """As ``start``, but SIGKILL ends a service at once, and not its stand-in first."""
    with _starting(f"{BIN}/sfq") as start:
        yield start


@contextmanager
def _starting(sfq: str) -> Iterator[Start]:
    services: list[Service] = []
    # a short path: pytest's own folders can be too long for a socket
    with (
        tempfile.TemporaryDirectory(prefix="sfq-") as folder,
        ExitStack() as vendors,
    ):

        def run(*options: str, ready: bool = True) -> Service:
            device = Path(folder) / f"device{len(services)}"
            over = vendors.enter_context(over_device(options, device))
            service = Service(sfq, Path(folder), *over)
            services.append(service)
            if ready:
                assert service.ready() == {"url": service.url}
                until_ready(service.url)
            return service

        yield run
        for service in services:
            with service.process:  # closes its pipes
                service.process.send_signal(signal.SIGINT)


def _solve(
    sfq: str, service: Service, lease: str, folder: Path
) -> subprocess.Popen[bytes]:
    problem = folder / "problem.json"
    problem.write_text(json.dumps({"bqm": example_bqm()}))
    environment = {
        **os.environ,
        "QRMI_JOB_QPU_RESOURCES": "q",
        "QRMI_JOB_QPU_TYPES": "sfq",
        "q_SFQ_URL": service.url,
        "q_QRMI_JOB_ACQUISITION_TOKEN": lease,
        # not as long as a service takes to come back
        "q_SFQ_PATIENCE_SECONDS": "0.3",
    }
    files = ["--problem", str(problem), "--output", str(folder / "samples.json")]
    return subprocess.Popen(
        [sfq, "solve", *files, "--reads", "5"], env=environment, stderr=subprocess.PIPE
    )


# an annealer has as many qubits as its graph
@pytest.mark.devices("sfq", "acme")
def test_it_listens_for_its_owner_only(start: Start) -> None:
    service = start("--name", "q", "--vqpus", "3", "--qubits", "9", "--seed", "1")
    assert stat.S_IMODE(service.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(service.state.stat().st_mode) == 0o700
    device = service.ask("GET", "/v1/device")
    assert (device["name"], device["vqpus"], device["qubits"]) == ("q", 3, 9)


def test_any_port_on_loopback(sfq: str) -> None:
    command = [sfq, "serve", "--port", "0", "--until-eof"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("http://127.0.0.1:")
        assert Client(url, {}).request("GET", "/v1/health").status == 200
        process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_cleanly(start: Start, number: signal.Signals) -> None:
    service = start(*MINUTES, "--drain", "0.1")
    lease = service.acquire()
    service.submit(lease, "a")
    service.until(lease, "Running")
    service.process.send_signal(number)
    assert service.process.wait(SECONDS) == 0
    assert service.errors() == ""
    assert not service.socket.exists()
    again = start("--time-scale", "0")
    job = again.until(lease, "Completed")
    assert job["note"] == "interrupted: the service was stopped during attempt 1"
    assert job["attempt"] == 2


def test_a_reload_changes_rights_and_leaves_the_running_job(
    start: Start, tmp_path: Path
) -> None:
    config = tmp_path / "qpu.yml"
    config.write_text("vqpus: 3")
    service = start("--config", str(config), *MINUTES)
    lease = service.acquire()
    service.submit(lease, "a")
    service.until(lease, "Running")
    assert service.process.stderr is not None

    def reload(content: str) -> str:
        config.write_text(content)
        service.process.send_signal(signal.SIGHUP)
        assert service.process.stderr is not None
        # after the time
        return service.process.stderr.readline().decode().partition(" ")[2]

    def granted() -> JSON:
        body: dict[str, JSON] = {"class": "production"}
        return service.ask("POST", "/v1/leases", body)["class"]

    assert granted() == "production"
    line = reload("vqpus: 4\nclasses: {highest: test}\nretention_seconds: 5")
    restart = "retention_seconds, vqpus changed, but needs a restart of the service\n"
    assert line == f"WARNING sf_quantum.service.run: reloaded; {restart}"
    assert granted() == "test"
    line = reload("vqpus: 3\nclasses: {highest: tset}")
    assert line.startswith("ERROR sf_quantum.service.run: the configuration is not rel")
    assert f"{config}: classes.highest tset: unknown value 'tset'" in line
    assert service.ask("GET", "/v1/device")["vqpus"] == 3
    job = service.until(lease, "Running")
    assert (job["attempt"], job["note"]) == (1, None)
    service.process.terminate()
    assert service.process.wait(SECONDS) == 0


@over_real_clients
def test_end_of_input_stops_it_and_leaves_nothing(start: Start) -> None:
    service = start("--until-eof", *MINUTES)
    lease = service.acquire()
    service.submit(lease, "a")
    service.until(lease, "Running")
    service.close_input()
    assert service.process.wait(SECONDS) == 0
    assert not service.socket.exists()
    assert not service.state.exists()


@over_real_clients
def test_end_of_input_leaves_a_state_folder_it_did_not_make(start: Start) -> None:
    service = start()
    service.process.terminate()
    service.process.wait(SECONDS)
    again = start("--until-eof")
    again.close_input()
    assert again.process.wait(SECONDS) == 0
    assert service.state.is_dir()


@over_real_clients
def test_a_state_that_cannot_be_written_is_one_line(start: Start) -> None:
    service = start()
    service.process.terminate()
    service.process.wait(SECONDS)
    with closing(sqlite3.connect(service.state / "service.sqlite")) as db:
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON operation "
            "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
        )
    again = start(ready=False)
    assert again.process.wait(SECONDS) == 2
    (line,) = again.errors().splitlines()
    assert line.endswith("service.sqlite: database or disk is full")


def test_killed_it_loses_nothing_and_says_what_ran_twice(start_to_kill: Start) -> None:
    service = start_to_kill(*MINUTES)
    lease = service.acquire()
    running, waiting = (service.submit(lease, key) for key in "ab")
    service.until(lease, "Running")
    service.process.kill()
    service.process.wait()
    assert service.socket.exists()
    again = start_to_kill("--time-scale", "0")
    first = again.ask("GET", f"/v1/jobs/{running}?wait=60")
    second = again.ask("GET", f"/v1/jobs/{waiting}?wait=60")
    assert (first["state"], first["attempt"]) == ("Completed", 2)
    assert first["note"] == "interrupted: the service died during attempt 1"
    assert (second["state"], second["attempt"]) == ("Completed", 1)
    assert isinstance(first["ended"], float)
    assert isinstance(second["started"], float)
    assert first["ended"] <= second["started"]
    assert again.submit(lease, "a") == running


@over_real_clients
def test_killed_under_a_job_the_client_says_so(
    start_to_kill: Start, sfq: str, tmp_path: Path
) -> None:
    service = start_to_kill(*MINUTES)
    lease = service.acquire()
    solve = _solve(sfq, service, lease, tmp_path)
    service.until(lease, "Running")
    service.process.kill()
    _, errors = solve.communicate(timeout=SECONDS)
    assert solve.returncode == 75
    # before, how long the job was expected to run
    _, failure = errors.splitlines()
    assert b"ended during the job" in failure
    assert service.url.encode() in failure
    assert [path.name for path in tmp_path.iterdir()] == ["problem.json"]


@over_real_clients
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_client_cancels_its_job(
    start: Start, sfq: str, tmp_path: Path, number: signal.Signals
) -> None:
    service = start(*MINUTES)
    lease = service.acquire()
    solve = _solve(sfq, service, lease, tmp_path)
    service.until(lease, "Running")
    solve.send_signal(number)
    solve.communicate(timeout=SECONDS)
    assert solve.returncode == 128 + number
    assert service.until(lease, "Cancelled")["note"] == "cancelled"
    assert [path.name for path in tmp_path.iterdir()] == ["problem.json"]


@over_real_clients
def test_a_second_service_is_refused(start: Start, sfq: str) -> None:
    first = start()
    second = start(ready=False)
    assert second.process.wait(SECONDS) == 2
    assert "another service uses this state folder" in second.errors()
    third = subprocess.run(
        [sfq, "serve", "--socket", str(first.socket)],
        capture_output=True,
        timeout=SECONDS,
    )
    assert third.returncode == 2
    assert b"another service listens there" in third.stderr
    assert first.ask("GET", "/v1/health") == {"status": "ok"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--socket", "/tmp/" + 107 * "s"], "at most 107"),
        (["--socket", "/nowhere/s"], "/nowhere/s: cannot listen there: no such file"),
        (["--socket", "/dev/null"], "/dev/null: exists and is not a socket"),
        (["--host", "0.0.0.0"], "needs a certificate, its key and authentication"),
        (["--port", "99999"], "--port 99999: expected 65535 or less"),
        (["--auth", "token", "--tokens", "/nowhere/t"], "/nowhere/t: cannot be read"),
        (["--certificate", "/dev/null", "--key", "/nowhere/k"], "/nowhere/k: cannot"),
        (["--drain", "10"], "--drain 10.0: expected 3 or less"),
        (["--state", "/nowhere/state"], "/nowhere/state: cannot store the state"),
        (["--technology", "anealer"], "did you mean 'annealer'"),
        (["--vqpus", "0"], "--vqpus 0: expected 1 or more"),
        (["--faults", "{"], "--faults: not JSON"),
        (["--faults", "[]"], "--faults: expected a JSON object"),
        (["--faults", '{"fial": 1}'], "did you mean 'fail'"),
    ],
)
def test_wrong_options_are_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    from sf_quantum.cli import main

    assert main(["serve", *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_a_taken_port(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from sf_quantum.cli import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        state = tmp_path / "state"
        assert main(["serve", "--port", str(port), "--state", str(state)]) == 2
    assert capsys.readouterr().err.endswith(
        f"127.0.0.1:{port}: cannot listen there: address already in use; "
        "choose another --port\n"
    )
    assert not state.exists()

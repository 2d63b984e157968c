"""The client of our service: answers, refusals, and all that goes wrong on the way."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from dimod import BinaryQuadraticModel

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import sfq
from sf_quantum.qpu.sfq import SfqQpu
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.service.device import Device, Faults
from sf_quantum.service.testing import RunningService, example_bqm, running_service

PARAMETERS = {"num_reads": 10, "seed": 1, "num_sweeps": None}


@pytest.fixture
def bqm() -> dict[str, JSON]:
    return example_bqm()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sfq, "PAUSES_SECONDS", (0.01, 0.02))


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def _job_side(service: RunningService, lease: str) -> SfqQpu:
    return SfqQpu("q", service.url, lease=lease)


def test_driver_side(service: RunningService) -> None:
    driver = SfqQpu.from_config("q", {"url": service.url})
    status = driver.status()
    assert (status.name, status.technology, status.online) == (
        "emulator",
        "annealer",
        True,
    )
    assert (status.reason, status.qubits, status.queue_length) == ("", 5000, 0)
    token = driver.acquire("step /solve")
    assert driver.status().leases == 1
    with pytest.raises(QpuError, match=r"QPU 'q' at unix:.*: all 1 vQPUs are held"):
        driver.acquire()
    driver.release(token)
    driver.release(token)
    driver.release("of another life")
    assert driver.status().leases == 0


def test_sampler_gives_what_the_local_one_gives(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    model = BinaryQuadraticModel.from_serializable(bqm)
    sampler = _job_side(service, service.acquire()).sampler()
    remote = sampler.sample(model, num_reads=20, seed=3)
    local = NealSampler().sample(model, num_reads=20, seed=3)
    assert (remote.record == local.record).all()
    assert remote.variables == local.variables
    assert remote.info["qpu"] == "emulator"


def test_the_second_try_finds_the_job_of_the_first(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    lease = service.acquire()
    first, again = (_job_side(service, lease).solve(bqm, PARAMETERS) for _ in range(2))
    assert first == again
    assert len(service.queue.store.jobs(lease)) == 1
    _job_side(service, lease).solve(bqm, {**PARAMETERS, "seed": 2})
    assert len(service.queue.store.jobs(lease)) == 2


def test_a_failed_job_is_tried_anew(bqm: dict[str, JSON]) -> None:
    with running_service(Device(time_scale=0, faults=Faults(offline=1))) as service:
        lease = service.acquire()
        for jobs in (1, 2, 3):
            with pytest.raises(QpuError, match="the job ended Failed: the QPU is offl"):
                _job_side(service, lease).solve(bqm, PARAMETERS)
            assert len(service.queue.store.jobs(lease)) == jobs


def test_refusals_keep_the_words_of_the_service(
    service: RunningService, bqm: dict[str, JSON]
) -> None:
    with pytest.raises(InputError, match="refuses: X-SFQ-Lease: needs a lease"):
        _job_side(service, "unknown").solve(bqm, PARAMETERS)
    with pytest.raises(
        InputError, match=r"refuses: parameters\.num_reads: Input should"
    ):
        _job_side(service, service.acquire()).solve(bqm, {"num_reads": 0})


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_interrupted_it_cancels_its_job(
    bqm: dict[str, JSON],
    monkeypatch: pytest.MonkeyPatch,
    interruption: type[BaseException],
) -> None:
    with running_service(Device(technology="neutral-atom")) as service:
        lease = service.acquire()
        job_side = _job_side(service, lease)

        def interrupted(_: JSON) -> None:
            service.until(lease, "Running")
            raise interruption

        monkeypatch.setattr(job_side, "_follow", interrupted)
        with pytest.raises(interruption):
            job_side.solve(bqm, PARAMETERS)
        service.until(lease, "Cancelled")
        assert len(service.queue.store.jobs(lease)) == 1


def test_cancelled_by_the_operator(bqm: dict[str, JSON]) -> None:
    with running_service(Device(technology="neutral-atom")) as service:
        lease = service.acquire()

        def cancel() -> None:
            service.ask("DELETE", f"/v1/jobs/{service.until(lease, 'Running')}")

        operator = threading.Thread(target=cancel)
        operator.start()
        with pytest.raises(QpuError, match="the job ended Cancelled: cancelled"):
            _job_side(service, lease).solve(bqm, PARAMETERS)
        operator.join()


def test_stopped_under_a_waiting_job(bqm: dict[str, JSON]) -> None:
    with running_service(Device(technology="neutral-atom"), vqpus=2) as service:
        first, second = service.acquire(), service.acquire()
        errors: list[str] = []

        def solve(lease: str) -> None:
            try:
                _job_side(service, lease).solve(bqm, PARAMETERS)
            except QpuError as error:
                errors.append(str(error))

        threads = [
            threading.Thread(target=solve, args=(lease,)) for lease in (first, second)
        ]
        threads[0].start()
        service.until(first, "Running")
        threads[1].start()
        service.until(second, "Queued")
        service.queue.request_stop()
        for thread in threads:
            thread.join(5)
    assert len(errors) == 2
    assert any("cancelled: the service was stopped" in error for error in errors)


def test_a_credential_that_cannot_be_sent_is_not_shown() -> None:
    with pytest.raises(InputError, match="X-SFQ-Lease: its value is not") as error:
        SfqQpu("q", "unix:/s", lease="secret\n")
    assert "secret" not in str(error.value)


def test_nobody_listens(bqm: dict[str, JSON]) -> None:
    for url in ("unix:/nowhere/socket", "http://127.0.0.1:1"):
        with pytest.raises(
            QpuError, match=f"QPU 'q' at {url} does not answer: "
        ) as error:
            SfqQpu("q", url, lease="lease").solve(bqm, PARAMETERS)
        assert error.value.exit_code == 75
        assert "\n" not in str(error.value)


Reply = tuple[int, dict[str, JSON]] | None


class _Scripted(HTTPServer):
    """Gives one reply after the other; ``None`` closes the connection without one."""

    def __init__(self, replies: list[Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies = iter(replies)
        self.keys: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Scripted

    def _reply(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if length:
            self.server.keys.append(
                json.loads(self.rfile.read(length))["idempotency_key"]
            )
        reply = next(self.server.replies)
        if reply is not None:
            content = json.dumps(reply[1]).encode()
            self.send_response(reply[0])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _reply

    def log_message(self, *_: str) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[Callable[[list[Reply]], _Scripted]]:
    servers: list[tuple[_Scripted, threading.Thread]] = []

    def start(replies: list[Reply]) -> _Scripted:
        server = _Scripted(replies)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


Serve = Callable[[list[Reply]], _Scripted]
SAMPLES: dict[str, JSON] = {"type": "SampleSet"}


def test_lost_connections_are_tried_again_with_the_same_key(
    scripted: Serve, bqm: dict[str, JSON]
) -> None:
    queued: dict[str, JSON] = {"id": "j", "state": "Queued"}
    done: dict[str, JSON] = {"id": "j", "state": "Completed"}
    replies: list[Reply] = [
        None,
        None,
        (201, queued),
        None,
        (200, done),
        (200, SAMPLES),
    ]
    server = scripted(replies)
    assert SfqQpu("q", server.url, lease="t").solve(bqm, PARAMETERS) == SAMPLES
    assert len(server.keys) == 3
    assert len(set(server.keys)) == 1


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ([(500, {})], "is in trouble: HTTP status 500"),
        ([(503, {"detail": "full", "field": None})], "is in trouble: full"),
        ([(429, {"detail": "later"})], "is in trouble: later"),
        ([(200, {"what": "ever"})], "its answer has no 'state', is it sfq serve?"),
        (
            [(201, {"id": "j", "state": "Running"}), (404, {})],
            "no longer knows the job",
        ),
        (
            [(201, {"id": "j", "state": "Running"})],
            "does not answer: .*died in mid-job",
        ),
        ([(201, {"id": "j", "state": "Completed"}), (200, {})], "is not a sample set"),
    ],
)
def test_a_service_in_trouble(
    scripted: Serve, bqm: dict[str, JSON], replies: list[Reply], words: str
) -> None:
    server = scripted([*replies, None, None, None, None])
    with pytest.raises(QpuError, match=words):
        SfqQpu("q", server.url, lease="t").solve(bqm, PARAMETERS)

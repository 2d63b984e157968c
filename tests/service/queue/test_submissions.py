"""Submissions through the guard and the application, as ASGI messages."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection
from starlette.types import Message, Scope

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.app import build
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.dialects import large_bodies
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    Kind,
    Lease,
    LeaseRequest,
    Size,
    Submission,
)
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.http.auth import Unauthorized
from sf_quantum.service.http.guard import Limits
from sf_quantum.service.store.store import Store
from tests.support.service import example_bqm
from tests.support.waiting import SECONDS
from tests.support.waiting import until_async as until

# of a job: what differs from answer to answer
OWN = ("id", "lease", "submitted", "eta_seconds", "state", "started", "position")
TYPE = "application/json"
BODY_BYTES = 2**20


async def authenticate(connection: HTTPConnection) -> Identity:
    user = connection.headers.get("user", "ada")
    if user == "stranger":
        raise Unauthorized("needs a name", "user", "Name")
    return Identity(user, admin=False)


class Service:
    """The service without a server."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        device = EmulatedDevice(technology="neutral-atom", seed=1)
        settings = ServiceSettings()
        service = build(
            self.store,
            device,
            settings,
            authenticate=authenticate,
            limits=Limits(body_bytes=BODY_BYTES),
        )
        self.queue, self.app, self.guard = service.queue, service.app, service.guard
        self.lease = ""
        #: whether clients go when they have sent their request
        self.gone = False

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Service]:
        async with self.app.router.lifespan_context(self.app):
            held = await self.queue.leases.acquire(
                Identity("ada", admin=False), LeaseRequest()
            )
            self.lease = held.id
            yield self
        self.store.close()

    async def submit(
        self, body: bytes, path: str = "/v1/jobs", **headers: str
    ) -> tuple[int, JSON]:
        given = {"content-type": TYPE, "x-sfq-lease": self.lease, **headers}
        scope: Scope = {
            **{"type": "http", "method": "POST", "path": path},
            **{"query_string": b"", "client": ("10.0.0.1", 1)},
            "headers": [
                (name.replace("_", "-").encode(), value.encode())
                for name, value in given.items()
            ],
        }
        parts: list[Message] = [{"type": "http.request", "body": body}]
        sent: list[Message] = []

        async def receive() -> Message:
            if not parts and not self.gone:
                await asyncio.Event().wait()
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.guard(scope, receive, send)
        if not sent:
            return 0, None
        start, *rest = sent
        answer: JSON = json.loads(b"".join(part["body"] for part in rest))
        assert (b"content-type", TYPE.encode()) in start["headers"]
        if isinstance(answer, dict):
            answer = {k: v for k, v in answer.items() if k not in OWN}
        return int(start["status"]), answer


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path / "state").started() as running:
        yield running


def body(**changes: JSON) -> bytes:
    given: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "a"}
    merged = {**given, **changes}
    return json.dumps({k: v for k, v in merged.items() if v is not None}).encode()


def bqm(**changes: JSON) -> bytes:
    return body(problem={**example_bqm(), **changes})


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (body(), {}, 201),
        (body(parameters={"num_reads": 5, "seed": 2, "num_sweeps": 7}), {}, 201),
        (body(calibrated_within="86400", purpose="p"), {}, 201),
        (body(calibrated_within=1e-9), {}, 422),
        (b" \n" + body() + b"\n", {"content_type": "Application/JSON; charset=u"}, 201),
        (bqm(offset=-0.0, linear_biases=[1, 2.5, 1e-7]), {}, 201),
        (bqm(offset=10**400), {}, 422),
        (bqm(offset=2**53 + 1), {}, 422),
        (bqm(linear_biases=[2**53, 10**18 + 1, 0.0]), {}, 422),
        (bqm(linear_biases=[2**53, 10**18, 0.0]), {}, 201),
        (bqm(linear_biases=[True, 0.0, 0.0]), {}, 422),
        (bqm(quadratic_head=[0, -1]), {}, 422),
        (bqm(quadratic_head=[0, 3]), {}, 422),
        (body().replace(b"-0.75", b"NaN"), {}, 422),
        (body().replace(b"-0.75", b"1e999"), {}, 422),
        (body(problem=None), {}, 422),
        (body(circuit="OPENQASM 3;"), {}, 422),
        (body(problem=None, circuit="OPENQASM 3;"), {}, 422),
        (body(parameters={"num_reads": 0}), {}, 422),
        (body(parameters={"num_reads": True}), {}, 422),
        (body(parameters={"num_reads": 2.0}), {}, 422),
        (body(parameters=None, wrong=1), {}, 422),
        (body(idempotency_key=""), {}, 422),
        (body(idempotency_key=None), {}, 422),
        (body() + b"}", {}, 422),
        (b"", {}, 422),
        (b"null", {}, 422),
        (b"[" * 1000, {}, 422),
        (body(), {"content_type": "text/json"}, 422),
        (body(), {"user": "stranger"}, 401),
        (body(wrong=1), {"user": "stranger"}, 401),
        (body(), {"user": "bob"}, 403),
        (body(), {"x_sfq_lease": "none"}, 403),
    ],
)
async def test_what_is_submitted_is_checked(
    service: Service, content: bytes, headers: dict[str, str], status: int
) -> None:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await service.submit(content, **given)
    assert answer[0] == status, answer
    assert service.queue.length == (status == 201)


# the first is what curl sends by itself
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
async def test_the_type_of_a_body_is_named(service: Service, kind: str) -> None:
    told = {"detail": "send Content-Type: application/json", "field": None}
    for path in ("/v1/jobs", "/v1/leases"):
        answer = await service.submit(body(), path, **{"content-type": kind})
        assert answer == (422, told)
    # a wrong body of the right type is not told so
    status, other = await service.submit(b"[]")
    assert status == 422
    assert other != told


async def test_the_answer_to_a_new_job(service: Service) -> None:
    status, answer = await service.submit(body())
    assert status == 201
    assert isinstance(answer, dict)
    assert answer.items() >= {"user": "ada", "kind": "problem", "attempt": 1}.items()


async def test_a_key_again(service: Service) -> None:
    answers = [await service.submit(body()) for _ in range(2)]
    assert [status for status, _ in answers] == [201, 200]
    # it may have started between
    for _, job in answers:
        assert isinstance(job, dict)
        del job["queued_seconds"]
    assert answers[0][1] == answers[1][1]
    refused = await service.submit(body(parameters={"num_reads": 2}))
    assert refused[0] == 409


async def test_a_qpu_that_is_drained(service: Service) -> None:
    await service.queue.availability.set_status("draining", "until noon")
    assert (await service.submit(body()))[0] == 503


async def test_what_cannot_be_written_down(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(
        *_: Lease | Submission | float, is_stored: bool
    ) -> Future[tuple[Job, bool]]:
        failed: Future[tuple[Job, bool]] = Future()
        failed.set_exception(sqlite3.OperationalError("database or disk is full"))
        return failed

    monkeypatch.setattr(service.store.jobs, "add", full)
    assert (await service.submit(body()))[0] == 503
    assert service.queue.length == 0


async def test_a_large_body_is_read_beside_the_event_loop(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[threading.Thread] = []

    def counted(
        body: bytes,
        dialect: str,
        *,
        qubits: int,
        payloads: Sequence[Kind],
        more: Mapping[str, JSON],
    ) -> Submission:
        read.append(threading.current_thread())
        return large_bodies_read(
            body, dialect, qubits=qubits, payloads=payloads, more=more
        )

    large_bodies_read = large_bodies.read
    monkeypatch.setattr(large_bodies, "read", counted)
    assert (await service.submit(body()))[0] == 201
    assert read == []
    problem = example_bqm() | {"info": {"of": "x" * large_bodies.LARGE_BYTES}}
    large = body(problem=problem, idempotency_key="b")
    assert (await service.submit(large))[0] == 201
    # FastAPI takes it for the same
    named = {"content-type": "Application/JSON"}
    assert (await service.submit(large, **named))[0] == 200
    assert len(read) == 2
    assert threading.main_thread() not in read
    service.gone = True
    assert (await service.submit(large))[0] == 0
    deflated = zlib.compress(b" " * large_bodies.LARGE_BYTES)
    path = "/sapi/v2/problems/"
    assert (await service.submit(deflated, path, content_encoding="deflate"))[0] == 0
    assert len(read) == 2


@pytest.mark.parametrize("process_bytes", [1, large_bodies.PROCESS_BYTES])
async def test_a_users_large_bodies_are_read_one_after_the_other(
    service: Service, monkeypatch: pytest.MonkeyPatch, process_bytes: int
) -> None:
    events, first, go = list[str](), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(text: bytes, *_: object, **__: object) -> Submission:
        key = str(json.loads(text)["idempotency_key"])
        events.append(f"{key} begins")
        loop.call_soon_threadsafe(first.set)
        go.wait(SECONDS)
        events.append(f"{key} ends")
        return Submission("problem", example_bqm(), {}, key)

    monkeypatch.setattr(large_bodies, "read", slow)
    monkeypatch.setattr(large_bodies, "PROCESS_BYTES", process_bytes)
    problem = example_bqm() | {"info": {"of": "x" * large_bodies.LARGE_BYTES}}
    sent = [
        asyncio.create_task(service.submit(body(problem=problem, idempotency_key=key)))
        for key in "ab"
    ]
    await asyncio.wait_for(first.wait(), SECONDS)
    # while one is read, another user's requests are answered
    assert (await service.submit(b"", user="bob"))[0] == 422
    go.set()
    assert [status for status, _ in await asyncio.gather(*sent)] == [201, 201]
    assert events == ["a begins", "a ends", "b begins", "b ends"]


async def test_a_users_sequences_are_checked_one_after_the_other(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, go = list[JSON](), threading.Event()

    def slow(
        _device: EmulatedDevice, _kind: Kind, content: JSON, _parameters: object
    ) -> Size:
        checked.append(content)
        go.wait(SECONDS)
        raise FieldError("sequence", "has no pulse")

    monkeypatch.setattr(EmulatedDevice, "check", slow)
    service.queue.vqpus.resize(2)
    bob = Identity("bob", admin=False)
    lease = (await service.queue.leases.acquire(bob, LeaseRequest())).id
    headers = {"user": "bob", "x-sfq-lease": lease}
    sent = [
        asyncio.create_task(service.submit(body(problem=None, sequence=name), **under))
        for name, under in (("a", {}), ("b", {}), ("bob's", headers))
    ]
    # whose request came last
    await until(lambda: "bob's" in checked)
    assert checked == ["a", "bob's"]
    go.set()
    assert [status for status, _ in await asyncio.gather(*sent)] == [422] * 3


@pytest.mark.parametrize(
    ("path", "size", "headers", "status"),
    [
        # also once decompressed
        ("/sapi/v2/problems/", BODY_BYTES + 1, {"content_encoding": "deflate"}, 413),
        ("/sapi/v2/problems/", BODY_BYTES, {"content_encoding": "deflate"}, 400),
        # no jobs
        ("/v1/leases", 2**16 + 1, {}, 413),
        ("/v1/leases", 2**16, {}, 422),
    ],
)
async def test_bodies_are_limited(
    service: Service, path: str, size: int, headers: dict[str, str], status: int
) -> None:
    content = b" " * size
    content = zlib.compress(content) if headers else content
    assert (await service.submit(content, path, **headers))[0] == status


async def test_the_log_has_the_route(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sf_quantum.service.http.traffic"):
        await service.submit(body())
    (record,) = caplog.records
    fields = vars(record)["fields"]
    assert (fields["user"], fields["method"], fields["route"], fields["status"]) == (
        *("ada", "POST", "/v1/jobs"),
        201,
    )

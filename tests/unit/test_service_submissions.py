"""Submissions that pass the web framework by: answered as it would answer them."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Scope

from sf_quantum.files import JSON
from sf_quantum.service.api.v1 import large_bodies
from sf_quantum.service.api.v1.submissions import Submissions
from sf_quantum.service.app import create_app
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.domain.jobs import Job, Lease, LeaseRequest, Submission
from sf_quantum.service.http.auth import Unauthorized, once
from sf_quantum.service.http.limits import Guard, Limits
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store.store import Store
from sf_quantum.service.testing import example_bqm

# of a job: what differs between two services, or changes as it begins to run
OWN = ("id", "lease", "submitted", "eta_seconds", "state", "started", "position")
TYPE = "application/json"


@once
def authenticate(connection: HTTPConnection) -> Identity:
    user = connection.headers.get("user", "ada")
    if user == "stranger":
        raise Unauthorized("needs a name", "user", "Name")
    return Identity(user, admin=False)


class Service:
    """The service without a server, with its framework or past it."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.queue = JobQueue(self.store, Device(technology="neutral-atom", seed=1))
        self.app = create_app(self.queue, authenticate=authenticate)
        self.lease = ""

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Service]:
        async with self.app.router.lifespan_context(self.app):
            held = await self.queue.leases.acquire(
                Identity("ada", admin=False), LeaseRequest()
            )
            self.lease = held.id
            yield self
        self.store.close()

    async def past(self, body: bytes, **headers: str) -> tuple[int, JSON]:
        app = Submissions(self.app, self.queue, authenticate)
        return await self._ask(app, body, headers)

    async def framework(self, body: bytes, **headers: str) -> tuple[int, JSON]:
        return await self._ask(self.app, body, headers)

    async def _ask(
        self, app: ASGIApp, body: bytes, headers: dict[str, str]
    ) -> tuple[int, JSON]:
        given = {"content-type": TYPE, "x-sfq-lease": self.lease, **headers}
        scope: Scope = {
            **{"type": "http", "method": "POST", "path": "/v1/jobs"},
            **{"query_string": b"", "client": ("10.0.0.1", 1)},
            "headers": [
                (name.replace("_", "-").encode(), value.encode())
                for name, value in given.items()
            ],
        }
        parts: list[Message] = [{"type": "http.request", "body": body}]
        sent: list[Message] = []

        async def receive() -> Message:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await Guard(app, authenticate, Limits())(scope, receive, send)
        start, *rest = sent
        answer: JSON = json.loads(b"".join(part["body"] for part in rest))
        assert (b"content-type", TYPE.encode()) in start["headers"]
        if isinstance(answer, dict):
            answer = {k: v for k, v in answer.items() if k not in OWN}
        return int(start["status"]), answer


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path / "one").started() as service:
        yield service


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path / "other").started() as service:
        yield service


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
async def test_the_answer_is_the_frameworks(
    one: Service, other: Service, content: bytes, headers: dict[str, str], status: int
) -> None:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    past = await one.past(content, **given)
    assert past == await other.framework(content, **given)
    assert past[0] == status, past


async def test_a_key_again(one: Service, other: Service) -> None:
    for service in (one, other):
        asks = service.past, service.framework
        told = [await ask(body()) for ask in asks]
        assert [status for status, _ in told] == [201, 200]
        assert told[0][1] == told[1][1]
        told = [await ask(body(parameters={"num_reads": 2})) for ask in asks]
        assert told[0] == told[1]
        assert told[0][0] == 409


async def test_a_qpu_that_is_drained(one: Service) -> None:
    await one.queue.drain("until noon")
    past = await one.past(body())
    assert past == await one.framework(body())
    assert past[0] == 503


async def test_what_cannot_be_written_down(
    one: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Lease, __: Submission, ___: float) -> Future[tuple[Job, bool]]:
        failed: Future[tuple[Job, bool]] = Future()
        failed.set_exception(sqlite3.OperationalError("database or disk is full"))
        return failed

    monkeypatch.setattr(one.store, "add_job", full)
    past = await one.past(body())
    assert past == await one.framework(body())
    assert past[0] == 503
    assert one.queue.length == 0


async def test_a_large_one_is_not_read_here(
    one: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sf_quantum.service.api.v1.submissions.LARGE_BYTES", 10)
    reached: list[FastAPI] = []
    handled = FastAPI.__call__

    async def seen(app: FastAPI, *args: object) -> None:
        reached.append(app)
        await handled(app, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(FastAPI, "__call__", seen)
    assert (await one.past(body()))[0] == 201
    assert reached
    monkeypatch.setattr(
        "sf_quantum.service.api.v1.submissions.LARGE_BYTES", large_bodies.LARGE_BYTES
    )
    assert (await one.past(body(idempotency_key="b")))[0] == 201
    assert len(reached) == 1


async def test_the_log_has_the_route(
    one: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sf_quantum.service.http.limits"):
        await one.past(body())
    assert caplog.messages == ["ada POST /v1/jobs 201"]

"""What is refused before any route sees it."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sf_quantum.files import JSON
from sf_quantum.service.config import load
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http import buckets as buckets_module
from sf_quantum.service.http import guard
from sf_quantum.service.http.auth import MUNGE_HEADER, Unauthorized, get_sender
from sf_quantum.service.http.buckets import TokenBuckets
from sf_quantum.service.http.guard import Guard, Limits, Paths
from tests.support.waiting import SECONDS

SECRET = "s3cret"
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Exchange:
    """A request, sent to an ASGI application in chunks, and its answer."""

    def __init__(
        self, *chunks: bytes, user: str = "ada", method: str = "POST", **headers: str
    ) -> None:
        self.chunks = list(chunks) or [b""]
        self.gone = asyncio.Event()
        self.sent: list[Message] = []
        self.scope: Scope = {
            "type": "http",
            "method": method,
            "path": f"/{SECRET}",
            "client": ("10.0.0.1", 1),
            "headers": [
                (b"user", user.encode()),
                *(
                    (k.replace("_", "-").encode(), v.encode())
                    for k, v in headers.items()
                ),
            ],
        }

    async def receive(self) -> Message:
        if not self.chunks:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        body = self.chunks.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(self.chunks)}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def to(self, app: App) -> Exchange:
        await app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        raw = self.sent[0]["headers"]
        return {name.decode(): value.decode() for name, value in raw}

    def json(self) -> dict[str, JSON]:
        content: dict[str, JSON] = json.loads(self.sent[1]["body"])
        return content


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body's length."""
    length = 0
    while True:
        message = await receive()
        length += len(message["body"])
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})


async def authenticate(connection: HTTPConnection) -> Identity:
    user = connection.headers["user"]
    if user == "stranger":
        raise Unauthorized("needs a name", "user", "Name")
    return Identity(user, admin=False)


class VendorPaths:
    """Paths of submissions, one of which takes up to six bytes whatever is configured."""

    def submission_bytes(self, path: str, configured: int) -> int | None:
        if path == "/several":
            return max(configured, 6)
        return configured if path in ("/v1/jobs", "/jobs", f"/{SECRET}") else None

    def inflates(self, path: str) -> bool:
        return path.startswith("/several")


def guarded(app: App = echo, paths: Paths | None = None, **values: float) -> Guard:
    bounds = Limits(**values)  # type: ignore[arg-type]
    return Guard(app, authenticate, bounds, paths=paths or VendorPaths())


async def test_what_is_within_the_limits_passes_whole() -> None:
    done = await Exchange(b"ab", b"", b"cd").to(guarded(body_bytes=4))
    assert (done.status, done.sent[1]["body"]) == (200, b"4")


async def test_large_bodies_of_one_sender_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "SMALL_BYTES", 3)
    monkeypatch.setattr(guard, "LARGE_AT_ONCE", 1)
    begun, go = list[str](), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(get_sender(HTTPConnection(scope)).user)
        await go.wait()
        await echo(scope, receive, send)

    app = guarded(slow)
    names = ["ada", "ada", "bob"]
    sent = [Exchange(b"ab", b"cd", b"e", user=name) for name in names]
    tasks = [asyncio.create_task(exchange.to(app)) for exchange in sent]
    while len(begun) < 2:
        await go_round()
    await go_round()
    assert begun == ["ada", "bob"]
    assert sent[1].chunks == [b"e"]
    small = asyncio.create_task(Exchange(b"ab").to(app))
    while len(begun) < 3:
        await go_round()
    go.set()
    done = await asyncio.gather(*tasks, small)
    assert [exchange.sent[1]["body"] for exchange in done] == [*[b"5"] * 3, b"2"]


async def go_round() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_body_that_is_too_large() -> None:
    told = Exchange(b"abcde", content_length="5")
    untold = Exchange(b"abc", b"de", b"fg")
    for exchange in (told, untold):
        refused = await exchange.to(guarded(body_bytes=4))
        assert refused.status == 413
        assert refused.json() == {
            "detail": "the body has more than 4 bytes",
            "field": None,
        }
        # read to its end, for a client that sends it all before it listens
        assert not exchange.chunks


# Python reads numbers of 4,300 digits at most; a server passes on more zeros.
@pytest.mark.parametrize("zeros", [0, 1, 4300, 60_000])
async def test_a_length_with_many_zeros_is_a_length(zeros: int) -> None:
    for body, status in ((b"abcd", 200), (b"abcde", 413)):
        length = f"{len(body):0{zeros}d}"
        answered = await Exchange(body, content_length=length).to(guarded(body_bytes=4))
        assert answered.status == status


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "\\ud800"}',
        b'{"\\uDfff": 1}',
        b'{"a": "\xed\xa0\x80"}',
        b"\xff",
        '{"a": 1}'.encode("utf-16-le"),
    ],
)
async def test_a_body_that_nothing_could_write_down(body: bytes) -> None:
    refused = await Exchange(body).to(guarded())
    assert (refused.status, refused.json()["field"]) == (422, None)
    assert refused.json()["detail"] == "the body is not UTF-8 text"


@pytest.mark.parametrize(
    ("path", "packing", "status"),
    [
        ("/several/", "deflate", 200),
        ("/several/", "identity", 422),
        ("/v1/jobs", "deflate", 415),
    ],
)
async def test_only_where_it_is_unpacked_a_body_may_be_packed(
    path: str, packing: str, status: int
) -> None:
    exchange = Exchange(zlib.compress(b"[]" * 9), content_encoding=packing)
    exchange.scope["path"] = path
    assert (await exchange.to(guarded())).status == status


def packed(content: bytes) -> bytes:
    """Compress without the time, for each process to have the same parameters."""
    return gzip.compress(content, mtime=0)


async def test_a_body_may_be_packed_with_gzip() -> None:
    seen = list[tuple[bytes, str | None, str | None]]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        length, packing = (
            request.headers.get(f"content-{name}") for name in ("length", "encoding")
        )
        seen.append((await request.body(), length, packing))
        await Response()(scope, receive, send)

    limited = guarded(app, body_bytes=2**20)
    for path, size in (("/v1/jobs", 10), ("/jobs", 2**20), ("/several", 9**6)):
        body = b"0" * size
        packed = gzip.compress(body)
        exchange = Exchange(packed[:20], packed[20:], content_encoding="gzip")
        exchange.scope["path"] = path
        assert (await exchange.to(limited)).status == 200
        assert seen.pop() == (body, f"{size}", None)


@pytest.mark.parametrize(
    ("body", "user", "status", "words"),
    [
        (packed(b"0" * (2**20 + 1)), "ada", 413, "more than 1048576 bytes"),
        # nobody knows him
        (packed(b"0" * (2**16 + 1)), "stranger", 413, "more than 65536 bytes"),
        (b"0" * 99, "ada", 400, "not in the format of gzip"),
        (packed(b"0" * 2**17)[:-9], "ada", 400, "not one complete file"),
        (packed(b"[]") + b"x", "ada", 400, "not one complete file"),
        (packed(b"\xff"), "ada", 422, "not UTF-8 text"),
        (b"", "ada", 400, "not one complete file"),
    ],
)
async def test_what_gzip_may_not_hold(
    body: bytes, user: str, status: int, words: str
) -> None:
    exchange = Exchange(body, user=user, content_encoding="gzip")
    exchange.scope["path"] = "/v1/jobs"
    refused = await exchange.to(guarded(body_bytes=2**20))
    assert refused.status == status
    assert words in str(refused.json()["detail"])


@pytest.mark.parametrize(
    "body",
    [b'{"a": "\\ud83d\\ude00"}', b"{\\ud800", b"\\ud8"],
)
async def test_a_body_that_its_route_judges(body: bytes) -> None:
    assert (await Exchange(body).to(guarded())).status == 200


async def test_what_is_nested_too_deeply_reaches_no_route() -> None:
    for body in (b"[" * 10**4 + b"\\ud800", b"[" * 201 + b"]" * 201):
        refused = await Exchange(body).to(guarded())
        assert refused.status == 422
        assert "nested more than 200 deep" in str(refused.json()["detail"])


async def test_a_body_with_several_jobs_may_be_larger() -> None:
    limited = guarded(body_bytes=4)
    for path, length, status in [
        ("/several/", 6, 200),
        ("/several/", 7, 413),
        ("/v1/jobs", 6, 413),
    ]:
        exchange = Exchange(b"0" * length)
        exchange.scope["path"] = path
        assert (await exchange.to(limited)).status == status


async def test_a_body_that_waits_to_be_asked_for_is_not() -> None:
    exchange = Exchange(b"abcde", content_length="5", expect="100-continue")
    assert (await exchange.to(guarded(body_bytes=4))).status == 413
    assert exchange.chunks


async def test_a_stranger_may_not_say_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SMALL_BYTES", 3)
    refused = await Exchange(b"abcd", user="stranger").to(guarded())
    assert (refused.status, refused.json()["field"]) == (401, "user")
    assert refused.headers["www-authenticate"] == "Name"
    # what the routes let pass: some need no name
    assert (await Exchange(b"abc", user="stranger").to(guarded())).status == 200


async def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.01)
    exchange = Exchange()
    exchange.chunks = []
    assert (await exchange.to(guarded())).status == 408


async def test_a_client_that_goes_away_is_not_answered() -> None:
    exchange = Exchange()
    exchange.chunks = []
    exchange.gone.set()
    assert (await exchange.to(guarded())).sent == []


async def test_too_many_requests_of_one_user_are_not_anothers() -> None:
    app = guarded(rate=0.001, burst=2)
    assert [(await Exchange().to(app)).status for _ in range(3)] == [200, 200, 429]
    refused = await Exchange().to(app)
    assert 1000 - SECONDS < int(refused.headers["retry-after"]) <= 1000
    assert refused.json() == {
        "detail": "more than 0.001 requests per second",
        "field": None,
    }
    assert (await Exchange(user="bob").to(app)).status == 200
    strangers = [Exchange(user="stranger") for _ in range(3)]
    assert [(await one.to(app)).status for one in strangers] == [200, 200, 429]
    assert (await Exchange(user="@10.0.0.1").to(app)).status == 429


async def test_requests_that_are_under_way_are_counted() -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await end.wait()
        await echo(scope, receive, send)

    app = guarded(slow, at_once=1)
    first = asyncio.create_task(Exchange().to(app))
    await begun.wait()
    refused = await Exchange().to(app)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    end.set()
    assert (await Exchange(user="bob").to(app)).status == 200
    assert (await first).status == 200
    assert (await Exchange().to(app)).status == 200


async def test_a_flood_from_one_address_waits_for_itself() -> None:
    asking, let_go = asyncio.Event(), asyncio.Event()
    at_once = most = 0

    async def slow(connection: HTTPConnection) -> Identity:
        nonlocal at_once, most
        if connection.headers["user"] == "bob":
            return Identity("bob", admin=False)
        at_once += 1
        most = max(most, at_once)
        asking.set()
        await let_go.wait()
        at_once -= 1
        raise Unauthorized("needs a name", "user", "Name")

    app = Guard(echo, slow, Limits())
    flood = [asyncio.create_task(Exchange(user="x").to(app)) for _ in range(20)]
    await asking.wait()
    elsewhere = Exchange(user="bob")
    elsewhere.scope["client"] = ("10.0.0.2", 1)
    assert (await elsewhere.to(app)).status == 200
    let_go.set()
    assert {(await one).status for one in flood} == {200}
    assert most == guard.AUTHENTICATIONS_AT_ONCE
    assert not app._authenticating


async def test_a_token_does_not_wait_for_munge_credentials() -> None:
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def slow_munge(connection: HTTPConnection) -> Identity:
        if MUNGE_HEADER in connection.headers:
            asked.set()
            await let_go.wait()
        return await authenticate(connection)

    app = Guard(echo, slow_munge, Limits())
    munge = {MUNGE_HEADER.lower(): "x"}
    flood = [asyncio.create_task(Exchange(**munge).to(app)) for _ in range(20)]
    await asked.wait()
    async with asyncio.timeout(SECONDS):
        assert (await Exchange(user="bob").to(app)).status == 200
    assert not any(one.done() for one in flood)
    let_go.set()
    await asyncio.gather(*flood)


async def test_routes_find_who_was_authenticated_once() -> None:
    asked: list[str] = []

    async def counted(connection: HTTPConnection) -> Identity:
        asked.append(connection.headers["user"])
        return await authenticate(connection)

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            assert get_sender(HTTPConnection(scope)) == Identity("ada", admin=False)
        await echo(scope, receive, send)

    assert (await Exchange().to(Guard(route, counted, Limits()))).status == 200
    assert asked == ["ada"]


async def test_while_it_drains_nothing_new_begins() -> None:
    app = guarded()
    app.draining = True
    refused = await Exchange().to(app)
    assert refused.status == 503
    assert refused.json()["detail"] == "the service is being stopped"
    assert refused.headers["retry-after"] == "2"
    for method in ("GET", "DELETE"):
        assert (await Exchange(method=method).to(app)).status == 200


async def test_the_line_of_a_request_has_the_id_of_its_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        done = await Exchange(user="stranger").to(guarded())
    (record,) = caplog.records
    fields = vars(record)["fields"]
    assert fields["request"] == done.headers["x-request-id"]
    assert (fields["user"], fields["route"]) == ("@10.0.0.1", "other")
    assert SECRET not in str(fields)


async def test_a_request_that_ends_with_an_error_of_ours_is_counted() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        raise ZeroDivisionError

    app = guarded(broken)
    with pytest.raises(ZeroDivisionError):
        await Exchange().to(app)
    assert app.traffic.requests["POST", "other", "5xx"] == 1


async def test_other_protocols_pass() -> None:
    seen: list[str] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope["type"])

    exchange = Exchange()
    await guarded(app)({"type": "lifespan"}, exchange.receive, exchange.send)
    assert seen == ["lifespan"]


def test_buckets_fill_at_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    buckets = TokenBuckets(2.0, 3, lambda: now[0])
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    now[0] += 0.5
    assert [buckets.take("a") for _ in range(2)] == [0, 0.5]
    now[0] += 100
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    # who has not called for long is forgotten
    monkeypatch.setattr(buckets_module, "_BUCKETS", 10)
    now[0] += 100
    for number in range(20):
        now[0] += 1
        assert buckets.take(str(number)) == 0
    assert len(buckets._full_at) <= 11


@pytest.mark.parametrize(
    ("host", "origin", "field"),
    [
        ("localhost:80", None, None),
        ("[::1]:80", None, None),
        ("qpu.site", "http://qpu.site", None),
        # a name of another site that resolves to our address
        ("evil.example:80", None, "Host"),
        ("[", None, "Host"),
        # a page of another site, or of another service on this machine
        ("localhost:80", "http://evil.example", "Origin"),
        ("localhost:80", "http://localhost:81", "Origin"),
        ("localhost:80", "null", "Origin"),
    ],
)
async def test_pages_of_other_sites_are_refused(
    host: str, origin: str | None, field: str | None
) -> None:
    names = load(None, {("listen", "names"): ["qpu.site"]}, {}).names
    app = Guard(echo, authenticate, Limits(), names)
    headers = {"host": host} | ({"origin": origin} if origin else {})
    answer = await Exchange(**headers).to(app)
    assert answer.status == (403 if field else 200)
    if field:
        assert answer.json()["field"] == field
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_clients_with_credentials_may_use_any_name() -> None:
    answer = await Exchange(host="evil.example", origin="null").to(guarded())
    assert answer.status == 200

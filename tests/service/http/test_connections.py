"""Connections that are slow, or too many."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from fastapi import FastAPI
from uvicorn import Config
from uvicorn.lifespan.off import LifespanOff

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.domain.settings import ServiceSettings, UserLimits
from sf_quantum.service.http import connections
from sf_quantum.service.http.connections import Connection
from sf_quantum.service.queue.leases.live_leases import Leases
from sf_quantum.service.queue.reading import JobReader
from tests.support.folders import DATA
from tests.support.service import RunningService, running_service
from tests.support.waiting import SECONDS, until

CERTIFICATE = DATA / "tls.pem"
REQUEST = b"GET /accessible HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Transport:
    """What a connection asks of its transport."""

    def __init__(self) -> None:
        self.unread = 0
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True


class Loop:
    """A clock that stands still between checks."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, *_: object) -> None:
        return None


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def connected(service: RunningService, sent: bytes) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(SECONDS)
    client.connect(service.url.removeprefix("unix:"))
    client.sendall(sent)
    return client


def ended(client: socket.socket) -> bool:
    """Read until the service ends the connection."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", b"GET /accessible HTTP/1.1\r\nHost: a\r\n"])
def test_headers_that_do_not_come(
    service: RunningService, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.02)
    monkeypatch.setattr(connections, "CHECK_SECONDS", 0.01)
    with connected(service, sent) as client:
        assert ended(client)
    assert service.ask("GET", "/accessible").status == 200


def over_tls(service: RunningService) -> bytes:
    context = ssl.create_default_context(cafile=CERTIFICATE)
    client = context.wrap_socket(connected(service, b""), server_hostname="localhost")
    with client:
        client.sendall(REQUEST)
        return client.recv(12)


def test_a_tls_handshake_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_service(certificate=CERTIFICATE) as service:
        monkeypatch.setattr(connections, "HEADER_SECONDS", 0.02)
        # nothing, and the beginning of a handshake
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
            with connected(service, sent) as client:
                assert ended(client)
        monkeypatch.undo()
        assert over_tls(service) == b"HTTP/1.1 200"


def test_tls_handshakes_count_as_connections() -> None:
    settings = ServiceSettings(limits=UserLimits(connections=2))
    with running_service(settings=settings, certificate=CERTIFICATE) as service:
        half_open = [connected(service, b"\x16\x03\x01") for _ in range(3)]
        assert ended(half_open[0])
        assert over_tls(service) == b"HTTP/1.1 200"
        assert ended(half_open[1])
        for client in half_open:
            client.close()
        # those that were ended count no more
        assert over_tls(service) == b"HTTP/1.1 200"


async def test_few_connections_are_accepted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = list[str]()

    def open_(_: Connection, client: socket.socket, address: str, *__: None) -> None:
        opened.append(address)
        client.close()

    monkeypatch.setattr(Connection, "open", open_)
    app = FastAPI()
    server = connections.Server(Config(app, log_config=None), 10)
    server.lifespan = LifespanOff(server.config)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)

        def connect() -> socket.socket:
            client = socket.create_connection(listener.getsockname())
            return stack.enter_context(client)

        # those that have gone, one of them with a reset, take nobody's turn
        connect().close()
        reset = connect()
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("2i", 1, 0))
        reset.close()
        for _ in range(connections.ACCEPTED_AT_ONCE + 1):
            connect()
        for number in (connections.ACCEPTED_AT_ONCE, connections.ACCEPTED_AT_ONCE + 1):
            server._accept(listener)
            assert opened == ["127.0.0.1"] * number


def test_headers_without_an_end(service: RunningService) -> None:
    sent = b"GET /accessible HTTP/1.1\r\n" + b"X-A: b\r\n" * 10_000
    with connected(service, sent) as client:
        assert client.recv(12) == b"HTTP/1.1 400"


def test_a_new_connection_replaces_one_that_nobody_uses() -> None:
    settings = ServiceSettings(limits=UserLimits(connections=2))
    with running_service(settings=settings) as service:
        # a client that comes back, and the oldest
        known = connected(service, REQUEST)
        assert known.recv(12) == b"HTTP/1.1 200"
        unused = [connected(service, b"GET / HTTP/1.1\r\n") for _ in range(2)]
        assert ended(unused[0])
        known.sendall(REQUEST)
        assert b"HTTP/1.1 200" in known.recv(65536) + known.recv(65536)
        assert service.ask("GET", "/accessible").status == 200
        assert ended(unused[1])
        for client in (known, *unused):
            client.close()


def test_requests_of_a_client_that_is_gone(
    service: RunningService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, dropped = list[str](), threading.Event()

    async def page(_: JobReader, who: Identity, *__: object, **___: object) -> None:
        begun.append(who.user)
        try:
            await asyncio.Event().wait()
        finally:
            dropped.set()

    monkeypatch.setattr(JobReader, "page", page)
    with connected(service, b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\n\r\n" * 3):
        until(lambda: begun, "the first is being answered")
    assert dropped.wait(SECONDS)
    assert service.ask("GET", "/accessible").status == 200
    assert len(begun) == 1
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


def test_an_answer_that_nobody_waits_for_any_more(
    service: RunningService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, finish = threading.Event(), threading.Event()

    async def release(_: Leases, *_who: Identity | str, **_how: bool) -> None:
        begun.set()
        await asyncio.to_thread(finish.wait)
        raise Refused(404, "no such lease")

    monkeypatch.setattr(Leases, "release", release)
    sent = b"DELETE /v1/leases/x HTTP/1.1\r\nHost: a\r\n\r\n" * 2
    with connected(service, sent):
        assert begun.wait(SECONDS)
    # answered after its client is gone
    assert service.ask("GET", "/accessible").status == 200
    finish.set()
    assert service.ask("GET", "/accessible").status == 200
    assert not [r for r in caplog.records if r.levelno > logging.INFO]


def test_requests_ahead_of_their_answers(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PIPELINED", 2)
    with connected(service, REQUEST * 2) as client:
        answer = b""
        while answer.count(b"HTTP/1.1 200") < 2:
            answer += client.recv(65536)
        client.sendall(REQUEST * 3)
        answer = b""
        while part := client.recv(65536):
            answer += part
        assert b"HTTP/1.1 400" in answer


def test_an_answer_that_is_not_read() -> None:
    connection = connections.Connection.__new__(connections.Connection)
    transport, loop = Transport(), Loop()
    connection.__dict__.update(transport=transport, loop=loop, cycle=None)
    transport.unread = 10 * connections.ANSWER_BYTES
    allowed = connections.ANSWER_SECONDS + 10
    for now, late in ((0.0, False), (allowed, False), (allowed + 0.1, True)):
        loop.now = now
        connection.check()
        assert transport.aborted == late


def test_an_answer_that_is_read_slowly_enough() -> None:
    connection = connections.Connection.__new__(connections.Connection)
    transport, loop = Transport(), Loop()
    connection.__dict__.update(transport=transport, loop=loop, cycle=None)
    for now in range(10):
        loop.now = now * connections.HEADER_SECONDS / 2
        transport.unread = now % 2
        connection.check()
    assert not transport.aborted

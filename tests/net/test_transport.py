"""What the client of a service makes of answers that are large, late or cut short."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy

import pytest

from sf_quantum.errors import InputError
from sf_quantum.net import transport
from sf_quantum.net.transport import (
    MOST_RETRY_SECONDS,
    Client,
    KeptClient,
    Response,
    Unreachable,
    Unsendable,
)
from sf_quantum.protocol.bounds import RESULT_BYTES
from tests.support.waiting import until

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def answering(*parts: bytes) -> Iterator[str]:
    """Serve one connection with given bytes; yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    # the client may have gone after a part of it
                    for part in parts:
                        connection.sendall(part)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        # the test may have failed before the client connected
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        thread.join()


def asked(url: str, most_bytes: int = 1000) -> Response:
    return Client(url, {}, most_bytes=most_bytes).request("GET", "/")


def test_nothing_arrives_where_there_is_no_connection() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="refused") as caught:
            asked(f"http://127.0.0.1:{free.getsockname()[1]}")
    assert not caught.value.sent


def test_of_a_lost_answer_the_request_may_have_arrived() -> None:
    with answering() as url, pytest.raises(Unreachable, match="closed") as caught:
        asked(url)
    assert caught.value.sent


def test_what_is_no_json_is_empty() -> None:
    for body in (b"{", b"[1]", b"\xff", b"[" * 10**6):
        assert Response(200, body).json() == {}


def test_an_announced_size_is_refused_unread() -> None:
    headers = OK + b"Content-Length: 1001\r\n\r\n"
    with answering(headers) as url, pytest.raises(Unreachable, match="1,000 bytes"):
        asked(url)


@pytest.mark.parametrize(
    "parts",
    [
        (OK + b"\r\n", b"x" * 600, b"x" * 600),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", *[b"200\r\n" + b"x" * 512 + b"\r\n"] * 3),
    ],
    ids=["until it is closed", "chunked"],
)  # fmt: skip
def test_a_stream_is_read_no_further_than_the_limit(parts: tuple[bytes, ...]) -> None:
    with answering(*parts) as url, pytest.raises(Unreachable, match="1,000 bytes"):
        asked(url)


def test_an_answer_as_large_as_the_limit_is_read() -> None:
    for headers in (OK + b"\r\n", OK + b"Content-Length: 1000\r\n\r\n"):
        with answering(headers, b"x" * 1000) as url:
            assert len(asked(url).body) == 1000
    assert RESULT_BYTES >= 180e6


@pytest.mark.parametrize(
    "parts",
    [
        (OK + b"Content-Length: 900\r\n\r\n", b"x" * 100),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"200\r\n" + b"x" * 100),
    ],
    ids=["announced", "chunked"],
)
def test_an_answer_cut_short_is_none(parts: tuple[bytes, ...]) -> None:
    with answering(*parts) as url, pytest.raises(Unreachable):
        asked(url)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (b"", None),
        (b"Retry-After: 7\r\n", 7.0),
        (b"Retry-After: 99999999999\r\n", MOST_RETRY_SECONDS),
        (b"Retry-After: -1\r\n", None),
        (b"Retry-After: soon\r\n", None),
        # by the clock of the service, whatever ours says
        (
            b"Date: Fri, 31 Dec 1999 23:59:50 GMT\r\n"
            b"Retry-After: Sat, 01 Jan 2000 00:00:00 GMT\r\n",
            10.0,
        ),
        (
            b"Date: Sat, 01 Jan 2000 00:00:00 GMT\r\n"
            b"Retry-After: Fri, 31 Dec 1999 23:59:50 GMT\r\n",
            0.0,
        ),
        (b"Retry-After: Sat, 01 Jan 2000 00:00:00 GMT\r\n", None),
    ],
)
def test_a_busy_service_says_when_to_ask_again(
    headers: bytes, seconds: float | None
) -> None:
    busy = b"HTTP/1.1 429 Too Many Requests\r\n" + headers
    with answering(busy + b"Content-Length: 0\r\n\r\n") as url:
        assert asked(url) == Response(429, b"", seconds)


@contextmanager
def serving(answers: list[list[bytes]]) -> Iterator[tuple[str, list[int]]]:
    """Serve connections with an answer to each request, then close each; yields the URL.

    :param answers: of each connection
    """
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                for number, replies in enumerate(answers):
                    connection, _ = server.accept()
                    with connection:
                        for reply in replies:
                            connection.recv(65536)
                            taken.append(number)
                            connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        thread.join()


EMPTY = OK + b"Content-Length: 2\r\n\r\n{}"


def test_a_kept_connection_serves_the_next_request() -> None:
    with serving([[EMPTY] * 3]) as (url, taken):
        client = KeptClient(url, {})
        for _ in range(3):
            assert client.request("GET", "/").json() == {}
    assert taken == [0, 0, 0]


def test_a_connection_that_the_service_has_closed_is_replaced() -> None:
    closes = OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}"
    with serving([[EMPTY], [closes], [EMPTY]]) as (url, taken):
        client = KeptClient(url, {})
        client.request("GET", "/")
        until(lambda: not transport._open(client._idle[0][1].sock))
        client.request("GET", "/")
        client.request("GET", "/")
    assert taken == [0, 1, 2]


def test_a_forked_process_opens_a_connection_of_its_own() -> None:
    with serving([[EMPTY], [EMPTY]]) as (url, taken):
        client = KeptClient(url, {})
        client.request("GET", "/")
        client._idle[0] = (-1, client._idle[0][1])
        client.request("GET", "/")
    assert taken == [0, 1]


def test_a_copy_has_connections_of_its_own() -> None:
    with serving([[EMPTY], [EMPTY]]) as (url, taken):
        client = KeptClient(url, {})
        client.request("GET", "/")
        deepcopy(client).request("GET", "/")
    assert taken == [0, 1]


def test_nothing_is_sent_without_the_credential() -> None:
    def credential() -> dict[str, str]:
        raise InputError("p.txt: no such file")

    client = Client("http://127.0.0.1:1", {}, credential)
    with pytest.raises(Unsendable, match=r"p.txt: no such file"):
        client.request("GET", "/")


@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
@pytest.mark.parametrize("password", ["s3cret", "s3cret/x", "s3cret@x"])
@pytest.mark.parametrize(
    "rest", ["host", "host:99999", "host:x", "host?x=1", "ho st", "[::1", "ho℀st", ""]
)
def test_no_message_has_the_password_of_a_url(
    scheme: str, password: str, rest: str
) -> None:
    with pytest.raises(InputError) as it:
        Client(f"{scheme}://bob:{password}@{rest}", {})
    assert "s3cret" not in str(it.value)


def test_a_wrong_port_is_told_from_a_wrong_host() -> None:
    with pytest.raises(InputError, match="its port is not a number"):
        Client("https://host:port", {})
    with pytest.raises(InputError, match="contains invalid characters"):
        Client("https://fort℀.example", {})

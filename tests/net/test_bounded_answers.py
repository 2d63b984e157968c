"""Clients of services that misbehave: no credential leaves, and every answer has its bounds."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from threading import Barrier, Event
from typing import TypeAlias, cast

import pytest
import requests

from sf_quantum.errors import QpuError
from sf_quantum.net import sessions
from sf_quantum.net.bounded_answers import LARGE_AT_ONCE, LARGE_BYTES, PART_BYTES, body
from sf_quantum.net.transport import Client, Unreachable
from sf_quantum.protocol.bounds import RESULT_BYTES
from tests.support import trouble
from tests.support.trouble import Kind, Stranger, TroubledProxy, bomb
from tests.support.waiting import SECONDS

SECRET = "a credential"
MOST = 2**20
Ask: TypeAlias = Callable[[str], bytes]


def by_transport(url: str) -> bytes:
    client = Client(url, {"X-Any-Name": SECRET}, most_bytes=MOST)
    return client.request("GET", "/", timeout_seconds=0.5).body


def by_requests(url: str) -> bytes:
    with requests.Session() as session:
        session.headers["X-Any-Name"] = SECRET
        sessions.guard(session, MOST, 0.5)
        return session.get(url).content


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with Stranger() as stranger:
        yield stranger


@pytest.fixture
def proxy(stranger: Stranger) -> Iterator[TroubledProxy]:
    with Stranger() as service, TroubledProxy(service.url, stranger.url) as proxy:
        yield proxy


@pytest.fixture(params=[by_transport, by_requests])
def ask(request: pytest.FixtureRequest) -> Ask:
    asking: Ask = request.param
    return asking


ENDLESS: tuple[Kind, ...] = (
    *("declared", "chunked", "small chunks", "compressed", "compressed twice"),
    *("drip", "head drip", "continue", "continue at once", "headers", "silence"),
)


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_endless_answer_ends_in_time_and_in_few_bytes(
    proxy: TroubledProxy, ask: Ask, kind: Kind
) -> None:
    assert ask(proxy.url) == b"{}"
    # made before memory is measured
    bombs = [bomb(1), bomb(2)]
    assert len(bombs[0]) < 1.1 * 2**20
    proxy.fault(kind)
    tracemalloc.start()
    try:
        if ask is by_transport and kind.startswith("compressed"):
            # it asks for none, and unpacks none
            assert ask(proxy.url) in bombs
        else:
            with pytest.raises((QpuError, requests.RequestException)):
                ask(proxy.url)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MOST
    proxy.heal()
    assert ask(proxy.url) == b"{}"


@pytest.mark.parametrize("kind", ["redirect", "redirect as it is"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_credential_goes_where_an_answer_redirects(
    proxy: TroubledProxy, stranger: Stranger, ask: Ask, kind: Kind, method: str
) -> None:
    proxy.fault(kind)
    words = f"it redirects to {stranger.url}/, and no redirect is followed"
    with pytest.raises((QpuError, requests.RequestException), match=words) as caught:
        ask(proxy.url)
    assert not stranger.heard
    # D-Wave's client logs what was answered
    answer = getattr(caught.value, "response", None)
    assert answer is None or answer.text == ""


@pytest.mark.parametrize(
    ("kind", "sent"), [("redirect", True), ("redirect as it is", False)]
)
def test_what_is_to_be_sent_elsewhere_has_done_nothing(
    proxy: TroubledProxy, kind: Kind, sent: bool
) -> None:
    proxy.fault(kind)
    with pytest.raises(Unreachable) as caught:
        by_transport(proxy.url)
    assert caught.value.sent is sent


def test_a_session_unpacks_an_answer_of_the_largest_size(
    proxy: TroubledProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble, "bomb", lambda _: gzip.compress(bytes(MOST)))
    proxy.fault("compressed")
    assert by_requests(proxy.url) == bytes(MOST)


class Large:
    """An answer that is large, and waits for others before its end."""

    length = None

    def __init__(self, arrived: Barrier, begun: list[Large], too_many: Event) -> None:
        self.left = LARGE_BYTES + 2 * PART_BYTES
        self.arrived, self.begun, self.too_many = arrived, begun, too_many

    def read(self, size: int) -> bytes:
        if self.left == 2 * PART_BYTES:
            self.arrived.wait(SECONDS)
        if self.left == PART_BYTES:
            self.begun.append(self)
            if len(self.begun) > LARGE_AT_ONCE:
                self.too_many.set()
            assert not self.too_many.wait(0.2)
        if not self.left:
            self.begun.remove(self)
        part = min(size, self.left)
        self.left -= part
        return bytes(part)


def test_two_large_answers_at_once_are_read_in_a_process() -> None:
    arrived, begun, too_many = Barrier(6), list[Large](), Event()
    answers = [Large(arrived, begun, too_many) for _ in range(6)]
    with ThreadPoolExecutor(len(answers)) as pool:
        read = pool.map(
            lambda one: len(body(cast("HTTPResponse", one), RESULT_BYTES)), answers
        )
        assert {*read} == {LARGE_BYTES + 2 * PART_BYTES}

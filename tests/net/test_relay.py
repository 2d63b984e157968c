"""The relay for vendors' clients that have no bounds and follow redirects."""

from __future__ import annotations

import errno
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from urllib.parse import urlsplit

import pytest

from sf_quantum.errors import InputError, QpuError
from sf_quantum.net import local_server, relay
from sf_quantum.net.local_server import LocalServer, TimedHandler
from sf_quantum.net.relay import Relay
from sf_quantum.qpu.qrmi_config import Resource
from sf_quantum.qpu.vendors.iqm import IqmServer
from sf_quantum.qpu.vendors.qrmi import PasqalLocal, QrmiQpu
from tests.support.trouble import Kind, Stranger, TroubledProxy
from tests.support.waiting import SECONDS

CREDENTIAL = {"X-Munge-Cred": "MUNGE:a credential"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SECONDS", 0.5)
    monkeypatch.setattr(relay._Handler, "timeout", 0.5)
    monkeypatch.setattr(relay, "MOST_BYTES", 2**20)


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with Stranger() as stranger:
        yield stranger


@pytest.fixture
def service() -> Iterator[Stranger]:
    with Stranger() as service:
        yield service


@pytest.fixture
def proxy(service: Stranger, stranger: Stranger) -> Iterator[TroubledProxy]:
    with TroubledProxy(service.url, stranger.url) as proxy:
        yield proxy


@pytest.fixture
def relayed(proxy: TroubledProxy) -> Iterator[str]:
    made = Relay(proxy.url)
    yield made.url
    made.close()


def ask(url: str, path: str = "/jobs?x=1", method: str = "POST") -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    with closing(connection):
        connection.request(method, parts.path + path, b"{}", CREDENTIAL)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_request_is_passed_on_as_it_is(
    relayed: str, service: Stranger, proxy: TroubledProxy
) -> None:
    assert ask(relayed) == (200, "{}")
    assert proxy.asked == [("POST", "/jobs?x=1")]
    assert service.heard[0]["X-Munge-Cred"] == CREDENTIAL["X-Munge-Cred"]


def test_who_does_not_know_the_path_is_refused(
    relayed: str, proxy: TroubledProxy
) -> None:
    parts = urlsplit(relayed)
    assert ask(f"http://{parts.netloc}/another")[0] == 404
    assert ask(f"http://{parts.netloc}", "/")[0] == 404
    assert not proxy.asked


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        *(("redirect", 502), ("redirect as it is", 425), ("declared", 502)),
        *(("chunked", 502), ("drip", 502), ("continue", 502), ("cut", 502)),
        *(("refusal", 400), ("error", 500)),
    ],
)
def test_trouble_ends_at_the_relay(
    relayed: str, proxy: TroubledProxy, stranger: Stranger, kind: Kind, status: int
) -> None:
    proxy.fault(kind)
    assert ask(relayed)[0] == status
    assert not stranger.heard
    proxy.heal()
    assert ask(relayed)[0] == 200


@pytest.mark.parametrize(
    ("length", "status"), [("0" * 5000 + "2", 200), ("9" * 5000, 413), ("x", 413)]
)
def test_a_length_of_many_digits_is_answered(
    relayed: str, length: str, status: int
) -> None:
    parts = urlsplit(relayed)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    with closing(connection):
        headers = {**CREDENTIAL, "Content-Length": length}
        connection.request("POST", f"{parts.path}/jobs", b"{}", headers)
        assert connection.getresponse().status == status


def test_a_service_that_is_gone_has_certainly_not_been_asked() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        made = Relay(f"http://127.0.0.1:{free.getsockname()[1]}")
        status, text = ask(made.url)
        made.close()
    assert (status, "refused" in text) == (425, True)


@pytest.mark.parametrize(
    "made",
    [
        lambda url: PasqalLocal(
            Resource("q", "pasqal-local", {"QRMI_WARDEN_URL": url})
        ),
        lambda url: IqmServer(
            Resource(
                "q",
                "iqm-server",
                {"QRMI_IQM_ISA_ENDPOINT": url, "QRMI_IQM_ISA_TOKEN": "a token"},
            )
        ),
    ],
    ids=["pasqal-local", "iqm-server"],
)
@pytest.mark.parametrize("kind", ["redirect", "declared", "drip"])
def test_the_client_of_qrmi_goes_through_it(
    proxy: TroubledProxy, stranger: Stranger, made: type[QrmiQpu], kind: Kind
) -> None:
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    qpu = made(proxy.url)  # type: ignore[arg-type]
    proxy.fault(kind)
    with pytest.raises(QpuError, match="502"):
        qpu.status()
    assert not stranger.heard


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_client_that_asks_the_sites_proxy_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://proxy.site:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(InputError, match=r"add 127\.0\.0\.1 to no_proxy"):
        Relay("https://vendor.example")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Relay("https://vendor.example").close()


@pytest.mark.parametrize("says", [b"", b"GET /x", b"POST / HTTP/1.1\r\n"])
def test_strangers_take_no_place_from_the_client(
    proxy: TroubledProxy, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    monkeypatch.setattr(local_server, "MOST_CONNECTIONS", 2)
    with closing(Relay(proxy.url)) as made, ExitStack() as strangers:
        parts = urlsplit(made.url)
        for _ in range(5):
            one = socket.create_connection((parts.hostname or "", parts.port or 0))
            strangers.enter_context(one).sendall(says)
        assert ask(made.url) == (200, "{}")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
def test_a_relay_outlives_a_lack_of_descriptors(
    proxy: TroubledProxy, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    accept, failures = relay._Server.get_request, iter([OSError(number, "none")])

    def accepted(server: relay._Server) -> tuple[socket.socket, tuple[str, int]]:
        for failure in failures:
            raise failure
        return accept(server)

    monkeypatch.setattr(relay._Server, "get_request", accepted)
    with closing(Relay(proxy.url)) as made:
        assert ask(made.url) == (200, "{}")


@pytest.mark.parametrize("sent", ["head", "body"])
def test_a_request_that_drips_ends_within_the_time(relayed: str, sent: str) -> None:
    parts = urlsplit(relayed)
    head = f"POST {parts.path}/x HTTP/1.1\r\nContent-Length: 1000\r\n"
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as client:
        client.sendall(head.encode() + (b"\r\n" if sent == "body" else b"X: "))
        client.settimeout(0.1)  # less than the time limit
        began = time.monotonic()
        with suppress(ConnectionError):
            while True:
                client.sendall(b"x")
                with suppress(TimeoutError):
                    if not client.recv(100):
                        break
                assert time.monotonic() < began + SECONDS


class SiteProxy(LocalServer):
    """An HTTP proxy that notes what it is asked for, and opens no tunnel."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _ProxyHandler(TimedHandler):
    timeout = SECONDS
    server: SiteProxy

    def _note(self) -> None:
        login = self.headers["Proxy-Authorization"]
        self.server.asked.append((self.command, self.path, login))
        tunnel = self.command == "CONNECT"
        self.send_response(403 if tunnel else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_CONNECT = _note

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("url", "asked", "status"),
    [
        ("http://vendor.example/api", ("GET", "http://vendor.example:80/api/x"), 200),
        ("https://vendor.example", ("CONNECT", "vendor.example:443"), 425),
    ],
)
def test_the_sites_proxy_is_used_for_the_vendor(
    monkeypatch: pytest.MonkeyPatch, url: str, asked: tuple[str, str], status: int
) -> None:
    with SiteProxy() as proxy:
        where = f"http://user:pass@127.0.0.1:{proxy.server_port}"
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, where)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with closing(Relay(url)) as made:
            assert ask(made.url, "/x", "GET")[0] == status
        assert proxy.asked == [(*asked, "Basic dXNlcjpwYXNz")]

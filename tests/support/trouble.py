"""A proxy in front of any service that misbehaves on command, and a stranger who listens.

Whatever it does not disturb, it passes on, so that behind it may be any vendor's stand-in, of
any dialect. It does not know what it passes on::

    with Stranger() as stranger, TroubledProxy(vendor.url, stranger.url) as proxy:
        proxy.fault("redirect", path="/jobs")
        ...
        proxy.heal()
"""

from __future__ import annotations

import gzip
import http.client
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self, TypeAlias, cast, get_args
from urllib.parse import urlsplit

Kind: TypeAlias = Literal[
    "redirect",  # to the stranger, so that a client asks again there
    "redirect as it is",  # likewise, with the method and the body
    "declared",  # a gigabyte, as announced
    "chunked",  # a gigabyte, in chunks
    "small chunks",  # of two bytes, without end
    "compressed",  # a gigabyte, in a megabyte of gzip
    "compressed twice",
    "drip",  # a byte of the body now and then
    "head drip",  # a byte of the headers now and then
    "continue",  # 100 Continue, now and then
    "continue at once",  # and as fast as it is read
    "headers",  # without end
    "silence",  # no answer
    "refusal",  # 400
    "too long",  # 414
    "error",  # 500
    "error after",  # 500, and the request has taken effect
    "unavailable",  # 503
    "cut",  # the connection, without an answer
    "cut after",  # likewise, and the request has taken effect
    "junk",  # no JSON
    "nested",  # JSON of a great depth
    "other",  # JSON that is something else
]
KINDS: tuple[Kind, ...] = get_args(Kind)
GIGABYTE = 2**30
PAUSE_SECONDS = 0.05
HEADERS = ("connection", "keep-alive", "transfer-encoding", "content-length", "server")


@dataclass(frozen=True)
class Fault:
    """What befalls the requests that it matches.

    :param path: a part of the path
    :param about: an id in the path, such as that of a job
    :param times: of how many requests; ``None``: all, until it is healed
    """

    kind: Kind
    method: str = ""
    path: str = ""
    about: str = ""
    times: int | None = None

    def befalls(self, method: str, path: str) -> bool:
        named = not self.about or self.about in re.findall(r"[\w-]+", path)
        return self.method in ("", method) and self.path in path and named


@cache
def bomb(times: int = 1) -> bytes:
    """Return a gigabyte of zeros, compressed: about a megabyte."""
    text = bytes(2**20)
    packed = gzip.compress(text * 64) * (GIGABYTE // len(text) // 64)
    return packed if times == 1 else gzip.compress(packed)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True
    owner: TroubledProxy | Stranger

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients go at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        """Take any method; a connection has one request."""
        self.close_connection = True
        with suppress(OSError):
            self.raw_requestline = self.rfile.readline(65537)
            if self.raw_requestline and self.parse_request():
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = self.chunks()
                cast("_Server", self.server).owner.take(self, body)
                self.wfile.flush()

    def chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        return body

    def begin(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Connection", "close")
        self.end_headers()

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.begin(status, Content_Length=str(len(body)), **headers)
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Listening:
    """A server in a thread."""

    def __init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = cast("TroubledProxy | Stranger", self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Stranger(_Listening):
    """Another origin: it notes the headers of all requests, which nobody should send."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, str]] = []

    def take(self, request: _Handler, _: bytes) -> None:
        self.heard.append({**request.headers})
        request.answer(200, b"{}", Content_Type="application/json")

    def heard_any(self, secrets: Mapping[str, str]) -> list[str]:
        """Name the secrets that it has heard."""
        heard = "\n".join(str(one) for one in self.heard)
        return [name for name, secret in secrets.items() if secret in heard]


@dataclass(eq=False)
class _Known:
    faults: list[Fault] = field(default_factory=list)
    healed: threading.Event = field(default_factory=threading.Event)


class TroubledProxy(_Listening):
    """Passes requests on to a service, unless a fault befalls them.

    :param target: URL of the service
    :param stranger: URL of another origin
    """

    def __init__(self, target: str, stranger: str) -> None:
        super().__init__()
        self._target, self._stranger = urlsplit(target), stranger
        self._known = _Known()
        self._lock = threading.Lock()
        #: method and path of all requests
        self.asked: list[tuple[str, str]] = []
        #: how many requests each kind of fault has befallen
        self.befell: dict[str, int] = dict.fromkeys(KINDS, 0)

    def __exit__(self, *_: object) -> None:
        self.heal()
        super().__exit__()

    def fault(
        self,
        kind: Kind,
        path: str = "",
        *,
        method: str = "",
        about: str = "",
        times: int | None = None,
    ) -> None:
        """Have a fault befall requests from now on."""
        with self._lock:
            self._known.faults.append(Fault(kind, method, path, about, times))

    def heal(self, *, all_but_some: bool = False) -> None:
        """End all faults, also of requests under way.

        :param all_but_some: those of single ids stay, for the next requests
        """
        with self._lock:
            healed, kept = self._known.healed, self._known.faults
            self._known = _Known([one for one in kept if all_but_some and one.about])
        healed.set()

    def take(self, request: _Handler, body: bytes) -> None:
        """Pass a request on, or have a fault befall it."""
        method, path = request.command, request.path
        with self._lock:
            self.asked.append((method, path))
            known = self._known
            fault = next((f for f in known.faults if f.befalls(method, path)), None)
            if fault is not None:
                self.befell[fault.kind] += 1
            if fault is not None and fault.times is not None:
                known.faults.remove(fault)
                if fault.times > 1:
                    known.faults.insert(0, replace(fault, times=fault.times - 1))
        if fault is None:
            status, headers, answer = self._passed(request, body)
            return request.answer(status, answer, **headers)
        if fault.kind.endswith("after"):
            self._passed(request, body)
        self._befall(fault.kind, request, known.healed)
        return None

    def _passed(
        self, request: _Handler, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        target = self._target
        passed = http.client.HTTPConnection(target.hostname or "", target.port)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in HEADERS
        }
        try:
            passed.request(
                request.command, target.path + request.path, body or None, headers
            )
            answer = passed.getresponse()
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in HEADERS}
            kept.pop("Date", None)
            return answer.status, kept, answer.read()
        except (OSError, http.client.HTTPException):
            return 502, {}, b"no vendor"
        finally:
            passed.close()

    def _befall(self, kind: Kind, to: _Handler, healed: threading.Event) -> None:
        json = {"Content_Type": "application/json"}
        match kind:
            case "redirect" | "redirect as it is":
                status = 302 if kind == "redirect" else 307
                to.answer(status, b"", Location=f"{self._stranger}{to.path}")
            case "silence":
                healed.wait()
            case "compressed" | "compressed twice":
                times = 1 if kind == "compressed" else 2
                coding = ", ".join(["gzip"] * times)
                to.answer(200, bomb(times), Content_Encoding=coding, **json)
            case _ if kind in STATUSES:
                error = b'{"detail": "trouble", "error": "trouble"}'
                to.answer(STATUSES[kind], error, **json)
            case _ if kind in JUNK:
                to.answer(200, JUNK[kind], **json)
            case _ if kind in FLOODS:
                begin, part, parts = FLOODS[kind]
                to.wfile.write(b"HTTP/1.1 " + begin)
                self._flood(to, part, parts, healed)
            case _ if kind in DRIPS:
                begin, part = DRIPS[kind]
                to.wfile.write(b"HTTP/1.1 " + begin)
                self._drip(to, part, healed)

    @staticmethod
    def _flood(to: _Handler, part: bytes, parts: int, healed: threading.Event) -> None:
        for _ in range(parts):
            if healed.is_set():
                break
            to.wfile.write(part)

    @staticmethod
    def _drip(to: _Handler, part: bytes, healed: threading.Event) -> None:
        while not healed.wait(PAUSE_SECONDS):
            to.wfile.write(part)
            to.wfile.flush()


OK = b"200 OK\r\nContent-Type: application/json\r\n"
IN_CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"100 Continue\r\n\r\n"
# the begin of an answer, and what follows so many times
FLOODS: Mapping[str, tuple[bytes, bytes, int]] = {
    "declared": (
        OK + b"Content-Length: %d\r\n\r\n" % GIGABYTE,
        b"[" * 2**16,
        GIGABYTE >> 16,
    ),
    "chunked": (
        IN_CHUNKS,
        b"10000\r\n" + b"1" * 2**16 + b"\r\n",
        GIGABYTE >> 16,
    ),
    "small chunks": (IN_CHUNKS, b"2\r\n1,\r\n" * 2**13, GIGABYTE >> 14),
    "continue at once": (
        CONTINUE,
        (b"HTTP/1.1 " + CONTINUE) * 100,
        GIGABYTE,
    ),
    "headers": (b"200 OK\r\n", b"X-A: " + b"a" * 1000 + b"\r\n", GIGABYTE),
}
# likewise, without end
DRIPS: Mapping[str, tuple[bytes, bytes]] = {
    "drip": (OK + b"Content-Length: 1000000\r\n\r\n", b" "),
    "head drip": (b"200 OK\r\nX-A: ", b"a"),
    "continue": (CONTINUE, b"HTTP/1.1 " + CONTINUE),
}
STATUSES: Mapping[str, int] = {
    "refusal": 400,
    "too long": 414,
    "error": 500,
    "error after": 500,
    "unavailable": 503,
}
JUNK: Mapping[str, bytes] = {
    "junk": b"<html>the vendor's page</html>",
    "nested": b'{"id": ' + b"[" * 10**6,
    "other": b'{"id": {}, "state": [1], "status": 7, "x": NaN}',
}

"""A relay on this machine between a service and a vendor's client that limits no answers.

The client gets the relay's URL in place of the service's URL. The relay sends the client's
requests to the service as every client of sf_quantum does: it bounds the time and size of
answers, and follows no redirects.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection
from typing import cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.net.bounded_answers import content_length
from sf_quantum.net.local_server import LocalServer, TimedHandler
from sf_quantum.net.transport import Client, Unreachable
from sf_quantum.protocol.bounds import ANSWER_BYTES

# Shorter than the callers' waits for the vendor's client.
SECONDS = 25.0
# largest answer that is passed on
MOST_BYTES = 4 * ANSWER_BYTES
# Largest body of a request, the same as `sfq serve` accepts.
REQUEST_BYTES = 64 * 1024 * 1024
HOST = "127.0.0.1"
# Pause after a failure to accept a connection.
ACCEPT_PAUSE_SECONDS = 0.1
# headers that concern one connection, and are not passed on
OF_A_CONNECTION = ("connection", "host", "content-length", "accept-encoding")
# Statuses of the relay's own answers: the request was certainly not sent, so clients retry;
# the request got no answer.
NOT_SENT, NOT_ANSWERED = 425, 502


class Relay:
    """A relay to one service, which runs until it is closed.

    :param url: URL of the service; plain ``http`` is allowed even to another machine
    :raises InputError: if the URL is invalid, if the vendor's client would use the site's
        proxy to reach the relay, or if this proxy is not an HTTP proxy
    """

    def __init__(self, url: str) -> None:
        proxies = getproxies()
        if not (proxies.keys().isdisjoint(("http", "all")) or proxy_bypass(HOST)):
            raise InputError(
                f"http_proxy is set, by which the requests for {url} would reach no limit: "
                f"add {HOST} to no_proxy"
            )
        self._server = _Server(_client(url, proxies))
        serving = threading.Thread(target=self._server.serve, daemon=True)
        serving.start()
        #: function that ends the relay
        self.close = self._server.end

    @property
    def url(self) -> str:
        """URL of the relay; other users of this machine do not know its path."""
        return f"http://{HOST}:{self._server.server_port}/{self._server.secret}"


def _client(url: str, proxies: Mapping[str, str]) -> Client:
    parts = urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return Client(url, {}, most_bytes=MOST_BYTES, plain=True)
    return _ProxiedClient(url, urlsplit(proxy if "//" in proxy else f"http://{proxy}"))


class _ProxiedClient(Client):
    """A client that sends requests through the HTTP proxy of the site."""

    def __init__(self, url: str, proxy: SplitResult) -> None:
        if proxy.scheme != "http" or not proxy.hostname:
            raise InputError(f"{url}: only HTTP proxies are used, as http://HOST:PORT")
        self._proxy = proxy.hostname, proxy.port or 80
        self._proxy_headers: dict[str, str] = {}
        if proxy.username is not None:
            login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            basic = b64encode(login.encode()).decode()
            self._proxy_headers = {"Proxy-Authorization": f"Basic {basic}"}
        tls = urlsplit(url).scheme == "https"
        headers = {} if tls else self._proxy_headers
        super().__init__(url, headers, most_bytes=MOST_BYTES, plain=True)
        if not tls:  # a request to a proxy names the whole URL
            _, host, port, prefix = self._base
            name = f"[{host}]" if ":" in host else host
            self._base = tls, host, port, f"http://{name}:{port}{prefix}"

    def _connection(self, timeout_seconds: float) -> HTTPConnection:
        tls, host, port, _ = self._base
        connection = self._kind(*self._proxy, timeout=timeout_seconds)
        if tls:
            connection.set_tunnel(host, port, self._proxy_headers)
        return connection

    def _speaks_tls(self, timeout_seconds: float) -> bool:
        return False  # the service is not probed through a proxy


class _Server(LocalServer):
    """The server of a relay, on a port of this machine."""

    def __init__(self, client: Client) -> None:
        self._ended = threading.Event()
        self.client = client
        self.secret = secrets.token_urlsafe(16)
        super().__init__((HOST, 0), _Handler)

    def serve(self) -> None:
        while not self._ended.is_set():
            try:
                request, address = self.get_request()
            except OSError:  # the relay has ended, or no file descriptor is free
                self._ended.wait(ACCEPT_PAUSE_SECONDS)
            else:
                self.process_request(request, address)

    def end(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class _Handler(TimedHandler):
    """Forwards requests of clients, and passes the answers on."""

    timeout = SECONDS

    def _forward_request(self) -> None:
        """Forward a request with the right secret to the service, and return the answer."""
        server = cast("_Server", self.server)
        secret, _, path = self.path.removeprefix("/").partition("/")
        length = content_length(self.headers["Content-Length"])
        if not secrets.compare_digest(secret, server.secret):
            return self.send_error(404)
        server.trust(self.connection)
        if length is None or length > REQUEST_BYTES:
            return self.send_error(413)
        body = self.rfile.read(length) or None
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in OF_A_CONNECTION
        }
        try:
            status, received, answer = server.client.exchange(
                self.command, f"/{path}", body, headers, SECONDS
            )
            return self._answer(
                status, received["Content-Type"] or "text/plain", answer
            )
        except QuantumError as error:
            unsent = isinstance(error, Unreachable) and not error.sent
            text = json.dumps({"detail": f"no answer: {error}"}).encode()
            status = NOT_SENT if unsent else NOT_ANSWERED
            return self._answer(status, "application/json", text)

    do_GET = do_POST = do_PUT = do_DELETE = _forward_request

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

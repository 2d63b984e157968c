"""A relay on this machine between a service and a vendor's client that has no bounds.

The client gets the relay's URL in place of the service's. What it sends goes on to the
service as by any other client of ours: within a time, up to a size, and to nowhere else.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import cast
from urllib.request import getproxies, proxy_bypass

from sf_quantum.errors import QuantumError
from sf_quantum.net.local_server import LocalServer
from sf_quantum.net.transport import Client, Unreachable
from sf_quantum.protocol.bounds import ANSWER_BYTES

# less than that for which the client is waited for
SECONDS = 25.0
MOST_BYTES = 4 * ANSWER_BYTES
# of a request, as our own service takes it
REQUEST_BYTES = 64 * 1024 * 1024
HOST = "127.0.0.1"
# after a connection could not be accepted
ACCEPT_PAUSE_SECONDS = 0.1
# headers that belong to one connection
OF_A_CONNECTION = ("connection", "host", "content-length", "accept-encoding")
# the status for a request that has certainly not been sent, after which clients try again
NOT_SENT, NOT_ANSWERED = 425, 502


class Relay:
    """A relay to one service, until it is closed.

    :param url: URL of the service; with ``http``, it may be on another machine
    :raises InputError: if the URL is invalid
    """

    def __init__(self, url: str) -> None:
        self._server = _Server(Client(url, {}, most_bytes=MOST_BYTES, plain=True))
        serving = threading.Thread(target=self._server.serve, daemon=True)
        serving.start()
        #: ends it
        self.close = self._server.end

    @property
    def url(self) -> str:
        """Where it listens; others of this machine do not know the path."""
        return f"http://{HOST}:{self._server.server_port}/{self._server.secret}"


def usable() -> bool:
    """Whether clients of this process reach this machine itself, and not through a proxy."""
    return "http" not in getproxies() or bool(proxy_bypass(HOST))


class _Server(LocalServer):
    def __init__(self, client: Client) -> None:
        self._ended = threading.Event()
        self.client = client
        self.secret = secrets.token_urlsafe(16)
        super().__init__((HOST, 0), _Handler)

    def serve(self) -> None:
        while not self._ended.is_set():
            try:
                request, address = self.get_request()
            except OSError:  # it has ended, or the process has no descriptor to spare
                self._ended.wait(ACCEPT_PAUSE_SECONDS)
            else:
                self.process_request(request, address)

    def end(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class _Handler(BaseHTTPRequestHandler):
    timeout = SECONDS

    def _pass_on(self) -> None:
        server = cast("_Server", self.server)
        secret, _, path = self.path.removeprefix("/").partition("/")
        length = self.headers["Content-Length"] or "0"
        if not secrets.compare_digest(secret, server.secret):
            return self.send_error(404)
        server.trust(self.connection)
        if not length.isdecimal() or int(length) > REQUEST_BYTES:
            return self.send_error(413)
        body = self.rfile.read(int(length)) or None
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

    do_GET = do_POST = do_PUT = do_DELETE = _pass_on

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

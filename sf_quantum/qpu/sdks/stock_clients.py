"""The QPU of a job as the server that the SDKs' own clients ask: Ocean's and IQM's.

These clients know neither leases nor MUNGE nor Unix sockets. A forwarder in the job's own
machine takes their requests on loopback TCP and sends them on to the QPU's service, with
the job's lease and credential. The clients' own credential is a secret of the forwarder,
since other users of the machine can connect to it, too.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from sf_quantum.errors import QuantumError
from sf_quantum.qpu.service_client import ServiceClient

# each client's path at the service, and its variables for URL and credential
CLIENTS: Mapping[str, tuple[str, str, str]] = {
    "annealer": ("/sapi/v2", "DWAVE_API_ENDPOINT", "DWAVE_API_TOKEN"),
    "superconducting": ("", "IQM_SERVER_URL", "IQM_TOKEN"),
}
# as the largest body that a service takes
MOST_BYTES = 256 * 1024 * 1024
SECONDS = 120.0
# of a connection, not of a request
_OWN = {
    "authorization",
    "connection",
    "content-length",
    "date",
    "host",
    "keep-alive",
    "server",
    "transfer-encoding",
    "x-auth-token",
}


@contextmanager
def variables(service: ServiceClient, technology: str) -> Iterator[dict[str, str]]:
    """Forward requests meanwhile; yield the variables of the technology's client.

    :param service: with the job's lease
    """
    if technology not in CLIENTS:
        yield {}
        return
    path, url, credential = CLIENTS[technology]
    secret = secrets.token_hex(16)
    known = {
        "service": service,
        "credentials": (secret.encode(), f"Bearer {secret}".encode()),
    }
    handler = type("Handler", (_Handler,), known)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            where = f"http://127.0.0.1:{server.server_address[1]}"
            yield {url: f"{where}{path}", credential: secret}
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    service: ClassVar[ServiceClient]
    credentials: ClassVar[tuple[bytes, bytes]]
    protocol_version = "HTTP/1.1"
    timeout = SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: standard error is the job's."""

    def _forward(self) -> None:
        given = self.headers["X-Auth-Token"] or self.headers["Authorization"] or ""
        known = (secrets.compare_digest(given.encode(), c) for c in self.credentials)
        if not any(known):
            return self.send_error(401)
        length = self.headers["Content-Length"] or "0"
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            return self.send_error(411)
        if int(length) > MOST_BYTES:
            return self.send_error(413)
        body = self.rfile.read(int(length)) or None
        try:
            status, headers, answer = self.service.exchange(
                self.command, self.path, body, _passed(self.headers), SECONDS
            )
        except QuantumError as error:
            return self.send_error(502, explain=str(error))
        self.send_response(status)
        for name, value in _passed(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)
        return None

    do_DELETE = do_GET = do_HEAD = do_PATCH = do_POST = do_PUT = _forward


def _passed(headers: Message) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OWN}

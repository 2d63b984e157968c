"""A server on this machine's loopback interface, to which each local user can connect."""

from __future__ import annotations

import io
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, TypeAlias

# Each connection occupies a thread, and any user of the machine can connect. At the limit,
# the oldest connection that has shown no credential is closed in favour of a new one.
MOST_CONNECTIONS = 100
# Longest wait for the thread of such a closed connection to end.
GIVE_WAY_SECONDS = 1.0
# Connections, which socketserver calls requests.
Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]


class _Reader(io.RawIOBase):
    """Reads a connection; the time limit applies to a whole request, not to each read."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        """Restart the time limit, for a request or for the wait for a request."""
        self._deadline = time.monotonic() + self._seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if (left := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._seconds)  # for the answer


class TimedHandler(BaseHTTPRequestHandler):
    """A handler of requests, each of which has to arrive within ``timeout`` seconds.

    The next request on a connection has to begin within the same time.
    """

    timeout: ClassVar[float]

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reader = _Reader(self.connection, self.timeout)
        self.rfile = self._buffered = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        try:
            self._reader.begin()
            self._buffered.peek(1)
            self._reader.begin()
        except TimeoutError:
            self.close_connection = True
            return
        super().handle_one_request()


class LocalServer(ThreadingHTTPServer):
    """An HTTP server with at most :data:`MOST_CONNECTIONS` connections.

    The handler of requests calls :meth:`trust` once a connection has shown a credential.
    """

    request_queue_size = MOST_CONNECTIONS

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]
    ) -> None:
        self._free_connections = threading.Semaphore(MOST_CONNECTIONS)
        # Connections that have shown no credential yet, oldest first.
        self._untrusted: dict[Request, None] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Request, address: tuple[str, int]) -> None:
        if not (self._free_connections.acquire(blocking=False) or self._make_room()):
            self.shutdown_request(request)
            return
        with self._lock:
            self._untrusted[request] = None
        try:
            super().process_request(request, address)
        except RuntimeError:  # the system's limit of threads is reached
            self._end_connection(request)
            self.shutdown_request(request)

    def _make_room(self) -> bool:
        """Close the oldest connection without a credential; return whether it has ended."""
        with self._lock:
            oldest = next(iter(self._untrusted), None)
            if not isinstance(oldest, socket.socket):
                return False
            del self._untrusted[oldest]
            with suppress(OSError):  # its client may have closed it
                oldest.shutdown(socket.SHUT_RDWR)
        return self._free_connections.acquire(timeout=GIVE_WAY_SECONDS)

    def trust(self, request: Request) -> None:
        """Note that a connection has shown the credential, so it is not closed for another."""
        with self._lock:
            self._untrusted.pop(request, None)

    def process_request_thread(
        self, request: Request, address: tuple[str, int]
    ) -> None:
        try:
            super().process_request_thread(request, address)
        finally:
            self._end_connection(request)

    def _end_connection(self, request: Request) -> None:
        self.trust(request)
        self._free_connections.release()

    def handle_error(self, *_: object) -> None:
        """Print nothing about a disconnected client: standard error belongs to the caller."""

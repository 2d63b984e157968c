"""A server on this machine's loopback, which every user of the machine can connect to."""

from __future__ import annotations

import io
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, TypeAlias

# Each connection occupies a thread, and any user of the machine can connect. So connections
# that have shown no credential give way to new ones.
MOST_CONNECTIONS = 100
# Longest wait for the thread of a connection that has given way.
GIVE_WAY_SECONDS = 1.0
# The type that socketserver calls a request.
Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]


class _Reader(io.RawIOBase):
    """Reads a connection; the time limit applies to a whole request, not to each part."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        """Begin a request, or the wait for one."""
        self._until = time.monotonic() + self._seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if (left := self._until - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._seconds)  # for the answer


class TimedHandler(BaseHTTPRequestHandler):
    """A handler of requests, each of which has to arrive within ``timeout`` seconds.

    The next request of a connection has to begin within the same time.
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

    Its handler calls :meth:`trust` for a connection that has shown a credential.
    """

    request_queue_size = MOST_CONNECTIONS

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]
    ) -> None:
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        # Connections without a credential so far, the oldest first.
        self._strangers: dict[Request, None] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Request, address: tuple[str, int]) -> None:
        if not (self._free.acquire(blocking=False) or self._has_given_way()):
            self.shutdown_request(request)
            return
        with self._lock:
            self._strangers[request] = None
        try:
            super().process_request(request, address)
        except RuntimeError:  # the system has no thread to spare
            self._end(request)
            self.shutdown_request(request)

    def _has_given_way(self) -> bool:
        """Close the oldest connection without a credential, if there is one."""
        with self._lock:
            oldest = next(iter(self._strangers), None)
            if not isinstance(oldest, socket.socket):
                return False
            del self._strangers[oldest]
            with suppress(OSError):  # its client may have closed it
                oldest.shutdown(socket.SHUT_RDWR)
        return self._free.acquire(timeout=GIVE_WAY_SECONDS)

    def trust(self, request: Request) -> None:
        """Exempt a connection that has shown the credential from giving way."""
        with self._lock:
            self._strangers.pop(request, None)

    def process_request_thread(
        self, request: Request, address: tuple[str, int]
    ) -> None:
        try:
            super().process_request_thread(request, address)
        finally:
            self._end(request)

    def _end(self, request: Request) -> None:
        self.trust(request)
        self._free.release()

    def handle_error(self, *_: object) -> None:
        """Print nothing about a disconnected client: standard error is the caller's."""

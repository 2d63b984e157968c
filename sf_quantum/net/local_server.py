"""A server on this machine's loopback, which every user of the machine can connect to."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias

# Each connection is a thread. Any user of the machine can open one, so those that have shown
# no credential give way to new ones.
MOST_CONNECTIONS = 100
# Longest wait for the thread of a connection that has given way.
GIVE_WAY_SECONDS = 1.0
# What socketserver calls a request.
Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]


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
        """Let a connection that has shown the credential keep its place."""
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
        """Print nothing of a client that is gone: standard error is the caller's."""

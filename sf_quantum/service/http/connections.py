"""Connections: how many there may be, and how long a client may take."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections import defaultdict, deque
from itertools import chain
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)

# for the headers of a request, from the connection or the last answer
HEADER_SECONDS = 10.0
HEADER_BYTES = 64 * 1024
# to receive an answer, and for each of these bytes a second more
ANSWER_SECONDS = 30.0
ANSWER_BYTES = 128 * 1024
CHECK_SECONDS = 2.0
# on one connection, sent before their answers; no known client sends a second
PIPELINED = 16
# where the request of a connection keeps what cancels its answer
CANCEL = "sfq_cancel"
# kept for files, threads and child processes
OTHER_FILES = 128
_CREDENTIALS = struct.Struct("3i")


class Connections:
    """The connections of a server, by address, or by user of a Unix socket.

    :param most: per address or user
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.by_address = defaultdict[str, dict["Connection", None]](dict)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        #: of all addresses
        self.most_in_all = files - OTHER_FILES


class Connection(HttpToolsProtocol):
    """A connection that ends if its client takes too long, or opens too many.

    A new connection of an address that has too many replaces the oldest that waits for a
    request, the first one if possible, so that unused connections shut nobody out.
    """

    limits: ClassVar[Connections]
    _address = ""
    _waiting_since = 0.0
    _header_bytes = 0
    _answer_until: float | None = None
    _timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._unanswered = deque[RequestResponseCycle]()
        self._waiting_since = self.loop.time()
        self._address = self.client[0] if self.client else _user(transport)
        others = self.limits.by_address[self._address]
        if len(others) >= self.limits.most:
            # the oldest, if possible of those that have never sent a request
            strangers = (other for other in others if other.cycle is None)
            known = (other for other in others if other.waits)
            waiting = next(chain(strangers, known), self)
            waiting.transport.abort()
            others.pop(waiting, None)
        if len(self.connections) > self.limits.most_in_all:
            transport.abort()
        others[self] = None
        self.check()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        others = self.limits.by_address[self._address]
        others.pop(self, None)
        if not others:
            del self.limits.by_address[self._address]
        super().connection_lost(exc)
        # uvicorn looks at the last one only, and would write the answer to the first
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
            if cancel := cycle.scope["state"].get(CANCEL):
                cancel()

    def data_received(self, data: bytes) -> None:
        waited = self.waits
        super().data_received(data)
        if waited and self.waits:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES:
                self.send_400_response("The headers are too large.")

    def on_headers_complete(self) -> None:
        if len(self._unanswered) == PIPELINED:
            detail = f"More than {PIPELINED} requests wait for their answers."
            self.send_400_response(detail)
            raise ValueError(detail)  # the parser reads no further
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        self._waiting_since, self._header_bytes = self.loop.time(), 0
        super().on_response_complete()

    def check(self) -> None:
        """End the connection if its client takes too long, or look again later."""
        now = self.loop.time()
        if size := self.transport.get_write_buffer_size():
            self._waiting_since = now
            if self._answer_until is None:
                self._answer_until = now + ANSWER_SECONDS + size / ANSWER_BYTES
        else:
            self._answer_until = None
        late = self.waits and now - self._waiting_since >= HEADER_SECONDS
        if late or (self._answer_until or now) < now:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(CHECK_SECONDS, self.check)


def limited(most: int) -> type[Connection]:
    """Make the protocol of a server.

    :param most: connections per address, or per user of a Unix socket
    """

    class Limited(Connection):
        limits = Connections(most)

    return Limited


def _user(transport: asyncio.Transport) -> str:
    """Return the number of the user at the other end of a Unix socket."""
    descriptor = transport.get_extra_info("socket").fileno()
    with socket.socket(fileno=os.dup(descriptor)) as peer:
        option = socket.SO_PEERCRED
        credentials = peer.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return str(user)


def raise_limit() -> None:
    """Allow this process as many open files as the system does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

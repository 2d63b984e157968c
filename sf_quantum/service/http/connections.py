"""Connections: limits on their number, and on the times that clients may take."""

from __future__ import annotations

import asyncio
import resource
import select
import socket
import ssl
import struct
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain

import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from sf_quantum.service.http.answers import PART_BYTES

# number of new connections that are accepted before the event loop serves other requests
ACCEPTED_AT_ONCE = 2
# The same number, including connections whose clients have disconnected: otherwise, these
# would fill the kernel's queue, and new clients would wait for a second.
TAKEN_AT_ONCE = 100
# maximum time for a TLS handshake, and for the headers of a request after the last response
HEADER_SECONDS = 10.0
HEADER_BYTES = 64 * 1024
# time in which a client must receive a response, plus a second for each ANSWER_BYTES
ANSWER_SECONDS = 30.0
ANSWER_BYTES = 128 * 1024
CHECK_SECONDS = 2.0
# maximum number of requests that a connection may send before the first response; no known
# client sends more than one
PIPELINED = 4
# key, in the state of a request, of the function that cancels the request
CANCEL = "sfq_cancel"
# number of file descriptors that are reserved for files, threads and child processes
OTHER_FILES = 128
_CREDENTIALS = struct.Struct("3i")


class Connections:
    """The connections of a server, by address, or by user of a Unix socket.

    :param most: maximum number of connections per address or user
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.by_address = defaultdict[str, dict["Connection", None]](dict)
        self.number = 0
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        #: maximum number of connections from all addresses
        self.most_in_all = files - OTHER_FILES

    def add(self, new: Connection) -> bool:
        """Add a connection; return ``False`` if there are too many.

        If its address has too many connections, the new connection replaces the oldest
        connection that has not sent its first request, or else the oldest connection without
        a request in progress. So unused connections do not lock out other clients.
        """
        if self.number >= self.most_in_all:
            return False
        others = self.by_address[new.address]
        if len(others) >= self.most:
            without_request = (other for other in others if other.cycle is None)
            idle = (other for other in others if other.waits)
            oldest = next(chain(without_request, idle), None)
            if oldest is None:
                return False
            oldest.abort()
            self.remove(oldest)
        self.by_address[new.address][new] = None
        self.number += 1
        return True

    def remove(self, connection: Connection) -> None:
        others = self.by_address[connection.address]
        if connection in others:
            del others[connection]
            self.number -= 1
        if not others:
            del self.by_address[connection.address]


class Connection(HttpToolsProtocol):
    """A connection that ends if its client takes too long, or opens too many connections."""

    address = ""
    _opening: asyncio.Task[None] | None = None
    _waiting_since = 0.0
    _header_bytes = 0
    _answer_until: float | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        app_state: dict[str, str],
        limits: Connections,
    ) -> None:
        super().__init__(config, state, app_state)
        self._limits = limits
        self._unanswered = deque[RequestResponseCycle]()

    @property
    def waits(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def open(
        self, client: socket.socket, address: str, tls: ssl.SSLContext | None
    ) -> None:
        """Open the connection; it counts from the start of its TLS handshake."""
        self.address = address
        if not self._limits.add(self):
            client.close()
            return
        self._opening = self.loop.create_task(self._open(client, tls))
        self._opening.add_done_callback(lambda _: self._finish_opening(client))

    async def _open(self, client: socket.socket, tls: ssl.SSLContext | None) -> None:
        seconds = HEADER_SECONDS if tls else None
        with suppress(OSError):  # the handshake failed, or the client has disconnected
            await self.loop.connect_accepted_socket(
                lambda: self, client, ssl=tls, ssl_handshake_timeout=seconds
            )

    def _finish_opening(self, client: socket.socket) -> None:
        if self.transport is None:
            client.close()
            self._limits.remove(self)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self._opening is not None:
            self._opening.cancel()

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        # A client of a Unix socket has no address, so its uid is used: otherwise, all users
        # without a credential would share their limits.
        self.client = self.client or (self.address, 0)
        self._waiting_since = self.loop.time()
        self.check()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._limits.remove(self)
        super().connection_lost(exc)
        # uvicorn ends only the last request, and would write responses to earlier requests
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

    def resume_writing(self) -> None:
        # the client has read a part of the response, and the next part follows
        if self._answer_until is not None:
            self._answer_until += PART_BYTES / ANSWER_BYTES
        super().resume_writing()

    def check(self) -> None:
        """End the connection if its client takes too long; otherwise check again later."""
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


class Server(uvicorn.Server):
    """A server that accepts a few connections in each turn of the event loop.

    asyncio would accept all waiting connections, so a client that connects fast enough could
    block the loop.

    :param connections: maximum number of connections per address, or per user of a Unix
        socket
    """

    def __init__(self, config: uvicorn.Config, connections: int) -> None:
        super().__init__(config)
        self._limits = Connections(connections)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        loop = asyncio.get_running_loop()
        for listener in sockets or []:
            listener.setblocking(False)
            listener.listen(self.config.backlog)
            loop.add_reader(listener.fileno(), self._accept, listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        for listener in sockets or []:
            loop.remove_reader(listener.fileno())
        await super().shutdown(sockets)

    def _accept(self, listener: socket.socket) -> None:
        opened = 0
        for _ in range(TAKEN_AT_ONCE):
            try:
                client, address = listener.accept()
            except OSError:  # no client waits, or the client has disconnected
                return
            if _has_disconnected(client):
                client.close()
                continue
            client.setblocking(False)
            state = self.lifespan.state
            new = Connection(self.config, self.server_state, state, self._limits)
            new.open(client, _address(client, address), self.config.ssl)
            if (opened := opened + 1) == ACCEPTED_AT_ONCE:
                return


def _has_disconnected(client: socket.socket) -> bool:
    """Return whether a client has closed its end, and so does not wait for a response."""
    closed = select.poll()
    closed.register(client, select.POLLRDHUP)
    return bool(closed.poll(0))


def _address(client: socket.socket, address: Sequence[str | int]) -> str:
    """Return the client's address, or the uid of the user of a Unix socket.

    :param address: address that ``accept`` returned; the socket of a client that has
        disconnected no longer has an address
    """
    if client.family != socket.AF_UNIX:
        return str(address[0])
    option = socket.SO_PEERCRED
    credentials = client.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return str(user)


def raise_limit() -> None:
    """Allow this process as many open files as the system's hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

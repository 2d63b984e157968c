"""Authentication and limits, before a request reaches any route."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.http.auth import (
    MUNGE_HEADER,
    Authenticate,
    AuthError,
    set_sender,
)

# of a body from a sender without a valid credential
UNAUTHENTICATED_BYTES = 64 * 1024
# the prefix of the paths whose bodies may be compressed
COMPRESSED_PATHS = "/sapi/"
# a smaller body is checked within a few milliseconds
LARGE_BYTES = 1024 * 1024
BODY_SECONDS = 60.0
LINGER_SECONDS = 2.0
# per address: less than the pool of threads, and enough for thousands per second
AUTHENTICATIONS_AT_ONCE = 2
_BUCKETS = 10_000
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How much of the service one sender may use.

    :param body_bytes: per request
    :param rate: requests per second in the long run; ``None`` sets no limit
    :param burst: requests that may follow each other at once after a pause
    :param at_once: requests under way, those that wait for a job included
    """

    body_bytes: int = 64 * 1024 * 1024
    rate: float | None = None
    burst: int = 200
    at_once: int | None = None


class _Disconnected(Exception):
    """The client went away before its request was complete."""


class TokenBuckets:
    """A token bucket per sender, which fills at a rate up to a burst."""

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        # when each bucket will be full again; a full bucket needs no entry
        self._full_at: dict[str, float] = {}

    def take(self, sender: str) -> float:
        """Take one token.

        :returns: 0, or the seconds until there is one
        """
        now = self._clock()
        full_at = max(self._full_at.get(sender, now), now) + 1 / self._rate
        wait = full_at - now - self._burst / self._rate
        if wait > 1e-9:
            return wait
        self._full_at[sender] = full_at
        if len(self._full_at) > _BUCKETS:
            self._full_at = {k: at for k, at in self._full_at.items() if at > now}
        return 0.0


class ConcurrencyLimit:
    """Limits each sender's concurrent requests; others wait in order of arrival."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, sender: str) -> AsyncIterator[None]:
        """Wait for a permit, and hold it during the block."""
        default = asyncio.Semaphore(self._limit)
        semaphore = self._semaphores.setdefault(sender, default)
        self._users[sender] += 1
        try:
            async with semaphore:
                yield
        finally:
            self._users[sender] -= 1
            if not self._users[sender]:
                del self._users[sender], self._semaphores[sender]


class Guard:
    """Authenticates each request and applies the limits, as ASGI middleware.

    Limits are per user, and per address for senders without a valid credential. So the
    sender must be known before anything is counted, at the price of a request to
    ``munged``: each address may have few of these under way at once, so that a flood of
    invalid credentials delays its own address only. Limits per address alone would lock
    out all users of a machine, or of a socket, for what one of them does.

    Routes find the sender with :func:`~sf_quantum.service.http.auth.get_sender`, and
    decide what it may do.
    """

    def __init__(
        self, app: ASGIApp, authenticate: Authenticate, limits: Limits
    ) -> None:
        self._app = app
        self._authenticate = authenticate
        self._limits = limits
        self._buckets = TokenBuckets(limits.rate, limits.burst) if limits.rate else None
        self._under_way: Counter[str] = Counter()
        self._authenticating = ConcurrencyLimit(AUTHENTICATIONS_AT_ONCE)
        #: set once the service is being stopped: new submissions are refused
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _StatusRecorder(send)
        sender = await self._sender(HTTPConnection(scope))
        # no user's name begins with @
        name = sender.user if isinstance(sender, Identity) else f"@{_address(scope)}"
        with suppress(_Disconnected):
            try:
                self._admit(scope, name)
                await self._pass(scope, receive, answer, sender, name)
            except Refused as error:
                content = {"detail": error.detail, "field": error.field}
                refusal = JSONResponse(content, error.status, error.headers)
                await refusal(scope, receive, answer)
        if logger.isEnabledFor(logging.INFO):
            _log(scope, name, answer.status)

    async def _sender(self, connection: HTTPConnection) -> Identity | AuthError:
        sender: Identity | AuthError
        address = _address(connection.scope)
        # a token is checked at once, and does not wait for munged
        munge = MUNGE_HEADER in connection.headers
        try:
            async with self._authenticating.of(f"{address} {munge}"):
                sender = await self._authenticate(connection)
        except AuthError as error:
            sender = error
        set_sender(connection, sender)
        return sender

    def _admit(self, scope: Scope, sender: str) -> None:
        if self.draining and scope["method"] == "POST":
            headers = {"Retry-After": "2", "Connection": "close"}
            raise Refused(503, "the service is being stopped", headers=headers)
        wait = self._buckets.take(sender) if self._buckets else 0.0
        if wait:
            headers = {"Retry-After": str(math.ceil(wait))}
            detail = f"more than {self._limits.rate:g} requests per second"
            raise Refused(429, detail, headers=headers)
        most = self._limits.at_once
        if most is not None and self._under_way[sender] >= most:
            detail = f"{most} requests are under way already"
            raise Refused(429, detail, headers={"Retry-After": "1"})

    async def _pass(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        sender: Identity | AuthError,
        name: str,
    ) -> None:
        self._under_way[name] += 1
        try:
            headers = Headers(scope=scope)
            body = await self._body(headers, receive, sender)
            # a compressed body is not text yet: its route decompresses and checks it
            compressed = headers.get("content-encoding") == "deflate"
            if not (compressed and scope["path"].startswith(COMPRESSED_PATHS)):
                if len(body) <= LARGE_BYTES:
                    check_text(body)
                else:
                    await asyncio.to_thread(check_text, body)
            await self._app(scope, _replay(body, receive), send)
        finally:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    async def _body(
        self, headers: Headers, receive: Receive, sender: Identity | AuthError
    ) -> bytes:
        """Read the whole body, which every route needs."""
        most = self._limits.body_bytes
        if isinstance(sender, AuthError):
            most = min(most, UNAUTHENTICATED_BYTES)
        length = headers.get("content-length", "0")
        body, more = bytearray(), True
        if not (length.isdecimal() and int(length) > most):
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    while more and len(body) <= most:
                        chunk, more = await _chunk(receive)
                        body += chunk
            except TimeoutError as error:
                detail = f"the body did not arrive within {BODY_SECONDS:g} s"
                raise Refused(408, detail, headers={"Connection": "close"}) from error
            if len(body) <= most:
                return bytes(body)
        if more and "expect" not in headers:
            await _linger(receive)
        if isinstance(sender, AuthError):
            raise sender
        detail = f"the body has more than {most} bytes"
        raise Refused(413, detail, headers={"Connection": "close"})


class _StatusRecorder:
    """Sends an answer and records its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


def check_text(body: bytes) -> None:
    """Refuse text that Python's json can parse but nothing else can encode.

    It accepts UTF-16, and half of a surrogate pair, escaped or not. SQLite, a log or an
    answer would fail on such text later, when it is too late to tell the sender.

    :raises Refused: 422
    """
    try:
        body.decode()
        sound = b"\0" not in body
        if sound and _SURROGATE.search(body):
            json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeError:
        sound = False
    except (ValueError, RecursionError):
        return  # not JSON: the route reports that
    if not sound:
        raise Refused(422, "the body is not UTF-8 text")


async def _chunk(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _Disconnected
    return message.get("body", b""), message.get("more_body", False)


async def _linger(receive: Receive) -> None:
    """Read on for a moment: a client that is still sending would miss the answer."""
    more = True
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while more:
                _, more = await _chunk(receive)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Replay the body once; afterwards pass on the client's disconnection."""
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _log(scope: Scope, sender: str, status: int) -> None:
    # not the path itself, which may contain the id of a lease, a secret
    route = getattr(scope.get("route"), "path", "-")
    logger.info("%s %s %s %d", sender, scope["method"], route, status)

"""What is refused before any route sees it: too large, too often, too many, too late."""

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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.http.auth import Authenticate, AuthError, Blocks

# who is not known has nothing large to say
STRANGER_BYTES = 64 * 1024
# where bodies may be packed
UNPACKING = "/sapi/"
# less than so much is looked over in a few milliseconds
LARGE_BYTES = 1024 * 1024
BODY_SECONDS = 60.0
LINGER_SECONDS = 2.0
# fewer than there are threads for it, and enough for thousands per second
ASKING_AT_ONCE = 2
_BUCKETS = 10_000
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How much of the service one sender may take.

    :param body_bytes: of one request
    :param rate: requests per second in the long run; ``None`` does not count them
    :param burst: requests at once after a pause
    :param at_once: requests that are under way, those that wait for a job included
    """

    body_bytes: int = 64 * 1024 * 1024
    rate: float | None = None
    burst: int = 200
    at_once: int | None = None


class _Gone(Exception):
    """The client went away before its request was complete."""


class Buckets:
    """A token bucket per sender, which fills at a rate up to a burst."""

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        # when each bucket will be full again; one that is full needs no entry
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


class Turns:
    """Lets so many of each sender in at once, and the others as they came."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._here: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, sender: str) -> AsyncIterator[None]:
        """Wait for a turn, and give it back."""
        gate = self._gates.setdefault(sender, asyncio.Semaphore(self._at_once))
        self._here[sender] += 1
        try:
            async with gate:
                yield
        finally:
            self._here[sender] -= 1
            if not self._here[sender]:
                del self._here[sender], self._gates[sender]


class Guard:
    """Stands before the application, as ASGI.

    A request's sender is found here, once, whether or not its route asks: limits are
    per user, and per address for those who are not known. That costs a question to
    ``munged`` before anything is counted, so each address has few of them under way at
    once: a flood from one, of whatever credentials, waits for itself. Counting before
    would shut out all users of an address, or of a socket, for what one of them does.
    Who may do what is for the routes to say.

    :param authenticate: made by :func:`~sf_quantum.service.http.auth.once`
    :param blocks: says of a request whether that may take long: it is then called in a
        thread, which costs as much as the rest of a small request
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticate: Authenticate,
        limits: Limits,
        blocks: Blocks = lambda _: True,
    ) -> None:
        self._app = app
        self._authenticate = authenticate
        self._blocks = blocks
        self._limits = limits
        self._buckets = Buckets(limits.rate, limits.burst) if limits.rate else None
        self._under_way: Counter[str] = Counter()
        self._asking = Turns(ASKING_AT_ONCE)
        #: set once the service is being stopped: nothing new begins
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it with a refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        sender, stranger = await self._sender(scope)
        with suppress(_Gone):
            try:
                self._admit(scope, sender)
                await self._pass(scope, receive, answer, sender, stranger)
            except Refused as error:
                await answer.refuse(error)
        if logger.isEnabledFor(logging.INFO):
            _log(scope, sender, answer.status)

    async def _sender(self, scope: Scope) -> tuple[str, AuthError | None]:
        client = scope.get("client")
        # no user's name begins like this
        address = f"@{client[0] if client else ''}"
        connection = HTTPConnection(scope)
        try:
            if not self._blocks(connection):
                return self._authenticate(connection).user, None
            async with self._asking.of(address):
                identity = await asyncio.to_thread(self._authenticate, connection)
        except AuthError as error:
            return address, error
        return identity.user, None

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
        sender: str,
        stranger: AuthError | None,
    ) -> None:
        self._under_way[sender] += 1
        try:
            headers = Headers(scope=scope)
            body = await self._body(headers, receive, stranger)
            # what is packed is no text yet: its route unpacks it, and checks it
            packed = headers.get("content-encoding") == "deflate"
            if not (packed and scope["path"].startswith(UNPACKING)):
                await _checked(body)
            await self._app(scope, replay(body, receive), send)
        finally:
            self._under_way[sender] -= 1
            if not self._under_way[sender]:
                del self._under_way[sender]

    async def _body(
        self, headers: Headers, receive: Receive, stranger: AuthError | None
    ) -> bytes:
        """Read the body, of which every route wants all or nothing."""
        most = self._limits.body_bytes
        if stranger is not None:
            most = min(most, STRANGER_BYTES)
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
        raise stranger or Refused(
            413, f"the body has more than {most} bytes", headers={"Connection": "close"}
        )


class _Answer:
    """Sends an answer, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    async def refuse(self, error: Refused) -> None:
        body = json.dumps({"detail": error.detail, "field": error.field}).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **error.headers,
        }
        raw = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
        start: Message = {"type": "http.response.start", "headers": raw}
        await self({**start, "status": error.status})
        await self({"type": "http.response.body", "body": body})


async def _checked(body: bytes) -> None:
    if len(body) <= LARGE_BYTES:
        check_text(body)
    else:
        await asyncio.to_thread(check_text, body)


def check_text(body: bytes) -> None:
    """Refuse what json reads and nothing after it can write down.

    Python's json takes UTF-16, and half a surrogate pair, escaped or not; SQLite, a log
    or an answer fails on that, far from whoever should have been told.
    """
    try:
        body.decode()
        sound = b"\0" not in body
        if sound and _SURROGATE.search(body):
            json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeError:
        sound = False
    except (ValueError, RecursionError):
        return  # no JSON, which its route says
    if not sound:
        raise Refused(422, "the body is not UTF-8 text")


async def _chunk(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _Gone
    return message.get("body", b""), message.get("more_body", False)


async def _linger(receive: Receive) -> None:
    """Read on for a moment: a client that still sends would not see the answer."""
    more = True
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while more:
                _, more = await _chunk(receive)


def replay(body: bytes, receive: Receive) -> Receive:
    """Hand the body out once, and then whatever comes: the client's going away."""
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def _log(scope: Scope, sender: str, status: int) -> None:
    # the route's pattern and not the path, which may hold a lease's id, a secret
    route = getattr(scope.get("route"), "path", "-")
    logger.info("%s %s %s %d", sender, scope["method"], route, status)

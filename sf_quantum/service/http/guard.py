"""Authentication and limits that apply to a request before it reaches a route."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sf_quantum.files import JSON, WrongJson, parse_json
from sf_quantum.net.bounded_answers import content_length
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http import gzipped
from sf_quantum.service.http.answers import Answers, Whole
from sf_quantum.service.http.auth import (
    MUNGE_HEADER,
    Authenticate,
    AuthError,
    problem,
    set_sender,
    users,
)
from sf_quantum.service.http.buckets import TokenBuckets
from sf_quantum.service.http.connections import CANCEL
from sf_quantum.service.http.traffic import Traffic

# size limit of a body that is not a submission, or whose sender has no valid credential
SMALL_BYTES = 64 * 1024
_REQUEST_ID = "sfq.request_id"
# values of Content-Encoding
GZIP = ("gzip", "x-gzip")
# headers of every response that does not set these headers itself
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
BODY_SECONDS = 60.0
LINGER_SECONDS = 2.0
# Maximum number of concurrent authentications per address: fewer than the threads of the
# loop's pool, and enough for thousands per second.
AUTHENTICATIONS_AT_ONCE = 2
# maximum number of concurrent requests of one sender with larger bodies; further bodies wait
# unread
LARGE_AT_ONCE = 4
_STOPPED = Refused(
    503,
    "the service is being stopped",
    headers={"Retry-After": "2", "Connection": "close"},
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Limits:
    """Limits on one sender's use of the service.

    :param body_bytes: maximum size of a submission of jobs, before and after decompression
    :param rate: maximum rate of requests per second in the long run; ``None`` sets no limit
    :param burst: maximum number of requests in immediate succession after a pause
    :param at_once: maximum number of concurrent requests, including requests that wait for
        a job; ``None`` sets no limit
    """

    body_bytes: int = 64 * 1024 * 1024
    rate: float | None = None
    burst: int = 200
    at_once: int | None = None


class Paths(Protocol):
    """Properties of the paths of requests, as the dialects define them."""

    def submission_bytes(self, path: str, configured: int) -> int | None:
        """Return the size limit of a submission; ``None`` if the path takes no submissions."""

    def inflates(self, path: str) -> bool:
        """Return whether the route of a path itself decompresses deflated bodies."""


class Guard:
    """Authenticates each request and applies the limits, as ASGI middleware.

    Limits are per user, and per address for senders without a valid credential. Limits per
    address alone would allow one user to lock out all other users of a host or a socket. So
    the sender must be identified before a limit applies, which may cost a request to
    ``munged``. Each address may have only a few such requests at the same time, so that a
    flood of invalid credentials delays only requests from its own address.

    Routes get the sender from :func:`~sf_quantum.service.http.auth.get_sender`, and decide
    what the sender may do.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticate: Authenticate,
        limits: Limits,
        names: Collection[str] | None = None,
        refuse: Callable[[Request, Refused], Response] | None = None,
        answers: Answers | None = None,
        paths: Paths | None = None,
    ) -> None:
        """Create the middleware.

        :param names: host names for which the service responds; ``None``: any name
        :param refuse: writes a refusal in the dialect of its request
        :param answers: stores large responses until clients have read them
        :param paths: the dialects' paths; ``None``: no request is a submission
        """
        self._refuse = refuse or _refusal
        self._app = app
        self._answers = answers or Answers()
        self._paths = paths
        self._names = names
        self.configure(authenticate, limits)
        self.traffic = Traffic()
        self._under_way: Counter[str] = Counter()
        # by sender and by address; a semaphore exists while a request holds it or waits for it
        self._large = WeakValueDictionary[str, asyncio.Semaphore]()
        self._authenticating = WeakValueDictionary[str, asyncio.Semaphore]()
        #: whether the service is being stopped, and so refuses all POST requests
        self.draining = False

    def configure(self, authenticate: Authenticate, limits: Limits) -> None:
        """Apply new authentication and limits to all later requests."""
        self._authenticate = authenticate
        self.limits = limits
        self._buckets = TokenBuckets(limits.rate, limits.burst) if limits.rate else None

    async def credentials_problem(self) -> str | None:
        return await problem(self._authenticate)

    async def users(self) -> frozenset[str] | None:
        """Return the users who have a token; ``None`` if other users are also admitted."""
        return await users(self._authenticate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or respond with a refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # the server omits the body of the response, since its own scope still has HEAD
            scope = {**scope, "method": "GET"}
        # The id is not secret. The system's random generator is not used: its call would let
        # other threads run first.
        status, began, id_ = 0, time.monotonic(), f"{random.getrandbits(64):016x}"

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = id_
                for name, value in PAGE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        scope[_REQUEST_ID] = id_
        request = Request(scope, receive)
        sender = await self._sender(request)
        # an address begins with @ here, to distinguish it from users' names
        name = sender.user if isinstance(sender, Identity) else f"@{_address(request)}"
        try:
            self._check_site(request)
            self._admit(request, name)
            await self._pass(request, answer, sender, name)
        except ClientDisconnect:
            pass
        except Refused as error:
            await self._refuse(request, error)(scope, receive, answer)
        except asyncio.CancelledError as error:
            # the client has disconnected, or uvicorn stops
            if not status and error.args != (CANCEL,):
                await self._refuse(request, _STOPPED)(scope, receive, answer)
        finally:  # after an internal error, a response has been sent as well
            seconds = time.monotonic() - began
            self.traffic.ended(request, id_, sender, name, status, seconds)

    async def _sender(self, request: Request) -> Identity | AuthError:
        sender: Identity | AuthError
        try:
            async with self._permit(request):
                sender = await self._authenticate(request)
        except AuthError as error:
            sender = error
        set_sender(request, sender)
        return sender

    def _permit(self, request: Request) -> asyncio.Semaphore:
        # separate permits for requests with tokens, whose checks need not wait for munged
        key = f"{_address(request)} {MUNGE_HEADER in request.headers}"
        unused = asyncio.Semaphore(AUTHENTICATIONS_AT_ONCE)
        return self._authenticating.setdefault(key, unused)

    def _check_site(self, request: Request) -> None:
        """Refuse requests that another site's web page sends from its visitor's browser.

        That site's name may resolve to the address of this service (DNS rebinding).
        """
        if self._names is None:
            return
        host, origin = (request.headers.get(name) for name in ("host", "origin"))
        if _hostname(host) not in self._names:
            detail = "not a name of this service (its listen.names adds names)"
            raise Refused(403, detail, "Host")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, "requests of other sites' pages are refused", "Origin")

    def _admit(self, request: Request, sender: str) -> None:
        if self.draining and request.method == "POST":
            raise _STOPPED
        self._answers.check(sender)
        wait = self._buckets.take(sender) if self._buckets else 0.0
        if wait:
            # the connection is closed, to discard requests that the client has already sent
            headers = {"Retry-After": str(math.ceil(wait)), "Connection": "close"}
            detail = f"more than {self.limits.rate:g} requests per second"
            raise Refused(429, detail, headers=headers)
        max_requests = self.limits.at_once
        if max_requests is not None and self._under_way[sender] >= max_requests:
            detail = f"{max_requests} requests are under way already"
            headers = {"Retry-After": "1", "Connection": "close"}
            raise Refused(429, detail, headers=headers)

    async def _pass(
        self, request: Request, send: Send, sender: Identity | AuthError, name: str
    ) -> None:
        self._under_way[name] += 1
        task = asyncio.current_task()
        if request.method == "GET" and task is not None:
            # a GET changes nothing: if the client disconnects, it need not be completed
            cancel = partial(task.cancel, CANCEL)
            request.scope.setdefault("state", {})[CANCEL] = cancel
        unused = asyncio.Semaphore(LARGE_AT_ONCE)
        turn = _Turn(self._large.setdefault(name, unused))
        try:
            body = await self._body(request, sender, turn)
            encoding = request.headers.get("content-encoding", "identity").lower()
            paths = self._paths
            inflates = paths is not None and paths.inflates(request.scope["path"])
            compressed = inflates and encoding == "deflate"
            if encoding in GZIP:
                max_bytes = self.most_bytes(request, sender)
                body = await gzipped.decompressed(
                    body, max_bytes, SMALL_BYTES, turn.begin
                )
                headers = MutableHeaders(scope=request.scope)
                del headers["content-encoding"]
                headers["content-length"] = str(len(body))
            elif encoding != "identity" and not compressed:
                expected = "gzip, deflate or none" if inflates else "gzip or none"
                raise Refused(415, f"expected {expected}", "Content-Encoding")
            # Routes check large and compressed bodies off the event loop: checking a large
            # body takes long, and a compressed body is not text yet.
            if len(body) <= SMALL_BYTES and not compressed:
                with suppress(ValueError):  # the route reports a body that is not JSON
                    parsed(body)
            whole = Whole(send)
            receive = _replay(body, request.receive)
            del body
            try:
                await self._app(request.scope, receive, whole.take)
            finally:
                # the next large body need not wait until a slow client has read the response
                turn.end()
                if whole.complete:  # even if the response reports an internal error
                    await self._answers.send(name, whole, send)
        finally:
            turn.end()
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    def most_bytes(self, request: Request, sender: Identity | AuthError) -> int:
        """Return the maximum size of a request's body, before and after decompression."""
        path, configured = request.scope["path"].rstrip("/"), self.limits.body_bytes
        limit = None
        if self._paths is not None and not isinstance(sender, AuthError):
            limit = self._paths.submission_bytes(path, configured)
        return min(configured, SMALL_BYTES) if limit is None else limit

    async def _body(
        self, request: Request, sender: Identity | AuthError, turn: _Turn
    ) -> bytes:
        """Read the whole body, which every route needs; a large body waits for its turn."""
        max_bytes = self.most_bytes(request, sender)
        length = content_length(request.headers.get("content-length"))
        body, chunks = bytearray(), request.stream()
        if length is None or length <= max_bytes:
            try:
                async with asyncio.timeout(BODY_SECONDS) as limit:
                    async for chunk in chunks:
                        body += chunk
                        if len(body) > max_bytes:
                            break
                        if len(body) > SMALL_BYTES and not turn.begun:
                            limit.reschedule(None)
                            await turn.begin()
                            now = asyncio.get_running_loop().time()
                            limit.reschedule(now + BODY_SECONDS)
                    else:
                        return bytes(body)
            except TimeoutError as error:
                detail = f"the body did not arrive within {BODY_SECONDS:g} s"
                raise Refused(408, detail, headers={"Connection": "close"}) from error
        if "expect" not in request.headers:
            # read on briefly, since a client that is still sending would miss the response
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    async for _ in chunks:
                        pass
        if isinstance(sender, AuthError):
            raise sender
        detail = f"the body has more than {max_bytes} bytes"
        raise Refused(413, detail, headers={"Connection": "close"})


class _Turn:
    """A turn among the large bodies of one sender, from the body's arrival to the response."""

    def __init__(self, semaphore: asyncio.Semaphore) -> None:
        self._semaphore = semaphore
        self.begun = False

    async def begin(self) -> None:
        if not self.begun:
            await self._semaphore.acquire()
            self.begun = True

    def end(self) -> None:
        if self.begun:
            self.begun = False
            self._semaphore.release()


def request_id(request: Request) -> str:
    """Return the id of a request; the header ``X-Request-ID`` of the response contains it."""
    id_: str = request.scope[_REQUEST_ID]
    return id_


async def check_connected(request: Request) -> None:
    """Cancel a request whose client has disconnected; call this once the body is received."""
    if await request.is_disconnected():
        raise asyncio.CancelledError(CANCEL)


def parsed(body: bytes | bytearray) -> JSON:
    """Parse a body, and refuse text that Python's json can parse but UTF-8 cannot encode.

    Python's json accepts UTF-16, and half of a surrogate pair, escaped or not. SQLite, the
    log or a response would fail on such text later, when it is too late to refuse the request.

    :raises Refused: 422 for such text, for a key that occurs twice, and for a body that is
        nested too deeply
    :raises ValueError: if the body is not JSON
    """
    content, is_text = None, b"\0" not in body
    try:
        if is_text:
            content = parse_json(body.decode("utf-8-sig"))
            if _SURROGATE.search(body):
                json.dumps(content, ensure_ascii=False).encode()
    except UnicodeError:
        is_text = False
    except WrongJson as error:
        raise Refused(422, f"the body is refused: {error}") from error
    if not is_text:
        raise Refused(422, "the body is not UTF-8 text")
    return content


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that replays the body once, then waits for further messages."""
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def _refusal(_: Request, error: Refused) -> Response:
    content = {"detail": error.detail, "field": error.field}
    return JSONResponse(content, error.status, error.headers)


def _hostname(host: str | None) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # an invalid IPv6 address
        return None


def _address(request: Request) -> str:
    return request.client.host if request.client else ""

"""Takes submissions past the web framework, which costs more than all the rest of one."""

from __future__ import annotations

import sqlite3

from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sf_quantum.service.api.v1 import jobs
from sf_quantum.service.api.v1.large_bodies import LARGE_BYTES
from sf_quantum.service.api.v1.models import JobBody
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.http.auth import Authenticate
from sf_quantum.service.http.limits import replay
from sf_quantum.service.queue.entitlements import LEASE_HEADER
from sf_quantum.service.queue.job_queue import JobQueue

# for the log
_ROUTE = next(
    route
    for route in jobs.router.routes
    if isinstance(route, APIRoute) and route.endpoint is jobs.submit
)


class Submissions:
    """Stands between the guard and the application, as ASGI.

    A sound submission that is not large it handles itself, as the route would; all else
    is for the application, which also says what is wrong with a body.

    :param authenticate: the application's
    """

    def __init__(
        self, app: ASGIApp, queue: JobQueue, authenticate: Authenticate
    ) -> None:
        self._app = app
        self._queue = queue
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or let it pass.

        :raises Refused: which the guard turns into an answer
        """
        if not _is_submission(scope):
            await self._app(scope, receive, send)
            return
        # the guard has it all
        body: bytes = (await receive())["body"]
        asked = _sound(body)
        if asked is None:
            await self._app(scope, replay(body, receive), send)
            return
        scope["route"] = _ROUTE
        await self._submit(scope, asked, send)

    async def _submit(self, scope: Scope, asked: JobBody, send: Send) -> None:
        who = self._authenticate(HTTPConnection(scope))
        lease = Headers(scope=scope).get(LEASE_HEADER)
        try:
            status, answer = await jobs.submitted(
                *(self._queue, who, lease, asked.submission())
            )
        except sqlite3.Error as error:
            raise Refused(503, f"the state cannot be kept: {error}") from error
        content = answer.model_dump_json(by_alias=True).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
        ]
        start: Message = {"type": "http.response.start", "headers": headers}
        await send({**start, "status": status})
        await send({"type": "http.response.body", "body": content})


def _is_submission(scope: Scope) -> bool:
    if (
        scope["type"] != "http"
        or scope["method"] != "POST"
        or scope["path"] != _ROUTE.path
    ):
        return False
    media_type = Headers(scope=scope).get("content-type", "").partition(";")[0]
    return media_type.strip().lower() == "application/json"


def _sound(body: bytes) -> JobBody | None:
    if len(body) > LARGE_BYTES:
        return None
    try:
        return JobBody.model_validate_json(body)
    except ValidationError:
        return None

"""The service as an ASGI application: the guard, and all dialects over one job queue."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from sf_quantum.service import metrics
from sf_quantum.service.device.interface import Device
from sf_quantum.service.dialects.common import Refusal
from sf_quantum.service.dialects.dialect import Dialects
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.http.answers import Answers
from sf_quantum.service.http.auth import LOCAL_USER, Authenticate
from sf_quantum.service.http.guard import Guard, Limits
from sf_quantum.service.page import routes as page
from sf_quantum.service.page.activity import Activity
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.upkeep.readiness import Readiness
from sf_quantum.service.queue.upkeep.revocations import Revocations
from sf_quantum.service.queue.upkeep.telemetry import Telemetry
from sf_quantum.service.store.store import Store
from sf_quantum.version import __version__


@dataclass(frozen=True)
class Service:
    """The service without an HTTP server; :attr:`guard` is the ASGI application.

    The application starts and stops the queue and the telemetry.
    """

    queue: JobQueue
    telemetry: Telemetry
    app: FastAPI
    guard: Guard


def build(
    store: Store,
    device: Device,
    settings: ServiceSettings,
    *,
    authenticate: Authenticate = LOCAL_USER,
    limits: Limits | None = None,
    public_metrics: bool = True,
    names: Collection[str] | None = None,
    dialects: Sequence[str] | None = None,
) -> Service:
    """Build the service.

    :param authenticate: identifies the sender of a request, or refuses the request
    :param public_metrics: whether ``/metrics`` can be read without a credential
    :param names: host names for which the service responds; ``None``: any name
    :param dialects: names of the dialects in addition to ``/v1``; ``None``: all installed
        dialects
    """
    queue = JobQueue(store, device, settings)
    telemetry = Telemetry(queue, public_metrics=public_metrics)
    enabled = Dialects(queue, dialects)
    routers = (page.router, metrics.router)
    app = FastAPI(
        title="sf_quantum QPU service",
        version=__version__,
        summary="Leases, jobs and results of one QPU.",
        lifespan=partial(_lifespan, enabled),
        # not with include_router(), which would create the routes again at the first request
        routes=[*enabled.routes, *(r for router in routers for r in router.routes)],
        # no FastAPI documentation pages: they would load scripts from other hosts
        docs_url=None,
        redoc_url=None,
    )
    app.state.queue = queue
    app.state.dialects = enabled.by_name
    app.state.telemetry = telemetry
    app.state.activity = Activity(queue, enabled.numbered)

    def refuse(request: Request, refused: Refused) -> Response:
        return enabled.refusal(request, refused) or _refusal_response(refused)

    async def answer(request: Request, error: Exception) -> Response:
        return refuse(request, _to_refused(error))

    for kind in (Refused, RequestValidationError, HTTPException, sqlite3.Error):
        app.add_exception_handler(kind, answer)
    guard = app.state.guard = Guard(
        app,
        authenticate,
        limits or Limits(),
        names,
        refuse,
        Answers(store.path.parent),
        enabled,
    )
    app.state.metrics = metrics.registered(queue, telemetry, guard.traffic)
    app.state.readiness = Readiness(queue, guard.credentials_problem)
    app.state.revocations = Revocations(queue, guard.users)
    return Service(queue, telemetry, app, guard)


@asynccontextmanager
async def _lifespan(dialects: Dialects, app: FastAPI) -> AsyncIterator[None]:
    queue: JobQueue = app.state.queue
    queue.start()
    queue.supervisor.run("revocations", app.state.revocations.run)
    await queue.tasks.device_reported()
    dialects.start()
    app.state.telemetry.start()
    try:
        yield
    finally:
        dialects.stop()
        queue.request_stop()
        await queue.stopped()


def _refusal_response(refused: Refused) -> Response:
    content = Refusal(detail=refused.detail, field=refused.field).model_dump()
    return JSONResponse(content, refused.status, refused.headers)


def _to_refused(error: Exception) -> Refused:
    match error:
        case Refused():
            return error
        case RequestValidationError():
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                return Refused(422, "the body is not JSON")
            if first["loc"] == ("body",) and isinstance(error.body, bytes):
                # FastAPI does not parse a body with another content type
                return Refused(422, "send Content-Type: application/json")
            # report the first invalid field, without its value, which may be large or NaN
            path = [str(part) for part in first["loc"] if part not in ("body", "query")]
            return Refused(422, str(first["msg"]), ".".join(path) or None)
        case HTTPException(status_code=400):
            # FastAPI raises this for a body that is not UTF-8 or is nested too deeply
            return Refused(422, "the body is not JSON")
        case HTTPException():
            detail, headers = str(error.detail).lower(), dict(error.headers or {})
            return Refused(error.status_code, detail, headers=headers)
    return Refused(503, f"the state cannot be stored: {error}")

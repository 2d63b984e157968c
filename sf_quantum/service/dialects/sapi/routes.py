"""The routes of SAPI, the dialect of D-Wave's Ocean tools.

Users set ``DWAVE_API_ENDPOINT`` to the service's URL followed by ``/sapi/v2``, and
``DWAVE_API_TOKEN`` to a bearer token of the service. Paths, bodies, names and statuses are
those that ``dwave-cloud-client`` uses, so this client works unmodified.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Protocol, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field, TypeAdapter, ValidationError

from sf_quantum.files import JSON
from sf_quantum.service.dialects.common import (
    LONGEST_WAIT_SECONDS,
    LeaseId,
    Queue,
    Who,
    conditional,
)
from sf_quantum.service.dialects.implicit_leases import ImplicitLeases
from sf_quantum.service.dialects.sapi import refusals, solver
from sf_quantum.service.dialects.sapi.problems import Problems
from sf_quantum.service.dialects.sapi.solver import STATUSES
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, Job
from sf_quantum.service.http.guard import SMALL_BYTES, check_connected, parsed
from sf_quantum.service.queue.job_queue import JobQueue

PREFIX = "/sapi/v2"
PROBLEMS_AT_ONCE = 1000
# time for which clients may reuse the description of the solver without another request
FIXED_SECONDS = 30
# maximum number of JSON values in a body; valid problems have few values, since their arrays
# are strings
VALUES = 200_000
# bytes of a body that are decompressed in one step; other threads run between steps
PART_BYTES = 64 * 1024
_MEDIA_TYPE = re.compile(r"application/vnd\.dwave\.sapi\.[a-z-]+\+json")


async def _problems(request: Request) -> Problems:
    problems: Problems = request.app.state.dialects["sapi"].problems
    return problems


ProblemsDep = Annotated[Problems, Depends(_problems)]
Wait = Annotated[float, Query(ge=0, allow_inf_nan=False, alias="timeout")]
_T = TypeVar("_T")
_NAMES: TypeAdapter[list[str]] = TypeAdapter(
    Annotated[list[str], Field(fail_fast=True)]
)


class _Run(Protocol):
    """A function that runs another function in a thread."""

    def __call__(self, make: Callable[[], _T], /) -> Awaitable[_T]: ...


# not in the OpenAPI document, since D-Wave's client defines this API
router = APIRouter(prefix=PREFIX, include_in_schema=False)


@router.get("/solvers/remote/")
@router.get("/solvers/remote")
def solvers(request: Request, queue: Queue, _: Who, filter: str = "all") -> Response:
    """List the solver; the list is empty if the device is not an annealer."""
    configurations: list[dict[str, JSON]] = []
    refusals.check_known(queue.device)
    if queue.device.description.graph is not None:
        configurations.append(solver.filtered(solver.configuration(queue), filter))
    return _cached(request, [*configurations], configurations)


@router.get("/solvers/remote/{name}/")
@router.get("/solvers/remote/{name}")
def show_solver(
    request: Request, queue: Queue, _: Who, name: str, filter: str = "all"
) -> Response:
    """Show the solver."""
    refusals.check_solver(queue.device, name)
    content = solver.filtered(solver.configuration(queue), filter)
    return _cached(request, content, [content])


@router.post("/problems/")
@router.post("/problems")
async def submit(
    request: Request, queue: Queue, who: Who, x_sfq_lease: LeaseId = None
) -> Response:
    """Submit one problem, or several problems; each of several is accepted or refused."""
    body = await request.body()
    encoding = request.headers.get("content-encoding", "identity").lower()
    if not _is_large(body, encoding):
        return await _submit(request, queue, who, x_sfq_lease, asyncio.to_thread)
    async with queue.reader.bodies.turn(who.user):
        await check_connected(request)
        return await _submit(request, queue, who, x_sfq_lease, queue.reader.bodies.run)


async def _submit(
    request: Request, queue: JobQueue, who: Identity, lease: str | None, run: _Run
) -> Response:
    """Submit the problems of a request.

    :param run: runs the reading of the body in another thread
    """
    body, max_bytes = await request.body(), request.app.state.guard.most_bytes(
        request, who
    )
    encoding = request.headers.get("content-encoding", "identity").lower()
    content: JSON = await run(lambda: _decoded(body, encoding, max_bytes))
    is_list = isinstance(content, list)
    contents = content if isinstance(content, list) else [content]
    if not 0 < len(contents) <= PROBLEMS_AT_ONCE:
        raise Refused(400, f"expected 1 to {PROBLEMS_AT_ONCE} problems")
    answers: list[JSON] = []
    dialect = request.app.state.dialects["sapi"]
    leases: ImplicitLeases = dialect.leases
    problems: Problems = dialect.problems
    async with leases.submitting(who, lease) as submitting:
        for problem in contents:
            try:
                submission = await run(partial(problems.read, problem))
                job, _ = await queue.submit(who, await submitting.lease(), submission)
            except Refused as error:
                if not is_list:
                    raise
                answers.append(refusals.content(error))
            else:
                submitting.jobs.append(job)
                answers.append(await asyncio.to_thread(problems.status, job))
    return _reply(request, answers if is_list else answers[0])


@router.get("/problems/")
@router.get("/problems")
async def list_problems(
    request: Request,
    queue: Queue,
    who: Who,
    problems: ProblemsDep,
    ids: Annotated[str | None, Query(alias="id")] = None,
    wait: Wait = 0.0,
    max_results: Annotated[int, Query(ge=1, le=PROBLEMS_AT_ONCE)] = PROBLEMS_AT_ONCE,
    label: str | None = None,
    status: str | None = None,
    solver: str | None = None,
) -> Response:
    """List problems; if ids are given, wait until one of these problems has ended."""
    if status is not None and status not in STATUSES.values():
        raise Refused(400, f"status: {status[:100]!r} is unknown")
    chosen = None if ids is None else ids.split(",")
    if chosen is not None and len(chosen) > PROBLEMS_AT_ONCE:
        raise Refused(400, f"id: more than {PROBLEMS_AT_ONCE} ids")
    selected: Sequence[Job] | None = None
    if chosen is not None:
        selected = await problems.wait_for_any(
            who, chosen, min(wait, LONGEST_WAIT_SECONDS)
        )
    name = queue.device.name

    def listed() -> Response:
        jobs = problems.all(who, label) if selected is None else selected
        entries = [problems.status(job) for job in jobs if solver in (None, name)]
        matching: list[JSON] = [
            entry
            for entry in entries
            if label in (None, entry["label"]) and status in (None, entry["status"])
        ]
        return _reply(request, matching[-max_results:])

    async with queue.reader.lists.turn(who.user):
        return await queue.reader.lists.run(listed)


@router.delete("/problems/")
@router.delete("/problems")
async def cancel_several(request: Request, who: Who, problems: ProblemsDep) -> Response:
    """Cancel problems; each cancellation succeeds or is refused."""
    try:
        names = _NAMES.validate_json(await request.body())
    except ValidationError as error:
        raise Refused(400, "expected a list of problem ids") from error
    if len(names) > PROBLEMS_AT_ONCE:
        raise Refused(400, f"more than {PROBLEMS_AT_ONCE} problems")

    async def cancelled(name: str) -> JSON:
        try:
            return await problems.cancel(who, name)
        except Refused as error:
            return refusals.content(error)

    return _reply(request, list(await asyncio.gather(*map(cancelled, names))))


@router.get("/problems/{name}/")
@router.get("/problems/{name}")
async def show_problem(
    request: Request,
    queue: Queue,
    who: Who,
    problems: ProblemsDep,
    name: str,
    wait: Wait = 0.0,
) -> Response:
    """Show a problem, with its answer once it is completed."""
    (job,) = await problems.wait_for_any(who, [name], min(wait, LONGEST_WAIT_SECONDS))
    return await queue.reader.show(
        who, job, lambda: _reply(request, problems.show(job))
    )


@router.delete("/problems/{name}/")
@router.delete("/problems/{name}")
async def cancel(
    request: Request, who: Who, problems: ProblemsDep, name: str
) -> Response:
    """Cancel a problem."""
    return _reply(request, await problems.cancel(who, name))


@router.get("/problems/{name}/answer")
async def answer(
    request: Request, queue: Queue, who: Who, problems: ProblemsDep, name: str
) -> Response:
    """Show only a problem's answer."""
    job = problems.find(who, name)
    if job.state != "Completed":
        raise Refused(404, f"problem {name} is {solver.STATUSES[job.state]}: no answer")

    def shown() -> Response:
        return _reply(request, {"answer": problems.show(job)["answer"]})

    return await queue.reader.show(who, job, shown)


@router.get("/problems/{name}/messages")
async def messages(
    request: Request, queue: Queue, who: Who, problems: ProblemsDep, name: str
) -> Response:
    """List a problem's expected run time, and why it failed or started again."""
    job = problems.find(who, name)
    return _reply(request, problems.messages(job, queue.forecasts.of(job)))


@router.get("/problems/{name}/info")
async def info(
    request: Request, queue: Queue, who: Who, problems: ProblemsDep, name: str
) -> Response:
    """Show all data of a problem, with which it could be submitted again."""
    job = problems.find(who, name)
    return await queue.reader.show(
        who, job, lambda: _reply(request, problems.info(job))
    )


def _media_type(request: Request) -> str:
    """Return the media type that the client requests; it does not accept any other type."""
    accepted = _MEDIA_TYPE.match(request.headers.get("accept", ""))
    return f"{accepted[0]}; version=3.0.0" if accepted else "application/json"


def _reply(request: Request, content: JSON) -> Response:
    return Response(json.dumps(content), media_type=_media_type(request))


def _cached(
    request: Request, content: JSON, solvers: Sequence[Mapping[str, JSON]]
) -> Response:
    """Respond with a cache policy: the client may reuse only data that rarely changes.

    D-Wave's client requests such data separately. Outdated data does no harm, since a problem
    for an outdated graph is refused.
    """
    is_fixed = solvers and not any(
        solver.CHANGING & configuration.keys() for configuration in solvers
    )
    age = f"max-age={FIXED_SECONDS}" if is_fixed else "no-cache"
    return conditional(
        request.headers.get("if-none-match"),
        json.dumps(content).encode(),
        _media_type(request),
        {"Cache-Control": f"private, {age}"},
    )


def _is_large(body: bytes, encoding: str) -> bool:
    """Return whether a body is large, before or after decompression."""
    if len(body) > SMALL_BYTES or encoding != "deflate":
        return len(body) > SMALL_BYTES
    with suppress(zlib.error):
        return len(zlib.decompressobj().decompress(body, SMALL_BYTES)) == SMALL_BYTES
    return False


def _decoded(body: bytes, encoding: str, max_bytes: int) -> JSON:
    decoded, values = bytearray(), 0
    for part in _inflate(body, max_bytes) if encoding == "deflate" else _parts(body):
        # parsing many values would block all threads, and need ten times the body's memory
        values += sum(map(part.count, (b",", b"[", b"{")))
        if values > VALUES:
            raise Refused(413, f"the body has more than {VALUES} values")
        decoded += part
    try:
        return parsed(decoded)
    except ValueError:
        # the cause would keep the text in memory as long as the error is handled
        raise Refused(400, "the body is not JSON") from None


def _parts(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), PART_BYTES):
        yield body[start : start + PART_BYTES]


def _inflate(body: bytes, max_bytes: int) -> Iterator[bytes]:
    decompressor, size = zlib.decompressobj(), 0
    while not decompressor.eof:
        try:
            part = decompressor.decompress(body, PART_BYTES)
        except zlib.error as error:
            raise Refused(400, "the body is not deflated data") from error
        body = decompressor.unconsumed_tail
        if not (part or body):
            raise Refused(400, "the body is incomplete")
        size += len(part)
        if size > max_bytes:
            raise Refused(413, f"the body has more than {max_bytes} bytes")
        yield part

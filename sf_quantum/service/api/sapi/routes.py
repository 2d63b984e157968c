"""SAPI, the dialect of D-Wave's Ocean tools, over the same queue and leases.

``DWAVE_API_ENDPOINT`` is the service's address and ``/sapi/v2``, ``DWAVE_API_TOKEN`` a
bearer token of the service. Paths, bodies, words and statuses are those that
``dwave-cloud-client`` uses, so that it works unmodified.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import zlib
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError

from sf_quantum.files import JSON
from sf_quantum.service.api.sapi import solver
from sf_quantum.service.api.sapi.leases import ShortLeases
from sf_quantum.service.api.sapi.models import STATUSES, SolverName
from sf_quantum.service.api.sapi.problems import Problems
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.http.dependencies import Queue, Who
from sf_quantum.service.http.limits import check_text
from sf_quantum.service.queue.entitlements import LEASE_HEADER

PREFIX = "/sapi/v2"
PROBLEMS_AT_ONCE = 1000
LONGEST_WAIT_SECONDS = 60.0
# of a compressed body, unpacked
BODY_BYTES = 64 * 1024 * 1024
_MEDIA_TYPE = re.compile(r"application/vnd\.dwave\.sapi\.[a-z-]+\+json")


async def _problems(request: Request) -> Problems:
    problems: Problems = request.app.state.sapi_problems
    return problems


async def _short_leases(request: Request) -> ShortLeases:
    short_leases: ShortLeases = request.app.state.short_leases
    return short_leases


Known = Annotated[Problems, Depends(_problems)]
Lent = Annotated[ShortLeases, Depends(_short_leases)]
LeaseToken = Annotated[str | None, Header(alias=LEASE_HEADER)]
Wait = Annotated[float, Query(ge=0, allow_inf_nan=False, alias="timeout")]
# D-Wave describes it, in its client
router = APIRouter(prefix=PREFIX, include_in_schema=False)


def refused(error: Refused) -> Response:
    """Refuse in SAPI's words, which have one status for all that is malformed."""
    return JSONResponse(_error(error), _code(error), error.headers)


@router.get("/solvers/remote/")
@router.get("/solvers/remote")
def solvers(request: Request, queue: Queue, _: Who, filter: str = "all") -> Response:
    """List the solver, or none where the device is no annealer."""
    found: list[JSON] = []
    if queue.device.graph is not None:
        found.append(solver.filtered(solver.configuration(queue), filter))
    return _cached(request, found)


@router.get("/solvers/remote/{name}/")
@router.get("/solvers/remote/{name}")
def show_solver(
    request: Request, queue: Queue, _: Who, name: str, filter: str = "all"
) -> Response:
    """Show the solver."""
    solver.check(queue.device, SolverName(name=name))
    content = solver.filtered(solver.configuration(queue), filter)
    return _cached(request, content)


@router.post("/problems/")
@router.post("/problems")
async def submit(
    request: Request,
    queue: Queue,
    who: Who,
    known: Known,
    lent: Lent,
    x_sfq_lease: LeaseToken = None,
) -> Response:
    """Put problems into the queue; of several, each that is refused says so."""
    body = await request.body()
    packed = request.headers.get("content-encoding", "identity")
    content = await asyncio.to_thread(_unpacked, body, packed)
    several = isinstance(content, list)
    problems = content if isinstance(content, list) else [content]
    if not 0 < len(problems) <= PROBLEMS_AT_ONCE:
        raise Refused(400, f"expected 1 to {PROBLEMS_AT_ONCE} problems")
    told: list[JSON] = []
    async with lent.submitting(who, x_sfq_lease) as (lease_id, jobs):
        for problem in problems:
            try:
                submission = await asyncio.to_thread(known.read, problem)
                job, _ = await queue.submit(who, lease_id, submission)
            except Refused as error:
                if not several:
                    raise
                told.append(_error(error))
            else:
                jobs.append(job)
                told.append(await asyncio.to_thread(known.status, job))
    return _reply(request, told if several else told[0])


@router.get("/problems/")
@router.get("/problems")
async def problems(
    request: Request,
    queue: Queue,
    who: Who,
    known: Known,
    ids: Annotated[str | None, Query(alias="id")] = None,
    wait: Wait = 0.0,
    max_results: Annotated[int, Query(ge=1, le=PROBLEMS_AT_ONCE)] = PROBLEMS_AT_ONCE,
    label: str | None = None,
    status: str | None = None,
    solver: str | None = None,
) -> Response:
    """List problems, or those asked for as soon as one of them is over."""
    if ids is None:
        found = await asyncio.to_thread(known.all, who)
    else:
        names = ids.split(",")
        if len(names) > PROBLEMS_AT_ONCE:
            raise Refused(400, f"id: more than {PROBLEMS_AT_ONCE} of them")
        found = await known.any_over(who, names, min(wait, LONGEST_WAIT_SECONDS))
    if solver not in (None, queue.device.name):
        found = []
    told = await asyncio.to_thread(lambda: [known.status(job) for job in found])
    asked = {"label": label, "status": status}
    wanted = {name: value for name, value in asked.items() if value is not None}
    chosen: list[JSON] = [one for one in told if wanted.items() <= one.items()]
    return _reply(request, chosen[-max_results:])


@router.delete("/problems/")
@router.delete("/problems")
async def cancel_several(request: Request, who: Who, known: Known) -> Response:
    """Cancel problems; each that cannot be cancelled says so in its place."""
    try:
        names = TypeAdapter(list[str]).validate_json(await request.body())
    except ValidationError as error:
        raise Refused(400, "expected a list of problems' ids") from error
    if len(names) > PROBLEMS_AT_ONCE:
        raise Refused(400, f"more than {PROBLEMS_AT_ONCE} problems")

    async def cancelled(name: str) -> JSON:
        try:
            return await known.cancel(who, name)
        except Refused as error:
            return _error(error)

    return _reply(request, list(await asyncio.gather(*map(cancelled, names))))


@router.get("/problems/{name}/")
@router.get("/problems/{name}")
async def problem(
    request: Request, who: Who, known: Known, name: str, wait: Wait = 0.0
) -> Response:
    """Show a problem, with its answer once it is completed."""
    (job,) = await known.any_over(who, [name], min(wait, LONGEST_WAIT_SECONDS))
    return _reply(request, await asyncio.to_thread(known.show, job))


@router.delete("/problems/{name}/")
@router.delete("/problems/{name}")
async def cancel(request: Request, who: Who, known: Known, name: str) -> Response:
    """Cancel a problem."""
    return _reply(request, await known.cancel(who, name))


@router.get("/problems/{name}/answer")
def answer(request: Request, who: Who, known: Known, name: str) -> Response:
    """Show the answer alone."""
    job = known.find(who, name)
    if job.state != "Completed":
        raise Refused(404, f"problem {name} is {STATUSES[job.state]}: no answer")
    return _reply(request, {"answer": known.show(job)["answer"]})


@router.get("/problems/{name}/messages")
def messages(request: Request, who: Who, known: Known, name: str) -> Response:
    """Tell what is to be said of a problem."""
    return _reply(request, known.messages(known.find(who, name)))


@router.get("/problems/{name}/info")
def info(request: Request, who: Who, known: Known, name: str) -> Response:
    """Show everything of a problem."""
    return _reply(request, known.info(known.find(who, name)))


def _code(error: Refused) -> int:
    return 400 if error.status == 422 else error.status


def _error(error: Refused) -> dict[str, JSON]:
    words = f"{error.field}: {error.detail}" if error.field else error.detail
    if error.status == 503:
        # what the client knows an offline solver by
        words = f"Solver is offline: {words}"
    return {"error_code": _code(error), "error_msg": words}


def _reply(request: Request, content: JSON) -> Response:
    """Answer with the media type that is asked for, since the client insists on it."""
    asked = _MEDIA_TYPE.match(request.headers.get("accept", ""))
    media = f"{asked[0]}; version=3.0.0" if asked else "application/json"
    return Response(json.dumps(content), media_type=media)


def _cached(request: Request, content: JSON) -> Response:
    """Let the client keep what it knows for as long as it is true.

    Its cache does not know which service an answer came from.
    """
    answer = _reply(request, content)
    tag = f'"{hashlib.sha256(bytes(answer.body)).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    answer.headers.update(headers)
    return answer


def _unpacked(body: bytes, packed: str) -> JSON:
    if packed == "deflate":
        body = _inflated(body)
        check_text(body)
    elif packed != "identity":
        raise Refused(415, "Content-Encoding: expected deflate or none")
    try:
        content: JSON = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise Refused(400, "the body is not JSON") from error
    return content


def _inflated(body: bytes) -> bytes:
    unpack = zlib.decompressobj()
    try:
        whole = unpack.decompress(body, BODY_BYTES)
    except zlib.error as error:
        raise Refused(400, "the body is not deflated data") from error
    if unpack.unconsumed_tail:
        raise Refused(413, f"the body has more than {BODY_BYTES} bytes")
    if not unpack.eof:
        raise Refused(400, "the body is cut off")
    return whole

"""``/v1``: jobs and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from sf_quantum.service.api.v1 import large_bodies
from sf_quantum.service.api.v1.models import JobAnswer, JobBody
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.domain.jobs import Submission
from sf_quantum.service.http.dependencies import Queue, Who, caller, queue_of, refusals
from sf_quantum.service.queue.entitlements import LEASE_HEADER
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.threads import in_thread

LONGEST_WAIT_SECONDS = 60.0
LeaseToken = Annotated[
    str | None, Header(alias=LEASE_HEADER, description="The id of a lease held.")
]


class _Route(APIRoute):
    """Takes a submission that is large past the framework, which would read it at once."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[None, None, Response]]:
        small = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if request.method != "POST":
                return await small(request)
            body = await request.body()
            is_json = "json" in request.headers.get("content-type", "")
            if len(body) <= large_bodies.LARGE_BYTES or not is_json:
                return await small(request)
            return await _submit_large(request, body)

        return handle


router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=_Route)
_NOT_THERE = refusals({404: "No such job."})


@router.post(
    "",
    status_code=201,
    summary="Submit a job",
    responses={
        200: {"model": JobAnswer, "description": "The job this key made before."},
        **refusals(
            {
                403: "The lease is missing or has ended.",
                409: "The key belongs to another job.",
                422: "A field is wrong, or the job exceeds a limit of its class.",
                429: "The user has too many jobs, or sends too many requests.",
                503: "The QPU is closed or drained, or the service is being stopped.",
            }
        ),
    },
)
async def submit(
    body: JobBody,
    queue: Queue,
    who: Who,
    response: Response,
    x_sfq_lease: LeaseToken = None,
) -> JobAnswer:
    """Put a job into the queue, under a lease that is held.

    What is acknowledged is on disk: it survives the service being killed.
    """
    response.status_code, answer = await submitted(
        *(queue, who, x_sfq_lease, body.submission())
    )
    return answer


@router.get("", summary="List jobs", responses=refusals({404: "No such lease."}))
async def jobs(
    queue: Queue,
    who: Who,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    x_sfq_lease: LeaseToken = None,
) -> list[JobAnswer]:
    """List the latest jobs, oldest first: of the lease in the header, or all one's own.

    An admin's own are everybody's.
    """
    found = queue.list_jobs(who, lease=x_sfq_lease, limit=limit)
    return [JobAnswer.of(job, queue.forecast(job)) for job in found]


@router.get(
    "/{job_id}", summary="Show a job, or wait for it to be over", responses=_NOT_THERE
)
async def job(
    job_id: str,
    queue: Queue,
    who: Who,
    wait: Annotated[
        float,
        Query(ge=0, le=LONGEST_WAIT_SECONDS, description="Seconds to wait at most."),
    ] = 0.0,
) -> JobAnswer:
    """Tell the job's state; with `wait`, as soon as it is over or the time is up."""
    found = await queue.wait(who, job_id, wait)
    if not found.final and queue.failure:
        raise Refused(503, queue.failure)
    return JobAnswer.of(found, queue.forecast(found))


@router.get(
    "/{job_id}/result",
    summary="Fetch the result of a completed job",
    response_class=Response,
    responses={
        200: {
            "description": "Of a problem a dimod SampleSet, `to_serializable()`; of a "
            "sequence `counter`, how often each bit string was seen.",
            "content": {"application/json": {}},
        },
        **refusals({404: "No such job.", 409: "The job has no result."}),
    },
)
async def result(job_id: str, queue: Queue, who: Who) -> Response:
    """Fetch the result; its `info` tells sampler, QPU, calibration, timing, seed."""
    return Response(queue.result(who, job_id), media_type="application/json")


@router.delete("/{job_id}", summary="Cancel a job", responses=_NOT_THERE)
async def cancel(job_id: str, queue: Queue, who: Who) -> JobAnswer:
    """Cancel a job that is not over; one that runs has left the device by the answer."""
    found = await queue.cancel(who, job_id)
    return JobAnswer.of(found, queue.forecast(found))


async def _submit_large(request: Request, body: bytes) -> Response:
    queue, who = await queue_of(request), await caller(request)
    lease = request.headers.get(LEASE_HEADER)
    queue.leases.active(who, lease)  # or it would be read in vain
    # a thread of its own: those who take their turns must not use up those that find
    # out who is calling
    device = queue.device
    reading = in_thread(
        lambda: large_bodies.read(body, qubits=device.size, payloads=device.payloads)
    )
    asked = await asyncio.wrap_future(reading)
    status, answer = await submitted(queue, who, lease, asked)
    return JSONResponse(answer.model_dump(mode="json", by_alias=True), status)


async def submitted(
    queue: JobQueue, who: Identity, lease: str | None, asked: Submission
) -> tuple[int, JobAnswer]:
    """Submit a job.

    :returns: the answer, and its status
    :raises Refused: see :meth:`JobQueue.submit`
    """
    job, new = await queue.submit(who, lease, asked)
    return 201 if new else 200, JobAnswer.of(job, queue.forecast(job))

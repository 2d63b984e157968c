"""The service's own dialect, ``/v1``: routes over one queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from sf_quantum import __version__
from sf_quantum.files import JSON
from sf_quantum.samplers import problem
from sf_quantum.service.models import (
    CalibrationAnswer,
    DeviceAnswer,
    HealthAnswer,
    JobAnswer,
    JobRequest,
    LeaseAnswer,
    LeaseRequest,
    Refusal,
    TimingAnswer,
)
from sf_quantum.service.queue import JobQueue
from sf_quantum.service.store import Job, KeyReused, Lease, LeaseClosed

LONGEST_WAIT_SECONDS = 60.0


class Refused(Exception):
    """A request that is answered with a status and a :class:`Refusal`."""

    def __init__(self, status: int, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field


def create_app(queue: JobQueue) -> FastAPI:
    """Make the service.

    :param queue: started with the application, stopped with it
    """
    app = FastAPI(
        title="sf_quantum QPU service",
        version=__version__,
        summary="Leases, jobs and results of one QPU.",
        lifespan=_lifespan,
    )
    app.state.queue = queue
    app.include_router(router)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _not_served)
    return app


def _queue(request: Request) -> JobQueue:
    queue: JobQueue = request.app.state.queue
    return queue


Queue = Annotated[JobQueue, Depends(_queue)]
LeaseToken = Annotated[
    str | None, Header(alias="X-SFQ-Lease", description="The id of a lease held.")
]
router = APIRouter(
    prefix="/v1",
    responses={422: {"model": Refusal, "description": "A field is wrong."}},
)


def _refusals(**statuses: str) -> dict[int | str, dict[str, type[Refusal] | str]]:
    return {
        int(status[1:]): {"model": Refusal, "description": words}
        for status, words in statuses.items()
    }


@router.get(
    "/health",
    summary="Say whether the service works",
    responses={**_refusals(_503="Jobs cannot run.")},
)
async def health(queue: Queue) -> HealthAnswer:
    """Answer 200 as long as jobs can run, 503 with the reason when they cannot."""
    _check_alive(queue)
    return HealthAnswer(status="ok")


@router.get("/device", summary="Describe the device and how busy it is")
def device(queue: Queue) -> DeviceAnswer:
    """Tell name, technology, size, leases, queue, calibration and time scale."""
    described = queue.device
    calibration = described.calibration
    return DeviceAnswer(
        name=described.name,
        technology=described.technology,
        status="offline" if queue.failure else "online",
        reason=queue.failure or "",
        qubits=described.qubits,
        vqpus=queue.vqpus,
        leases=queue.store.leases_held(),
        queue_length=queue.store.queue_length(),
        calibration=CalibrationAnswer(
            id=str(calibration["id"]), time=str(calibration["time"])
        ),
        timing=TimingAnswer(
            **asdict(described.timing), time_scale=described.time_scale
        ),
    )


@router.post(
    "/leases",
    status_code=201,
    summary="Acquire a lease",
    responses={**_refusals(_409="All leases are held.")},
)
def acquire(request: LeaseRequest, queue: Queue) -> LeaseAnswer:
    """Take the right to submit jobs; as many leases are held at once as vQPUs exist."""
    lease = queue.store.open_lease(request.job, queue.vqpus)
    if lease is None:
        raise Refused(409, f"all {queue.vqpus} vQPUs are held, try again later")
    return _show(lease, [])


@router.get(
    "/leases/{lease_id}",
    summary="Show a lease and its jobs",
    responses={**_refusals(_404="No such lease.")},
)
def lease(lease_id: str, queue: Queue) -> LeaseAnswer:
    """Tell whether the lease is held, and which jobs came under it."""
    found = queue.store.lease(lease_id)
    if found is None:
        raise Refused(404, "no such lease")
    return _show(found, queue.store.jobs(lease_id))


@router.delete(
    "/leases/{lease_id}",
    summary="Release a lease and cancel its jobs",
    responses={**_refusals(_404="No such lease.")},
)
async def release(lease_id: str, queue: Queue) -> LeaseAnswer:
    """Give the lease back; its jobs that are not over are cancelled on the device too.

    Releasing it again changes nothing.
    """
    found = await queue.release(lease_id)
    if found is None:
        raise Refused(404, "no such lease")
    return _show(found, await asyncio.to_thread(queue.store.jobs, lease_id))


@router.post(
    "/jobs",
    status_code=201,
    summary="Submit a job",
    responses={
        200: {"model": JobAnswer, "description": "The job this key made before."},
        **_refusals(
            _403="The lease is missing or released.",
            _409="The key belongs to another job.",
        ),
    },
)
async def submit(
    request: JobRequest,
    queue: Queue,
    response: Response,
    x_sfq_lease: LeaseToken = None,
) -> JobAnswer:
    """Put a problem into the queue, under a lease that is held.

    What is acknowledged is on disk: it survives the service being killed.
    """
    bqm = _payload(request, queue.device.qubits)
    _check_alive(queue)
    parameters = request.parameters.model_dump()
    try:
        job, new = await queue.submit(
            x_sfq_lease or "", request.idempotency_key, bqm, parameters
        )
    except LeaseClosed as error:
        detail = "needs a lease that is held (POST /v1/leases)"
        raise Refused(403, detail, "X-SFQ-Lease") from error
    except KeyReused as error:
        detail = "belongs to a job with another problem or other parameters"
        raise Refused(409, detail, "idempotency_key") from error
    response.status_code = 201 if new else 200
    return JobAnswer.of(job)


@router.get(
    "/jobs",
    summary="List the jobs of a lease",
    responses={**_refusals(_403="The lease is missing.")},
)
def jobs(queue: Queue, x_sfq_lease: LeaseToken = None) -> list[JobAnswer]:
    """List the jobs of the lease in the header, oldest first."""
    if x_sfq_lease is None or queue.store.lease(x_sfq_lease) is None:
        raise Refused(403, "needs a lease (POST /v1/leases)", "X-SFQ-Lease")
    return [JobAnswer.of(job) for job in queue.store.jobs(x_sfq_lease)]


@router.get(
    "/jobs/{job_id}",
    summary="Show a job, or wait for it to be over",
    responses={**_refusals(_404="No such job.")},
)
async def job(
    job_id: str,
    queue: Queue,
    wait: Annotated[
        float,
        Query(ge=0, le=LONGEST_WAIT_SECONDS, description="Seconds to wait at most."),
    ] = 0.0,
) -> JobAnswer:
    """Tell the job's state; with `wait`, as soon as it is over or the time is up."""
    found = _found(await queue.wait(job_id, wait))
    if not found.final:
        _check_alive(queue)
    return JobAnswer.of(found)


@router.get(
    "/jobs/{job_id}/result",
    summary="Fetch the samples of a completed job",
    response_class=Response,
    responses={
        200: {
            "description": "A dimod SampleSet, `to_serializable()`.",
            "content": {"application/json": {}},
        },
        **_refusals(_404="No such job.", _409="The job has no result."),
    },
)
def result(job_id: str, queue: Queue) -> Response:
    """Fetch the sample set; its `info` tells sampler, QPU, calibration, timing, seed."""
    found = _found(queue.store.job(job_id))
    samples = queue.store.result(job_id)
    if samples is None:
        why = f": {found.note}" if found.note else ""
        raise Refused(409, f"the job is {found.state} and has no result{why}")
    return Response(samples, media_type="application/json")


@router.delete(
    "/jobs/{job_id}",
    summary="Cancel a job",
    responses={**_refusals(_404="No such job.")},
)
async def cancel(job_id: str, queue: Queue) -> JobAnswer:
    """Cancel a job that is not over; one that runs has left the device by the answer."""
    return JobAnswer.of(_found(await queue.cancel(job_id)))


def _check_alive(queue: JobQueue) -> None:
    if queue.failure:
        raise Refused(503, queue.failure)


def _found(job: Job | None) -> Job:
    if job is None:
        raise Refused(404, "no such job")
    return job


def _show(lease: Lease, jobs: list[Job]) -> LeaseAnswer:
    return LeaseAnswer(
        **asdict(lease),
        held=lease.closed is None,
        jobs=[JobAnswer.of(job) for job in jobs],
    )


def _payload(request: JobRequest, qubits: int) -> dict[str, JSON]:
    given = [
        name
        for name in ("problem", "sequence", "circuit")
        if getattr(request, name) is not None
    ]
    if len(given) != 1:
        names = ", ".join(given) or "none"
        raise Refused(
            422, f"give exactly one of problem, sequence, circuit, not {names}"
        )
    if request.problem is None:
        raise Refused(422, "this device runs problems (BQM) only", given[0])
    try:
        bqm = problem.check(request.problem, "problem")
    except problem.FieldError as error:
        raise Refused(422, error.detail, error.field) from error
    size = problem.size(bqm)
    if size > qubits:
        detail = f"{size} variables do not fit on {qubits} qubits"
        raise Refused(422, detail, "problem.variable_labels")
    return bqm


@asynccontextmanager
async def _run(queue: JobQueue) -> AsyncIterator[None]:
    queue.start()
    try:
        yield
    finally:
        queue.request_stop()
        await queue.stopped()


def _lifespan(app: FastAPI) -> AbstractAsyncContextManager[None]:
    return _run(app.state.queue)


def _answer(status: int, detail: str, field: str | None = None) -> JSONResponse:
    return JSONResponse(Refusal(detail=detail, field=field).model_dump(), status)


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        raise error
    return _answer(error.status, error.detail, error.field)


async def _invalid(_: Request, error: Exception) -> Response:
    """Name the first wrong field; never echo what was sent, it may be large or NaN."""
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _answer(422, "the body is not JSON")
    path = [str(part) for part in first["loc"] if part != "body"]
    return _answer(422, str(first["msg"]), ".".join(path) or None)


async def _not_served(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return _answer(error.status_code, str(error.detail).lower())

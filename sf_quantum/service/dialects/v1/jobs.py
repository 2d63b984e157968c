"""``/v1``: jobs and their results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from sf_quantum.service.dialects.common import (
    EVERYWHERE,
    LONGEST_WAIT_SECONDS,
    LeaseId,
    Queue,
    Who,
    refusal,
)
from sf_quantum.service.dialects.large_bodies import LargeBodyRoute
from sf_quantum.service.dialects.v1.models import CalibrationAnswer, JobBody, Strict
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Forecast,
    Identity,
    Job,
    JobClass,
    Kind,
    State,
)
from sf_quantum.service.http.answers import PartsResponse
from sf_quantum.service.queue.forecasts import Listed
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store.rows import NO_JOB

# maximum length of a result that is sent together with its job
INLINE_CHARACTERS = 65_536


class _Route(LargeBodyRoute):
    dialect = "v1"

    async def handle_large(self, request: Request, body: bytes) -> Response:
        _check_wait(request)
        return await super().handle_large(request, body)

    @staticmethod
    def reply(queue: JobQueue, job: Job, new: bool) -> Response:
        # The response does not wait for the job's end: until the response, the large body
        # stays in memory, and only few such bodies may be in memory.
        answer = SubmittedAnswer(**answer_for(queue, job).model_dump())
        content = answer.model_dump(mode="json", by_alias=True)
        return JSONResponse(content, 201 if new else 200)


class JobAnswer(Strict):
    """A job; times are seconds since the epoch."""

    id: str
    user: str
    lease: str = Field(description="The lease of the latest submission of this job.")
    charged_lease: str | None = Field(
        description="The lease to which the job is charged, if the job was submitted "
        "again under another lease after it had ended; otherwise null."
    )
    job_class: JobClass = Field(alias="class")
    kind: Kind
    idempotency_key: str
    parameters: dict[str, int | None]
    state: State
    attempt: int = Field(
        description="2 or more after a pre-emption, or a restart of the service."
    )
    note: str | None = Field(
        description="Why the job failed, was cancelled, was started again, or cannot "
        "start now."
    )
    position: int | None = Field(
        description="Number of jobs that run before this job, including the running "
        "job; null after the job has ended."
    )
    eta_seconds: float | None = Field(
        description="Seconds until the expected start of the job, including "
        "maintenance; null after the job has ended, or while it is "
        "unknown when the QPU opens or is online again."
    )
    expected_seconds: float | None = Field(
        description="Expected `qpu_seconds`; null after the job has ended."
    )
    expected_run_seconds: float | None = Field(
        description="Expected seconds from the job's start to its end, with the "
        "device's time scale and the service's own time; null after the "
        "job has ended."
    )
    submitted: float
    started: float | None
    ended: float | None
    queued_seconds: float | None = Field(
        description="Seconds from the submission to the last start, correct even if "
        "the clock was set in between."
    )
    qpu_seconds: float = Field(
        description="QPU time, as billed or modelled, of the attempt with which the "
        "job ended."
    )
    seconds: float = Field(description="Actual time of this attempt on the device.")
    lost_qpu_seconds: float = Field(
        description="QPU time of the job's interrupted attempts, which are not "
        "charged."
    )
    cost: float | None = Field(
        description="Cost of `qpu_seconds`, in the site's unit, with the price at the "
        "job's end; null if the device had no price."
    )
    calibration: CalibrationAnswer | None = Field(
        description="The device's calibration when the job ran; null if the job has "
        "not run."
    )
    repeatable: bool = Field(
        description="Whether the job may run twice; see `JobBody`."
    )
    device_job: str | None = Field(
        description="The vendor's id of the last attempt; null if there is none."
    )


class SubmittedAnswer(JobAnswer):
    """A job, with its result if the submission has waited for the result."""

    result: dict[str, JsonValue] | None = Field(
        default=None,
        description="The result, as from `GET /v1/jobs/{id}/result`, if the job "
        "completed within `wait` and the result has at most 65,536 "
        "characters; otherwise null.",
    )


Wait: TypeAlias = Annotated[
    float,
    Query(ge=0, le=LONGEST_WAIT_SECONDS, description="Longest wait, in seconds."),
]
_WAIT: TypeAdapter[float] = TypeAdapter(
    Annotated[float, Field(ge=0, le=LONGEST_WAIT_SECONDS, allow_inf_nan=False)]
)
_JOBS = TypeAdapter(list[JobAnswer])
# the forecast of a job that has ended
_NO_FORECAST = dict.fromkeys(one.name for one in fields(Forecast))
router = APIRouter(
    prefix="/v1/jobs", tags=["jobs"], route_class=_Route, responses=EVERYWHERE
)
_NO_JOB = refusal("No such job.")


@router.post(
    "",
    status_code=201,
    summary="Submit a job",
    responses={
        200: {"model": JobAnswer, "description": "The job submitted with this key."},
        403: refusal("The lease is missing or has ended."),
        409: refusal("The key belongs to another job."),
        422: refusal("A field is wrong, or the job exceeds a limit of its class."),
        429: refusal("The user has too many jobs, or sends too many requests."),
        503: refusal(
            "The QPU is closed or draining, the service is being stopped, or this machine "
            "is too busy to check the job."
        ),
    },
)
async def submit(
    body: JobBody,
    queue: Queue,
    who: Who,
    response: Response,
    x_sfq_lease: LeaseId = None,
    wait: Wait = 0.0,
) -> SubmittedAnswer:
    """Submit a job to the queue, under a lease that is held.

    An acknowledged job is on disk, so it survives if the service is killed. With `wait`, the
    response is sent when the job has ended, with its result, or when the time has passed. The
    response to a body of more than 65,536 bytes is sent immediately, regardless of `wait`.
    """
    job, new = await queue.submit(who, x_sfq_lease, body.submission())
    response.status_code = 201 if new else 200
    return await submitted(queue, who, job, wait)


@router.get(
    "",
    summary="List jobs",
    response_model=list[JobAnswer],
    responses={404: refusal("No such lease, or no such job.")},
)
async def jobs(
    queue: Queue,
    who: Who,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[
        str | None,
        Query(
            description="The id of a job: list only jobs that were submitted before this "
            "job."
        ),
    ] = None,
    live: Annotated[
        bool, Query(description="List only jobs that have not ended.")
    ] = False,
    key: Annotated[
        str | None,
        Query(
            description="List only the caller's own job with this idempotency key, under "
            "any lease; the list is empty if there is no such job."
        ),
    ] = None,
    x_sfq_lease: LeaseId = None,
) -> Response:
    """List the latest jobs, oldest first: of the lease in the header, or of the caller.

    An admin sees the jobs of all users. If there may be earlier jobs, the header `Link`
    contains the address of their page, with `rel="next"`.
    """

    def shown(listed: Sequence[Listed]) -> Response:
        content = _JOBS.dump_json([shown_job(*each) for each in listed], by_alias=True)
        headers = {}
        if len(listed) == limit and key is None:
            query = f"limit={limit}&before={listed[0][0].id}{'&live=true' * live}"
            headers["Link"] = f'<{router.prefix}?{query}>; rel="next"'
        return Response(content, media_type="application/json", headers=headers)

    return await queue.reader.page(
        who, shown, lease=x_sfq_lease, key=key, before=before, live=live, limit=limit
    )


@router.get(
    "/{job_id}",
    summary="Show a job, or wait for it to be over",
    responses={404: _NO_JOB},
)
async def job(
    job_id: str,
    queue: Queue,
    who: Who,
    wait: Wait = 0.0,
) -> JobAnswer:
    """Show a job; with `wait`, when the job has ended or the time has passed."""
    current = await queue.wait(who, job_id, wait)
    if not current.final and queue.failure:
        raise Refused(503, queue.failure)
    return answer_for(queue, current)


@router.get(
    "/{job_id}/result",
    summary="Fetch the result of a completed job",
    response_class=Response,
    responses={
        200: {
            "description": "For a problem, a dimod SampleSet, `to_serializable()`; for a "
            "list of problems, `sample_sets`, a list of one SampleSet for "
            "each problem, each with its own `info`; for a sequence or a "
            "circuit, `counter`, the count of each bit string; for several "
            "circuits, `counters`, a list of one counter for each circuit; "
            "for photons, `counter`, the count of each Fock state.",
            "content": {"application/json": {}},
        },
        404: _NO_JOB,
        409: refusal("The job has no result."),
    },
)
async def result(job_id: str, queue: Queue, who: Who) -> Response:
    """Fetch the result; its `info` contains sampler, QPU, calibration, timing and seed."""
    content = await queue.reader.result(who, job_id)
    gone = Refused(404, NO_JOB)
    return PartsResponse(content.size, content.part, "application/json", gone)


@router.get(
    "/{job_id}/counters",
    summary="Fetch the counts of a job's circuits as they finish",
    response_class=Response,
    responses={
        200: {
            "description": "A line of JSON for each finished circuit, with `circuit`, the "
            "number of the circuit from 0, and `counter`. No further such line "
            "follows once the counters have 1,000,000 characters in total. "
            "The last line contains `next`, the number of the next circuit to "
            "request, `state`, the job's state, and `over`, whether all "
            "counters have been returned.",
            "content": {"application/x-ndjson": {}},
        },
        404: _NO_JOB,
        409: refusal("The job does not contain circuits."),
    },
)
async def counters(
    job_id: str,
    queue: Queue,
    who: Who,
    first: Annotated[
        int, Query(ge=0, le=1_000_000, description="The first circuit.")
    ] = 0,
    wait: Wait = 0.0,
) -> Response:
    """Fetch the counts of circuits; with `wait`, when there are some or the job has ended.

    The circuits of a slice finish together; see `slice_seconds` of the configuration.
    """
    make = partial(_lines, first, "circuit", "counter")
    return await queue.reader.results(who, job_id, "circuit", first, wait, make)


@router.get(
    "/{job_id}/sample_sets",
    summary="Fetch the sample sets of a job's BQMs as they finish",
    response_class=Response,
    responses={
        200: {
            "description": "A line of JSON for each finished BQM, with `problem`, the "
            "number of the BQM from 0, and `sample_set`. No further such line "
            "follows once the sample sets have 1,000,000 characters in total. "
            "The last line contains `next`, the number of the next BQM to "
            "request, `state`, the job's state, and `over`, whether all "
            "sample sets have been returned.",
            "content": {"application/x-ndjson": {}},
        },
        404: _NO_JOB,
        409: refusal("The job does not contain BQMs."),
    },
)
async def sample_sets(
    job_id: str,
    queue: Queue,
    who: Who,
    first: Annotated[int, Query(ge=0, le=1_000_000, description="The first BQM.")] = 0,
    wait: Wait = 0.0,
) -> Response:
    """Fetch the sample sets of BQMs; with `wait`, when there are some or the job has ended.

    The BQMs of a slice finish together; see `slice_seconds` of the configuration.
    """
    make = partial(_lines, first, "problem", "sample_set")
    return await queue.reader.results(who, job_id, "problem", first, wait, make)


def _lines(
    first: int, what: str, name: str, job: Job, texts: Sequence[str]
) -> Response:
    lines = [
        f'{{"{what}": {number}, "{name}": {text}}}'
        for number, text in enumerate(texts, first)
    ]
    last: dict[str, JsonValue] = {
        "next": first + len(texts),
        "state": job.state,
        "over": job.final and not texts,
    }
    # encoded here, off the event loop, since a line may be large
    text = "\n".join([*lines, json.dumps(last), ""]).encode()
    return Response(text, media_type="application/x-ndjson")


@router.delete("/{job_id}", summary="Cancel a job", responses={404: _NO_JOB})
async def cancel(job_id: str, queue: Queue, who: Who) -> JobAnswer:
    """Cancel a job unless it has ended, and respond when the job has left the device."""
    return answer_for(queue, await queue.cancel(who, job_id))


async def submitted(
    queue: JobQueue, who: Identity, job: Job, seconds: float
) -> SubmittedAnswer:
    """Describe a submitted job when it has ended or the time has passed."""
    if seconds > 0:
        job = await queue.wait(who, job.id, seconds)
    answer = SubmittedAnswer(**answer_for(queue, job).model_dump())
    if seconds > 0 and job.state == "Completed":
        content = await queue.reader.result(who, job.id)
        if content.size <= INLINE_CHARACTERS:
            text = await asyncio.to_thread(content.part, 0, content.size)
            if not text:
                raise Refused(404, NO_JOB)
            answer.result = json.loads(text)
    return answer


def _check_wait(request: Request) -> None:
    try:
        _WAIT.validate_python(request.query_params.get("wait", 0.0))
    except ValidationError as error:
        first = error.errors()[0]
        where = {"loc": ["query", "wait"], "msg": first["msg"], "type": first["type"]}
        raise RequestValidationError([where]) from error


def answer_for(queue: JobQueue, job: Job) -> JobAnswer:
    """Describe a job with its forecast."""
    return shown_job(job, queue.forecasts.of(job))


def shown_job(job: Job, forecast: Forecast | None) -> JobAnswer:
    """Describe a job with a forecast, which is ``None`` once the job has ended."""
    expected = vars(forecast) if forecast else _NO_FORECAST
    values = {**vars(job), **expected, "idempotency_key": job.key}
    values["note"] = job.note or (forecast and forecast.reason) or None
    values["queued_seconds"] = job.queued_seconds
    values["calibration"] = job.calibration and job.calibration.to_json()
    return JobAnswer(**{name: values[name] for name in JobAnswer.model_fields})

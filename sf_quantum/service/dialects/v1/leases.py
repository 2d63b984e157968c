"""``/v1``: leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, TypeAdapter

from sf_quantum.protocol.leases import MAX_PRIORITY
from sf_quantum.service.dialects.common import EVERYWHERE, Queue, Who, refusal
from sf_quantum.service.dialects.v1.jobs import JobAnswer, shown_job
from sf_quantum.service.dialects.v1.models import Moment, Name, Seconds, Strict
from sf_quantum.service.domain.jobs import (
    Identity,
    JobClass,
    Lease,
    LeaseRequest,
    Pattern,
    UserClass,
)
from sf_quantum.service.queue.forecasts import Listed
from sf_quantum.service.queue.job_queue import JobQueue

Budget: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Priority: TypeAlias = Annotated[int, Field(ge=0, le=MAX_PRIORITY, strict=True)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=2**53, strict=True)]
router = APIRouter(prefix="/v1/leases", tags=["leases"], responses=EVERYWHERE)
_NO_LEASE = refusal("No such lease.")


class LeaseBody(Strict):
    """A request for a lease."""

    job: str | None = Field(
        default=None,
        max_length=1000,
        description="The purpose, for the operator and the accounting: `RUN:/step/tag` of "
        "a workflow's run, or any text.",
    )
    job_class: UserClass | None = Field(
        default=None,
        alias="class",
        description="The highest requested class; the answer contains the granted "
        "class.",
    )
    wait: Seconds = Field(
        default=0.0, description="Seconds to wait while all vQPUs are leased."
    )
    latest_start: Moment | None = Field(
        default=None,
        description="Seconds since the epoch. If the lease is not granted by this "
        "time, the request is rejected with 409 and the name of this "
        "field; immediately, if the QPU is in maintenance for longer.",
    )
    priority: Priority = Field(
        default=0,
        description="Rank among the waiting requests of the class; the highest is "
        "first. `classes.priorities` of the configuration limits it.",
    )
    reservation: Name | None = Field(
        default=None,
        description="The name of one of the device's `reservations`. The lease is "
        "granted within the reserved time, and ends with it. The request "
        "is rejected with 422 if there is no reservation of this name, or "
        "none is booked.",
    )
    key: Name | None = Field(
        default=None,
        description="A repeated request with the same key keeps its position among "
        "the waiting requests, and returns the same lease while the lease "
        "is held.",
    )
    slurm_job_id: Name | None = Field(
        default=None, description="The lease ends when this Slurm job has ended."
    )
    slurm_cluster: Name | None = Field(
        default=None,
        description="The cluster of that Slurm job, by default the service's own. A "
        "lease of another cluster's job ends by the idle limit.",
    )
    partition: Name | None = Field(
        default=None, description="The Slurm partition, which may determine the class."
    )
    expected_seconds: Seconds | None = Field(
        default=None,
        description="A hint: the sum of the `qpu_seconds` of its jobs, without waits.",
    )
    pattern: Pattern | None = Field(
        default=None,
        description="Whether most time is spent on the QPU (qc-heavy) or off the QPU "
        "(cc-heavy).",
    )
    max_qpu_seconds: Budget | None = Field(
        default=None,
        description="Bound on the total QPU time of the lease's jobs. A job that "
        "would take more than the remaining time is rejected. If jobs "
        "take longer than expected, the lease ends when the time is used "
        "up.",
    )
    max_shots: Count | None = Field(
        default=None,
        description="Bound on the shots of each circuit or problem; a job with more "
        "is rejected.",
    )
    max_qubits: Count | None = Field(
        default=None,
        description="Bound on the qubits, variables, atoms or modes of a job; a job "
        "with more is rejected.",
    )
    project: Name | None = Field(
        default=None,
        description="The project to charge, by default the user's first project.",
    )
    account: Name | None = Field(
        default=None,
        description="The Slurm account, which becomes the project if the user may use "
        "a project of this name. If the service can query Slurm for the "
        "job, it uses the account that Slurm reports.",
    )
    tenths: int | None = Field(
        default=None,
        ge=1,
        le=10,
        strict=True,
        description="The share of the QPU, in tenths, that the batch system granted "
        "as licences or gres; only root and admins may set it.",
    )
    user: Name | None = Field(
        default=None,
        description="The owner of the lease; only root and admins may set it.",
    )


class HonouredAnswer(Strict):
    """The scheduling that the request for the lease specified; the service applied it."""

    latest_start: float | None = Field(
        description="The time by which the lease was granted, or at which it ends if "
        "it still waits."
    )
    priority: int = Field(description="The rank of the request while it waited.")
    reservation: str | None = Field(
        description="The reservation. The lease was granted within the reserved time "
        "and ends with it, and its jobs are submitted to the vendor under "
        "this reservation."
    )


class LeaseAnswer(Strict):
    """A lease; its id is the acquisition token and goes into `X-SFQ-Lease`.

    Times are seconds since the epoch.
    """

    id: str
    user: str
    job_class: JobClass = Field(alias="class")
    job: str | None
    key: str | None
    slurm_job_id: str | None
    partition: str | None
    expected_seconds: float | None
    pattern: Pattern | None
    max_qpu_seconds: float | None = Field(
        description="Bound on the total QPU time of the lease's jobs."
    )
    max_shots: int | None = Field(
        description="Bound on the shots of each circuit or problem of a job."
    )
    max_qubits: int | None = Field(description="Bound on the qubits of each job.")
    project: str | None = Field(
        description="The project that is charged; null: the user is charged."
    )
    tenths: int | None = Field(
        description="The share of the QPU that the batch system granted, in tenths."
    )
    slurm_cluster: str | None = Field(description="The cluster of the Slurm job.")
    slurm_account: str | None = Field(description="The account of the Slurm job.")
    honoured: HonouredAnswer
    held: bool
    waiting: bool = Field(
        description="Whether the lease waits for a vQPU. Jobs that were submitted "
        "under the lease, over SAPI or IQM's API, then wait with it."
    )
    opened: float
    expires: float | None = Field(
        description="Time at which the lease ends at the latest."
    )
    seconds_left: float | None = Field(
        description="Seconds until the lease ends at the latest, for clients whose "
        "clock may be wrong."
    )
    idle_expires: float | None = Field(
        description="Time at which the lease ends unless it is renewed or used."
    )
    idle_seconds_left: float | None = Field(
        description="Seconds until the lease ends unless it is renewed or used."
    )
    closed: float | None
    reason: str | None = Field(description="Why the lease has ended.")
    jobs: list[JobAnswer] = Field(
        description="The latest 1000 jobs of the lease, oldest first."
    )


_LEASES = TypeAdapter(list[LeaseAnswer])


@router.post(
    "",
    status_code=201,
    summary="Acquire a lease",
    responses={
        403: refusal("The caller may not acquire this lease."),
        409: refusal(
            "All vQPUs are leased, or the lease cannot be granted by its "
            "`latest_start`."
        ),
    },
)
async def acquire(
    body: LeaseBody, request: Request, queue: Queue, who: Who
) -> LeaseAnswer:
    """Acquire the right to submit jobs; at most one lease per vQPU is held at a time.

    With `wait`, the request waits while all vQPUs are leased. Waiting requests are granted by
    class and priority, then in the order of the policy (by default, the order of arrival).
    """
    lease_request = LeaseRequest(**body.model_dump(exclude={"wait"}))
    async with _watch_disconnection(request, body.wait) as gone:
        lease = await queue.leases.acquire(who, lease_request, body.wait, gone)
    return _describe(queue, lease)


@router.get("", summary="List leases", response_model=list[LeaseAnswer])
async def leases(
    queue: Queue,
    who: Who,
    closed: Annotated[
        bool,
        Query(
            description="List the latest 1000 leases, including leases that wait or have "
            "ended."
        ),
    ] = False,
    waiting: Annotated[
        bool, Query(description="Include leases that wait for a vQPU.")
    ] = False,
) -> Response:
    """List the caller's leases, or all leases for an admin, without their jobs."""
    active = None if closed else queue.leases.list(who, waiting=waiting)

    def listed() -> bytes:
        selected = queue.leases.latest(who) if active is None else active
        return _LEASES.dump_json(
            [_describe(queue, lease) for lease in selected], by_alias=True
        )

    async with queue.reader.lists.turn(who.user):
        content = await queue.reader.lists.run(listed)
    return Response(content, media_type="application/json")


@router.get(
    "/{lease_id}",
    summary="Show a lease and its jobs",
    response_model=LeaseAnswer,
    responses={404: _NO_LEASE},
)
async def lease(lease_id: str, queue: Queue, who: Who) -> Response:
    """Show whether the lease is held, and the jobs submitted under it."""
    return await _describe_with_jobs(queue, who, queue.leases.find(who, lease_id))


@router.post(
    "/{lease_id}/renew",
    summary="Renew a lease",
    responses={403: refusal("The lease has ended."), 404: refusal("No such lease.")},
)
async def renew(lease_id: str, queue: Queue, who: Who) -> LeaseAnswer:
    """Prevent the end of an idle lease; the lease's expiry does not change."""
    return _describe(queue, queue.leases.renew(who, lease_id))


@router.delete(
    "/{lease_id}",
    summary="Release a lease and cancel its jobs",
    response_model=LeaseAnswer,
    responses={
        403: refusal("Only an admin may use `keep_place`."),
        404: _NO_LEASE,
    },
)
async def release(
    lease_id: str,
    queue: Queue,
    who: Who,
    keep_place: Annotated[
        bool,
        Query(
            description="Whether a request with the lease's key keeps the queue position "
            "of the lease's request, for one minute; only for admins."
        ),
    ] = False,
) -> Response:
    """Release the lease and cancel its unfinished jobs, including a running job.

    A lease that has already been released does not change.
    """
    lease = await queue.leases.release(who, lease_id, keep_position=keep_place)
    return await _describe_with_jobs(queue, who, lease)


def _describe(queue: JobQueue, lease: Lease) -> LeaseAnswer:
    leases, values = queue.leases, {**vars(lease)}
    honoured = {key: values.pop(key) for key in HonouredAnswer.model_fields}
    return LeaseAnswer(
        **values,
        honoured=HonouredAnswer(**honoured),
        held=lease.held,
        seconds_left=leases.seconds_left(lease) if lease.held else None,
        idle_expires=leases.idle_expires_at(lease) if lease.held else None,
        idle_seconds_left=leases.idle_seconds_left(lease) if lease.held else None,
        jobs=[],
    )


async def _describe_with_jobs(queue: JobQueue, who: Identity, lease: Lease) -> Response:
    answer = _describe(queue, lease)

    def shown(listed: Sequence[Listed]) -> Response:
        answer.jobs = [shown_job(*each) for each in listed]
        content = answer.model_dump_json(by_alias=True)
        return Response(content, media_type="application/json")

    return await queue.reader.page(who, shown, lease=lease.id)


@asynccontextmanager
async def _watch_disconnection(
    request: Request, wait: float
) -> AsyncIterator[asyncio.Event]:
    """Notice if a waiting client disconnects, since this client cannot release its lease."""
    gone = asyncio.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.set()

    watching = asyncio.create_task(watch()) if wait else None
    try:
        yield gone
    finally:
        if watching is not None:
            watching.cancel()

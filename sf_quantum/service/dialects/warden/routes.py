"""The routes of warden's dialect, which QRMI's type ``pasqal-local`` speaks.

A session is a lease, a slot is a vQPU, and the id of a job is its number in the queue. Paths,
bodies, names and statuses are the same as in Pasqal's warden, so the client in the package
``qrmi`` and the SPANK plugin work unmodified.
"""

from __future__ import annotations

import asyncio
import pwd
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache, partial
from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, TypeAdapter

from sf_quantum.protocol.leases import LEASE_HEADER
from sf_quantum.service.dialects.common import (
    Admin,
    Queue,
    Who,
    qpu_reason,
    refusal,
    utc,
)
from sf_quantum.service.dialects.large_bodies import LargeBodyRoute
from sf_quantum.service.dialects.warden.models import CreateJob
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Lease, LeaseRequest, State
from sf_quantum.service.queue.job_queue import JobQueue

Status: TypeAlias = Literal["PENDING", "RUNNING", "DONE", "ERROR", "CANCELED"]
STATUSES: Mapping[State, Status] = {
    "Queued": "PENDING",
    "Running": "RUNNING",
    "Completed": "DONE",
    "Failed": "ERROR",
    "Cancelled": "CANCELED",
}
STATES: Mapping[Status, State] = {status: state for state, status in STATUSES.items()}
# some clients send numbers instead of strings
Text: TypeAlias = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(min_length=1, max_length=200),
]


@lru_cache(1024)
def user_name(number: str) -> str:
    """Return the name of a user by uid; the uid itself if no user of this host has it."""
    try:
        return pwd.getpwuid(int(number)).pw_name if number.isdecimal() else number
    except (KeyError, OverflowError, ValueError):  # int() reads at most 4,300 digits
        return number


@lru_cache(1024)
def user_number(name: str) -> str:
    """Return a user's uid, as in warden's responses; the name itself without such a user."""
    try:
        return str(pwd.getpwnam(name).pw_uid)
    except (KeyError, ValueError):
        return name


# fields of leases and jobs, under their names in warden
UserId: TypeAlias = Annotated[
    str, BeforeValidator(user_number), Field(validation_alias="user")
]
StatusOf: TypeAlias = Annotated[
    Status, BeforeValidator(STATUSES.get), Field(validation_alias="state")
]
Time: TypeAlias = Annotated[datetime, BeforeValidator(utc)]


class Accessible(BaseModel):
    """Whether the QPU accepts sessions, and how many slots are available."""

    is_accessible: bool
    message: str
    qpu_slots_total: int
    qpu_slots_used: int
    qpu_slots_available: int


class SetAccessible(BaseModel):
    """Open or close the QPU."""

    is_accessible: bool
    message: str = Field(default="", max_length=1000)


class Slots(BaseModel):
    """The vQPUs: how many leases can be held, and how many are held."""

    qpu_slots_total: int
    qpu_slots_used: int
    qpu_slots_available: int


class CreateSession(BaseModel):
    """A session for a user and a Slurm job."""

    user_id: Text
    scheduler_job_id: Text = Field(
        validation_alias=AliasChoices("scheduler_job_id", "slurm_job_id")
    )
    partition: Text | None = Field(
        default=None,
        description="An extension: the Slurm partition, which determines the class.",
    )
    qpu_slots: int = Field(default=1, ge=1, strict=True)


class Session(BaseModel):
    """A lease; its id goes into `X-Warden-Session`."""

    id: str
    user_id: UserId
    slurm_job_id: str | None
    scheduler_job_id: str | None = Field(validation_alias="slurm_job_id")
    created_at: Time = Field(validation_alias="opened")
    revoked_at: Time | None = Field(validation_alias="closed")
    idle_expires_at: Time | None
    expires_at: Time | None = Field(validation_alias="expires")
    qpu_slots: int = 1


class WardenJob(BaseModel):
    """A job of any kind; the id is the job's number in the queue."""

    id: int = Field(validation_alias="number")
    user_id: UserId
    created_at: Time = Field(validation_alias="submitted")
    status: StatusOf
    results: str | None = Field(
        description='JSON text; for a sequence, the text contains "counter".'
    )


class Logs(BaseModel):
    """The events of a job, one per line."""

    logs: str


class Specs(BaseModel):
    """The device, in Pulser's abstract representation if Pulser is installed."""

    specs: str = Field(description="JSON text, with `name` at least.")


class CurrentJob(BaseModel):
    """The job on the device."""

    id: int = Field(validation_alias="number")
    session_id: str = Field(validation_alias="lease")
    user_id: UserId
    started_at: Time | None = Field(validation_alias="started")
    backend_id: str | None = Field(validation_alias="id")


class OpenSession(BaseModel):
    """A session that is held."""

    id: str
    user_id: UserId
    created_at: Time = Field(validation_alias="opened")
    slurm_job_id: str | None


class StatusAnswer(BaseModel):
    """The running job, the queue and the sessions."""

    pending_jobs_count: int
    current_job: CurrentJob | None
    open_sessions: list[OpenSession]


# maximum total size of the results in a list of jobs
RESULT_BYTES = 16 * 1024 * 1024
_JOBS = TypeAdapter(list[WardenJob])
NO_SLOTS = "Not enough QPU slots available."
SESSION_HEADER = "X-Warden-Session"
# warden's names for fields of the queue
_FIELDS = {LEASE_HEADER: SESSION_HEADER, "parameters.num_reads": "shots"}
SessionId = Annotated[
    str | None, Header(alias=SESSION_HEADER, description="The id of a session.")
]
JobNumber = Annotated[int, Path(ge=0, le=2**63 - 1, description="The job's number.")]


class _Route(LargeBodyRoute):
    dialect = "warden"

    @staticmethod
    def reply(queue: JobQueue, job: Job, new: bool) -> Response:
        return JSONResponse(_job(job).model_dump(mode="json"))

    async def handle_large(self, request: Request, body: bytes) -> Response:
        try:
            return await super().handle_large(request, body)
        except Refused as error:
            raise _with_warden_names(error) from error


router = APIRouter(
    tags=["warden"],
    route_class=_Route,
    responses={
        401: refusal("No credential, or an invalid one."),
        403: refusal("The caller or the session lacks the permission."),
        404: refusal("The object does not exist, or belongs to another user."),
        409: refusal("The request is not possible now."),
        422: refusal("A field is wrong."),
        429: refusal("Too many jobs or requests."),
        503: refusal("The QPU is closed."),
    },
)


@router.get("/accessible", summary="Show whether the QPU takes sessions")
async def accessible(queue: Queue) -> Accessible:
    """Show the QPU's status without a credential: clients query it before they have a job."""
    reason, availability = qpu_reason(queue), queue.availability
    # the operator's message is shown unless the QPU is unavailable for another reason
    offline = availability.is_open and reason
    other_reason = queue.failure or availability.in_maintenance or offline
    message = "" if other_reason else availability.message
    return Accessible(
        is_accessible=not reason,
        message=message or reason or "The QPU is open.",
        **vars(await slots(queue)),
    )


@router.post("/accessible", summary="Open or close the QPU")
async def set_accessible(body: SetAccessible, queue: Queue, who: Admin) -> Accessible:
    """Close the QPU, which stops the running job, or open it again."""
    if body.is_accessible:
        await queue.availability.set_status("open", body.message, user=who.user)
    else:
        await queue.availability.set_status("closed", body.message, user=who.user)
    return await accessible(queue)


@router.get("/qpu-slots", summary="Count the vQPUs")
async def slots(queue: Queue) -> Slots:
    """Show the slots without a credential: load sensors of batch systems query them."""
    total, used = queue.vqpus.number, len(queue.leases.held)
    return Slots(
        qpu_slots_total=total,
        qpu_slots_used=used,
        qpu_slots_available=max(0, total - used),
    )


@router.get("/qpu/specs", summary="Describe the device for Pulser")
def specs(queue: Queue) -> Specs:
    """Describe the device; if Pulser is installed, users can build sequences for it.

    As in warden, the request needs no credential.
    """
    return Specs(specs=queue.device.specs())


@router.get("/status", summary="Show the state of the service")
async def status(queue: Queue, who: Admin) -> StatusAnswer:
    """Show the running job, the number of pending jobs, and the sessions held."""
    running = queue.running
    # a job that is about to start, or has just ended, is not shown
    current = running if running and running.state == "Running" else None
    answer = {
        "pending_jobs_count": queue.length - (running is not None),
        "current_job": current,
        "open_sessions": queue.leases.list(who),
    }
    return StatusAnswer.model_validate(answer, from_attributes=True)


@router.post("/sessions", summary="Acquire a session")
async def create_session(body: CreateSession, queue: Queue, who: Who) -> Session:
    """Acquire a vQPU for a user's Slurm job, or refuse immediately if none is free.

    In warden, only root and admins may acquire sessions; the configuration of this service
    may also allow users to do so. The session's class is the class of the job's partition.
    If no vQPU is free, but an earlier program of the same user and Slurm job has not released
    its session and the session has no unfinished jobs, the response contains this session.
    """
    if body.qpu_slots > queue.vqpus.number:
        raise Refused(409, NO_SLOTS, "qpu_slots")
    if body.qpu_slots > 1:
        raise Refused(422, "a session holds exactly one slot", "qpu_slots")
    request = LeaseRequest(
        # the directory of users may be slow
        user=await asyncio.to_thread(user_name, body.user_id),
        slurm_job_id=body.scheduler_job_id,
        partition=body.partition,
    )
    try:
        lease = await queue.leases.acquire(who, request)
    except Refused as error:
        if error.status != 409:
            raise
        if (unreleased := await _find_unreleased(queue, request)) is None:
            raise Refused(409, NO_SLOTS, headers=error.headers) from error
        lease = unreleased
    idle_expires = queue.leases.idle_expires_at(lease)
    return await asyncio.to_thread(_session, lease, idle_expires)


async def _find_unreleased(queue: JobQueue, request: LeaseRequest) -> Lease | None:
    """Find a session that an earlier program of a Slurm job has not released.

    Leases of other dialects are not returned; they can be told by their key or purpose. Job
    0 is ignored, since all programs outside of Slurm send this number.
    """
    if request.slurm_job_id in (None, "", "0"):
        return None
    for lease in queue.leases.held:
        user_and_job = lease.user, lease.slurm_job_id
        if (
            user_and_job != (request.user, request.slurm_job_id)
            or lease.key
            or lease.job
        ):
            continue
        find = partial(queue.store.jobs.latest, lease=lease.id, live=True, limit=1)
        if not await asyncio.to_thread(find) and lease in queue.leases.held:
            queue.leases.touch(lease.id)
            return lease
    return None


@router.delete("/sessions/{session_id}", summary="Release a session")
async def revoke_session(session_id: str, queue: Queue, who: Who) -> Session:
    """Release a session and cancel its jobs, including a running job; idempotent."""
    if not (who.admin or who.root or queue.settings.leases.by == "users"):
        raise Refused(403, "only root and admins may release sessions")
    return _session(await queue.leases.release(who, session_id), None)


@router.post("/jobs", summary="Submit a pulse sequence")
async def create_job(
    body: CreateJob, queue: Queue, who: Who, x_warden_session: SessionId = None
) -> WardenJob:
    """Submit a sequence to the queue; an acknowledged job is on disk.

    Warden has no idempotency keys: a repeated request submits a second job.
    """
    try:
        job, _ = await queue.submit(who, x_warden_session, body.submission())
    except Refused as error:
        raise _with_warden_names(error) from error
    return _job(job)


@router.get("/jobs", summary="List the caller's jobs", response_model=list[WardenJob])
async def jobs(queue: Queue, who: Who) -> Response:
    """List the latest jobs of every kind, oldest first.

    The list contains the results of the latest jobs, up to 16 MiB in total. Other results are
    shown only by the route of the single job.
    """

    def listed() -> bytes:
        shown, bytes_left = deque[WardenJob](), RESULT_BYTES
        for job in reversed(queue.reader.latest(who)):
            result = queue.store.jobs.result(job.number) if bytes_left > 0 else None
            bytes_left -= len(result or "")
            shown.appendleft(_job(job, result if bytes_left >= 0 else None))
        return _JOBS.dump_json([*shown])

    async with queue.reader.lists.turn(who.user):
        content = await queue.reader.lists.run(listed)
    return Response(content, media_type="application/json")


@router.get("/jobs/{number}", summary="Show a job", response_model=WardenJob)
async def job(number: JobNumber, queue: Queue, who: Who) -> Response:
    """Show a job, with its results once it is done."""
    queue_job = queue.find(who, number)

    def shown() -> str:
        return _job(
            queue_job, queue.store.jobs.result(queue_job.number)
        ).model_dump_json()

    content = await queue.reader.show(who, queue_job, shown)
    return Response(content, media_type="application/json")


@router.post("/jobs/{number}/cancel", summary="Cancel a job")
async def cancel(number: JobNumber, queue: Queue, who: Who) -> WardenJob:
    """Cancel a job that has not ended, and respond when the job has left the device."""
    current = queue.find(who, number)
    has_ended = current.final
    if not has_ended:
        current = await queue.cancel(who, current.id)
        # the job may have ended meanwhile without the cancellation
        has_ended = current.final and current.state != "Cancelled"
    if has_ended:
        status = STATUSES[current.state]
        raise Refused(409, f"Job with status '{status}' can't be canceled")
    return _job(current)


@router.get("/jobs/{number}/logs", summary="Show the log of a job")
async def logs(number: JobNumber, queue: Queue, who: Who) -> Logs:
    """Show when the job was queued, started and ended, and why it failed."""
    job = queue.find(who, number)
    lines = [(job.submitted, f"queued as job {job.number}, class {job.job_class}")]
    if (forecast := queue.forecasts.of(job)) is not None:
        lines.append((job.submitted, forecast.words))
    if job.started is not None:
        lines.append((job.started, f"started, attempt {job.attempt}"))
    if job.ended is not None:
        note = f": {job.note}" if job.note else ""
        lines.append((job.ended, f"{STATUSES[job.state]}{note}"))
    elif job.note:
        lines.append((job.started or job.submitted, job.note))
    return Logs(logs="".join(f"[{utc(at):%F %T}] {text}\n" for at, text in lines))


def _session(lease: Lease, idle_expires: float | None) -> Session:
    return Session(**vars(lease) | {"idle_expires_at": idle_expires})


def _with_warden_names(error: Refused) -> Refused:
    field = _FIELDS.get(error.field or "", error.field)
    return Refused(error.status, error.detail, field, error.headers)


def _job(job: Job, results: str | None = None) -> WardenJob:
    return WardenJob(**vars(job), results=results)

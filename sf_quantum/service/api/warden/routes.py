"""Warden's dialect over the same queue and leases: QRMI's type ``pasqal-local``.

A session is a lease, a slot is a vQPU, the id of a job is its number in the queue.
Paths, bodies, names and statuses are those of Pasqal's warden, so that the client in
the package ``qrmi`` and the SPANK plugin work unmodified.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated

from fastapi import APIRouter, Header, Path

from sf_quantum.service.api.common import Admin, Queue, Who, qpu_reason, refusals, utc
from sf_quantum.service.api.warden.models import (
    STATUSES,
    Accessible,
    CreateJob,
    CreateSession,
    CurrentJob,
    Logs,
    OpenSession,
    Session,
    SetAccessible,
    Slots,
    Specs,
    StatusAnswer,
    WardenJob,
    user_name,
    user_number,
)
from sf_quantum.service.device import sequence
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, LeaseRequest, Submission
from sf_quantum.service.queue.entitlements import LEASE_HEADER
from sf_quantum.service.queue.job_queue import JobQueue

NO_SLOTS = "Not enough QPU slots available."
SESSION_HEADER = "X-Warden-Session"
# warden's names of the queue's fields
_FIELDS = {LEASE_HEADER: SESSION_HEADER, "parameters.num_reads": "shots"}
SessionId = Annotated[
    str | None, Header(alias=SESSION_HEADER, description="The id of a session.")
]
JobNumber = Annotated[int, Path(ge=0, le=2**63 - 1, description="The job's number.")]
router = APIRouter(
    tags=["warden"],
    responses=refusals(
        {
            401: "No credential, or an invalid one.",
            403: "The caller or the session lacks the permission.",
            404: "It does not exist, or belongs to another user.",
            409: "Not possible now.",
            422: "A field is wrong.",
            429: "Too many jobs or requests.",
            503: "The QPU is closed.",
        }
    ),
)


@router.get("/accessible", summary="Show whether the QPU takes sessions")
async def accessible(queue: Queue) -> Accessible:
    """Needs no credential, since clients call it before they have a job."""
    return _accessible(queue)


@router.post("/accessible", summary="Open or close the QPU")
async def set_accessible(body: SetAccessible, queue: Queue, who: Admin) -> Accessible:
    """Close the QPU, which stops the running job, or open it again."""
    if body.is_accessible:
        await queue.availability.set_status("open", user=who.user)
    else:
        await queue.availability.set_status("closed", body.message, user=who.user)
    return _accessible(queue)


@router.get("/qpu-slots", summary="Count the vQPUs")
async def slots(queue: Queue) -> Slots:
    """Needs no credential, since load sensors of batch systems call it."""
    return Slots(**_slots(queue))


@router.get("/qpu/specs", summary="Describe the device for Pulser")
def specs(queue: Queue, _: Who) -> Specs:
    """Describe the device; with Pulser installed, sequences can be built from this."""
    return Specs(specs=sequence.specs(queue.device.name, queue.device.qubits))


@router.get("/status", summary="Show the state of the service")
async def status(queue: Queue, who: Admin) -> StatusAnswer:
    """Show the running job, the number of pending jobs, and the sessions held."""
    running, current = queue.running, None
    # a job that is about to start, or has just ended, is not shown
    if running and running.state == "Running":
        current = CurrentJob(
            id=running.number,
            session_id=running.lease,
            user_id=user_number(running.user),
            started_at=None if running.started is None else utc(running.started),
            backend_id=running.id,
        )
    return StatusAnswer(
        pending_jobs_count=queue.length - (running is not None),
        current_job=current,
        open_sessions=[
            OpenSession(
                id=lease.id,
                user_id=user_number(lease.user),
                created_at=utc(lease.opened),
                slurm_job_id=lease.slurm_job_id,
            )
            for lease in queue.leases.list(who)
        ],
    )


@router.post("/sessions", summary="Acquire a session")
async def create_session(body: CreateSession, queue: Queue, who: Who) -> Session:
    """Acquire a vQPU for a user's Slurm job, or refuse at once if none is free.

    In warden only root and admins may acquire sessions; the configuration of this
    service may allow it to users. The session's class is that of the job's partition.
    """
    if body.qpu_slots > queue.leases.vqpus:
        raise Refused(409, NO_SLOTS, "qpu_slots")
    if body.qpu_slots > 1:
        raise Refused(422, "a session holds exactly one slot", "qpu_slots")
    request = LeaseRequest(
        user=user_name(body.user_id),
        slurm_job_id=body.scheduler_job_id,
        partition=body.partition,
    )
    try:
        lease = await queue.leases.acquire(who, request)
    except Refused as error:
        if error.status != 409:
            raise
        raise Refused(409, NO_SLOTS, headers=error.headers) from error
    return Session.of(lease, queue.leases.idle_expires_at(lease))


@router.delete("/sessions/{session_id}", summary="Release a session")
async def revoke_session(session_id: str, queue: Queue, who: Who) -> Session:
    """Release a session and cancel its jobs, including a running one; idempotent."""
    if not (who.admin or who.root or queue.settings.leases.by == "users"):
        raise Refused(403, "only root and admins may release sessions")
    lease = await queue.leases.release(who, session_id)
    return Session.of(lease, None)


@router.post("/jobs", summary="Submit a pulse sequence")
async def create_job(
    body: CreateJob, queue: Queue, who: Who, x_warden_session: SessionId = None
) -> WardenJob:
    """Submit a sequence to the queue; an acknowledged job is on disk.

    Warden has no idempotency keys: the same request twice is two jobs.
    """
    submission = Submission(
        kind="sequence",
        content=body.sequence,
        parameters={"num_reads": body.shots},
        key=f"warden-{secrets.token_hex(16)}",
    )
    try:
        job, _ = await queue.submit(who, x_warden_session, submission)
    except Refused as error:
        field = _FIELDS.get(error.field or "", error.field)
        raise Refused(error.status, error.detail, field, error.headers) from error
    return WardenJob.of(job)


@router.get("/jobs", summary="List the caller's jobs")
async def jobs(queue: Queue, who: Who) -> list[WardenJob]:
    """List the latest jobs, oldest first, of every kind."""
    listed = queue.list_jobs(who)
    # the results of many jobs are large
    return await asyncio.to_thread(lambda: [_answer(queue, job) for job in listed])


@router.get("/jobs/{number}", summary="Show a job")
async def job(number: JobNumber, queue: Queue, who: Who) -> WardenJob:
    """Show a job, with its results once it is done."""
    return _answer(queue, queue.find(who, number))


@router.post("/jobs/{number}/cancel", summary="Cancel a job")
async def cancel(number: JobNumber, queue: Queue, who: Who) -> WardenJob:
    """Cancel a job that is not over, and answer once it has left the device."""
    current = queue.find(who, number)
    if current.final:
        status = STATUSES[current.state]
        raise Refused(409, f"Job with status '{status}' can't be canceled")
    return WardenJob.of(await queue.cancel(who, current.id))


@router.get("/jobs/{number}/logs", summary="Show the log of a job")
async def logs(number: JobNumber, queue: Queue, who: Who) -> Logs:
    """Show when the job was queued, started and ended, and why it failed."""
    return Logs.of(queue.find(who, number))


def _accessible(queue: JobQueue) -> Accessible:
    reason = qpu_reason(queue)
    return Accessible(
        is_accessible=not reason,
        message=reason or queue.availability.message or "The QPU is open.",
        **_slots(queue),
    )


def _slots(queue: JobQueue) -> dict[str, int]:
    total, used = queue.leases.vqpus, len(queue.leases.held)
    return {
        "qpu_slots_total": total,
        "qpu_slots_used": used,
        "qpu_slots_available": max(0, total - used),
    }


def _answer(queue: JobQueue, job: Job) -> WardenJob:
    return WardenJob.of(job, queue.store.result(job.number))

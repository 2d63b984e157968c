"""Warden's dialect over the same queue and leases: QRMI's type ``pasqal-local``.

A session is a lease, a slot a vQPU, a job's id its number in the queue. Paths, bodies,
words and statuses are those of Pasqal's warden, so that the client in the package
``qrmi`` and the SPANK plugin work unmodified.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated

from fastapi import APIRouter, Header, Path

from sf_quantum.service.api.warden.models import (
    STATUSES,
    Accessible,
    CreateJob,
    CreateSession,
    CurrentJob,
    JobAnswer,
    Logs,
    OpenSession,
    Session,
    SetAccessible,
    Slots,
    Specs,
    StatusAnswer,
    moment,
    user_name,
    user_number,
)
from sf_quantum.service.device import sequence
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, LeaseRequest, Submission
from sf_quantum.service.http.dependencies import Admin, Queue, Refusal, Who
from sf_quantum.service.queue import entitlements
from sf_quantum.service.queue.job_queue import JobQueue

NO_SLOTS = "Not enough QPU slots available."
SESSION_HEADER = "X-Warden-Session"
SessionId = Annotated[
    str | None, Header(alias=SESSION_HEADER, description="The id of a session.")
]
JobNumber = Annotated[int, Path(ge=0, le=2**63 - 1, description="The job's number.")]
router = APIRouter(
    tags=["warden"],
    responses={
        status: {"model": Refusal, "description": words}
        for status, words in {
            401: "No credential, or none that holds.",
            403: "The caller, or the session, may not.",
            404: "It is not there, or another user's.",
            409: "Not now.",
            422: "A field is wrong.",
            429: "Too many.",
            503: "The QPU is closed.",
        }.items()
    },
)


@router.get("/accessible", summary="Say whether the QPU takes sessions")
async def accessible(queue: Queue) -> Accessible:
    """Need no credential: it is asked before there is a job."""
    return _accessible(queue)


@router.post("/accessible", summary="Open or close the QPU")
async def set_accessible(body: SetAccessible, queue: Queue, who: Admin) -> Accessible:
    """Take no more work, and stop the job that runs, or go on where it was left."""
    if body.is_accessible:
        await queue.availability.set_status("open", user=who.user)
    else:
        await queue.availability.set_status("closed", body.message, user=who.user)
    return _accessible(queue)


@router.get("/qpu-slots", summary="Count the vQPUs")
async def slots(queue: Queue) -> Slots:
    """Need no credential: a batch system's sensor asks."""
    return Slots(**_slots(queue))


@router.get("/qpu/specs", summary="Describe the device in Pulser's words")
def specs(queue: Queue, _: Who) -> Specs:
    """Tell what a sequence may be; with Pulser installed, it can be built from this."""
    return Specs(specs=sequence.specs(queue.device.name, queue.device.qubits))


@router.get("/status", summary="Show what the service does")
async def status(queue: Queue, who: Admin) -> StatusAnswer:
    """Show the job that runs, how many wait, and the sessions held."""
    running = queue.running
    return StatusAnswer(
        pending_jobs_count=queue.length - (running is not None),
        # between two states it does not run
        current_job=(
            _current(running) if running and running.state == "Running" else None
        ),
        open_sessions=[
            OpenSession(
                id=lease.id,
                user_id=user_number(lease.user),
                created_at=moment(lease.opened),
                slurm_job_id=lease.slurm_job_id,
            )
            for lease in queue.leases.list(who)
        ],
    )


@router.post("/sessions", summary="Acquire a session")
async def create_session(body: CreateSession, queue: Queue, who: Who) -> Session:
    """Take a vQPU for a user's Slurm job, or say at once that there is none.

    By warden's rule only root and admins do; the service's configuration may let users
    acquire their own. The session's class is that of the job's partition.
    """
    if body.qpu_slots > queue.leases.vqpus:
        raise Refused(409, NO_SLOTS, "qpu_slots")
    if body.qpu_slots > 1:
        raise Refused(422, "a session holds one slot here", "qpu_slots")
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
    """Release a session and cancel its jobs, on the device too; again is fine."""
    if not (who.admin or who.root or queue.settings.leases.by == "users"):
        raise Refused(403, "only root and admins release sessions here")
    lease = await queue.leases.release(who, session_id)
    return Session.of(lease, None)


@router.post("/jobs", summary="Submit a pulse sequence")
async def create_job(
    body: CreateJob, queue: Queue, who: Who, x_warden_session: SessionId = None
) -> JobAnswer:
    """Put a sequence into the queue; what is acknowledged is on disk.

    Warden's dialect knows no idempotency key: the same request twice is two jobs.
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
        words = {
            entitlements.LEASE_HEADER: SESSION_HEADER,
            "parameters.num_reads": "shots",
        }
        field = words.get(error.field or "", error.field)
        detail = error.detail.replace("POST /v1/leases", "POST /sessions")
        raise Refused(error.status, detail, field, error.headers) from error
    return JobAnswer.of(job)


@router.get("/jobs", summary="List the caller's jobs")
async def jobs(queue: Queue, who: Who) -> list[JobAnswer]:
    """List the latest jobs, oldest first, of every kind."""
    mine = queue.list_jobs(who)
    # of many jobs, much to read
    return await asyncio.to_thread(lambda: [_answer(queue, job) for job in mine])


@router.get("/jobs/{number}", summary="Show a job")
async def job(number: JobNumber, queue: Queue, who: Who) -> JobAnswer:
    """Show a job, with its results once it is done."""
    return _answer(queue, queue.find(who, number))


@router.post("/jobs/{number}/cancel", summary="Cancel a job")
async def cancel(number: JobNumber, queue: Queue, who: Who) -> JobAnswer:
    """Cancel a job that is not over; one that runs has left the device by the answer."""
    found = queue.find(who, number)
    if found.final:
        word = STATUSES[found.state]
        raise Refused(409, f"Job with status '{word}' can't be canceled")
    return JobAnswer.of(await queue.cancel(who, found.id))


@router.get("/jobs/{number}/logs", summary="Tell what happened to a job")
async def logs(number: JobNumber, queue: Queue, who: Who) -> Logs:
    """Tell when it came, started and ended, and why it did not end well."""
    return Logs.of(queue.find(who, number))


def _accessible(queue: JobQueue) -> Accessible:
    reason = queue.failure or queue.availability.reason
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


def _current(running: Job) -> CurrentJob:
    return CurrentJob(
        id=running.number,
        session_id=running.lease,
        user_id=user_number(running.user),
        started_at=None if running.started is None else moment(running.started),
        backend_id=running.id,
    )


def _answer(queue: JobQueue, job: Job) -> JobAnswer:
    return JobAnswer.of(job, queue.store.result(job.number))

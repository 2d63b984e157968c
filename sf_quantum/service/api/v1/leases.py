"""``/v1``: leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Query, Request

from sf_quantum.service.api.v1.models import JobAnswer, LeaseAnswer, LeaseBody
from sf_quantum.service.domain.jobs import Lease
from sf_quantum.service.http.dependencies import Queue, Who, refusals
from sf_quantum.service.queue.job_queue import JobQueue

router = APIRouter(prefix="/v1/leases", tags=["leases"])
_NO_LEASE = refusals({404: "No such lease."})


@router.post(
    "",
    status_code=201,
    summary="Acquire a lease",
    responses=refusals({403: "The caller may not.", 409: "All leases are held."}),
)
async def acquire(
    body: LeaseBody, request: Request, queue: Queue, who: Who
) -> LeaseAnswer:
    """Acquire the right to submit jobs; at most one lease per vQPU is held at a time.

    With `wait`, pending requests are granted by class, then in order of arrival.
    """
    async with _disconnection(request, body.wait) as gone:
        lease = await queue.leases.acquire(who, body.request(), body.wait, gone)
    return _answer(queue, lease)


@router.get("", summary="List leases")
async def leases(
    queue: Queue,
    who: Who,
    closed: Annotated[
        bool, Query(description="Include ended leases, the latest 1000.")
    ] = False,
) -> list[LeaseAnswer]:
    """List the caller's leases, for admins all leases, without their jobs."""
    listed = queue.leases.list(who, held_only=not closed)
    return [_answer(queue, lease) for lease in listed]


@router.get("/{lease_id}", summary="Show a lease and its jobs", responses=_NO_LEASE)
async def lease(lease_id: str, queue: Queue, who: Who) -> LeaseAnswer:
    """Show whether the lease is held, and the jobs submitted under it."""
    return _answer_with_jobs(queue, queue.leases.find(who, lease_id))


@router.post(
    "/{lease_id}/renew",
    summary="Renew a lease",
    responses=refusals({403: "It has ended.", 404: "No such lease."}),
)
async def renew(lease_id: str, queue: Queue, who: Who) -> LeaseAnswer:
    """Keep an idle lease from ending; the time when it expires does not change."""
    return _answer(queue, queue.leases.renew(who, lease_id))


@router.delete(
    "/{lease_id}",
    summary="Release a lease and cancel its jobs",
    responses=_NO_LEASE,
)
async def release(lease_id: str, queue: Queue, who: Who) -> LeaseAnswer:
    """Release the lease and cancel its unfinished jobs, including a running one.

    Releasing it again changes nothing.
    """
    return _answer_with_jobs(queue, await queue.leases.release(who, lease_id))


def _answer(
    queue: JobQueue, lease: Lease, jobs: list[JobAnswer] | None = None
) -> LeaseAnswer:
    idle_expires = queue.leases.idle_expires_at(lease) if lease.held else None
    return LeaseAnswer.of(lease, idle_expires, jobs or [])


def _answer_with_jobs(queue: JobQueue, lease: Lease) -> LeaseAnswer:
    jobs = queue.store.jobs(lease=lease.id)
    answers = [JobAnswer.of(job, queue.forecast(job)) for job in jobs]
    return _answer(queue, lease, answers)


@asynccontextmanager
async def _disconnection(request: Request, wait: float) -> AsyncIterator[asyncio.Event]:
    """Notice if a waiting client disconnects, since it could not release its lease."""
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

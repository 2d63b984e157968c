"""``/v1``: leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Query, Request

from sf_quantum.service.api.v1.models import JobAnswer, LeaseAnswer, LeaseBody
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.domain.jobs import Lease
from sf_quantum.service.http.dependencies import Queue, Who, refusals
from sf_quantum.service.queue.job_queue import JobQueue

router = APIRouter(prefix="/v1/leases", tags=["leases"])
_NOT_THERE = refusals({404: "No such lease."})


@router.post(
    "",
    status_code=201,
    summary="Acquire a lease",
    responses=refusals({403: "The caller may not.", 409: "All leases are held."}),
)
async def acquire(
    body: LeaseBody, request: Request, queue: Queue, who: Who
) -> LeaseAnswer:
    """Take the right to submit jobs; as many leases are held at once as vQPUs exist.

    With `wait`, those who wait are served by class, then by who came first.
    """
    async with _client_gone(request, body.wait) as gone:
        lease = await queue.leases.acquire(who, body.request(), body.wait, gone)
    return show(queue, who, lease, with_jobs=False)


@router.get("", summary="List leases")
async def leases(
    queue: Queue,
    who: Who,
    closed: Annotated[
        bool, Query(description="Also those that have ended, the latest 1000.")
    ] = False,
) -> list[LeaseAnswer]:
    """List the caller's leases, without their jobs; an admin sees everybody's."""
    found = queue.leases.list(who, held_only=not closed)
    return [show(queue, who, lease, with_jobs=False) for lease in found]


@router.get("/{lease_id}", summary="Show a lease and its jobs", responses=_NOT_THERE)
async def lease(lease_id: str, queue: Queue, who: Who) -> LeaseAnswer:
    """Tell whether the lease is held, and which jobs came under it."""
    return show(queue, who, queue.leases.find(who, lease_id))


@router.post(
    "/{lease_id}/renew",
    summary="Renew a lease",
    responses=refusals({403: "It has ended.", 404: "No such lease."}),
)
async def renew(lease_id: str, queue: Queue, who: Who) -> LeaseAnswer:
    """Keep an idle lease from ending; when it ends in any case stays as it is."""
    return show(queue, who, queue.leases.renew(who, lease_id), with_jobs=False)


@router.delete(
    "/{lease_id}",
    summary="Release a lease and cancel its jobs",
    responses=_NOT_THERE,
)
async def release(lease_id: str, queue: Queue, who: Who) -> LeaseAnswer:
    """Give the lease back; its jobs that are not over are cancelled on the device too.

    Releasing it again changes nothing.
    """
    return show(queue, who, await queue.leases.release(who, lease_id))


def show(
    queue: JobQueue, who: Identity, lease: Lease, *, with_jobs: bool = True
) -> LeaseAnswer:
    """Show a lease."""
    jobs = queue.store.jobs(lease=lease.id) if with_jobs else []
    return LeaseAnswer.of(
        lease,
        queue.leases.idle_expires_at(lease) if lease.held else None,
        [JobAnswer.of(job, queue.forecast(job)) for job in jobs],
    )


@asynccontextmanager
async def _client_gone(request: Request, wait: float) -> AsyncIterator[asyncio.Event]:
    """Notice when a client that waits goes away: nobody would give its lease back."""
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

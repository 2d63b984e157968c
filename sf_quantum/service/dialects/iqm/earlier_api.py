"""The requests of IQM's earlier API that CUDA-Q's target ``iqm`` still sends.

These requests do not name a quantum computer, and their angles are in full turns; otherwise,
they are like current requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from sf_quantum.files import JSON, listing, mapping
from sf_quantum.service.dialects.common import LeaseId, Queue, Who
from sf_quantum.service.dialects.iqm import routes
from sf_quantum.service.dialects.iqm.jobs import Jobs
from sf_quantum.service.dialects.iqm.routes import JobsDep
from sf_quantum.service.domain.jobs import Job, State

STATUSES: Mapping[State, str] = {
    "Queued": "pending execution",
    "Running": "pending execution",
    "Completed": "ready",
    "Failed": "failed",
    "Cancelled": "aborted",
}
# not in the OpenAPI document, like the routes of IQM's current API
router = APIRouter(include_in_schema=False)


@router.get("/calibration-sets/{calibration}/dynamic-quantum-architecture")
def dynamic_architecture(
    request: Request, queue: Queue, who: Who, calibration: str
) -> Response:
    """Show the calibrated operations."""
    qc = queue.device.name
    return routes.dynamic_architecture(request, queue, who, qc, calibration)


@router.post("/circuits")
async def submit(
    request: Request, queue: Queue, who: Who, jobs: JobsDep, x_sfq_lease: LeaseId = None
) -> Response:
    """Submit a batch of circuits."""
    job = await routes.submitted(
        request, queue, who, queue.device.name, None, x_sfq_lease
    )
    return JSONResponse({"id": jobs.show(job)["id"]}, 201)


@router.get("/circuits/{job_id}/counts")
async def counts(queue: Queue, who: Who, jobs: JobsDep, job_id: str) -> Response:
    """Show a job; with its circuits and counts if it has ended."""
    job = jobs.find(who, job_id)
    if not job.final:
        return JSONResponse({"status": STATUSES[job.state]})
    return await routes.listed(
        queue, who, lambda: JSONResponse(_describe_ended(jobs, job), 200)
    )


def _describe_ended(jobs: Jobs, job: Job) -> dict[str, JSON]:
    sent = jobs.payload(job)
    for circuit in listing(sent["circuits"]):
        for item in listing(mapping(circuit)["instructions"]):
            instruction = mapping(item)
            instruction["qubits"] = instruction.pop("locus")
    completed = job.state == "Completed"
    return {
        "status": STATUSES[job.state],
        "message": job.note or None,
        "counts_batch": jobs.counted(job) if completed else None,
        "metadata": {"request": sent},
    }

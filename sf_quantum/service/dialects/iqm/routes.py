"""The routes of IQM's API, the dialect of ``iqm-client``.

To clients, the service is an IQM Server with one quantum computer; they use a bearer token of
the service. Paths, bodies, names and statuses are those that ``iqm-client`` 36 and QRMI's
``iqm-server`` use, so these clients work unmodified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from sf_quantum.files import JSON
from sf_quantum.service.device.interface import Device
from sf_quantum.service.dialects import large_bodies
from sf_quantum.service.dialects.common import (
    LeaseId,
    Queue,
    Who,
    qpu_reason,
    qpu_status,
)
from sf_quantum.service.dialects.implicit_leases import ImplicitLeases
from sf_quantum.service.dialects.iqm import architecture, calibrations, circuits
from sf_quantum.service.dialects.iqm.architecture import Architecture
from sf_quantum.service.dialects.iqm.jobs import ARTIFACTS, STATUSES, Jobs
from sf_quantum.service.dialects.iqm.refusals import Coded
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, Job, Submission
from sf_quantum.service.http.guard import check_connected, parsed
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.version import __version__

PREFIX = "/api/v1"
# default and maximum wait for a job's end, as IQM documents them
WAIT_SECONDS, LONGEST_WAIT_SECONDS = 10, 30
TAG = 1024
# maximum number of calibration sets whose ids are remembered, since jobs may name earlier sets
MOST_CALIBRATIONS = 1000
T = TypeVar("T")


async def _jobs(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.dialects["iqm"].jobs
    return jobs


JobsDep = Annotated[Jobs, Depends(_jobs)]
# not in the OpenAPI document, since IQM's client defines this API
router = APIRouter(prefix=PREFIX, include_in_schema=False)


def machine(device: Device, qc: str) -> Architecture:
    """Return the architecture of the quantum computer with a name or UUID.

    :raises Refused: 404 if the name is unknown, or the device is not a gate-based QPU
    """
    chip = architecture.of(device.description)
    # QRMI sends the name with a colon instead of the last underscore
    names = {qc, "_".join(qc.rsplit(":", 1))}
    if chip is None or not names & {device.name, architecture.identity(device)}:
        raise Coded(404, "qc_not_found", f"quantum computer {qc[:100]!r} not found")
    return chip


@router.get("/about")
def about(_: Who) -> Response:
    """Show the version."""
    return JSONResponse({"software": "sf_quantum", "version": __version__})


@router.get("/quantum-computers")
def quantum_computers(queue: Queue, _: Who) -> Response:
    """List the QPU; the list is empty if the device is not gate-based."""
    chip = architecture.of(queue.device.description)
    listed: list[JSON] = [] if chip is None else [_details(queue, chip)]
    return JSONResponse({"quantum_computers": listed})


@router.get("/quantum-computers/{qc}")
def quantum_computer(queue: Queue, _: Who, qc: str) -> Response:
    """Show the QPU and its state."""
    return JSONResponse(_details(queue, machine(queue.device, qc)))


@router.get("/quantum-computers/{qc}/health")
def health(queue: Queue, _: Who, qc: str) -> Response:
    """Show whether the QPU runs jobs."""
    machine(queue.device, qc)
    return JSONResponse(_health(queue))


@router.get("/quantum-computers/{qc}/artifacts/{artifact}")
def qpu_artifact(queue: Queue, _: Who, qc: str, artifact: str) -> Response:
    """Show properties of the QPU that do not depend on its calibration."""
    device = queue.device
    chip = machine(device, qc)
    match artifact:
        case "static-quantum-architectures":
            return JSONResponse([architecture.static(device, chip)])
        case "about":
            return JSONResponse({"version": __version__, "software_versions": {}})
        case "channel-properties":
            # an empty protobuf message: no operation on a qubit can depend on a measurement
            return Response(b"", media_type="application/protobuf")
    detail = f"{device.name} has no artifact {artifact[:100]!r}"
    raise Coded(404, "qc_artifact_not_found", detail)


@router.get("/calibration-sets/{qc}/{calibration}")
def calibration_set(queue: Queue, _: Who, qc: str, calibration: str) -> Response:
    """Show a calibration set."""
    chip = _current_architecture(queue, qc, calibration)
    observed = calibrations.observations(queue.device, chip, metrics=False)
    return JSONResponse(observed)


@router.get("/calibration-sets/{qc}/{calibration}/metrics")
def metrics(queue: Queue, _: Who, qc: str, calibration: str) -> Response:
    """Show the quality of the operations."""
    chip = _current_architecture(queue, qc, calibration)
    observed = calibrations.observations(queue.device, chip, metrics=True)
    return JSONResponse(observed)


@router.get("/calibration-sets/{qc}/{calibration}/dynamic-quantum-architecture")
def dynamic_architecture(
    request: Request, queue: Queue, _: Who, qc: str, calibration: str
) -> Response:
    """Show the calibrated operations."""
    chip = _current_architecture(queue, qc, calibration)
    dynamic = calibrations.dynamic(queue.device, chip)
    seen: dict[str, None] = request.app.state.dialects["iqm"].calibrations
    seen[str(dynamic["calibration_set_id"])] = None
    while len(seen) > MOST_CALIBRATIONS:
        seen.pop(next(iter(seen)), None)
    return JSONResponse(dynamic)


# defined before the submission's route, whose path pattern also matches this path
@router.post("/jobs/{job_id}/cancel")
async def cancel(queue: Queue, who: Who, jobs: JobsDep, job_id: str) -> Response:
    """Cancel a job; a job that has ended cannot be cancelled."""
    job = jobs.find(who, job_id)
    if job.final:
        detail = f"job {job_id} is {STATUSES[job.state]} already"
        raise Coded(403, "illegal_job_status", detail)
    return JSONResponse(jobs.show(await queue.cancel(who, job.id)))


@router.post("/jobs/{qc}/{job_type}")
async def submit(
    request: Request,
    queue: Queue,
    who: Who,
    jobs: JobsDep,
    qc: str,
    job_type: str,
    use_timeslot: bool = False,
    tag: Annotated[str | None, Query(max_length=TAG)] = None,
    x_sfq_lease: LeaseId = None,
) -> Response:
    """Submit a batch of circuits."""
    machine(queue.device, qc)
    if job_type != "circuit":
        detail = f"{job_type[:100]!r}: this device runs jobs of type 'circuit' only"
        raise Coded(400, "unsupported_job_type", detail)
    if use_timeslot and not _in_timeslot(queue, who, x_sfq_lease):
        detail = "the job's lease does not have the reservation 'timeslot'"
        raise Coded(403, "no_booked_timeslots", detail)
    job = await submitted(request, queue, who, qc, tag, x_sfq_lease)
    return JSONResponse(jobs.show(job), 201)


def _in_timeslot(queue: JobQueue, who: Identity, lease: str | None) -> bool:
    """Return whether a user's lease has the reservation ``timeslot``."""
    with suppress(Refused):
        return queue.leases.use(who, lease).reservation == "timeslot"
    return False


async def submitted(
    request: Request,
    queue: JobQueue,
    who: Identity,
    qc: str,
    tag: str | None,
    lease: str | None,
) -> Job:
    """Submit the circuits in a request's body.

    :param lease: id of a lease of the user; ``None``: an implicit lease is used
    """
    chip = machine(queue.device, qc)
    body = await request.body()
    submission = await _read(request, queue, who, body, chip, tag)
    submission = _with_calibration(request, queue.device, submission)
    leases: ImplicitLeases = request.app.state.dialects["iqm"].leases
    async with leases.submitting(who, lease) as submitting:
        job, _ = await queue.submit(who, await submitting.lease(), submission)
        submitting.jobs.append(job)
    return job


async def _read(
    request: Request,
    queue: JobQueue,
    who: Identity,
    body: bytes,
    chip: Architecture,
    tag: str | None,
) -> Submission:
    """Read a submission; a large submission is read as in other dialects."""
    if len(body) <= large_bodies.LARGE_BYTES:
        return await asyncio.to_thread(_read_small, body, chip, tag)
    description = queue.device.description
    read_body = partial(
        large_bodies.read,
        body,
        "iqm",
        qubits=description.qubits,
        payloads=description.kinds,
        more=asdict(circuits.Reading(chip, tag)),
    )
    async with queue.reader.bodies.turn(who.user):
        await check_connected(request)
        return await large_bodies.in_turn(queue, body, read_body)


def _read_small(body: bytes, chip: Architecture, tag: str | None) -> Submission:
    try:
        content = parsed(body)
    except ValueError as error:
        raise Refused(400, "the body is not JSON") from error
    return circuits.read(content, chip, tag)


def _with_calibration(
    request: Request, device: Device, submission: Submission
) -> Submission:
    """Check the calibration set that a job requests.

    Every job runs with the current set; a job that requests an earlier set gets a message
    about this.
    """
    metadata = circuits.Metadata.of(submission)
    requested = metadata.calibration
    now = calibrations.calibration_set(device, device.description.calibration)
    if requested is None or requested == now:
        return submission
    if requested not in request.app.state.dialects["iqm"].calibrations:
        raise _calibration_not_found(str(requested))
    message = f"calibration set {requested} has been replaced: the job runs with the present one"
    kept = replace(metadata, messages=[message]).to_json()
    return replace(submission, metadata=kept)


@router.get("/jobs/{job_id}")
async def show_job(
    queue: Queue,
    who: Who,
    jobs: JobsDep,
    job_id: str,
    wait_until_terminal: bool = False,
    timeout_seconds: Annotated[
        int, Query(ge=0, le=LONGEST_WAIT_SECONDS)
    ] = WAIT_SECONDS,
) -> Response:
    """Show a job, or wait until it has ended."""
    job = jobs.find(who, job_id)
    headers = {}
    if wait_until_terminal and not job.final:
        job = await queue.wait(who, job.id, timeout_seconds)
        if not job.final:
            headers["IQM-Long-Poll-Timed-Out"] = "true"
    return JSONResponse(jobs.show(job), headers=headers)


@router.get("/jobs/{job_id}/payload")
async def payload(queue: Queue, who: Who, jobs: JobsDep, job_id: str) -> Response:
    """Return a job's circuits."""
    job = jobs.find(who, job_id)
    return await listed(queue, who, lambda: JSONResponse(jobs.payload(job)))


@router.get("/jobs/{job_id}/artifacts/{artifact}")
async def artifact(
    queue: Queue, who: Who, jobs: JobsDep, job_id: str, artifact: str
) -> Response:
    """Return a job's counts, or the reads of each shot."""
    job = jobs.find(who, job_id)
    if (make := ARTIFACTS.get(artifact)) is None or job.state != "Completed":
        detail = f"the job is {STATUSES[job.state]} and has no {artifact[:100]!r}"
        raise Coded(404, "job_artifact_not_found", detail)
    return await listed(
        queue, who, lambda: Response(make(jobs, job), media_type="application/json")
    )


@router.delete("/jobs/{job_id}", status_code=204)
async def delete(queue: Queue, who: Who, jobs: JobsDep, job_id: str) -> Response:
    """Cancel a job, and delete its circuits and its result."""
    await jobs.delete(who, jobs.find(who, job_id))
    return Response(status_code=204)


async def listed(queue: JobQueue, who: Identity, make: Callable[[], T]) -> T:
    """Make a large response off the event loop."""
    async with queue.reader.lists.turn(who.user):
        return await queue.reader.lists.run(make)


def _current_architecture(queue: JobQueue, qc: str, calibration: str) -> Architecture:
    """Return the architecture if the current calibration set is requested; else refuse."""
    device = queue.device
    chip = machine(device, qc)
    now = calibrations.calibration_set(device, device.description.calibration)
    if calibration not in ("default", now):
        raise _calibration_not_found(calibration)
    return chip


def _calibration_not_found(requested: str) -> Refused:
    detail = f"calibration set {requested[:100]} not found, or no longer present"
    return Coded(404, "calibration_set_not_found", detail)


def _health(queue: JobQueue) -> dict[str, JSON]:
    online = qpu_status(queue) == "online"
    updated = queue.device.calibrations.made
    return {
        "healthy": online,
        "updated_at": None if updated is None else architecture.time(updated),
    }


def _details(queue: JobQueue, chip: Architecture) -> dict[str, JSON]:
    device = queue.device
    status = qpu_status(queue)
    price = device.price
    return {
        "id": architecture.identity(device),
        "alias": device.name,
        "display_name": device.name,
        "description": qpu_reason(queue) or f"{len(chip.qubits)} qubits",
        "backend_type": "qpu",
        "number_of_qubits": len(chip.qubits),
        "pulla_enabled": False,
        # no pulse-level access: requests that bypass IQM's server are not supported
        "proxy_path": None,
        "operational_status": "online" if status == "online" else "maintenance",
        "health": _health(queue),
        "queue_length": queue.length,
        "limits": {
            "max_instructions_per_circuit": circuits.INSTRUCTIONS,
            "max_shots_per_circuit": device.description.shots or circuits.SHOTS,
            "max_circuits_per_job": circuits.CIRCUITS,
            "max_executions_per_job": circuits.EXECUTIONS,
            "max_queued_jobs_per_user": queue.settings.limits.jobs,
        },
        "pricing": {"payg_price_per_second": f"{price or 0:g}"},
        "additional_info": {
            "academy_url": "",
            "best_suited_for": [],
            "documentation_url": "",
            "mock_url": "",
        },
    }

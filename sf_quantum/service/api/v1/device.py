"""``/v1``: the device, its availability, and the health of the service."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from sf_quantum.service.api.common import qpu_reason, qpu_status
from sf_quantum.service.api.v1.models import (
    CalibrationAnswer,
    DeviceAnswer,
    DeviceChange,
    DriftAnswer,
    HealthAnswer,
    Message,
    TimingAnswer,
)
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import JobClass
from sf_quantum.service.http.dependencies import (
    ADMINS_ONLY,
    Admin,
    Queue,
    Who,
    refusals,
)
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store import audit

router = APIRouter(prefix="/v1", tags=["device"])
_ADMINS = refusals({403: ADMINS_ONLY})


@router.get("/health", summary="Show whether the service works")
async def health(queue: Queue) -> HealthAnswer:
    """Answer 200 while jobs can run, and 503 with the reason when they cannot.

    Needs no credential.
    """
    if queue.failure:
        raise Refused(503, queue.failure)
    return HealthAnswer(status="ok")


@router.get("/device", summary="Describe the device and how busy it is")
async def device(
    queue: Queue,
    who: Who,
    job_class: Annotated[
        JobClass | None,
        Query(
            alias="class", description="The class of a job that would be submitted now."
        ),
    ] = None,
) -> DeviceAnswer:
    """Show name, technology, size, leases, queue, calibration and time scale."""
    return show(queue, job_class, who.user)


@router.patch("/device", summary="Change the number of vQPUs", responses=_ADMINS)
async def change(body: DeviceChange, queue: Queue, who: Admin) -> DeviceAnswer:
    """Change how many leases may be held at once; leases that are held stay held."""
    old, new = {"vqpus": queue.leases.vqpus}, {"vqpus": body.vqpus}
    entry = audit.AuditEntry(who.user, "set vqpus", new, old, new)
    await audit.append(queue.store, entry)
    queue.leases.resize(body.vqpus)
    return show(queue)


@router.post("/device/open", summary="Open the QPU", responses=_ADMINS)
async def open_(queue: Queue, who: Admin) -> DeviceAnswer:
    """Let jobs start and leases be granted again."""
    await queue.availability.set_status("open", user=who.user)
    return show(queue)


@router.post("/device/close", summary="Close the QPU at once", responses=_ADMINS)
async def close(body: Message, queue: Queue, who: Admin) -> DeviceAnswer:
    """Refuse new jobs and leases, and stop the running job, which is queued again.

    Pending jobs and held leases stay.
    """
    await queue.availability.set_status("closed", body.message, user=who.user)
    return show(queue)


@router.post("/device/drain", summary="Drain the QPU", responses=_ADMINS)
async def drain(body: Message, queue: Queue, who: Admin) -> DeviceAnswer:
    """Refuse new jobs and leases, and let the running job end.

    Pending jobs and held leases stay.
    """
    await queue.availability.set_status("draining", body.message, user=who.user)
    return show(queue)


def show(
    queue: JobQueue, job_class: JobClass | None = None, user: str = ""
) -> DeviceAnswer:
    """Describe the device.

    :param job_class: of the job to forecast; the service's default if ``None``
    :param user: who would submit this job
    """
    device = queue.device
    job_class = job_class or queue.settings.classes.default
    forecast = queue.forecast_new(job_class, user)
    return DeviceAnswer(
        name=device.name,
        technology=device.technology,
        status=qpu_status(queue),
        reason=qpu_reason(queue),
        qubits=device.size,
        out_of_service=sorted(device.out_of_service),
        shots=device.shots,
        payloads=device.payloads,
        vqpus=queue.leases.vqpus,
        leases=len(queue.leases.held),
        leases_waiting=queue.leases.waiting,
        queue_length=queue.length,
        policy=queue.settings.policy.type,
        **{"class": job_class},
        position=forecast.position,
        eta_seconds=forecast.eta_seconds,
        cost_per_second=device.cost_per_second,
        maintenance=queue.availability.next_maintenance,
        calibration=CalibrationAnswer.model_validate(device.reading.summary),
        calibration_age_seconds=device.calibrations.age_seconds,
        drift=_drift(queue),
        timing=TimingAnswer(**asdict(device.timing), time_scale=device.time_scale),
    )


def _drift(queue: JobQueue) -> DriftAnswer:
    watch = queue.drift
    watch.look(queue.device)
    return DriftAnswer(
        alarms=watch.alarms,
        sums={
            name: max(cusum.above, cusum.below) for name, cusum in watch.sums.items()
        },
        threshold=watch.settings.threshold,
    )

"""``/v1``: the device, and what admins do with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

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
from sf_quantum.service.http.dependencies import Admin, Queue, Who, refusals
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store import audit

router = APIRouter(prefix="/v1", tags=["device"])
_ADMINS = refusals({403: "Only admins may."})


@router.get("/health", summary="Say whether the service works")
async def health(queue: Queue) -> HealthAnswer:
    """Answer 200 as long as jobs can run, 503 with the reason when they cannot.

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
        Query(alias="class", description="Of a job that would join now."),
    ] = None,
) -> DeviceAnswer:
    """Tell name, technology, size, leases, queue, calibration and time scale."""
    return show(queue, job_class, who.user)


@router.patch("/device", summary="Change the number of vQPUs", responses=_ADMINS)
async def change(body: DeviceChange, queue: Queue, who: Admin) -> DeviceAnswer:
    """Change how many leases may be held at once; those held now stay."""
    old, new = ({"vqpus": count} for count in (queue.leases.vqpus, body.vqpus))
    entry = audit.AuditEntry(who.user, "set vqpus", new, old, new)
    await audit.append(queue.store, entry)
    queue.leases.resize(body.vqpus)
    return show(queue)


@router.post("/device/open", summary="Open the QPU", responses=_ADMINS)
async def open_(queue: Queue, who: Admin) -> DeviceAnswer:
    """Let jobs and leases start again."""
    await queue.availability.set_status("open", user=who.user)
    return show(queue)


@router.post("/device/close", summary="Close the QPU at once", responses=_ADMINS)
async def close(body: Message, queue: Queue, who: Admin) -> DeviceAnswer:
    """Take nothing more, and stop the running job, which will run again.

    Waiting jobs and leases stay.
    """
    await queue.availability.set_status("closed", body.message, user=who.user)
    return show(queue)


@router.post("/device/drain", summary="Drain the QPU", responses=_ADMINS)
async def drain(body: Message, queue: Queue, who: Admin) -> DeviceAnswer:
    """Take nothing more, and let the running job end.

    Waiting jobs and leases stay.
    """
    await queue.availability.set_status("draining", body.message, user=who.user)
    return show(queue)


def show(
    queue: JobQueue, job_class: JobClass | None = None, user: str = ""
) -> DeviceAnswer:
    """Show the device.

    :param job_class: of a job that would join now
    :param user: whose it would be
    """
    described = queue.device
    job_class = job_class or queue.settings.classes.default
    forecast = queue.forecast_new(job_class, user)
    status = "online" if queue.availability.is_open else queue.availability.status
    return DeviceAnswer(
        name=described.name,
        technology=described.technology,
        status="offline" if queue.failure else status,
        reason=queue.failure or queue.availability.reason,
        qubits=described.size,
        out_of_service=sorted(described.out_of_service),
        shots=described.shots,
        payloads=described.payloads,
        vqpus=queue.leases.vqpus,
        leases=len(queue.leases.held),
        leases_waiting=queue.leases.waiting,
        queue_length=queue.length,
        policy=queue.settings.policy.type,
        **{"class": job_class},
        position=forecast.position,
        eta_seconds=forecast.eta_seconds,
        cost_per_second=described.cost_per_second,
        maintenance=queue.availability.next_maintenance,
        calibration=CalibrationAnswer.model_validate(described.reading.told),
        calibration_age_seconds=described.calibrations.age_seconds,
        drift=_drift(queue),
        timing=TimingAnswer(
            **asdict(described.timing), time_scale=described.time_scale
        ),
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

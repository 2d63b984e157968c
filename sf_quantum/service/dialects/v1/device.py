"""``/v1``: the device, its availability, and the health of the service."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sf_quantum.service.device.emulator.circuits.circuit import (
    MAX_BITS,
    MAX_CHARACTERS,
    MAX_STATEMENTS,
    MAX_STEPS,
)
from sf_quantum.service.device.interface import Cost, Device
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.dialects.common import (
    ADMINS_ONLY,
    EVERYWHERE,
    Admin,
    Queue,
    Who,
    qpu_reason,
    qpu_status,
    refusal,
)
from sf_quantum.service.dialects.v1.models import CalibrationAnswer, Strict
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import JobClass, Kind
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.upkeep.readiness import Readiness
from sf_quantum.service.store import audit

router = APIRouter(prefix="/v1", tags=["device"], responses=EVERYWHERE)
# maximum number of variables, and of reads, in a query about a possible job
MAX_ASKED = 10**9


# a list: not all readers of the OpenAPI document support the kind of array of a tuple
Pair: TypeAlias = Annotated[list[int], Field(min_length=2, max_length=2)]


class TimingAnswer(Strict):
    """The device's model of times: modelled seconds per job, shot, and read-out of a shot."""

    setup_seconds: float
    shot_seconds: float
    readout_seconds: float
    time_scale: float = Field(description="Seconds waited per modelled second.")


class DriftAnswer(Strict):
    """Whether the device drifts from its usual errors."""

    alarms: list[str] = Field(
        description="The values that drift, until the calibration is renewed."
    )
    sums: dict[str, float] = Field(
        description="The larger of the two CUSUMs (cumulative sums) of each value, in "
        "standard deviations of this value."
    )
    threshold: float = Field(
        description="An alarm is raised if a sum exceeds this value."
    )


class BoundsAnswer(Strict):
    """Bounds of a job; a larger job is refused, or fails while it is computed."""

    values: int = Field(
        description="Shots times variables, atoms or classical bits of a job."
    )
    updates: int = Field(
        description="Reads times sweeps times interactions of a problem, where a "
        "variable counts as 50 interactions."
    )
    evolution: int = Field(
        description="Work to simulate a sequence: `(A + 64) * (T + 3 * R)`, where A is the "
        "number of amplitudes (2 or 3 to the power of the number of atoms), T is the duration "
        "in nanoseconds, and R is the angle in radians by which the sequence may turn a "
        "state. Above 14 atoms, the work is `N * T * (18000 + 0.4 * B**3)`, where N is the "
        "number of atoms and B is `bond_dimension`."
    )
    characters: int = Field(description="Characters of all circuits of a job.")
    statements: int = Field(description="Statements of all circuits of a job.")
    bits: int = Field(description="Bits of a circuit.")
    gates: int = Field(
        description="Gates and measurements of a circuit, including those in each use "
        "of a gate that the circuit defines."
    )
    circuits: int = Field(description="Circuits of a job.")
    gate_shots: int = Field(
        description="Shots times gates and measurements of all circuits of a job."
    )
    bond_dimension: int = Field(
        description="Bond dimension of the matrix-product states with which circuits "
        "of many qubits, and sequences of many atoms, are simulated; "
        "larger bonds are truncated."
    )
    cpu_seconds: int = Field(description="CPU time of the computation of a job.")
    memory_gib: float = Field(description="Memory of the computation of a job, in GiB.")


class LimitsAnswer(Strict):
    """Limits for each user; null: no limit."""

    jobs: int | None = Field(description="Pending and running jobs.")
    run_seconds: float | None = Field(
        description="Expected time of a job from its start to its end."
    )
    leases: int = Field(description="Leases that are held or waited for.")
    body_mib: float = Field(description="The body of a submission, in MiB.")
    pending_mib: float | None = Field(
        description="Payloads of pending and running jobs, in MiB."
    )
    kept_mib: float | None = Field(
        description="Payloads and results of ended jobs, in MiB; above this size, the "
        "oldest of these jobs are deleted."
    )


class ReservationAnswer(Strict):
    """A reservation that leases may name; times are seconds since the epoch."""

    name: str = Field(description="The vendor's name for the reservation.")
    starts: float | None = Field(
        description="Start of the reserved time that is current, or otherwise of the "
        "next; null if none is booked."
    )
    ends: float | None = Field(description="End of this reserved time.")


class DeviceAnswer(Strict):
    """The device and how busy it is."""

    name: str
    technology: str
    status: str = Field(description="online, draining, closed or offline")
    reason: str = Field(
        description="Why the device is not online; empty if it is online."
    )
    trouble: str = Field(
        description="A problem that impairs the device although it is online, such as "
        "invalid answers of its vendor; empty if there is none."
    )
    qubits: int = Field(
        description="Number of variables of the largest possible problem."
    )
    out_of_service: list[int] = Field(description="Qubits that are out of service.")
    native_gates: list[str] = Field(
        description="The gates that circuits may have, on the couplers of the topology; "
        "empty if any gate may be on any qubits."
    )
    shots: int | None = Field(
        description="Largest number of shots of a job; null: no limit."
    )
    payloads: list[Kind] = Field(description="The payloads that a job may have.")
    reservations: list[ReservationAnswer] = Field(
        description="The reservations that a lease may name."
    )
    vqpus: int = Field(description="How many leases may be held at once.")
    leases: int = Field(description="How many leases are held.")
    leases_waiting: int = Field(description="Pending requests for a lease.")
    queue_length: int = Field(description="Number of pending and running jobs.")
    policy: str = Field(description="The name of the scheduling policy.")
    job_class: JobClass = Field(
        alias="class",
        description="The class to which `position` and `eta_seconds` apply.",
    )
    position: int = Field(
        description="Number of jobs that would run before a job that is submitted "
        "now."
    )
    eta_seconds: float | None = Field(
        description="Seconds until the expected start of such a job, including "
        "maintenance; null while it is unknown when the QPU opens or is "
        "online again."
    )
    job_qpu_seconds: float = Field(
        description="Expected `qpu_seconds` of a job with the requested numbers of "
        "variables and reads, by default one read."
    )
    job_run_seconds: float = Field(
        description="Expected seconds from the start to the end of this job, with the "
        "device's time scale and the service's own time."
    )
    cost_per_second: float | None = Field(
        description="Price of a second of QPU time, in the site's unit; null if the "
        "QPU has no price."
    )
    maintenance: float | None = Field(
        description="When the next maintenance window starts, seconds since the epoch."
    )
    maintenance_seconds: float | None = Field(
        description="Seconds until the next maintenance window starts."
    )
    calibration: CalibrationAnswer | None = Field(
        description="Null if the device does not report it."
    )
    calibration_age_seconds: float | None = Field(
        description="Seconds since the calibration; null if the time of the "
        "calibration is unknown."
    )
    drift: DriftAnswer
    timing: TimingAnswer | None = Field(
        description="Null if the device does not report it."
    )
    bounds: BoundsAnswer | None = Field(
        description="Null if the service does not compute jobs itself."
    )
    limits: LimitsAnswer


class TopologyAnswer(Strict):
    """The working graph of the device, without qubits that are out of service."""

    kind: str = Field(
        description="Kind of the graph, such as pegasus, zephyr or square."
    )
    shape: list[int] = Field(
        description="Parameters of the graph, in the vendor's notation."
    )
    labels: int = Field(
        description="Upper bound of the qubit numbers, some of which are unused."
    )
    couplers: list[Pair] = Field(
        description="Sorted pairs of qubits, lower number first."
    )


class DeviceChange(Strict):
    """Settings that an admin may change until the next start of the service."""

    vqpus: int = Field(
        ge=1,
        le=10_000,
        strict=True,
        description="Number of leases that may be held at once. Leases that are "
        "already held do not end.",
    )


class Message(Strict):
    """The message for requests that are refused."""

    message: str = Field(default="", max_length=1000)


class HealthAnswer(Strict):
    """Whether the service works."""

    status: str


@router.get("/health", summary="Show whether the service works")
async def health(queue: Queue) -> HealthAnswer:
    """Respond with 200 while the queue works, even if the QPU is drained or closed.

    Respond with 503 and the reason if the queue broke or is being stopped. The request needs
    no credential.
    """
    if queue.failure:
        raise Refused(503, queue.failure)
    return HealthAnswer(status="ok")


@router.get("/health/live", summary="Show whether the service runs")
async def live() -> HealthAnswer:
    """Respond with 200 if the service responds at all. The request needs no credential."""
    return HealthAnswer(status="ok")


@router.get("/health/ready", summary="Show whether the service takes work")
async def ready(request: Request) -> HealthAnswer:
    """Respond with 200 if jobs can be submitted and run; otherwise with 503 and the reason.

    The service tests a write to its state, the free space there, the background tasks, the
    QPU's status, and whether the tokens file can be read. It tests at most every 2 s, so a
    response may be 2 s old. The request needs no credential.
    """
    readiness: Readiness = request.app.state.readiness
    if (why := await readiness.problem()) is not None:
        raise Refused(503, why)
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
    variables: Annotated[
        int | None,
        Query(
            ge=1, le=MAX_ASKED, description="Number of variables of this job's problem."
        ),
    ] = None,
    reads: Annotated[
        int, Query(ge=1, le=MAX_ASKED, description="Number of reads of this job.")
    ] = 1,
) -> DeviceAnswer:
    """Show name, technology, size, leases, queue, calibration and time scale.

    Position, ETA and expected times are given for a job that would be submitted now.
    """
    return show(queue, job_class, who.user, variables=variables, reads=reads)


@router.get(
    "/device/topology",
    summary="Show the device's graph",
    response_model=TopologyAnswer,
    responses={404: refusal("The device does not report a graph.")},
)
def topology(queue: Queue, _: Who) -> Response:
    """List the couplers of an annealer or of a gate-based device, up to about 40,000."""
    if (topology := queue.device.description.topology) is None:
        raise Refused(404, "this device tells no graph")
    # FastAPI runs this function in a thread. The response is written without the model, which
    # would check each of the many couplers.
    content = {name: getattr(topology, name) for name in TopologyAnswer.model_fields}
    return Response(json.dumps(content), media_type="application/json")


@router.patch(
    "/device", summary="Change the number of vQPUs", responses={403: ADMINS_ONLY}
)
async def change(body: DeviceChange, queue: Queue, who: Admin) -> DeviceAnswer:
    """Change the number of leases that may be held at the same time; no held lease ends."""
    old, new = {"vqpus": queue.vqpus.number}, {"vqpus": body.vqpus}
    entry = audit.AuditEntry(who.user, "set vqpus", new, old, new)
    await audit.append(queue.store, entry)
    queue.vqpus.resize(body.vqpus)
    return show(queue)


@router.post("/device/open", summary="Open the QPU", responses={403: ADMINS_ONLY})
async def open_(queue: Queue, who: Admin) -> DeviceAnswer:
    """Allow jobs to start and leases to be granted again."""
    await queue.availability.set_status("open", user=who.user)
    return show(queue)


@router.post(
    "/device/close", summary="Close the QPU at once", responses={403: ADMINS_ONLY}
)
async def close(body: Message, queue: Queue, who: Admin) -> DeviceAnswer:
    """Refuse new jobs and leases, and stop the running job, which is queued again.

    Pending jobs and held leases stay.
    """
    await queue.availability.set_status("closed", body.message, user=who.user)
    return show(queue)


@router.post("/device/drain", summary="Drain the QPU", responses={403: ADMINS_ONLY})
async def drain(body: Message, queue: Queue, who: Admin) -> DeviceAnswer:
    """Refuse new jobs and leases, and let the running job end.

    Pending jobs and held leases stay.
    """
    await queue.availability.set_status("draining", body.message, user=who.user)
    return show(queue)


def show(
    queue: JobQueue,
    job_class: JobClass | None = None,
    user: str = "",
    *,
    variables: int | None = None,
    reads: int = 1,
) -> DeviceAnswer:
    """Describe the device.

    :param job_class: class of the job to forecast; ``None``: the service's default class
    :param user: user who would submit the job
    :param variables: number of variables of the job
    :param reads: number of reads of the job
    """
    device, watch = queue.device, queue.drift
    description = device.description
    watch.add_readings(device)
    job_class = job_class or queue.settings.classes.default
    forecast = queue.forecasts.of_new(job_class, user, variables=variables, reads=reads)
    return DeviceAnswer(
        name=device.name,
        technology=description.technology,
        status=qpu_status(queue),
        reason=qpu_reason(queue),
        trouble=device.status.trouble,
        qubits=description.qubits,
        out_of_service=sorted(description.out_of_service),
        native_gates=[*description.native_gates],
        shots=description.shots,
        payloads=[*description.kinds],
        reservations=[
            ReservationAnswer(
                name=name,
                starts=None if reserved is None else reserved.starts,
                ends=None if reserved is None else reserved.ends,
            )
            for name, reserved in device.reservations.items()
        ],
        vqpus=queue.vqpus.number,
        leases=len(queue.leases.held),
        leases_waiting=queue.leases.waiting,
        queue_length=queue.length,
        policy=queue.settings.policy.type,
        **{"class": job_class},
        position=forecast.position,
        eta_seconds=forecast.eta_seconds,
        job_qpu_seconds=forecast.expected_seconds,
        job_run_seconds=forecast.expected_run_seconds,
        cost_per_second=device.price,
        maintenance=queue.availability.next_maintenance,
        maintenance_seconds=queue.availability.maintenance_seconds,
        calibration=_calibration(device),
        calibration_age_seconds=device.calibrations.age_seconds,
        drift=DriftAnswer(
            alarms=watch.alarms,
            sums={
                name: max(cusum.above, cusum.below)
                for name, cusum in watch.sums.items()
            },
            threshold=watch.settings.threshold,
        ),
        timing=_timing(device),
        bounds=_bounds(device.compute_limits),
        limits=LimitsAnswer(
            **queue.settings.limits.model_dump(include={*LimitsAnswer.model_fields})
        ),
    )


def _calibration(device: Device) -> CalibrationAnswer | None:
    if device.description.calibration is None:
        return None
    calibration = device.calibrations.data
    return CalibrationAnswer(
        id=calibration.id,
        time=calibration.time or None,
        values=calibration.values,
    )


def _timing(device: Device) -> TimingAnswer | None:
    timing = device.description.timing
    if timing is None:
        return None
    scale = device.elapsed_seconds(Cost(1.0))
    return TimingAnswer(**asdict(timing), time_scale=scale)


def _bounds(limits: ComputeLimits | None) -> BoundsAnswer | None:
    if limits is None:
        return None
    return BoundsAnswer(
        **limits.model_dump(),
        characters=MAX_CHARACTERS,
        statements=MAX_STATEMENTS,
        bits=MAX_BITS,
        gates=MAX_STEPS,
    )

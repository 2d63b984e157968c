"""The status and the description of a service's QPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, get_args

from sf_quantum import structs
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON, MAX_NUMBER
from sf_quantum.protocol.calibrations import CalibrationData, calibration_id
from sf_quantum.protocol.descriptions import Description, Timing, Topology
from sf_quantum.protocol.tasks import Kind
from sf_quantum.protocol.values import Amount, Count, Size, count
from sf_quantum.qpu import JobSize, QpuStatus
from sf_quantum.qpu.sfq.service_client import (
    LARGE_SECONDS,
    ServiceClient,
    read_answer,
)
from sf_quantum.structs import expected

KINDS: tuple[Kind, ...] = get_args(Kind)


def _timing(value: JSON) -> Timing:
    timing = structs.read(Timing, value)
    if min(vars(timing).values()) < 0:
        raise expected("times of 0 or more", value)
    return timing


@dataclass(frozen=True)
class _Device:
    """The service's answer about its QPU."""

    name: str
    technology: str
    status: str
    reason: str = ""
    trouble: str = ""
    qubits: Size = 0
    vqpus: Size = 0
    leases: Size = 0
    queue_length: Size = 0
    position: Size = 0
    shots: Count = None
    eta_seconds: Amount = None
    cost_per_second: Amount = None
    maintenance_seconds: Amount = None
    job_qpu_seconds: Amount = None
    job_run_seconds: Amount = None
    payloads: tuple[str, ...] = ()
    out_of_service: frozenset[int] = frozenset()
    native_gates: tuple[str, ...] = ()
    timing: Annotated[Timing | None, _timing] = None
    calibration: CalibrationData | None = None


def _device(service: ServiceClient, query: str = "") -> _Device:
    answer = service.send("GET", f"/v1/device{query}").json()
    return read_answer(service.name, _Device, answer, "a device")


def status(service: ServiceClient, size: JobSize | None) -> QpuStatus:
    """See :meth:`Qpu.status`; the request is not repeated: callers report a missing answer.

    :param size: size of the job whose cost is requested
    """
    query = ""
    if size is not None:
        query = f"?reads={size.reads}"
        query += f"&variables={size.variables}" if size.variables else ""
    device = _device(service, query)
    # Without a size in the request, the service assumes a job of one read.
    is_sized = size is not None
    return QpuStatus(
        name=device.name,
        technology=device.technology,
        online=device.status == "online",
        reason=device.reason,
        trouble=device.trouble,
        qubits=device.qubits,
        vqpus=device.vqpus,
        leases=device.leases,
        queue_length=device.queue_length,
        calibration=calibration_id(device.calibration) or None,
        eta_seconds=device.eta_seconds,
        position=device.position,
        cost_per_second=device.cost_per_second,
        maintenance_seconds=device.maintenance_seconds,
        payloads=device.payloads,
        job_qpu_seconds=device.job_qpu_seconds if is_sized else None,
        job_run_seconds=device.job_run_seconds if is_sized else None,
    )


def description(service: ServiceClient) -> Description:
    """See :meth:`Qpu.describe`."""
    device = _device(service)
    kinds = tuple(kind for kind in KINDS if kind in device.payloads)
    specs = None
    if {"sequence", "photonic"} & {*kinds}:  # only warden's API has these specs
        send = partial(service.send, timeout_seconds=LARGE_SECONDS)
        specs = service.text(send("GET", "/qpu/specs").json(), "specs")
    return Description(
        device.technology,
        device.qubits,
        kinds,
        out_of_service=device.out_of_service,
        shots=device.shots,
        timing=device.timing,
        calibration=device.calibration,
        topology=_topology(service),
        specs=specs,
        native_gates=device.native_gates,
    )


def _topology(service: ServiceClient) -> Topology | None:
    send = partial(service.send, timeout_seconds=LARGE_SECONDS)
    response = send("GET", "/v1/device/topology", expected=(404,))
    if response.status == 404:
        return None
    try:
        graph = response.json()
        return Topology(
            service.text(graph, "kind"),
            tuple(map(_whole, _list(graph.get("shape")))),
            count(graph.get("labels")) or 0,
            tuple(map(_pair, _list(graph.get("couplers")))),
        )
    except ValueError as error:
        message = f"{service.name}: the device's graph is malformed: {error}"
        raise QpuError(message) from error


def _list(value: JSON) -> list[JSON]:
    if not isinstance(value, list):
        raise ValueError("no list of couplers, or no shape")
    return value


def _whole(value: JSON) -> int:
    if (whole := count(value)) is None:
        raise ValueError("a qubit or a size is not a whole number")
    return whole


def _pair(coupler: JSON) -> tuple[int, int]:
    match coupler:
        # An annealer has tens of thousands of couplers: calls per qubit would be too slow.
        case [one, other] if type(one) is type(other) is int:
            if 0 <= one <= MAX_NUMBER and 0 <= other <= MAX_NUMBER:
                return one, other
    raise ValueError("a coupler is not a pair of qubits")

"""IQM's QPUs, behind an IQM Server: circuits of ``prx`` and ``cz``.

The driver's side uses QRMI. Jobs are sent to IQM's own API in the format of QRMI's client, but
not with this client, which waits for half a minute in each request about a job, even before it
cancels a job, and does not report the billed time, the queue position or the calibration.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Self
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    Field,
    TypeAdapter,
    model_validator,
)

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, MAX_NUMBER, parse_json
from sf_quantum.net.transport import Client
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description, Topology
from sf_quantum.protocol.leases import LeaseHints, ReservedTime
from sf_quantum.protocol.tasks import (
    OVER,
    Kind,
    Outcome,
    Progress,
    Result,
    State,
    Task,
    WrongAnswer,
)
from sf_quantum.protocol.values import check_about, count, number
from sf_quantum.qpu import AuthenticationError, LeaseTooLate, NoLease
from sf_quantum.qpu.environment import TOKEN
from sf_quantum.qpu.native_circuits import NativeCircuit, number_of, read
from sf_quantum.qpu.vendors.qrmi import Gates
from sf_quantum.qpu.vendors.rest import RestApi
from sf_quantum.qpu.vendors.variables import IQM_ENDPOINT, IQM_TOKEN
from sf_quantum.text import one_line, utc

if TYPE_CHECKING:
    from sf_quantum.samplers.qaoa import CircuitRunner

# statuses after which IQM has no job, and another attempt may succeed: the first from any
# sender; the others only from IQM itself, since a proxy sends them after a lost connection
NOT_ACCEPTED, NOT_ACCEPTED_BY_IQM = (425, 429), (408, 503)
STATES: Mapping[str, State] = {
    "waiting": "Queued",
    "processing": "Running",
    "completed": "Completed",
    "failed": "Failed",
    "cancelled": "Cancelled",
}
# the error code of a cancellation if the job has already finished
OVER_ALREADY = "illegal_job_status"
# IQM's only reservation: a time that the account has booked, in which its jobs run. The token
# of a lease with this reservation begins with this word, so that the job's side knows of it.
TIMESLOT = "timeslot"
# the error code of a job that is rejected since its account has booked no timeslot
NO_TIMESLOT = "no_booked_timeslots"
# Assumed maximum length of a timeslot in seconds. The requested time range begins this long
# ago, since IQM does not document whether it lists timeslots that began before the range.
LONGEST_TIMESLOT = 86400.0
# values of a calibration set, by our names: beginning and end of IQM's name, and the factor
# that converts an average infidelity to a depolarising error, or 0 for values to keep
OBSERVED: Mapping[str, tuple[str, str, float]] = {
    "readout_false_one": ("metrics.ssro.measure.", ".error_0_to_1", 0.0),
    "readout_false_zero": ("metrics.ssro.measure.", ".error_1_to_0", 0.0),
    "gate_error_one_qubit": ("metrics.rb.prx.", ".fidelity", 2.0),
    "gate_error_two_qubits": ("metrics.irb.cz.", ".fidelity", 4 / 3),
    "t1_seconds": ("characterization.model.QB", ".t1_time", 0.0),
    "t2_seconds": ("characterization.model.QB", ".t2_time", 0.0),
}

# Invalid times and counts are read as if they were missing.
Amount = Annotated[float | None, BeforeValidator(number)]
Count = Annotated[int | None, BeforeValidator(count)]


def _moment(time: datetime) -> datetime:
    """Return a time in UTC; its year may be out of range there."""
    try:
        return time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("no year of four digits in UTC") from error


Moment = Annotated[AwareDatetime, AfterValidator(_moment)]


class _Submitted(BaseModel):
    id: str


class _Message(BaseModel):
    message: str


class _Compilation(BaseModel):
    calibration_set_id: str | None = None


class _Job(BaseModel):
    id: str | None = None
    status: str
    queue_position: Count = None
    runtime_ms: Amount = None
    compilation: _Compilation | None = None
    errors: list[_Message] | None = None
    messages: list[_Message] | None = None


class _Measurement(BaseModel):
    measurement_keys: list[str]
    counts: dict[str, Annotated[int, Field(strict=True, ge=0, le=MAX_NUMBER)]]


class _Limits(BaseModel):
    max_shots_per_circuit: Count = None


class _Timeslot(BaseModel):
    start: Moment
    end: Moment

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.end < self.start:
            raise ValueError("the timeslot ends before it begins")
        return self


class _Timeslots(BaseModel):
    booked_slots: list[_Timeslot]


class _Computer(BaseModel):
    limits: _Limits | None = None


class _Implementation(BaseModel):
    loci: list[list[str]]


class _Gate(BaseModel):
    implementations: dict[str, _Implementation]


class _Gates(BaseModel):
    cz: _Gate


class _Architecture(BaseModel):
    calibration_set_id: str
    qubits: list[str]
    computational_resonators: list[str] | None = None
    gates: _Gates


class _AllQubits(BaseModel):
    qubits: list[str] = []


class _Observation(BaseModel):
    dut_field: str
    value: Amount = None


class _Metrics(BaseModel):
    created_timestamp: str | None = None
    observations: list[_Observation] = []


class IqmServer(Gates):
    """An IQM QPU or IQM's cloud; tested against our service, which implements IQM's API."""

    type = "iqm-server"
    solving = ("qiskit", "scipy")
    extra = "iqm"
    kinds: ClassVar[tuple[Kind, ...]] = ("circuit",)
    url_variable = IQM_ENDPOINT
    reservations = (TIMESLOT,)
    # The hints of leases with a reservation; ``None`` for other leases.
    _reserving: LeaseHints | None = None

    def with_hints(self, hints: LeaseHints) -> Self:
        """See :meth:`Qpu.with_hints`; a lease with a timeslot is granted during a timeslot."""
        super().with_hints(hints)
        if not hints.reservation:
            return self
        hinted = type(self)(self._resource)
        hinted._reserving = hints
        return hinted

    def acquire(self, job: str | None = None) -> str:
        """See :meth:`Qpu.acquire`; QRMI's client sends no request to IQM."""
        if self._reserving is None:
            return super().acquire(job)
        reserved = self.reserved_time(TIMESLOT)
        if reserved is None:
            detail = "no timeslot is booked: book one at IQM, or omit the reservation"
            raise InputError(f"{self._who}: {detail}")
        if reserved.starts > time.time():
            detail = f"the next booked timeslot begins at {utc(reserved.starts)}"
            latest = self._reserving.latest_start
            if latest is not None and latest < reserved.starts:
                detail = f"not granted by {utc(latest)}: {detail}"
                raise LeaseTooLate(f"{self._who}: {detail}")
            raise NoLease(f"{self._who}: {detail}")
        return f"{TIMESLOT}-{super().acquire(job)}"

    def reserved_time(self, reservation: str) -> ReservedTime | None:
        """See :meth:`Qpu.reserved_time`; timeslots without a gap are merged."""
        now = time.time()
        since = datetime.fromtimestamp(now - LONGEST_TIMESLOT, UTC)
        path = f"/quantum-computers/{self._alias}/timeslots"
        start = quote(f"{since:%Y-%m-%dT%H:%M:%SZ}")
        answer = self._api.send(
            "GET", f"{path}?timerange_start={start}", expected=(404,)
        )
        if answer.status == 404:
            raise InputError(f"{self._api.reason(answer)} (asked for its timeslots)")
        listed = self._api.checked(_Timeslots, answer).booked_slots
        times = sorted((one.start.timestamp(), one.end.timestamp()) for one in listed)
        reserved: ReservedTime | None = None
        for starts, ends in times:
            if reserved is not None and starts <= reserved.ends:
                reserved = replace(reserved, ends=max(ends, reserved.ends))
            elif reserved is None or reserved.ends <= now:
                reserved = ReservedTime(starts, ends)
        return None if reserved is None or reserved.ends <= now else reserved

    @cached_property
    def _api(self) -> RestApi:
        environment = self._resource.environment
        for key in (IQM_ENDPOINT, IQM_TOKEN):
            if not environment.get(key):
                raise InputError(f"{self._who}: {key} is missing")
        token = {"Authorization": f"Bearer {environment[IQM_TOKEN]}"}
        client = Client(f"{environment[IQM_ENDPOINT]}/api/v1", token)
        return RestApi(
            self.name,
            client,
            nothing_done=NOT_ACCEPTED,
            its_own=NOT_ACCEPTED_BY_IQM,
            reason="message",
            code="error_code",
        )

    @property
    def _alias(self) -> str:
        """The QPU's name at IQM; QRMI's names have an underscore instead of the colon."""
        before, _, after = self.name.rpartition("_")
        return quote(f"{before}:{after}" if before else after, safe=":")

    def _runner(self) -> CircuitRunner:
        from sf_quantum.qpu.circuit_runner import JobRunner

        return JobRunner(self)

    def describe(self) -> Description:
        """See :meth:`Qpu.describe`; read from the architecture and the current calibration."""
        computer = self._api.get(_Computer, f"/quantum-computers/{self._alias}")
        path = f"/calibration-sets/{self._alias}/default"
        present = self._api.get(_Architecture, f"{path}/dynamic-quantum-architecture")
        metrics = self._api.get(_Metrics, f"{path}/metrics")
        if present.computational_resonators:
            detail = "its qubits are coupled by resonators, which circuits cannot name"
            raise InputError(f"{self._who}: {detail}")
        try:
            qubits = {*map(_number, present.qubits)}
            every = qubits | {*map(_number, self._all_qubits())}
            pairs = {
                (min(pair), max(pair))
                for one in present.gates.cz.implementations.values()
                for locus in one.loci
                for pair in [[*map(_number, locus)]]
            }
        except ValueError as error:
            text = f"{self._who}: its architecture cannot be read: {error}"
            raise QpuError(text) from error
        limits = computer.limits or _Limits()
        return Description(
            self.technology,
            len(qubits),
            self.kinds,
            frozenset(every - qubits),
            limits.max_shots_per_circuit or None,
            calibration=_calibration(present.calibration_set_id, metrics),
            topology=Topology(
                "iqm", (), 1 + max(every, default=-1), tuple(sorted(pairs))
            ),
            native_gates=("r", "cz"),
        )

    def _all_qubits(self) -> list[str]:
        """Get the names of all qubits, even those out of service; empty on some servers."""
        path = f"/quantum-computers/{self._alias}/artifacts"
        answer = self._api.send(
            "GET", f"{path}/static-quantum-architectures", expected=(404,)
        )
        if answer.status == 404:
            return []
        listed = self._api.checked(list[_AllQubits], answer)
        return listed[0].qubits if listed else []

    @classmethod
    def check(cls, kind: Kind, content: JSON) -> None:
        if kind == "circuit":
            read(content)

    def submit(self, task: Task) -> str:
        """See :meth:`Qpu.submit`; the vendor keeps the tag, but cannot look up jobs by tag."""
        circuits = read(parse_json(task.payload))
        job: dict[str, JSON] = {
            "circuits": [
                _circuit(str(index), circuit) for index, circuit in enumerate(circuits)
            ],
            "shots": task.shots,
        }
        token = self._resource.environment.get(TOKEN, "")
        booked = task.reservation == TIMESLOT or token.startswith(f"{TIMESLOT}-")
        flag = json.dumps(booked)
        path = f"/jobs/{self._alias}/circuit?use_timeslot={flag}&tag={quote(task.tag)}"
        answer = self._api.send("POST", path, job, expected=(403, 404))
        code = answer.json().get("error_code")
        if answer.status == 404 or (answer.status == 403 and code == NO_TIMESLOT):
            raise InputError(self._api.reason(answer))
        if answer.status == 403:
            raise AuthenticationError(self._api.reason(answer))
        return self._api.checked(_Submitted, answer).id

    def poll(self, job_id: str) -> Progress:
        job = self._job(job_id)
        return Progress(self._state(job), job.queue_position)

    def result(self, job_id: str, task: Task) -> Outcome:
        """See :meth:`Qpu.result`; the QPU time is the run time that the vendor reports."""
        job = self._job(job_id)
        state = self._state(job)
        if state not in OVER:
            raise QpuError(f"{self._who}: job {job_id} is {state}")
        seconds = None if job.runtime_ms is None else job.runtime_ms / 1000
        compiled = job.compilation and job.compilation.calibration_set_id
        calibration = CalibrationData(compiled) if compiled else None
        result, failure = None, None
        if state == "Failed":
            failure = _joined(job.errors) or "no reason given"
        elif state == "Completed":
            path = f"/jobs/{quote(job_id)}/artifacts/measurement_counts"
            content = parse_json(task.payload)
            several = number_of(content)
            answer = self._api.send("GET", path, result_of=task)
            counters = self._counters(answer.body, read(content))
            text = {"counters": counters} if several else {"counter": counters[0]}
            info: dict[str, JSON] = {
                "qpu": self.name,
                "technology": self.technology,
                "job": job_id,
                **({"calibration": {"id": compiled}} if compiled else {}),
            }
            result = Result(json.dumps(text), info)
        return Outcome(
            result,
            failure,
            seconds,
            calibration=calibration,
            note=_joined(job.messages),
        )

    def cancel(self, job_id: str) -> None:
        path = f"/jobs/{quote(job_id)}/cancel"
        answer = self._api.send("POST", path, expected=(403, 404))
        code = answer.json().get("error_code")
        if answer.status == 403 and code != OVER_ALREADY:
            raise AuthenticationError(self._api.reason(answer))

    def _job(self, job_id: str) -> _Job:
        job = self._api.get(_Job, f"/jobs/{quote(job_id)}")
        check_about(self._who, job.id, job_id)
        return job

    def _state(self, job: _Job) -> State:
        if (state := STATES.get(job.status)) is None:
            raise QpuError(f"{self._who}: unknown state {job.status[:40]!r}")
        return state

    def _counters(
        self, body: bytes, circuits: Sequence[NativeCircuit]
    ) -> list[dict[str, int]]:
        """Read the counts of each circuit, with the last bit first as in Qiskit."""
        try:
            content = parse_json(body)
            measurements = TypeAdapter(list[_Measurement]).validate_python(content)
            pairs = zip(measurements, circuits, strict=True)
            return [_counter(one, circuit) for one, circuit in pairs]
        except ValueError as error:
            message = f"{self._who}: its answer has no counts of bit strings"
            raise WrongAnswer(message, body.decode(errors="replace")) from error


def _circuit(name: str, circuit: NativeCircuit) -> dict[str, JSON]:
    """Convert a circuit like IQM's clients; a measurement's key is ``m_BITS_BIT``."""
    instructions: list[JSON] = []
    for one in circuit.operations:
        args: dict[str, JSON] = dict(zip(("angle", "phase"), one.values, strict=False))
        if one.name == "measure":
            args["key"] = f"m_{circuit.bits}_{one.bit}"
        locus: list[JSON] = [f"QB{qubit + 1}" for qubit in one.qubits]
        instructions.append({"name": one.name, "locus": locus, "args": args})
    return {"name": f"circuit_{name}", "instructions": instructions}


def _counter(measurement: _Measurement, circuit: NativeCircuit) -> dict[str, int]:
    """Read the counts of a circuit; bits that the circuit does not measure are 0."""
    keys = [key.split("_") for key in measurement.measurement_keys]
    bits = circuit.bits
    places = [bits - 1 - int(bit) for _, _, bit in keys]
    measured = {one.bit for one in circuit.operations if one.name == "measure"}
    expected = sorted(bits - 1 - bit for bit in measured)
    if {int(size) for _, size, _ in keys} != {bits} or sorted(places) != expected:
        raise ValueError("not of this circuit")
    counter: dict[str, int] = {}
    for word, reads in measurement.counts.items():
        if len(word) != len(places) or {*word} - {*"01"}:
            raise ValueError("not counts")
        read_bits = ["0"] * bits
        for place, bit in zip(places, word, strict=True):
            read_bits[place] = bit
        text = "".join(read_bits)
        counter[text] = counter.get(text, 0) + reads
    return counter


def _calibration(id_: str, metrics: _Metrics) -> CalibrationData:
    """Return id, time and mean values of the present calibration set."""
    means: dict[str, float] = {}
    for name, (begin, end, factor) in OBSERVED.items():
        values = [
            one.value
            for one in metrics.observations
            if (field := one.dut_field.partition(":")[0]).startswith(begin)
            and field.endswith(end)
            and one.value is not None
        ]
        if values:
            mean = sum(values) / len(values)
            means[name] = max(0.0, factor * (1.0 - mean)) if factor else mean
    return CalibrationData(id_, metrics.created_timestamp or "", means)


def _number(qubit: str) -> int:
    """Return the number of a qubit from its name, ``QB1`` for the first."""
    if not (qubit.startswith("QB") and qubit[2:].isdecimal()) or int(qubit[2:]) < 1:
        raise ValueError(f"{qubit[:40]!r} is no name of a qubit")
    return int(qubit[2:]) - 1


def _joined(messages: Sequence[_Message] | None) -> str:
    return one_line("; ".join(one.message for one in messages or ()))[:300]

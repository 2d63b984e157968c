"""A QPU of a vendor that sf_quantum has never heard of, with a REST API of its own.

``test_acme_qpu.py`` has a small server with that API.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Self, TypeAlias

from dimod.core.sampler import Sampler
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description, Timing
from sf_quantum.protocol.tasks import (
    LeaseJob,
    Outcome,
    Progress,
    Result,
    State,
    Task,
    UnknownJob,
)
from sf_quantum.protocol.values import check_about
from sf_quantum.qpu import NoLease, Qpu, QpuStatus
from sf_quantum.qpu.configuration import check_keys, config_required, read_token
from sf_quantum.qpu.environment import required
from sf_quantum.qpu.sampler import JobSampler
from sf_quantum.qpu.vendors.ising import ising, samples
from sf_quantum.qpu.vendors.rest import RestApi
from sf_quantum.samplers.defaults import SWEEPS

Calibration: TypeAlias = dict[str, JsonValue]
# Acme's durations are microseconds
Micros: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds: TypeAlias = Annotated[Micros, AfterValidator(lambda micros: micros / 1e6)]
STATES: dict[str, State] = {
    "waiting": "Queued",
    "running": "Running",
    "done": "Completed",
    "failed": "Failed",
    "stopped": "Cancelled",
}
Phase: TypeAlias = Annotated[State, BeforeValidator(lambda text: STATES.get(str(text)))]
# when Acme has certainly done nothing: it is booked, too many ask, or it is in maintenance
NOTHING_DONE = (423, 429, 503)


class Machine(BaseModel):
    """The state of the machine; ``wait`` is the time until a new job would start."""

    state: str
    reason: str
    qubits: int
    dead: frozenset[int]
    shots: int
    ahead: int
    wait: Seconds
    setup: Seconds
    shot: Seconds
    calibration: Calibration


class Job(BaseModel):
    """The state of a job; ``took`` is its time on the machine."""

    job: str
    phase: Phase
    ahead: int | None
    wait: Seconds | None
    took: Seconds
    billed: Seconds
    error: str
    calibration: Calibration | None


class AcmeQpu(Qpu):
    """Acme's QPU; a lease is a booking.

    :param key_file: its content goes with each request
    :param booking: on the job's side
    """

    type = "acme"
    kinds = ("problem",)
    finds_by_tag = True
    files = ("keyFile",)

    def __init__(self, name: str, url: str, key_file: str, booking: str = "") -> None:
        super().__init__(name)
        # the job's side may have another working folder
        key_file = str(Path(key_file).absolute())
        self._variables = {"URL": url, "KEY_FILE": key_file}
        self._booking = booking
        client = Client(url, {}, lambda: {"X-Acme-Key": read_token(key_file)})
        self._api = RestApi(name, client, nothing_done=NOTHING_DONE)

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        check_keys(config, keys := ("url", "keyFile"))
        return cls(name, *(config_required(name, config, key) for key in keys))

    @property
    def identity(self) -> str:
        return self._variables["URL"]

    def status(self) -> QpuStatus:
        machine = self._api.get(Machine, "/machine")
        return QpuStatus(
            self.name,
            "annealer",
            online=(up := machine.state == "up"),
            reason="" if up else machine.reason or f"it is {machine.state}",
            qubits=machine.qubits,
            queue_length=machine.ahead,
            calibration=str(machine.calibration.get("id")),
            eta_seconds=machine.wait,
            payloads=self.kinds,
        )

    def describe(self) -> Description:
        machine = self._api.get(Machine, "/machine")
        return Description(
            "annealer",
            machine.qubits,
            self.kinds,
            out_of_service=machine.dead,
            shots=machine.shots,
            timing=Timing(machine.setup, machine.shot),
            calibration=CalibrationData.read(machine.calibration),
        )

    def acquire(self, job: str | None = None) -> str:
        return self.acquire_waiting(job, wait_seconds=0)

    def acquire_waiting(
        self, job: str | None, *, wait_seconds: float, key: str | None = None
    ) -> str:
        # a request that is repeated after a lost reply or a crash gets the same booking
        booking = sha256((key or secrets.token_hex()).encode()).hexdigest()
        answer = self._api.send("PUT", f"/bookings/{booking}", expected=(423, 503))
        if answer.status in (423, 503):
            raise NoLease(self._api.reason(answer))
        return booking

    def renew(self, token: str) -> None:
        self._api.send("GET", f"/bookings/{token}")

    def release(self, token: str) -> None:
        self._api.send("DELETE", f"/bookings/{token}")

    def jobs(self, token: str) -> list[LeaseJob]:
        jobs = self._api.get(list[Job], f"/jobs?booking={token}")
        return [LeaseJob(job.job, job.phase, qpu_seconds=job.billed) for job in jobs]

    def environment(self, token: str) -> dict[str, str]:
        variables = {**self._variables, "BOOKING": token}
        return {f"{self.name}_ACME_{key}": value for key, value in variables.items()}

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        keys = ("ACME_URL", "ACME_KEY_FILE", "ACME_BOOKING")
        return cls(name, *(required(name, environment, key) for key in keys))

    def sampler(self) -> Sampler:
        return JobSampler(self)

    def submit(self, task: Task) -> str:
        # the QPU service sends num_sweeps with its default value
        if task.parameters.get("num_sweeps") not in (None, SWEEPS):
            raise InputError("num_sweeps: Acme's machine has no such parameter")
        fields, couplings = ising(task)
        body: dict[str, JSON] = {
            "tag": task.tag,
            "booking": self._booking,
            "h": [*fields],
            "J": [[*coupling] for coupling in couplings],
            "shots": task.shots,
            "seed": task.parameters.get("seed"),
        }
        return self._api.checked(Job, self._api.send("POST", "/jobs", body)).job

    def find(self, tag: str) -> str | None:
        jobs = self._api.get(list[Job], f"/jobs?tag={tag}")
        return jobs[0].job if jobs else None

    def poll(self, job_id: str) -> Progress:
        job = self._job(job_id)
        return Progress(job.phase, job.ahead, job.wait)

    def result(self, job_id: str, task: Task) -> Outcome:
        job, result = self._job(job_id), None
        if job.phase == "Completed":
            path = f"/jobs/{job_id}/spins"
            spins = self._api.get(list[list[int]], path, result_of=task)
            timing: JSON = {"qpu_seconds": job.billed}
            info: dict[str, JSON] = {"sampler": "acme", "qpu": self.name}
            info |= {"calibration": job.calibration, "timing": timing}
            result = Result(samples(task, spins), info)
        failure = job.error if job.phase == "Failed" else None
        calibration = CalibrationData.read(job.calibration)
        return Outcome(result, failure, job.billed, job.took, calibration)

    def _job(self, job_id: str) -> Job:
        job = self._api.get(Job, f"/jobs/{job_id}")
        check_about(self.name, job.job, job_id)
        return job

    def cancel(self, job_id: str) -> None:
        with suppress(UnknownJob):
            self._api.send("DELETE", f"/jobs/{job_id}")

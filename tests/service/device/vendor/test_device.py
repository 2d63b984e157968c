"""A real QPU as a device: its lease, its status, what jobs cost, and all kinds of trouble."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import psutil
import pytest
from dimod import BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Unsendable
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description, Timing
from sf_quantum.protocol.leases import ReservedTime
from sf_quantum.protocol.tasks import (
    Kind,
    LeaseLost,
    NotAccepted,
    Outcome,
    Progress,
    Result,
    State,
    Task,
    UnknownJob,
)
from sf_quantum.qpu import AuthenticationError, NoLease, Qpu, QpuStatus
from sf_quantum.qpu.configuration import check_keys, read_token
from sf_quantum.qpu.environment import TOKEN
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service import run
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.interface import Cost, DeviceStatus, Recovery
from sf_quantum.service.device.processes import process_pool
from sf_quantum.service.device.vendor import job_table, state
from sf_quantum.service.device.vendor import lease as vendor_lease
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.device.vendor.job_table import VendorJob
from sf_quantum.service.device.vendor.state import Trouble
from sf_quantum.service.domain.jobs import Size
from tests.support.service import (
    RunningService,
    UntilInterrupted,
    example_bqm,
    running_queue,
    running_service,
)
from tests.support.vendor_device import ANN, over, submit
from tests.support.waiting import SECONDS, until, until_async

TASK = Task("a-1", "problem", json.dumps(example_bqm()), {"num_reads": 5})
STATUS = QpuStatus("acme", "annealer", True, qubits=8, calibration="c1")
DESCRIPTION = Description(
    "annealer", 8, ("problem",), shots=100, calibration=CalibrationData("c1")
)
SAMPLES = SampleSet.from_samples_bqm(  # type: ignore[no-untyped-call]
    [{"a": 1, "b": 0, "c": 1}] * 5,
    BinaryQuadraticModel.from_serializable(example_bqm()),
).to_serializable()
SAMPLES.pop("info")
COMPLETED = Outcome(Result(json.dumps(SAMPLES)), qpu_seconds=0.5)
ENTRY_POINTS = """[sf_quantum.qpus]
acme = tests.service.device.vendor.test_device:Acme
acme-sampler = tests.service.device.vendor.test_device:AcmeSampler
"""


@dataclass
class Vendor:
    """A vendor that does as it is told.

    :param raises: by method, what its next calls raise
    :param lease: that is held, if any
    :param jobs: their states by id
    :param under: each job that was asked about, with the lease
    :param state: of a new job
    :param booked: for when it is reserved
    """

    told: QpuStatus = STATUS
    description: Description = DESCRIPTION
    raises: dict[str, list[QuantumError]] = field(default_factory=dict)
    password: str = "right"
    lease: str | None = None
    renewal: float | None = 0.0
    leases: int = 0
    keys: set[str | None] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    jobs: dict[str, State] = field(default_factory=dict)
    under: list[tuple[str, str]] = field(default_factory=list)
    outcome: Outcome = COMPLETED
    state: State = "Running"
    booked: ReservedTime | None = None

    def called(self, method: str, password: str | None = None) -> None:
        self.calls[method] += 1
        if waiting := self.raises.get(method):
            raise waiting.pop(0)
        if password not in (None, self.password):
            raise AuthenticationError("acme refuses: wrong password (p.txt)")


VENDORS: dict[str, Vendor] = {}


class AcmeLeases(Qpu):
    """Leases of the vendor, and its status."""

    def __init__(self, name: str, config: Mapping[str, str], token: str = "") -> None:
        super().__init__(name)
        self._config = config
        self._token = token
        self._password = read_token(config["passwordFile"])

    @property
    def identity(self) -> str:
        return self._config["vendor"]

    @property
    def vendor(self) -> Vendor:
        return VENDORS[self._config["vendor"]]

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        check_keys(config, ("vendor", "passwordFile", "password"))
        return cls(name, {key: str(value) for key, value in config.items()})

    def status(self) -> QpuStatus:
        self.vendor.called("status")
        return self.vendor.told

    def describe(self) -> Description:
        self.vendor.called("describe")
        return self.vendor.description

    def acquire(self, job: str | None = None) -> str:
        return self.acquire_waiting(job, wait_seconds=0)

    def acquire_waiting(
        self, job: str | None, *, wait_seconds: float, key: str | None = None
    ) -> str:
        vendor = self.vendor
        vendor.called("acquire", self._password)
        vendor.keys.add(key)
        vendor.leases += 1
        vendor.lease = f"lease-{vendor.leases}"
        return vendor.lease

    def renew(self, token: str) -> float | None:
        self.vendor.called("renew", self._password)
        if token != self.vendor.lease:
            raise LeaseLost(f"there is no lease {token}")
        return self.vendor.renewal

    def release(self, token: str) -> None:
        self.vendor.called("release")
        if token == self.vendor.lease:
            self.vendor.lease = None

    def environment(self, token: str) -> dict[str, str]:
        variables = {TOKEN: token, **self._config}
        return {f"{self.name}_{key}": value for key, value in variables.items()}

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        own = {
            key.removeprefix(f"{name}_"): value
            for key, value in environment.items()
            if key.startswith(f"{name}_")
        }
        token = own.pop(TOKEN, "")
        if not token:
            raise InputError(f"{name}_{TOKEN} is not set")
        return cls(name, own, token)

    def sampler(self) -> Sampler:
        return ForEver(self._config["vendor"], self._config["passwordFile"])


class Acme(AcmeLeases):
    """A kind whose vendor's API has jobs."""

    type = "acme"
    kinds: ClassVar[tuple[Kind, ...]] = ("problem",)
    finds_by_tag = True
    reservations = ("night",)

    def reserved_time(self, reservation: str) -> ReservedTime | None:
        self.vendor.called("reserved_time")
        return self.vendor.booked

    def asked(self, method: str, job_id: str) -> Vendor:
        vendor = self.vendor
        vendor.called(method, self._password)
        if self._token != vendor.lease:
            raise LeaseLost(f"lease {self._token} has ended")
        vendor.under.append((job_id, self._token))
        if method not in ("submit", "find") and job_id not in vendor.jobs:
            raise UnknownJob(f"there is no job {job_id}")
        return vendor

    def submit(self, task: Task) -> str:
        vendor = self.asked("submit", task.tag)
        job_id = f"job-{len(vendor.jobs)}"
        vendor.jobs[job_id] = vendor.state
        return job_id

    def find(self, tag: str) -> str | None:
        self.asked("find", tag)
        return None

    def poll(self, job_id: str) -> Progress:
        return Progress(self.asked("poll", job_id).jobs[job_id])

    def result(self, job_id: str, task: Task) -> Outcome:
        return self.asked("result", job_id).outcome

    def cancel(self, job_id: str) -> None:
        self.asked("cancel", job_id).jobs[job_id] = "Cancelled"


class AcmeSampler(AcmeLeases):
    """A kind that has a sampler only."""

    type = "acme-sampler"


class ForEver(Sampler):
    """Tells its process in a file; ends at once, or never."""

    def __init__(self, folder: str, password_file: str) -> None:
        self._folder = Path(folder)
        self._password_file = password_file

    @property
    def parameters(self) -> dict[str, list[str]]:
        return {"num_reads": []}

    @property
    def properties(self) -> dict[str, str]:
        return {}

    def sample(self, bqm: BinaryQuadraticModel, *, num_reads: int = 1) -> SampleSet:
        (self._folder / f"pid{num_reads}").write_text(str(os.getpid()))
        if num_reads == 13:
            raise QpuError("acme has bad luck")
        while num_reads == 99:
            time.sleep(60)
        samples: SampleSet = SampleSet.from_samples_bqm(  # type: ignore[no-untyped-call]
            dict.fromkeys(bqm.variables, 0), bqm, num_occurrences=[num_reads]
        )
        samples.info.update(
            timing={"qpu_seconds": 0.25}, variable=os.environ[f"one_{TOKEN}"]
        )
        return samples


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    """A vendor whose kinds of QPU are installed, also for new processes."""
    installed = tmp_path / "site" / "acme-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "p.txt").write_text("right")
    monkeypatch.syspath_prepend(str(installed.parent))
    monkeypatch.setenv("PYTHONPATH", str(installed.parent))
    for name in ("STATUS", "ACCESS"):
        monkeypatch.setattr(backoff, name, Backoff(0.001, 0.01))
    VENDORS[str(tmp_path)] = vendor = Vendor()
    yield vendor
    del VENDORS[str(tmp_path)]


@pytest.fixture
def make(acme: Vendor, tmp_path: Path) -> Iterator[Callable[..., QpuDevice]]:
    """Makes a device with some keys; all are closed in the end."""
    made = []

    def device(**keys: JSON) -> QpuDevice:
        config: dict[str, JSON] = {
            "vendor": str(tmp_path),
            "passwordFile": str(tmp_path / "p.txt"),
        }
        settings = {"qpu": "acme", "name": "one", "poll_seconds": 0.01, **keys}
        made.append(QpuDevice.from_config({"config": config, **settings}))
        return made[-1]

    yield device
    for one in made:
        one.close()


@pytest.fixture
def device(make: Callable[..., QpuDevice]) -> QpuDevice:
    one = make()
    one.refresh()
    return one


def refreshed(device: QpuDevice) -> DeviceStatus:
    device.refresh()
    return device.status


def submitted(device: QpuDevice) -> str:
    """Submit a job as soon as the vendor takes it."""

    def submit() -> str | None:
        device.refresh()
        try:
            return device.jobs.submit(TASK)
        except NotAccepted:
            return None

    return until(submit, "it is submitted")


# what it is


def test_it_is_what_its_vendor_says(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    device = make()
    assert device.status == DeviceStatus(False, "its vendor has not been asked yet")
    assert device.description == Description("unknown", 0, ("problem",))
    assert refreshed(device) == DeviceStatus()
    assert device.description == acme.description
    assert (device.jobs.depth, device.jobs.recovery) == (2, Recovery.BY_TAG)
    assert device.refresh_seconds == 1.0
    assert make(ahead=4).jobs.depth == 5


def test_its_identity_is_its_vendors(
    make: Callable[..., QpuDevice], tmp_path: Path
) -> None:
    here, again, there = make(), make(), make(name="other")
    assert here.identity == again.identity != there.identity
    other_file = {"vendor": str(tmp_path), "passwordFile": str(__file__)}
    assert make(config=other_file).identity == here.identity
    elsewhere = {**other_file, "vendor": "x"}
    assert make(config=elsewhere).identity != here.identity


def test_jobs_are_checked_against_the_qpu_of_now(
    device: QpuDevice, acme: Vendor
) -> None:
    assert device.check("problem", example_bqm(), {"num_reads": 100}) == Size(
        3, qubits=3
    )
    with pytest.raises(FieldError, match="101 shots; at most 100"):
        device.check_parameters("problem", {"num_reads": 101})
    with pytest.raises(FieldError, match="runs problem only"):
        device.check("circuit", "OPENQASM 3;", {})
    acme.description = replace(acme.description, qubits=2)
    acme.told = replace(acme.told, calibration="c2")  # it tells of a change
    device.refresh()
    with pytest.raises(FieldError, match="3 variables do not fit on 2 qubits"):
        device.check("problem", example_bqm(), {"num_reads": 1})
    with pytest.raises(FieldError, match="3 variables do not fit on 2 qubits"):
        device.check_size(Size(3), {"num_reads": 1})


@pytest.mark.parametrize(
    ("kind", "content", "detail"),
    [
        (
            "circuit",
            "OPENQASM 3;\nqubit[5] q;\n  qubit [ 4 ] p;",
            "9 qubits do not fit",
        ),
        ("circuit", "OPENQASM 2.0;\nqreg q[9];\ncreg c[9];", "9 qubits do not fit"),
        ("circuit", "OPENQASM 3;\n// qubit[9] q;\nqubit[8] q;", ""),
        ("circuit", "/*\nqubit[9] q;\n*/ qubit q;", ""),
        ("circuit", {}, "expected OpenQASM, a list"),
        ("circuit", ["qubit[8] q;", "qubit[9] q;"], "9 qubits do not fit"),
        ("sequence", json.dumps({"register": [{}] * 9}), "9 atoms do not fit on 8"),
        ("sequence", json.dumps({"register": [{}] * 8}), ""),
        ("sequence", "[]", ""),
        ("sequence", "q", "expected Pulser's abstract representation"),
        ("sequence", "[" * 10**6, "expected Pulser's abstract representation"),
    ],
)
def test_circuits_and_sequences_have_to_fit(
    make: Callable[..., QpuDevice], acme: Vendor, kind: Kind, content: JSON, detail: str
) -> None:
    kinds: tuple[Kind, ...] = ("circuit", "sequence")
    acme.description = replace(acme.description, kinds=kinds)
    device = make()
    device.refresh()
    if not detail:
        size = device.check(kind, content, {})
        assert replace(size, qubits=None, qubits_problem="") == Size()
        return
    with pytest.raises(FieldError, match=detail) as refused:
        device.check(kind, content, {})
    assert refused.value.field == kind


def test_it_is_described_rarely(make: Callable[..., QpuDevice], acme: Vendor) -> None:
    rare, often = make(), make(describe_seconds=1e-9)
    for _ in range(3):
        rare.refresh()
    assert acme.calls["describe"] == 1
    for _ in range(3):
        often.refresh()
    assert acme.calls["describe"] == 4


def test_the_price_is_the_sites_or_the_vendors(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    acme.told = replace(acme.told, cost_per_second=3.0)
    theirs, ours = make(), make(cost_per_second=5)
    theirs.refresh()
    ours.refresh()
    assert (theirs.price, ours.price) == (3.0, 5.0)


async def test_a_job_that_ends_during_an_outage_costs_its_price(
    make: Callable[..., QpuDevice], acme: Vendor, tmp_path: Path
) -> None:
    acme.told = replace(acme.told, cost_per_second=3.0)
    async with running_queue(tmp_path, make()) as queue:
        await until_async(lambda: not queue.availability.device_reason)
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
    (left,) = acme.jobs
    acme.jobs[left] = "Completed"
    # for long, no other status than that which is asked for the price
    acme.raises["status"] = [QpuError("HTTP status 500")]
    async with running_queue(tmp_path, make(refresh_seconds=3600)) as queue:
        done = await over(queue, job)
    assert (done.state, done.qpu_seconds, done.cost) == ("Completed", 0.5, 1.5)


# whether it takes work


def test_a_vendor_that_is_offline_says_why(device: QpuDevice, acme: Vendor) -> None:
    acme.told = replace(acme.told, online=False, reason="maintenance until noon")
    assert refreshed(device) == DeviceStatus(False, "maintenance until noon")
    acme.told = replace(acme.told, reason="")
    assert refreshed(device).reason == "its vendor gives no reason"


def test_one_answer_may_be_lost(device: QpuDevice, acme: Vendor) -> None:
    acme.raises["status"] = [QpuError("HTTP status 500"), QpuError("HTTP status 500")]
    assert refreshed(device).online
    until(lambda: not refreshed(device).online, "it is offline")
    reason = device.status.reason
    assert reason.startswith("does not answer since 20")
    assert reason.endswith(" UTC: HTTP status 500")
    until(lambda: refreshed(device).online, "it answers again")


def test_a_vendor_that_hangs_is_offline_at_once(
    device: QpuDevice, acme: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SILENCE_SECONDS", 0.0)
    acme.raises["status"] = [QpuError("no answer within 10 s")]
    assert refreshed(device).reason.endswith("no answer within 10 s")


def test_a_vendor_that_has_never_answered_is_offline(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    acme.raises["status"] = [QpuError("no route to host")]
    assert "no route to host" in refreshed(make()).reason


@pytest.mark.parametrize(
    "error", [NotAccepted("connection refused"), QpuError("no route to host")]
)
def test_a_status_that_is_not_told_is_asked_for_later(
    make: Callable[..., QpuDevice],
    acme: Vendor,
    monkeypatch: pytest.MonkeyPatch,
    error: QpuError,
) -> None:
    monkeypatch.setattr(backoff, "STATUS", Backoff(1000.0, 1000.0))
    device = make()
    acme.raises["status"] = [error]
    for _ in range(3):
        device.refresh()
    assert acme.calls["status"] == 1


@pytest.mark.parametrize("retry_seconds", [None, 0.001])
def test_a_device_that_was_never_described_is_offline(
    make: Callable[..., QpuDevice], acme: Vendor, retry_seconds: float | None
) -> None:
    refused = NotAccepted("HTTP status 503", retry_seconds)
    acme.raises["describe"] = [refused, refused]
    device = make()
    assert refreshed(device) == DeviceStatus(False, "HTTP status 503")
    until(lambda: refreshed(device) == DeviceStatus(), "it is described")
    assert acme.calls["describe"] == 3


def test_the_status_is_told_whether_or_not_it_is_described(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    device = make(describe_seconds=1e-9)
    device.refresh()
    job = device.jobs.submit(TASK)
    acme.raises["describe"] = [NotAccepted("HTTP status 503")] * 9
    acme.told = replace(acme.told, online=False, reason="maintenance")
    assert refreshed(device) == DeviceStatus(False, "maintenance")
    assert acme.calls["renew"] == 1  # of the lease of the job
    acme.told = replace(acme.told, online=True)
    # as it was described before
    assert refreshed(device).online
    assert device.jobs.poll(job, TASK).state == "Running"


@pytest.mark.parametrize(
    "trouble",
    [
        QpuError("HTTP status 500"),
        NotAccepted("HTTP status 500"),
        NotAccepted("HTTP status 500", 0.001),
    ],
    ids=["trouble", "not accepted", "pause"],
)
def test_reservations_are_asked_for_until_the_vendor_answers(
    make: Callable[..., QpuDevice], acme: Vendor, trouble: QpuError
) -> None:
    acme.booked = ReservedTime(1.0, 2e9)
    acme.raises["reserved_time"] = [trouble]
    device = make()
    device.refresh()
    assert device.reservations == {}
    assert device.reservations_problem == "HTTP status 500"
    until(lambda: refreshed(device).online and device.reservations, "they are known")
    assert device.reservations == {"night": acme.booked}
    assert device.reservations_problem == ""
    assert acme.calls["reserved_time"] == 2


def test_a_vendor_that_refuses_the_question_has_no_reservations(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    acme.raises["reserved_time"] = [InputError("no such path")]
    device = make()
    assert refreshed(device).online
    assert refreshed(device).online
    assert (device.reservations, device.reservations_problem) == ({}, "")
    assert acme.calls["reserved_time"] == 1


@pytest.mark.parametrize(
    ("begin", "end"),
    [(2.0, 1.0), (math.nan, 1.0), (1.0, math.inf), (1.0, 253402343999.0)],
)
def test_an_impossible_reservation_is_none(
    make: Callable[..., QpuDevice], acme: Vendor, begin: float, end: float
) -> None:
    acme.booked = ReservedTime(begin, end)
    device = make()
    assert refreshed(device).online
    assert device.reservations == {}
    expected = f"the vendor tells of an impossible reservation, from {begin} to {end}"
    assert device.reservations_problem == expected


def test_what_others_have_in_its_queue_is_told(device: QpuDevice, acme: Vendor) -> None:
    acme.told = replace(acme.told, queue_length=3, eta_seconds=25.0)
    assert refreshed(device) == DeviceStatus(queue_length=3, eta_seconds=25.0)
    device.jobs.submit(TASK)  # the vendor counts it, too; 10 s are expected of it
    acme.told = replace(acme.told, queue_length=4, eta_seconds=35.0)
    assert refreshed(device) == DeviceStatus(queue_length=3, eta_seconds=25.0)


def test_requests_that_fail_together_make_one_pause() -> None:
    trouble = Trouble(Backoff(1000.0, 1e9))
    for _ in range(9):
        trouble.noted(QpuError("no route to host"))
    assert 0 < trouble.left <= 1000
    trouble.over()
    assert (trouble.left, trouble.why) == (0.0, "")


def test_a_pause_that_the_vendor_asks_for_is_not_shortened() -> None:
    trouble = Trouble(Backoff(0.001, 0.01))
    trouble.noted(NotAccepted("too many requests", 1000.0))
    trouble.over()  # by the answer to another request
    trouble.noted(NotAccepted("too many jobs", 1.0))
    trouble.noted(QpuError("no route to host"))
    trouble.over()
    assert 900 < trouble.left <= 1000
    assert trouble.why == "no route to host"


def test_a_vendor_that_asks_for_a_pause_gets_it(
    device: QpuDevice, acme: Vendor
) -> None:
    acme.raises["submit"] = [NotAccepted("too many requests", 1000.0)]
    with pytest.raises(NotAccepted, match="too many requests"):
        device.jobs.submit(TASK)
    with pytest.raises(NotAccepted, match="too many requests") as told:
        device.jobs.submit(TASK)
    assert told.value.retry_seconds is not None
    assert 900 < told.value.retry_seconds <= 1000
    acme.jobs["job-7"] = "Running"
    with pytest.raises(QpuError, match="too many requests"):
        device.jobs.poll("job-7", TASK)
    before = acme.calls.copy()
    assert refreshed(device).online
    assert acme.calls == before


# its lease


def test_a_lease_is_held_while_there_is_work(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    device = make(idle_seconds=1e-9)
    device.refresh()
    assert acme.lease is None
    first, second = device.jobs.submit(TASK), device.jobs.submit(TASK)
    device.refresh()
    assert acme.lease == "lease-1"
    assert acme.calls["renew"] == 1
    for job in (first, second):
        acme.jobs[job] = "Completed"
        assert device.jobs.poll(job, TASK).state == "Completed"
        assert acme.lease == "lease-1"
        assert device.jobs.result(job, TASK).qpu_seconds == 0.5
    device.refresh()
    assert acme.lease is None
    device.jobs.submit(TASK)
    assert acme.lease == "lease-2"
    # one that the service was killed with would be found
    assert len(acme.keys) == 1


def test_an_idle_lease_is_kept_for_a_while(device: QpuDevice, acme: Vendor) -> None:
    job = device.jobs.submit(TASK)
    device.jobs.result(job, TASK)
    device.refresh()
    assert acme.lease == "lease-1"
    device.close()
    assert acme.lease is None
    with pytest.raises(NotAccepted, match="is stopping"):
        device.jobs.submit(TASK)


def test_a_vendor_that_hangs_does_not_keep_the_service(
    device: QpuDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(device._lease, "close", lambda busy: go.wait(SECONDS))
        patch.setattr(run, "CLOSE_SECONDS", 0.01)
        run._close(device)
    go.set()
    assert "one is not closed in 0.01 s" in caplog.text


def test_jobs_that_go_on_keep_their_lease(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    killed, stopped = make(), make()
    killed.jobs.submit(TASK)
    killed.close()
    assert acme.lease == "lease-1"
    acme.lease = None
    stopped.jobs.cancel(stopped.jobs.submit(TASK))
    stopped.close()
    assert acme.lease is None
    assert acme.leases == 2


def test_a_lease_that_cannot_be_given_back_is_given_back_later(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    device = make(idle_seconds=1e-9)
    device.refresh()
    device.jobs.result(device.jobs.submit(TASK), TASK)
    acme.raises["release"] = [QpuError("HTTP status 502"), QpuError("HTTP status 502")]
    device.refresh()
    assert acme.lease == "lease-1"
    until(lambda: refreshed(device).online and not acme.lease, "it is given back")
    assert acme.calls["release"] == 3


# a lease on disk


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of services one after the other."""
    monkeypatch.setattr(vendor_lease, "FORMER_SECONDS", 0.0)
    made = tmp_path / "state"
    made.mkdir()
    return made


def test_a_lease_is_on_disk_before_its_use_and_private(
    make: Callable[..., QpuDevice],
    acme: Vendor,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept: list[tuple[str, int]] = []

    def submit(_: Acme, task: Task) -> str:
        kept.extend(
            (file.read_text(), file.stat().st_mode)
            for file in folder.glob("vendor-lease-*")
        )
        raise QpuError("the service is killed")

    monkeypatch.setattr(Acme, "submit", submit)
    device = make()
    device.keep_in(folder)
    device.refresh()
    with caplog.at_level("DEBUG"), pytest.raises(QpuError, match="killed"):
        device.jobs.submit(TASK)
    ((text, mode),) = kept
    assert json.loads(text) == {"held": "lease-1", "unwanted": []}
    assert oct(mode) == oct(stat.S_IFREG | 0o600)
    assert "lease-1" not in caplog.text
    device.close()
    assert acme.lease is None
    (file,) = folder.glob("vendor-lease-*")
    assert json.loads(file.read_text()) == {"held": None, "unwanted": []}


def test_the_service_goes_on_with_a_killed_ones_lease(
    make: Callable[..., QpuDevice], acme: Vendor, folder: Path
) -> None:
    killed, after = make(), make(idle_seconds=1e-9)
    killed.keep_in(folder)
    job = killed.jobs.submit(TASK)
    after.keep_in(folder)
    after.jobs.poll(job, TASK)
    after.refresh()
    assert acme.under[-1] == (job, "lease-1")
    after.jobs.result(job, TASK)
    after.refresh()
    assert (acme.leases, acme.lease) == (1, None)


def test_a_lease_that_has_ended_meanwhile_is_replaced(
    make: Callable[..., QpuDevice], acme: Vendor, folder: Path
) -> None:
    killed, after = make(), make()
    killed.keep_in(folder)
    job = killed.jobs.submit(TASK)
    acme.lease = None
    acme.outcome = Outcome()
    after.keep_in(folder)
    # it ended with that lease
    assert after.jobs.result(job, TASK).lost == "its lease has ended at the vendor"
    after.jobs.submit(TASK)
    assert acme.lease == "lease-2"


def test_the_next_service_gives_back_leases_left_open(
    make: Callable[..., QpuDevice], acme: Vendor, folder: Path
) -> None:
    stopped, after = make(), make()
    stopped.keep_in(folder)
    stopped.jobs.cancel(stopped.jobs.submit(TASK))
    acme.raises["release"] = [QpuError("HTTP status 502")]
    stopped.close()
    assert acme.lease == "lease-1"
    after.keep_in(folder)
    after.refresh()
    assert acme.lease is None


def test_jobs_that_go_on_leave_their_lease_to_the_next_service(
    make: Callable[..., QpuDevice], acme: Vendor, folder: Path
) -> None:
    stopped, after = make(), make()
    stopped.keep_in(folder)
    job = stopped.jobs.submit(TASK)
    stopped.close()
    after.keep_in(folder)
    after.jobs.poll(job, TASK)
    assert acme.under[-1] == (job, "lease-1")


@pytest.mark.parametrize("text", ["", "[]", '{"held": 1, "unwanted": 2}', "{"])
def test_a_file_that_cannot_be_read_is_no_obstacle(
    make: Callable[..., QpuDevice], acme: Vendor, folder: Path, text: str
) -> None:
    device, other = make(), make(name="other")
    device.keep_in(folder)
    device.jobs.submit(TASK)
    (file,) = folder.glob("vendor-lease-*")
    file.write_text(text)
    after = make()
    after.keep_in(folder)
    until(lambda: refreshed(after).online, "it is online")
    after.jobs.submit(TASK)
    assert acme.under[-1][1] == acme.lease
    # that of another QPU has another file
    other.keep_in(folder)
    assert other._lease.token == ""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOENT])
def test_a_lease_is_used_though_it_cannot_be_written(
    device: QpuDevice,
    acme: Vendor,
    folder: Path,
    number: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(**_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("sf_quantum.files.tempfile.mkstemp", full)
    device.keep_in(folder)
    device.jobs.submit(TASK)
    assert acme.lease == "lease-1"
    assert "the lease of QPU one is not on disk" in caplog.text


def test_many_threads_take_one_lease(device: QpuDevice, acme: Vendor) -> None:
    with ThreadPoolExecutor(8) as threads:
        jobs = [*threads.map(lambda _: device.jobs.submit(TASK), range(40))]
    assert len(jobs) == 40
    assert acme.leases == 1


def test_a_job_waits_for_a_lease(device: QpuDevice, acme: Vendor) -> None:
    acme.raises["acquire"] = [NoLease("all leases are held")]
    with pytest.raises(NotAccepted, match="all leases are held"):
        device.jobs.submit(TASK)
    assert refreshed(device).online
    device.jobs.submit(TASK)


def test_a_lease_that_is_refused_makes_the_device_offline(
    device: QpuDevice, acme: Vendor
) -> None:
    acme.raises["acquire"] = [InputError("class: production is not for you")]
    with pytest.raises(NotAccepted, match="not for you"):
        device.jobs.submit(TASK)
    assert device.status.reason == "class: production is not for you"
    until(lambda: refreshed(device).online, "it is accepted")


@pytest.mark.parametrize(
    "refusal", [LeaseLost("HTTP status 403"), InputError("HTTP status 403")]
)
def test_a_lost_lease_is_taken_anew(
    device: QpuDevice, acme: Vendor, refusal: QuantumError
) -> None:
    early = device.jobs.submit(TASK)
    acme.lease = None
    acme.raises["submit"] = [refusal]
    late = device.jobs.submit(TASK)
    assert acme.lease == "lease-2"
    device.jobs.poll(early, TASK)
    device.jobs.poll(late, TASK)
    # those of the old lease are asked about under the new one
    assert acme.under[-2:] == [(early, "lease-2"), (late, "lease-2")]


def test_a_lease_that_is_lost_while_jobs_run_is_noticed(
    device: QpuDevice, acme: Vendor
) -> None:
    job = device.jobs.submit(TASK)
    acme.lease = "another's"
    device.refresh()
    device.jobs.poll(job, TASK)
    assert acme.under[-1] == (job, "lease-2")


def test_a_job_of_which_an_answer_was_lost_renews_the_lease(
    device: QpuDevice, acme: Vendor
) -> None:
    acme.renewal = None  # it does not expire
    job = device.jobs.submit(TASK)
    device.refresh()
    device.refresh()
    assert acme.calls["renew"] == 1
    acme.raises["poll"] = [QpuError("connection reset")]
    with pytest.raises(QpuError, match="connection reset"):
        device.jobs.poll(job, TASK)
    until(lambda: refreshed(device).online and acme.calls["renew"] == 2, "renewed")


def test_a_job_that_is_rarely_asked_about_keeps_the_lease(
    make: Callable[..., QpuDevice], acme: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = make(poll_seconds=3000, idle_seconds=1e-9)
    device.refresh()
    job = device.jobs.submit(TASK)
    device.jobs.poll(job, TASK)
    monkeypatch.setattr(job_table, "FORGOTTEN_SECONDS", 0.0)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        device.refresh()
        return False

    (one,) = device.jobs.table.wanted
    monkeypatch.setattr(one.woken, "wait", wait)
    assert device.jobs.poll(job, TASK).state == "Running"
    assert waits
    assert (acme.lease, acme.calls["release"]) == ("lease-1", 0)


def test_a_lease_that_cannot_be_asked_about_is_kept(
    device: QpuDevice, acme: Vendor
) -> None:
    job = device.jobs.submit(TASK)
    for method in ("poll", "renew"):
        acme.raises[method] = [Unsendable("p.txt: no such file")]
    with pytest.raises(QpuError, match=r"p.txt: no such file"):
        device.jobs.poll(job, TASK)
    assert acme.calls["renew"] == 1
    until(lambda: refreshed(device).online, "it is online again")
    assert device.jobs.poll(job, TASK).state == "Running"
    assert acme.under[-1] == (job, "lease-1")


def test_a_lease_whose_end_is_uncertain_is_given_back(
    device: QpuDevice, acme: Vendor, tmp_path: Path
) -> None:
    device.keep_in(tmp_path)
    device.jobs.submit(TASK)
    acme.raises["renew"] = [InputError("HTTP status 405")]
    until(lambda: refreshed(device).online and not acme.lease, "it is given back")
    assert acme.calls["release"] == 1
    device.jobs.submit(TASK)
    assert acme.lease == "lease-2"


def test_a_refused_job_is_refused(device: QpuDevice, acme: Vendor) -> None:
    acme.raises["submit"] = [InputError("num_reads: at most 3")]
    with pytest.raises(InputError, match="at most 3"):
        device.jobs.submit(TASK)
    assert acme.leases == 1
    assert device.status.online


# credentials


def test_wrong_credentials_are_no_fault_of_a_job(
    device: QpuDevice, acme: Vendor, tmp_path: Path
) -> None:
    job = device.jobs.submit(TASK)
    acme.password = "changed"
    with pytest.raises(NotAccepted, match="wrong password"):
        device.jobs.submit(TASK)
    assert device.status == DeviceStatus(False, "acme refuses: wrong password (p.txt)")
    with pytest.raises(NotAccepted, match="wrong password"):
        device.jobs.poll(job, TASK)
    assert not refreshed(device).online
    (tmp_path / "p.txt").write_text("changed")
    until(lambda: refreshed(device).online, "they are accepted")
    device.jobs.poll(job, TASK)
    assert acme.under[-1] == (job, "lease-1")
    assert submitted(device) == "job-1"


def test_credentials_may_be_missing_for_a_while(
    device: QpuDevice, acme: Vendor, tmp_path: Path
) -> None:
    acme.raises["status"] = [AuthenticationError("expired")]
    assert refreshed(device).reason == "expired"
    (tmp_path / "p.txt").unlink()
    until(lambda: "no such file" in refreshed(device).reason.lower(), "they are gone")
    (tmp_path / "p.txt").write_text("right")
    until(lambda: refreshed(device).online, "they are accepted")


# jobs


def test_polling_pauses_and_is_woken_by_a_cancellation(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    device = make(poll_seconds=3600)
    device.refresh()
    job = device.jobs.submit(TASK)
    assert device.jobs.poll(job, TASK).state == "Running"
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(device.jobs.poll, job, TASK)
        device.jobs.cancel(job)
        assert second.result().state == "Cancelled"
    assert acme.calls["poll"] == 2


def test_the_vendor_is_asked_when_a_job_should_end(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    device = make(expected_seconds=1000)
    table = device.jobs.table

    def pause(ran: float, expected: float) -> float:
        since = time.monotonic() - ran
        job = VendorJob(1.0, expected, running_since=since)
        return table.pause(job, Progress("Running"), 3600)

    assert pause(0, 1e6) == 3600
    assert 1500 < pause(0, 2000) <= 2000
    assert pause(4000, 4001) == 360
    # rarely about one that takes longer than it should
    assert 1000 <= pause(8000, 4000) < 1500
    assert pause(1e6, 1) == 3600
    # of two jobs, the second ends after the first
    for _ in range(2):
        device.jobs.submit(TASK)
    first, second = table.wanted
    queued, at_500 = Progress("Queued"), Progress("Queued", 1, 500)
    assert table.pause(first, queued, 3600) == pytest.approx(1000)
    assert table.pause(second, queued, 3600) == pytest.approx(2000)
    assert table.pause(second, at_500, 3600) == pytest.approx(1500)


def test_the_pace_of_jobs_is_learnt(device: QpuDevice, acme: Vendor) -> None:
    acme.description = replace(acme.description, timing=Timing(0.25))
    acme.told = replace(acme.told, calibration="c2")
    device.refresh()
    acme.outcome = Outcome(COMPLETED.result, qpu_seconds=0.25, seconds=0.75)
    device.jobs.result(device.jobs.submit(TASK), TASK)
    device.jobs.submit(TASK)
    (job,) = device.jobs.table.wanted
    assert job.expected_seconds == pytest.approx(0.75)


def test_a_job_that_the_vendor_has_forgotten_is_unknown(
    device: QpuDevice, acme: Vendor
) -> None:
    for call in (device.jobs.poll, device.jobs.result):
        with pytest.raises(UnknownJob, match="no job job-9"):
            call("job-9", TASK)
    device.jobs.cancel("job-9")
    device.close()
    assert acme.lease is None


def test_a_refusal_is_no_answer_about_a_job(device: QpuDevice, acme: Vendor) -> None:
    job = device.jobs.submit(TASK)
    for method, call in (("poll", device.jobs.poll), ("result", device.jobs.result)):
        acme.raises[method] = [InputError("HTTP status 400")]
        with pytest.raises(QpuError, match="HTTP status 400"):
            call(job, TASK)
    acme.raises["find"] = [InputError("HTTP status 400")]
    with pytest.raises(QpuError, match="HTTP status 400"):
        device.jobs.find("a-1")
    assert device.jobs.find("a-1") is None


def test_a_job_that_the_vendor_cancels_has_failed(
    device: QpuDevice, acme: Vendor
) -> None:
    acme.outcome = Outcome()
    job = device.jobs.submit(TASK)
    assert device.jobs.result(job, TASK).failure == "the vendor cancelled it"
    acme.outcome = Outcome(note="closed: helium")
    told = device.jobs.result(device.jobs.submit(TASK), TASK).failure
    assert told == "the vendor cancelled it: closed: helium"
    job = device.jobs.submit(TASK)
    device.jobs.cancel(job)
    assert device.jobs.result(job, TASK).failure is None
    # one that a former service has submitted
    acme.jobs["job-9"] = "Running"
    device.jobs.cancel("job-9")
    assert device.jobs.result("job-9", TASK).failure is None


@pytest.mark.parametrize(
    ("renews", "sessions", "ended", "lost", "failure"),
    [
        (True, False, True, "its lease has ended at the vendor: revoked", None),
        (True, False, False, None, "the vendor cancelled it: revoked"),
        (False, False, True, None, "the vendor cancelled it: revoked"),
        (
            *(False, True, False),
            *("the vendor cancelled it: revoked, perhaps with its lease", None),
        ),
    ],
)
def test_a_job_that_the_vendor_cancels_with_its_lease_is_lost(
    device: QpuDevice,
    acme: Vendor,
    monkeypatch: pytest.MonkeyPatch,
    renews: bool,
    sessions: bool,
    ended: bool,
    lost: str | None,
    failure: str | None,
) -> None:
    monkeypatch.setattr(Acme, "jobs_end_with_lease", sessions)
    if not renews:
        monkeypatch.setattr(AcmeLeases, "renew", Qpu.renew)
    acme.outcome = Outcome(note="revoked", qpu_seconds=0.5)
    job = device.jobs.submit(TASK)
    if ended:
        acme.lease = None
    outcome = device.jobs.result(job, TASK)
    assert (outcome.lost, outcome.failure) == (lost, failure)
    assert outcome.qpu_seconds == 0.5
    # not one that the service has cancelled
    job = device.jobs.submit(TASK)
    device.jobs.cancel(job)
    assert device.jobs.result(job, TASK).lost is None


def test_a_leases_end_is_asked_for_until_the_vendor_answers(
    device: QpuDevice, acme: Vendor
) -> None:
    acme.outcome = Outcome()
    job = device.jobs.submit(TASK)
    acme.lease = None
    device.jobs.poll(job, TASK)  # under another lease
    assert acme.lease == "lease-2"
    assert device.jobs.result(job, TASK).lost
    job = device.jobs.submit(TASK)
    acme.raises["renew"] = [QpuError("HTTP status 502")]
    with pytest.raises(QpuError, match="502"):
        device.jobs.result(job, TASK)
    assert device.jobs.result(job, TASK).failure == "the vendor cancelled it"


@pytest.mark.parametrize("ended", [True, False])
def test_a_job_that_is_forgotten_with_its_lease_says_so(
    device: QpuDevice, acme: Vendor, ended: bool
) -> None:
    job = device.jobs.submit(TASK)
    acme.jobs.clear()
    if ended:
        acme.lease = None
    with pytest.raises(UnknownJob) as unknown:
        device.jobs.poll(job, TASK)
    assert unknown.value.lease_lost is ended


# what jobs cost


def test_the_cost_is_as_the_vendor_tells(device: QpuDevice, acme: Vendor) -> None:
    timing = Timing(1.0, 0.1, 0.1)
    acme.description = replace(acme.description, timing=timing)
    acme.told = replace(acme.told, calibration="c2")
    device.refresh()
    assert device.cost({"num_reads": 10}) == Cost(3.0)


def test_of_native_circuits_the_qubits_that_are_named_count(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    kinds: tuple[Kind, ...] = ("circuit",)
    acme.description = replace(acme.description, kinds=kinds, native_gates=("cz",))
    device = make()
    device.refresh()
    for text in (
        "qubit[8] q;\nbit[3] c;\ncz q[0], q[3];\nc[2] = measure q[3];",
        "qreg q[8];\ncreg c[3];\ncz q[0],q[3];\nmeasure q[3] -> c[2];",
    ):
        assert device.check("circuit", text, {}).qubits == 2


def test_each_circuit_of_a_batch_has_its_shots(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    kinds: tuple[Kind, ...] = ("circuit",)
    timing = Timing(1.0, 0.1)
    acme.description = replace(acme.description, kinds=kinds, timing=timing)
    device = make()
    device.refresh()
    text = "qubit[8] q;"
    contents: list[JSON] = [text, [text, text], {"program": text, "values": [{}, {}]}]
    sizes = [device.check("circuit", content, {}) for content in contents]
    assert sizes == [Size(circuits=n, qubits=8) for n in (1, 2, 2)]
    costs = [device.cost({"num_reads": 10}, size).qpu_seconds for size in sizes]
    assert costs == [pytest.approx(2.0), *[pytest.approx(3.0)] * 2]


def test_the_cost_is_learnt_from_what_was_billed(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    device = make(expected_seconds=7)
    device.refresh()
    assert device.cost({}) == Cost(7.0, 7.0)
    for billed in (0.5, 0.75):
        acme.outcome = Outcome(COMPLETED.result, qpu_seconds=billed)
        device.jobs.result(device.jobs.submit(TASK), TASK)
    assert device.cost({}).qpu_seconds == pytest.approx(0.55)
    assert device.cost({}).spread == pytest.approx(0.1)
    # one that failed or was cancelled says nothing of the others
    acme.outcome = Outcome(failure="it burnt", qpu_seconds=1000.0)
    device.jobs.result(device.jobs.submit(TASK), TASK)
    # where nothing is billed, the time that it was seen to run counts
    acme.outcome = Outcome(COMPLETED.result)
    job = device.jobs.submit(TASK)
    device.jobs.result(job, TASK)
    assert device.cost({}).qpu_seconds == pytest.approx(0.55)
    job = device.jobs.submit(TASK)
    device.jobs.poll(job, TASK)
    device.jobs.result(job, TASK)
    assert device.cost({}).qpu_seconds < 0.55


def test_a_job_whose_start_was_unseen_teaches_no_time(
    make: Callable[..., QpuDevice], acme: Vendor
) -> None:
    former, device = make(), make(expected_seconds=7)
    former.refresh()
    device.refresh()
    first, second, third = (former.jobs.submit(TASK) for _ in range(3))
    acme.outcome = Outcome(COMPLETED.result)
    device.jobs.poll(first, TASK)
    device.jobs.result(first, TASK)
    assert device.cost({}) == Cost(7.0, 7.0)
    # unless the vendor tells it
    for job in (second, third):
        acme.outcome = Outcome(COMPLETED.result, qpu_seconds=0.5, seconds=0.75)
        device.jobs.result(job, TASK)
    assert device.cost({}) == Cost(0.5, 0.0)
    # how long it takes for its cost is not known: neither is what it was to cost
    device.jobs.submit(TASK)
    (own,) = device.jobs.table.wanted
    assert own.expected_seconds == 0.5


# what the vendor answers is checked before it counts


def test_a_result_that_is_not_json_is_a_failed_job_over_http(
    make: Callable[..., QpuDevice], acme: Vendor, tmp_path: Path
) -> None:
    acme.state = "Completed"
    acme.outcome = Outcome(Result('{"x": <<<not json>>>}'), qpu_seconds=1e9)
    job: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "a"}
    job["parameters"] = {"num_reads": 5}
    with running_service(make(), state=tmp_path / "service.sqlite") as service:
        until(lambda: service.queue.device.status.online, "it is online")
        lease = service.acquire()
        told = service.ask("POST", "/v1/jobs?wait=60", job, lease=lease)
        assert told.status in (200, 201), told
        id_ = service.until(lease, "Failed")
        failed = service.ask("GET", f"/v1/jobs/{id_}").json()
        result = service.ask("GET", f"/v1/jobs/{id_}/result")
    reason = "the QPU's result is not one of this job: it is not JSON"
    assert str(failed["note"]).startswith(
        f"{reason}; the vendor tells qpu_seconds 1e+09"
    )
    assert float(str(failed["qpu_seconds"])) < 1000
    assert result.status == 409
    (file,) = (tmp_path / "vendor-evidence").iterdir()
    assert "it had for" in file.read_text()


def test_one_id_for_two_jobs_fails_the_second(
    make: Callable[..., QpuDevice],
    acme: Vendor,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
) -> None:
    def submit(self: Acme, task: Task) -> str:
        self.asked("submit", task.tag).jobs["job-0"] = "Running"
        return "job-0"

    monkeypatch.setattr(Acme, "submit", submit)
    monkeypatch.setattr(Acme, "find", lambda *_: "job-0")
    monkeypatch.setattr(Acme, "duplicates", lambda *_: ["job-0", "job-1"])
    device, after = make(), make()
    device.keep_in(folder)
    other = replace(TASK, tag="b-1")
    assert device.jobs.submit(TASK) == device.jobs.submit(TASK) == "job-0"
    after.keep_in(folder)
    for one in (device, after):
        with pytest.raises(InputError, match="that of an earlier submission"):
            one.jobs.submit(other)
        with pytest.raises(InputError, match="that of an earlier submission"):
            one.jobs.find("b-1")
        assert one.jobs.find("a-1") == "job-0"
        # what is another submission's is not cancelled as surplus of this one
        assert one.jobs.duplicates("b-1", "job-2") == ["job-1"]
        assert one.jobs.poll("job-0", TASK).state == "Running"


WRONG = "\x1b[2J" + "x" * 10**6


@pytest.mark.parametrize(
    "error", [KeyError(WRONG), ValueError(WRONG), RecursionError(), QpuError(WRONG)]
)
def test_an_error_of_a_client_is_a_malformed_answer(
    device: QpuDevice, acme: Vendor, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: str | Task) -> None:
        raise error

    job = device.jobs.submit(TASK)
    calls: list[Callable[[], Progress | Outcome | str | None]] = [
        lambda: device.jobs.poll(job, TASK),
        lambda: device.jobs.result(job, TASK),
        lambda: device.jobs.cancel(job),
        lambda: device.jobs.find("a-1"),
        lambda: submitted(device),
    ]
    with monkeypatch.context() as patch:
        for method in ("submit", "poll", "result", "cancel", "find"):
            patch.setattr(Acme, method, fails)
        for call in calls:
            until(lambda: device._state.vendor.left == 0, "it is asked again")
            with pytest.raises(QpuError) as caught:
                call()
            assert len(str(caught.value)) < 1000
            assert str(caught.value).isprintable()
        patch.setattr(Acme, "status", fails)
        device.refresh()
        assert device.status.trouble.isprintable()
    until(lambda: refreshed(device).online, "it is online")


@pytest.mark.parametrize("token", ["", "a\nb", "x" * 10_000])
def test_a_token_that_is_none_is_no_lease(
    device: QpuDevice, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr(Acme, "acquire_waiting", lambda *_, **__: token)
    with pytest.raises(NotAccepted, match="a token"):
        device.jobs.submit(TASK)


@pytest.mark.parametrize("told", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300])
def test_a_lease_is_renewed_now_and_then_whatever_is_told(
    told: float,
) -> None:
    seconds = vendor_lease._pause(told)
    assert vendor_lease.RENEWAL_SECONDS <= seconds <= vendor_lease.MAX_RENEWAL_SECONDS
    assert vendor_lease._pause(None) == math.inf


# a kind without jobs


@pytest.fixture
def sampling(
    make: Callable[..., QpuDevice], monkeypatch: pytest.MonkeyPatch
) -> Iterator[QpuDevice]:
    """A device whose vendor has no jobs; its processes are its own."""
    pool = process_pool._Processes()
    monkeypatch.setattr(process_pool, "_processes", lambda: pool)
    device = make(qpu="acme-sampler")
    device.refresh()
    yield device
    device.close()
    pool.end()


def ended(device: QpuDevice, job: str, task: Task) -> State:
    def state() -> State | None:
        told = device.jobs.poll(job, task).state
        return None if told == "Running" else told

    return until(state, "it ends")


@pytest.mark.process
def test_a_sampler_runs_in_a_process_of_its_own(
    sampling: QpuDevice, tmp_path: Path
) -> None:
    assert (sampling.jobs.depth, sampling.jobs.recovery) == (1, Recovery.LOST)
    assert sampling.jobs.find("a-1") is None
    job = sampling.jobs.submit(TASK)
    assert ended(sampling, job, TASK) == "Completed"
    outcome = sampling.jobs.result(job, TASK)
    assert outcome.result is not None
    assert json.loads(outcome.result.text)["type"] == "SampleSet"
    assert outcome.result.info["variable"] == "lease-1"
    assert outcome.qpu_seconds == 0.25
    assert int((tmp_path / "pid5").read_text()) != os.getpid()
    assert sampling.cost({}).qpu_seconds == 0.25


@pytest.mark.process
@pytest.mark.parametrize("told", [math.nan, math.inf, -1.0])
def test_a_time_that_a_sampler_makes_up_is_not_billed(
    sampling: QpuDevice, monkeypatch: pytest.MonkeyPatch, told: float
) -> None:
    result = Result(info={"timing": {"qpu_seconds": told}})
    monkeypatch.setattr(process_pool, "ask", lambda *_, **__: result)
    job = sampling.jobs.submit(TASK)
    assert ended(sampling, job, TASK) == "Completed"
    assert sampling.jobs.result(job, TASK).qpu_seconds is None


@pytest.mark.process
def test_a_sampler_is_killed_by_a_cancellation(
    sampling: QpuDevice, acme: Vendor, tmp_path: Path
) -> None:
    task = replace(TASK, parameters={"num_reads": 99})
    job = sampling.jobs.submit(task)
    pid = until(lambda: file_text(tmp_path / "pid99"), "it runs")
    process = psutil.Process(int(pid))
    assert "acme" not in " ".join(process.cmdline())
    sampling.jobs.cancel(job)
    assert ended(sampling, job, task) == "Cancelled"
    assert not process.is_running()
    # what it left at the vendor ends with the lease
    outcome = sampling.jobs.result(job, task)
    assert (outcome.result, outcome.failure) == (None, None)
    sampling.refresh()
    assert acme.lease is None
    assert acme.calls["release"] == 1


@pytest.mark.process
def test_a_sampler_that_fails_tells_why(sampling: QpuDevice) -> None:
    task = replace(TASK, parameters={"num_reads": 13})
    job = sampling.jobs.submit(task)
    assert ended(sampling, job, task) == "Failed"
    assert sampling.jobs.result(job, task).failure == "acme has bad luck"


def test_a_sampler_from_before_a_restart_cannot_be_found(sampling: QpuDevice) -> None:
    for call in (sampling.jobs.poll, sampling.jobs.result):
        with pytest.raises(UnknownJob, match="cannot be found again"):
            call("0123", TASK)
    sampling.jobs.cancel("0123")


@pytest.mark.process
def test_a_sampler_ends_with_the_service(
    sampling: QpuDevice, acme: Vendor, tmp_path: Path
) -> None:
    sampling.jobs.submit(replace(TASK, parameters={"num_reads": 99}))
    pid = until(lambda: file_text(tmp_path / "pid99"), "it runs")
    process = psutil.Process(int(pid))
    sampling.close()
    assert not process.is_running()
    assert acme.lease is None


@pytest.mark.process
def test_the_service_runs_a_sampler_and_kills_it(
    sampling: QpuDevice, acme: Vendor, tmp_path: Path
) -> None:
    with running_service(sampling) as service:
        lease = service.acquire()
        for key, reads in (("ends", 1), ("lasts", 99)):
            body: dict[str, JSON] = {
                "problem": example_bqm(),
                "parameters": {"num_reads": reads},
                "idempotency_key": key,
            }
            service.ask("POST", "/v1/jobs", body, lease=lease)
        service.until(lease, "Completed")
        job = service.until(lease, "Running", 1)
        pid = until(lambda: file_text(tmp_path / "pid99"), "it runs")
        process = psutil.Process(int(pid))
        service.ask("DELETE", f"/v1/jobs/{job}")
        service.until(lease, "Cancelled", 1)
        assert not process.is_running()
        until(lambda: acme.lease is None, "what it left at the vendor ends")


def file_text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


# its configuration


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"qpu": "acmee"}, "unknown QPU type 'acmee', did you mean 'acme'"),
        ({"ahed": 1}, "ahed: unknown key 'ahed', did you mean 'ahead'"),
        ({"poll_seconds": 0}, "poll_seconds 0: expected more than 0"),
        ({"config": {"passwort": 1, "vendor": "x"}}, "did you mean 'password'"),
        ({"config": {"password": "hidden"}}, "config: password holds a credential"),
        ({"config": {"url": "https://me:hidden@host"}}, "url has a user or a query"),
        ({"config": {"url": "https://hidden@host"}}, "url has a user or a query"),
        ({"config": {"url": "https://h/?token=hidden"}}, "url has a user or a query"),
        ({"config": {"url": "hidden@host"}}, "url has a user or a query"),
        ({"config": {"site": "https://h#hidden"}}, "site has a user or a query"),
        ({"config": "hidden"}, "config: expected keys and values"),
    ],
)
def test_a_wrong_configuration_is_refused(
    make: Callable[..., QpuDevice], keys: dict[str, JSON], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        make(**keys)
    assert message in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_a_kind_that_cannot_be_used_here_is_refused(
    make: Callable[..., QpuDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acme, "problem", classmethod(lambda _: "no acme (pip it)"))
    with pytest.raises(InputError, match=r"QPU type 'acme': no acme \(pip it\)"):
        make()
    monkeypatch.setattr(
        AcmeSampler, "sampler_problem", classmethod(lambda _: "no embedding")
    )
    with pytest.raises(InputError, match="no embedding"):
        make(qpu="acme-sampler")


def test_a_device_leaves_no_thread(device: QpuDevice) -> None:
    before = threading.active_count()
    device.jobs.submit(TASK)
    device.refresh()
    assert threading.active_count() == before


# in front of another service of ours


def leases(service: RunningService) -> JSON:
    return service.ask("GET", "/v1/device").json()["leases"]


def is_online(service: RunningService) -> bool:
    return bool(service.ask("GET", "/v1/device").json()["status"] == "online")


def test_a_service_drives_another_service() -> None:
    with running_service() as vendor:
        front = QpuDevice.from_config({"qpu": "sfq", "config": {"url": vendor.url}})
        with running_service(front) as service:
            until(lambda: is_online(service), "its vendor has described it")
            lease = service.acquire()
            problem: dict[str, JSON] = {
                "problem": example_bqm(),
                "parameters": {"num_reads": 5},
                "idempotency_key": "a",
            }
            service.ask("POST", "/v1/jobs", problem, lease=lease)
            job = service.until(lease, "Completed")
            told = service.ask("GET", f"/v1/jobs/{job}").json()
            result = service.ask("GET", f"/v1/jobs/{job}/result").json()
            assert result["type"] == "SampleSet"
            assert leases(vendor) == 1
            assert front.description.technology == "annealer"
        front.close()
        assert leases(vendor) == 0
        (behind,) = vendor.queue.store.jobs.latest()
        assert told["qpu_seconds"] == behind.qpu_seconds
        assert front.jobs.recovery is Recovery.BY_TAG


def test_a_job_ended_with_its_lease_runs_under_another() -> None:
    behind = EmulatedDevice(time_scale=0, runners={"problem": UntilInterrupted()})
    with running_service(behind) as vendor:
        front = QpuDevice.from_config(
            {"qpu": "sfq", "config": {"url": vendor.url}, "poll_seconds": 0.02}
        )
        with running_service(front) as service:
            until(lambda: is_online(service), "its vendor has described it")
            lease = service.acquire()
            body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "a"}
            service.ask("POST", "/v1/jobs", body, lease=lease)
            service.until(lease, "Running")
            (held,) = vendor.queue.store.leases.held()
            vendor.ask("DELETE", f"/v1/leases/{held.id}")
            job = service.until(lease, "Completed")
            told = service.ask("GET", f"/v1/jobs/{job}").json()
        front.close()
        jobs = vendor.queue.store.jobs.latest()
        assert [one.state for one in jobs] == ["Cancelled", "Completed"]
        assert told["attempt"] == 2
        assert told["note"] == (
            "interrupted during attempt 1: its lease has ended at the vendor: "
            "cancelled: its lease was released"
        )
        assert told["lost_qpu_seconds"] == jobs[0].qpu_seconds
        assert leases(vendor) == 0


def test_it_waits_in_the_vendors_queue_for_leases() -> None:
    with running_service() as vendor:
        theirs = vendor.acquire()
        config: JSON = {"url": vendor.url}
        keys: dict[str, JSON] = {"qpu": "sfq", "config": config, "poll_seconds": 0.01}
        front = QpuDevice.from_config(keys)
        with pytest.raises(NotAccepted, match="the only vQPU is held"):
            front.jobs.submit(TASK)
        vendor.ask("DELETE", f"/v1/leases/{theirs}")
        job = until(lambda: submitted(front), "it gets a lease")
        # the next service of a killed one gets the same lease
        again = QpuDevice.from_config(keys)
        until(
            lambda: again.jobs.poll(job, TASK).state == "Completed", "it is found again"
        )
        assert leases(vendor) == 1
        again.jobs.result(job, TASK)
        again.close()

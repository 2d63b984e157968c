"""Leases in IQM's timeslots, on a server that books them; IQM's own client beside ours."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sf_quantum.cli import main
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.leases import LeaseHints, ReservedTime
from sf_quantum.qpu import LeaseTooLate, NoLease, Qpu
from sf_quantum.qpu.environment import from_environment, job_environment
from sf_quantum.qpu.leasing.held_leases import AcquireOptions, acquire
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.domain.jobs import Job
from sf_quantum.service.domain.settings import ServiceSettings
from tests.qpu.vendors.test_iqm import (
    ONE,
    Server,
    client,
    import_packages,
    refusal,
    server,
)
from tests.support.iqm_timeslots import TimeslotServer, timeslot_server
from tests.support.service import RunningService, running_service
from tests.support.waiting import SECONDS, until

__all__ = ["server"]
pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("qrmi"), reason="the package qrmi is not installed"
)
FLIP: JSON = {
    "name": "flip",
    "instructions": [
        {"name": "prx", "locus": ["QB1"], "args": {"angle": 1.0, "phase": 0.0}},
        {"name": "measure", "locus": ["QB1"], "args": {"key": "m"}},
    ],
}
TIMESLOT = LeaseHints(reservation="timeslot")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    device = EmulatedDevice(technology="superconducting", qubits=5, time_scale=0)
    import_packages(device)
    with running_service(device, tcp=True) as service:
        yield service.url


@pytest.fixture
def iqm(url: str) -> Iterator[TimeslotServer]:
    with timeslot_server(url) as running:
        yield running


def job_side(driver: Qpu, token: str) -> Qpu:
    jobs = from_environment(job_environment([(driver, token)]))
    assert jobs is not None
    return jobs


def test_jobs_of_a_lease_in_a_timeslot_go_there(
    iqm: TimeslotServer, tmp_path: Path
) -> None:
    now = time.time()
    iqm.booked = [(now - 60, now + 3600)]
    driver = client(iqm.url, tmp_path)
    token = acquire(driver, AcquireOptions("j", wait_seconds=0, hints=TIMESLOT))
    outcome = job_side(driver, token).run_job(ONE)
    assert outcome.result is not None
    other = acquire(driver, AcquireOptions("j", wait_seconds=0))
    job_side(driver, other).run_job(ONE)
    driver.release(token)
    assert [one["use_timeslot"] for one in iqm.submissions] == [["true"], ["false"]]
    # the time range has the slot that runs
    (range_,) = iqm.ranges
    (start,) = range_["timerange_start"]
    assert start.endswith("Z")
    assert time.strftime("%Y-%m-%d", time.gmtime(now - 86400)) <= start


@pytest.mark.process
@pytest.mark.skipif(
    not importlib.util.find_spec("iqm"), reason="iqm-client is not installed"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_iqms_client_names_the_timeslot_as_ours_does(
    iqm: TimeslotServer, tmp_path: Path
) -> None:
    from iqm.iqm_client import IQMClient
    from iqm.pulse import Circuit, CircuitOperation

    now = time.time()
    iqm.booked = [(now - 60, now + 3600)]
    flip = CircuitOperation(
        name="prx", locus=("QB1",), args={"angle": 1.0, "phase": 0.0}
    )
    read = CircuitOperation(name="measure", locus=("QB1",), args={"key": "m"})
    circuit = Circuit(name="flip", instructions=(flip, read), metadata={})
    stock = IQMClient.from_url(iqm.url, token="any")
    for booked in (True, False):
        stock.submit_circuits([circuit], shots=1, use_timeslot=booked)
    driver = client(iqm.url, tmp_path)
    for hints in (TIMESLOT, LeaseHints()):
        token = acquire(driver, AcquireOptions("j", wait_seconds=0, hints=hints))
        job_side(driver, token).submit(ONE)
    flags = [one["use_timeslot"] for one in iqm.submissions]
    assert flags == [["true"], ["false"]] * 2


def test_a_lease_waits_until_its_timeslot_begins(
    iqm: TimeslotServer, tmp_path: Path
) -> None:
    begin = time.time() + 1.5
    iqm.booked = [(begin - 9000, begin - 5400), (begin, begin + 3600)]
    driver = client(iqm.url, tmp_path)
    with pytest.raises(NoLease, match="the next booked timeslot begins at "):
        acquire(driver, AcquireOptions("j", wait_seconds=0, hints=TIMESLOT))
    acquire(driver, AcquireOptions("j", wait_seconds=SECONDS, hints=TIMESLOT))
    assert time.time() >= begin
    assert iqm.submissions == []


@pytest.mark.process
def test_sfq_lease_runs_its_command_in_the_timeslot(
    iqm: TimeslotServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    client(iqm.url, tmp_path)
    select = ["--qpu", "emulator", "--qrmi-config", str(tmp_path / "qrmi_config.json")]
    words = ["lease", *select, "--reservation", "timeslot", "--", sys.executable, "-c"]
    code = "import os; print(os.environ['emulator_QRMI_JOB_ACQUISITION_TOKEN'])"
    assert main([*words, code]) == 2
    assert capfd.readouterr().err.endswith(
        "no timeslot is booked: book one at IQM, or omit the reservation\n"
    )
    iqm.booked = [(now - 60, now + 3600)]
    assert main([*words, code]) == 0
    assert capfd.readouterr().out.startswith("timeslot-")


@pytest.mark.parametrize(
    ("hints", "booked", "error", "said"),
    [
        (
            LeaseHints(),
            [],
            InputError,
            "no timeslot is booked: book one at IQM, or omit the",
        ),
        (LeaseHints(), [(-60.0, -1.0)], InputError, "no timeslot is booked"),
        (
            LeaseHints(reservation="mine"),
            [],
            InputError,
            "no reservation 'mine': write 'tim",
        ),
        (LeaseHints(priority=1), [], InputError, "have no priorities: omit priority"),
        (
            LeaseHints(latest_start=600.0),
            [(3600.0, 7200.0)],
            LeaseTooLate,
            "not granted by .*Z: the next booked timeslot begins at .*Z",
        ),
    ],
)
def test_what_cannot_be_reserved_is_refused_in_one_line(
    iqm: TimeslotServer,
    tmp_path: Path,
    hints: LeaseHints,
    booked: list[tuple[float, float]],
    error: type[Exception],
    said: str,
) -> None:
    now = time.time()
    iqm.booked = [(now + begin, now + end) for begin, end in booked]
    if hints.latest_start is not None:
        hints = replace(hints, latest_start=now + hints.latest_start)
    options = AcquireOptions("j", wait_seconds=0, hints=hints.completed(TIMESLOT))
    with pytest.raises(error, match=said) as refused:
        acquire(client(iqm.url, tmp_path), options)
    assert type(refused.value) is error
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("booked", "expected"),
    [
        ([], None),
        ([(-7200, -3600)], None),
        ([(-60, 60)], (-60, 60)),
        ([(7200, 9000), (3600, 5400)], (3600, 5400)),
        # There is no gap between them.
        ([(-60, 60), (60, 120), (180, 240)], (-60, 120)),
        ([(-120, -60), (-60, 60)], (-120, 60)),
        ([(-120, -60), (-30, 60)], (-30, 60)),
    ],
)
def test_the_reserved_time_runs_or_is_the_next(
    iqm: TimeslotServer,
    tmp_path: Path,
    booked: list[tuple[float, float]],
    expected: tuple[float, float] | None,
) -> None:
    now = float(int(time.time()))
    iqm.booked = [(now + begin, now + end) for begin, end in booked]
    told = client(iqm.url, tmp_path).reserved_time("timeslot")
    assert told == (expected and ReservedTime(*(now + one for one in expected)))


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ("2026-12-01T09:00:00Z", "2026-12-01T08:00:00Z", "ends before it begins"),
        ("2026-12-01T08:00:00", "2026-12-01T09:00:00Z", "should have timezone info"),
        ("2026-12-01T08:00:00Z", "9999-12-31T23:59:59-12:00", "no year of four digits"),
        ("0001-01-01T00:00:00+12:00", "2026-12-01T09:00:00Z", "no year of four digits"),
    ],
    ids=["reversed", "without zone", "late", "early"],
)
def test_impossible_timeslots_are_a_malformed_answer(
    server: Server, tmp_path: Path, start: str, end: str, said: str
) -> None:
    server.tell("timeslots", {"booked_slots": [{"start": start, "end": end}]})
    with pytest.raises(QpuError, match=f"malformed answer: booked_slots.0.*{said}"):
        client(server.url, tmp_path).reserved_time("timeslot")


def test_a_server_without_timeslots_is_told_of(server: Server, tmp_path: Path) -> None:
    server.tell("timeslots", refusal("not_found"), 404)
    with pytest.raises(InputError, match=r"why not \(asked for its timeslots\)"):
        client(server.url, tmp_path).reserved_time("timeslot")


def test_a_job_without_its_timeslot_is_refused_alone(
    server: Server, tmp_path: Path
) -> None:
    """A refusal of the user would stop the service for all others."""
    server.tell("circuit", refusal("no_booked_timeslots"), 403)
    with pytest.raises(InputError, match="why not") as refused:
        client(server.url, tmp_path).submit(ONE)
    assert type(refused.value) is InputError


def ended(front: RunningService, lease: str, key: str, circuit: str) -> Job:
    body: dict[str, JSON] = {"circuit": circuit, "idempotency_key": key}
    job = str(front.ask("POST", "/v1/jobs", body, lease=lease).json()["id"])
    until(lambda: one(front, job).final, "the job is over")
    return one(front, job)


def one(front: RunningService, job: str) -> Job:
    (found,) = [found for found in front.queue.store.jobs.latest() if found.id == job]
    return found


@pytest.mark.process
def test_a_service_passes_its_leases_timeslots_on(
    iqm: TimeslotServer, tmp_path: Path
) -> None:
    now = float(int(time.time()))
    begin, end = now - 60, now + 3600
    iqm.booked = [(begin, end)]
    client(iqm.url, tmp_path)
    config: JSON = {"qrmiConfig": str(tmp_path / "qrmi_config.json")}
    device = QpuDevice.from_config(
        {"qpu": "iqm-server", "name": "emulator", "config": config}
    )
    device.refresh()
    circuit = json.loads(ONE.payload)
    with running_service(device, settings=ServiceSettings(vqpus=2)) as front:
        told = front.ask("GET", "/v1/device").json()["reservations"]
        assert told == [{"name": "timeslot", "starts": begin, "ends": end}]
        body: dict[str, JSON] = {"reservation": "timeslot"}
        answer = front.ask("POST", "/v1/leases", body).json()
        assert mapping(answer["honoured"])["reservation"] == "timeslot"
        assert answer["expires"] == end
        lease, other = str(answer["id"]), front.acquire()
        for number, token in enumerate((lease, other)):
            assert ended(front, token, str(number), circuit).state == "Completed"
        flags = [one["use_timeslot"] for one in iqm.submissions]
        assert flags == [["true"], ["false"]]
        # IQM's API, as a program with IQM's client asks under the lease
        batch: dict[str, JSON] = {"circuits": [FLIP], "shots": 1}
        path = "/api/v1/jobs/emulator/circuit?use_timeslot=true"
        assert front.ask("POST", path, batch, lease=lease).status == 201
        refused = front.ask("POST", path, batch, lease=other)
        until(lambda: len(iqm.submissions) == 3, "the job is submitted")
        # what is no longer booked is refused, and the service goes on
        iqm.booked = []
        job = ended(front, lease, "late", circuit)
        assert (job.state, job.note) == (
            "Failed",
            "QPU 'emulator': No timeslots are booked",
        )
        assert ended(front, other, "other", circuit).state == "Completed"
    device.close()
    assert (refused.status, refused.json()["error_code"]) == (
        403,
        "no_booked_timeslots",
    )
    assert iqm.submissions[2]["use_timeslot"] == ["true"]

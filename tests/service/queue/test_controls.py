"""What admins do with the QPU: settings between jobs, maintenance, and the audit."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from operator import methodcaller
from pathlib import Path

import pytest

from sf_quantum.candidates.decision import (
    CandidateJob,
    ClassicalTarget,
    Decision,
    Obstacle,
    QuantumTarget,
    StepRules,
    decide,
)
from sf_quantum.files import JSON
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.config import load
from sf_quantum.service.device.emulator.device import OPERATIONS, EmulatedDevice
from sf_quantum.service.device.emulator.settings import DeviceSettings, Faults
from sf_quantum.service.device.operations import Operation
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, Lease, LeaseRequest, Submission
from sf_quantum.service.domain.reasons import Interruption
from sf_quantum.service.http.auth import FixedIdentity
from sf_quantum.service.queue import availability as windows
from sf_quantum.service.queue.availability import Availability
from sf_quantum.service.queue.forecasts import seconds_until_start
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.upkeep import device_operations
from sf_quantum.service.store import audit
from sf_quantum.service.store.store import Store
from sf_quantum.validation import ValidationErrors
from tests.support.service import RunningService, emulated, example_bqm, running_service
from tests.support.waiting import SECONDS
from tests.support.waiting import until_async as until

ADMIN, ANN = Identity("operator", admin=True), Identity("ann", admin=False)
DAY = 86400.0
BY_NAME = {one.name: one for one in OPERATIONS}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "service.sqlite"


@pytest.fixture
async def queue(path: Path) -> AsyncIterator[JobQueue]:
    """A superconducting QPU: two seconds for each thousand shots, scaled to 20 ms."""
    store = Store(path)
    device = EmulatedDevice(technology="superconducting", time_scale=0.01)
    made = JobQueue(store, device)
    made.start()
    yield made
    made.request_stop()
    await made.stopped()
    store.close()


async def _lease(queue: JobQueue) -> Lease:
    return await queue.leases.acquire(ANN, LeaseRequest())


async def _submit(queue: JobQueue, lease: Lease, name: str, shots: int) -> str:
    asked = Submission("problem", example_bqm(), {"num_reads": shots}, name)
    return (await queue.submit(ANN, lease.id, asked))[0].id


def _seconds(queue: JobQueue, shots: int) -> float:
    device = queue.device
    return device.elapsed_seconds(device.cost({"num_reads": shots}))


def _audited(store: Store) -> list[tuple[str, str, str]]:
    kept = audit.entries(store, 100)[::-1]
    return [(one.user, one.action, one.outcome) for one in kept]


# operations


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_an_operation_shows_its_changes_and_keeps_the_device(
    operation: Operation[EmulatedDevice],
) -> None:
    device = EmulatedDevice(noise=1.0, seed=1)
    values = {one.name: one.least for one in operation.parameters}
    before = device.faults.model_dump(), device.noise, device.calibrations.present.id
    changed = operation.change(device, values)
    assert changed is not device
    after = device.faults.model_dump(), device.noise, device.calibrations.present.id
    assert after == before
    shown = operation.settings(changed)
    assert {name: shown[name] for name in values} == values


def test_to_recalibrate_makes_the_next_calibration_now() -> None:
    now = [1000.0]
    device = EmulatedDevice(seed=1, clock=lambda: now[0], started=1000.0)
    ids = [device.calibrations.present.id]
    now[0] += 0.5 * 3600
    again = BY_NAME["recalibrate"].change(device, {})
    ids.append(again.calibrations.present.id)
    assert again.calibrations.present.age == 0
    # as if its time had come
    now[0] = 1000.0 + 3600
    assert ids == [ids[0], device.calibrations.present.id]
    ids.append(BY_NAME["recalibrate"].change(again, {}).calibrations.present.id)
    assert len(set(ids)) == 3


def test_another_time_scale_keeps_the_calibration_and_its_age() -> None:
    now = [1000.0]
    device = EmulatedDevice(seed=1, clock=lambda: now[0], started=1000.0)
    now[0] += 2.25 * 3600
    scaled = BY_NAME["set-time-scale"].change(device, {"time_scale": 0.1})
    assert scaled.calibrations.present.id == device.calibrations.present.id
    assert scaled.calibrations.present.age == pytest.approx(
        device.calibrations.present.age
    )
    assert scaled.calibrations.period == pytest.approx(360)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"noise": [0, 101]}, "noise: expected .* within .0, 100"),
        ({"fail": [0.5, 0.4]}, "fail: expected"),
        ({"slow": [1]}, "slow: expected"),
        ({"time_scale": [0, float("nan")]}, "time_scale.1"),
        ({"nois": [0, 1]}, "unknown parameter 'nois'.*noise"),
    ],
)
def test_a_site_narrows_bounds_and_never_widens_them(
    bounds: dict[str, list[float]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        DeviceSettings(bounds=bounds)


def test_bounds_come_from_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "qpu.yml"
    path.write_text("device: {bounds: {noise: [0, 3]}}")
    (noise,) = EmulatedDevice(**dict(load(path, {}, {}).device)).controls[1].parameters
    assert (noise.least, noise.most) == (0, 3)
    path.write_text("device: {bounds: {noise: [0, 300]}}")
    with pytest.raises(
        ValidationErrors, match=r"device.bounds: noise: expected \[least, most\]"
    ):
        load(path, {}, {})


async def test_it_is_done_between_two_jobs_and_written_down(queue: JobQueue) -> None:
    lease = await _lease(queue)
    first = await _submit(queue, lease, "a", 10_000)
    second = await _submit(queue, lease, "b", 10_000)
    await until(lambda: queue.running is not None)
    setting = device_operations.find(queue, "set-faults")
    old, new = await device_operations.run(
        queue, "operator", setting, {"fail": 1.0}, SECONDS
    )
    assert (old["fail"], new["fail"]) == (0.0, 1.0)
    # the one that ran had the old settings to its end, the next has the new ones
    states = [(await queue.wait(ANN, job, SECONDS)).state for job in (first, second)]
    assert states == ["Completed", "Failed"]
    assert emulated(queue).faults == Faults(fail=1.0)
    assert _audited(queue.store) == [("operator", "set-faults", "done")]


@pytest.mark.process
async def test_what_is_not_done_is_written_down_too(queue: JobQueue) -> None:
    find = partial(device_operations.find, queue)
    scale, noise = find("set-time-scale"), find("set-noise")
    with pytest.raises(Refused) as refused:
        await device_operations.run(queue, "operator", scale, {"time_scale": 2}, 1)
    assert refused.value.status == 409
    with pytest.raises(Refused) as refused:
        await device_operations.run(queue, "operator", noise, {"noise": -1}, 1)
    assert (refused.value.status, refused.value.field) == (422, "parameters.noise")
    lease = await _lease(queue)
    await _submit(queue, lease, "a", 100_000)
    await until(lambda: queue.running is not None)
    with pytest.raises(Refused) as refused:
        await device_operations.run(queue, "operator", noise, {"noise": 2}, 0.01)
    assert refused.value.status == 409
    assert (emulated(queue).time_scale, emulated(queue).noise) == (0.01, 0.0)
    many: JSON = ["x"] * 10_000
    for given in ({"noise": "x" * 10_000}, {"x" * 10_000: 1}, {"noise": many}):
        with pytest.raises(Refused):
            await device_operations.run(queue, "operator", noise, given, 1)
    kept = audit.entries(queue.store, 4)[::-1]
    assert kept[0].parameters == {"noise": 2}
    assert [len(str(one)) < 1000 for one in kept] == [True] * 4
    outcomes = [outcome for _, _, outcome in _audited(queue.store)]
    assert len(outcomes) == 6
    assert all(outcome.startswith("refused: ") for outcome in outcomes)


async def test_a_drained_qpu_and_its_queue_take_a_new_time_scale(
    queue: JobQueue,
) -> None:
    lease = await _lease(queue)
    running = await _submit(queue, lease, "a", 100)
    waiting = await _submit(queue, lease, "b", 20_000)
    await until(lambda: queue.running is not None)
    await queue.availability.set_status("draining", user="operator")
    entry = next(iter(queue.jobs.pending.order()))
    before = entry.seconds
    scale = device_operations.find(queue, "set-time-scale")
    changes = {"time_scale": 0.001}
    await device_operations.run(queue, "operator", scale, changes, SECONDS)
    assert queue.find(ANN, running).final
    # no less than its computation takes
    assert entry.compute_seconds == entry.seconds < before
    await queue.availability.set_status("open", user="operator")
    assert (await queue.wait(ANN, waiting, SECONDS)).state == "Completed"
    actions = [action for _, action, _ in _audited(queue.store)]
    assert actions == ["drain", "set-time-scale", "open"]


async def test_what_cannot_be_written_down_is_not_done(queue: JobQueue) -> None:
    def fail(db: sqlite3.Connection) -> None:
        db.execute("DROP TABLE audit")

    await asyncio.wrap_future(queue.store.change(fail))
    noise = device_operations.find(queue, "set-noise")
    with pytest.raises(sqlite3.Error):
        await device_operations.run(queue, "operator", noise, {"noise": 2}, 1)
    assert emulated(queue).noise == 0
    assert not queue.device_lock.locked()
    with pytest.raises(sqlite3.Error):
        await queue.availability.set_status("closed")
    assert queue.availability.is_open


# the audit


async def test_an_audit_is_only_added_to(queue: JobQueue) -> None:
    await queue.availability.set_status("closed", "why", user="operator")
    for query in ("DELETE FROM audit", "UPDATE audit SET user = 'ann'"):
        changing = queue.store.change(methodcaller("execute", query))
        with pytest.raises(sqlite3.IntegrityError, match="only added to"):
            await asyncio.wrap_future(changing)
    (kept,) = audit.entries(queue.store, 10)
    assert kept.parameters == {"message": "why"}
    assert (kept.old["status"], kept.new["status"]) == ("open", "closed")
    assert audit.entries(queue.store, 10, before=kept.number) == []


@pytest.mark.process
async def test_an_admin_who_cancels_for_another_is_written_down(
    queue: JobQueue,
) -> None:
    lease = await _lease(queue)
    own = await _submit(queue, lease, "a", 100_000)
    others = await _submit(queue, lease, "b", 100_000)
    await queue.cancel(ANN, own)
    await queue.cancel(ADMIN, others)
    (kept,) = audit.entries(queue.store, 10)
    assert kept.parameters == {"job": others, "of": "ann"}
    assert kept.user == "operator"
    assert kept.new == {"state": "Cancelled"}
    assert kept.outcome == "done"


async def test_a_cancellation_is_stored_when_its_client_has_gone(
    queue: JobQueue,
) -> None:
    job = await _submit(queue, await _lease(queue), "a", 100_000)
    asked = asyncio.create_task(queue.cancel(ADMIN, job))
    await asyncio.sleep(0)  # it begins
    asked.cancel()
    (kept,) = await until(lambda: audit.entries(queue.store, 10))
    assert kept.new == {"state": "Cancelled"}


async def test_a_job_that_ends_before_its_cancellation_is_completed(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await _submit(queue, await _lease(queue), "a", 1000)

    async def too_late(_number: int, _why: Interruption) -> None:
        assert (await queue.wait(ANN, job, SECONDS)).final

    monkeypatch.setattr(queue.control, "cancel", too_late)
    assert (await queue.cancel(ADMIN, job)).state == "Completed"
    (kept,) = audit.entries(queue.store, 10)
    assert kept.new == {"state": "Completed"}
    assert kept.outcome == "not done: the job is Completed"


async def test_an_admin_who_releases_anothers_lease_is_written_down(
    queue: JobQueue,
) -> None:
    lease = await _lease(queue)
    await queue.leases.release(ADMIN, lease.id)
    await queue.leases.release(ADMIN, lease.id)
    (kept,) = audit.entries(queue.store, 10)
    assert (kept.user, kept.action) == ("operator", "release")
    assert kept.parameters == {"lease": lease.id, "of": "ann"}
    # their own, and one that its user gives back
    for who in (ADMIN, ANN):
        own = await queue.leases.acquire(who, LeaseRequest())
        await queue.leases.release(who, own.id)
    assert len(audit.entries(queue.store, 10)) == 1


async def test_to_open_tells_of_the_windows_that_it_takes_back(queue: JobQueue) -> None:
    window = await queue.availability.announce(
        "operator", time.time() + DAY, None, "cryostat"
    )
    await queue.availability.set_status("open", user="operator")
    assert queue.availability.windows == []
    kept, _ = audit.entries(queue.store, 10)
    assert (kept.action, kept.old["windows"]) == (
        "open",
        [dataclasses.asdict(window)],
    )
    assert kept.new["windows"] == []


# maintenance


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds by which the time of day is ahead of the system's; a test adds some."""
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])
    monkeypatch.setattr(windows, "CLOCK_CHECK_SECONDS", 0.01)
    return ahead


async def test_a_window_shuts_the_qpu_and_opens_it_again(
    queue: JobQueue, passing: list[float]
) -> None:
    lease = await _lease(queue)
    begins = time.time() + DAY
    ends = begins + DAY
    await queue.availability.announce("operator", begins, ends, "new laser")
    assert queue.availability.is_open
    passing[0] = DAY
    await until(lambda: not queue.availability.is_open)
    with pytest.raises(Refused, match=r"in maintenance until .*: new laser"):
        await _submit(queue, lease, "a", 1)
    assert time.time() >= begins
    assert queue.availability.status == "draining"
    passing[0] = 2 * DAY
    await until(lambda: queue.availability.is_open)
    assert time.time() >= ends
    assert queue.availability.windows == []
    job = await _submit(queue, lease, "b", 1)
    assert (await queue.wait(ANN, job, SECONDS)).state == "Completed"


async def test_only_jobs_that_end_before_a_window_start(
    queue: JobQueue,
) -> None:
    lease = await _lease(queue)
    # the long one takes two minutes, the short one a second
    begins = time.time() + 60
    ends = begins + 60
    queue.jobs.replace_device(emulated(queue).model_copy(update={"time_scale": 0.1}))
    window = await queue.availability.announce("operator", begins, ends, "")
    long = await _submit(queue, lease, "long", 5_000_000)
    short = await _submit(queue, lease, "short", 100)
    assert _seconds(queue, 5_000_000) > 60
    assert (await queue.wait(ANN, short, SECONDS)).state == "Completed"
    before = time.time()
    forecast = queue.forecasts.of(queue.find(ANN, long))
    assert forecast is not None
    assert forecast.eta_seconds is not None
    assert ends - time.time() <= forecast.eta_seconds <= ends - before
    assert queue.find(ANN, long).started is None
    await queue.availability.cancel_windows("operator", [window])
    await until(lambda: queue.find(ANN, long).started)


@pytest.mark.parametrize(
    ("windows", "wait", "seconds", "expected"),
    [
        ([], 5, 1, 5),
        ([(10, 20)], 5, 1, 5),
        ([(10, 20)], 5, 6, 20),
        ([(10, 20)], 15, 1, 25),
        ([(10, 20), (22, 30)], 15, 1, 33),
        ([(-5, 20)], 3, 1, 23),
        ([(10, None)], 5, 1, 5),
        ([(10, None)], 5, 6, None),
    ],
)
async def test_etas_go_around_the_windows(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    windows: list[tuple[float, float | None]],
    wait: float,
    seconds: float,
    expected: float | None,
) -> None:
    store, now = Store(path), time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    availability = Availability(store)
    for starts, ends in windows:
        until = None if ends is None else now + ends
        await availability.announce("operator", now + starts, until, "")
    told = seconds_until_start(availability, wait, seconds)
    assert told == (expected if expected is None else pytest.approx(expected))
    store.close()


async def test_windows_stay_over_a_restart(path: Path) -> None:
    store, now = Store(path), time.time()
    availability = Availability(store)
    await availability.announce("operator", now - 5, now + DAY, "lasts")
    await availability.announce("operator", now + 2 * DAY, None, "no end")
    store.close()
    store = Store(path)
    availability = Availability(store)
    assert [window.message for window in availability.windows] == ["lasts", "no end"]
    assert availability.status == "draining"
    await availability.set_status("open")  # which ends both
    assert availability.is_open
    assert Availability(store).windows == []
    store.close()


async def test_the_operators_switch_is_as_it_was_after_a_window(
    path: Path, passing: list[float]
) -> None:
    store, now = Store(path), time.time()
    availability = Availability(store)
    await availability.set_status("closed", "broken")
    window = await availability.announce("operator", now - 5, now + DAY, "")
    assert (availability.status, availability.message) == ("closed", "broken")
    changed = asyncio.create_task(availability.changed(window))
    await asyncio.sleep(0)  # it begins
    passing[0] = DAY
    await changed
    assert (availability.status, availability.window) == ("closed", None)
    store.close()


async def test_a_window_that_ends_as_it_is_looked_at_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path)
    availability = Availability(store)
    await availability.announce("operator", 0, time.time() + DAY, "")
    # it lasts when it is first looked at, and is over after that
    now = time.time()
    times = itertools.chain([now], itertools.repeat(now + 2 * DAY))
    monkeypatch.setattr(time, "time", lambda: next(times))
    async with asyncio.timeout(SECONDS):
        await availability.opened()
    store.close()


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(time_scale=0)) as running:
        yield running


def _announce(service: RunningService, **body: JSON) -> tuple[int, dict[str, JSON]]:
    answer = service.ask("POST", "/v1/device/maintenance", body)
    return answer.status, answer.json()


@pytest.mark.parametrize(
    ("starts", "ends", "status", "field"),
    [
        (10.0, 5.0, 422, "ends"),
        (-20.0, -10.0, 422, "ends"),
        (110.0, 120.0, 409, "starts"),
        (150.0, None, 409, "starts"),
        (None, 120.0, 422, "ends"),
        (1e300, None, 422, "starts"),
    ],
)
def test_a_window_that_cannot_be_is_refused(
    service: RunningService,
    starts: float | None,
    ends: float | None,
    status: int,
    field: str,
) -> None:
    now = time.time()
    assert _announce(service, starts=now + 100, ends=now + 200)[0] == 200
    body = {
        name: None if value is None else now + value
        for name, value in (("starts", starts), ("ends", ends))
    }
    told = _announce(service, **body)
    assert (told[0], told[1]["field"]) == (status, field)


def test_windows_are_listed_and_taken_back(service: RunningService) -> None:
    now = time.time()
    _announce(service, starts=now + 200, ends=now + 300, message="second")
    _, told = _announce(service, starts=now + 100, ends=now + 150, message="first")
    windows = told["windows"]
    assert isinstance(windows, list)
    found = [one for one in windows if isinstance(one, dict)]
    assert [one["message"] for one in found] == ["first", "second"]
    assert told["maintenance"] == now + 100
    path = f"/v1/device/maintenance/{found[0]['id']}"
    assert service.ask("DELETE", path).status == 200
    assert service.ask("DELETE", path).status == 404
    assert service.ask("GET", "/v1/device").json()["maintenance"] == now + 200


def test_candidates_go_around_a_window_with_an_end(service: RunningService) -> None:
    now = time.time()
    _announce(service, starts=now + 60, ends=now + 600)
    status = SfqQpu("q", service.url).status()
    assert status.online

    def decided(seconds: float) -> Decision:
        wait, until = status.eta_seconds, status.maintenance_seconds
        target = QuantumTarget("q", wait=wait, seconds=seconds, maintenance=until)
        return decide(
            StepRules(), CandidateJob(), [target], [ClassicalTarget("cpu")], now=0
        )

    assert decided(50).quantum
    longer = decided(70)
    assert (longer.quantum, longer.targets) == (False, ("cpu",))
    assert longer.exclusions["q"].cause is Obstacle.MAINTENANCE


def test_operations_over_http(service: RunningService) -> None:
    listed = service.ask("GET", "/v1/admin/operations")
    assert listed.status == 200
    path = "/v1/admin/operations/set-noise"
    dry: dict[str, JSON] = {"parameters": {"noise": 2}, "dry_run": True}
    answer = service.ask("POST", path, dry).json()
    assert (answer["old"], answer["new"]) == ({"noise": 0.0}, {"noise": 2.0})
    assert emulated(service.queue).noise == 0
    assert audit.entries(service.queue.store, 10) == []
    assert service.ask("POST", path, {"parameters": {"noise": 2}}).status == 200
    assert emulated(service.queue).noise == 2
    for parameters, field in (
        ({"noise": 101}, "parameters.noise"),
        ({"noise": "2"}, "parameters.noise"),
        ({"nose": 2}, "parameters.nose"),
        ({}, "parameters"),
    ):
        wrong = service.ask("POST", path, {"parameters": {**parameters}})
        assert (wrong.status, wrong.json()["field"]) == (422, field)
    assert service.ask("POST", "/v1/admin/operations/melt", {}).status == 404
    service.ask("PATCH", "/v1/device", {"vqpus": 3})
    latest, *_ = audit.entries(service.queue.store, 1)
    assert latest.action == "set vqpus"
    assert (latest.old, latest.new) == ({"vqpus": 1}, {"vqpus": 3})


def test_a_sites_bounds_hold() -> None:
    device = EmulatedDevice(time_scale=0, bounds={"noise": [0.0, 3.0]})
    with running_service(device) as service:
        path = "/v1/admin/operations/set-noise"
        assert service.ask("POST", path, {"parameters": {"noise": 3}}).status == 200
        wrong = service.ask("POST", path, {"parameters": {"noise": 4}}).json()
        assert wrong["detail"] == "expected 0 to 3"


def test_users_set_nothing_and_see_no_audit() -> None:
    with running_service(
        EmulatedDevice(time_scale=0), authenticate=FixedIdentity(ANN)
    ) as service:
        assert service.ask("GET", "/v1/device/maintenance").status == 200
        for method, path in (
            ("GET", "/v1/admin/operations"),
            ("GET", "/v1/admin/audit"),
            ("POST", "/v1/admin/operations/recalibrate"),
            ("POST", "/v1/device/maintenance"),
            ("DELETE", "/v1/device/maintenance/1"),
        ):
            body: dict[str, JSON] | None = None
            if method == "POST":
                body = {"starts": None} if path.endswith("maintenance") else {}
            assert service.ask(method, path, body).status == 403

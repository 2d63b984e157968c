"""What ``GET /v1/activity`` tells to whom, and how the page is sent."""

from __future__ import annotations

import http.client
import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from starlette.requests import HTTPConnection

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.jobs import Identity, Lease, Submission
from sf_quantum.service.http.auth import Unauthorized
from sf_quantum.service.page import activity, routes
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.store.recovery import recover
from sf_quantum.service.store.reports.operation import (
    KEPT_SECONDS,
    Operation,
    periods,
    record,
)
from sf_quantum.service.store.reports.usage import Filter, Page, usage_report
from sf_quantum.service.store.reports.utilisation import (
    MINUTES,
    Minute,
    UtilisationHistory,
)
from sf_quantum.service.store.slices import Slice
from sf_quantum.service.store.store import Store
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import until

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")

PATH = "/v1/activity"


async def _by_header(connection: HTTPConnection) -> Identity:
    user = connection.headers.get("authorization", "")
    if user not in ("ada", "bob", "admin"):
        raise Unauthorized("who?", "Authorization", "Bearer")
    return Identity(user, admin=user == "admin")


@pytest.fixture
def service() -> Iterator[RunningService]:
    """A service with users, whose jobs take minutes."""
    device = EmulatedDevice(technology="neutral-atom", noise=1.0)
    with running_service(device, vqpus=4, authenticate=_by_header) as running:
        yield running


def _lease(service: RunningService, user: str, job_class: str) -> str:
    body: dict[str, JSON] = {"class": job_class, "job": f"of {user}"}
    headers = {"Authorization": user}
    return str(service.ask("POST", "/v1/leases", body, headers=headers).json()["id"])


def _submit(
    service: RunningService,
    user: str,
    lease: str,
    key: str,
    purpose: str | None = None,
) -> None:
    body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": key}
    body["purpose"] = purpose
    headers = {"Authorization": user}
    answer = service.ask("POST", "/v1/jobs", body, lease=lease, headers=headers)
    assert answer.status == 201, answer.body


def _told(service: RunningService, user: str = "") -> dict[str, JSON]:
    headers = {"Authorization": user} if user else {}
    return service.ask("GET", PATH, headers=headers).json()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered for a second."""
    monkeypatch.setattr(activity, "FRESH_SECONDS", 0.0)


def _get(
    service: RunningService, path: str, etag: str = ""
) -> http.client.HTTPResponse:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(service.url.removeprefix("unix:"))
        known = f"If-None-Match: {etag}\r\n" if etag else ""
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{known}\r\n"
        connection.sendall(request.encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer


def _rows(told: dict[str, JSON]) -> list[JSON]:
    """The line: keys of the jobs shown, and counts of the others."""
    line = told["line"]
    assert isinstance(line, list)
    return [
        row["idempotency_key"] if "id" in row else [row["jobs"], row["classes"]]
        for row in line
        if isinstance(row, dict)
    ]


@pytest.mark.none_ahead
def test_everybody_sees_the_same_line_in_their_own_way(service: RunningService) -> None:
    leases = {
        (user, job_class): _lease(service, user, job_class)
        for user, job_class in [
            *(("bob", "production"), ("ada", "test"), ("bob", "development")),
        ]
    }
    _submit(service, "bob", leases["bob", "production"], "runs")
    service.until(leases["bob", "production"], "Running")
    for number in range(2):
        for (user, job_class), lease in leases.items():
            _submit(service, user, lease, f"{user}-{job_class}-{number}")

    told = {user: _told(service, user) for user in ("ada", "bob", "admin", "")}
    assert [one["sees"] for one in told.values()] == ["own", "own", "all", "counts"]
    assert _rows(told["ada"]) == [
        [2, {"production": 2}],
        *("ada-test-0", "ada-test-1"),
        [2, {"development": 2}],
    ]
    assert _rows(told["bob"]) == [
        *("bob-production-0", "bob-production-1"),
        [2, {"test": 2}],
        *("bob-development-0", "bob-development-1"),
    ]
    assert [row for row in _rows(told["admin"]) if isinstance(row, list)] == []
    assert _rows(told[""]) == []
    counts = {"production": 2, "test": 2, "development": 2}
    assert all(one["waiting"] == counts for one in told.values())
    assert told["ada"]["running"] == {"jobs": 1, "classes": {"production": 1}}
    assert isinstance(told["bob"]["running"], dict)
    assert told["bob"]["running"]["idempotency_key"] == "runs"
    for user, shown in {"ada": 1, "bob": 2, "admin": 3, "": 0}.items():
        held = told[user]["leases"]
        assert isinstance(held, dict)
        assert isinstance(held["shown"], list)
        assert (held["held"], len(held["shown"])) == (3, shown)
    for user, text in {user: json.dumps(one) for user, one in told.items()}.items():
        assert not any(lease in text for lease in leases.values()), user
    for text in (json.dumps(told["ada"]), json.dumps(told[""])):
        assert "bob" not in text
        assert "runs" not in text


@pytest.mark.none_ahead
def test_positions_and_starts_are_those_of_the_job_itself(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = _lease(service, "ada", "test")
    for number in range(3):
        _submit(service, "ada", lease, f"job {number}")
    service.until(lease, "Running")
    with monkeypatch.context() as patch:
        # all in one pass
        patch.setattr(PendingJobs, "work_ahead", None)
        line = _told(service, "ada")["line"]
    assert isinstance(line, list)
    assert len(line) == 2
    for shown in line:
        assert isinstance(shown, dict)
        headers, before = {"Authorization": "ada"}, time.time()
        job = service.ask("GET", f"/v1/jobs/{shown['id']}", headers=headers).json()
        after = time.time()
        assert shown["position"] == job["position"]
        assert isinstance(shown["starts"], float)
        assert isinstance(job["eta_seconds"], float)
        asked = shown["starts"] - job["eta_seconds"]
        assert before - 1 <= asked <= after + 1


@pytest.mark.none_ahead
def test_a_job_has_the_name_that_its_user_gave_it(service: RunningService) -> None:
    bare = service.ask("POST", "/v1/leases", {}, headers={"Authorization": "ada"})
    lease, unnamed = _lease(service, "ada", "test"), str(bare.json()["id"])
    for key in ("runs", "of its lease", "sapi", "sapi unnamed"):
        _submit(service, "ada", lease, key)
    _submit(service, "ada", lease, "purpose", "its own")
    for key in ("unnamed", "warden"):
        _submit(service, "ada", unnamed, key)
    service.until(lease, "Running")

    def change(db: sqlite3.Connection) -> None:
        for key, dialect, metadata in (
            ("sapi", "sapi", '{"label": "<b>"}'),
            ("sapi unnamed", "sapi", '{"label": null}'),
            ("warden", "warden", None),
        ):
            query = "UPDATE jobs SET dialect = ?, metadata = ? WHERE key = ?"
            db.execute(query, (dialect, metadata, key))

    service.queue.store.change(change).result()
    told = _told(service, "ada")
    assert isinstance(told["line"], list)
    rows = [row for row in (told["running"], *told["line"]) if isinstance(row, dict)]
    by_key = {str(row["idempotency_key"]): row for row in rows}
    assert {key: row["label"] for key, row in by_key.items()} == {
        "runs": "of ada",
        "of its lease": "of ada",
        "purpose": "its own",
        "sapi": "<b>",
        "sapi unnamed": "of ada",
        **dict.fromkeys(("unnamed", "warden")),
    }
    assert by_key["warden"]["short_id"] == "7"
    for key in by_key.keys() - {"warden"}:
        assert str(by_key[key]["id"])[:8] == by_key[key]["short_id"]


@pytest.mark.none_ahead
def test_ones_own_job_is_found_however_far_back(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "LISTED", 3)
    monkeypatch.setattr(activity, "OWN", 1)
    ada, bob = _lease(service, "ada", "test"), _lease(service, "bob", "test")
    for number in range(6):
        _submit(service, "bob", bob, f"bob {number}")
    service.until(bob, "Running")
    for number in range(3):
        _submit(service, "ada", ada, f"ada {number}")
    told = _told(service, "ada")
    # 5 wait before; of three the class is known; two of one's own are not listed
    assert _rows(told) == [[5, {"test": 3}], "ada 0", [2, {}]]
    assert _rows(_told(service, "admin")) == ["bob 1", "bob 2", "bob 3", [5, {}]]


def test_a_second_is_read_once_for_all(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "FRESH_SECONDS", 60.0)
    reads = list[float]()
    minutes = UtilisationHistory.minutes

    def counted(busy: UtilisationHistory, now: float) -> list[Minute]:
        reads.append(now)
        return minutes(busy, now)

    monkeypatch.setattr(UtilisationHistory, "minutes", counted)
    for user in ("ada", "bob", "", "ada"):
        _told(service, user)
    assert len(reads) == 1


def test_what_has_not_changed_is_not_sent_again(service: RunningService) -> None:
    etag = str(_get(service, PATH).headers["ETag"])
    again = _get(service, PATH, etag)
    assert (again.status, again.read()) == (304, b"")
    _lease(service, "ada", "test")
    assert _get(service, PATH, etag).status == 200


def test_a_credential_that_does_not_hold_is_refused(service: RunningService) -> None:
    for name in routes.CREDENTIALS:
        assert service.ask("GET", PATH, headers={name: "eve"}).status == 401


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_no_page_loads_scripts_from_elsewhere(
    service: RunningService, path: str
) -> None:
    assert service.ask("GET", path).status == 404


@pytest.mark.parametrize("file", ["", "page.css", "page.js", "charts.js", "page.svg"])
def test_the_page_is_sent_under_a_strict_policy(
    service: RunningService, file: str
) -> None:
    answer = _get(service, f"/{file}")
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert _get(service, f"/{file}", answer.headers["ETag"]).status == 304
    content = service.ask("GET", f"/{file}").body
    for word in (b"innerHTML", b"http-equiv", b"style=", b"https:"):
        assert word not in content
    assert service.ask("GET", "/page.py").status == 404


def test_maintenance_and_a_closed_qpus_message_are_reported() -> None:
    with running_service() as service:
        starts = time.time() + 600
        service.ask("POST", "/v1/device/maintenance", {"starts": starts})
        device = _told(service)["device"]
        assert isinstance(device, dict)
        assert isinstance(device["maintenance"], dict)
        assert device["maintenance"]["starts"] == starts
        service.ask("POST", "/v1/device/close", {"message": "a leak"})
        device = _told(service)["device"]
        assert isinstance(device, dict)
        assert (device["status"], device["reason"]) == (
            *("closed", "the QPU is closed: a leak"),
        )
        assert device["closed_by"] == "local"
        service.ask("POST", "/v1/device/open", {})
        device = _told(service)["device"]
        assert isinstance(device, dict)
        assert device["closed_by"] is None


@pytest.mark.none_ahead
def test_a_job_that_cannot_start_says_why(service: RunningService) -> None:
    lease = _lease(service, "ada", "test")
    for key in ("a", "b"):
        _submit(service, "ada", lease, key)
    service.until(lease, "Running")
    by_admin = {"Authorization": "admin"}
    service.ask("POST", "/v1/device/drain", {"message": "a leak"}, headers=by_admin)
    line = _told(service, "ada")["line"]
    assert isinstance(line, list)
    assert [(row["starts"], row["note"]) for row in line if isinstance(row, dict)] == [
        (None, "the QPU is being drained: a leak")
    ]


def test_maintenance_is_told_apart_from_other_reasons() -> None:
    with running_service() as service:
        store = service.queue.store
        starts, ends = time.time() - 60, time.time() + 600
        windows: list[dict[str, JSON]] = [
            {"starts": starts, "ends": ends, "message": "cooling"},
            {"starts": ends + 600, "ends": ends + 900, "message": ""},
        ]
        for window in windows:
            service.ask("POST", "/v1/device/maintenance", window)

        def noted(*expected: str) -> bool:
            return tuple(one.status for one in periods(store, 0.0, ends)) == expected

        device = _told(service)["device"]
        assert isinstance(device, dict)
        assert (device["status"], device["in_maintenance"]) == ("draining", True)
        assert device["windows"] == windows
        until(lambda: noted("open", "maintenance"), "the maintenance on disk")
        # an operator's own status holds in the window, which is maintenance all the same
        service.ask("POST", "/v1/device/close", {"message": "a leak"})
        device = _told(service)["device"]
        assert isinstance(device, dict)
        assert (device["status"], device["in_maintenance"]) == ("closed", False)
        service.ask("POST", "/v1/device/open", {})
        until(lambda: noted("open", "maintenance", "open"), "its end")
        service.ask("POST", "/v1/device/drain", {})
        until(lambda: noted("open", "maintenance", "open", "draining"), "the drain")
        utilisation = _told(service)["utilisation"]
        assert isinstance(utilisation, dict)
        for minutes in (utilisation["minutes"], utilisation["statuses"]):
            assert isinstance(minutes, list)
            # there was no service
            assert set(map(str, minutes[:55])) == {"None"}
            assert minutes[-1] is not None


@pytest.mark.parametrize("state", ["Queued", "Completed"])
def test_a_job_between_two_states_is_not_shown_as_running(
    service: RunningService, state: str
) -> None:
    lease = _lease(service, "ada", "test")
    _submit(service, "ada", lease, "a")
    service.until(lease, "Running")
    assert _told(service, "ada")["running"] is not None

    def change(db: sqlite3.Connection) -> None:
        db.execute("UPDATE jobs SET state = ?, started = NULL", (state,))

    # as before the device has it, or when it has just let go of it
    service.queue.store.change(change).result()
    answer = service.ask("GET", PATH, headers={"Authorization": "ada"})
    assert (answer.status, answer.json()["running"]) == (200, None)


def _renewed_each_1000_seconds(now: list[float]) -> EmulatedDevice:
    return EmulatedDevice(
        name="d",
        technology="superconducting",
        time_scale=0.0,
        qubits=20,
        noise=1.0,
        calibration_seconds=1000.0,
        seed=1,
        clock=lambda: now[0],
        started=1e9,
    )


# the calibrations that it draws are the emulated device's
@pytest.mark.devices
def test_the_calibration_is_told_with_its_drift() -> None:
    now = [1e9]
    device = _renewed_each_1000_seconds(now)
    with running_service(device) as service:
        now[0] += 2500
        told = _told(service)["calibration"]
        assert isinstance(told, dict)
        assert told["id"] == device.calibrations.present.id
        assert told["renewals"] == [1e9, 1e9 + 1000, 1e9 + 2000]
        values = told["values"]
        assert isinstance(values, list)
        named = {one["name"]: one for one in values if isinstance(one, dict)}
        assert {name: one["value"] for name, one in named.items()} == (
            device.calibrations.reading.values
        )
        history = named["readout_false_one"]["history"]
        assert isinstance(history, list)
        assert isinstance(told["times"], list)
        assert len(history) == len(told["times"]) == 64
        # just before and just after it was renewed
        before, after = history[49], history[50]
        assert isinstance(before, float)
        assert isinstance(after, float)
        assert before > 1.5 * after


# the calibrations that it draws are the emulated device's
@pytest.mark.devices
def test_a_calibration_is_reported_only_once_it_is_set() -> None:
    now = [1e9]
    device = _renewed_each_1000_seconds(now)
    with running_service(device) as service:
        now[0] += 2500
        body: dict[str, JSON] = {"parameters": {"noise": 4}}
        set_ = service.ask("POST", "/v1/admin/operations/set-noise", body)
        assert set_.status == 200
        told = _told(service)["calibration"]
        assert isinstance(told, dict)
        assert (told["times"], told["renewals"]) == ([1e9 + 2500], [])
        now[0] += 600
        told = _told(service)["calibration"]
        assert isinstance(told, dict)
        assert isinstance(told["times"], list)
        assert (told["times"][0], len(told["times"])) == (1e9 + 2520, 16)
        assert told["renewals"] == [1e9 + 3000]


def _operated(store: Store, *rows: tuple[str, float, float]) -> None:
    def change(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM operation")
        db.executemany("INSERT INTO operation VALUES (?, ?, ?)", rows)

    store.change(change).result()


def _parts(busy: UtilisationHistory, now: float) -> list[float | None]:
    return [minute.part for minute in busy.minutes(now)]


def test_minutes_without_a_service_are_not_idle(tmp_path: Path) -> None:
    store, minute = Store(tmp_path / "s"), 60.0 * 20_000_000
    busy = UtilisationHistory(store)
    assert set(_parts(busy, minute)) == {None}
    _operated(
        store,
        ("open", minute - 1770, minute - 1200),
        ("closed", minute - 1200, minute - 1080),
        # the service was down for ten minutes and a half
        ("maintenance", minute - 450, minute - 140),
        ("open", minute - 140, minute - 140),
    )
    minutes = busy.minutes(minute + 30)
    assert [minute.status for minute in minutes] == [
        *[None] * 29,
        *["open"] * 10,
        *["closed"] * 2,
        *[None] * 10,
        *["maintenance"] * 6,
        *["open"] * 3,
    ]
    assert [m.part is None for m in minutes] == [m.status is None for m in minutes]
    assert [minutes[at].seconds for at in (29, 30, 51, 56, 59)] == [30, 60, 30, 60, 30]
    assert [*periods(store, minute - 200, minute)] == [
        ("maintenance", minute - 450, minute - 140),
        ("open", minute - 140, minute),
    ]
    store.close()


def test_the_times_of_operation_are_kept_over_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    now = [1000.0]
    store.clock = lambda: now[0]
    for passed, status, starts in (
        (0, "open", True),
        (20, "open", False),
        (10, "closed", False),
        # a service that was down
        (70, "closed", True),
    ):
        now[0] += passed
        record(store, cast("Operation", status), starts=starts).result()
    assert [*periods(store, 0.0, 1110.0)] == [
        ("open", 1000.0, 1030.0),
        ("closed", 1030.0, 1030.0),
        ("closed", 1100.0, 1110.0),
    ]
    now[0] += KEPT_SECONDS + 1
    record(store, "open", starts=True).result()
    assert [*periods(store, 0.0, now[0])] == [("open", now[0], now[0])]
    store.close()


def test_a_service_that_starts_again_was_down_before(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for times in (1, 2):
        with running_service(state=path) as service:
            _told(service)  # it has started
            found = [*periods(service.queue.store, 0.0, service.queue.store.clock())]
            assert [period.status for period in found] == ["open"] * times


def test_minutes_are_busy_for_as_long_as_jobs_ran(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    minute, lost = 60.0 * 20_000_000, list[tuple[float, float]]()
    busy = UtilisationHistory(store, lost)
    # id, user, class, six of no account, when it was opened, and no end
    first = Lease("l", "ada", "test", None, None, None, None, None, None, 0.0, None)
    store.leases.add(first).result()

    def ran(begin: float, end: float | None) -> None:
        key, seconds = f"{begin}", (end or begin) - begin
        asked = Submission("problem", {}, {"num_reads": 1}, key)
        job, _ = store.jobs.add(first, asked, 1.0).result()
        state = "Running" if end is None else "Completed"
        query = (
            "UPDATE jobs SET state = ?, started_steady = ?, ended_steady = ?, seconds = ? "
            "WHERE number = ?"
        )
        values = state, begin, end, seconds, job.number
        store.change(lambda db: db.execute(query, values)).result()

    _operated(store, ("open", minute - 4000, minute - 4000))
    ran(minute - 3600, minute - 3570)  # too long ago
    ran(minute - 3540, minute - 3525)
    ran(minute - 600, minute - 585)
    ran(minute - 580, minute - 565)
    ran(minute - 210, minute - 90)  # over two ends of a minute
    minutes = _parts(busy, minute + 30)
    assert len(minutes) == MINUTES
    expected = {0: 0.25, 49: 0.5, 55: 0.5, 56: 1.0, 57: 0.5}
    assert minutes == [expected.get(place, 0.0) for place in range(MINUTES)]
    # attempts that were interrupted, the first one long ago
    lost += [(minute - 3700, minute - 3600), (minute - 90, minute - 75)]
    assert _parts(busy, minute + 30)[57] == 0.75
    lost.clear()
    ran(minute + 15, None)
    assert _parts(busy, minute + 30)[-1] == 0.5
    # what was read once is neither lost nor counted twice
    later = _parts(busy, minute + 330)
    assert later[44:53] == [0.5, 0, 0, 0, 0, 0, 0.5, 1.0, 0.5]
    assert later[54:] == [0.75, 1, 1, 1, 1, 1]
    store.close()


# lost attempts have no times on disk, finished slices have
@pytest.mark.parametrize(("attempts", "sliced"), [(1, 0.0), (2, 0.0), (1, 30.0)])
def test_a_service_that_was_down_was_not_busy(
    tmp_path: Path, attempts: int, sliced: float
) -> None:
    store = Store(tmp_path / "s")
    now = store.clock()
    # closed from the start, as that of a quality job
    closed = Lease(
        *("l", "ada", "test", None, None, None, None, None, None, now, None, now)
    )
    store.leases.add(closed).result()
    asked = Submission("problem", {}, {"num_reads": 1}, "k")
    job, _ = store.jobs.add(closed, asked, 1.0).result()
    for _ in range(1, attempts):
        store.progress.start(job.number).result()
        store.progress.put_back(job.number, "pre-empted", (6.0, 6.0)).result()
    store.progress.start(job.number).result()
    if sliced:
        finished = Slice(1, "{}", {}, seconds=sliced)
        store.slices.end(job.number, finished).result()

    def earlier(db: sqlite3.Connection) -> None:
        db.execute(
            "UPDATE jobs SET submitted_steady = ?, started_steady = ?",
            (now - 3020, now - 3000),
        )

    store.change(earlier).result()
    recover(store, 3).result()
    minutes = UtilisationHistory(store).minutes(now)
    assert sum(minute.busy for minute in minutes) == pytest.approx(sliced)
    # it waited until it ran, and not until the next service came
    (row,) = usage_report(store, "user", Filter("ended"), Page(1, 0)).rows
    assert row.wait_seconds == pytest.approx(20)
    store.close()

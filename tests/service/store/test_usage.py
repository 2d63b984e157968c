"""Who used the QPU: sums over jobs that are over, also over those that are forgotten."""

from __future__ import annotations

import csv
import http.client
import io
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlencode

import pytest

from sf_quantum.files import JSON
from sf_quantum.protocol.usage_columns import KEYS, By
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.jobs import Identity, Job, Lease, State, Submission
from sf_quantum.service.store.reports import usage
from sf_quantum.service.store.reports.usage import Filter, Page
from sf_quantum.service.store.retention import HOUR, purge
from sf_quantum.service.store.slices import Slice
from sf_quantum.service.store.store import Store
from sf_quantum.text import exact_utc
from tests.support.service import RunningService, example_bqm, running_service

pytestmark = pytest.mark.devices("sfq", "dwave", "acme", always=["acme"])

RUN = "20261121T150444Z-4711"
ALL = Filter("ended")
PAGE = Page(100, 0)


def _lease(
    store: Store,
    id_: str,
    user: str,
    *,
    job: str | None = None,
    slurm: str | None = None,
    project: str | None = None,
) -> Lease:
    lease = Lease(
        *(id_, user, "test", job, slurm, None, None, None, None),
        opened=1.0,
        expires=None,
        project=project,
        slurm_cluster=slurm and "hpc",
        slurm_account=slurm and "physics",
    )
    store.leases.add(lease).result()
    return lease


def _used(
    store: Store,
    lease: Lease,
    *seconds: float,
    state: State = "Completed",
    purpose: str | None = None,
    cost: float | None = None,
) -> Job:
    """A job that had so many seconds in each of its attempts."""
    number = store.jobs.latest()[-1].number + 1 if store.jobs.latest() else 1
    asked = Submission("problem", {}, {"num_reads": 1}, f"{number}", purpose=purpose)
    job = store.jobs.add(lease, asked, 1.0).result()[0]
    for used in seconds[:-1]:
        store.progress.start(job.number).result()
        store.progress.put_back(job.number, "pre-empted", (used, used / 2)).result()
    store.progress.start(job.number).result()
    last = (seconds[-1], seconds[-1] / 2)
    ended = store.progress.finish(job.number, state, note=None, used=last, cost=cost)
    return ended.result()


def _rows(store: Store, by: By, wanted: Filter = ALL) -> list[tuple[object, ...]]:
    report = usage.usage_report(store, by, wanted, PAGE)
    names = (*KEYS[by], "jobs", "qpu_seconds")
    return [tuple(getattr(row, name) for name in names) for row in report.rows]


def test_all_jobs_that_are_over_count_with_their_last_attempt(store: Store) -> None:
    ann, bob = _lease(store, "1", "ann"), _lease(store, "2", "bob")
    _used(store, ann, 1.0, 2.0, 4.0)
    _used(store, ann, 8.0, state="Cancelled")
    _used(store, bob, 16.0, state="Failed")
    waits = store.jobs.add(ann, Submission("problem", {}, {}, "w"), 1.0).result()[0]
    assert _rows(store, "user") == [("bob", 1, 16.0), ("ann", 2, 12.0)]
    report = usage.usage_report(store, "user", ALL, PAGE)
    states = [(r.completed, r.failed, r.cancelled) for r in report.rows]
    assert states == [(0, 1, 0), (1, 0, 1)]
    assert (report.total.qpu_seconds, report.total.seconds) == (28.0, 14.0)
    ended = store.progress.cancel_waiting(waits.number, "cancelled").result()
    assert ended.ended is not None
    longest = usage.usage_report(store, "user", ALL, PAGE).total.longest_wait_seconds
    # by a steady clock
    assert longest > ended.ended - ended.submitted - 1e-3


def _lost(store: Store, by: By = "user") -> list[tuple[object, ...]]:
    names = ("lost_attempts", "lost_qpu_seconds", "lost_seconds", "cost")
    rows = usage.usage_report(store, by, ALL, PAGE).rows
    return [tuple(getattr(row, name) for name in names) for row in rows]


def test_lost_attempts_are_in_columns_of_their_own(store: Store) -> None:
    ann = _lease(store, "1", "ann")
    _used(store, ann, 1.0, 2.0, 4.0)
    _used(store, ann, 8.0, cost=0.5)
    _used(store, _lease(store, "2", "bob"), 1.0)
    assert _lost(store) == [(2, 3.0, 1.5, 0.5), (0, 0.0, 0.0, None)]
    row, *_ = usage.jobs(store, Filter("jobs.ended"), PAGE)[1]
    assert (row["lost_attempts"], row["lost_qpu_seconds"]) == (2, 3.0)
    purge(store, store.clock() + 1).result()
    assert _lost(store) == [(2, 3.0, 1.5, 0.5), (0, 0.0, 0.0, None)]


def test_the_use_of_a_job_that_is_over_stays_where_it_is(store: Store) -> None:
    first = _lease(store, "1", "ann", project="qc", slurm="7", job="j")
    job = _used(store, first, 4.0)
    store.leases.close("1", "released", "").result()
    before = {by: _rows(store, by) for by in KEYS}
    for id_ in ("2", "3"):
        later = _lease(store, id_, "ann", project="climate", slurm="8", job="k")
        asked = Submission("problem", {}, {"num_reads": 1}, job.key)
        moved, new = store.jobs.add(later, asked, 1.0).result()
        assert (moved.lease, new) == (id_, False)
        assert {by: _rows(store, by) for by in KEYS} == before
    store.change(
        lambda db: db.execute("UPDATE leases SET closed = 2.0, closed_steady = 2.0")
    ).result()
    rows = usage.leases(store, Filter("closed"), PAGE)[1]
    assert {row["id"]: row["jobs"] for row in rows} == {"1": 1, "2": 0, "3": 0}
    # a lease is kept as long as the jobs that are charged to it
    purge(store, 3.0).result()
    assert {by: _rows(store, by) for by in KEYS} == before
    purge(store, store.clock() + 1).result()
    assert {by: _rows(store, by) for by in KEYS} == before
    assert store.leases.latest() == []


def test_a_moved_job_is_charged_to_its_new_lease(
    store: Store,
) -> None:
    asked = Submission("problem", {}, {"num_reads": 1}, "k")
    for project in ("qc", "climate"):
        lease = _lease(store, project, "ann", project=project)
        job, _ = store.jobs.add(lease, asked, 1.0).result()
    store.progress.start(job.number).result()
    store.progress.finish(job.number, "Completed", note=None, used=(4.0, 2.0)).result()
    assert _rows(store, "project") == [("climate", 1, 4.0)]


def test_finished_slices_count_when_their_job_has_ended(store: Store) -> None:
    lease = _lease(store, "1", "ann")
    asked = Submission("problem", {}, {"num_reads": 2}, "k")
    job, _ = store.jobs.add(lease, asked, 1.0).result()
    store.progress.start(job.number).result()
    store.slices.end(job.number, Slice(1, "{}", {}, qpu_seconds=3.0)).result()
    assert usage.used_by_leases(store, ["1"]) == {}
    assert _rows(store, "user") == []
    store.progress.finish(job.number, "Completed", note=None, used=(4.0, 2.0)).result()
    assert usage.used_by_leases(store, ["1"]) == {"1": 4.0}
    assert _rows(store, "user") == [("ann", 1, 4.0)]


@pytest.mark.parametrize(
    ("purpose", "run", "step"),
    [
        (f"{RUN}:/loop/solve/0.1", RUN, "/loop/solve"),
        (f"{RUN}:/solve2/0", RUN, "/solve2"),
        ("/solve/0", None, "/solve"),
        ("python3.12", None, "python3.12"),
        ("https://host/0", None, "https://host/0"),
        (f"{RUN}: /solve/0", None, f"{RUN}: /solve/0"),
        (None, None, "of the lease"),
        ("", None, ""),
    ],
)
def test_a_purpose_names_run_and_step(
    store: Store, purpose: str | None, run: str | None, step: str
) -> None:
    lease = _lease(store, "1", "ann", job="of the lease")
    _used(store, lease, 1.0, purpose=purpose)
    assert _rows(store, "step") == [("ann", run, step, 1, 1.0)]


def test_every_report_has_the_same_total(store: Store) -> None:
    for number in range(6):
        slurm = str(number // 2) if number % 3 else None
        user, project = ("ann", "qc") if number < 4 else ("bob", None)
        lease = _lease(store, str(number), user, slurm=slurm, project=project)
        _used(store, lease, 1.0 + number, purpose=f"{RUN}:/s{number % 2}/0.{number}")
    for by in KEYS:
        rows = _rows(store, by)
        assert sum(float(str(row[-1])) for row in rows) == 21.0
    slurm_job = ("1", "ann", "hpc", "physics")
    assert (*slurm_job, 1, 3.0) in _rows(store, "slurm-job")
    assert ("physics", "hpc", 4, 16.0) in _rows(store, "slurm-account")
    pairs = [("bob", None, 2, 11.0), ("ann", "qc", 4, 10.0)]
    assert _rows(store, "user-project") == pairs
    months = {str(row[0]) for row in _rows(store, "month-user-project")}
    assert months == {str(row[0]) for row in _rows(store, "month")}
    assert all(re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", month) for month in months)
    assert _rows(store, "project") == [(None, 2, 11.0), ("qc", 4, 10.0)]
    first = usage.usage_report(store, "lease", ALL, Page(2, 1))
    assert (first.count, [row.lease for row in first.rows]) == (6, ["4", "3"])
    assert first.total.jobs == 6


def test_what_the_store_forgets_is_accounted_by_the_hour(store: Store) -> None:
    lease = _lease(store, "1", "ann", job="j")
    jobs = [_used(store, lease, 1.0, 2.0), _used(store, lease, 4.0, state="Failed")]
    before = {by: _rows(store, by) for by in KEYS}
    store.leases.close("1", "released", "").result()
    assert purge(store, store.clock() + 1).result() == 2
    assert store.jobs.latest() == []
    assert store.leases.get("1") is None
    assert {by: _rows(store, by) for by in KEYS} == before
    ended = jobs[0].ended or 0.0
    hour = HOUR * (ended // HOUR)
    assert _rows(store, "user", Filter("ended", hour + 1)) == []
    assert _rows(store, "user", Filter("ended", hour, hour + 1)) == before["user"]


@pytest.fixture
def service() -> Iterator[RunningService]:
    async def caller(request: object) -> Identity:
        name = request.headers.get("X-User", "ann")  # type: ignore[attr-defined]
        return Identity(str(name), admin=name == "operator")

    with running_service(
        EmulatedDevice(time_scale=0), vqpus=4, authenticate=caller
    ) as running:
        for user, purpose in (("ann", f"{RUN}:/a/0"), ("bob", "=HYPERLINK(0)")):
            headers = {"X-User": user}
            lease = running.ask("POST", "/v1/leases", {"job": "j"}, headers=headers)
            body: dict[str, JSON] = {"problem": example_bqm(), "purpose": purpose}
            id_ = str(lease.json()["id"])
            asked = {**body, "idempotency_key": user}
            job = running.ask("POST", "/v1/jobs", asked, lease=id_, headers=headers)
            running.ask("GET", f"/v1/jobs/{job.json()['id']}?wait=60", headers=headers)
        yield running


def _ask(
    service: RunningService, query: str, user: str = "operator"
) -> dict[str, JSON]:
    path = f"/v1/accounting?{query}"
    return service.ask("GET", path, headers={"X-User": user}).json()


def test_users_see_their_own_and_admins_all(service: RunningService) -> None:
    def users(user: str) -> list[str]:
        rows = _ask(service, "by=user", user)["rows"]
        assert isinstance(rows, list)
        return sorted(str(row["user"]) for row in rows if isinstance(row, dict))

    assert users("ann") == ["ann"]
    assert users("operator") == ["ann", "bob"]
    total = _ask(service, "by=step&limit=1")["total"]
    assert isinstance(total, dict)
    assert total["jobs"] == 2


def test_csv_has_the_same_rows_and_no_formulas(service: RunningService) -> None:
    path = "/v1/accounting?by=step&format=csv"
    answer = service.ask("GET", path, headers={"X-User": "operator"})
    rows = [*csv.DictReader(io.StringIO(answer.body.decode()))]
    assert sorted(row["step"] for row in rows) == ["'=HYPERLINK(0)", "/a"]
    told = _ask(service, "by=step")["rows"]
    assert isinstance(told, list)
    seconds = {row["user"]: row["qpu_seconds"] for row in told if isinstance(row, dict)}
    assert {row["user"]: float(row["qpu_seconds"]) for row in rows} == seconds


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_period_ends_with_the_calendar(service: RunningService, form: str) -> None:
    # In UTC, these are of the year before the first, and after the last.
    period = "from=0001-01-01T00:00%2B14:00&until=9999-12-31T23:59-14:00"
    path = f"/v1/accounting?by=user&format={form}&{period}"
    answer = service.ask("GET", path, headers={"X-User": "operator"})
    assert answer.status == 200
    if form == "csv":
        rows = [*csv.DictReader(io.StringIO(answer.body.decode()))]
        assert {row["until"] for row in rows} == {"9999-12-31T23:59:59Z"}
        assert len(rows) == 2


def _csv(
    service: RunningService, query: str
) -> tuple[list[dict[str, str]], str | None]:
    """The rows of a report as CSV, and the address of the next page."""
    path = query if query.startswith("/") else f"/v1/accounting?format=csv&{query}"
    connection = http.client.HTTPConnection("qpu")
    connection.sock = socket.socket(socket.AF_UNIX)
    with closing(connection):
        connection.sock.connect(service.url.removeprefix("unix:"))
        connection.request("GET", path, headers={"X-User": "operator"})
        answer = connection.getresponse()
        text, link = answer.read().decode(), answer.headers.get("Link", "")
    following = re.fullmatch('<(.*)>; rel="next"', link)
    return [*csv.DictReader(io.StringIO(text))], following and following[1]


def test_no_job_is_in_two_consecutive_reports(service: RunningService) -> None:
    store = service.queue.store
    # in the second in which the last job has ended, but after it
    until = usage.last_end(store) + 2e-6
    rows, _ = _csv(service, f"until={until:.6f}")
    assert len(rows) == 2
    assert _csv(service, f"from={rows[0]['until']}")[0] == []
    rows, _ = _csv(service, "by=user")
    assert len(rows) == 2
    assert _csv(service, f"from={rows[0]['until']}")[0] == []


def test_a_report_from_the_end_of_a_job_contains_this_job(
    service: RunningService,
) -> None:
    store = service.queue.store
    lease = _lease(store, "exact", "eve")
    for number in range(20):  # a clock's digits would miss half of them
        submission = Submission("problem", {}, {}, str(number))
        job, _ = store.jobs.add(lease, submission, 1.0).result()
        job = store.progress.cancel_waiting(job.number, "over").result()
        assert job.ended is not None
        for moment in (job.ended, exact_utc(job.ended)):
            period = urlencode({"by": "lease", "from": moment})
            rows, _ = _csv(service, period)
            assert {"exact": "1"}.items() <= {
                r["lease"]: r["jobs"] for r in rows
            }.items()


def test_csv_says_where_its_next_rows_are(service: RunningService) -> None:
    first, following = _csv(service, "by=user&limit=1&from=1")
    assert following is not None
    second, end = _csv(service, following)
    assert end is None
    assert sorted(row["user"] for row in first + second) == ["ann", "bob"]
    assert first[0]["from"] == second[0]["from"] == "1970-01-01T00:00:01Z"
    assert first[0]["until"] == second[0]["until"]
    assert _csv(service, "by=user")[1] is None


def test_a_number_far_in_the_future_is_in_seconds(service: RunningService) -> None:
    for until in ("253402300740", "inf"):
        answer = _ask(service, f"until={until}")
        assert answer["count"] == 2
    assert _ask(service, "from=-62135596800")["from"] == -62135596800


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("by=hour", "by"),
        ("from=nan", "from"),
        ("from=9999-12-31", "from"),
        ("from=2026-02-30", "from"),
        ("from=2026-03-01&until=2026-02-01", "until"),
        ("form=csv", "form"),
        ("limit=0", "limit"),
    ],
)
def test_what_cannot_be_reported_is_named(
    service: RunningService, query: str, field: str
) -> None:
    assert _ask(service, query)["field"] == field


def test_a_job_tells_the_service_what_its_environment_told_it(
    service: RunningService,
) -> None:
    lease = service.ask("POST", "/v1/leases", {}).json()
    variables = SfqQpu("q", service.url).environment(str(lease["id"]))
    variables["q_SFQ_PURPOSE"] = f"{RUN}:/env/0"
    SfqQpu.from_environment("q", variables).solve(example_bqm(), {"num_reads": 1})
    rows = _ask(service, "by=step")["rows"]
    assert isinstance(rows, list)
    assert "/env" in [row["step"] for row in rows if isinstance(row, dict)]

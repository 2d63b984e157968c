"""Warden's dialect, in this process; sequences are played by a runner of the test's."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import ValidationError
from starlette.requests import HTTPConnection

from sf_quantum.files import JSON
from sf_quantum.net.transport import Response
from sf_quantum.protocol.tasks import Result
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulator.atoms import runner
from sf_quantum.service.device.emulator.computation import Computation
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.runners import ProblemRunner, Runner, installed
from sf_quantum.service.dialects.warden import routes
from sf_quantum.service.domain.jobs import Identity, Job, Kind, Size
from sf_quantum.service.domain.settings import (
    ClassLimits,
    ClassSettings,
    LeaseSettings,
    ServiceSettings,
)
from sf_quantum.service.http.auth import Unauthorized
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import until

pytestmark = pytest.mark.devices("sfq")

ROOT, ADA, BOB = "root", "70001", "70002"
SESSION: dict[str, JSON] = {"user_id": ADA, "slurm_job_id": "12"}
# JSON, as far as others than the runner read it
JOB: dict[str, JSON] = {"sequence": '"as it should be"', "shots": 5}
LONG = '"long"'


class Played:
    """Runs at once, or, for the sequence ``LONG``, until it is interrupted."""

    def check(self, content: JSON, *, qubits: int) -> Size:
        if content == "wrong":
            raise FieldError("sequence", "it is wrong")
        return Size()

    def run(self, computation: Computation, interrupted: Callable[[], bool]) -> Result:
        never = threading.Event()
        while json.loads(computation.payload) == LONG and not interrupted():
            never.wait(0.005)
        counter = {"01": computation.parameters.get("num_reads")}
        return Result(json.dumps({"counter": counter}))


async def known_by_header(connection: HTTPConnection) -> Identity:
    user = connection.headers.get("X-User")
    if user is None:
        raise Unauthorized("needs a credential", "X-User", "Test")
    return Identity(user, admin=user == ROOT, root=user == ROOT)


class Warden:
    """A service, and requests to it in somebody's name."""

    def __init__(self, service: RunningService) -> None:
        self.service = service

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, JSON] | None = None,
        *,
        user: str | None = ADA,
        session: str | None = None,
    ) -> Response:
        headers = {"X-User": user} if user else {}
        if session is not None:
            headers["X-Warden-Session"] = session
        return self.service.ask(method, path, body, headers=headers)

    def session(self, user: str = ADA) -> str:
        answer = self.ask("POST", "/sessions", {**SESSION, "user_id": user}, user=user)
        assert answer.status == 200, answer.body
        return str(answer.json()["id"])

    def submit(self, session: str, content: str = '"fine"', user: str = ADA) -> str:
        body = {**JOB, "sequence": content}
        answer = self.ask("POST", "/jobs", body, user=user, session=session)
        assert answer.status == 200, answer.body
        return str(answer.json()["id"])

    def finish(self, session: str, state: str = "Completed", number: int = 0) -> None:
        self.service.until(session, state, number)


Start = Callable[..., Warden]


@pytest.fixture
def start() -> Iterator[Callable[..., Warden]]:
    """Starts a service that does not wait, with settings."""
    runners: dict[Kind, Runner] = {"problem": ProblemRunner(), "sequence": Played()}
    entered = []

    def run(**settings: object) -> Warden:
        context = running_service(
            EmulatedDevice(technology="neutral-atom", time_scale=0, runners=runners),
            settings=ServiceSettings(**{"vqpus": 2, **settings}),  # type: ignore[arg-type]
            authenticate=known_by_header,
        )
        entered.append(context)
        return Warden(context.__enter__())

    yield run
    for context in entered:
        context.__exit__(None, None, None)


def refused(answer: Response, status: int, words: str = "") -> dict[str, JSON]:
    assert answer.status == status, answer.body
    body = answer.json()
    assert set(body) == {"detail", "field"}
    assert words in str(body["detail"])
    return body


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/accessible"),
        ("POST", "/sessions"),
        ("DELETE", "/sessions/x"),
        ("POST", "/jobs"),
        ("GET", "/jobs"),
        ("GET", "/jobs/1"),
        ("POST", "/jobs/1/cancel"),
        ("GET", "/jobs/1/logs"),
        ("GET", "/status"),
        ("GET", "/acct"),
        ("GET", "/acct/sessions"),
        ("GET", "/acct/jobs"),
    ],
)
def test_a_credential_is_needed(start: Start, method: str, path: str) -> None:
    bodies: dict[str, dict[str, JSON]] = {
        "/accessible": {"is_accessible": True},
        "/sessions": SESSION,
        "/jobs": JOB,
    }
    body = bodies.get(path) if method == "POST" else None
    refused(start().ask(method, path, body, user=None), 401)


def test_none_is_needed_to_see_whether_it_is_open(start: Start) -> None:
    warden = start()
    slots = {
        "qpu_slots_total": 2,
        "qpu_slots_used": 0,
        "qpu_slots_available": 2,
    }
    told = warden.ask("GET", "/accessible", user=None).json()
    assert told == {"is_accessible": True, "message": "The QPU is open.", **slots}
    assert warden.ask("GET", "/qpu-slots", user=None).json() == slots
    specs = warden.ask("GET", "/qpu/specs", user=None).json()["specs"]
    assert json.loads(str(specs))["name"]


def test_only_authorized_users_have_sessions(start: Start) -> None:
    # as in warden: uids, also as numbers
    told = LeaseSettings.model_validate({"authorized_users": [0, "ada", "70009"]})
    assert told.authorized_users == ["0", "ada", "70009", "root"]
    for wrong in ("ada", [1.5], [None], [["ada"]]):
        with pytest.raises(ValidationError):
            LeaseSettings.model_validate({"authorized_users": wrong})
    warden = start(leases=LeaseSettings(authorized_users=["1", "bob"]))
    body = refused(warden.ask("POST", "/sessions", SESSION), 403, "is not authorized")
    assert body["field"] == "user"
    warden.service.reconfigure(ServiceSettings())
    until(
        lambda: warden.ask("POST", "/sessions", SESSION).status == 200,
        "the other settings",
    )


def test_a_sessions_life(start: Start) -> None:
    warden = start(leases=LeaseSettings(idle_seconds=60.0, total_seconds=600.0))
    made = warden.ask("POST", "/sessions", SESSION).json()
    assert (made["user_id"], made["slurm_job_id"]) == (ADA, "12")
    assert (made["scheduler_job_id"], made["qpu_slots"]) == ("12", 1)
    assert made["revoked_at"] is None
    assert str(made["created_at"]) < str(made["idle_expires_at"])
    assert str(made["idle_expires_at"]) < str(made["expires_at"])
    path = f"/sessions/{made['id']}"
    refused(warden.ask("DELETE", path, user=BOB), 404)
    ended = warden.ask("DELETE", path).json()
    assert ended["revoked_at"] is not None
    assert warden.ask("DELETE", path).json() == ended
    refused(warden.ask("DELETE", "/sessions/nope"), 404)


def test_newer_and_older_names(start: Start) -> None:
    warden = start()
    body: dict[str, JSON] = {"user_id": int(ADA), "scheduler_job_id": 7}
    made = warden.ask("POST", "/sessions", body).json()
    assert (made["user_id"], made["slurm_job_id"]) == (ADA, "7")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"slurm_job_id": "12"}, "user_id"),
        ({"user_id": ADA}, "scheduler_job_id"),
        ({**SESSION, "user_id": ""}, "user_id"),
        ({**SESSION, "qpu_slots": 0}, "qpu_slots"),
        ({**SESSION, "qpu_slots": 2}, "qpu_slots"),
    ],
)
def test_wrong_sessions_name_the_field(
    start: Start, body: dict[str, JSON], field: str
) -> None:
    assert refused(start().ask("POST", "/sessions", body), 422)["field"] == field


def test_a_session_left_behind_is_found_by_the_next_run(start: Start) -> None:
    # QRMI's example ends without releasing its session
    warden = start()
    first = warden.session()
    warden.submit(first)
    warden.finish(first)
    # as long as a vQPU is free, each request is a session of its own
    second = warden.session()
    assert second != first
    assert warden.session() in (first, second)
    words = "Not enough QPU slots available."
    bobs: dict[str, JSON] = {**SESSION, "user_id": BOB}
    refused(warden.ask("POST", "/sessions", bobs, user=BOB), 409, words)
    other: dict[str, JSON] = {**SESSION, "slurm_job_id": "13"}
    refused(warden.ask("POST", "/sessions", other), 409, words)
    # neither is one whose job is not over
    for session in (first, second):
        warden.submit(session, LONG)
    refused(warden.ask("POST", "/sessions", SESSION), 409, words)


def test_leases_of_our_own_clients_are_not_taken_over(start: Start) -> None:
    warden = start()
    for key in ("a", "b"):
        body: dict[str, JSON] = {"user": ADA, "slurm_job_id": "12", "key": key}
        assert warden.ask("POST", "/v1/leases", body).status == 201
    words = "Not enough QPU slots available."
    refused(warden.ask("POST", "/sessions", SESSION), 409, words)


def test_slots_run_out(start: Start) -> None:
    warden = start()
    words = "Not enough QPU slots available."
    refused(warden.ask("POST", "/sessions", {**SESSION, "qpu_slots": 3}), 409, words)
    first, _ = warden.session(), warden.session(BOB)
    other: dict[str, JSON] = {**SESSION, "slurm_job_id": "13"}
    refused(warden.ask("POST", "/sessions", other), 409, words)
    assert warden.ask("GET", "/qpu-slots").json()["qpu_slots_available"] == 0
    warden.ask("DELETE", f"/sessions/{first}")
    warden.session()


def test_wardens_rule(start: Start) -> None:
    warden = start(leases=LeaseSettings(by="root"))
    refused(warden.ask("POST", "/sessions", SESSION), 403, "only root and admins")
    made = warden.ask("POST", "/sessions", SESSION, user=ROOT).json()
    session = str(made["id"])
    assert made["user_id"] == ADA
    refused(warden.ask("DELETE", f"/sessions/{session}"), 403, "only root and admins")
    job = warden.submit(session)
    assert warden.ask("GET", f"/jobs/{job}").json()["user_id"] == ADA
    assert warden.ask("DELETE", f"/sessions/{session}", user=ROOT).status == 200


def test_only_root_and_admins_lease_for_others(start: Start) -> None:
    refused(start().ask("POST", "/sessions", SESSION, user=BOB), 403)


def test_roots_own_number_is_root(start: Start) -> None:
    warden = start()
    body: dict[str, JSON] = {**SESSION, "user_id": "0"}
    made = warden.ask("POST", "/sessions", body, user=ROOT).json()
    assert made["user_id"] == "0"
    assert warden.service.queue.leases.held[0].user == ROOT


@pytest.mark.devices("sfq", always=["sfq"])
def test_a_jobs_life(start: Start) -> None:
    warden = start()
    session = warden.session()
    answer = warden.ask("POST", "/jobs", JOB, session=session).json()
    assert isinstance(answer["id"], int)
    assert (answer["user_id"], answer["results"]) == (ADA, None)
    assert answer["status"] in ("PENDING", "RUNNING", "DONE")
    warden.finish(session)
    done = warden.ask("GET", f"/jobs/{answer['id']}").json()
    assert done["status"] == "DONE"
    results = json.loads(str(done["results"]))
    assert results["counter"] == {"01": 5}
    assert results["info"]["qpu"] == "emulator"
    assert json.loads(warden.ask("GET", "/jobs").body) == [done]
    assert json.loads(warden.ask("GET", "/jobs", user=BOB).body) == []
    logs = str(warden.ask("GET", f"/jobs/{answer['id']}/logs").json()["logs"])
    assert [line.split("] ")[1] for line in logs.splitlines()] == [
        f"queued as job {answer['id']}, class development",
        "started, attempt 1",
        "DONE",
    ]
    path = f"/jobs/{answer['id']}/cancel"
    words = "Job with status 'DONE' can't be canceled"
    refused(warden.ask("POST", path), 409, words)


def test_results_are_not_written_on_the_event_loop(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_loops = list[asyncio.AbstractEventLoop]()

    def shown(job: Job, results: str | None) -> routes.WardenJob:
        with suppress(RuntimeError):
            waiting_loops.append(asyncio.get_running_loop())
        return routes.WardenJob(**vars(job), results=results)

    warden = start()
    session = warden.session()
    number = warden.ask("POST", "/jobs", JOB, session=session).json()["id"]
    warden.finish(session)
    monkeypatch.setattr(routes, "_job", shown)
    assert warden.ask("GET", f"/jobs/{number}").json()["results"]
    assert not waiting_loops


def test_whose_jobs_may_run_twice_is_configured(start: Start) -> None:
    warden = start(repeatable_users=[ADA])
    for user in (ADA, BOB):
        warden.submit(warden.session(user), user=user)
    jobs = warden.service.queue.store.jobs.latest()
    assert [(job.user, job.repeatable) for job in jobs] == [(ADA, True), (BOB, False)]


def test_the_same_request_twice_is_two_jobs(start: Start) -> None:
    warden = start()
    session = warden.session()
    assert warden.submit(session) != warden.submit(session)


@pytest.mark.parametrize("path", ["", "/logs"])
def test_others_jobs_are_not_there(start: Start, path: str) -> None:
    warden = start()
    job = warden.submit(warden.session())
    refused(warden.ask("GET", f"/jobs/{job}{path}", user=BOB), 404)
    refused(warden.ask("POST", f"/jobs/{job}/cancel", user=BOB), 404)
    assert warden.ask("GET", f"/jobs/{job}{path}", user=ROOT).status == 200


@pytest.mark.parametrize(("number", "status"), [("99", 404), ("x", 422), ("-1", 422)])
def test_jobs_that_are_not_there(start: Start, number: str, status: int) -> None:
    refused(start().ask("GET", f"/jobs/{number}"), status)


def test_cancel_and_release_reach_the_device(start: Start) -> None:
    warden = start()
    session = warden.session()
    running = warden.submit(session, LONG)
    warden.finish(session, "Running")
    waiting = warden.submit(session)
    assert warden.ask("GET", f"/jobs/{waiting}").json()["status"] == "PENDING"
    cancelled = warden.ask("POST", f"/jobs/{running}/cancel").json()
    assert cancelled["status"] == "CANCELED"
    warden.finish(session, "Completed", 1)
    running = warden.submit(session, LONG)
    warden.finish(session, "Running", 2)
    warden.ask("DELETE", f"/sessions/{session}")
    shown = warden.ask("GET", f"/jobs/{running}").json()
    assert (shown["status"], shown["results"]) == ("CANCELED", None)
    logs = str(warden.ask("GET", f"/jobs/{running}/logs").json()["logs"])
    assert "CANCELED: cancelled: its lease was released" in logs


def test_a_session_is_needed_and_must_be_ones_own(start: Start) -> None:
    warden = start()
    session = warden.session()
    for held, user in ((None, ADA), ("nope", ADA), (session, BOB)):
        answer = warden.ask("POST", "/jobs", JOB, user=user, session=held)
        assert refused(answer, 403)["field"] == "X-Warden-Session"
    warden.ask("DELETE", f"/sessions/{session}")
    answer = warden.ask("POST", "/jobs", JOB, session=session)
    refused(answer, 403, "released")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sequence": 5}, "sequence"),
        ({"sequence": "wrong"}, "sequence"),
        ({"shots": 0}, "shots"),
        ({"shots": "5"}, "shots"),
        ({"shots": 101}, "shots"),
    ],
)
def test_wrong_jobs_name_the_field(
    start: Start, change: dict[str, JSON], field: str
) -> None:
    warden = start(
        classes=ClassSettings(limits={"development": ClassLimits(shots=100)})
    )
    answer = warden.ask("POST", "/jobs", {**JOB, **change}, session=warden.session())
    assert refused(answer, 422)["field"] == field


# a sequence is read by the device
@pytest.mark.devices
def test_a_service_without_pulser_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "available", lambda: False)
    with running_service(EmulatedDevice(time_scale=0, runners=installed())) as service:
        warden = Warden(service)
        session = warden.session()
        answer = warden.ask("POST", "/jobs", JOB, session=session)
        words = "pip install 'sf-quantum[pulser]'"
        assert refused(answer, 422, words)["field"] == "sequence"
        specs = str(warden.ask("GET", "/qpu/specs").json()["specs"])
        assert json.loads(specs)["name"]


def test_the_device_is_described_once_however_many_ask(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[JSON] = []
    others = threading.Event()

    def ask(call: str, *_: object) -> Result:
        asked.append(call)
        others.wait(0.3)  # those who come meanwhile
        return Result('{"specs": "told"}')

    monkeypatch.setattr(runner, "available", lambda: True)
    monkeypatch.setattr(runner, "ask", ask)
    runner._specs.cache_clear()
    warden = start()
    try:
        with ThreadPoolExecutor(5) as threads:
            answers = threads.map(lambda _: warden.ask("GET", "/qpu/specs"), range(5))
            assert {answer.json()["specs"] for answer in answers} == {"told"}
    finally:
        runner._specs.cache_clear()
    assert len(asked) == 1


def test_problems_of_our_own_dialect_are_in_the_same_queue(start: Start) -> None:
    warden = start()
    session = warden.session()
    body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "a"}
    headers = {"X-User": ADA, "X-SFQ-Lease": session}
    made = warden.service.ask("POST", "/v1/jobs", body, headers=headers)
    assert made.status == 201
    warden.finish(session)
    (job,) = json.loads(warden.ask("GET", "/jobs").body)
    assert json.loads(job["results"])["type"] == "SampleSet"


def test_an_admin_closes_and_opens(start: Start) -> None:
    warden = start()
    session = warden.session()
    running = warden.submit(session, LONG)
    warden.finish(session, "Running")
    closing: dict[str, JSON] = {"is_accessible": False, "message": "calibration"}
    refused(warden.ask("POST", "/accessible", closing), 403)
    told = warden.ask("POST", "/accessible", closing, user=ROOT).json()
    assert told["is_accessible"] is False
    assert told["message"] == "calibration"
    assert warden.ask("GET", "/accessible", user=None).json() == told
    refused(warden.ask("POST", "/sessions", SESSION), 503, "calibration")
    refused(warden.ask("POST", "/jobs", JOB, session=session), 503, "calibration")
    warden.finish(session, "Queued")
    opening: dict[str, JSON] = {"is_accessible": True}
    assert warden.ask("POST", "/accessible", opening, user=ROOT).json()["is_accessible"]
    opening["message"] = "until Friday"
    told = warden.ask("POST", "/accessible", opening, user=ROOT).json()
    assert (told["is_accessible"], told["message"]) == (True, "until Friday")
    warden.finish(session, "Running")
    warden.ask("POST", f"/jobs/{running}/cancel")


def test_status_is_for_admins(start: Start) -> None:
    warden = start()
    session = warden.session()
    running = warden.submit(session, LONG)
    warden.finish(session, "Running")
    warden.submit(session)
    refused(warden.ask("GET", "/status"), 403)
    told = warden.ask("GET", "/status", user=ROOT).json()
    assert told["pending_jobs_count"] == 1
    assert isinstance(told["current_job"], dict)
    assert str(told["current_job"]["id"]) == running
    (held,) = json.loads(json.dumps(told["open_sessions"]))
    assert (held["id"], held["user_id"]) == (session, ADA)
    warden.ask("POST", f"/jobs/{running}/cancel")


@pytest.fixture
def used(start: Start) -> Warden:
    """A service that two users have used."""
    warden = start(vqpus=3)
    first, second = warden.session(), warden.session(BOB)
    warden.submit(first)
    warden.finish(first)
    long = warden.submit(first, LONG)
    warden.finish(first, "Running", 1)
    warden.ask("POST", f"/jobs/{long}/cancel")
    warden.submit(second, user=BOB)
    warden.finish(second)
    for session in (first, second):
        warden.ask("DELETE", f"/sessions/{session}", user=ROOT)
    warden.session()
    return warden


def acct(warden: Warden, path: str) -> list[dict[str, JSON]]:
    answer = warden.ask("GET", path, user=ROOT)
    assert answer.status == 200, answer.body
    rows: list[dict[str, JSON]] = json.loads(answer.body)["data"]
    return rows


def test_accounting_by_user(used: Warden) -> None:
    ada, bob = acct(used, "/acct")
    assert (ada["user_id"], bob["user_id"]) == (ADA, BOB)
    session, _ = acct(used, "/acct/sessions")
    assert ada["sessions"] == {"count": 1, "total_duration": session["total_duration"]}
    jobs = ada["jobs"]
    assert isinstance(jobs, dict)
    assert (jobs["count"], jobs["shots"], jobs["qpu_seconds"]) == (2, 10, 125.0)
    assert (jobs["lost_attempts"], jobs["lost_qpu_seconds"]) == (0, 0.0)
    assert jobs["cost"] is None
    assert isinstance(jobs["per_status"], dict)
    assert sorted(jobs["per_status"]) == ["CANCELED", "DONE"]
    assert acct(used, f"/acct?user_id={BOB}") == [bob]
    assert acct(used, "/accounting?limit=1&offset=1") == [bob]
    assert acct(used, "/acct?user_id=nobody-there") == []
    assert acct(used, "/acct?ended_after=2100-01-01T00:00:00Z") == []
    assert acct(used, "/acct?ended_before=2100-01-01T00:00:00") == [ada, bob]
    page = used.ask("GET", "/acct?limit=1&offset=1", user=ROOT).json()["pagination"]
    assert page == {"total": 2, "start": 1, "end": 2}


def test_users_are_not_looked_up_on_the_event_loop(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_loops = list[asyncio.AbstractEventLoop]()

    def slow_directory(_: int | str) -> None:
        with suppress(RuntimeError):
            waiting_loops.append(asyncio.get_running_loop())
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", slow_directory)
    monkeypatch.setattr("pwd.getpwnam", slow_directory)
    warden = start()
    session: dict[str, JSON] = {"user_id": "80009", "slurm_job_id": "12"}
    assert warden.ask("POST", "/sessions", session, user=ROOT).status == 200
    assert warden.ask("POST", "/sessions", session, user=BOB).status == 403
    for number, path in enumerate(("/acct", "/acct/sessions", "/acct/jobs")):
        assert acct(warden, f"{path}?user_id=8000{number}") == []
    assert not waiting_loops


def test_accounting_by_session(used: Warden) -> None:
    ada, bob = acct(used, "/acct/sessions")
    assert (ada["user_id"], ada["jobs_count"], ada["slurm_job_id"]) == (ADA, 2, "12")
    assert acct(used, f"/acct/sessions?session_id={bob['id']}") == [bob]
    assert acct(used, "/accounting/sessions?slurm_job_id=13") == []


def test_accounting_by_job(used: Warden) -> None:
    jobs = acct(used, "/acct/jobs")
    assert [job["status"] for job in jobs] == ["DONE", "CANCELED", "DONE"]
    made, *_ = used.service.queue.store.jobs.latest()
    assert (jobs[0]["shots"], jobs[0]["execution_time"]) == (5, round(made.seconds))
    assert jobs[0]["qpu_seconds"] == 125.0
    assert (jobs[0]["lost_attempts"], jobs[0]["lost_qpu_seconds"]) == (0, 0.0)
    assert acct(used, "/acct/jobs?status=CANCELED") == [jobs[1]]
    assert acct(used, f"/acct/jobs?job_id={jobs[2]['id']}") == [jobs[2]]
    assert acct(used, f"/acct/jobs?user_id={ADA}&limit=1") == [jobs[0]]


@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=0", "limit"), ("ended_after=x", "ended_after"), ("status=x", "status")],
)
def test_wrong_reports_name_the_parameter(start: Start, query: str, field: str) -> None:
    answer = start().ask("GET", f"/acct/jobs?{query}", user=ROOT)
    assert str(refused(answer, 422)["field"]).startswith(field)


@pytest.mark.process
@pytest.mark.parametrize(
    ("owner", "job_class"), [(ADA, "production"), (BOB, "development")]
)
def test_the_class_is_that_of_the_slurm_jobs_partition(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    job_class: str,
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho '{owner}|quantum|x|N/A|(null)'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    warden = start(classes=ClassSettings(partitions={"quantum": "production"}))
    warden.session()
    assert warden.service.queue.leases.held[0].job_class == job_class

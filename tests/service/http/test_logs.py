"""The service's log: requests, the lives of jobs and leases, and texts of users in it."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.domain.jobs import Identity, Lease, Submission
from sf_quantum.service.domain.settings import LeaseSettings, ServiceSettings
from sf_quantum.service.http import auth, traffic
from sf_quantum.service.http.logs import JsonFormatter, TextFormatter
from sf_quantum.service.http.tokens import Tokens, token_entry
from sf_quantum.service.http.traffic import Traffic
from sf_quantum.service.store.store import Store
from tests.support.service import (
    RunningService,
    UntilInterrupted,
    example_bqm,
    running_queue,
    running_service,
)
from tests.support.waiting import until

ADA = Identity("ada", admin=False)
STRANGER = auth.Unauthorized("unknown bearer token", "Authorization", "Bearer")
Line = dict[str, JSON]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO):
        yield


def lines(caplog: pytest.LogCaptureFixture, beginning: str) -> list[Line]:
    """The lines whose messages begin so, as JSON."""
    texts = [JsonFormatter().format(record) for record in caplog.records]
    all_lines: list[Line] = [json.loads(text) for text in texts]
    return [line for line in all_lines if str(line["message"]).startswith(beginning)]


def record(message: str, **fields: JSON) -> logging.LogRecord:
    made = logging.LogRecord("sfq", logging.WARNING, "", 0, "%s", (message,), None)
    made.created = 0.25
    made.fields = fields
    return made


class Route:
    path = "/v1/jobs"


def request(*headers: tuple[bytes, bytes]) -> Request:
    scope = {"type": "http", "method": "GET", "headers": headers, "route": Route()}
    return Request(scope)


def submit(service: RunningService, lease: str, key: str, reads: int = 10) -> str:
    body: dict[str, JSON] = {
        "problem": example_bqm(),
        "parameters": {"num_reads": reads},
        "idempotency_key": key,
    }
    return str(service.ask("POST", "/v1/jobs", body, lease=lease).json()["id"])


def over(service: RunningService, job: str) -> str:
    return str(service.ask("GET", f"/v1/jobs/{job}?wait=60").json()["state"])


def test_both_formats_have_the_same_data() -> None:
    made = record(
        "request", user="ada", route="/v1/jobs/{job_id}", seconds=0.5, note=""
    )
    text = TextFormatter().format(made)
    assert text == (
        "1970-01-01T00:00:00.250+00:00 WARNING sfq: request user=ada "
        'route=/v1/jobs/{job_id} seconds=0.5 note=""'
    )
    assert json.loads(JsonFormatter().format(made)) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "warning",
        "logger": "sfq",
        "message": "request",
        "user": "ada",
        "route": "/v1/jobs/{job_id}",
        "seconds": 0.5,
        "note": "",
    }


HOSTILE = (
    "x\n1970-01-01T00:00:00 INFO sfq: job completed\r\x1b[2J\u202e\x9b31m user=root"
)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_text_of_a_user_is_a_line_or_reaches_the_terminal(
    formatter: logging.Formatter,
) -> None:
    made = record(HOSTILE, reason=HOSTILE)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        made.exc_info = sys.exc_info()
    first, *others = formatter.format(made).split("\n")
    assert all(line.startswith("    ") for line in others)
    assert all(line.isprintable() for line in (first, *others))
    # a value cannot end, and the next key begin
    assert "user=root user=root" not in first
    assert (
        "user=root" not in TextFormatter().format(record("", a="b user=root")).split()
    )


def test_a_request_has_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tmp_path / "tokens.yml"
    tokens.touch(0o600)
    tokens.write_text(json.dumps([token_entry("ada", "a", admin=False)]))
    with running_service(authenticate=Tokens(tokens)) as service:
        answers = [
            service.ask("GET", "/v1/jobs/secret", headers=headers)
            for headers in (
                {},
                {"Authorization": "Bearer a"},
                {"Authorization": "Bearer wrong"},
            )
        ]
        # the line comes after the answer; uvicorn has none of its own
        until(lambda: lines(caplog, "failed login"), "its line")
        told = lines(caplog, "")
    logged = [line for line in told if line["logger"] != "uvicorn.error"]
    for line, answer in zip(logged, answers, strict=True):
        assert line["route"] == "/v1/jobs/{job_id}"
        assert line["status"] == answer.status
        assert isinstance(line["seconds"], float)
    assert len({line["request"] for line in logged}) == 3
    assert [(line["message"], line["level"], line["user"]) for line in logged] == [
        ("request", "info", f"@{os.getuid()}"),
        ("request", "info", "ada"),
        ("failed login", "warning", f"@{os.getuid()}"),
    ]
    assert logged[2]["reason"] == "unknown bearer token"


def test_why_a_credential_could_not_be_checked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = auth.AuthError(503, "munged does not answer", "X-Munge-Cred")
    refused.__cause__ = OSError("no such socket")
    Traffic().ended(request((b"x-munge-cred", b"x")), "1", refused, "@", 503, 0.1)
    # whoever counts failed logins must not blame the user
    (line,) = lines(caplog, "")
    assert (line["message"], line["level"]) == ("credential not checked", "warning")
    assert line["reason"] == "no such socket"


@pytest.mark.parametrize(("path", "status"), [("/v1/health", 200), ("/v1/jobs", 401)])
def test_a_reason_is_of_what_was_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, status: int
) -> None:
    tokens = tmp_path / "tokens.yml"
    tokens.touch(0o600)
    tokens.write_text("[]")
    with running_service(authenticate=Tokens(tokens)) as service:
        assert service.ask("GET", path).status == status
        until(lambda: lines(caplog, "request"), "its line")
    (line,) = lines(caplog, "request")
    assert line["status"] == status
    assert ("reason" in line) == (status == 401)


def test_lines_of_strangers_and_of_refused_floods_are_few(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    seen = Traffic(lambda: now[0])
    credential = request((b"authorization", b"Bearer x"))

    def flood() -> None:
        for number in range(1000):
            seen.ended(credential, "1", STRANGER, f"@10.0.0.{number}", 401, 0.1)
            seen.ended(request(), "2", ADA, "ada", 429, 0.1)
            seen.ended(request(), "3", ADA, "ada", 200, 0.1)

    flood()
    assert len(lines(caplog, "")) == 1000 + traffic.LINES_AT_ONCE
    assert {line["status"] for line in lines(caplog, "failed login")} == {401}
    caplog.clear()
    now[0] += 5
    flood()
    bounded = [line for line in lines(caplog, "") if line["status"] != 200]
    assert len(bounded) == 5 * traffic.LINES_PER_SECOND
    assert [line.get("omitted") for line in bounded] == [1900, *[None] * 4]
    assert seen.requests["GET", "/v1/jobs", "4xx"] == 4000


def test_the_life_of_a_job_and_a_lease(caplog: pytest.LogCaptureFixture) -> None:
    device = EmulatedDevice(time_scale=0, runners={"problem": UntilInterrupted()})
    with running_service(device, vqpus=2) as service:
        low = service.acquire()
        production: dict[str, JSON] = {"class": "production"}
        high = str(service.ask("POST", "/v1/leases", production).json()["id"])
        first, second = submit(service, low, "a"), submit(service, low, "b")
        service.until(low, "Running")
        service.ask("DELETE", f"/v1/jobs/{second}")
        third = submit(service, high, "c")
        assert over(service, third) == over(service, first) == "Completed"
        service.ask("DELETE", f"/v1/leases/{low}")
        until(lambda: lines(caplog, "lease released"), "a line")
    told = {
        job: [
            str(line["message"]).removeprefix("job ")
            for line in lines(caplog, "job ")
            if line["job"] == job
        ]
        for job in (first, second, third)
    }
    assert told[third] == ["submitted", "started", "completed"]
    assert told[first] == [
        *("submitted", "started", "pre-empted", "started", "completed")
    ]
    assert (told[second][0], told[second][-1]) == ("submitted", "cancelled")
    (preempted,) = lines(caplog, "job pre-empted")
    assert (preempted["user"], preempted["class"]) == ("local", "development")
    assert preempted["attempt"] == 1
    assert preempted["reason"] == "pre-empted by a production job during attempt 1"
    done = {line["job"]: line for line in lines(caplog, "job completed")}
    assert done[first]["attempt"] == 2
    assert isinstance(done[first]["qpu_seconds"], float)
    assert "reason" not in done[first]
    granted = lines(caplog, "lease granted")
    assert [line["class"] for line in granted] == ["development", "production"]
    (released,) = lines(caplog, "lease released")
    assert (released["lease"], released["user"]) == (low[:8], "local")
    assert isinstance(released["seconds"], float)
    # the id of a lease is a secret
    everything = str(lines(caplog, ""))
    assert low not in everything
    assert high not in everything


def test_jobs_that_fail_and_leases_that_expire(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running_service(
        EmulatedDevice(time_scale=0, faults=Faults(fail=1))
    ) as service:
        lease = service.acquire()
        assert over(service, submit(service, lease, "a")) == "Failed"
    (failed,) = lines(caplog, "job failed")
    assert failed["reason"]
    settings = ServiceSettings(leases=LeaseSettings(total_seconds=0.1))
    with running_service(EmulatedDevice(), settings=settings) as service:
        service.acquire()
        until(lambda: lines(caplog, "lease expired"), "a line")
    (expired,) = lines(caplog, "lease expired")
    assert expired["reason"] == "its time is over"


def test_jobs_that_end_with_their_lease(caplog: pytest.LogCaptureFixture) -> None:
    slow = EmulatedDevice(technology="neutral-atom")
    with running_service(slow) as service:
        lease = service.acquire()
        jobs = [submit(service, lease, key) for key in "abc"]
        service.until(lease, "Running")
        service.ask("DELETE", f"/v1/leases/{lease}")
        until(lambda: len(lines(caplog, "job cancelled")) == 3, "three lines")
    cancelled = lines(caplog, "job cancelled")
    assert {line["job"] for line in cancelled} == {*jobs}
    assert {line["reason"] for line in cancelled} == {
        "cancelled: its lease was released"
    }


async def test_what_the_death_of_the_service_meant_for_jobs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "service.sqlite")
    lease = Lease("l" * 32, "ann", "test")
    store.leases.add(lease).result()
    died, waiting, unwanted = (
        store.jobs.add(lease, Submission("problem", {}, {}, key), 1e6).result()[0]
        for key in "abc"
    )
    store.progress.start(died.number).result()
    store.progress.note_cancellation(unwanted.number, "cancelled").result()
    store.close()
    async with running_queue(tmp_path, EmulatedDevice(technology="neutral-atom")):
        told = {line["job"]: line for line in lines(caplog, "job ")}
    assert waiting.id not in told
    assert told[unwanted.id]["message"] == "job cancelled"
    assert told[died.id]["message"] == "job interrupted"
    assert told[died.id]["reason"] == "interrupted: the service died during attempt 1"

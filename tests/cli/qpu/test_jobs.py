"""``sfq jobs`` and ``sfq leases`` against a service that runs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from sf_quantum.cli import main
from sf_quantum.cli.qpu import jobs
from sf_quantum.files import JSON
from sf_quantum.qpu.sfq.service_job import ServiceJob
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.jobs import (
    UNREADABLE,
    Identity,
    LeaseRequest,
    Submission,
)
from sf_quantum.service.domain.settings import LeaseSettings, ServiceSettings
from sf_quantum.service.http.tokens import Tokens
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.users import give_tokens
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")

Sfq = Callable[..., str]
# clears the screen, and writes from right to left
NASTY = "\x1b[2J\u202eclimate"


@pytest.fixture
def tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    give_tokens(tmp_path, capsys)
    return tmp_path


@pytest.fixture
def service(tokens: Path) -> Iterator[RunningService]:
    # a job of 1000 shots would take minutes
    device = EmulatedDevice(technology="neutral-atom", time_scale=1)
    with running_service(
        device, vqpus=3, authenticate=Tokens(tokens / "tokens")
    ) as running:
        yield running


@pytest.fixture
def sfq(
    service: RunningService, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> Sfq:
    """Runs a command as a user, and gives what it printed."""

    def run(user: str, *words: str, code: int = 0) -> str:
        credential = ["--token-file", str(tokens / user)]
        assert main([*words, "--url", service.url, *credential]) == code
        printed = capsys.readouterr()
        return printed.err if code == 2 else printed.out

    return run


def header(tokens: Path, user: str) -> dict[str, str]:
    """Return the header with a user's token."""
    return {"Authorization": f"Bearer {(tokens / user).read_text().strip()}"}


def submit(service: RunningService, tokens: Path, user: str) -> tuple[str, str]:
    """Acquire a lease and submit a job; return their ids."""
    headers = header(tokens, user)
    body: dict[str, JSON] = {"job": NASTY}
    answer = service.ask("POST", "/v1/leases", body, headers=headers)
    lease = str(answer.json()["id"])
    body = {"problem": example_bqm(), "parameters": {"num_reads": 1000}}
    body["idempotency_key"] = user
    job = service.ask("POST", "/v1/jobs", body, lease=lease, headers=headers).json()
    return lease, str(job["id"])


def test_users_see_and_cancel_their_own_jobs(
    service: RunningService, tokens: Path, sfq: Sfq
) -> None:
    (lease, anns), (_, bobs) = (submit(service, tokens, one) for one in ("ann", "bob"))
    # one that is on its way to a vendor is cancelled as soon as it is there
    service.until(lease, "Running")
    heads, line = sfq("ann", "jobs", "list").splitlines()
    assert heads.split()[:5] == ["job", "user", "class", "kind", "state"]
    assert line.split()[:3] == [anns, "ann", "development"]
    everybodys = sfq("operator", "jobs", "list", "--json")
    assert [job["id"] for job in json.loads(everybodys)] == [anns, bobs]
    assert sfq("operator", "jobs", "list", "--limit", "1").count("\n") == 2
    unknown = f": {bobs}: no such job (sfq jobs list)\n"
    assert sfq("ann", "jobs", "show", bobs, code=2) == f"sfq jobs{unknown}"
    assert sfq("ann", "jobs", "cancel", bobs, code=2) == f"sfq jobs{unknown}"
    # what the page shows of an id
    assert f" {bobs}\n" in sfq("bob", "jobs", "show", bobs[:8])
    shown = dict(line.split(maxsplit=1) for line in _lines(sfq, "bob", bobs))
    assert shown["id"] == bobs
    assert shown["state"] == "Queued"
    assert "Cancelled" in sfq("operator", "jobs", "cancel", anns, bobs)
    assert sfq("bob", "jobs", "list", "--live") == "no jobs\n"
    assert (
        json.loads(sfq("bob", "jobs", "show", bobs, "--json"))["state"] == "Cancelled"
    )


def test_a_beginning_of_an_id_has_to_be_that_of_one_job(
    sfq: Sfq, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = [{"id": id_, "state": "Queued"} for id_ in ("abc1", "abd2")]
    monkeypatch.setattr("sf_quantum.cli.qpu.service.request", lambda *_: latest)
    told = sfq("ann", "jobs", "cancel", "ab", code=2)
    assert told == "sfq jobs: ab: 2 jobs begin so (sfq jobs list)\n"
    told = sfq("ann", "jobs", "cancel", "", code=2)
    assert told == "sfq jobs: ID: is empty (sfq jobs list)\n"


DAMAGE = {
    "parameters": "'{'",
    "metadata": "'{'",
    "calibration": "'{'",
    "note": "CAST(X'ff' AS TEXT)",
    "purpose": "CAST(X'ff' AS TEXT)",
    "state": "'Paused'",
    "qpu_seconds": "'much'",
    "key": "CAST(X'ff' AS TEXT)",
}


@pytest.mark.parametrize(("column", "value"), DAMAGE.items())
def test_a_damaged_job_hides_no_other_job(
    many: list[str],
    column: str,
    value: str,
    tokens: Path,
    service: RunningService,
    sfq: Sfq,
) -> None:
    store, damaged = service.queue.store, many[4]

    def damage(db: sqlite3.Connection) -> None:
        db.execute(f"UPDATE jobs SET {column} = {value} WHERE id = ?", (damaged,))

    store.change(damage).result()
    lines = sfq("ann", "jobs", "list").splitlines()[1:]
    assert [line.split()[0] for line in lines] == many
    unreadable = [line for line in lines if UNREADABLE in line]
    is_readable = "AS TEXT" in value  # a damaged character is shown as such
    assert [line.split()[0] for line in unreadable] == [damaged] * (not is_readable)
    assert all(f"{UNREADABLE}: {column}: " in line for line in unreadable)
    assert sfq("ann", "usage").splitlines()[-2].split()[:2] == ["total", "2"]
    trace = tokens / "trace.csv"
    said = sfq("ann", "usage", "--trace", str(trace))
    assert said.startswith(f"{trace}: 2 jobs ")
    assert (
        service.ask("GET", "/v1/activity", headers=header(tokens, "ann")).status == 200
    )
    assert (damaged in {job.id for job in store.jobs.live()}) == is_readable


@pytest.fixture
def many(service: RunningService, tokens: Path) -> list[str]:
    """The ids of nine jobs, of which the fourth and the last are over."""
    lease, first = submit(service, tokens, "ann")
    store, ids = service.queue.store, [first]
    held = store.leases.get(lease)
    assert held is not None
    for number in range(8):
        # these are on disk only, and never run
        submission = Submission("problem", {}, {}, str(number))
        job, _ = store.jobs.add(held, submission, 1.0).result()
        ids.append(job.id)
    for job_id in (ids[3], ids[8]):
        over = store.jobs.get(job_id)
        assert over is not None
        store.progress.cancel_waiting(over.number, "over").result()
    return ids


@pytest.mark.parametrize(
    ("words", "expected", "requests"),
    [
        ((), range(9), 4),
        (("--all",), range(9), 4),
        (("--limit", "7"), range(2, 9), 3),
        (("--limit", "3"), range(6, 9), 1),
        (("--live", "--limit", "3"), (5, 6, 7), 1),
        (("--live", "--limit", "4"), (4, 5, 6, 7), 2),
        (("--live", "--all"), (0, 1, 2, 4, 5, 6, 7), 3),
    ],
)
def test_a_list_has_as_many_jobs_as_are_asked_for(
    service: RunningService,
    sfq: Sfq,
    many: list[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    expected: Collection[int],
    requests: int,
) -> None:
    monkeypatch.setattr(jobs, "PAGE", 3)
    listed = json.loads(sfq("operator", "jobs", "list", "--json", *words))
    assert [job["id"] for job in listed] == [many[number] for number in expected]
    # a request is counted when it has been answered
    asked = service.traffic.requests
    until(lambda: asked["GET", "/v1/jobs", "2xx"] >= requests, "the last to be counted")
    assert asked["GET", "/v1/jobs", "2xx"] == requests


def test_a_service_without_pages_has_one(
    sfq: Sfq, many: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE", 3)
    monkeypatch.setattr(jobs, "urlencode", lambda query: f"limit={query['limit']}")
    listed = json.loads(sfq("operator", "jobs", "list", "--json", "--all"))
    assert [job["id"] for job in listed] == many[6:]
    listed = json.loads(sfq("operator", "jobs", "list", "--json", "--limit", "4"))
    assert [job["id"] for job in listed] == many[6:]


@pytest.mark.parametrize("words", [("--limit", "0"), ("--limit", "3", "--all")])
def test_a_wrong_number_of_jobs(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["jobs", "list", *words])
    assert ended.value.code == 2


def _lines(sfq: Sfq, user: str, job: str) -> list[str]:
    return sfq(user, "jobs", "show", job).splitlines()


def test_a_job_is_followed_to_its_end(
    service: RunningService,
    tokens: Path,
    sfq: Sfq,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit(service, tokens, "ann")
    _, job = submit(service, tokens, "bob")
    seen: list[str] = []

    def line(followed: ServiceJob) -> str:
        if not seen:
            path = f"/v1/jobs/{job}"
            credential = f"Bearer {(tokens / 'bob').read_text().strip()}"
            service.ask("DELETE", path, headers={"Authorization": credential})
        seen.append(shown(followed))
        return seen[-1]

    shown = jobs._line
    monkeypatch.setattr(jobs, "_line", line)
    told = sfq("bob", "jobs", "follow", job, code=1)
    assert told.splitlines() == seen
    assert seen[0].startswith("Queued: position 1, starts in ")
    assert seen[-1].startswith("Cancelled")
    # cancelling what is over changes nothing, and following it ends at once
    assert "Cancelled" in sfq("bob", "jobs", "cancel", job)
    assert json.loads(sfq("bob", "jobs", "follow", job, "--json", code=1))["id"] == job


def test_the_list_says_why_no_job_starts(
    service: RunningService, tokens: Path, sfq: Sfq
) -> None:
    submit(service, tokens, "ann")
    submit(service, tokens, "bob")
    sfq("operator", "admin", "drain", "--message", "a leak")
    (row,) = json.loads(sfq("bob", "jobs", "list", "--json"))
    assert row["eta_seconds"] is None
    assert row["note"] == "the QPU is being drained: a leak"
    assert jobs._line(ServiceJob.read("q", row)) == f"Queued: position 1: {row['note']}"


def test_leases_that_wait_are_listed_and_ended(
    service: RunningService, tokens: Path, sfq: Sfq
) -> None:
    queue, settings = service.queue, LeaseSettings(total_seconds=1000.0)
    service.reconfigure(ServiceSettings(leases=settings))
    for user in ("ann", "bob", "operator"):
        submit(service, tokens, user)
    assert queue._loop is not None
    # A problem of SAPI requests its lease so.
    asked = LeaseRequest(key="sapi", job="problems")
    requesting = queue.leases.request(Identity("bob", admin=False), asked)
    lease = asyncio.run_coroutine_threadsafe(requesting, queue._loop).result(SECONDS)
    rows = json.loads(sfq("bob", "leases", "list", "--json"))
    assert [one["waiting"] for one in rows] == [False, True]
    *_, row = rows
    assert (row["id"], row["held"], row["expires"]) == (lease.id, False, None)
    listed = sfq("operator", "leases", "list").splitlines()
    assert len(listed) == 5
    assert listed[-1].endswith("waits: problems")
    assert "released" in sfq("operator", "leases", "end", lease.id[:12])
    assert queue.leases.waiting == 0
    assert len(sfq("operator", "leases", "list").splitlines()) == 4


def test_leases_are_listed_and_ended(
    service: RunningService, tokens: Path, sfq: Sfq
) -> None:
    lease, _ = submit(service, tokens, "ann")
    submit(service, tokens, "bob")
    heads, line = sfq("ann", "leases", "list").splitlines()
    assert heads.startswith("lease")
    assert line.endswith(r"\x1b[2J\u202eclimate")
    assert lease not in line
    assert sfq("operator", "leases", "list").count("\n") == 3
    assert "not held" in sfq("bob", "leases", "end", lease, code=2)
    for user in ("ann", "operator"):  # who see one lease, and two
        assert "ID: is empty" in sfq(user, "leases", "end", "", code=2)
    assert "ann" in sfq("operator", "leases", "end", line.split()[0])
    assert sfq("ann", "leases", "list") == "no leases\n"
    (ended,) = json.loads(sfq("ann", "leases", "list", "--ended", "--json"))
    assert (ended["id"], ended["held"]) == (lease, False)

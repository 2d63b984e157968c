"""``sfq usage --trace`` against a service that runs, and ``sfq plan`` with what it wrote."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sf_quantum.cli import main
from sf_quantum.cli.qpu import jobs
from sf_quantum.files import JSON
from sf_quantum.planning.traces import qpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.http.tokens import Tokens
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.users import give_tokens

pytestmark = pytest.mark.process

Usage = Callable[..., str]


@pytest.fixture
def tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    give_tokens(tmp_path, capsys)
    return tmp_path


@pytest.fixture
def service(tokens: Path) -> Iterator[RunningService]:
    device = EmulatedDevice(technology="neutral-atom", time_scale=1e-4)
    with running_service(
        device, vqpus=3, authenticate=Tokens(tokens / "tokens")
    ) as running:
        yield running


@pytest.fixture
def usage(
    service: RunningService, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> Usage:
    """Runs the command as a user, and gives what it printed."""

    def run(user: str, *words: str, code: int = 0) -> str:
        credential = ["--token-file", str(tokens / user)]
        assert main(["usage", *words, "--url", service.url, *credential]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return run


def job(key: str, reads: int) -> dict[str, JSON]:
    parameters: dict[str, JSON] = {"num_reads": reads}
    return {
        "problem": example_bqm(),
        "parameters": parameters,
        "idempotency_key": key,
    }


def submit(service: RunningService, tokens: Path, user: str, number: int) -> None:
    """Acquire a lease in a Slurm job, and run jobs under it to their ends."""
    header = {"Authorization": f"Bearer {(tokens / user).read_text().strip()}"}
    slurm: dict[str, JSON] = {"slurm_job_id": f"77{number}", "account": "physics"}
    body = {"job": "/secret/step", **slurm}
    answer = service.ask("POST", "/v1/leases", body, headers=header)
    lease = str(answer.json()["id"])
    for index in range(number):
        work = job(f"{user}-{index}", reads=10)
        sent = service.ask(
            "POST", "/v1/jobs?wait=10", work, lease=lease, headers=header
        )
        assert sent.json()["state"] == "Completed"
    service.ask("DELETE", f"/v1/leases/{lease}", headers=header)


def test_what_is_written_is_what_the_service_has(
    service: RunningService,
    tokens: Path,
    usage: Usage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit(service, tokens, "ann", 3)
    submit(service, tokens, "bob", 1)
    monkeypatch.setattr(jobs, "PAGE", 2)
    path = tokens / "qpu.csv"
    assert usage("operator", "--trace", str(path)) == f"{path}: 4 jobs\n"
    trace = qpu.read(path)
    assert (trace.technology, trace.anonymised) == ("neutral-atom", False)
    stored = service.queue.store.jobs.latest()
    assert [job.job for job in trace.jobs] == [job.id for job in stored]
    for told, one in zip(trace.jobs, stored, strict=True):
        assert (told.user, told.lease, told.state) == (one.user, one.lease, "Completed")
        assert (told.submitted, told.started) == (one.submitted, one.started)
        assert (told.ended, told.shots, told.attempts) == (one.ended, 10, 1)
        assert (told.device_seconds, told.qpu_seconds) == (one.seconds, one.qpu_seconds)
        assert told.queued_seconds == one.queued_seconds
    assert [job.slurm_job for job in trace.jobs] == ["773", "773", "773", "771"]
    assert {job.account for job in trace.jobs} == {"physics"}

    # users see their own jobs; and a period is that of the submissions
    assert usage("bob", "--trace", str(path)) == f"{path}: 1 job\n"
    assert usage("ann", "--trace", str(path), "--from", "1d") == f"{path}: 3 jobs\n"
    assert "0 jobs" in usage("ann", "--trace", str(path), "--until", "1d")
    assert "no job" not in path.read_text()


def test_a_job_found_by_another_lease_stays_with_its_own(
    service: RunningService, tokens: Path, usage: Usage
) -> None:
    header = {"Authorization": f"Bearer {(tokens / 'ann').read_text().strip()}"}
    path, leases = tokens / "qpu.csv", list[str]()
    for slurm_job in ("1", "2"):
        body: dict[str, JSON] = {"slurm_job_id": slurm_job}
        lease = service.ask("POST", "/v1/leases", body, headers=header).json()
        leases.append(str(lease["id"]))
        for key in ("found", slurm_job):
            answer = service.ask(
                *("POST", "/v1/jobs?wait=10", job(key, reads=10)),
                lease=leases[-1],
                headers=header,
            )
            assert answer.json()["state"] == "Completed"
    usage("ann", "--trace", str(path))
    rows = [(row.lease, row.slurm_job) for row in qpu.read(path).jobs]
    first, second = zip(leases, ("1", "2"), strict=True)
    assert rows == [first, first, second]


def test_an_anonymised_trace_is_planned_with(
    service: RunningService,
    tokens: Path,
    usage: Usage,
    capsys: pytest.CaptureFixture[str],
) -> None:
    submit(service, tokens, "ann", 2)
    submit(service, tokens, "bob", 1)
    path = tokens / "qpu.csv"
    usage("operator", "--trace", str(path), "--anonymise")
    text = path.read_text()
    stored = service.queue.store.jobs.latest()
    ids = {job.id for job in stored} | {job.lease for job in stored}
    for secret in {"physics", "secret", "ann", "bob"} | ids:
        assert secret not in text
    assert {"771", "772"}.isdisjoint(text.replace("\n", ",").split(","))
    assert max(job.ended or 0 for job in qpu.read(path).jobs) < 1e6
    assert [job.user for job in qpu.read(path).jobs] == ["1", "1", "2"]
    workload = tokens / "workload.yml"
    workload.write_text(
        "partitions: {compute: {nodes: 2}}\n"
        "qpus: {qpu: {}}\n"
        "applications: {a: {phases: [{seconds: 10}, {qpu: qpu, seconds: 1}]}}\n"
        "background: {warm_up_seconds: 0, quantum_traces: [{file: qpu.csv}]}\n"
        "repetitions: 2\n"
    )
    assert main(["check", str(workload)]) == 0
    assert main(["plan", str(workload)]) == 0
    assert "recommended: " in capsys.readouterr().out


def test_lost_attempts_of_a_job_cancelled_while_pending_count(
    service: RunningService, tokens: Path, usage: Usage
) -> None:
    header = {
        user: {"Authorization": f"Bearer {(tokens / user).read_text().strip()}"}
        for user in ("ann", "operator")
    }
    answer = service.ask("POST", "/v1/leases", {}, headers=header["ann"])
    lease = str(answer.json()["id"])
    work = job("k", reads=100_000)
    service.ask("POST", "/v1/jobs", work, lease=lease, headers=header["ann"])
    interrupted = service.until(lease, "Running")
    # stops the running job, which is then pending again
    service.ask("POST", "/v1/device/close", {}, headers=header["operator"])
    service.until(lease, "Queued")
    service.ask("DELETE", f"/v1/jobs/{interrupted}", headers=header["ann"])
    path = tokens / "qpu.csv"
    usage("ann", "--trace", str(path))
    lines = [line for line in path.read_text().splitlines() if line[0] != "#"]
    (row,) = csv.DictReader(lines)
    assert (row["state"], row["started"], row["attempts"]) == ("Cancelled", "", "1")


def test_jobs_that_are_not_over_are_left_out(
    service: RunningService, tokens: Path, usage: Usage
) -> None:
    header = {"Authorization": f"Bearer {(tokens / 'ann').read_text().strip()}"}
    answer = service.ask("POST", "/v1/leases", {"job": "/step"}, headers=header)
    lease = str(answer.json()["id"])
    # 100,000 shots of a tenth of a second, ten thousand times as quick
    for key in "ab":
        work = job(key, reads=100_000)
        service.ask("POST", "/v1/jobs", work, lease=lease, headers=header)
    path = tokens / "qpu.csv"
    told = usage("ann", "--trace", str(path))
    assert told == f"{path}: 0 jobs (2 not over yet, left out)\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--anonymise"], "--anonymise: only with --trace"),
        (["--csv", "--json"], "--csv: not with --json"),
        (["--trace", "{}/t.csv", "--json"], "--trace: writes no report, so leave out"),
        (["--trace", "{}/t.csv", "--by", "user"], "so leave out --by"),
        (["--trace", "{}/no/t.csv"], "t.csv: cannot be written"),
    ],
)
def test_options_that_cannot_be(
    usage: Usage, tmp_path: Path, words: list[str], message: str
) -> None:
    told = usage("ann", *(word.format(tmp_path) for word in words), code=2)
    assert message in told
    assert told.count("\n") == 1

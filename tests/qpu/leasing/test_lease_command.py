"""``sfq lease -- CMD`` as a process: what CMD is told, and that every way out gives back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sf_quantum.files import JSON
from sf_quantum.qpu.leasing import account
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.settings import (
    ClassSettings,
    LeaseSettings,
    ServiceSettings,
)
from sf_quantum.service.http.tokens import Tokens, new_token, token_entry
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.service_process import SFQ, only_by_qrmi
from tests.support.waiting import SECONDS, until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("measured")]


def _clean() -> dict[str, str]:
    """This process's environment, less what names a QPU."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("QRMI_", "SLURM_", "SFQ_"))
    }


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(time_scale=0)) as running:
        yield running


def _start(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SFQ, "lease", *words],
        env={**_clean(), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _run(*words: str, **environment: str) -> tuple[int, str, str]:
    process = _start(*words, **environment)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def _shell(script: str) -> list[str]:
    return ["--", "sh", "-c", script]


def _idle_expires(service: RunningService) -> float:
    """When the lease that is held ends unless it is renewed."""
    (lease,) = json.loads(service.ask("GET", "/v1/leases").body)
    assert isinstance(lease["idle_expires"], float)
    return lease["idle_expires"]


def _held(service: RunningService) -> list[str | None]:
    return [lease.job for lease in service.queue.leases.held]


def test_the_command_finds_its_qpu_in_its_environment(service: RunningService) -> None:
    script = 'env | grep -E "QRMI|SFQ"; echo $$'
    code, out, err = _run("--url", service.url, "--qpu", "far", *_shell(script))
    assert (code, err) == (0, "")
    *lines, _ = out.splitlines()
    told = dict(line.split("=", 1) for line in lines)
    token = told.pop("far_QRMI_JOB_ACQUISITION_TOKEN")
    assert told.pop("QRMI_JOB_ID").isdigit()
    assert told == {
        "QRMI_JOB_QPU_RESOURCES": "far",
        "QRMI_JOB_QPU_TYPES": "sfq",
        "QRMI_JOB_UID": str(os.getuid()),
        "far_SFQ_URL": service.url,
    }
    lease = service.ask("GET", f"/v1/leases/{token}").json()
    assert (lease["job"], lease["held"]) == ("sh", False)


def test_solve_runs_under_it(service: RunningService, tmp_path: Path) -> None:
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps({"bqm": example_bqm()}))
    output = tmp_path / "samples.json"
    solve = [*SFQ, "solve", "--problem", str(problem), "--output", str(output)]
    code, _, err = _run("--url", service.url, "--", *solve)
    assert (code, err) == (0, "")
    assert json.loads(output.read_text())["info"]["qpu"] == "qpu"
    assert _held(service) == []


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)]
)
def test_its_exit_status_is_the_commands(
    service: RunningService, script: str, status: int
) -> None:
    assert _run("--url", service.url, *_shell(script))[0] == status
    assert _held(service) == []


def test_a_command_that_is_not_there(service: RunningService, tmp_path: Path) -> None:
    code, _, err = _run("--url", service.url, "--", "/nowhere/program")
    assert (code, err) == (
        127,
        "sfq lease: /nowhere/program: no such file or directory\n",
    )
    assert _run("--url", service.url, "--", str(tmp_path))[0] == 126
    assert _held(service) == []


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
)
def test_signals_go_on_to_the_command(
    service: RunningService, number: signal.Signals
) -> None:
    script = f"trap 'echo got; exit 5' {number}; echo on; while :; do sleep 0.01; done"
    process = _start("--url", service.url, *_shell(script))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    out, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (5, "got\n")
    assert _held(service) == []


def test_a_signal_that_ends_the_command_is_its_status(service: RunningService) -> None:
    process = _start("--url", service.url, "--", "sleep", "60")
    until(lambda: _held(service) == ["sleep"], "the lease")
    until(lambda: _has_child(process), "the command")
    process.terminate()
    process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert _held(service) == []


def test_the_time_limit_ends_the_command(service: RunningService) -> None:
    code, _, err = _run(
        "--url", service.url, "--time-limit", "0.2", "--", "sleep", "60"
    )
    assert code == 128 + signal.SIGTERM
    assert "time limit of 0.2 s reached" in err
    assert _held(service) == []


def test_it_waits_with_one_line_and_gives_up_in_time(service: RunningService) -> None:
    service.acquire()
    code, out, err = _run("--url", service.url, "--wait", "0.3", *_shell("echo ran"))
    assert (code, out) == (75, "")
    waiting, gave_up = err.splitlines()
    assert waiting.startswith("sfq lease: waiting for a lease of QPU qpu")
    assert gave_up.startswith("sfq lease: QPU 'qpu' at unix:")
    assert _held(service) == ["test"]


def test_a_reservation_is_refused_in_one_line(service: RunningService) -> None:
    words = ["--url", service.url, "--priority", "0", "--reservation", "monday"]
    code, out, err = _run(*words, *_shell("echo ran"))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.endswith("reservation: this QPU has no reservations: omit it")


def test_it_ends_at_the_latest_start(service: RunningService, tmp_path: Path) -> None:
    service.acquire()
    file = tmp_path / "account"
    latest = ["--latest-start", "1s", "--account", str(file)]
    code, out, err = _run("--url", service.url, *latest, *_shell("echo ran"))
    assert (code, out) == (75, "")
    assert "not granted by 2" in err.splitlines()[-1]
    assert [ran.waited_out for ran in account.loads(file.read_text())] == [True]
    assert _held(service) == ["test"]


@pytest.mark.parametrize("when", ["soon", "2026-02-30T08:00Z", "999999999d"])
def test_a_latest_start_that_is_no_time_is_refused(when: str) -> None:
    words = ["--url", "unix:/s", "--latest-start", when, *_shell("echo ran")]
    code, _, err = _run(*words)
    assert code == 2
    assert f"--latest-start: '{when}': expected a time such as" in err


def test_it_waits_until_the_lease_comes(service: RunningService) -> None:
    lease = service.acquire()
    process = _start("--url", service.url, *_shell("echo ran"))
    assert process.stderr is not None
    assert "waiting" in process.stderr.readline()
    service.ask("DELETE", f"/v1/leases/{lease}")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (0, "ran\n", "")
    assert _held(service) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait(
    service: RunningService, number: signal.Signals
) -> None:
    lease = service.acquire()
    process = _start("--url", service.url, *_shell("echo ran"))
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(number)
    out, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (128 + number, "")
    service.ask("DELETE", f"/v1/leases/{lease}")
    assert _held(service) == []


def test_killed_itself_its_command_ends_and_its_lease_runs_out() -> None:
    idle = 9.0
    settings = ServiceSettings(leases=LeaseSettings(idle_seconds=idle))
    with running_service(settings=settings) as service:
        process = _start("--url", service.url, *_shell("echo $$; exec sleep 60"))
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        first = _idle_expires(service)
        # later than the one with which renewals begin
        until(lambda: _idle_expires(service) > first + idle / 6, "a renewal")
        process.kill()
        # its end is the command's, which so closes what both wrote to
        process.communicate(timeout=SECONDS)
        until(lambda: not child.is_running() or child.status() == "zombie", "its end")
        brief = ServiceSettings(leases=LeaseSettings(idle_seconds=0.01))
        service.reconfigure(brief)
        until(lambda: not _held(service), "the lease's end")


def test_a_lower_class_than_asked_for_is_said() -> None:
    settings = ServiceSettings(classes=ClassSettings(highest="test"))
    with running_service(settings=settings) as service:
        asked = ("--url", service.url, "--class", "production")
        code, out, err = _run(*asked, *_shell("echo ran"))
    assert (code, out, err.count("\n")) == (0, "ran\n", 1)
    assert err.startswith(
        "sfq lease: The lease of QPU qpu has class test, not production as requested"
    )


def test_two_qpus_are_taken_in_one_order_and_both_given_back() -> None:
    with running_service() as one, running_service() as two:
        known = {"a_SFQ_URL": one.url, "b_SFQ_URL": two.url}
        script = "echo $QRMI_JOB_QPU_RESOURCES"
        rivals = [
            _start("--qpu", names, *_shell(script), **known)
            for names in ("a,b", "b,a") * 2
        ]
        for rival in rivals:
            out, _ = rival.communicate(timeout=SECONDS)
            assert (rival.returncode, out) == (0, "a,b\n")
        # the second is not to be had: the first is given back
        two.acquire()
        known["QRMI_JOB_QPU_RESOURCES"] = "b,a"
        assert _run("--wait", "0.1", *_shell(script), **known)[0] == 75
        assert _held(one) == []


def test_qpus_of_a_sites_file(service: RunningService, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("not asked for\n")
    entries: JSON = [
        {
            "name": "own",
            "type": "sfq",
            "environment": {"SFQ_URL": service.url, "SFQ_TOKEN_FILE": str(token)},
        },
        {"name": "other", "type": "of another site", "environment": {}},
    ]
    file = tmp_path / "qrmi_config.json"
    file.write_text(json.dumps({"resources": entries}))
    site = ["--qrmi-config", str(file), "--qpu"]
    code, out, _ = _run(*site, "own", *_shell("echo $own_SFQ_TOKEN_FILE"))
    assert (code, out) == (0, f"{token}\n")
    code, _, err = _run(*site, "other", *_shell("echo ran"))
    assert (code, len(err.splitlines())) == (2, 1)
    assert "unknown QPU type 'of another site'" in err


def test_a_qpu_that_only_the_package_qrmi_reaches(tmp_path: Path) -> None:
    file = only_by_qrmi(tmp_path)
    code, out, _ = _run(
        *("--qrmi-config", str(file), "--qpu", "cold"),
        *_shell("env | grep -E 'QRMI|SFQ'"),
    )
    assert code == 0
    told = dict(line.split("=", 1) for line in out.splitlines())
    assert told["QRMI_JOB_QPU_RESOURCES"] == "cold"
    assert told["QRMI_JOB_QPU_TYPES"] == "iqm-server"
    assert told["cold_QRMI_IQM_ISA_ENDPOINT"] == "http://127.0.0.1:1"
    assert told["cold_QRMI_JOB_ACQUISITION_TOKEN"]


def test_a_token_goes_with_each_request(tmp_path: Path) -> None:
    made = {"ada": new_token()}
    tokens = tmp_path / "tokens.yml"
    tokens.touch(0o600)
    tokens.write_text(json.dumps([token_entry("ada", made["ada"], admin=False)]))
    file = tmp_path / "token"
    file.write_text(made["ada"])
    with running_service(authenticate=Tokens(tokens)) as service:
        known = ["--url", service.url, "--token-file", str(file)]
        code, out, err = _run(*known, *_shell("env"))
        assert (code, err) == (0, "")
        assert made["ada"] not in out
        assert f"qpu_SFQ_TOKEN_FILE={file}" in out
        code, _, err = _run("--url", service.url, *_shell("echo ran"))
        assert code == 2
        assert "refuses" in err
        # trying again cures no refusal, whoever else does not answer
        code, (*_, refused, silent) = _qpus(
            QRMI_JOB_QPU_RESOURCES="a,b",
            a_SFQ_URL=service.url,
            b_SFQ_URL="unix:/nowhere/s",
        )
        assert (code, refused[3], silent[3:5]) == (2, "refused", ["no", "answer"])


def test_a_command_ends_when_its_user_is_refused(tmp_path: Path) -> None:
    tokens, file, record = (tmp_path / name for name in ("t.yml", "token", "account"))
    tokens.touch(0o600)
    file.write_text(token := new_token())
    tokens.write_text(json.dumps([token_entry("ada", token, admin=False)]))
    brief = ServiceSettings(leases=LeaseSettings(idle_seconds=9))
    with running_service(settings=brief, authenticate=Tokens(tokens)) as service:
        known = ["--url", service.url, "--token-file", str(file)]
        known += ["--account", str(record)]
        script = f"touch {tmp_path}/begun; exec sleep 600"
        running = _start(*known, *_shell(script))
        until((tmp_path / "begun").exists, "the command")
        tokens.write_text("[]")
        _, err = running.communicate(timeout=SECONDS)
        refusal = (
            f"QPU 'qpu' at {service.url} refuses: Authorization: unknown bearer token "
            f"(token file {file})"
        )
        assert running.returncode == 2
        assert f"sfq lease: {refusal}\n" in err
        assert _run(*known, *_shell("echo ran"))[:2] == (2, "")
        lost, none = account.loads(record.read_text())
        assert [(ran.status, ran.refusal) for ran in (lost, none)] == [(2, refusal)] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no QPU: give a URL (--url)"),
        (["--qpu", "a"], "a_SFQ_URL is not set; name the file that describes the QPU"),
        (["--qpu", "a,a"], "name each QPU once"),
        (["--url", "unix:/s", "--qpu", "a,b"], "one URL is one QPU"),
        (["--url", "ftp://x"], "ftp://x: expected unix:"),
        (["--qrmi-config", "/nowhere", "--qpu", "a"], "/nowhere"),
        (["--url", "unix:/s", "--token-file", "/nowhere"], "/nowhere"),
        (["--url", "unix:/s", "--qpu", "a-b"], "letters, digits and underscores"),
        (["--held"], "QRMI_JOB_QPU_RESOURCES names no QPU"),
        (["--held", "--wait", "3"], "--wait: not with --held"),
        (["--held", "--project", "p"], "--project: not with --held"),
        (["--held", "--latest-start", "9s"], "--latest-start: not with --held"),
        (["--held", "--priority", "0"], "--priority: not with --held"),
        (["--held", "--reservation", "r"], "--reservation: not with --held"),
    ],
)
def test_bad_input(words: list[str], said: str) -> None:
    code, _, err = _run(*words, *_shell("echo ran"))
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("sfq lease: ")
    assert said in line


def _qpus(*words: str, **environment: str) -> tuple[int, list[list[str]]]:
    done = subprocess.run(
        [*SFQ, "qpus", *words],
        env={**_clean(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, [line.split() for line in done.stdout.splitlines()]


def test_qpus_lists_the_kinds_and_how_given_ones_are(service: RunningService) -> None:
    code, rows = _qpus()
    assert code == 0
    assert ["sfq", "yes"] in rows
    service.acquire()
    code, (heads, row) = _qpus("--url", service.url, "--qpu", "far")
    assert (code, heads[0]) == (0, "qpu")
    assert row[:6] == ["far", "sfq", "annealer", "online", "1/1", "0"]
    # by its own name, unless it is given one
    _, (_, row) = _qpus("--url", service.url)
    assert row[:2] == [service.queue.device.name, "sfq"]
    code, (_, row) = _qpus("--url", "unix:/nowhere/s")
    assert (code, row[0]) == (75, "qpu")
    # of the environment, where one does not answer
    code, rows = _qpus(
        QRMI_JOB_QPU_RESOURCES="a,b", a_SFQ_URL=service.url, b_SFQ_URL="unix:/nowhere/s"
    )
    assert code == 75
    assert rows[-2][:4] == ["a", "sfq", "annealer", "online"]
    assert rows[-1][:5] == ["b", "sfq", "-", "no", "answer"]


def test_qpus_tell_announced_maintenance(service: RunningService) -> None:
    service.ask("POST", "/v1/device/maintenance", {"starts": time.time() + 600})
    done = subprocess.run(
        [*SFQ, "qpus", "--url", service.url],
        env=_clean(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r" stops taking jobs in (600|5\d\d) s: maintenance", done.stdout)


def test_qpus_for_programs(service: RunningService) -> None:
    service.acquire()
    done = subprocess.run(
        [*SFQ, "qpus", "--json", "--qpu", "a,b"],
        env={**_clean(), "a_SFQ_URL": service.url, "b_SFQ_URL": "unix:/nowhere/s"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 75
    one, other = json.loads(done.stdout)["qpus"]
    assert one == {
        **{"qpu": "a", "type": "sfq", "technology": "annealer", "state": "online"},
        **{"leases": 1, "vqpus": 1, "queue_length": 0, "note": ""},
        "eta_seconds": one["eta_seconds"],
        "maintenance_seconds": None,
    }
    assert (other["qpu"], other["state"], other["leases"]) == ("b", "no answer", None)
    assert "does not answer" in other["note"]
    done = subprocess.run(
        [*SFQ, "qpus", "--json"],
        env=_clean(),
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert (told["types"]["sfq"], told["qpus"]) == (None, [])


def _solve(folder: Path) -> list[str]:
    problem = folder / "problem.json"
    problem.write_text(json.dumps({"bqm": example_bqm()}))
    output = folder / "samples.json"
    return [*SFQ, "solve", "--problem", str(problem), "--output", str(output)]


def test_an_account_tells_which_qpu_jobs_a_command_had(
    service: RunningService, tmp_path: Path
) -> None:
    file = tmp_path / "account"
    known = ["--url", service.url, "--account", str(file)]
    assert _run(*known, "--", *_solve(tmp_path))[0] == 0
    assert _run(*known, *_shell("exit 3"))[0] == 3
    solved, failed = account.loads(file.read_text())
    assert solved.waited == 0  # the start of sfq lease is not a wait
    assert (solved.status, solved.used) == (0, True)
    (lease,) = solved.leases
    assert (lease.qpu, lease.technology, lease.trouble) == ("qpu", "annealer", None)
    assert lease.jobs
    assert [job.state for job in lease.jobs] == ["Completed"]
    assert (failed.status, failed.used) == (3, False)
    assert not solved.waited_out
    assert not failed.waited_out
    assert _held(service) == []
    code, out, err = _run(
        "--url", service.url, "--account", "/nowhere/a", *_shell("echo ran")
    )
    assert (code, out) == (2, "")
    why = "cannot be written: No such file or directory"
    assert err == f"sfq lease: /nowhere/a: {why}; name an existing, writable folder\n"


def test_account_reports_a_wait_without_a_lease(
    service: RunningService, tmp_path: Path
) -> None:
    service.acquire()
    file = tmp_path / "account"
    words = ["--url", service.url, "--wait", "0.1", "--account", str(file)]
    assert _run(*words, *_shell("echo ran"))[:2] == (75, "")
    (ran,) = account.loads(file.read_text())
    assert (ran.status, ran.waited_out) == (75, True)


def test_what_an_account_says_of_use() -> None:
    lost = account.CommandRun(
        0, [account.LeaseUsage("a", None, "gone"), account.LeaseUsage("b", [])]
    )
    assert account.loads(account.dumps(lost)) == [lost]
    assert lost.used is None
    # of a kind that never tells
    assert account.CommandRun(0, [account.LeaseUsage("a", None)]).used


def test_leases_that_the_batch_system_took_are_used_and_left(
    service: RunningService, tmp_path: Path
) -> None:
    token = service.acquire()
    file = tmp_path / "account"
    told = {
        "SLURM_JOB_QPU_RESOURCES": "far,cold",
        "SLURM_JOB_QPU_TYPES": "sfq,of-another-site",
        "far_SFQ_URL": service.url,
        "far_QRMI_JOB_ACQUISITION_TOKEN": token,
    }
    words = ["--held", "--account", str(file)]
    assert _run(*words, "--", *_solve(tmp_path), **told)[0] == 0
    assert _held(service) == ["test"]
    (ran,) = account.loads(file.read_text())
    assert [lease.qpu for lease in ran.leases] == ["far", "cold"]
    jobs = [lease.jobs for lease in ran.leases]
    assert jobs[0]
    assert jobs[1] is None
    assert _run("--held", "--qpu", "far", *_shell("exit 4"), **told)[0] == 4


def _close(service: RunningService) -> None:
    service.ask("POST", "/v1/device/close", {"message": "helium is low"})


LEFT = "sfq lease: QPU qpu is offline: the QPU is closed: helium is low; the command can run elsewhere"


def test_a_command_that_can_run_elsewhere_leaves_a_closed_qpu(
    service: RunningService, tmp_path: Path
) -> None:
    _close(service)
    file = tmp_path / "account"
    words = ["--url", service.url, "--exit-if-offline", "--account", str(file)]
    code, out, err = _run(*words, *_shell("echo ran"))
    assert (code, out) == (75, "")
    assert err.splitlines()[-1].startswith(LEFT)
    (ran,) = account.loads(file.read_text())
    assert ran.status == 75


def test_a_command_is_taken_from_a_qpu_that_closes_under_it(tmp_path: Path) -> None:
    with running_service(EmulatedDevice(technology="neutral-atom"), vqpus=2) as slow:
        words = ["--url", slow.url, "--exit-if-offline"]
        trap = "trap 'kill $!; echo ended; exit 1' TERM"
        script = f"cd {tmp_path}; sleep 60 & {trap}; touch begun; wait $!"
        lost = _start(*words, *_shell(script))
        until((tmp_path / "begun").exists, "the first command")
        # one that can run nowhere else waits for its QPU
        patient = _start("--url", slow.url, "--", *_solve(tmp_path))
        until(
            lambda: [
                job for job in slow.queue.store.jobs.latest() if job.state == "Running"
            ],
            "its job on the QPU",
        )
        _close(slow)
        out, err = lost.communicate(timeout=SECONDS)
        assert (lost.returncode, out) == (75, "ended\n")
        assert err.splitlines()[-1].startswith(LEFT)
        assert patient.poll() is None
        patient.terminate()
        patient.communicate(timeout=SECONDS)
        assert patient.returncode == 128 + signal.SIGTERM
        assert _held(slow) == []


def test_a_command_is_left_to_end_where_its_job_still_runs(
    service: RunningService, tmp_path: Path
) -> None:
    # its QPU jobs are over, so it needs the QPU no more
    script = f"{' '.join(_solve(tmp_path))}; touch {tmp_path}/solved; sleep 3"
    process = _start("--url", service.url, "--exit-if-offline", *_shell(script))
    until((tmp_path / "solved").exists, "its answer")
    _close(service)
    _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")


def _taken(service: RunningService) -> dict[str, str]:
    """Take a lease, and tell of it as the batch system does."""
    return {
        "SLURM_JOB_QPU_RESOURCES": "qpu",
        "SLURM_JOB_QPU_TYPES": "sfq",
        "qpu_SFQ_URL": service.url,
        "qpu_QRMI_JOB_ACQUISITION_TOKEN": service.acquire(),
    }


def test_leases_that_the_batch_system_took_are_left_too(
    service: RunningService,
) -> None:
    told = _taken(service)
    _close(service)
    code, _, err = _run("--held", "--exit-if-offline", "--", "sleep", "60", **told)
    assert code == 75
    assert err.splitlines()[-1].startswith(LEFT)
    assert _held(service) == ["test"]


def test_held_does_not_start_a_command_whose_lease_has_ended(
    service: RunningService,
) -> None:
    told = _taken(service)
    service.ask("DELETE", f"/v1/leases/{told['qpu_QRMI_JOB_ACQUISITION_TOKEN']}")
    code, out, err = _run("--held", *_shell("echo ran"), **told)
    assert (code, out) == (75, "")
    assert err.endswith("the lease was released\n")


def test_held_starts_a_command_whose_qpu_does_not_answer() -> None:
    with running_service(EmulatedDevice(time_scale=0)) as service:
        told = _taken(service)
        service.ask("DELETE", f"/v1/leases/{told['qpu_QRMI_JOB_ACQUISITION_TOKEN']}")
    assert _run("--held", *_shell("echo ran"), **told) == (0, "ran\n", "")


def test_a_command_that_fails_without_its_qpu_runs_elsewhere(
    service: RunningService,
) -> None:
    told = _taken(service)
    _close(service)
    # at once, before anything has looked at the QPU
    code, _, err = _run("--held", "--exit-if-offline", "--", "false", **told)
    assert code == 75
    assert err.splitlines()[-1].startswith(LEFT)
    service.ask("POST", "/v1/device/open", {})
    assert _run("--held", "--exit-if-offline", "--", "false", **told)[0] == 1


def test_its_own_start_is_light() -> None:
    code = "import sys, sf_quantum.cli.qpu.lease; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"numpy", "dimod", "streamflow", "fastapi", "qrmi", "aiohttp"}
    assert not heavy & set(done.stdout.split())


def _has_child(process: subprocess.Popen[str]) -> bool:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return bool(path.read_text().split())

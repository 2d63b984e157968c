"""``sfq slurm``, as the plugins of a site call it; Slurm's own commands are stand-ins."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sf_quantum.cli import main
from sf_quantum.files import JSON
from sf_quantum.qpu.leasing.burst import controller, forgotten, waiting
from sf_quantum.qpu.leasing.burst.folder import Folder, Held, Why
from sf_quantum.qpu.leasing.burst.forgotten import Forgotten
from sf_quantum.qpu.leasing.burst.watch_processes import Children
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import FixedIdentity
from sf_quantum.slurm.squeue import QueuedJob
from tests.support.folders import ROOT
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.process

Command = Callable[..., int]


@pytest.fixture
def service() -> Iterator[RunningService]:
    """A service that knows Slurm's user as an admin."""
    slurm = FixedIdentity(Identity("slurm", admin=True))
    with running_service(authenticate=slurm) as running:
        yield running


@pytest.fixture
def sfq(
    service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs an action for job 7, a task of ada's array; comments go to a file."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    listed = "6$mark|5_1|5|1|bob|501|quantum|other|normal|1|1000|0|\\n"
    listed += "7$mark|5_2|5|2|ada|500|quantum|physics|urgent|900|1000|0|\\n"
    # the tasks that have not started, of which the first two are held and to begin later
    tasks = "0|0|JobHeldUser\\n1|9|BeginTime\\n2|9|None\\n3|9|None\\n"
    for name, script in {
        "squeue": f"""mark=$(echo "$*" | sed -n 's/.* JobID:\\(|[0-9a-f]*\\)|,.*/\\1/p')
case "$*" in
*PENDING*) echo $6 >>{tmp_path}/asked; cat {tmp_path}/earlier 2>&- && rm {tmp_path}/earlier || printf '{tasks}';;
*) printf "{listed}";;
esac""",
        "sacctmgr": f'echo "$@" >{tmp_path}/account',
        "scontrol": f"""case "$*" in
"show config") echo "ClusterName = $(cat {tmp_path}/cluster 2>&- || echo hpc)";;
*) echo "$@" >>{tmp_path}/comments;;
esac""",
    }.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_ / name).chmod(0o755)
    config = tmp_path / "qrmi_config.json"
    environment = {"SFQ_URL": service.url}
    entry = {"name": "qpu", "type": "sfq", "environment": environment}
    config.write_text(json.dumps({"resources": [entry]}))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    # that of this process is pytest's own
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    given = [
        "--qrmi-config",
        str(config),
        "--qpu",
        "qpu",
        "--state",
        f"{tmp_path}/jobs",
    ]
    return lambda action, job="7", *options: main(
        ["slurm", action, job, *given, *options]
    )


def in_thread(call: Callable[[], int]) -> tuple[threading.Thread, list[int]]:
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(call()))
    thread.start()
    return thread, status


def test_a_lease_belongs_to_the_user_and_the_job(
    sfq: Command, service: RunningService, tmp_path: Path
) -> None:
    bounds = "--max-qpu-seconds 60 --max-shots 500 --max-qubits 40".split()
    assert sfq("acquire", "7", "--expected-seconds", "30", *bounds) == 0
    (lease,) = service.queue.leases.held
    assert (lease.user, lease.slurm_job_id) == ("ada", "7")
    assert lease.slurm_cluster == "hpc"
    assert lease.partition == "quantum"
    assert lease.expected_seconds == 30
    assert (lease.max_qpu_seconds, lease.max_shots, lease.max_qubits) == (60, 500, 40)
    file = tmp_path / "jobs" / "7"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    first, *lines = file.read_text().splitlines()
    assert first.startswith("# ")
    assert dict(line.split("=", 1) for line in lines) == {
        "qpu_SFQ_URL": service.url,
        "qpu_QRMI_JOB_ACQUISITION_TOKEN": lease.id,
        "QRMI_JOB_QPU_RESOURCES": "qpu",
        "QRMI_JOB_QPU_TYPES": "sfq",
        "QRMI_JOB_UID": "500",
        "QRMI_JOB_ID": "7",
    }
    # as after a restart of slurmctld
    assert sfq("acquire") == 0
    assert [one.id for one in service.queue.leases.held] == [lease.id]
    assert sfq("confirm") == 0
    assert sfq("release") == 0
    assert not service.queue.leases.held
    assert not file.exists()


def test_a_job_of_another_cluster_has_its_own_lease(
    sfq: Command, service: RunningService, tmp_path: Path
) -> None:
    leases = service.queue.leases
    assert sfq("acquire") == 0
    (first,) = leases.held
    # the other cluster's controller knows nothing of the job
    (tmp_path / "jobs" / "7").unlink()
    (tmp_path / "cluster").write_text("other")
    assert sfq("release") == 0
    assert leases.held == [first]
    thread, status = in_thread(lambda: sfq("acquire"))
    until(lambda: leases.waiting, "it waits")
    service.ask("DELETE", f"/v1/leases/{first.id}")
    thread.join(SECONDS)
    assert status == [0]
    assert [one.slurm_cluster for one in leases.held] == ["other"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["qos:other=development", "qos:urgent=test"], "test"),
        (["partition:quantum=production", "qos:urgent=test"], "production"),
        (["priority:901=production", "priority:900=test"], "test"),
        (["qos:high=test"], "development"),
    ],
)
def test_the_first_rule_that_fits_a_job_gives_its_class(
    sfq: Command, service: RunningService, rules: list[str], expected: str
) -> None:
    assert sfq("acquire", "7", *(f"--class-of={rule}" for rule in rules)) == 0
    (lease,) = service.queue.leases.held
    assert lease.job_class == expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["partition:quantum=production"], "development"),
        (["partition:debug=test", "qos:urgent=production"], "test"),
        (["qos:urgent=production"], "production"),
    ],
)
def test_of_several_partitions_the_lowest_class_counts(
    sfq: Command,
    service: RunningService,
    tmp_path: Path,
    rules: list[str],
    expected: str,
) -> None:
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(
        squeue.read_text().replace("quantum|physics", "quantum,debug|physics")
    )
    assert sfq("acquire", "7", *(f"--class-of={rule}" for rule in rules)) == 0
    (lease,) = service.queue.leases.held
    assert lease.job_class == expected


@pytest.mark.parametrize("rule", ["qos:high", "qos:high=fast", "priority:x=test"])
def test_a_rule_that_is_none_is_refused(
    sfq: Command, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    with pytest.raises(SystemExit):
        sfq("acquire", "7", f"--class-of={rule}")
    told = f"{rule!r}: expected such as qos:urgent=production"
    assert told in capsys.readouterr().err


def test_accounts_for_the_jobs_of_a_lease(
    sfq: Command, service: RunningService, tmp_path: Path
) -> None:
    assert sfq("acquire") == 0
    (lease,) = service.queue.leases.held
    job: dict[str, JSON] = {
        "problem": example_bqm(),
        "parameters": {"num_reads": 10},
        "idempotency_key": "one",
    }
    service.ask("POST", "/v1/jobs", job, lease=lease.id)
    service.until(lease.id, "Completed")
    assert sfq("release") == 0
    (done,) = service.queue.store.jobs.latest(lease=lease.id)
    modify, _, comment = (tmp_path / "account").read_text().partition("admincomment=")
    assert modify == "--immediate modify job where jobid=7 set "
    figures = dict(word.split("=") for word in comment.split())
    assert figures.pop("qpu_seconds") == f"{done.qpu_seconds:.6f}" != "0.000000"
    assert float(figures.pop("queued_seconds")) >= 0
    assert float(figures.pop("lease_wait_seconds")) >= 0
    times = [
        figures.pop(f"timestamps.{at}") for at in ("created", "running", "finished")
    ]
    told = [done.submitted, done.started, done.ended]
    assert times == [
        datetime.fromtimestamp(at or 0, UTC).isoformat(timespec="seconds")
        for at in told
    ]
    assert figures == {
        "resource_id": "qpu",
        "resource_type": "sfq",
        "jobs": "1",
        "lost_attempts": "0",
        "lost_qpu_seconds": "0.000000",
    }


def test_a_found_job_is_in_one_account_only(
    sfq: Command, service: RunningService, tmp_path: Path
) -> None:
    job: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "one"}
    accounts = []
    for _ in range(2):
        assert sfq("acquire") == 0
        (lease,) = service.queue.leases.held
        service.ask("POST", "/v1/jobs", job, lease=lease.id)
        service.until(lease.id, "Completed")
        assert sfq("release") == 0
        _, _, comment = (tmp_path / "account").read_text().partition("admincomment=")
        accounts.append(dict(word.split("=") for word in comment.split()))
    (done,) = service.queue.store.jobs.latest()
    assert [(one["jobs"], one["qpu_seconds"]) for one in accounts] == [
        ("1", f"{done.qpu_seconds:.6f}"),
        ("0", "0.000000"),
    ]


def test_a_wait_is_told_and_then_no_more(
    sfq: Command, service: RunningService, tmp_path: Path
) -> None:
    service.ask("POST", "/v1/device/close", {"message": "new laser"})
    thread, status = in_thread(lambda: sfq("acquire"))
    comments = tmp_path / "comments"
    until(comments.exists, "a comment")
    service.ask("POST", "/v1/device/open", {})
    thread.join(SECONDS)
    assert status == [0]
    told, empty = comments.read_text().splitlines()
    assert told.startswith("update JobId=5_2 AdminComment=qpu: ")
    assert "new laser" in told
    assert empty == "update JobId=5_2 AdminComment="


def test_confirms_neither_a_closed_qpu_nor_a_lost_lease(
    sfq: Command, service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sfq("confirm") == 75
    assert "job 7 has no lease" in capsys.readouterr().err
    assert sfq("acquire") == 0
    service.ask("POST", "/v1/device/close", {"message": "new laser"})
    assert sfq("confirm") == 75
    assert "new laser" in capsys.readouterr().err
    (lease,) = service.queue.leases.held
    service.ask("DELETE", f"/v1/leases/{lease.id}")
    assert sfq("confirm") != 0
    assert "the lease was released" in capsys.readouterr().err


def test_a_task_asks_after_the_earlier_ones_of_its_array(
    sfq: Command,
    service: RunningService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "TASKS_SECONDS", 0.0)
    # which Slurm says once
    earlier = tmp_path / "earlier"
    earlier.write_text("1|9|BurstBufferStageIn\n")
    assert sfq("acquire") == 0
    assert not earlier.exists()
    assert (tmp_path / "asked").read_text() == "5\n5\n"
    assert service.queue.leases.held


def test_releases_what_was_granted_to_a_process_that_was_killed(
    sfq: Command, service: RunningService, tmp_path: Path
) -> None:
    assert sfq("acquire") == 0
    (tmp_path / "jobs" / "7").write_text("# 0 0\n")
    assert sfq("release", "8") == 0
    assert service.queue.leases.held
    assert sfq("release") == 0
    assert not service.queue.leases.held


def test_a_job_that_slurm_does_not_list_is_refused(
    sfq: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sfq("acquire", "9") == 75
    assert capsys.readouterr().err == "sfq slurm: squeue does not list job 9\n"


def test_a_name_of_a_job_may_be_in_any_encoding() -> None:
    assert controller.slurm("printf", r"7 caf\351") == "7 caf\N{REPLACEMENT CHARACTER}"


@given(
    st.sampled_from(Why),
    st.integers(0, 10**6),
    st.text(st.characters(exclude_categories=["C"]), max_size=20),
    st.sampled_from(["", "1795916259"]),
)
def test_a_mark_survives_its_file(
    why: Why, losses: int, text: str, submitted: str
) -> None:
    held = Held(why, losses, text.strip(), submitted)
    assert Held.parse(str(held)) == held


def test_the_plugins_mark_is_read() -> None:
    source = (ROOT / "deployments" / "slurm" / "burst_buffer.lua").read_text()
    written = re.search(r'mark:write\("(.*)", request\.name, "(.*)\\n"\)', source)
    assert written is not None
    held = Held.parse(f"{written[1]}fresnel{written[2]}\n")
    assert (held.why, held.text.partition(":")[0]) == (Why.CANNOT, "fresnel")


@pytest.mark.parametrize("text", ["", "cannot", "strange 0 - a", "cannot x - a"])
def test_a_malformed_mark_is_that_of_a_job_that_cannot_start(text: str) -> None:
    assert Held.parse(text) == Held(Why.CANNOT)


@pytest.mark.parametrize(
    ("reason", "priority", "is_released"),
    [
        ("burst_buffer/lua: slurm_bb_data_in: Killed", 5000, True),
        ("Burst buffer pre_run error", 5000, True),
        ("Burst buffer pre_run error", 0, False),
        ("BeginTime", 5000, False),
    ],
)
def test_a_job_that_slurm_gave_up_is_released(
    reason: str,
    priority: int,
    is_released: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(forgotten, "slurm", lambda *words: commands.append(words))
    job = QueuedJob(
        *(12, "12", "PENDING", reason, 500, priority, "complete", True, "qpu")
    )
    watch = Forgotten(Folder(tmp_path), {"qpu"}, Children("sfq"))
    watch.mend({12: job}, set(), {}, {})
    assert commands == ([("scontrol", "release", "12")] if is_released else [])

"""Ids of jobs in clusters that were named, and what Slurm is asked about them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.deployment.connector.local import LocalConnector

from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.connector import SlurmConnector
from sf_quantum.connectors.slurm.job import BatchJob
from sf_quantum.connectors.slurm.node_usage import NodeUsage
from sf_quantum.connectors.slurm.sbatch_options import words
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport.controller import (
    Commands,
    Submission,
    SubmissionFailed,
)
from sf_quantum.connectors.slurm.transport.login import LoginNode
from sf_quantum.connectors.slurm.transport.submit_command import submission_command
from sf_quantum.files import JSON
from sf_quantum.slurm import ids, squeue

FED = str((1 << 26) + 5)
REVOKED = f"{FED}|{FED}|REVOKED|None|N/A|N/A|1|||0|sfq:run:key|"
RUNNING = f"{FED}|{FED}|RUNNING|None|100|N/A|1|d1|0|0|sfq:run:key|"
PENDING = f"{FED}|{FED}|PENDING|Priority|N/A|N/A|1|||0|sfq:run:key|"
CANCELLED = f"{FED}|{FED}|CANCELLED|None|N/A|100|1|||0|sfq:run:key|"


class Host(LoginNode):
    """A login node that gives one answer to each command that has some words."""

    told: dict[str, tuple[str, int]]
    ran: list[str]

    async def run(self, command: str) -> tuple[str, int]:
        self.ran.append(command)
        return next(
            (told for words, told in self.told.items() if words in command), ("", 0)
        )


@pytest.fixture
async def host(tmp_path: Path) -> Host:
    connector = LocalConnector("host", str(tmp_path))
    (found,) = (await connector.get_available_locations()).values()
    made = Host(connector, found.location, str(tmp_path / "spool"), "run")
    made.told, made.ran = {}, []
    return made


async def submitted(
    host: Host, answer: str, clusters: str = ""
) -> tuple[Commands, str]:
    host.told["sbatch"] = answer, 0
    commands = Commands(host)
    job = await commands.submit(
        Submission("key", "", "sfq:run:key", "", "", None, clusters)
    )
    host.ran.clear()
    return commands, job


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", True), ("a,b-2", True), ("all", False), ("a, b", False), ("$A", False)],
)
def test_names_of_clusters(text: str, expected: bool) -> None:
    assert ids.are_clusters(text) == expected
    if expected:
        assert words(SlurmService(clusters=text)) == [f'--clusters="{text}"']
    else:
        with pytest.raises(WorkflowDefinitionException, match="names of clusters"):
            SlurmService(clusters=text)


def test_ids_with_a_cluster() -> None:
    assert (ids.number("7;b"), ids.cluster("7;b"), ids.cluster("7")) == ("7", "b", "")
    assert ids.words("7;b") == "7 of cluster b"
    assert ids.words("7") == "7"
    assert (ids.component("7;b", 1), ids.component("7", 0)) == ("7+1;b", "7")
    assert not ids.same("7;a", "7;b")
    assert ids.same(f"{FED};a", f"{FED};b")
    # a script adds its cluster always
    assert ids.found("7;a", "") == "7"
    assert ids.found("7;a", "a,b") == "7;a"
    assert ids.found(f"{FED};a", "") == f"{FED};a"
    assert ids.found("7;", "") == "7"


def test_a_cluster_missing_from_the_output_has_not_answered() -> None:
    text = "CLUSTER: a\nARRAY_JOB_ID|JOBID|\n7|7|RUNNING|None|1|2|1|c1|0|0|x|\n"
    queue = squeue.read(text, named=True)
    assert queue.clusters == {"a"}
    assert [row.node_list for row in queue.rows("7;a") or []] == ["c1"]
    assert queue.rows("7;b") == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([REVOKED, RUNNING], ["RUNNING"]),
        ([RUNNING, REVOKED], ["RUNNING"]),
        ([PENDING, PENDING], ["PENDING"]),
        # it has begun between the two answers
        ([PENDING, RUNNING], ["RUNNING"]),
        # cancelled where it was submitted just when the other started it
        ([CANCELLED, RUNNING], ["RUNNING"]),
        ([CANCELLED, PENDING], ["PENDING"]),
        ([REVOKED, CANCELLED], ["CANCELLED"]),
        # the cluster that runs it is away
        ([REVOKED], None),
        ([], []),
    ],
)
def test_of_the_siblings_in_a_federation_one_counts(
    lines: list[str], expected: list[str] | None
) -> None:
    rows = squeue.read("\n".join(lines)).rows(FED)
    assert (None if rows is None else [row.state for row in rows]) == expected


def test_the_tasks_of_an_array_are_no_siblings() -> None:
    lines = [
        f"{FED}|{FED}_{n}|{s}|None|1|2|1|c1|0|0||"
        for n, s in enumerate(("RUNNING", "PENDING"))
    ]
    rows = squeue.read("\n".join(lines)).rows(FED)
    assert [row.state for row in rows or []] == ["RUNNING", "PENDING"]


async def test_each_cluster_is_asked_of_its_own_jobs(host: Host) -> None:
    commands, job = await submitted(host, "7;b", "a,b")
    assert job == "7;b"
    row = "7|7|RUNNING|None|1|2|1|{}|0|0|x|"
    here, there = row.format("c1"), f"CLUSTER: b\n{row.format('d1')}"
    host.told = {"squeue -M": (there, 0), "squeue": (here, 0)}
    found = await commands.rows({"7", "7;b", "8;a"})
    assert {job: [row.node_list for row in rows] for job, rows in found.items()} == {
        "7": ["c1"],
        "7;b": ["d1"],
    }
    asked = [command for command in host.ran if "squeue" in command]
    assert len(asked) == 2
    assert any("squeue -M a,b --states=all" in one for one in asked)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("", [f"7 {FED} {FED}+1", f"-M b {FED}"]),
        (" -M a,b", [f"-M a,b 7 {FED} {FED}+1"]),
    ],
)
async def test_what_another_cluster_has_started_is_cancelled_there(
    tmp_path: Path,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    expected: list[str],
) -> None:
    cancelled = tmp_path / "cancelled"
    answers = {"scancel": f'echo "$@" >>{cancelled}', "squeue": f"echo 'b|{FED}|'"}
    for name, script in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    await LoginNode.run(host, f"cancel '{where}' 7 {FED} {FED}+1")
    assert cancelled.read_text().splitlines() == expected


async def test_one_job_alone_is_no_error_where_it_is_unknown(host: Host) -> None:
    commands, _ = await submitted(host, "7;b", "b")
    host.told = {"squeue -M": ("CLUSTER: b\n", 0)}
    assert await commands.rows({"7;b"}) == {"7;b": []}
    assert "--jobs=7,7 " in host.ran[-1]
    host.told = {"squeue -M": ("'b' can't be reached now", 1)}
    assert await commands.rows({"7;b"}) == {}


async def test_commands_about_a_job_go_to_its_cluster(host: Host) -> None:
    commands, job = await submitted(host, "7;b", "b")
    shown = "JobId=7 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0"
    host.told = {
        "scontrol -M b --oneliner show job 7": (shown, 0),
        "scontrol -M b show config": ("NEXT_JOB_ID = 9", 0),
        "--allocations -M b --jobs=7 ": ("7|FAILED|None|3:0|1|2", 0),
        "scontrol -M b show job 7; }": ("/out", 0),
    }
    (record,) = await commands.records(job) or []
    assert record.sentence() == (
        "Slurm job 7 of cluster b is FAILED (NonZeroExitCode) with exit code 3"
    )
    assert await commands.next_job(job) == 9
    assert [one.slurm_job for one in await commands.accounted(job)] == ["7;b"]
    assert await commands.files(job, "StdOut") == "/out"
    host.ran.clear()
    await commands.cancel("7;b", "7+1;b", "8")
    assert sorted(host.ran) == ["cancel ' -M b' 7 7+1", "cancel '' 8"]
    host.ran.clear()
    assert await commands.sweep()
    assert [("-M b" in one, "--sibling" in one) for one in host.ran] == [
        (False, True),
        (True, False),
    ]
    host.told = {"squeue -M b": ("", 1)}
    assert not await commands.sweep()


async def test_a_federated_job_is_looked_for_on_all_its_clusters(host: Host) -> None:
    commands, job = await submitted(host, FED)
    host.told = {
        "squeue --noheader": ("", 1),
        f"--jobs={FED} ": (f"{REVOKED}\n{RUNNING}", 0),
    }
    # its script tells where it runs
    for known in (job, f"{FED};b"):
        (row,) = (await commands.rows({known}))[known]
        assert row.state == "RUNNING"
        assert "squeue --sibling --noheader" in host.ran[-1]
    record = f"JobId={FED} JobState={{}} ExitCode=0:0"
    host.told = {"scontrol --sibling": (record.format("REVOKED"), 0)}
    assert await commands.records(job) is None
    assert await commands.next_job(job) is None
    commands, job = await submitted(host, f"{FED};a", "a,b")
    host.told = {
        "scontrol -M a": (record.format("REVOKED"), 0),
        "scontrol -M b": (record.format("COMPLETED"), 0),
        "squeue -M a,b": (f"CLUSTER: a\n{REVOKED}\nCLUSTER: b\n{RUNNING}", 0),
    }
    assert [one.state for one in await commands.records(job) or []] == ["COMPLETED"]
    assert [row.state for row in (await commands.rows({job}))[job]] == ["RUNNING"]
    # one does not answer, and the other one knows nothing
    host.told = {"squeue -M a,b": ("CLUSTER: a\n", 0)}
    assert await commands.rows({job}) == {}


async def test_a_cluster_that_is_away_is_waited_for(host: Host) -> None:
    host.told = {"sbatch": ("sbatch: error: 'b' can't be reached now, or", 1)}
    with pytest.raises(SubmissionFailed) as caught:
        await submitted_again(host)
    assert caught.value.temporary


async def submitted_again(host: Host) -> None:
    await Commands(host).submit(Submission("key", "", "", "", "", None, "b"))


@pytest.mark.process
def test_an_answer_that_was_lost_is_looked_for_in_each_cluster(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()

    def submit(**scripted: str) -> tuple[str, int]:
        for name, script in scripted.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        command = submission_command(
            str(spool),
            "key",
            "true",
            comment="sfq:run:key",
            options="",
            at_once=None,
            clusters=["a", "b"],
        )
        done = subprocess.run(
            ["sh", "-c", f"PATH={tmp_path}:$PATH; {command}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout, done.returncode

    assert submit(sbatch="exit 1") == ("", 1)
    assert (spool / "clusters").read_text() == "--clusters=a\n--clusters=b\n"
    away = 'case "$1" in *=a) echo 7 RUNNING other ;; *) exit 1 ;; esac'
    assert submit(squeue=away) == ("", scripts.UNKNOWN)
    there = 'case "$1" in *=b) echo 7 RUNNING sfq:run:key ;; esac'
    assert submit(squeue=there) == ("7;b\n", 0)
    assert submit(squeue="exit 1") == ("7;b\n", 0)


def test_a_mark_names_the_cluster_that_a_job_named() -> None:
    async def marked(clusters: str, told: str) -> str:
        job = BatchJob("solve", NodeUsage("hpc", SlurmService(), "per-step"))
        job.clusters = clusters
        job.marked(JobMark("key", told, None, 100.0, None, 0))
        assert job.granted.result().slurm_job == job.slurm_job
        return job.slurm_job

    assert asyncio.run(marked("", "7;a")) == "7"
    assert asyncio.run(marked("a,b", "7;b")) == "7;b"
    assert asyncio.run(marked("", f"{FED};b")) == f"{FED};b"


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"clusters": "south"}, "an allocation is in one cluster"),
        (
            {"clusters": "north", "file": "job.sh"},
            "template of service b names clusters",
        ),
    ],
)
async def test_clusters_that_cannot_be_are_refused_when_it_is_deployed(
    tmp_path: Path, service: JSON, message: str
) -> None:
    (tmp_path / "job.sh").write_text(
        "#!/bin/sh\n#SBATCH -M north\n{{streamflow_command}}\n"
    )
    make: Callable[..., SlurmConnector] = SlurmConnector
    connector = make(
        *("hpc", str(tmp_path), LocalConnector("host", str(tmp_path)), None),
        services={"a": {"clusters": "north"}, "b": service},
        allocation={"strategy": "reserved", "reserve": ["a", "b"]},
    )
    with pytest.raises(WorkflowDefinitionException, match=message):
        await connector.deploy(False)

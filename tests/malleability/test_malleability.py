"""Malleable programs where there is no Slurm job to shrink, or none that can be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sf_quantum import malleability, qpu
from sf_quantum.cli import main
from sf_quantum.errors import InputError
from sf_quantum.malleability import slurm
from sf_quantum.malleability.job import MalleableJob
from sf_quantum.malleability.slurm import SlurmError

# as Slurm 22.05 prints it
JOB = """\
JobId=7 JobName=x NodeList=none
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=physics QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A
   StartTime=1795000000 EndTime=Unknown Deadline=N/A
   Partition=compute AllocNode:Sid=login:12014
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=c[1-3]
   BatchHost=c2
   NumNodes=3 NumCPUs=12 NumTasks=3 CPUs/Task=4 ReqB:S:C:T=0:0:*:*
   MinCPUsNode=4 MinMemoryNode=1.50G MinTmpDiskNode=0
   Features=avx DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   TresPerNode=gres:gpu:2,gres:qpu:1
"""
IN_JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}


class Commands:
    """Stands in for Slurm's commands."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.job = JOB
        self.refused = ""
        self.run: list[tuple[str, ...]] = []
        patch.setattr(slurm, "run", self._run)

    def _run(self, *words: str, script: str = "", folder: str | None = None) -> str:
        self.run.append(words)
        match words:
            case "scontrol", "show", "job", _:
                return self.job
            case "scontrol", "show", "hostnames", names:
                return {"c[1-3]": "c1\nc2\nc3"}.get(names, names)
            case ("scontrol", "update", *_) if self.refused:
                raise SlurmError(self.refused)
            case "sbatch", *_:
                return "8"
        return ""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    malleability._warn.cache_clear()
    return Commands(monkeypatch)


def job(**variables: str) -> MalleableJob:
    return MalleableJob({**IN_JOB, **variables}, print)


def test_outside_slurm_nothing_is_done_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    malleability._warn.cache_clear()
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for _ in range(2):
        with qpu.offload(keep=1) as nodes:
            assert nodes == []
    assert caplog.messages == ["not in a Slurm job: no nodes are given back"]


def test_a_job_of_one_node_keeps_it(
    commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    commands.job = JOB.replace("c[1-3]", "c2").replace("Nodes=3", "Nodes=1")
    one = {**IN_JOB, "SLURM_JOB_NUM_NODES": "1"}
    assert malleability.malleable(one, 1, None, print) is None
    assert caplog.messages == ["job 7 has no nodes to give back, as it keeps 1"]
    # though not if it is to have more afterwards, or had more before
    assert malleability.malleable(one, 1, 3, print) is not None
    assert malleability.malleable(IN_JOB, 1, None, print) is not None


def test_nodes_of_batch_script_and_program_are_kept(
    commands: Commands,
) -> None:
    job(SLURMD_NODENAME="c3").shrink(2)
    assert ("scontrol", "update", "JobId=7", "NodeList=c2,c3") in commands.run
    with pytest.raises(InputError, match=r"runs on c2 and this program on c3; keep 2$"):
        job(SLURMD_NODENAME="c3").shrink(1)


def test_further_nodes_are_like_those_of_the_job(commands: Commands) -> None:
    slurm.request(slurm.job("7"), "sfq-nodes-7", 2, ["c2"])
    assert set(commands.run[-1]) >= {
        "--nodes=2",
        "--exclude=c2",
        "--partition=compute",
        "--account=physics",
        "--constraint=avx",
        "--mincpus=4",
        "--mem=1536M",
        "--gres=gpu:2",
        "--time=UNLIMITED",
    }
    assert "--exclusive" not in commands.run[-1]


def test_nodes_that_the_job_avoids_are_still_avoided(commands: Commands) -> None:
    commands.job = JOB.replace("ExcNodeList=(null)", "ExcNodeList=c[8-9]")
    slurm.request(slurm.job("7"), "sfq-nodes-7", 2, ["c2"])
    assert "--exclude=c2,c[8-9]" in commands.run[-1]


@pytest.mark.process
def test_output_of_slurm_may_be_in_any_encoding() -> None:
    assert slurm.run("printf", r"JobName=f\374r") == "JobName=f\ufffdr"


@pytest.mark.parametrize("prefix", ["", "gres:", "gres/"])
@pytest.mark.parametrize("sign", [":", "="])
@pytest.mark.parametrize("name", ["gpu", "gpu:a100", "shard"])
def test_a_gres_is_read_in_all_spellings(prefix: str, sign: str, name: str) -> None:
    given = (
        f"{prefix}qpu{sign}1,{prefix}{name}{sign}2,license/matlab=1,{prefix}craynetwork"
    )
    assert slurm._gres(given) == f"{name}:2,craynetwork:1"


def test_what_cannot_be_given_back_is_refused_at_once(
    commands: Commands, tmp_path: Path
) -> None:
    commands.job = JOB.replace("OverSubscribe=OK", "OverSubscribe=NO")
    with pytest.raises(InputError, match="job 7 has its nodes exclusively"):
        job().shrink(1)
    with pytest.raises(InputError, match="job 7 is heterogeneous"):
        job(SLURM_HET_SIZE="2")
    (tmp_path / "sfq-nodes-7").rmdir()
    (tmp_path / "sfq-nodes-7").write_text("")
    with pytest.raises(InputError, match="sfq-nodes-7"):
        job().shrink(1)
    assert not [words for words in commands.run if "update" in words]


def test_a_program_goes_on_if_slurm_refuses(
    commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    commands.refused = "scontrol update: Requested operation is disabled"
    held = job()
    malleability.give_back(held, 1)
    assert caplog.messages == [f"Nodes are not given back: {commands.refused}"]
    assert len(held.nodes.names) == 3


def test_variables_of_another_job_are_not_believed(commands: Commands) -> None:
    inherited = {"SFQ_NODES_WANTED": "5", "SFQ_NODES_JOB": "6"}
    assert job(**inherited).wanted == 3
    assert job(**inherited | {"SFQ_NODES_JOB": "7"}).wanted == 5


def test_options_without_a_shrink_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["lease", "--patience", "1", "--", "true"]) == 2
    assert capsys.readouterr().err == ("sfq lease: --patience: only with --shrink-to\n")

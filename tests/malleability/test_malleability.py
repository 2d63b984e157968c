"""Malleable programs where there is no Slurm job to shrink, or none that can be."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import threading
from pathlib import Path

import pytest

from sf_quantum import malleability, qpu
from sf_quantum.cli import main
from sf_quantum.errors import InputError
from sf_quantum.malleability import slurm
from sf_quantum.malleability.job import MalleableJob, cancelled_with_process
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
   Nodes=c[1-3] CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1)
   MinCPUsNode=4 MinMemoryNode=1.50G MinTmpDiskNode=0
   Features=avx DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command=/home/ada/job.sh
   TresPerNode=gres:gpu:2,gres:qpu:1
"""
IN_JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}


class Commands:
    """Stands in for Slurm's commands."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.job = JOB
        self.refused = ""
        self.steps = ""
        self.script = ""
        self.run: list[tuple[str, ...]] = []
        # the next outputs of commands, by their beginning
        self.answers: dict[str, list[str | SlurmError]] = {}
        patch.setattr(slurm, "run", self._run)

    def _run(self, *words: str, script: str = "", folder: str | None = None) -> str:
        self.run.append(words)
        for beginning, answers in self.answers.items():
            if answers and " ".join(words).startswith(beginning):
                if isinstance(answer := answers.pop(0), SlurmError):
                    raise answer
                return answer
        match words:
            case "scontrol", "--details", "show", "job", _:
                return self.job
            case "scontrol", "show", "hostnames", names:
                return {"c[1-3]": "c1\nc2\nc3"}.get(names, names)
            case (("scontrol" | "sbatch") as command, *_) if command in self.refused:
                raise SlurmError(self.refused)
            case "squeue", "--steps", *_:
                return self.steps
            case "sbatch", *_:
                self.script = script
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


def requested(commands: Commands, **fields: str) -> tuple[str, ...]:
    """Return the options of a request for a node like those of a job with such fields."""
    commands.job = JOB
    for key, value in fields.items():
        commands.job = re.sub(rf"\b{key}=\S*", f"{key}={value}", commands.job)
    slurm.request(slurm.job("7"), "sfq-nodes-7", 1, ["c2"])
    return commands.run[-1]


@pytest.mark.parametrize("prefix", ["", "gres:", "gres/"])
@pytest.mark.parametrize("sign", [":", "="])
@pytest.mark.parametrize("name", ["gpu", "gpu:a100", "shard"])
def test_a_gres_is_read_in_all_spellings(
    commands: Commands, prefix: str, sign: str, name: str
) -> None:
    given = (
        f"{prefix}qpu{sign}1,{prefix}{name}{sign}2,license/matlab=1,{prefix}craynetwork"
    )
    options = requested(commands, TresPerNode=given, GRES="")
    assert f"--gres={name}:2,craynetwork:1" in options


def test_gpus_not_requested_by_node_are_those_of_a_node(commands: Commands) -> None:
    other = "gres:qpu:1 TresPerTask=gres:gpu:1"
    options = requested(commands, TresPerNode=other, GRES="gpu:a100:2(IDX:0-1)")
    assert "--gres=gpu:a100:2" in options


def test_gpus_that_come_with_a_node_are_not_requested(commands: Commands) -> None:
    options = requested(commands, TresPerNode="", OverSubscribe="NO")
    assert not [option for option in options if "gres" in option]


def test_memory_by_gpu_is_what_the_job_has_on_each_node(commands: Commands) -> None:
    memory = "gres:gpu:2 MemPerTres=gres:gpu:100"
    options = requested(commands, MinMemoryNode="0", Mem="200", TresPerNode=memory)
    assert "--mem=200M" in options
    assert "--mem=0" in requested(commands, MinMemoryNode="0", Mem="16000")


def test_how_nodes_are_shared_and_chosen_is_kept(commands: Commands) -> None:
    assert "--exclusive=user" in requested(commands, OverSubscribe="USER")
    assert "--oversubscribe" in requested(commands, OverSubscribe="YES")
    assert "--nodelist=c1" in requested(commands, ReqNodeList="c[1-3]")
    assert "--tmp=2048M" in requested(commands, MinTmpDiskNode="2G")


def test_gpus_of_tasks_are_those_of_each_step(commands: Commands) -> None:
    commands.job = JOB.replace(
        "TresPerNode=gres:gpu:2,gres:qpu:1", "TresPerTask=gres:gpu:1"
    )
    held = job()
    held.shrink(1)
    assert "--gpus-per-task=1 " in (held.folder / "srun").read_text()
    assert "--gres=gpu:2 " in (held.folder / "launch").read_text()


UNLIKE = {
    "has 4 CPUs on c1 but 2 on c[2-3]; submit with --nodes and --ntasks-per-node": (
        "Nodes=c[1-3] CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1)",
        "Nodes=c1 CPU_IDs=0-3 Mem=0 GRES= Nodes=c[2-3] CPU_IDs=0,2 Mem=0 GRES=",
    ),
    "has gpu:1(IDX:0) on c1 but gpu:2(IDX:0-1) on c[2-3]; submit with --gpus-per-node": (
        "Nodes=c[1-3] CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1)",
        "Nodes=c1 CPU_IDs=0-3 Mem=0 GRES=gpu:1(IDX:0) "
        "Nodes=c[2-3] CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1) TresPerTask=gres:gpu:1",
    ),
    "has the constraint [a|b], which holds for all its nodes together": (
        "Features=avx",
        "Features=[a|b]",
    ),
    "has requested its GPUs for all nodes together (--gpus); submit with "
    "--gpus-per-node": ("TresPerNode=", "TresPerJob="),
}


@pytest.mark.parametrize("message", UNLIKE)
def test_nodes_that_no_other_is_like_are_kept(commands: Commands, message: str) -> None:
    commands.job = JOB.replace(*UNLIKE[message])
    if "TresPerTask" in commands.job:
        commands.job = commands.job.replace("TresPerNode=gres:gpu:2,gres:qpu:1", "")
    with pytest.raises(InputError, match=re.escape(message)):
        job().shrink(1)
    assert not [words for words in commands.run if "update" in words]


def test_different_numbers_of_tasks_are_refused(commands: Commands) -> None:
    with pytest.raises(InputError, match=r"has 2,1\(x2\) tasks on its nodes; submit"):
        job(SLURM_TASKS_PER_NODE="2,1(x2)")
    commands.job = JOB.replace("NumTasks=3", "NumTasks=4")
    with pytest.raises(InputError, match=r"has 2,1 tasks on its nodes; submit"):
        job(SLURM_TASKS_PER_NODE="1", SLURM_STEP_ID="0")


def test_a_step_does_not_tell_how_many_tasks_the_job_has(commands: Commands) -> None:
    commands.job = JOB.replace("NumTasks=3", "NumTasks=6")
    step = {"SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_ID": "0"}
    assert job(**step).nodes.tasks_per_node == 2
    # afterwards, the job's number of nodes is not that of its start
    later = {
        "SFQ_NODES_JOB": "7",
        "SFQ_TASKS_PER_NODE": "2",
        "SLURM_JOB_NUM_NODES": "1",
    }
    assert job(**step | later).nodes.tasks_per_node == 2


def test_the_last_task_of_an_array_is_not_the_array(commands: Commands) -> None:
    task = JOB.replace("JobId=7", "JobId=7 ArrayJobId=7 ArrayTaskId=1")
    commands.job = JOB.replace("JobId=7", "JobId=8 ArrayJobId=7 ArrayTaskId=0") + task
    held = job()
    held.shrink(1)
    assert ("scontrol", "update", "JobId=7_1", "NodeList=c2") in commands.run
    assert any("--jobs=7_1" in words for words in commands.run if "--steps" in words)
    assert "--jobid=7 " in (held.folder / "srun").read_text()
    slurm.request(slurm.job("7"), held.name, 2, ["c2"])
    assert "--jobs=7_1 " in commands.script


def test_a_step_of_an_array_keeps_its_node(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sf_quantum.malleability.job._STEPS_SECONDS", 0.0)
    commands.steps = "7_1.batch c2\n7_1.0 c1\n"
    with pytest.raises(InputError, match=r"cannot give back c1, on which step 7_1\.0"):
        job().shrink(1)


def test_one_program_of_a_job_gives_nodes_back_at_a_time(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sf_quantum.malleability.job._STEPS_SECONDS", 0.0)
    (tmp_path / "sfq-nodes-7").mkdir(0o700)
    with open(tmp_path / "sfq-nodes-7" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"lock: another program of the job"):
            job().shrink(1)
    assert not [words for words in commands.run if "update" in words]
    job().shrink(1)


def test_a_request_of_a_killed_program_is_cancelled(commands: Commands) -> None:
    job().shrink(1)
    names = [words[1:] for words in commands.run if words[0] in ("scancel", "scontrol")]
    pending = (f"--user={os.geteuid()}", "--state=PENDING", "--name=sfq-nodes-7")
    assert names.index(pending) < names.index(("update", "JobId=7", "NodeList=c2"))


@pytest.mark.process
def test_nodes_stay_locked_until_they_are_cancelled(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        canceller = cancelled_with_process.__wrapped__("sfq-nodes-7", lock.fileno())
    with open(tmp_path / "lock") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.killpg(canceller.pid, signal.SIGKILL)
        canceller.wait()
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.mark.parametrize("reason", ["QOSMaxJobsPerUserLimit", "Resources"])
def test_why_nodes_do_not_come_is_said_once(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    states = iter([("PENDING", reason)] * 3 + [("RUNNING", "None")])
    monkeypatch.setattr(slurm, "state", lambda id_: next(states))
    lines: list[str] = []
    held = MalleableJob(IN_JOB, lines.append)
    held.shrink(3)
    held.wanted = 4
    held.grow(None, threading.Event())
    said = [line for line in lines if "waits" in line]
    assert said == [f"job 8 waits for {reason}"] * (reason != "Resources")


def grown(commands: Commands, wait_seconds: float | None) -> list[str]:
    """Have a job request a fourth node, and return the lines about that."""
    lines: list[str] = []
    held = MalleableJob(IN_JOB, lines.append)
    held.shrink(3)
    commands.run.clear()
    held.wanted = 4
    held.grow(wait_seconds, threading.Event())
    return lines


def test_a_wait_for_nodes_outlasts_a_slurm_that_is_away(commands: Commands) -> None:
    commands.answers["squeue --noheader --states=all"] = [
        SlurmError("squeue: Unable to contact slurm controller"),
        "RUNNING None",
    ]
    lines = grown(commands, None)
    assert "job 8 waits for Slurm (squeue: Unable to contact slurm controller)" in lines
    assert not [words for words in commands.run if words[0] == "scancel"]


def test_a_wait_for_nodes_ends_with_a_job_slurm_forgot(commands: Commands) -> None:
    commands.answers["squeue --noheader --states=all"] = [
        SlurmError("squeue: slurm_load_jobs error: Invalid job id specified")
    ]
    assert "no further nodes: job 8 for them ended as unknown" in grown(commands, None)


@pytest.mark.parametrize("lost", ["sbatch --parsable", "scancel 8"])
def test_nodes_are_not_left_waiting_by_lost_answers(
    commands: Commands, lost: str
) -> None:
    away = SlurmError(f"{lost}: no answer from Slurm")
    commands.answers[lost] = [away]
    commands.answers["squeue --noheader --states=all"] = ["PENDING Resources"]
    commands.answers["scancel --user"] = ["", away, away]
    lines = grown(commands, 0.0)
    cancels = [words for words in commands.run if "--name=sfq-nodes-7" in words]
    assert [words[0] for words in cancels].count("scancel") == 3
    assert f"no further nodes: {away}" in lines


def test_requests_that_may_be_left_are_reported(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sf_quantum.malleability.job._AWAY_SECONDS", 0.0)
    away = SlurmError("scancel: no answer from Slurm")
    commands.answers["sbatch"] = [SlurmError("sbatch: no answer from Slurm")]
    commands.answers["scancel --user"] = ["", away]
    assert (
        f"requests for nodes may be left ({away}); cancel them: scancel "
        "--state=PENDING --name=sfq-nodes-7"
    ) in grown(commands, None)


def test_what_cannot_be_given_back_is_refused_at_once(
    commands: Commands, tmp_path: Path
) -> None:
    commands.job = JOB.replace("OverSubscribe=OK", "OverSubscribe=NO")
    with pytest.raises(InputError, match="job 7 has its nodes exclusively"):
        job().shrink(1)
    with pytest.raises(InputError, match="job 7 is heterogeneous"):
        job(SLURM_HET_SIZE="2")
    shutil.rmtree(tmp_path / "sfq-nodes-7", ignore_errors=True)
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
    assert os.environ["SFQ_NUM_NODES"] == "3"
    assert (held.folder / "srun").exists()


def test_nodes_are_kept_if_a_limit_lets_none_come_back(
    commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    held = job()
    commands.refused = "sbatch --parsable: Job violates accounting/QOS policy"
    malleability.give_back(held, 1)
    assert caplog.messages == [f"Nodes are not given back: {commands.refused}"]
    assert not [words for words in commands.run if "update" in words]
    # nodes that are not free now may be later
    commands.refused = "sbatch --parsable: Requested nodes are busy"
    malleability.give_back(held, 1)
    assert ("scontrol", "update", "JobId=7", "NodeList=c2") in commands.run


def test_variables_of_another_job_are_not_believed(commands: Commands) -> None:
    inherited = {"SFQ_NODES_WANTED": "5", "SFQ_NODES_JOB": "6"}
    assert job(**inherited).wanted == 3
    assert job(**inherited | {"SFQ_NODES_JOB": "7"}).wanted == 5


def test_options_without_a_shrink_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["lease", "--regrow-wait", "1", "--", "true"]) == 2
    assert capsys.readouterr().err == (
        "sfq lease: --regrow-wait: only with --shrink-to\n"
    )

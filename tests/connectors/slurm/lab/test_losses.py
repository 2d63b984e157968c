"""What becomes of jobs whose allocation ends, and of allocations whose driver does."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.transport import submit_command
from sf_quantum.files import JSON
from tests.conftest import StartLab
from tests.lab import Lab
from tests.support.forking import Command
from tests.support.lab_conf import Options
from tests.support.slurm_jobs import StandIns, cluster
from tests.support.slurm_site import NODE, QPU, site
from tests.support.suspending import suspended
from tests.support.waiting import SECONDS, until_async

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

Until = Callable[[Callable[[], object], str], None]
JOB = "echo $SLURM_JOB_ID"
MARK_SECONDS = "sf_quantum.connectors.slurm.allocation.step.MARK_SECONDS"
ELASTIC: JSON = {"strategy": "elastic", "idle": 60}
RESERVED: dict[str, JSON] = {"strategy": "reserved", "reserve": ["node", "qpu"]}


@pytest.mark.parametrize("allocation", [ELASTIC, RESERVED], ids=["elastic", "reserved"])
async def test_a_cancelled_allocation_fails_its_job(
    lab: Lab, tmp_path: Path, allocation: JSON
) -> None:
    async with site(lab, tmp_path, allocation) as held:
        first = await held.run(JOB)
        # even if the job thinks that it ended well
        failing = asyncio.create_task(
            held.cluster.failing(
                "trap 'exit 0' TERM; touch up; sleep 60 & wait", "node"
            )
        )
        await until_async(lambda: list(tmp_path.rglob("up")), "the job")
        lab.run("scancel", first)
        assert f"Slurm job {first} is CANCELLED" in await failing
        # the next has another
        assert await held.run(JOB) != first


async def test_a_dead_allocation_that_is_free_fails_no_job(
    lab: Lab, tmp_path: Path
) -> None:
    async with site(lab, tmp_path, ELASTIC, pollingInterval=60) as held:
        jobs = await asyncio.gather(*[held.run(f"sleep 1; {JOB}") for _ in range(2)])
        lab.run("scancel", *jobs)
        assert await held.run(JOB) not in jobs
    assert [e["state"] for e in held.events("slurm")] == ["COMPLETED"] * 3


async def test_a_failed_node_fails_its_job(start_lab: StartLab, tmp_path: Path) -> None:
    with start_lab(Options(nodes=2)) as lab:
        async with site(lab, tmp_path, ELASTIC) as held:
            node = await held.run("echo $SLURMD_NODENAME")
            failing = asyncio.create_task(
                held.cluster.failing("touch up; sleep 60", "node")
            )
            await until_async(lambda: list(tmp_path.rglob("up")), "the job")
            lab.lose_node(node)
            assert "is NODE_FAIL" in await failing
            assert await held.run("echo $SLURMD_NODENAME") != node


async def test_a_job_ends_whose_node_was_killed_and_is_back(
    start_lab: StartLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(submit_command, "SILENT_SECONDS", 10)
    services: dict[str, JSON] = {"node": {"partition": "compute"}}
    with start_lab(Options(nodes=1, qnodes=0)) as lab:
        async with site(lab, tmp_path, ELASTIC, services=services) as held:
            failing = asyncio.create_task(
                held.cluster.failing("touch up; sleep 600", "node")
            )
            await until_async(lambda: list(tmp_path.rglob("up")), "the job")
            lab.stop_node("c1")
            lab.start_node("c1")
            assert "is CANCELLED" in await failing
            assert await held.run("echo well") == "well"


async def test_an_allocation_that_has_used_up_its_time_fails_its_job(
    lab: Lab, tmp_path: Path
) -> None:
    async with site(lab, tmp_path, ELASTIC) as held:
        first = await held.run(JOB)
        failing = asyncio.create_task(
            held.cluster.failing("touch up; sleep 120", "node")
        )
        await until_async(lambda: list(tmp_path.rglob("up")), "the job")
        # limits are whole minutes, of which Slurm checks twice in each; no end is in the past
        lab.output("scontrol", "update", f"JobId={first}", "EndTime=now+5")
        assert f"Slurm job {first} is TIMEOUT" in await failing
        assert await held.run(JOB) != first


async def test_an_end_of_which_nobody_is_left_to_tell_fails_the_job(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MARK_SECONDS, 0.5)
    async with site(lab, tmp_path, ELASTIC) as held:
        failing = asyncio.create_task(
            held.cluster.failing("touch up; sleep 60", "node")
        )
        await until_async(lambda: list(tmp_path.rglob("up")), "the job")
        (first,) = held.queue()
        _kill_sruns(tmp_path)
        lab.run("scancel", str(first))
        async with asyncio.timeout(SECONDS):
            assert f"Slurm job {first} is CANCELLED" in await failing
        assert await held.run(JOB) != str(first)


async def test_a_job_that_lost_its_last_node_unstarted_runs_elsewhere(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MARK_SECONDS, 0.5)
    stand_ins = StandIns(tmp_path / "stand-ins", monkeypatch)
    async with site(lab, tmp_path, ELASTIC) as held:
        first = await held.run(JOB)
        stand_ins.add("srun", '[ -e "$here/on" ] || { : >"$here/on"; exec sleep 60; }')
        job = held.start(JOB)
        await until_async(stand_ins.switch("on").exists, "srun")
        _kill_sruns(tmp_path)
        lab.run("scancel", first)
        async with asyncio.timeout(SECONDS):
            assert await job != first


async def test_a_job_cancelled_before_its_submission_does_not_run(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins = StandIns(tmp_path / "stand-ins", monkeypatch)
    async with site(lab, tmp_path, ELASTIC) as held:
        first = await held.run(JOB)
        hold = 'while [ ! -e "$here/go" ]; do sleep 0.05; done'
        stand_ins.add("srun", ': >"$here/on"', hold)
        job = held.start("touch up")
        await until_async(stand_ins.switch("on").exists, "srun")
        job.cancel()
        await until_async(lambda: not list(tmp_path.rglob("*.step")), "the cancelling")
        stand_ins.switch("go").touch()
        with suppress(asyncio.CancelledError):
            await job
        await until_async(lambda: not list(tmp_path.rglob("*.began")), "its end")
        assert await held.run(f"find {tmp_path} -name up; {JOB}") == first


@pytest.mark.parametrize("strategy", ["elastic", "reserved"])
async def test_nodes_are_given_back_once_slurm_can_be_told(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    strategies: dict[str, dict[str, JSON]] = {
        "elastic": {"strategy": "elastic", "idle": 0},
        "reserved": {**RESERVED, "release": {"after": "/w/solve"}},
    }
    stand_ins = StandIns(tmp_path / "stand-ins", monkeypatch)
    stand_ins.add(
        "scancel", '[ ! -e "$here/off" ] || { echo >>"$here/tried"; exit 1; }'
    )
    async with site(lab, tmp_path, strategies[strategy]) as held:
        held.cluster.name = "w"
        stand_ins.switch("off").touch()
        await held.run(JOB, "qpu", "solve/0")
        await until_async(lambda: stand_ins.count("tried"), "scancel")
        assert list(held.queue("qpu").values()) == ["RUNNING"]
        stand_ins.switch("off").unlink()
        await held.counts(0, service="qpu")
        # and no others
        assert len(held.queue()) == (strategy == "reserved")


async def test_what_srun_refuses_is_told(lab: Lab, tmp_path: Path) -> None:
    async with site(lab, tmp_path, ELASTIC) as held:
        text, code = await held.cluster.run("echo out; echo no >&2; exit 7", "node")
        assert code == 7
        assert text.endswith("its last lines:\nout\nno")


async def test_files_that_stay_for_a_while_are_removed(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins = StandIns(tmp_path / "stand-ins", monkeypatch)
    stand_ins.add("rm", 'case "$*" in *.sfq-*) [ ! -e "$here/held" ] || exit 1;; esac')
    held = stand_ins.switch("held")
    async with cluster(lab, tmp_path) as made:
        await made.run("true")
        held.touch()
        # longer than a driver waits for the shell
        await made.connector.undeploy(False)
        assert len(made.spools()) == 1
        held.unlink()


async def test_an_allocation_ends_itself_without_its_driver(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(scripts, "GONE_SECONDS", 3)
    others = _shells()
    async with site(lab, tmp_path, ELASTIC) as held:
        failing = asyncio.create_task(
            held.cluster.failing("touch up; sleep 60", "node")
        )
        await until_async(lambda: list(tmp_path.rglob("up")), "the job")
        # nobody gives a sign of life, as if the login node were gone
        with suspended(*(_shells() - others)):
            await held.counts(0)
        # and what ran on it has not ended well
        assert "CANCELLED (its allocation ended by itself)" in await failing


@pytest.mark.parametrize("allocation", [ELASTIC, RESERVED], ids=["elastic", "reserved"])
async def test_jobs_that_are_tried_again_and_again(
    lab: Lab, tmp_path: Path, allocation: JSON
) -> None:
    draws = random.Random(7)
    progress: asyncio.Queue[int] = asyncio.Queue()
    async with site(lab, tmp_path, allocation) as held:

        async def insist(number: int) -> int:
            """As StreamFlow's failure manager does."""
            service = "qpu" if number % 3 == 0 else "node"
            for tries in range(1, 20):
                with suppress(WorkflowExecutionException):
                    _, code = await held.cluster.run(
                        f"sleep 0.{number % 5}; exit {draws.choice([0, 0, 1])}", service
                    )
                    if code == 0:
                        progress.put_nowait(number)
                        return tries
            raise AssertionError

        async def trouble() -> None:
            while True:
                # however slow the machine is, some get through
                for _ in range(3):
                    await progress.get()
                await asyncio.sleep(draws.uniform(0, 0.3))
                if jobs := [*held.queue(), *held.queue("qpu")]:
                    lab.run("scancel", str(draws.choice(jobs)))

        spoiler = asyncio.create_task(trouble())
        tries = await asyncio.gather(*[insist(number) for number in range(15)])
        spoiler.cancel()
    states = [event["state"] for event in held.events("slurm")]
    assert states.count("COMPLETED") == 15
    # less those for which no nodes were granted
    assert 15 < len(states) <= sum(tries)


def _kill_sruns(folder: Path) -> None:
    """End what waits on the login node for jobs in allocations: shells first."""
    words = "srun --quiet", str(folder)
    for shell in psutil.process_iter(["cmdline"]):
        line = " ".join(shell.info["cmdline"] or [])
        if all(word in line for word in words):
            with suppress(psutil.NoSuchProcess):  # a shell's subshell ends with it
                for process in (shell, *shell.children()):
                    process.kill()


def _shells() -> set[psutil.Process]:
    """The shells on the login node, with what they fork."""
    return {
        one
        for one in psutil.Process().children(recursive=True)
        if "SFQ_SHELL" in _environ(one) and one.cmdline() == ["sh"]
    }


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


class Driven:
    """A driver with jobs that run on nodes which it holds."""

    def __init__(
        self,
        project: Project,
        lab: Lab,
        until: Until,
        allocation: JSON,
        orphan_seconds: float = 600,
    ) -> None:
        self._project = project
        self._lab = lab
        self._until = until
        # what else uses the lab has other names
        self._name = f"n{project.mark[:8]}"
        names = {kind: f"{self._name}-{kind}" for kind in ("node", "qpu")}
        places: list[JSON] = list(names.values())
        if allocation == RESERVED:
            allocation = {"strategy": "reserved", "reserve": places}
        services: JSON = {names["node"]: NODE, names["qpu"]: QPU}
        project.deployment(
            "slurm",
            "sfq.slurm",
            services=services,
            maxConcurrentJobs=9,
            pollingInterval=1,
            allocation=allocation,
            orphanTimeout=orphan_seconds,
        )
        for kind in names:
            project.step(kind, "sleep 300", "slurm")
        project.extra["workflows"] = {
            "test": {
                "type": "cwl",
                "config": {"file": "main.cwl"},
                "bindings": [
                    {
                        "step": f"/{kind}",
                        "target": {"deployment": "slurm", "service": name},
                    }
                    for kind, name in names.items()
                ],
            }
        }

    def start(self) -> Command:
        driver = self._project.start()
        # a script, its shell and its command: all are this machine's here
        self._until(lambda: len(self._project.commands("sleep 300")) == 2, "two jobs")
        return driver

    def jobs(self) -> list[str]:
        lines = self._lab.output("squeue", "-h", "-o", "%j %A %T").splitlines()
        return [line for line in lines if self._name in line]


@pytest.mark.parametrize(
    "allocation",
    [ELASTIC, {"strategy": "reserved", "reserve": ["node"]}],
    ids=["elastic", "reserved"],
)
def test_a_failure_manager_runs_a_job_again_on_another_node(
    project: Project,
    start_lab: StartLab,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    allocation: JSON,
) -> None:
    nodes = project.folder / "nodes"
    project.deployment(
        "slurm",
        "sfq.slurm",
        services={"node": {"partition": "compute"}},
        pollingInterval=1,
        allocation=allocation,
    )
    again = f"[ $(wc -l <{nodes}) -gt 1 ] || sleep 300"
    project.step("work", f"echo $SLURMD_NODENAME >>{nodes}; {again}", "slurm")
    target: JSON = {"deployment": "slurm", "service": "node"}
    project.extra["workflows"] = {
        "test": {
            "type": "cwl",
            "config": {"file": "main.cwl"},
            "bindings": [{"step": "/work", "target": target}],
        }
    }
    retries: JSON = {"max_retries": 3, "retry_delay": 0}
    project.extra["failureManager"] = {"type": "default", "config": retries}
    with start_lab(Options(nodes=2, qnodes=0)) as lab:
        for key, value in lab.environment.items():
            monkeypatch.setenv(key, value)
        driver = project.start()
        until(lambda: nodes.exists() and nodes.read_text().endswith("\n"), "the job")
        lab.lose_node(nodes.read_text().strip())
        assert driver.wait(timeout=SECONDS) == 0, project.log[-3000:]
        assert "is NODE_FAIL" in project.log
        assert len({*nodes.read_text().split()}) == 2


@pytest.fixture
def environment(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in lab.environment.items():
        monkeypatch.setenv(key, value)


@pytest.mark.parametrize(
    ("allocation", "number"),
    [
        (ELASTIC, signal.SIGINT),
        (ELASTIC, signal.SIGKILL),
        (ELASTIC, None),
        (RESERVED, signal.SIGTERM),
        (RESERVED, signal.SIGKILL),
    ],
)
def test_nothing_is_held_when_the_driver_has_ended(
    project: Project,
    environment: None,
    lab: Lab,
    until: Until,
    allocation: JSON,
    number: signal.Signals | None,
) -> None:
    driven = Driven(project, lab, until, allocation)
    driver = driven.start()
    assert len(driven.jobs()) == 2
    if number is None:
        # with its whole process group, as a batch system or a supervisor does it
        os.killpg(driver.pid, signal.SIGKILL)
    else:
        driver.send_signal(number)
    driver.wait(timeout=SECONDS)
    until(
        lambda: not (driven.jobs() or project.processes() or project.leftovers()),
        "the allocations, the processes and their files to go",
    )


def test_nothing_is_held_where_nobody_is_left_to_cancel(
    project: Project, environment: None, lab: Lab, until: Until
) -> None:
    # longer than it takes to kill them all
    driven = Driven(project, lab, until, ELASTIC, orphan_seconds=30)
    driver = driven.start()
    jobs = driven.jobs()
    # the driver, its guardian, its shell on the login node and what it started there
    theirs = [
        one for one in project.processes() if "SLURMD_NODENAME" not in _environ(one)
    ]
    # stopped first, so that none sees another's end and cancels
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in theirs:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
    driver.wait()
    assert driven.jobs() == jobs
    for sign in project.folder.rglob(".sfq-*/alive"):
        seen = sign.stat().st_mtime - 30
        os.utime(sign, (seen, seen))
    until(lambda: not driven.jobs(), "the allocations to end themselves")

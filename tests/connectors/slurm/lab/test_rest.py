"""Jobs over slurmrestd, at a site without a login node: what ends how, and what is left."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psutil
import pytest
from streamflow.core.exception import WorkflowExecutionException

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.connectors import guardian
from sf_quantum.connectors.slurm.transport import login
from sf_quantum.connectors.slurm.transport.slurmrestd import Settings
from sf_quantum.files import JSON
from tests.lab import Lab
from tests.support.slurm_jobs import Cluster, cluster
from tests.support.slurm_rest import Rest, rest
from tests.support.waiting import SECONDS, until, until_async

if TYPE_CHECKING:
    from tests.support.forking import Command
    from tests.support.plugin_site import Site
    from tests.support.projects import Project

pytestmark = pytest.mark.process

SERVICES: dict[str, JSON] = {
    "node": {"partition": "compute", "ntasks": 1, "time": "0:10", "comment": "mine"},
    "nowhere": {"partition": "moon"},
}


# with a time limit: without one, Slurm shows that of a job as none, or as a year when it runs
NODE: dict[str, JSON] = {"partition": "compute", "time": 5}
# what Slurm shows of a job that its options determine
SHOWN = (
    "Requeue NumNodes NumCPUs NumTasks CPUs/Task NtasksPerN:B:S:C TimeLimit MinCPUsNode "
    "MinMemoryNode Nice"
).split()


class Held:
    """In place of the guardian of the tests' own process: which jobs it would cancel."""

    def __init__(self) -> None:
        self.comments: list[str] = []

    def cancel_jobs(self, _: Settings, comment: str) -> None:
        self.comments.append(comment)

    def release(self, comment: str) -> None:
        self.comments.remove(comment)


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held()
    monkeypatch.setattr(guardian, "current", lambda: made)
    yield made
    assert made.comments == []


@pytest.fixture
def daemon(site: Site) -> Iterator[Rest]:
    with rest(site.lab) as made:
        yield made


async def _ends(made: Cluster) -> list[str]:
    """What becomes of jobs that end in all ways, without their numbers."""
    cancelled = asyncio.create_task(made.failing("sleep 300", "node"))
    (job,) = (await made.running()).values()

    async def late() -> str:
        with pytest.raises(WorkflowExecutionException) as error:
            await made.run("sleep 300", "node", timeout=1)
        return str(error.value)

    with pytest.raises(WorkflowExecutionException) as refused:
        await made.run("true", "nowhere")
    assert "nvalid partition name" in str(refused.value)
    others = asyncio.gather(
        made.run("echo to both; echo too >&2", "node"),
        made.run('echo "$HOME" "$SLURM_JOB_PARTITION"', "node"),
        made.failing("echo it broke; exit 3", "node"),
        made.failing("kill -KILL $PPID", "node"),
        made.failing("kill -KILL $$", "node"),
        late(),
    )
    made.lab.output("scancel", str(job))
    lines = [await cancelled, *map(str, await others)]
    # on a busy machine, Slurm kills what has not ended yet
    lines[0] = lines[0].partition(" with ")[0]
    assert lines[0].endswith("is CANCELLED")
    assert lines[3].endswith("its last lines:\nit broke")
    # shells may tell of a signal as well
    lines = [line.partition("; it")[0] for line in lines]
    return [re.sub(r"\d+ s\b|job \d+|/\w{8}/\d+", "", line) for line in lines]


async def test_jobs_end_as_over_commands(
    site: Site, daemon: Rest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # sbatch passes the variable on, and slurmrestd has that of the account
    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    config: dict[str, JSON] = {"services": SERVICES}
    (tmp_path / "rest").mkdir()
    async with cluster(site.lab, tmp_path, **config) as made:
        expected = await _ends(made)
    async with cluster(
        site.lab, tmp_path / "rest", slurmrestd=daemon.config, **config
    ) as made:
        assert await _ends(made) == expected


async def test_options_are_those_of_sbatch(
    site: Site, daemon: Rest, tmp_path: Path
) -> None:
    """Jobs with random options get the same of Slurm, which they ask it for."""
    random, services = Random(3), dict[str, JSON]()
    for number in range(12):
        options: dict[str, list[JSON]] = {
            "nodes": [1, "1-1"],
            "ntasks": [1, 2],
            "ntasksPerNode": [2, 3],
            "cpusPerTask": [1, 2],
            "mem": ["200M", "1G"],
            "time": ["0:30", "1-2:3", 7],
            "noRequeue": [True],
            "nice": [5],
        }
        chosen = {
            key: random.choice(options[key]) for key in random.sample([*options], 3)
        }
        services[str(number)] = {**NODE, **chosen}
    services["fewer tasks"] = {**NODE, "nodes": 2, "ntasks": 1}
    (tmp_path / "rest").mkdir()
    conf = f"SLURM_CONF={site.lab.environment['SLURM_CONF']}"
    asked = f"{conf} scontrol --oneliner show job $SLURM_JOB_ID"

    async def jobs(made: Cluster) -> dict[str, dict[str, str]]:
        shown = {}
        for name in services:
            text, code = await made.run(asked, name)
            assert code == 0, text
            fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
            shown[name] = {key: fields[key] for key in SHOWN}
        return shown

    async with cluster(site.lab, tmp_path, services=services) as made:
        expected = await jobs(made)
    config: dict[str, JSON] = {"services": services, "slurmrestd": daemon.config}
    async with cluster(site.lab, tmp_path / "rest", **config) as made:
        assert await jobs(made) == expected


async def test_a_lost_answer_makes_no_second_job(
    site: Site,
    daemon: Rest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(0.3, 0.3))
    with daemon.losing_an_answer() as config:
        async with cluster(
            site.lab, tmp_path, slurmrestd=config, services=SERVICES
        ) as made:
            go = tmp_path / "go"
            waiting = f"until [ -e {go} ]; do sleep 0.1; done; echo $SLURM_JOB_ID"
            task = asyncio.create_task(made.run(waiting, "node"))
            (job,) = (await made.running()).values()
            comment = site.lab.output("squeue", "-h", f"--jobs={job}", "--format=%k")
            assert re.fullmatch(r"sfq:\w+:\w+ mine", comment)
            go.touch()
            assert await task == (str(job), 0)


async def test_a_run_waits_for_a_token_and_for_slurmrestd(
    site: Site,
    daemon: Rest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(0.3, 0.3))
    monkeypatch.setattr(login, "_warned", {})

    async def warned(text: str) -> None:
        await until_async(lambda: text in caplog.text, text)

    def after(go: Path) -> str:
        return f"until [ -e {go} ]; do sleep 0.1; done; exit 4"

    with caplog.at_level(logging.WARNING, "streamflow"):
        daemon.renew(2)
        async with cluster(
            site.lab, tmp_path, slurmrestd=daemon.config, services=SERVICES
        ) as made:
            first = asyncio.create_task(made.failing(after(tmp_path / "1"), "node"))
            await made.running()
            await warned("The states of jobs will be asked for again: the token of")
            second = asyncio.create_task(made.failing(after(tmp_path / "2"), "node"))
            await warned("Slurm cannot accept job")
            # the job goes on, and what it leaves tells how it ended
            (tmp_path / "1").touch()
            daemon.token.unlink()
            await warned("there is no token for slurmrestd: file")
            assert "with exit code 4" in await first
            daemon.renew()
            await made.running()
            daemon.kill()
            await warned("slurmrestd does not answer")
            (tmp_path / "2").touch()
            daemon.start()
            assert "with exit code 4" in await second
    assert "has expired" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


async def test_a_command_renews_the_token(
    site: Site,
    daemon: Rest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = tmp_path / "runs"
    config: JSON = {
        "url": f"unix:{daemon.folder}/rest",
        "tokenCommand": f"echo >>{runs}; scontrol token lifespan=4",
    }
    with caplog.at_level(logging.WARNING, "streamflow"):
        async with cluster(
            site.lab, tmp_path, slurmrestd=config, services=SERVICES
        ) as made:
            command = f"until [ $(wc -l <{runs}) -ge 3 ]; do sleep 0.1; done"
            assert await made.run(command, "node") == ("", 0)
    assert caplog.text == ""


@pytest.fixture
def driver(
    project: Project,
    site: Site,
    daemon: Rest,
) -> Command:
    """A driver with a job that runs and one that waits, which forget it soon.

    But not as soon as a busy machine may keep the driver from saying that it lives.
    """
    name = project.mark[:8]
    node: JSON = {"partition": "compute", "ntasks": 1}
    later: JSON = {"partition": "compute", "begin": "now+1hour"}
    project.deployment(
        "rest",
        "sfq.slurm",
        maxConcurrentJobs=2,
        pollingInterval=1,
        orphanTimeout=12,
        services={"now": node, "later": later},
        slurmrestd=daemon.config,
    )
    for service in ("now", "later"):
        script = f"touch {project.folder}/began; sleep 300"
        project.step(f"{service}-{name}", script, f"rest/{service}")
    return project.start()


def _queued(lab: Lab, project: Project) -> dict[str, str]:
    lines = lab.output("squeue", "-h", "-o", "%j %T").splitlines()
    ours = [line.split() for line in lines if project.mark[:8] in line]
    return {name.split("-")[0]: state for name, state in ours}


def _begun(lab: Lab, project: Project) -> None:
    states = {"now": "RUNNING", "later": "PENDING"}
    until(lambda: _queued(lab, project) == states, "two jobs")
    until((project.folder / "began").exists, "the script of one")


def test_a_killed_driver_leaves_nothing(
    site: Site,
    project: Project,
    driver: Command,
) -> None:
    _begun(site.lab, project)
    driver.kill()
    driver.wait(timeout=SECONDS)
    until(lambda: not _queued(site.lab, project), "the jobs to end")
    until(lambda: not project.processes(), "the processes to end")
    until(lambda: not project.leftovers(), "the files to go")


def test_jobs_end_themselves_if_nobody_cancels_them(
    site: Site,
    project: Project,
    driver: Command,
) -> None:
    _begun(site.lab, project)
    # the guardian and the shell that cleans up as well, as if the host had failed
    for process in project.processes():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    driver.wait(timeout=SECONDS)
    until(lambda: list(_queued(site.lab, project)) == ["later"], "one to end")
    lines = site.lab.output("squeue", "-h", "-o", "%A %j").splitlines()
    (job,) = [line.split()[0] for line in lines if project.mark[:8] in line]
    site.lab.output("scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: not _queued(site.lab, project), "the other to end")
    record = site.lab.output("scontrol", "show", "job", job)
    assert "JobState=FAILED" in record
    assert "ExitCode=74:0" in record

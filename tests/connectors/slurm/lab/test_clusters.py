"""Jobs of ``sfq.slurm`` in clusters that are named, and in a federation."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON
from sf_quantum.journal import Journal
from tests.conftest import StartLab
from tests.lab import Lab
from tests.support import lab_site
from tests.support.journals import Event, measure, read
from tests.support.lab_conf import FIRST, SECOND, Options
from tests.support.lab_supervisor import SYSTEM_PATH
from tests.support.slurm_jobs import Cluster, StandIns, cluster
from tests.support.waiting import SECONDS, until, until_async

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

WHERE = "echo $SLURM_JOB_ID $SLURM_CLUSTER_NAME"
ELASTIC: JSON = {"strategy": "elastic", "idle": 600}
SERVICES: dict[str, JSON] = {
    "own": {},
    "first": {"clusters": FIRST},
    "second": {"clusters": SECOND},
    "any": {"clusters": f"{FIRST},{SECOND}"},
    "kept": {"clusters": SECOND, "allocation": ELASTIC},
    "held": {
        "clusters": SECOND,
        "allocation": {"strategy": "reserved", "reserve": ["held", "other"]},
    },
    "other": {"clusters": SECOND, "partition": "quantum"},
    "roaming": {"allocation": ELASTIC},
}
# of which a driver is killed
SLEEPING = ("own", "second", "kept")


@pytest.fixture
def two(start_lab: StartLab) -> Iterator[Lab]:
    if lacking := lab_site.missing(SYSTEM_PATH):
        pytest.skip(lacking)
    with start_lab(Options(nodes=1, qnodes=0, site=True)) as lab:
        yield lab


@asynccontextmanager
async def deployed(lab: Lab, folder: Path) -> AsyncIterator[tuple[Cluster, Path]]:
    """The connector, and the journal of its run."""
    journal = Journal(folder / "journal")
    journal.start("site.yml", ["site"], {})
    try:
        async with cluster(lab, folder, services=SERVICES) as made:
            yield made, journal.path
    finally:
        journal.close()


def fill(lab: Lab) -> int:
    """Occupy the first cluster's node, so that other jobs do not start there."""
    job = lab.submit("--exclusive", "--wrap=sleep 600", "-w", "c1", "-o", "/dev/null")
    until(lambda: lab.state(job) == "RUNNING", "the node is occupied")
    return job


def queued(lab: Lab) -> list[list[int]]:
    return [one.jobs() for one in (lab, lab.second)]


def events(path: Path, kind: str, **about: JSON) -> list[Event]:
    found = [event for event in read(path) if event["event"] == kind]
    return [one for one in found if about.items() <= one.items()]


async def test_jobs_with_equal_ids_are_told_apart(
    two: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins = StandIns(tmp_path / "stand-ins", monkeypatch)
    async with deployed(two, tmp_path) as (made, path):
        with pytest.MonkeyPatch.context() as users:
            for name in ("SLURM_CLUSTERS", "SBATCH_CLUSTERS"):
                users.setenv(name, "nowhere")
            done = await asyncio.gather(
                *(made.run(f"sleep 1; {WHERE}", name) for name in ("first", "second"))
            )
        assert done == [(f"1 {FIRST}", 0), (f"1 {SECOND}", 0)]
        # the first cluster's job with the same id runs on
        failing = [
            asyncio.create_task(made.failing(command, name))
            for name, command in {"own": "sleep 3; exit 4", "second": "exit 3"}.items()
        ]
        assert f"Slurm job 2 of cluster {SECOND} is FAILED" in await failing[1]
        assert "Slurm job 2 is FAILED" in await failing[0]
        text, _ = await made.run(WHERE, "any")
        assert text.split()[1] in (FIRST, SECOND)

        # the answer is lost, and the job found in its cluster
        stand_ins.lose_first_answer()
        text, _ = await made.run(WHERE, "second")
        assert text.split()[1] == SECOND
        assert stand_ins.count("tries") == 1

        # in allocations
        for service in ("kept", "kept", "held"):
            text, code = await made.run(WHERE, service)
            assert (text.split()[1], code) == (SECOND, 0)
        task = asyncio.create_task(made.run("sleep 600", "kept"))
        await until_async(
            lambda: "StepId" in two.second.output("scontrol", "show", "steps"), "a step"
        )
        task.cancel()
        await asyncio.wait([task])

        # while a cluster is away, its jobs are not thought to have ended
        task = asyncio.create_task(made.run(f"sleep 2; {WHERE}", "second"))
        await until_async(lambda: len(two.second.jobs()) == 4, "the job")
        two.second.kill_controller()
        assert (await made.run(WHERE, "first"))[0].split()[1] == FIRST
        two.second.start_controller()
        text, code = await task
        assert (text.split()[1], code) == (SECOND, 0)
    until(lambda: queued(two) == [[], []], "no jobs on either")
    jobs = events(path, "slurm", slurm_job="1")
    assert {one["slurm_cluster"] for one in jobs} == {FIRST, SECOND}
    assert [one["slurm_cluster"] for one in events(path, "slurm", service="own")] == [
        None
    ]
    held = {
        (one.slurm_job, one.slurm_cluster) for one in measure(read(path)).allocations
    }
    assert {("1", FIRST), ("1", SECOND), ("2", ""), ("2", SECOND)} <= held


def kill_driver(lab: Lab, project: Project, counts: list[int]) -> None:
    """Kill a driver with jobs that run, so many in each cluster; none of them is left."""
    before = queued(lab)
    driver = project.start()
    until(lambda: list(map(len, queued(lab))) == counts, "the jobs")
    until(lambda: len(project.commands("sleep 600")) == len(SLEEPING), "their scripts")
    driver.send_signal(signal.SIGKILL)
    driver.wait(timeout=SECONDS)
    until(lambda: queued(lab) == before, "no jobs on either")
    until(lambda: not project.leftovers(), "the files to go")


def test_nothing_is_left_of_a_killed_driver(
    two: Lab, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in two.environment.items():
        monkeypatch.setenv(name, value)
    project.deployment("slurm", "sfq.slurm", maxConcurrentJobs=9, services=SERVICES)
    for service in SLEEPING:
        project.step(service, "sleep 600", "slurm")
    bindings: list[JSON] = [
        {"step": f"/{name}", "target": {"deployment": "slurm", "service": name}}
        for name in SLEEPING
    ]
    workflow: JSON = {
        "type": "cwl",
        "config": {"file": "main.cwl"},
        "bindings": bindings,
    }
    project.extra["workflows"] = {"test": workflow}
    kill_driver(two, project, [1, 2])
    two.federate()
    fill(two)
    # the job without a cluster runs on the second as well; the first knows of it
    kill_driver(two, project, [2, 3])


async def test_a_federation_runs_a_job_on_any_cluster(two: Lab, tmp_path: Path) -> None:
    two.federate()
    async with deployed(two, tmp_path) as (made, path):
        # nothing is free where they are submitted
        full = fill(two)
        text, code = await made.run(WHERE, "own")
        job, there = text.split()
        assert (int(job) > 1 << 26, there, code) == (True, SECOND, 0)
        said = await made.failing("exit 3", "any")
        assert (
            f"of cluster {SECOND} is FAILED (NonZeroExitCode) with exit code 3" in said
        )
        for _ in range(2):
            assert (await made.run(WHERE, "roaming"))[0].split()[1] == SECOND
        task = asyncio.create_task(made.run("sleep 600", "own"))
        await until_async(lambda: len(two.second.jobs()) == 2, "the job")
        task.cancel()
        await asyncio.wait([task])
        await until_async(lambda: len(two.second.jobs()) == 1, "its end")
        two.output("scancel", str(full))
        two.wait_for(lambda: two.nodes() == {"c1": "idle"}, "a free node")
    until(lambda: two.second.jobs() == [], "no jobs")
    (one,) = events(path, "slurm", slurm_job=job)
    assert (one["slurm_cluster"], one["state"]) == (SECOND, "COMPLETED")

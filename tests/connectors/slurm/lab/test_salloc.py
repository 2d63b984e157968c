"""Free nodes that ``salloc`` gives at once: their jobs know no difference."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sf_quantum.files import JSON
from tests.conftest import StartLab
from tests.lab import Lab
from tests.support.lab_conf import Options
from tests.support.slurm_site import Site, site
from tests.support.waiting import until_async

pytestmark = pytest.mark.process

SERVICE: dict[str, JSON] = {"partition": "compute", "mem": 1536, "exclusive": True}
SERVICES: dict[str, JSON] = {"node": SERVICE}
KEPT: dict[str, JSON] = {"strategy": "elastic", "idle": 60}
# The first has Slurm's word for none; only sbatch of Slurm 26.05 sets the others.
NOT_SET = {"SLURM_NODE_ALIASES", "SLURM_JOB_EXCLUSIVE", "SLURM_JOB_OVERSUBSCRIBE"}
# which differ between two jobs
OWN = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_TASK_PID", "SLURM_JOB_NODELIST"}
OWN |= {"SLURM_NODELIST", "SLURM_TOPOLOGY_ADDR", "SLURM_JOB_SLUID"}
OWN |= {"SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME"}


@pytest.fixture(scope="module")
def lab(start_lab: StartLab) -> Iterator[Lab]:
    """With nodes that no other test takes."""
    with start_lab(Options(nodes=2, qnodes=0)) as lab:
        yield lab


async def variables(held: Site) -> dict[str, str]:
    """What a job of Slurm's sees of it."""
    text = await held.run("env | grep -E '^(SLURM|SRUN|SALLOC)_'")
    return dict(line.split("=", 1) for line in text.splitlines())


def comment(lab: Lab, job: str) -> str:
    """Of a job in Slurm's queue."""
    return lab.output("squeue", "-h", f"--jobs={job}", "--format=%k")


async def test_the_variables_are_those_of_a_batch_job(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("at-once", "batch"):
        (tmp_path / name).mkdir()
    async with site(lab, tmp_path / "at-once", "elastic", services=SERVICES) as held:
        step = await variables(held)
        assert comment(lab, step["SLURM_JOB_ID"]).endswith("-a")
    # where sbatch has variables of its own, it is asked
    monkeypatch.setenv("SBATCH_DELAY_BOOT", "0")
    async with site(lab, tmp_path / "batch", "elastic", services=SERVICES) as held:
        batch = await variables(held)
        assert not comment(lab, batch["SLURM_JOB_ID"]).endswith("-a")
    assert step.keys() == batch.keys() - NOT_SET
    assert {key: step[key] for key in step.keys() - OWN} == {
        key: batch[key] for key in batch.keys() - OWN - NOT_SET
    }
    assert step["SLURM_MEM_PER_NODE"] == "1536"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_an_allocation_outlives_the_srun_of_its_hold(
    lab: Lab, tmp_path: Path, number: signal.Signals
) -> None:
    async with site(lab, tmp_path, KEPT, services=SERVICES) as held:
        job = (await held.run("echo $SLURM_JOB_ID")).strip()
        # a command may be done before its hold is a step
        first = await until_async(lambda: holds(job), "an srun")
        (step,) = await until_async(lambda: steps(lab, job), "a step")
        for process in first:
            process.send_signal(number)
        await until_async(
            lambda: holds(job) - first, "another srun to hold the allocation"
        )
        await until_async(lambda: steps(lab, job) - {step}, "another step of the hold")
        assert (await held.run("echo $SLURM_JOB_ID")).strip() == job
    (one,) = held.held()
    assert len(one.holds) == 1


def holds(job: str) -> set[psutil.Process]:
    """The login node's ``srun`` of the step that holds an allocation."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if f"--jobid={job}" in words and any(
            re.fullmatch("--job-name=.*-hold", word) for word in words
        ):
            found.add(process)
    return found


def steps(lab: Lab, job: str) -> set[str]:
    """The steps that hold an allocation."""
    words = ("squeue", "--steps", "-h", f"--jobs={job}", "--format=%i %j")
    lines = lab.output(*words).splitlines()
    return {line.split()[0] for line in lines if line.endswith("-hold")}


async def test_nodes_that_are_not_free_leave_no_failed_job(
    lab: Lab, tmp_path: Path
) -> None:
    fill = ("--exclusive", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 600")
    filling = lab.submit(*fill)
    await until_async(lambda: lab.state(filling) == "RUNNING", "the nodes to be full")
    async with site(lab, tmp_path, KEPT, services=SERVICES) as held:
        work = held.start("echo well")
        await held.counts(1, "PENDING")
        lab.output("scancel", str(filling))
        assert await work == "well"
    assert "FAILED" not in {job.state for job in lab.jobcomp()}

"""``allocation: reserved``: one allocation for the run, heterogeneous where services differ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamflow.core.exception import WorkflowDefinitionException

from sf_quantum.connectors import exit_codes
from sf_quantum.connectors.exit_codes import ExitCodes
from sf_quantum.files import JSON
from tests.conftest import StartLab
from tests.lab import Lab
from tests.support.lab_conf import Options
from tests.support.slurm_site import NODE, QPU, site
from tests.support.waiting import until_async

pytestmark = pytest.mark.process

JOB = "echo $SLURM_JOB_ID"
WHERE = "echo $SLURMD_NODENAME"


@pytest.fixture(scope="module")
def wide(start_lab: StartLab) -> Iterator[Lab]:
    """A lab that a test has for itself."""
    with start_lab(Options(nodes=4, qnodes=2)) as lab:
        yield lab


def reserved(*services: str, **settings: JSON) -> dict[str, JSON]:
    return {"strategy": "reserved", "reserve": list(services), **settings}


async def test_all_services_are_components_of_one_job(lab: Lab, tmp_path: Path) -> None:
    # however they are listed, the classical one is first: it cannot leave before others
    async with site(lab, tmp_path, reserved("qpu", "node")) as held:
        first = await held.run(JOB)
        assert await held.run(JOB, "qpu") == first
        assert (await held.run(WHERE)).startswith("c")
        assert await held.run(f"{WHERE}; srun sh -c '{WHERE}'", "qpu") == "q1\nq1"
        assert set(held.queue()) == {int(first)}
        assert set(held.queue("qpu")) == {int(first) + 1}
    (node,), (qpu,) = held.held(), held.held("qpu")
    assert (node.allocation, qpu.allocation) == (f"{first}+0", f"{first}+1")
    assert (node.quantum, qpu.quantum) == (False, True)
    assert [node.job, qpu.job] == [None, None]


async def test_jobs_of_a_component_run_one_at_a_time(lab: Lab, tmp_path: Path) -> None:
    counts: dict[str, JSON] = {"node": 3, "qpu": 1}
    allocation: JSON = {"strategy": "reserved", "reserve": counts}
    async with site(lab, tmp_path, allocation) as held:
        await held.run("true")
        await asyncio.gather(*[held.run("sleep 1") for _ in range(6)])
        assert len(held.held()) == 3
        assert len({one.slurm_job for one in held.held()}) == 1
    runs = [
        (float(str(job["started"])), float(str(job["ended"])))
        for job in held.events("slurm")
    ]
    assert len(runs) == 7
    for moment, _ in runs:
        assert sum(start <= moment < end for start, end in runs) <= 3


async def test_a_job_has_all_nodes_of_its_component(wide: Lab, tmp_path: Path) -> None:
    services: dict[str, JSON] = {
        "node": {"partition": "compute", "nodes": 3},
        "other": {"partition": "compute", "nodes": 1},
        "qpu": QPU,
    }
    show = f"srun -N$SLURM_NNODES sh -c '{WHERE}' | sort; echo $SLURM_JOB_NODELIST"
    async with site(
        wide, tmp_path, reserved("other", "node", "qpu"), services=services
    ) as held:
        assert await held.run(show) == "c2\nc3\nc4\nc[2-4]"
        assert await held.run(show, "other") == "c1\nc1"
        assert await held.run(show, "qpu") == "q1\nq1"
        # tasks on all nodes, whatever the component
        assert (await held.run(f"srun -N3 sh -c '{WHERE}' | sort")).split() == [
            "c2",
            "c3",
            "c4",
        ]
    assert [hold.nodes for one in held.held() for hold in one.holds] == [3]


async def test_a_range_leaves_nodes_for_other_components(
    wide: Lab, tmp_path: Path
) -> None:
    """Slurm gives the first component all nodes of its range, if they are free."""
    services: dict[str, JSON] = {
        "range": {"partition": "compute", "nodes": "1-4"},
        "other": {"partition": "compute", "nodes": 1},
        "qpu": QPU,
    }
    async with site(
        wide, tmp_path, reserved("range", "other", "qpu"), services=services
    ) as held:
        assert await held.run("echo $SLURM_NNODES", "range") == "3"
        assert await held.run("echo $SLURM_NNODES", "other") == "1"


async def test_templates_speak_for_their_component(wide: Lab, tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text("#!/bin/bash\n#SBATCH --nodes=2\n{{streamflow_command}}\n")
    services: dict[str, JSON] = {
        "node": {"partition": "compute", "file": template.name},
        "qpu": QPU,
    }
    async with site(wide, tmp_path, reserved("node", "qpu"), services=services) as held:
        assert await held.run("echo $SLURM_NNODES") == "2"
        assert await held.run("echo $SLURM_NNODES", "qpu") == "1"


async def test_quantum_nodes_are_given_back_after_a_step(
    lab: Lab, tmp_path: Path
) -> None:
    allocation = reserved(
        "node", "qpu", release={"after": "/w/solve", "times": 2}, idle=60
    )
    async with site(lab, tmp_path, allocation) as held:
        held.cluster.name = "w"
        first = await held.run(JOB, "qpu", "solve/0")
        # one that failed does not count
        await held.cluster.failing("exit 3", "qpu")
        await held.run(JOB, "qpu", "prepare/0")
        await held.counts(1, service="qpu")
        await held.run(JOB, "qpu", "solve/1")
        await held.counts(0, service="qpu")
        # the classical ones are held, and quantum jobs run by themselves
        assert await held.run(JOB) == first
        assert await held.run(JOB, "qpu", "solve/2") != first
    assert [one.strategy for one in held.held("qpu")] == ["reserved", "per-step"]


async def test_a_step_that_ends_with_a_success_code_releases_nodes(
    lab: Lab, tmp_path: Path
) -> None:
    allocation = reserved("node", "qpu", release={"after": "/w/solve"}, idle=60)
    async with site(lab, tmp_path, allocation) as held:
        held.cluster.name = "w"
        with exit_codes.of_job(ExitCodes(success=[3])):
            _, code = await held.cluster.run("exit 3", "qpu", "solve/0")
        assert code == 3
        await held.counts(0, service="qpu")
        await held.counts(1)


async def test_quantum_nodes_are_given_back_when_they_are_idle(
    lab: Lab, tmp_path: Path
) -> None:
    async with site(lab, tmp_path, reserved("node", "qpu", idle=1)) as held:
        await held.run("true", "qpu")
        await held.run("sleep 1.5", "qpu")
        await held.counts(0, service="qpu")
        await held.run("true")
        assert len(held.queue()) == 1


async def test_a_release_does_not_end_a_job(wide: Lab, tmp_path: Path) -> None:
    allocation: JSON = {
        "strategy": "reserved",
        "reserve": {"node": 1, "qpu": 2},
        "release": {"after": "/w/check"},
    }
    async with site(wide, tmp_path, allocation) as held:
        held.cluster.name = "w"
        solving = held.start("sleep 2; echo solved", "qpu")
        waiting = [held.start("sleep 0.3; echo solved", "qpu") for _ in range(3)]
        await until_async(lambda: len(held.events("slurm")) == 1, "the first")
        await held.run("true", "node", "check/0")
        assert await asyncio.gather(solving, *waiting) == ["solved"] * 4
        await held.counts(1)
        await held.counts(0, service="qpu")


async def test_a_lost_allocation_is_asked_for_again_with_a_warning(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(lab, tmp_path, reserved("node", "qpu")) as held:
        first = await held.run(JOB)
        lab.run("scancel", first)
        with caplog.at_level(logging.WARNING):
            again = await asyncio.gather(held.run(JOB), held.run(JOB, "qpu"))
        assert again[0] == again[1] != first
        # and if only a part of it is
        lab.run("scancel", f"{again[0]}+1")
        third = await held.run(JOB, "qpu")
        assert third != again[0]
        assert await held.run(JOB) == third
    warnings = [r.message for r in caplog.records if "ended before" in r.message]
    assert len(warnings) == 2


async def test_other_services_run_by_themselves(lab: Lab, tmp_path: Path) -> None:
    async with site(lab, tmp_path, reserved("node")) as held:
        assert await held.run(JOB) != await held.run(JOB, "qpu")
    assert [one.strategy for one in held.held("qpu")] == ["per-step"]


async def test_services_share_one_allocation_if_they_say_the_same(
    lab: Lab, tmp_path: Path
) -> None:
    both = reserved("a", "b")
    services: dict[str, JSON] = {
        "a": {**NODE, "allocation": both},
        "b": {**NODE, "allocation": both},
        "c": {**NODE, "allocation": reserved("c")},
    }
    async with site(lab, tmp_path, "per-step", services=services) as held:
        jobs = await asyncio.gather(*[held.run(JOB, name) for name in "abc"])
        assert jobs[0] == jobs[1] != jobs[2]


async def test_an_unknown_service_is_refused(lab: Lab, tmp_path: Path) -> None:
    async with site(lab, tmp_path, reserved("node", "gpu")) as held:
        with pytest.raises(WorkflowDefinitionException) as error:
            await held.cluster.connector.deploy(False)
    assert str(error.value) == (
        "Deployment cluster: `reserve` names service gpu, which does not exist; "
        "its services: node, qpu."
    )

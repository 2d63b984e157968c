"""What a job waits for nodes is told while it waits, and is what Slurm says afterwards."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import pytest

from sf_quantum.connectors.slurm.partition import PartitionQueue
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.files import JSON, number
from tests.support.journals import collect, progress
from tests.support.lab_cluster import LabError

if TYPE_CHECKING:
    from tests.lab import Lab
    from tests.support.projects import Project

pytestmark = pytest.mark.process

FLAGS = {
    "nodes": "nodes",
    "ntasks": "ntasks",
    "ntasksPerNode": "ntasks-per-node",
    "cpusPerTask": "cpus-per-task",
}
NODE: JSON = {"partition": "compute", "ntasks": 1, "begin": "now+4"}
ALLOCATIONS: list[JSON] = [
    "per-step",
    {"strategy": "elastic", "max": 2},
    # its jobs take turns
    {"strategy": "reserved", "reserve": ["node"]},
]


@pytest.mark.parametrize(
    "allocation", ALLOCATIONS, ids=["alone", "elastic", "reserved"]
)
def test_a_wait_for_nodes_is_told_and_is_slurms(
    allocation: JSON, lab: Lab, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in lab.environment.items():
        monkeypatch.setenv(key, value)
    project.deployment(
        "cluster",
        "sfq.slurm",
        maxConcurrentJobs=3,
        services={"node": NODE},
        allocation=allocation,
    )
    project.step("build", "sleep 2; touch out", "cluster/node", scatter=3)
    assert project.run() == 0, project.log
    events = project.events()
    told = [line.split() for line in progress(events)]
    slurm = {str(one["job"]): one for one in events if one["event"] == "slurm"}
    record = {job.id: job for job in lab.jobcomp()}
    rows = [row for row in collect(events) if row.step == "build"]
    for row in rows:
        own = [words[0] for words in told if words[1] == row.job]
        # the grant may be seen with the end of the job
        assert own in (
            ["running", "waiting", "running", "completed"],
            ["running", "waiting", "completed"],
        )
        assert row.started is not None
        assert row.ran is not None
        assert row.waited is not None
        at, began, ended = (
            number(slurm[row.job][key]) for key in ("submitted", "started", "ended")
        )
        assert row.waited == pytest.approx(began - row.asked, abs=0.001)
        # Slurm's own times of a job alone are whole seconds; its begin and end are its
        # script's.
        job = record[int(str(slurm[row.job]["slurm_job"]))]
        assert began >= job.started
        assert ended < job.ended + 1
        assert row.waited > job.started - at
        assert row.ran >= ended - began
    assert len(rows) == 3


def test_a_forecast_is_for_the_processors_that_slurm_allocates(lab: Lab) -> None:
    queue, random, allocations = PartitionQueue(per_node=4), Random(1), 0
    for _ in range(25):
        nodes, per_node, cpus = (random.choice([None, 1, 2]) for _ in range(3))
        tasks = random.choice([None, 1, 2, 3, 4])
        options: dict[str, JSON] = {"nodes": nodes and str(nodes), "ntasks": tasks}
        options |= {"ntasksPerNode": per_node, "cpusPerTask": cpus}
        service = SlurmService()
        service.options = {key: value for key, value in options.items() if value}
        flags = [f"--{FLAGS[key]}={value}" for key, value in service.options.items()]
        with suppress(LabError):  # more processors or tasks than the nodes have
            allocated = lab.output(
                *("salloc", "--quiet", "--immediate=30", "--partition=compute", *flags),
                *("sh", "-c", "squeue --noheader --job=$SLURM_JOB_ID --format=%C"),
            )
            expected = {queue.request(service).processors}
            if tasks and per_node:  # where Slurm 24.11 allocates fewer than 22.05
                expected.add(tasks * (cpus or 1))
            assert int(allocated) in expected, options
            allocations += 1
    assert allocations > 15

"""What a job waits for nodes is told while it waits, and is what Slurm says afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON, number
from tests.support.journals import collect, progress

if TYPE_CHECKING:
    from tests.lab import Lab
    from tests.support.projects import Project

pytestmark = pytest.mark.process

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

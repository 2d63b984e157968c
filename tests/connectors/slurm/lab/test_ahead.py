"""A driver whose classical steps have nodes on Slurm, and whose quantum steps a QPU elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON
from tests.support.journals import measure
from tests.support.slurm_site import NODE, agrees
from tests.support.waiting import SECONDS

if TYPE_CHECKING:
    from tests.lab import Lab
    from tests.support.projects import Project

pytestmark = pytest.mark.process


def test_nodes_are_given_back_while_a_qpu_works(
    project: Project, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in lab.environment.items():
        monkeypatch.setenv(key, value)
    project.deployment("qpu", "sfq.emulator")
    project.deployment(
        "slurm",
        "sfq.slurm",
        pollingInterval=1,
        maxConcurrentJobs=9,
        services={"node": NODE},
        # idle nodes would be there until the end
        allocation={"strategy": "elastic", "idle": 60},
    )
    # the quantum job waits until the nodes of the job before it are given back
    nodes = project.folder / "nodes"
    held = f"squeue --noheader --states=RUNNING --jobs=$(cat {nodes})"
    released = f'while [ -n "$({held})" ]; do sleep 0.1; done'
    bindings: list[JSON] = []
    before = None
    for name in ("first", "solve", "last"):
        if name == "solve":
            project.solve(name, "qpu", before=released)
            target: JSON = {"deployment": "qpu"}
        else:
            project.step(name, f"echo $SLURM_JOB_ID >>{nodes}; echo >out", "slurm")
            target = {"deployment": "slurm", "service": "node"}
        bindings.append({"step": f"/{name}", "target": target})
        if before is not None:
            _follow(project, name, before)
        before = name
    project.extra["workflows"] = {
        "test": {
            "type": "cwl",
            "config": {"file": "main.cwl"},
            "bindings": bindings,
        }
    }
    assert project.run() == 0, project.log
    events = project.events()
    first, last = measure(events).allocations
    (solve,) = project.jobs("solve", "completed")
    assert first.released is not None
    assert last.granted is not None
    assert isinstance(solve["time"], float)
    assert first.released <= solve["time"]
    # Slurm tells whole seconds
    assert int(solve["time"]) <= last.granted
    # and the end is the last line
    assert events[-1]["event"] == "end"
    assert all(one.released for one in (first, last))
    path = next((project.folder / ".streamflow" / "sfq").glob("*.jsonl"))
    # how long it took is known to the driver only
    agrees(lab, path, SECONDS)


def _follow(project: Project, name: str, before: str) -> None:
    """Have a step take what another leaves."""
    step = project.steps[name]
    assert isinstance(step, dict)
    run, inputs = step["run"], step["in"]
    assert isinstance(run, dict)
    assert isinstance(inputs, dict)
    assert isinstance(run["inputs"], dict)
    run["inputs"]["before"] = "File?"
    inputs["before"] = f"{before}/out"

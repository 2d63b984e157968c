"""A file that uses StreamFlow's ``slurm`` works with ``sfq.slurm`` by its type alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from sf_quantum.connectors.slurm.sbatch_options import words
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.files import JSON
from tests.support.slurm_jobs import over_ssh

if TYPE_CHECKING:
    from tests.lab import Lab
    from tests.support.projects import Project

pytestmark = pytest.mark.process

SCHEMA = "streamflow.deployment.connector.schemas"
# of sbatch(1): since 23.11, and no longer in 24.11
LATER = {"--container-id", "--tres-per-task"}
GONE = {"--power"}


def properties() -> dict[str, dict[str, str]]:
    schema = json.loads(files(SCHEMA).joinpath("slurm.json").read_text("utf-8"))
    found: dict[str, dict[str, str]] = schema["$defs"]["service"]["properties"]
    return found


def test_each_key_is_an_option_that_sbatch_knows(lab: Lab) -> None:
    values: dict[str, JSON] = {"integer": 7, "boolean": True}
    keys = {k: values.get(v.get("type", ""), "x") for k, v in properties().items()}
    assert len(keys) > 80
    keys.pop("file", None)
    make: Callable[..., SlurmService] = SlurmService
    names = {word.partition("=")[0] for word in words(make(**keys))}
    assert len(names) == len(keys)
    unknown = {name for name in names if not _knows(lab, name)}
    assert unknown <= LATER | GONE
    # which the stock connector makes of two keys
    assert not _knows(lab, "--minpucs")
    assert not _knows(lab, "--use-min_nodes")


def _knows(lab: Lab, name: str) -> bool:
    """Whether ``sbatch`` does: what follows is unknown to it in any case."""
    said = lab.run(
        "sbatch", "--test-only", f"{name}=1", "--unknown", "/dev/null"
    ).stderr
    return f"unrecognized option '{name}=1'" not in said


def test_values() -> None:
    service = SlurmService(
        partition="quantum",
        gres="qpu:1",
        exclusive=True,
        requeue=False,
        ntasks=3,
        waitAllNodes=True,
        constraint='"a&b"',
        jobName="$NAME",
    )
    assert words(service, ntasks=None, time="1") == [
        '--partition="quantum"',
        '--gres="qpu:1"',
        "--exclusive",
        '--wait-all-nodes="1"',
        '--constraint="\\"a&b\\""',
        '--job-name="$NAME"',
        '--time="1"',
    ]


@pytest.fixture
def commands(project: Project, lab: Lab) -> None:
    """Slurm's commands on the SSH server's PATH, turned to the lab."""
    folder = project.folder / "commands"
    folder.mkdir()
    project.path.insert(0, str(folder))
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        command = folder / name
        command.write_text(
            f'#!/bin/sh\nSLURM_CONF={lab.conf} exec /usr/bin/{name} "$@"\n'
        )
        command.chmod(0o755)


@pytest.mark.parametrize(
    ("type_", "way"),
    # StreamFlow 0.2.0rc3 does not find the connector again that it makes of inline keys
    [("slurm", "wraps"), ("sfq.slurm", "wraps"), ("sfq.slurm", "inline")],
)
def test_over_ssh(
    project: Project,
    commands: None,
    request: pytest.FixtureRequest,
    type_: str,
    way: str,
) -> None:
    over_ssh(project, request.getfixturevalue("sshd"))
    (project.folder / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --ntasks=1\n\nexport FROM=template\n"
        "{{streamflow_command}}\n"
    )
    config: dict[str, JSON] = {
        "maxConcurrentJobs": 2,
        "pollingInterval": 1,
        "services": {
            "one": {"file": "job.sh", "partition": "compute", "nodes": "1"},
        },
    }
    if way == "wraps":
        project.deployment("cluster", type_, wraps="host", **config)
    else:
        inner = project.deployments.pop("host")
        assert isinstance(inner, dict)
        ssh = inner["config"]
        assert isinstance(ssh, dict)
        nodes = ssh.pop("nodes")
        assert isinstance(nodes, list)
        project.deployment("cluster", type_, hostname=nodes[0], **ssh, **config)
    project.step(
        "work", 'echo "$FROM $SLURM_JOB_PARTITION $1" >out', "cluster", scatter=3
    )
    target: JSON = {"deployment": "cluster", "service": "one"}
    project.extra["workflows"] = {
        "test": {
            "type": "cwl",
            "config": {"file": "main.cwl"},
            "bindings": [{"step": "/work", "target": target}],
        }
    }
    assert project.run() == 0, project.log
    assert len(project.jobs("work", "completed")) == 3
    results = [path.read_text() for path in project.folder.glob("out*")]
    assert sorted(results) == [f"template compute {n}\n" for n in range(3)]
    assert project.leftovers() == []

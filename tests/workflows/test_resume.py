"""``sfq run --resume``: a killed run goes on, and only what has changed runs again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON, mapping
from tests.support.journals import collect
from tests.support.slurm_jobs import over_ssh
from tests.support.slurm_site import NODE
from tests.support.waiting import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab import Lab
    from tests.support.projects import Project

pytestmark = pytest.mark.process

Until = Callable[[Callable[[], object], str], None]


def require(project: Project, step: str, **requirements: JSON) -> None:
    mapping(mapping(project.steps[step])["run"])["requirements"] = {**requirements}


def follow(step: JSON) -> dict[str, JSON]:
    """The step, begun after ``first``."""
    whole = mapping(step)
    tool = mapping(whole["run"])
    inputs = {**mapping(tool["inputs"]), "before": "File?"}
    return {
        **whole,
        "run": {**tool, "inputs": inputs},
        "in": {**mapping(whole["in"]), "before": "first/out"},
    }


def resume(project: Project) -> str:
    with project.start_checked("--resume") as running:
        text, _ = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, text
    return text


def statuses(project: Project) -> dict[str, str]:
    rows = collect(project.events())
    return {row.job: row.status for row in rows}


def failing(project: Project, go: Path) -> None:
    """Add a step that fails until a file is there."""
    # StreamFlow gives it the outputs of the first before that has the status
    pattern = '"step": "/first".*"status": "completed"'
    journals = f"{project.folder}/.streamflow/sfq/*.jsonl"
    wait = f"until grep -q '{pattern}' {journals}; do sleep 0.1; done"
    project.step("last", f"{wait}; test -e {go}; echo > out", "host")


def test_a_failed_run_goes_on_with_outputs_on_another_host(
    project: Project, sshd: int
) -> None:
    go = project.folder / "go"
    over_ssh(project, sshd)
    project.deployments["far"] = project.deployments["host"]
    project.deployment("host", "local")
    project.step("first", f"echo $0 >> {project.folder}/runs; echo > out", "far")
    failing(project, go)
    # in this order
    project.steps["last"] = follow(project.steps["last"])
    with project.start_checked() as running:
        running.communicate(timeout=SECONDS)
    assert running.returncode == 1
    failed = str(project.events()[0]["run"])
    go.touch()
    text = resume(project)
    assert f"resuming run {failed}, which failed" in text
    assert statuses(project) == {"/first/0": "reused", "/last/0": "completed"}, text
    assert len((project.folder / "runs").read_text().splitlines()) == 1


def test_a_reused_job_is_no_job_of_slurm(
    project: Project, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in lab.environment.items():
        monkeypatch.setenv(key, value)
    go = project.folder / "go"
    project.deployment("host", "local")
    project.deployment(
        "slurm",
        "sfq.slurm",
        pollingInterval=1,
        services={"node": NODE},
        allocation="elastic",
    )
    project.step("first", "echo > out", "slurm/node")
    failing(project, go)
    project.steps["last"] = follow(project.steps["last"])
    with project.start_checked() as running:
        running.communicate(timeout=SECONDS)
    assert running.returncode == 1
    assert [one for one in project.events() if one["event"] == "slurm"]
    go.touch()
    resume(project)
    assert statuses(project) == {"/first/0": "reused", "/last/0": "completed"}
    kinds = {str(one["event"]) for one in project.events()}
    assert not kinds & {"slurm", "allocation"}


def test_a_killed_run_goes_on(project: Project, until: Until) -> None:
    folder = project.folder
    project.deployment("host", "local")
    project.deployment("qpu", "sfq.emulator", timeScale=0, wraps="host")
    project.solve("solve", "qpu")
    project.step("sweep", f"echo $0 >> {folder}/sweeps; echo made > out", "host", 3)
    project.step("wait", f"test -e {folder}/go || sleep 1000; echo $HOME > out", "host")
    project.step("clock", "date > out", "host")
    # its files are in the job's folder before its command runs
    staged: JSON = {"entryname": "staged", "entry": "text"}
    require(project, "sweep", InitialWorkDirRequirement={"listing": [staged]})
    require(project, "clock", WorkReuse={"enableReuse": False})
    with project.start_checked() as running:

        def ready() -> bool:
            done = [*project.jobs("solve", "completed")]
            done += project.jobs("sweep", "completed")
            done += project.jobs("clock", "completed")
            return len(done) == 5 and bool(project.jobs("wait", "running"))

        until(ready, "the other jobs")
        driver = int(str(project.events()[0]["pid"]))
        os.killpg(driver, signal.SIGKILL)
        text, _ = running.communicate(timeout=SECONDS)
    assert running.returncode == 1, text
    killed = str(project.events()[0]["run"])
    (folder / "go").touch()

    text = resume(project)
    assert f"resuming run {killed}, which ended without its last event: its" in text
    assert f"reused    /solve/0 on qpu from run {killed}" in text
    assert f"again     /wait/0: it was not completed (run {killed})" in text
    assert "again     /clock/0: its tool forbids it (WorkReuse)" in text
    assert statuses(project) == {
        "/solve/0": "reused",
        "/sweep/0.0": "reused",
        "/sweep/0.1": "reused",
        "/sweep/0.2": "reused",
        "/wait/0": "completed",
        "/clock/0": "completed",
    }
    assert not [one for one in project.events() if one["event"] in ("qpu", "lease")]
    assert len((folder / "sweeps").read_text().splitlines()) == 3
    # StreamFlow has its own names for outputs that have the same
    outputs = [path.read_text() for path in (folder / "out").glob("out*")]
    assert outputs.count("made\n") == 3
    assert (folder / "out" / "streamflow.log.1").exists()

    # what that run reused can be reused again, but not what has changed since
    script = folder / "sweep.sh"
    script.write_text(f"{script.read_text()}# changed\n")
    shutil.rmtree(str(project.jobs("wait", "completed")[0]["output"]))
    text = resume(project)
    assert "nothing to resume: run " in text
    assert "and a budget includes what was spent" in text
    assert "again     /sweep/0.1: its command or environment has changed" in text
    assert "again     /wait/0: its outputs are gone" in text
    assert statuses(project) == {
        "/solve/0": "reused",
        "/sweep/0.0": "completed",
        "/sweep/0.1": "completed",
        "/sweep/0.2": "completed",
        "/wait/0": "completed",
        "/clock/0": "completed",
    }


def test_the_changed_file_of_an_input_is_named(project: Project) -> None:
    """A tool's log is such a file; another input of the job has not changed."""
    folder = project.folder
    project.deployment("host", "local")
    project.step("first", f"cat {folder}/said > out", "host")
    project.step("second", "echo > out", "host")
    project.steps["second"] = follow(project.steps["second"])
    (folder / "said").write_text("one")
    resume(project)
    earlier = str(project.events()[0]["run"])
    (folder / "said").write_text("two")
    script = folder / "first.sh"
    script.write_text(f"{script.read_text()}# changed\n")
    text = resume(project)
    changed = f"its input before has changed: file out changed (run {earlier})"
    assert f"again     /second/0: {changed}" in text
    (event,) = [
        one
        for one in project.events()
        if one["event"] == "reuse" and str(one["job"]).startswith("/second")
    ]
    assert (event["run"], event["latest"]) == (None, earlier)

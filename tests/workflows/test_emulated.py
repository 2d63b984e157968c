"""The clustering-aggregation workflow, whole, as ``deployments/emulator.yml`` binds it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from tests.support.clustering_runs import Run
from tests.support.folders import ROOT
from tests.support.forking import BIN
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.process


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with 600 points, a job file and a copy of the emulator's deployment."""
    random = np.random.default_rng(7)
    centres = np.array([[0, 0], [9, 1], [2, 11], [12, 12]])
    points = np.concatenate([c + random.normal(size=(150, 2)) for c in centres])
    np.savetxt(tmp_path / "points.csv", points, "%.6f", ",", header="x,y", comments="")
    # a threshold out of reach, so that there is a second iteration to speak of
    job = {
        "points": {"class": "File", "path": "points.csv"},
        "clusters": "2:6",
        "threshold": 0.99,
        "limit": 2,
        "reads": 50,
    }
    (tmp_path / "job.yml").write_text(yaml.safe_dump(job))
    write_deployment(tmp_path)
    return tmp_path


def write_deployment(folder: Path, **qpu: object) -> None:
    """The repository's own file, with its paths and the QPU's keys set."""
    content = yaml.safe_load((ROOT / "deployments" / "emulator.yml").read_text())
    config = content["workflows"]["clustering-aggregation"]["config"]
    config["file"] = str(ROOT / "workflows" / "clustering-aggregation.cwl")
    config["settings"] = str(folder / "job.yml")
    content["deployments"]["qpu"]["config"] |= qpu
    (folder / "emulator.yml").write_text(yaml.safe_dump(content))


def streamflow(folder: Path) -> list[str]:
    """The command of a run in ``folder``."""
    return [
        *(str(BIN / "streamflow"), "run", str(folder / "emulator.yml")),
        *("--outdir", str(folder / "out")),
    ]


def environment(folder: Path) -> dict[str, str]:
    """The environment of a run whose temporary files stay in ``folder``."""
    (folder / "tmp").mkdir(exist_ok=True)
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "TMPDIR": str(folder / "tmp")}


def test_a_run_on_the_emulator_gives_the_labels_of_cwltool(
    emulated: Run, twice: list[Path]
) -> None:
    ours, classical = emulated.folder / "out", twice[0]
    labels = (ours / "labels.csv").read_text()
    assert labels == (classical / "labels.csv").read_text()
    assert len(labels.splitlines()) == 601

    summary = json.loads((ours / "summary.json").read_text())
    assert [i["qpu"] for i in summary["per_iteration"]] == ["qpu", "qpu"]
    assert [i["technology"] for i in summary["per_iteration"]] == ["annealer"] * 2
    without = json.loads((classical / "summary.json").read_text())
    assert [i["qpu"] for i in without["per_iteration"]] == [None, None]
    assert summary["score"] == without["score"]

    # the mapping of Rocco et al. (2025): the methods on nodes, the QUBO on the QPU; a method
    # may get the node of another that has ended already
    clusterings = emulated.locations("cluster")
    assert len(clusterings) == 6
    assert {*clusterings} <= {"nodes/c1", "nodes/c2", "nodes/c3"}
    assert emulated.locations("solve") == ["qpu", "qpu"]
    for step in ("qubo", "score", "plot"):
        assert {*emulated.locations(step)} == {"host"}


def test_bad_points_end_the_run_with_the_tools_sentence(tmp_path: Path) -> None:
    # StreamFlow by itself waits for ever when a scattered step fails inside a loop
    run = Run("emulator.yml", tmp_path)
    run.prepare()
    (tmp_path / "points.csv").write_text("x,y,kind\n1,2,a\n")
    assert run.drive("streamflow", "run", "--outdir", "out") == 1
    assert "points.csv: 1 points; clustering needs at least two" in run.log
    assert "FAILED /iterate/cluster/" in run.log
    (end,) = run.events("end")
    assert end["status"] == "failed"


def test_a_service_that_dies_fails_the_run_with_a_reason(
    project: Path,
) -> None:
    # half an hour on the device, so that the job is certainly running
    write_deployment(project, technology="neutral-atom", timeScale=1)
    log = project / "log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            streamflow(project),
            cwd=project,
            env=environment(project),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            solve = _wait_for(driver, "solve")
            service = _wait_for(driver, "serve")
            _wait_until_it_waits_for_the_qpu(solve)
            service.send_signal(signal.SIGKILL)
            assert driver.wait(timeout=SECONDS) != 0
        finally:
            driver.kill()
            driver.wait()
    said = log.read_text()
    assert "sfq solve: " in said
    assert "qpu" in said.split("sfq solve: ")[1].splitlines()[0]
    assert "samples.json" not in said.split("sfq solve: ")[1].splitlines()[0]
    assert not (project / "out" / "labels.csv").exists()


def _wait_for(driver: subprocess.Popen[bytes], command: str) -> psutil.Process:
    def found() -> psutil.Process | None:
        for process in _descendants(driver.pid):
            arguments = _arguments(process)
            if command in arguments[1:3] and arguments[0].rsplit("/")[-1] != "sh":
                return process
        return None

    return until(found, f"sfq {command}")


def _descendants(pid: int) -> Iterator[psutil.Process]:
    try:
        yield from psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return [*process.cmdline(), "", ""]
    except psutil.NoSuchProcess:
        return ["", ""]


def _wait_until_it_waits_for_the_qpu(solve: psutil.Process) -> None:
    until(
        lambda: any(c.family == 1 for c in solve.net_connections("unix")),
        "a connection of sfq solve to the service",
    )

"""The clustering-aggregation workflow on small points, with StreamFlow and with cwltool."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sf_quantum.files import JSON
from sf_quantum.reporting import report
from tests.support import forking
from tests.support.folders import ROOT
from tests.support.forking import BIN
from tests.support.journals import Event, collect, read
from tests.support.waiting import SECONDS

WORKFLOW = ROOT / "workflows" / "clustering-aggregation.cwl"
CENTRES = [[0, 0], [9, 0], [0, 9], [9, 9], [5, 20]]
ITERATIONS = 2


def write_inputs(folder: Path, **job: JSON) -> None:
    """600 points in five blobs, and a job whose loop takes two iterations.

    :param job: other inputs of the workflow
    """
    random = np.random.default_rng(0)
    points = np.repeat(CENTRES, 120, axis=0) + random.normal(size=(600, 2))
    kinds = np.repeat(["a", "b", "c", "d", "e"], 120)
    lines = [f"{x},{y},{kind}" for (x, y), kind in zip(points, kinds, strict=True)]
    (folder / "points.csv").write_text("\n".join(["x,y,kind", *lines, ""]))
    whole = {
        "points": {"class": "File", "path": "points.csv"},
        "label": "kind",
        "reads": 100,
        "seed": 3,
        # out of reach, so that there is a second iteration to speak of
        "threshold": 1.0,
        "limit": ITERATIONS,
        **job,
    }
    (folder / "job.yml").write_text(json.dumps(whole))


def cwltool(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start cwltool in a home of its own, with nothing on the PATH but our tools."""
    path = f"{forking.stand_ins()}:{BIN}"
    assert not shutil.which("node", path=path)
    assert not shutil.which("nodejs", path=path)
    return subprocess.Popen(
        [f"{forking.stand_ins()}/cwltool", "--enable-ext", "--quiet",
         "--outdir", "out", *options, str(WORKFLOW), "job.yml"],
        env={"PATH": path, "HOME": str(folder), "TMPDIR": str(folder),
             "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "")},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def outputs(run: subprocess.Popen[str]) -> dict[str, Path]:
    """Wait for cwltool.

    :returns: the files of its outputs
    """
    with run:
        try:
            out, err = run.communicate(timeout=SECONDS)
        finally:
            run.kill()
    assert run.returncode == 0, err
    return {name: Path(file["path"]) for name, file in json.loads(out).items() if file}


class Run:
    """A copy of one of the repository's deployments, and its run.

    :param name: of the file
    :param folder: for the copy, the points, the work directories and the outputs
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.file = folder / name
        self.text = (ROOT / "deployments" / name).read_text()
        self.environment = {"PATH": f"{forking.stand_ins()}:{BIN}:{os.environ['PATH']}"}

    def replace(self, old: str, new: str) -> None:
        """Edit the file, as its user would."""
        assert self.text.count(old), old
        self.text = self.text.replace(old, new)

    def start(self, **job: JSON) -> Path:
        """Run it to its end.

        :param job: other inputs of the workflow
        :returns: the folder of its outputs
        """
        self.prepare(**job)
        for command in (["sfq", "check"], ["streamflow", "run", "--outdir", "out"]):
            assert self.drive(*command) == 0, self.log
        return self.folder / "out"

    def prepare(self, **job: JSON) -> None:
        """Write the files."""
        write_inputs(self.folder, **job)
        self.replace("../workflows/", f"{ROOT}/workflows/")
        self.replace("../examples/clustering-aggregation/job.yml", "job.yml")
        self.file.write_text(self.text)
        (self.folder / "tmp").mkdir()

    def drive(self, *command: str) -> int:
        """Run a command on the file.

        :returns: its exit status
        """
        temporary = str(self.folder / "tmp")
        with open(self.folder / "log", "wb") as log:
            driver = forking.Command(
                [*command, self.file.name],
                self.folder,
                {**os.environ, **self.environment, "TMPDIR": temporary},
                log.fileno(),
                log.fileno(),
            )
        try:
            return driver.wait(timeout=180)
        finally:
            driver.kill()
            driver.wait()

    @property
    def log(self) -> str:
        """What the last command printed."""
        return (self.folder / "log").read_text()

    def events(self, kind: str) -> list[Event]:
        """The journal's entries of a kind."""
        events = read(report.locate(self.file))
        return [event for event in events if event["event"] == kind]

    def locations(self, step: str) -> list[str]:
        """Where the jobs of a step ran, one after the other."""
        rows = collect(read(report.locate(self.file)))
        return [str(row.location) for row in rows if row.step.endswith(step)]


def once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Path:
    """Make a folder once in a run of tests, whichever worker is first."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # each worker has a folder of its own in that of the run
        folder = folder.parent
    folder = folder / name
    made = folder / "made"
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not made.exists():
            # another attempt may have failed
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


def run_twice(folder: Path) -> None:
    """Run the same job twice with cwltool, as ``first`` and ``second``."""
    homes = [folder / "first", folder / "second"]
    for home in homes:
        home.mkdir()
        write_inputs(home)
    for run in [cwltool(home) for home in homes]:
        outputs(run)

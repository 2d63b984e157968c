"""The clustering-aggregation workflow, whole, on a Slurm cluster: ``deployments/slurm*.yml``."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from sf_quantum import journal
from sf_quantum.files import JSON
from sf_quantum.journal import Event
from sf_quantum.reporting import report
from tests.integration.services import QpuService
from tests.integration.sshd import sshd
from tests.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# two iterations of three clusterings and a score; the QUBO, the plot are the host's
CLASSICAL_JOBS, QUANTUM_JOBS = 8, 2


class Run:
    """A copy of one of the repository's deployments, and its run.

    :param name: of the file
    :param folder: for the copy, the points, the work directories and the outputs
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.file = folder / name
        self.text = (ROOT / "deployments" / name).read_text()
        self.environment = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

    def replace(self, old: str, new: str) -> None:
        """Edit the file, as its user would."""
        assert self.text.count(old), old
        self.text = self.text.replace(old, new)

    def start(self) -> Path:
        """Run it to its end.

        :returns: the folder of its outputs
        """
        self.prepare()
        for command in (["sfq", "check"], ["streamflow", "run", "--outdir", "out"]):
            assert self.drive(*command) == 0, self.log
        return self.folder / "out"

    def prepare(self) -> None:
        """Write the files."""
        _write_inputs(self.folder)
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
            driver = subprocess.Popen(
                [BIN / command[0], *command[1:], self.file.name],
                cwd=self.folder,
                env={**os.environ, **self.environment, "TMPDIR": temporary},
                stdout=log,
                stderr=log,
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
        events = journal.read(report.locate(self.file))
        return [event for event in events if event["event"] == kind]

    def locations(self, step: str) -> set[str]:
        """Where the jobs of a step ran."""
        rows = report.collect(journal.read(report.locate(self.file)))
        return {str(row.location) for row in rows if row.step.endswith(step)}


def _write_inputs(folder: Path) -> None:
    random = np.random.default_rng(7)
    centres = np.array([[0, 0], [9, 1], [2, 11], [12, 12]])
    points = np.concatenate([c + random.normal(size=(150, 2)) for c in centres])
    np.savetxt(folder / "points.csv", points, "%.6f", ",", header="x,y", comments="")
    # a threshold out of reach, so that there is a second iteration to speak of
    job = {
        "points": {"class": "File", "path": "points.csv"},
        "clusters": "2:6",
        "threshold": 0.99,
        "limit": 2,
        "reads": 50,
        "seed": 3,
    }
    (folder / "job.yml").write_text(yaml.safe_dump(job))


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The labels that the same inputs have on the emulator; made once in a run of tests."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # each worker has a folder of its own in that of the run
        folder = folder.parent
    folder = folder / "emulated"
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            Run("emulator.yml", folder).start()
    return (folder / "out" / "labels.csv").read_text()


@pytest.fixture
def qpu(tmp_path: Path) -> Iterator[QpuService]:
    """A QPU service that does not wait, and a site's file with it beside the deployment."""
    service = QpuService(tmp_path / "service", "--time-scale", "0")
    token = service.with_tokens("ada")
    service.start()
    content = json.loads((ROOT / "deployments" / "qrmi_config.json").read_text())
    (resource,) = content["resources"]
    resource["environment"] = {"SFQ_URL": service.url, "SFQ_TOKEN_FILE": token}
    (tmp_path / "qrmi_config.json").write_text(json.dumps(content))
    yield service
    service.kill()


def check(run: Run, lab: Lab, qpu: QpuService, emulated: str) -> None:
    """Whether a run has the emulator's labels, used its QPU, and left nothing behind."""
    assert (run.folder / "out" / "labels.csv").read_text() == emulated
    summary = json.loads((run.folder / "out" / "summary.json").read_text())
    assert [i["qpu"] for i in summary["per_iteration"]] == ["emulator"] * 2
    assert qpu.jobs() == ["Completed"] * QUANTUM_JOBS
    assert qpu.held() == []
    assert len(run.events("qpu")) == QUANTUM_JOBS
    assert {*run.locations("qubo"), *run.locations("plot")} == {"host"}
    jobs = run.events("slurm")
    assert [job["state"] for job in jobs] == ["COMPLETED"] * len(jobs)
    assert sorted(str(job["service"]) for job in jobs) == (
        ["compute"] * CLASSICAL_JOBS + ["quantum"] * QUANTUM_JOBS
    )
    assert not held(run) & {*lab.jobs()}
    assert not [*run.folder.rglob(".sfq-*")]


def held(run: Run) -> set[int]:
    """The ids of the Slurm jobs that a run had."""
    return {int(str(event["slurm_job"])) for event in run.events("allocation")}


STRATEGIES: dict[str, JSON] = {
    "per-step": "per-step",
    "elastic": {"strategy": "elastic", "keep": 1, "idle": 30, "ahead": True},
    "reserved": {"strategy": "reserved", "reserve": {"compute": 3, "quantum": 1}},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_runs_on_the_lab_and_gives_the_emulators_labels(
    strategy: str, lab: Lab, qpu: QpuService, emulated: str, tmp_path: Path
) -> None:
    run = Run("slurm.yml", tmp_path)
    run.replace(
        "allocation: per-step", f"allocation: {json.dumps(STRATEGIES[strategy])}"
    )
    run.environment |= lab.environment
    run.start()
    check(run, lab, qpu, emulated)
    assert {event["strategy"] for event in run.events("allocation")} == {strategy}
    submissions = {
        # a submission each
        "per-step": {CLASSICAL_JOBS + QUANTUM_JOBS},
        # between one for each job at once and one for each job
        "elastic": {*range(4, CLASSICAL_JOBS + QUANTUM_JOBS)},
        "reserved": {1},
    }
    ids = {str(event["slurm_job"]) for event in run.events("allocation")}
    assert len(ids) in submissions[strategy]


def test_it_ends_where_slurm_refuses_its_first_job(
    lab: Lab, qpu: QpuService, tmp_path: Path
) -> None:
    run = Run("slurm.yml", tmp_path)
    run.replace("partition: compute", "partition: cpu")
    run.environment |= lab.environment
    run.prepare()
    assert run.drive("streamflow", "run", "--outdir", "out") != 0
    refused = (
        "Slurm refuses job /iterate/cluster/0.0.0: invalid partition specified: cpu"
    )
    assert refused in run.log
    assert "nothing else can run, so the run is ended" in run.log


def test_it_runs_over_ssh_once_its_placeholders_are_filled_in(
    lab: Lab, qpu: QpuService, emulated: str, tmp_path: Path
) -> None:
    modules = tmp_path / "bin"
    modules.mkdir()
    (modules / "module").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/modules\n')
    (modules / "module").chmod(0o755)
    site = {**lab.environment, "PATH": f"{modules}{os.pathsep}{os.environ['PATH']}"}
    # the login node finds it, the nodes by the job template
    site["PATH"] = f"{BIN}{os.pathsep}{site['PATH']}"
    template = (ROOT / "deployments" / "slurm-job.sh").read_text()
    assert template.count("/project/sfq/bin/activate") == 1
    (tmp_path / "activate").write_text(f'PATH="{BIN}:$PATH"; touch {tmp_path}/active\n')
    (tmp_path / "slurm-job.sh").write_text(
        template.replace("/project/sfq/bin/activate", str(tmp_path / "activate"))
    )
    with sshd(tmp_path / "sshd", site) as port:
        run = Run("slurm-ssh.yml", tmp_path)
        run.replace("/scratch/jdoe/streamflow", str(tmp_path / "scratch"))
        run.replace(
            "[login.hpc.example.org]",
            f'["127.0.0.1:{port}"]\n      checkHostKey: false',
        )
        run.replace("username: jdoe", f"username: {getpass.getuser()}")
        run.replace("# sshKey: ~/.ssh/id_hpc", f"sshKey: {tmp_path}/sshd/user")
        run.start()
    check(run, lab, qpu, emulated)
    assert (tmp_path / "active").exists()
    assert "load python/3.12" in (tmp_path / "modules").read_text()

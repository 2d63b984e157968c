"""The clustering-aggregation workflow, whole, on a Slurm cluster: ``deployments/slurm*.yml``."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from tests.lab import Lab
from tests.support.clustering_runs import ITERATIONS, Run
from tests.support.folders import ROOT
from tests.support.forking import BIN
from tests.support.service_process import QpuService
from tests.support.sshd import sshd

pytestmark = pytest.mark.process

# of an iteration: three clusterings and a score; the QUBO and the plot are the host's
CLASSICAL_JOBS, QUANTUM_JOBS = 4, 1


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


def check(run: Run, lab: Lab, qpu: QpuService, emulated: Run, iterations: int) -> None:
    """Whether a run has the emulator's labels, used its QPU, and left nothing behind."""
    labels = Path("out") / "labels.csv"
    assert (run.folder / labels).read_text() == (emulated.folder / labels).read_text()
    summary = json.loads((run.folder / "out" / "summary.json").read_text())
    assert [i["qpu"] for i in summary["per_iteration"]] == ["qpu"] * iterations
    assert qpu.jobs() == ["Completed"] * QUANTUM_JOBS * iterations
    assert qpu.held() == []
    assert len(run.events("qpu")) == QUANTUM_JOBS * iterations
    assert {*run.locations("qubo"), *run.locations("plot")} == {"host"}
    jobs = run.events("slurm")
    assert [job["state"] for job in jobs] == ["COMPLETED"] * len(jobs)
    classical, quantum = CLASSICAL_JOBS * iterations, QUANTUM_JOBS * iterations
    assert sorted(str(job["service"]) for job in jobs) == (
        ["compute"] * classical + ["quantum"] * quantum
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
    strategy: str, lab: Lab, qpu: QpuService, emulated: Run, tmp_path: Path
) -> None:
    run = Run("slurm.yml", tmp_path)
    run.replace(
        "allocation: per-step", f"allocation: {json.dumps(STRATEGIES[strategy])}"
    )
    run.environment |= lab.environment
    # an allocation for each job keeps nothing for a second iteration, and the labels
    # are those of the first, which is as good
    iterations = 1 if strategy == "per-step" else ITERATIONS
    run.start(limit=iterations)
    check(run, lab, qpu, emulated, iterations)
    assert {event["strategy"] for event in run.events("allocation")} == {strategy}
    jobs = (CLASSICAL_JOBS + QUANTUM_JOBS) * iterations
    submissions = {
        # a submission each
        "per-step": {jobs},
        # between one for each job at once and one for each job
        "elastic": {*range(4, jobs)},
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
    # whichever of the jobs that are submitted at once is refused first ends the others
    assert re.search(
        r"Slurm refuses job /iterate/cluster/0\.0\.\d: "
        "invalid partition specified: cpu",
        run.log,
    )
    assert "nothing else can run, so the run is ended" in run.log


def test_it_runs_over_ssh_once_its_placeholders_are_filled_in(
    lab: Lab, qpu: QpuService, emulated: Run, tmp_path: Path
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
        run.start(limit=1)
    check(run, lab, qpu, emulated, 1)
    assert (tmp_path / "active").exists()
    assert "load python/3.12" in (tmp_path / "modules").read_text()

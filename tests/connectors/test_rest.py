"""``sfq.rest`` in real runs of StreamFlow, against services of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
import yaml

from sf_quantum.files import JSON
from tests.support import forking
from tests.support.folders import ROOT
from tests.support.forking import BIN, Command
from tests.support.journals import Event, collect
from tests.support.service_process import QpuService, only_by_qrmi
from tests.support.waiting import SECONDS

if TYPE_CHECKING:
    from tests.support.projects import Project

Until = Callable[[Callable[[], object], str], None]
# D-Wave's annealers take a tenth of the shots with which a test occupies the QPU
pytestmark = [pytest.mark.process, pytest.mark.devices("sfq", "acme")]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., QpuService]]:
    """Makes services that do not outlive the test."""
    made: list[QpuService] = []

    def make(*options: str) -> QpuService:
        made.append(QpuService(tmp_path / f"service{len(made)}", *options))
        return made[-1]

    yield make
    for service in made:
        service.end()


def _run_deployment(folder: Path, name: str, **qpu: JSON) -> str:
    """Run the repository's own file on a few points, with the QPU's keys set.

    :returns: the labels
    """
    folder.mkdir()
    random = np.random.default_rng(7)
    points = np.concatenate([c + random.normal(size=(60, 2)) for c in ((0, 0), (9, 9))])
    np.savetxt(folder / "points.csv", points, "%.6f", ",", header="x,y", comments="")
    job = {
        "points": {"class": "File", "path": "points.csv"},
        **{"clusters": "2:3", "threshold": 0.99, "limit": 1, "reads": 20},
    }
    (folder / "job.yml").write_text(yaml.safe_dump(job))
    content = yaml.safe_load((ROOT / "deployments" / name).read_text())
    config = content["workflows"]["clustering-aggregation"]["config"]
    config["file"] = str(ROOT / "workflows" / "clustering-aggregation.cwl")
    config["settings"] = str(folder / "job.yml")
    keys = content["deployments"]["qpu"]["config"]
    keys |= qpu
    for key in [key for key, value in qpu.items() if value is None]:
        del keys[key]
    (folder / name).write_text(yaml.safe_dump(content))
    forking.run(
        ["streamflow", "run", name, "--outdir", "out"],
        folder,
        {**os.environ, "PATH": f"{forking.stand_ins()}:{BIN}:{os.environ['PATH']}"},
    )
    return (folder / "out" / "labels.csv").read_text()


def test_tokens_and_munge_give_the_labels_of_the_emulator(
    tmp_path: Path,
    serve: Callable[..., QpuService],
    request: pytest.FixtureRequest,
) -> None:
    emulated = _run_deployment(tmp_path / "emulated", "emulator.yml")
    assert len(emulated.splitlines()) == 121
    service = serve("--time-scale", "0")
    file = service.with_tokens("ada")
    service.start()
    # beside the StreamFlow file, as it says
    token = Path(file).read_text()
    labels = _run_deployment(
        tmp_path / "tokens", "rest.yml", url=service.url, tokenFile=file
    )
    assert labels == emulated
    assert service.jobs() == ["Completed"]
    for path in (tmp_path / "tokens").rglob("*"):
        assert not path.is_file() or token.strip() not in path.read_text("latin-1")

    munge_socket = str(request.getfixturevalue("munge_socket"))
    service = serve("--time-scale", "0", "--auth", "munge")
    service._options += ["--munge-socket", munge_socket]
    service.start()
    labels = _run_deployment(
        tmp_path / "munge",
        "rest.yml",
        url=service.url,
        tokenFile=None,
        munge=munge_socket,
    )
    assert labels == emulated


# it has a vendor of its own
@pytest.mark.devices
@pytest.mark.parametrize("kind", ["sfq", "dwave"])
def test_a_run_through_a_front_service_gives_the_same_labels(
    tmp_path: Path,
    serve: Callable[..., QpuService],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    if kind == "dwave":
        pytest.importorskip("dwave.system", reason="the extra dwave is not installed")
        monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))
    vendor = serve("--time-scale", "0", "--noise", "0")
    token = vendor.with_tokens("ada")
    vendor.start()
    direct = _run_deployment(
        tmp_path / "direct", "rest.yml", url=vendor.url, tokenFile=token
    )
    assert len(direct.splitlines()) == 121
    path = "/sapi/v2" if kind == "dwave" else ""
    config = {"url": f"{vendor.url}{path}", "tokenFile": token}
    device = {"type": "qpu", "qpu": kind, "name": "behind", "config": config}
    (tmp_path / "front.yml").write_text(yaml.safe_dump({"device": device}))
    front = serve("--config", str(tmp_path / "front.yml"))
    own = front.with_tokens("bob")
    front.start()
    labels = _run_deployment(
        tmp_path / "front", "rest.yml", url=front.url, tokenFile=own
    )
    assert labels == direct
    assert front.jobs() == ["Completed"]
    assert vendor.jobs() == ["Completed"] * 2


@pytest.fixture
def service(serve: Callable[..., QpuService]) -> QpuService:
    """A QPU with three virtual ones that takes its time, and asks for tokens."""
    # one that is occupied is so for minutes, however slow the machine is
    return serve("--vqpus", "3", "--time-scale", "20")


@pytest.fixture
def qpu(project: Project, service: QpuService) -> str:
    """Deploy the QPU; the user's token."""
    file = service.with_tokens("ada")
    service.start()
    project.deployment("qpu", "sfq.rest", url=service.url, tokenFile=file, vqpus=3)
    return Path(file).read_text().strip()


def test_a_job_runs_under_a_lease_of_its_own(
    project: Project, service: QpuService, qpu: str
) -> None:
    project.solve("solve", "qpu", "env | grep -E 'QRMI|SFQ' >env")
    assert project.run() == 0, project.log
    assert service.held() == []
    assert service.jobs() == ["Completed"]
    (told,) = [event for event in project.events() if event["event"] == "qpu"]
    assert (told["job"], told["state"], told["found"]) == (
        "/solve/0",
        "Completed",
        False,
    )
    assert (told["qpu"], told["technology"]) == ("qpu", "annealer")
    assert isinstance(told["qpu_seconds"], float)
    assert isinstance(told["queued_seconds"], float)
    (completed,) = project.jobs("solve", "completed")
    folder = Path(str(completed["output"]))
    samples = json.loads((folder / "out").read_text())
    assert samples["info"]["calibration"]["id"] == told["calibration"]
    assert samples["info"]["timing"]["qpu_seconds"] == told["qpu_seconds"]
    environment = (folder / "env").read_text()
    assert f"qpu_SFQ_URL={service.url}" in environment
    # the token is nowhere but in its file
    for path in (*project.folder.glob("*"), *folder.glob("*")):
        assert not path.is_file() or qpu not in path.read_text("latin-1"), path


def _waits(project: Project, service: QpuService, until: Until) -> tuple[str, Command]:
    """Start a run whose QPU job waits behind another.

    :returns: the lease of the other, and the driver
    """
    blocker = service.occupy()
    # a service that is started again takes its time on a busy machine
    project.solve("solve", "qpu", f"export qpu_SFQ_PATIENCE_SECONDS={SECONDS}")
    driver = project.start()
    until(lambda: service.jobs() == ["Queued"], "the QPU job")
    return blocker, driver


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_lease_and_no_job_outlives_the_driver(
    project: Project,
    service: QpuService,
    qpu: str,
    until: Until,
    number: signal.Signals,
) -> None:
    blocker, driver = _waits(project, service, until)
    driver.send_signal(number)
    driver.wait(timeout=SECONDS)
    until(lambda: service.held() == ["of the test"], "the lease to be given back")
    assert service.jobs() == ["Cancelled"]
    until(lambda: not project.processes(), "the last process to end")
    assert project.leftovers() == []
    assert not [p for p in psutil.process_iter(["cmdline"]) if qpu in str(p.info)]
    service.release(blocker)


def test_a_run_that_was_killed_finds_its_completed_job(
    project: Project, service: QpuService, qpu: str, until: Until
) -> None:
    again = project.folder / "again"
    project.solve("solve", "qpu")
    # the QPU has answered, and the driver dies before the step is over
    script = project.folder / "solve.sh"
    script.write_text(f"{script.read_text()}[ -e {again} ] || sleep 3600\n")
    driver = project.start()
    until(lambda: service.jobs() == ["Completed"], "the QPU job")
    driver.kill()
    driver.wait()
    until(lambda: not project.processes(), "the guardian to end")
    assert service.held() == []
    again.touch()
    assert project.run() == 0, project.log
    assert service.jobs() == ["Completed"]
    (told,) = [event for event in project.events() if event["event"] == "qpu"]
    assert told["found"] is True
    # that run is over, and the next one is not it
    assert project.run() == 0, project.log
    assert service.jobs() == ["Completed", "Completed"]
    (told,) = [event for event in project.events() if event["event"] == "qpu"]
    assert told["found"] is False


def test_a_resumed_run_repeats_what_its_guardian_cancelled(
    project: Project, service: QpuService, qpu: str, until: Until
) -> None:
    blocker, driver = _waits(project, service, until)
    driver.kill()
    driver.wait()
    until(lambda: service.jobs() == ["Cancelled"], "the guardian")
    service.release(blocker)
    until(lambda: not project.processes(), "the guardian to end")
    assert project.run() == 0, project.log
    assert service.jobs() == ["Cancelled", "Completed"]


def test_a_run_whose_machine_died_takes_its_waiting_job_over(
    project: Project, service: QpuService, qpu: str, until: Until
) -> None:
    blocker, driver = _waits(project, service, until)
    # nobody is left who could cancel: stopped first, none sees another's end
    theirs = project.processes()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in theirs:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
    driver.wait()
    until(lambda: not project.processes(), "the last process to end")
    run = project.events()[0]["run"]
    assert service.held() == ["of the test", f"{run}:/solve/0"]
    second = project.start()
    until(lambda: len(service.held()) == 3, "the second lease")
    until(lambda: project.commands("sfq solve"), "the second try")
    service.release(blocker)
    assert second.wait(timeout=SECONDS) == 0, project.log
    assert service.jobs() == ["Completed"]


def test_a_step_survives_its_service_being_killed(
    project: Project, service: QpuService, qpu: str, until: Until
) -> None:
    blocker, driver = _waits(project, service, until)
    service.kill()
    service.start()
    service.release(blocker)
    assert driver.wait(timeout=SECONDS) == 0, project.log
    assert service.jobs() == ["Completed"]


def test_a_wait_for_a_lease_is_no_running_time(
    project: Project, service: QpuService, qpu: str, until: Until
) -> None:
    leases = [service.lease() for _ in range(3)]
    project.solve("solve", "qpu")
    driver = project.start()

    def waits() -> list[Event]:
        return [event for event in project.events() if event["event"] == "lease"]

    until(waits, "the wait in the journal")
    service.release(leases[0])
    assert driver.wait(timeout=SECONDS) == 0, project.log
    *waiting, granted = waits()
    assert {event["status"] for event in waiting} == {"waiting"}
    assert all(event["reason"] for event in waiting)
    assert granted["status"] == "granted"
    (row,) = collect(project.events())
    assert row.waits == {"a lease of qpu": pytest.approx(granted["seconds"], abs=0.1)}


def test_one_lease_serves_the_whole_run(project: Project, service: QpuService) -> None:
    service.start()
    project.deployment("qpu", "sfq.rest", url=service.url, lease="run", vqpus=1)
    project.step("one", "true", "qpu")
    _chain(project)
    assert project.run() == 0, project.log
    leases = service.ask("GET", "/v1/leases?closed=true")
    assert isinstance(leases, list)
    assert len(leases) == 1
    assert service.held() == []
    jobs = [event["job"] for event in project.events() if event["event"] == "qpu"]
    assert jobs == ["/one/0", "/two/0"]


def _chain(project: Project) -> None:
    """Two steps that solve, one after the other."""
    project.steps.clear()
    for name in ("one", "two"):
        project.solve(name, "qpu")
    two = project.steps["two"]
    assert isinstance(two, dict)
    assert isinstance(two["run"], dict)
    assert isinstance(two["run"]["inputs"], dict)
    assert isinstance(two["in"], dict)
    two["run"]["inputs"]["after"] = "File"
    two["in"]["after"] = "one/out"


SLURM = {
    "sbatch": 'cat >"{0}/job"\n(sh "{0}/job" >"{0}/stdout" 2>&1; echo $? >"{0}/status") &\necho 7',
    "squeue": '[ -e "{0}/status" ] || echo 7',
    "scontrol": 'echo "JobId=7 ExitCode=$(cat "{0}/status"):0 StdOut={0}/stdout"',
}


def test_a_queue_manager_can_be_inside(
    project: Project, service: QpuService, qpu: str
) -> None:
    folder = project.folder / "slurm"
    folder.mkdir()
    for name, script in SLURM.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script.format(folder)}\n")
        path.chmod(0o755)
    project.path.insert(0, str(folder))
    project.deployment("here", "local")
    project.deployment("slurm", "slurm", wraps="here", pollingInterval=1)
    config = project.deployments["qpu"]
    assert isinstance(config, dict)
    config["wraps"] = "slurm"
    project.solve("solve", "qpu")
    assert project.run() == 0, project.log
    assert service.jobs() == ["Completed"]
    # the lease is neither in the job's script nor in what Slurm was told
    assert "ACQUISITION_TOKEN" not in (folder / "job").read_text()
    assert project.leftovers() == []


def test_a_qpu_that_only_the_package_qrmi_reaches(project: Project) -> None:
    file = only_by_qrmi(project.folder)
    project.deployment(
        "qpu", "sfq.rest", type="iqm-server", qrmiConfig=file.name, resource="cold"
    )
    project.step("run", "env | grep QRMI >out", "qpu")
    assert project.run() == 0, project.log
    (completed,) = project.jobs("run", "completed")
    lines = (Path(str(completed["output"])) / "out").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines)
    assert told["QRMI_JOB_QPU_TYPES"] == "iqm-server"
    assert told["cold_QRMI_IQM_ISA_ENDPOINT"] == "http://127.0.0.1:1"
    assert told["cold_QRMI_JOB_ACQUISITION_TOKEN"]


def test_a_lease_that_does_not_come_in_time_is_said(
    project: Project, service: QpuService, qpu: str
) -> None:
    for _ in range(3):
        service.lease()
    config = project.deployments["qpu"]
    assert isinstance(config, dict)
    assert isinstance(config["config"], dict)
    config["config"]["wait"] = 0.2
    project.solve("solve", "qpu", f"touch {project.folder}/begun")
    assert project.run() == 1
    assert "Job /solve/0 got no lease of QPU qpu: " in project.log
    assert not (project.folder / "begun").exists()


def test_a_revoked_token_ends_the_step_with_one_line(
    project: Project, service: QpuService, qpu: str, tmp_path: Path
) -> None:
    config = project.deployments["qpu"]
    assert isinstance(config, dict)
    assert isinstance(config["config"], dict)
    file = config["config"]["tokenFile"] = str(tmp_path / "revoked")
    Path(file).write_text("of yesterday")
    project.debug = False
    # as often as it takes
    project.extra["failureManager"] = {"type": "default", "config": {}}
    project.solve("solve", "qpu")
    assert project.run() == 1
    lines = project.log.splitlines()
    refusal = (
        f"Job /solve/0 got no lease of QPU qpu: QPU 'qpu' at {service.url} refuses: "
        f"Authorization: unknown bearer token (token file {file})"
    )
    # when it happens, and in the last lines
    assert sum(line.endswith(refusal) for line in lines) == 2
    assert "LeaseRefused" not in project.log


@pytest.mark.parametrize(
    "config",
    [
        {"url": "http://127.0.0.1:1", "tokenfile": "x"},
        {"url": "ftp://127.0.0.1"},
        {"tokenFile": "x"},
        {"url": "unix:/s", "lease": "ever"},
        {"url": "unix:/s", "class": "urgent"},
        {"url": "unix:/s", "munge": "relative/socket"},
        {"url": "unix:/s", "latestStart": "2026-12-01T08:00"},
    ],
)
def test_a_wrong_configuration_is_refused_before_anything_runs(
    project: Project, config: dict[str, str]
) -> None:
    project.deployment("qpu", "sfq.rest", **config)
    project.solve("solve", "qpu")
    assert project.run() == 1
    assert project.events() == []


def test_a_token_that_is_not_there_is_said_and_nothing_runs(project: Project) -> None:
    project.deployment("qpu", "sfq.rest", url="unix:/s", tokenFile="none.token")
    project.solve("solve", "qpu", f"touch {project.folder}/begun")
    assert project.run() == 1
    assert f"Deployment qpu: {project.folder}/none.token" in project.log
    assert not (project.folder / "begun").exists()
    assert shutil.which("sfq") is not None

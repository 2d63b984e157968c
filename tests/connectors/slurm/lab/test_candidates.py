"""Quantum candidates with a Slurm service among their targets, on the lab."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON
from sf_quantum.reporting import report
from tests.conftest import StartLab
from tests.lab import Lab
from tests.support import forking
from tests.support.candidate_runs import (
    bind,
    candidate,
    decisions,
    outcome,
    reasons,
    samples,
)
from tests.support.folders import EXAMPLES
from tests.support.forking import BIN
from tests.support.journals import collect, read
from tests.support.lab_conf import Options
from tests.support.service_process import QpuService
from tests.support.waiting import SECONDS

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

Until = Callable[[Callable[[], object], str], None]
EXAMPLE = EXAMPLES / "max-cut"
TARGETS: list[JSON] = [
    {"deployment": "cluster", "service": name} for name in ("quantum", "compute")
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[QpuService]:
    """The QPU of the cluster."""
    made = QpuService(tmp_path / "service", "--time-scale", "0")
    made.start()
    yield made
    made.kill()


@pytest.fixture
def cluster(
    project: Project, lab: Lab, service: QpuService, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project with the lab as its cluster."""
    return _on(lab, project, service, monkeypatch)


def _on(
    lab: Lab, project: Project, service: QpuService, monkeypatch: pytest.MonkeyPatch
) -> Project:
    for key, value in lab.environment.items():
        monkeypatch.setenv(key, value)
    _define(project.folder / "qrmi_config.json", "a", service.url)
    project.deployment(
        "cluster",
        "sfq.slurm",
        wraps="host",
        qrmiConfig="qrmi_config.json",
        services={
            "compute": {"partition": "compute"},
            "quantum": {"partition": "quantum", "gres": "qpu:1", "qpu": ["a"]},
        },
    )
    return project


def _define(file: Path, name: str, url: str) -> None:
    entry: JSON = {"name": name, "type": "sfq", "environment": {"SFQ_URL": url}}
    file.touch(0o600)
    file.write_text(json.dumps({"resources": [entry]}))


def _where(project: Project) -> list[str]:
    """The services on which the candidate completed, in order."""
    return [str(event["service"]) for event in project.jobs("loop/solve", "completed")]


def test_a_qpu_that_closes_and_opens_again(
    cluster: Project, service: QpuService, until: Until
) -> None:
    candidate(cluster, rounds=3)
    bind(cluster, {"/loop/solve": TARGETS}, budget={"qpuSeconds": 100})
    gates = cluster.folder / "gates"
    gates.mkdir()
    driver = cluster.start()

    def done(rounds: int) -> None:
        until(lambda: len(_where(cluster)) == rounds, f"round {rounds}")

    done(1)
    service.ask("POST", "/v1/device/close", {"message": "calibration"})
    (gates / "0").touch()
    done(2)
    service.ask("POST", "/v1/device/open", {})
    (gates / "1").touch()
    done(3)
    (gates / "2").touch()
    assert driver.wait(SECONDS) == 0, cluster.log[-3000:]
    assert outcome(cluster) == "completed"
    assert _where(cluster) == ["quantum", "compute", "quantum"]
    assert reasons(cluster) == [
        "cluster/quantum is free",
        "cluster/quantum is offline: the QPU is closed: calibration",
        "cluster/quantum is free",
    ]
    info = samples(cluster)["info"]
    assert isinstance(info, dict)
    assert info["qpu"] is not None
    # what budgets and estimates are made of
    told = [event for event in cluster.events() if event["event"] == "qpu"]
    assert len(told) == 2
    for event in told:
        keys = ("lease_seconds", "queued_seconds", "ran_seconds", "qpu_seconds")
        assert all(isinstance(event[key], float) for key in keys), event
    assert float(str(told[0]["qpu_seconds"])) > 0
    assert service.held() == []


@pytest.fixture
def small(start_lab: StartLab) -> Iterator[Lab]:
    """A lab whose nodes others may fill."""
    with start_lab(Options(nodes=2)) as lab:
        yield lab


def test_the_wait_for_nodes_is_predicted(
    small: Lab,
    project: Project,
    service: QpuService,
    monkeypatch: pytest.MonkeyPatch,
    until: Until,
) -> None:
    cluster = _on(small, project, service, monkeypatch)
    candidate(cluster, rounds=2)
    bind(cluster, {"/loop/solve": TARGETS}, prefer="earliest", forecast="plan")
    gates = cluster.folder / "gates"
    gates.mkdir()
    driver = cluster.start()
    until(lambda: len(_where(cluster)) == 1, "a round, which deploys the cluster")
    # on all nodes, for some minutes by their limit
    limits = ("--time=20", "--exclusive", "--array=1-4", "--partition=compute")
    small.submit(*limits, "--output=/dev/null", "--chdir=/", "--wrap", "sleep 1000")
    idle = ("sinfo", "--noheader", "--partition=compute", "--format=%C")
    until(lambda: small.output(*idle).split("/")[1] == "0", "busy nodes")
    (gates / "0").touch()
    until(lambda: len(_where(cluster)) == 2, "another round")
    (gates / "1").touch()
    assert driver.wait(SECONDS) == 0, cluster.log[-3000:]
    first, second = decisions(cluster)
    assert first["forecasts"] == {
        "cluster/compute": {"seconds": None, "why": "is not deployed yet", "jobs": 0}
    }
    told = second["forecasts"]
    assert isinstance(told, dict)
    predicted = told["cluster/compute"]
    assert isinstance(predicted, dict)
    assert predicted["why"] == ""
    # at least half of 20 minutes
    assert float(str(predicted["seconds"])) > 500
    assert predicted["jobs"] == 4
    assert _where(cluster) == ["quantum", "quantum"]
    assert "cluster/compute would end in" in str(second["reason"])


# what Slurm refuses or never starts, and what its partition has
REFUSED: dict[str, tuple[dict[str, JSON], str]] = {
    "gres": ({"gres": "qpu:11"}, "`gres: qpu:11` of service gres; partition quantum has gres qpu:1"),
    "feature": ({"constraint": "fast"}, "`constraint: fast` of service feature; partition quantum has no features"),
    "nodes": ({"nodes": "9"}, "`nodes: 9` of service nodes; partition quantum has 1 node"),
    "time": ({"partition": "short", "time": "00:05:00"}, "`time: 00:05:00` of service time; partition short has a time limit of 1:00"),
}  # fmt: skip


def test_what_slurm_refuses_is_named_and_no_failure_of_the_qpu(
    start_lab: StartLab,
    project: Project,
    service: QpuService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = "PartitionName=short Nodes=q1 MaxTime=1"
    with start_lab(Options(nodes=1, extra=(short,))) as lab:
        cluster = _on(lab, project, service, monkeypatch)
        services: dict[str, JSON] = {"compute": {"partition": "compute"}}
        for name, (options, _) in REFUSED.items():
            services[name] = {"partition": "quantum", "qpu": ["a"], **options}
        config: dict[str, JSON] = {
            "qrmiConfig": "qrmi_config.json",
            "pollingInterval": 1,
        }
        cluster.deployment(
            "cluster", "sfq.slurm", wraps="host", services=services, **config
        )
        candidate(cluster, rounds=1)
        targets: list[JSON] = [
            {"deployment": "cluster", "service": name} for name in (*REFUSED, "compute")
        ]
        bind(cluster, {"/loop/solve": targets})
        retries: JSON = {"max_retries": len(REFUSED) + 2}
        cluster.extra["failureManager"] = {"type": "default", "config": retries}
        assert cluster.run() == 0, cluster.log[-3000:]
        assert lab.output("squeue", "--noheader") == ""
    assert _where(cluster) == ["compute"]
    last = decisions(cluster)[-1]
    for _, right in REFUSED.values():
        assert right in str(last["reason"])
    assert "failed an earlier attempt" not in str(last["reason"])
    assert str(last["brief"]) == "refused by Slurm"
    (line,) = report.candidates(collect(cluster.events()))
    assert line.startswith("warning: ")
    assert line.endswith("(refused by Slurm); no result is from a QPU")


def test_a_lease_that_does_not_come_in_time(
    cluster: Project, service: QpuService
) -> None:
    candidate(cluster, rounds=1)
    # who has it is expected to give it back soon, and does not
    bind(cluster, {"/loop/solve": TARGETS}, maxWait=0.5, expectedSeconds=0.1)
    service.lease()
    assert cluster.run() == 0, cluster.log[-3000:]
    assert _where(cluster) == ["compute"]
    first, second = decisions(cluster)
    assert (first["quantum"], second["quantum"]) == (True, False)
    assert "did not start this job within 0.5 s" in str(second["reason"])
    assert service.held() == ["of the test"]


def test_a_qpu_that_closes_after_submission_is_left(
    cluster: Project, service: QpuService, until: Until
) -> None:
    begun = cluster.folder / "begun"
    # on the QPU's node it never comes to its QPU job
    waits = f'[ -z "${{QRMI_JOB_ID:-}}" ] || {{ touch {begun}; sleep 600; }}'
    candidate(cluster, rounds=1, script=f'{waits}\nexec sfq solve "$@"')
    bind(cluster, {"/loop/solve": TARGETS})
    driver = cluster.start()
    until(begun.exists, "the command under its lease")
    service.ask("POST", "/v1/device/close", {"message": "helium is low"})
    assert driver.wait(SECONDS) == 0, cluster.log[-3000:]
    assert _where(cluster) == ["compute"]
    assert outcome(cluster) == "completed"
    why = "QPU a is offline: the QPU is closed: helium is low"
    assert (
        f"cluster/quantum failed an earlier attempt of this job (sfq lease: {why}"
        in (reasons(cluster)[1])
    )
    assert service.held() == []


@pytest.mark.parametrize("closed", [False, True])
def test_the_examples_maximum_cut(
    closed: bool,
    tmp_path: Path,
    lab: Lab,
    service: QpuService,
) -> None:
    folder = tmp_path / "max-cut"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".streamflow"))
    _define(folder / "qrmi_config.json", "qpu", service.url)
    file = folder / "slurm.yml"
    text = file.read_text()
    file.write_text(text.replace("../../deployments/qrmi_config", "qrmi_config"))
    if closed:
        service.ask("POST", "/v1/device/close", {"message": "calibration"})
    path = f"{forking.stand_ins()}:{BIN}:{os.environ['PATH']}"
    environment = {**os.environ, **lab.environment, "PATH": path}
    for command in (["sfq", "check"], ["streamflow", "run", "--outdir", "out"]):
        forking.run([*command, file.name], folder, environment)
    cut = json.loads((folder / "out" / "cut.json").read_text())
    assert (cut["cut"], cut["edges"], cut["qpu"]) == (17, 20, "qpu")
    (row,) = collect(read(report.locate(file)))
    assert row.location.startswith("qpu" if closed else "cluster/quantum")


def test_what_slurm_never_has_is_not_tried_again(cluster: Project) -> None:
    services: JSON = {"compute": {"partition": "compute", "nodelist": "nowhere"}}
    cluster.deployment("cluster", "sfq.slurm", wraps="host", services=services)
    candidate(cluster, rounds=1)
    bind(cluster, {"/loop/solve": TARGETS[1:]})
    target: dict[str, JSON] = {"/loop/solve": TARGETS[1], "/": {"deployment": "host"}}
    cluster.extra["workflows"] = {
        "test": {
            "type": "cwl",
            "config": {"file": "main.cwl"},
            "bindings": [{"step": step, "target": one} for step, one in target.items()],
        }
    }
    cluster.extra.pop("bindingFilters")
    assert cluster.run() != 0
    failures = [one for one in cluster.events() if one["event"] == "failure"]
    assert [one["attempt"] for one in failures] == [1], cluster.log[-3000:]
    assert "see `nodelist: nowhere` of service compute" in cluster.log

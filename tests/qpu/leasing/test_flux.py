"""``sfq flux gate``: held jobs are released with their leases, whatever happens meanwhile."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sf_quantum.cli.batch import flux
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu.leasing.gating.flux import Flux
from sf_quantum.qpu.leasing.gating.gate import Gate
from sf_quantum.service.domain.jobs import Identity, Lease
from sf_quantum.service.http.auth import FixedIdentity
from tests.support import flux_instance
from tests.support.flux_instance import FluxInstance
from tests.support.folders import ROOT
from tests.support.gates import (
    kept_leases,
    kill_gates,
    leases,
    look_until_held,
    make_gate,
    running_gate,
)
from tests.support.site_daemons import QpuSite
from tests.support.waiting import SECONDS, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not flux_instance.is_installed(), reason=flux_instance.MISSING),
]

ADMIN = FixedIdentity(Identity("operator", admin=True))
KILLS = 10
LONGEST_LIFE_SECONDS = 4.0


class Site(QpuSite):
    """An instance, and the QPU that ``qrmi_config.json`` names."""

    def __init__(self, instance: FluxInstance) -> None:
        super().__init__(instance.folder, ADMIN)
        self.flux = instance

    def gate(self, *options: str) -> Gate:
        return make_gate(flux, Flux(), self.words("gate", *options))

    def running_gate(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return running_gate("flux", self.words("gate"))

    def submit(self, script: str, *options: str) -> str:
        held = ["--urgency=hold", "--setattr=sfq.qpu=qpu", *options]
        return self.flux.submit(script, *held)

    def output(self, job: str) -> str:
        self.flux.ended(job)
        return (self.folder / f"{job}.out").read_text()

    def is_held(self, job: str) -> bool:
        shown = self.flux.job(job)
        return (shown["state"], shown["urgency"]) == ("SCHED", 0)

    def cancel(self, *jobs: str) -> None:
        self.flux.output("cancel", *jobs)
        for job in jobs:
            self.flux.ended(job)

    def memo(self, job: str) -> str:
        shown = self.flux.job(job)["annotations"]
        assert isinstance(shown, dict)
        user = shown["user"]
        assert isinstance(user, dict)
        return str(user["sfq"])


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    # short paths: a socket's has at most 107 bytes
    with (
        tempfile.TemporaryDirectory(prefix="sfq-flux-") as folder,
        flux_instance.running(Path(folder)) as instance,
    ):
        yield Site(instance)


@pytest.fixture(autouse=True)
def _environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in site.flux.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("QRMI_JOB_ID", "QRMI_JOB_UID"):
        monkeypatch.setenv(name, "")
    yield
    site.flux.run("cancel", "--all")
    site.flux.output("queue", "idle")


def holders(found: list[Lease]) -> list[str]:
    return [str(lease.key).rpartition("-")[2] for lease in found]


def test_jobs_run_in_turn_each_with_its_lease(site: Site) -> None:
    with site.serving() as service, site.running_gate():
        script = f"{site.held_lease()} env"
        jobs = [site.submit(script) for _ in range(3)]
        for job in jobs:
            output = site.output(job)
            lease = next(one for one in leases(service) if str(one.key).endswith(job))
            assert f"qpu_QRMI_JOB_ACQUISITION_TOKEN={lease.id}" in output.splitlines()
            assert (lease.user, lease.job) == ("root", f"Flux job {job}")
        assert holders(leases(service)) == jobs
        until(lambda: not service.queue.leases.held, "no lease", SECONDS)


def test_bounds_of_the_attributes_are_those_of_the_lease(site: Site) -> None:
    with site.serving() as service:
        gate = site.gate()
        bounds = ["--setattr=sfq.qpu-seconds=1.5", "--setattr=sfq.qpu-shots=7"]
        job = site.submit("true", *bounds)
        look_until_held(gate, service)
        (lease,) = leases(service)
        assert (lease.max_qpu_seconds, lease.max_shots) == (1.5, 7)
        gate.poll()
        site.output(job)


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("sfq.qpu=other", "unknown QPU 'other' (known: qpu)"),
        (
            "sfq.shot=5",
            "unknown bound 'qpu-shot', did you mean 'qpu-shots'? (known: qpu-qubits, "
            "qpu-seconds, qpu-shots)",
        ),
        (
            "sfq.qpu-shots=many",
            "qpu-shots: expected a whole number of at least 1, not 'many'",
        ),
    ],
)
def test_a_wrong_attribute_is_reported_in_the_queue(
    site: Site, attribute: str, expected: str
) -> None:
    with site.serving() as service:
        job = site.submit("true", f"--setattr={attribute}")
        site.gate().poll()
        assert site.memo(job) == expected
        assert not leases(service)


@pytest.mark.parametrize(
    "value", ["[" * 300 + "]" * 300, '{"a":' * 900 + "1" + "}" * 900]
)
def test_nested_annotations_and_attributes_spare_other_jobs(
    site: Site, tmp_path: Path, value: str
) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text(f"[{value}]")
    with site.serving() as service:
        annotated = site.flux.submit("true", "--urgency=hold")
        site.flux.output("job", "memo", annotated, f"x={value}")
        wrong = site.submit("true", f"--setattr=^user.x={deep}")
        job = site.submit("true")
        gate = site.gate()
        look_until_held(gate, service)
        gate.poll()
        site.output(job)
        assert site.memo(wrong).startswith("unknown bound 'qpu-unreadable_jobspec'")
        site.flux.output("cancel", annotated, wrong)


@pytest.mark.parametrize(
    "attribute",
    [
        "sfq.qpu=qpu",
        "system.sfq.qpu=qpu",
        ".system.sfq.qpu=qpu",
        "attributes.system.sfq.qpu=qpu",
        'sfq={"qpu": "qpu"}',
        "^sfq=sfq.json",
        "^attributes.system.sfq=sfq.json",
    ],
)
def test_a_submission_plugin_holds_jobs_that_name_a_qpu(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attribute: str
) -> None:
    monkeypatch.setenv("FLUX_CLI_PLUGINPATH", str(ROOT / "deployments" / "flux"))
    monkeypatch.chdir(tmp_path)
    Path("sfq.json").write_text('{"qpu": "qpu"}')
    job = site.flux.submit("true", f"--setattr={attribute}")
    until(lambda: site.is_held(job), "it is held", SECONDS)
    assert Flux().jobs()[job].request == "qpu=qpu"
    site.cancel(job)


def test_a_submission_plugin_holds_no_other_jobs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUX_CLI_PLUGINPATH", str(ROOT / "deployments" / "flux"))
    site.flux.ended(site.flux.submit("true", "--setattr=sfq.other=qpu"))


def test_what_cannot_start_yet_asks_for_nothing(site: Site) -> None:
    with site.serving() as service:
        first = site.submit("true", "--begin-time=+1h")
        second = site.submit("true", f"--dependency=afterok:{first}")
        gate = site.gate()
        gate.poll()
        assert not gate._requests
        assert not leases(service)
        site.cancel(first)
        site.flux.ended(second)


def test_a_batch_script_and_its_jobs_run_with_its_lease(site: Site) -> None:
    script = site.folder / "batch.sh"
    lease = f"{site.held_lease()} echo leased"
    script.write_text(f"#!/bin/sh\n{lease}\nflux run {lease}\n")
    script.chmod(0o755)
    held = ("--urgency=hold", "--setattr=sfq.qpu=qpu", "-N1")
    with site.serving(), site.running_gate():
        out = f"--output={site.folder}/{{{{id}}}}.out"
        job = site.flux.output("batch", out, *held, str(script))
        assert site.output(job).splitlines().count("leased") == 2


def test_a_job_that_is_cancelled_when_granted_loses_its_lease(site: Site) -> None:
    with site.serving() as service:
        gate, job = site.gate(), site.submit("true")
        look_until_held(gate, service)
        site.cancel(job)
        gate.poll()
        gate.poll()
        assert [lease.reason for lease in leases(service)] == ["released"]


def test_a_job_that_is_released_too_early_has_no_lease(site: Site) -> None:
    with site.serving() as service:
        service.acquire()
        gate = site.gate()
        job = site.submit(f"{site.held_lease()} echo ran")
        gate.poll()
        site.flux.output("job", "urgency", job, "default")
        *_, line = site.output(job).splitlines()
        assert line == (
            f"sfq lease: Flux job {job} has no lease: was it released before its lease "
            "was granted?"
        )
        gate.poll()
        until(lambda: not service.queue.leases.waiting, "no wait", SECONDS)
        assert len(leases(service)) == 1


def test_a_job_without_nodes_is_held_again_for_the_next(site: Site) -> None:
    with site.serving() as service:
        gate = site.gate("--hold-seconds", "0")
        busy = site.flux.submit("sleep 600", f"-N{flux_instance.BROKERS}", "-x")
        until(lambda: site.flux.state(busy) == "RUN", "it runs", SECONDS)
        first = site.submit("true")
        look_until_held(gate, service)
        second = site.submit("true")
        gate.poll()
        until(lambda: service.queue.leases.waiting == 1, "both", SECONDS)
        gate.poll()
        assert site.is_held(first)
        assert "its lease had no nodes" in site.memo(first)
        site.cancel(first, busy)
        with site.running_gate():
            site.output(second)
        assert holders(leases(service)) == [first, second]


def test_a_job_that_runs_is_not_held(site: Site) -> None:
    job = site.flux.submit("sleep 600")
    until(lambda: site.flux.state(job) == "RUN", "it runs", SECONDS)
    with pytest.raises(QpuError, match="once resources are allocated"):
        Flux().hold(job)
    site.cancel(job)


def test_leases_of_another_instance_are_left_alone(site: Site) -> None:
    with site.serving(vqpus=2) as service:
        job = site.submit("true")
        gate = site.gate()
        body: dict[str, JSON] = {"key": "flux-other-f123", "user": "root"}
        other = json.loads(service.ask("POST", "/v1/leases", body).body)["id"]
        for _ in range(3):
            gate.poll()
        until(lambda: len(leases(service)) == 2, "its lease", SECONDS)
        gate.poll()
        site.output(job)
        assert other in {lease.id for lease in service.queue.leases.held}


def test_while_the_service_is_away_jobs_stay_held(site: Site) -> None:
    with site.serving() as service:
        gate, job = site.gate(), site.submit("true")
        look_until_held(gate, service)
    with pytest.raises(QpuError):
        gate.poll()
    assert site.is_held(job)
    # the service that is back has forgotten the lease
    with site.serving() as service, site.running_gate():
        site.output(job)
        assert len(leases(service)) == 1


def test_killed_at_any_moment_it_loses_no_job_and_no_lease(site: Site) -> None:
    with site.serving() as service:
        jobs = [site.submit("sleep 1") for _ in range(5)]
        kill_gates(site.running_gate, KILLS, LONGEST_LIFE_SECONDS)
        with site.running_gate():
            assert {site.flux.ended(job) for job in jobs} == {"COMPLETED"}
            until(lambda: not service.queue.leases.held, "no lease", SECONDS)
        # One that is granted just when the gate is killed goes back at once.
        kept = kept_leases(service)
        assert holders(kept) == jobs
    for job, lease in zip(jobs, kept, strict=True):
        shown = site.flux.job(job)
        assert lease.closed is not None
        started, ended = float(str(shown["t_run"])), float(str(shown["t_cleanup"]))
        assert lease.opened <= started <= ended <= lease.closed


def test_an_instance_that_is_killed_keeps_its_held_jobs(site: Site) -> None:
    """Last, since its brokers are others afterwards."""
    with site.serving() as service:
        gate, job = site.gate(), site.submit(f"{site.held_lease()} echo ran")
        look_until_held(gate, service)
        site.flux.output("kvs", "sync")
        site.flux.kill()
        with pytest.raises(QpuError):
            gate.poll()
        site.flux.start()
        with site.running_gate():
            assert site.output(job).splitlines()[-1] == "ran"
            until(lambda: not service.queue.leases.held, "no lease", SECONDS)
        assert holders(leases(service)) == [job]

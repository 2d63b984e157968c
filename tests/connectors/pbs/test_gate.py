"""``sfq pbs gate`` on a real OpenPBS: jobs start with their leases, whatever happens meanwhile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sf_quantum.cli.batch import pbs
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu.leasing.gating.gate import Gate
from sf_quantum.qpu.leasing.gating.pbs import Pbs
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import FixedIdentity
from tests.support import pbs_lab
from tests.support.gates import (
    kept_leases,
    kill_gates,
    leases,
    look_until_held,
    make_gate,
    running_gate,
)
from tests.support.pbs_lab import USER, PbsError, PbsLab
from tests.support.site_daemons import QpuSite
from tests.support.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(pbs_lab.missing() is not None, reason=str(pbs_lab.missing())),
]

ADMIN = FixedIdentity(Identity("root", admin=True))
KILLS = 10
LONGEST_LIFE_SECONDS = 3.0


class Site(QpuSite):
    """A lab, and the QPU that ``qrmi_config.json`` names."""

    def __init__(self, lab: PbsLab, folder: Path) -> None:
        super().__init__(folder, ADMIN)
        self.lab = lab

    def gate(self, *options: str) -> Gate:
        return make_gate(pbs, Pbs(), self.words("gate", *options))

    def running_gate(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return running_gate("pbs", self.words("gate"))

    def submit(self, script: str, *options: str, user: str = "") -> str:
        named = ("-l", "qpu=qpu", "-N", "job", "-S", "/bin/sh", "-j", "oe")
        output = ("-o", f"{self.folder}/")
        words = (*named, *output, *options, "--", "/bin/sh", "-c", script)
        return self.lab.submit(*words, user=user)

    def has_ended(self, job: str) -> bool:
        return self.lab.job(job)["job_state"] == "F"

    def output(self, job: str) -> str:
        until(lambda: self.has_ended(job), f"{job} ends")
        server = self.lab.name
        return (self.folder / f"{job}.{server}.OU").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pbs_lab.running() as lab:
        yield Site(lab, tmp_path_factory.mktemp("gate"))


@pytest.fixture(autouse=True)
def _environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {**os.environ, **site.lab.environment}.items():
        monkeypatch.setenv(name, value)
    yield
    if jobs := site.lab.output("qselect").split():
        site.lab.run("qdel", "-W", "force", *jobs)


def keys(site: Site, *jobs: str) -> list[str]:
    return [f"pbs-{site.lab.name}-{job}" for job in jobs]


def test_jobs_run_in_turn_each_with_its_lease(site: Site) -> None:
    with site.serving() as service, site.running_gate():
        script = f"{site.held_lease()} env"
        jobs = [site.submit(script) for _ in range(3)]
        for job, output in [(job, site.output(job)) for job in jobs]:
            (lease,) = (one for one in leases(service) if [one.key] == keys(site, job))
            assert lease.user == "root"
            token = f"qpu_QRMI_JOB_ACQUISITION_TOKEN={lease.id}"
            assert token in output.splitlines()
        assert [one.key for one in leases(service)] == keys(site, *jobs)
        until(lambda: not service.queue.leases.held, "no lease")


def test_the_hook_holds_only_jobs_that_name_a_qpu(site: Site) -> None:
    other = site.lab.submit("-o", "/dev/null", "-j", "oe", "--", "/bin/true")
    job = site.submit("true", user=USER)
    until(lambda: site.has_ended(other), "the other ends")
    assert site.lab.job(job)["Hold_Types"] == "o"


def test_a_user_cannot_release_a_job(site: Site) -> None:
    job = site.submit("true", "-h", user=USER)
    with pytest.raises(PbsError, match="Unauthorized"):
        site.lab.output("qrls", "-h", "o", job, user=USER)
    assert site.lab.job(job)["Hold_Types"] == "ou"
    site.lab.output("qrls", "-h", "u", job, user=USER)
    assert site.lab.job(job)["Hold_Types"] == "o"


def test_the_hook_keeps_a_held_job_from_nodes(site: Site) -> None:
    job = site.submit("true")
    with pytest.raises(PbsError, match="the job waits for a lease of its QPU"):
        site.lab.output("qrun", "-H", site.lab.name, job)
    assert site.lab.job(job)["job_state"] == "H"


def test_the_lease_is_that_of_the_jobs_user_with_bounds(site: Site) -> None:
    with site.serving() as service:
        bounds = "qpu_seconds=1.5,qpu_shots=7"
        site.submit("true", "-l", bounds, user=USER)
        look_until_held(site.gate(), service)
        (lease,) = leases(service)
        assert (lease.user, lease.max_qpu_seconds, lease.max_shots) == (USER, 1.5, 7)


def test_a_wrong_request_is_the_comment_of_the_job(site: Site) -> None:
    with site.serving() as service:
        job = site.submit("true", "-l", "qpu=other")
        site.gate().poll()
        comment = str(site.lab.job(job)["comment"])
        assert comment.strip() == "unknown QPU 'other' (known: qpu)"
        assert not leases(service)


def test_the_variables_of_jobs_are_not_read(site: Site) -> None:
    forged = 'a":1},"euser":"victim"},"777.s":{"Z":{"b'
    for name, value in ((forged, "1"), ("X", ".5"), ("Y", "nan"), ("Z", '"[{')):
        command = ["qsub", "-V", "-l", "qpu=qpu", "-h", "--", "/bin/true"]
        variables = {**os.environ, name: value}
        subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
    jobs = Pbs().jobs()
    assert {job.user for job in jobs.values()} == {"root"}
    assert [job.request for job in jobs.values()] == ["qpu=qpu"] * 4


def test_the_qpu_of_a_job_cannot_be_changed(site: Site) -> None:
    gated, plain = site.submit("true"), site.lab.submit("-h", "--", "/bin/true")
    for job, qpu in ((gated, "other"), (gated, ""), (plain, "qpu")):
        refused = site.lab.run("qalter", "-l", f"qpu={qpu}", job)
        assert "submit it again with -l qpu=NAME" in refused.stderr
    site.lab.output("qalter", "-l", "qpu=qpu", "-l", "qpu_shots=7", gated)
    assert site.lab.job(gated)["Hold_Types"] == "o"


def test_what_others_hold_or_cannot_start_asks_for_nothing(site: Site) -> None:
    with site.serving() as service:
        first = site.submit("true", "-a", "12312359")
        site.submit("true", "-W", f"depend=afterok:{first}")
        site.submit("true", "-h")
        site.lab.output("qhold", "-h", "s", site.submit("true"))
        gate = site.gate()
        gate.poll()
        assert not gate._requests
        assert not leases(service)


def test_a_job_that_is_deleted_when_granted_loses_its_lease(site: Site) -> None:
    with site.serving() as service:
        gate, job = site.gate(), site.submit("true")
        look_until_held(gate, service)
        site.lab.output("qdel", job)
        gate.poll()
        gate.poll()
        assert [lease.reason for lease in leases(service)] == ["released"]


def test_a_job_that_an_operator_releases_has_no_lease(site: Site) -> None:
    with site.serving() as service:
        service.acquire()
        job = site.submit(f"{site.held_lease()} echo ran")
        site.lab.output("qrls", "-h", "o", job)
        assert site.output(job).strip() == (
            f"sfq lease: PBS job {job} has no lease: was it released before its lease "
            "was granted?"
        )
        assert len(leases(service)) == 1


def test_a_job_without_nodes_is_held_again_for_the_next(site: Site) -> None:
    with site.serving() as service:
        gate = site.gate("--hold-seconds", "0")
        first = site.submit("true", "-l", "select=1:ncpus=99")
        look_until_held(gate, service)
        second = site.submit("true")
        gate.poll()
        until(lambda: service.queue.leases.waiting == 1, "both")
        gate.poll()
        assert site.lab.job(first)["Hold_Types"] == "o"
        site.lab.output("qdel", first)
        with site.running_gate():
            site.output(second)
        assert [lease.key for lease in leases(service)] == keys(site, first, second)


def test_a_job_that_runs_is_not_held(site: Site) -> None:
    with site.serving():
        gate, job = site.gate(), site.submit("sleep 60")
        site.lab.output("qrls", "-h", "o", job)
        until(lambda: site.lab.job(job)["job_state"] == "R", "it runs")
        with pytest.raises(QpuError, match="has started"):
            gate._scheduler.hold(job)
        assert site.lab.job(job)["Hold_Types"] == "n"


def test_the_tasks_of_an_array_share_a_lease(site: Site) -> None:
    with site.serving() as service, site.running_gate():
        tokens = site.folder / "tokens"
        script = f"{site.held_lease()} sh -c 'env | grep TOKEN >>{tokens}'"
        job = site.submit(script, "-J", "1-3")
        until(lambda: site.has_ended(job), "three tasks")
        (lease,) = leases(service)
        assert tokens.read_text().split() == 3 * [
            f"qpu_QRMI_JOB_ACQUISITION_TOKEN={lease.id}"
        ]
        until(lambda: not service.queue.leases.held, "its end")


def test_a_job_that_is_run_again_keeps_its_lease(site: Site) -> None:
    with site.serving() as service, site.running_gate():
        first = site.folder / "first"
        script = f"[ -e {first} ] || {{ touch {first}; sleep 60; }}; {site.held_lease()} true"
        job = site.submit(script)
        until(first.exists, "it runs")
        site.lab.output("qrerun", job)
        until(lambda: site.has_ended(job), "it ends")
        assert site.lab.job(job)["Exit_status"] == 0
        assert len(leases(service)) == 1


def test_while_the_service_is_away_jobs_stay_held(site: Site) -> None:
    with site.serving() as service:
        gate, job = site.gate(), site.submit("true")
        look_until_held(gate, service)
    with pytest.raises(QpuError):
        gate.poll()
    assert site.lab.job(job)["job_state"] == "H"
    # The service that is back has forgotten the lease.
    with site.serving() as service, site.running_gate():
        site.output(job)
        assert len(leases(service)) == 1


def test_while_the_server_is_away_leases_are_kept(site: Site) -> None:
    with site.serving() as service:
        gate, job = site.gate(), site.submit("true")
        look_until_held(gate, service)
        site.lab.kill("pbs_server")
        for _ in range(3):
            with pytest.raises(QpuError, match=r"^PBS: no server"):
                gate.poll()
        assert len(service.queue.leases.held) == 1
        site.lab.start("pbs_server")
        site.lab.wait_until_it_answers()
        with site.running_gate():
            until(lambda: site.has_ended(job), "it ends")


def test_killed_at_any_moment_it_loses_no_job_and_no_lease(site: Site) -> None:
    with site.serving() as service:
        jobs = [site.submit("sleep 1") for _ in range(4)]
        kill_gates(site.running_gate, KILLS, LONGEST_LIFE_SECONDS)
        with site.running_gate():
            for job in jobs:
                site.output(job)
            until(lambda: not service.queue.leases.held, "no lease")
        records = [site.lab.job(job) for job in jobs]
        assert [(one["Exit_status"], one["run_count"]) for one in records] == 4 * [
            (0, 1)
        ]
        # One that is granted just when the gate is killed goes back immediately.
        kept = [lease.key for lease in kept_leases(service)]
        assert kept == keys(site, *jobs)


def test_a_request_in_another_name_releases_no_job(site: Site) -> None:
    with site.serving(vqpus=2) as service:
        gate, job = site.gate(), site.submit("true")
        body: dict[str, JSON] = {"key": keys(site, job)[0], "user": "eve"}
        service.ask("POST", "/v1/leases", body)
        gate.poll()
        assert site.lab.job(job)["job_state"] == "H"
        until(lambda: len(leases(service)) == 2, "its lease")
        gate.poll()
        until(lambda: site.has_ended(job), "it ends")

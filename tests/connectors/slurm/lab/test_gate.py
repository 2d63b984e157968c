"""``sfq slurm gate``: held jobs are released with their leases, whatever happens meanwhile."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from operator import attrgetter

import pytest

from sf_quantum.cli.batch import slurm
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu.leasing.burst import controller
from sf_quantum.qpu.leasing.gating.gate import Gate
from sf_quantum.qpu.leasing.gating.slurm import Slurm
from tests.conftest import StartLab
from tests.support.folders import ROOT
from tests.support.gates import (
    kept_leases,
    kill_gates,
    leases,
    look_until_held,
    make_gate,
    running_gate,
)
from tests.support.lab_conf import Options
from tests.support.service_process import SFQ
from tests.support.site_daemons import Site
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.process

FILES = ROOT / "deployments" / "slurm"
KILLS = 20
LONGEST_LIFE_SECONDS = 3.0


class GateSite(Site):
    """A site whose jobs name the QPU in their comments."""

    def gate(self, *options: str) -> Gate:
        return make_gate(slurm, Slurm(), self.words("gate", *options))

    def running_gate(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return running_gate("slurm", self.words("gate"))

    def submit(self, script: str, *options: str) -> int:
        return super().submit(script, "--comment=qpu=qpu", *options)


@pytest.fixture(scope="module")
def site(
    start_lab: StartLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GateSite]:
    folder = tmp_path_factory.mktemp("gate")
    prolog = folder / "task_prolog.sh"
    text = (FILES / prolog.name).read_text().replace("/opt/sfq/bin/sfq", SFQ[0])
    prolog.write_text(text.replace("/etc/slurm", str(folder)))
    prolog.chmod(0o755)
    options = Options(nodes=1, qnodes=1, cpus=16, extra=(f"TaskProlog={prolog}",))
    with start_lab(options) as lab:
        shutil.copy(FILES / "job_submit_gate.lua", lab.folder / "job_submit.lua")
        with lab.conf.open("a") as conf:
            conf.write("JobSubmitPlugins=lua\n")
        lab.output("scontrol", "reconfigure")
        yield GateSite(lab, folder)


@pytest.fixture(autouse=True)
def _environment(site: GateSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with site.environment(monkeypatch):
        yield


def test_jobs_run_in_turn_each_with_its_lease(site: GateSite) -> None:
    with site.serving() as service, site.running_gate():
        jobs = [site.submit("env", "--hold") for _ in range(3)]
        for job in jobs:
            output = site.output(job)
            lease = next(one for one in leases(service) if one.slurm_job_id == str(job))
            # by the TaskProlog
            assert f"qpu_QRMI_JOB_ACQUISITION_TOKEN={lease.id}" in output.splitlines()
        assert [one.slurm_job_id for one in leases(service)] == [*map(str, jobs)]
        site.lab.wait_for(lambda: not service.queue.leases.held, "no lease", SECONDS)


def test_job_submit_holds_jobs_whose_comment_names_a_qpu(site: GateSite) -> None:
    job, other = site.submit("true"), site.submit("true", "--comment=no-qpu=1")
    assert site.reason(job) == "JobHeldUser"
    site.output(other)
    site.lab.output("scancel", str(job))


def test_bounds_in_the_comment_are_those_of_the_lease(site: GateSite) -> None:
    with site.serving() as service:
        gate, words = site.gate(), "qpu=qpu qpu-seconds=1.5 qpu-shots=7"
        job = site.submit("true", f"--comment={words}")
        look_until_held(gate, service)
        (lease,) = leases(service)
        assert (lease.max_qpu_seconds, lease.max_shots) == (1.5, 7)
        gate.poll()
        site.output(job)


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("qpu=other", "unknown QPU 'other' (known: qpu)"),
        (
            "qpu=qpu qpu-shots=many",
            "qpu-shots: expected a whole number of at least 1, not 'many'",
        ),
    ],
)
def test_a_wrong_comment_is_reported_in_the_queue(
    site: GateSite, comment: str, expected: str
) -> None:
    with site.serving() as service:
        job = site.submit("true", f"--comment={comment}")
        site.gate().poll()
        shown = site.lab.output("scontrol", "show", "job", str(job))
        site.lab.output("scancel", str(job))
        assert f"AdminComment={expected}" in shown
        assert not leases(service)


def test_what_others_hold_or_cannot_start_asks_for_nothing(site: GateSite) -> None:
    with site.serving() as service:
        jobs = [site.submit("true", "--begin=now+1hour"), site.submit("true")]
        jobs.append(site.submit("true", f"--dependency=afterok:{jobs[0]}"))
        site.lab.output("scontrol", "hold", str(jobs[1]))
        gate = site.gate()
        gate.poll()
        assert not gate._requests
        assert not leases(service)
        site.lab.output("scancel", *map(str, jobs))


def test_a_job_that_is_cancelled_when_granted_loses_its_lease(site: GateSite) -> None:
    with site.serving() as service:
        gate, job = site.gate(), site.submit("true")
        look_until_held(gate, service)
        site.lab.output("scancel", str(job))
        gate.poll()
        gate.poll()
        assert [lease.reason for lease in leases(service)] == ["released"]
        assert site.lab.state(job) == "CANCELLED"


def test_a_job_that_is_released_too_early_has_no_lease(site: GateSite) -> None:
    with site.serving() as service:
        service.acquire()
        gate = site.gate()
        job = site.submit(f"{site.held_lease()} echo ran")
        gate.poll()
        site.lab.output("scontrol", "release", str(job))
        *_, line = site.output(job).splitlines()
        assert line == (
            f"sfq lease: Slurm job {job} has no lease: was it released before its lease "
            "was granted?"
        )
        gate.poll()
        site.lab.wait_for(lambda: not service.queue.leases.waiting, "no wait", SECONDS)
        assert len(leases(service)) == 1


def test_the_lease_of_another_user_releases_no_job(site: GateSite) -> None:
    with site.serving(vqpus=2) as service:
        gate, job = site.gate(), site.submit("true")
        key = gate._scheduler.name(str(job), controller.gated_jobs()[job].submitted).key
        body: dict[str, JSON] = {"key": key, "slurm_job_id": str(job)}
        service.ask(
            "POST", "/v1/leases", {**body, "slurm_cluster": "lab", "user": "eve"}
        )
        gate.poll()
        assert site.reason(job) == "JobHeldUser"
        site.lab.wait_for(lambda: len(leases(service)) == 2, "its lease", SECONDS)
        gate.poll()
        site.output(job)


def test_a_job_without_nodes_is_held_again_for_the_next(site: GateSite) -> None:
    with site.serving() as service:
        gate = site.gate("--hold-seconds", "0")
        first = site.submit("true", "--exclude=q1")  # the partition's only node
        look_until_held(gate, service)
        second = site.submit("true")
        gate.poll()
        site.lab.wait_for(lambda: service.queue.leases.waiting == 1, "both", SECONDS)
        gate.poll()
        assert site.reason(first) == "JobHeldUser"
        site.lab.output("scancel", str(first))
        with site.running_gate():
            site.output(second)
        holders = [lease.slurm_job_id for lease in leases(service)]
        assert holders == [str(first), str(second)]


def test_a_job_that_runs_is_not_held(site: GateSite) -> None:
    job = site.lab.submit("--output=/dev/null", "--wrap", "sleep 60")
    site.lab.wait_for(lambda: site.lab.state(job) == "RUNNING", "it runs", SECONDS)
    for action in ("hold", "uhold"):
        with pytest.raises(QpuError, match="has started"):
            controller.hold(str(job), action)
    shown = site.lab.output("scontrol", "show", "job", str(job))
    site.lab.output("scancel", str(job))
    assert "Priority=0" not in shown


def test_a_job_with_the_id_of_a_forgotten_one_has_a_new_lease(site: GateSite) -> None:
    script = f"{site.held_lease()} sh -c 'env | grep TOKEN'"
    with site.serving() as service, site.running_gate():
        with site.lab.forgetting():
            forgotten = site.submit(script)
            tokens = {site.output(forgotten)}
            leased = service.queue.leases.held
        job = site.submit(script)
        assert job == forgotten
        tokens.add(site.output(job))
    assert len(tokens) == 2, leased


def test_a_job_that_is_queued_again_keeps_its_lease(site: GateSite) -> None:
    with site.serving() as service:
        gate = site.gate()
        job = site.submit(f"{site.held_lease()} sleep 60", "--requeue")
        look_until_held(gate, service)
        gate.poll()
        site.lab.wait_for(lambda: site.lab.state(job) == "RUNNING", "it runs", SECONDS)
        submitted = controller.gated_jobs()[job].submitted
        site.lab.output("scontrol", "requeue", str(job))
        assert controller.gated_jobs()[job].submitted == "" != submitted
        gate.poll()
        (lease,) = service.queue.leases.held
        assert lease.key == f"slurm-lab-{job}.{submitted}"
        site.lab.output("scancel", str(job))


def test_an_array_is_held_though_some_of_its_tasks_have_ended(site: GateSite) -> None:
    job = site.submit("true", "--array=0-1")
    site.lab.output("scontrol", "hold", f"{job}_1")
    site.lab.output("scontrol", "release", f"{job}_0")
    ended = ("squeue", "-h", "-r", "-j", str(job), "-o", "%K")
    site.lab.wait_for(lambda: site.lab.output(*ended) == "1", "a task ends", SECONDS)
    controller.hold(str(job), "uhold")
    assert site.reason(job) == "JobHeldUser"
    site.lab.output("scancel", str(job))


def test_an_administrators_hold_ends_the_lease_and_lasts(site: GateSite) -> None:
    with site.serving() as service:
        gate = site.gate("--hold-seconds", "0")
        job = site.submit("true", "--exclude=q1")  # the partition's only node
        look_until_held(gate, service)
        gate.poll()
        site.lab.output("scontrol", "hold", str(job))
        for _ in range(3):
            gate.poll()
        assert site.reason(job) == "JobHeldAdmin"
        assert [lease.reason for lease in leases(service)] == ["released"]
        site.lab.output("scancel", str(job))


def test_an_administrators_hold_of_a_running_job_leaves_its_lease(
    site: GateSite,
) -> None:
    with site.serving() as service:
        gate, job = site.gate(), site.submit("sleep 60")
        look_until_held(gate, service)
        gate.poll()
        site.lab.wait_for(lambda: site.lab.state(job) == "RUNNING", "it runs", SECONDS)
        site.lab.output("scontrol", "hold", str(job))
        for _ in range(3):
            gate.poll()
        assert [lease.reason for lease in leases(service)] == [None]
        site.lab.output("scancel", str(job))


def test_a_comment_cannot_pass_for_a_row_of_another_job(site: GateSite) -> None:
    with site.serving() as service:
        gate, job = site.gate(), site.submit("sleep 60")
        look_until_held(gate, service)
        gate.poll()
        site.lab.wait_for(lambda: site.lab.state(job) == "RUNNING", "it runs", SECONDS)
        listed = controller.gated_jobs()[job]
        forged = f"qpu=none\n{job}|RUNNING|None|0|(null)|{listed.user}|1|0|qpu=qpu"
        other = site.submit("true", "--hold", f"--comment={forged}")
        assert controller.gated_jobs()[job] == listed
        assert controller.gated_jobs()[other].comment == forged
        gate.poll()
        assert [lease.reason for lease in leases(service)] == [None]
        site.lab.output("scancel", str(job), str(other))


def test_variables_of_users_hide_no_job(
    site: GateSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.submit("true", "--hold")
    with monkeypatch.context() as patch:
        for name, value in {
            "SQUEUE_STATES": "COMPLETED",
            "SQUEUE_USERS": "nobody",
            "SQUEUE_PARTITION": "compute",
            "SQUEUE_FORMAT2": "jobid",
            "SLURM_CLUSTERS": "elsewhere",
            "SLURM_TIME_FORMAT": "relative",
        }.items():
            patch.setenv(name, value)
        submitted = controller.gated_jobs()[job].submitted
        assert submitted.isdecimal()
        assert controller.details(job).submitted == submitted
    site.lab.output("scancel", str(job))


def test_the_tasks_of_an_array_share_a_lease(site: GateSite) -> None:
    with site.serving() as service, site.running_gate():
        script = f"{site.held_lease()} sh -c 'env | grep TOKEN >>{site.folder}/tokens'"
        site.submit(script, "--array=1-3")
        tokens = site.folder / "tokens"
        site.lab.wait_for(
            lambda: tokens.exists() and len(tokens.read_text().split()) == 3,
            "three tasks",
            SECONDS,
        )
        (lease,) = leases(service)
        assert {*tokens.read_text().split()} == {
            f"qpu_QRMI_JOB_ACQUISITION_TOKEN={lease.id}"
        }
        site.lab.wait_for(lambda: not service.queue.leases.held, "its end", SECONDS)


def test_while_the_service_is_away_jobs_stay_held(site: GateSite) -> None:
    with site.serving() as service:
        gate, job = site.gate(), site.submit("true")
        look_until_held(gate, service)
    with pytest.raises(QpuError):
        gate.poll()
    assert site.reason(job) == "JobHeldUser"
    # the service that is back has forgotten the lease
    with site.serving() as service, site.running_gate():
        site.output(job)
        assert len(leases(service)) == 1


def test_killed_at_any_moment_it_loses_no_job_and_no_lease(site: GateSite) -> None:
    with site.serving() as service:
        jobs = [site.submit("sleep 1") for _ in range(6)]
        kill_gates(site.running_gate, KILLS, LONGEST_LIFE_SECONDS)
        with site.running_gate():
            for job in jobs:
                site.output(job)
                assert site.lab.state(job) == "COMPLETED"
            site.lab.wait_for(
                lambda: not service.queue.leases.held, "no lease", SECONDS
            )
        # One that is granted just when the gate is killed goes back at once.
        kept = kept_leases(service)
        assert [lease.slurm_job_id for lease in kept] == [*map(str, jobs)]
    # Slurm's own record, in whole seconds: none was started twice, or without its lease
    record = sorted(
        (done for done in site.lab.jobcomp() if done.id in jobs), key=attrgetter("id")
    )
    assert [done.id for done in record] == jobs
    for done, lease in zip(record, kept, strict=True):
        assert lease.closed is not None
        assert int(lease.opened) <= done.started <= done.ended <= lease.closed


def test_a_job_that_has_ended_cannot_be_held(site: GateSite) -> None:
    job = site.submit("true", "--comment=none")
    site.output(job)
    with pytest.raises(QpuError, match=r"has started|already finished|Invalid job id"):
        controller.hold(str(job), "uhold")

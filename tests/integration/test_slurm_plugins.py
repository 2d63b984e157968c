"""A site's plugins for Slurm: any job with ``--gres=qpu`` waits until it has a lease."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sf_quantum.files import JSON, listing
from sf_quantum.net.transport import Client
from sf_quantum.service.domain.jobs import Identity, Lease
from sf_quantum.service.http.auth import FixedIdentity
from tests import lab_site
from tests.lab import Lab, LabError, shared
from tests.lab_conf import Options
from tests.lab_supervisor import SYSTEM_PATH
from tests.service import RunningService, example_bqm, running_service
from tests.waiting import SECONDS, until

# root has no burst buffers
USER = "daemon" if os.getuid() == 0 else getpass.getuser()
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
SLURM = FixedIdentity(Identity("slurm", admin=True))
# one for each test, since they share the lab
QPUS = "first waits closed cancelled killed again lost array together srun large account".split()


class Site:
    """The lab, and a QPU's service behind each of its QPUs that is in use.

    :param folder: which the user of the jobs may write to
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder

    @contextmanager
    def serving(self, qpu: str, vqpus: int = 1) -> Iterator[RunningService]:
        """Run the service of a QPU."""
        with running_service(authenticate=SLURM, vqpus=vqpus) as service:
            link = socket(self.lab.folder, qpu)
            link.symlink_to(service.url.removeprefix("unix:"))
            try:
                yield service
                self._comes_to_none(qpu, service)
            finally:
                link.unlink()

    def _comes_to_none(self, qpu: str, service: RunningService) -> None:
        """Wait until nobody has or wants a lease, and Slurm has nothing to give back.

        Slurm 22.05 may stop what gives back for a job that is cancelled while it waits.
        """
        leases, pool = service.queue.leases, f"Pool={qpu} "
        self.lab.wait_for(
            lambda: not (leases.held or leases.waiting), "no lease", SECONDS
        )
        self.lab.wait_for(
            lambda: qpu == "cancelled"
            or pool not in self.lab.output("scontrol", "show", "burst"),
            f"no burst buffer of {qpu}",
            SECONDS,
        )

    def submit(self, qpu: str, script: str, *options: str) -> int:
        """Submit a job of the user's."""
        words = ("sbatch", "--parsable", *_asking(qpu), *options, "--wrap", script)
        return int(self.as_user(*words))

    def as_user(self, *command: str) -> str:
        """Run a command as the user of the jobs, who reads a configuration of his own.

        :raises LabError: if it fails, with what it says
        """
        if os.getuid() == 0:
            ids = ("--reuid", USER, "--regid", USER, "--clear-groups")
            command = ("setpriv", *ids, *command)
        environment = {"SLURM_CONF": f"{self.folder}/slurm.conf"}
        words = [f"{key}={value}" for key, value in environment.items()]
        return self.lab.output("env", "-C", str(self.folder), *words, *command)

    def output(self, job: int) -> str:
        """What a job has printed, which has ended."""
        self.lab.wait_for(lambda: self.lab.state(job) in ENDED, f"{job} ends", SECONDS)
        return (self.folder / f"slurm-{job}.out").read_text()

    def shown(self, job: int) -> str:
        """What Slurm says of a job."""
        return self.lab.output("scontrol", "show", "job", str(job))

    def pipes(self, qpu: str) -> list[Counter[str]]:
        """How often the processes of Slurm that wait for a lease have each pipe."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "acquire" in words and qpu in words:
                # above it, a shell and then the one that Slurm has forked
                forked = process.parents()[1].pid
                files = Path(f"/proc/{forked}/fd").iterdir()
                names = [os.readlink(file) for file in files]
                found.append(Counter(name for name in names if "pipe" in name))
        assert found
        return found

    def start_again(self, job: int) -> None:
        """Start a job at once that is queued again, which Slurm does after two minutes."""
        self.until(job, "JobState=PENDING [^$]*BurstBufferState=complete")
        self.lab.output("scontrol", "update", f"JobId={job}", "StartTime=now")

    def until(self, job: int, pattern: str) -> None:
        """Wait until Slurm says something of a job."""
        self.lab.wait_for(
            lambda: re.search(pattern, self.shown(job)) is not None,
            f"{job}: {pattern}",
            SECONDS,
        )


def _asking(qpu: str) -> list[str]:
    return ["--partition=quantum", f"--gres=qpu:{qpu}:1", "--time=5"]


def socket(folder: Path, qpu: str) -> Path:
    return folder / "run" / f"{qpu}.sock"


def leases(service: RunningService) -> list[Lease]:
    """All leases, the oldest first."""
    return sorted(service.queue.store.leases(None), key=lambda lease: lease.opened)


@pytest.fixture(scope="session")
def site(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose QPUs are :data:`QPUS`."""
    if lacking := lab_site.missing(SYSTEM_PATH):
        pytest.skip(lacking)
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    config = base / "qrmi_config.json"
    options = Options(nodes=1, cpus=16, qpus=4, site=True, qrmi_config=str(config))
    resources: list[JSON] = [
        {
            "name": name,
            "type": "sfq",
            "environment": {"SFQ_URL": f"unix:{socket(base / 'site', name)}"},
        }
        for name in QPUS
    ]
    config.write_text(json.dumps({"resources": resources}))
    with shared(base / "site", options) as lab:
        account = lab_site.ACCOUNTS[0]
        # no matter whether another worker has done so already
        lab.run("sacctmgr", "-i", "add", "user", USER, f"account={account}")
        folder = Path(tempfile.mkdtemp(prefix="sfq-"))
        folder.chmod(0o777)
        # that of the lab is in a folder of pytest's, for one user alone
        conf = re.sub("PlugStackConfig=.*", "", lab.conf.read_text())
        (folder / "slurm.conf").write_text(conf)
        try:
            yield Site(lab, folder)
        finally:
            shutil.rmtree(folder)


def test_a_job_waits_for_its_lease_and_has_it_with_its_nodes(site: Site) -> None:
    with site.serving("waits") as service:
        other = service.acquire()
        job = site.submit("waits", "env")
        site.until(job, "AdminComment=waits: 1 of 1 leases are held, 0 jobs ahead")
        site.until(job, "JobState=PENDING Reason=BurstBufferStageIn")
        assert "RunTime=00:00:00" in site.shown(job)
        service.ask("DELETE", f"/v1/leases/{other}")
        output = site.output(job)
        _, lease = leases(service)
        assert (lease.user, lease.slurm_job_id) == (USER, str(job))
        assert (lease.slurm_account, lease.partition) == ("physics", "quantum")
        for line in (
            "QRMI_JOB_QPU_RESOURCES=waits",
            "QRMI_JOB_QPU_TYPES=sfq",
            f"waits_QRMI_JOB_ACQUISITION_TOKEN={lease.id}",
            f"waits_SFQ_URL=unix:{socket(site.lab.folder, 'waits')}",
            f"QRMI_JOB_ID={job}",
        ):
            assert line in output.splitlines()
        site.lab.wait_for(lambda: not service.queue.leases.held, "its end", SECONDS)
        assert leases(service)[-1].reason == "released"


def test_while_the_qpu_is_closed_no_node_is_held(site: Site) -> None:
    with site.serving("closed") as service:
        service.ask("POST", "/v1/device/close", {"message": "new laser"})
        job = site.submit("closed", "true")
        site.until(job, "AdminComment=closed: .*new laser")
        assert "RunTime=00:00:00" in site.shown(job)
        service.ask("POST", "/v1/device/open", {})
        site.output(job)
        assert len(leases(service)) == 1


def test_a_job_that_is_cancelled_while_it_waits_leaves_nothing(site: Site) -> None:
    with site.serving("cancelled") as service:
        other = service.acquire()
        job = site.submit("cancelled", "true")
        site.lab.wait_for(lambda: service.queue.leases.waiting == 1, "it asks", SECONDS)
        site.lab.output("scancel", str(job))
        service.ask("DELETE", f"/v1/leases/{other}")


@pytest.mark.parametrize("end", ["scancel", "scontrol requeue"])
def test_a_lease_ends_with_the_run_of_its_job(site: Site, end: str) -> None:
    qpu = "killed" if end == "scancel" else "again"
    with site.serving(qpu) as service:
        job = site.submit(
            qpu, "env | grep TOKEN; [ $SLURM_RESTART_COUNT ] || sleep 1000"
        )
        site.until(job, "JobState=RUNNING")
        (first,) = leases(service)
        site.lab.output(*end.split(), str(job))
        if end == "scancel":
            return
        site.start_again(job)
        # the output is that of the second run alone
        output = site.output(job)
        _, second = leases(service)
        assert first.id not in output
        assert second.id in output


def test_a_job_whose_lease_is_lost_before_it_starts_waits_for_another(
    site: Site,
) -> None:
    with site.serving("lost", vqpus=2) as service:
        end = site.folder / "end"
        # has all gres of the QPU
        site.submit(
            "lost", f"until [ -e {end} ]; do sleep 0.1; done", "--gres=qpu:lost:4"
        )
        site.lab.wait_for(lambda: len(leases(service)) == 1, "a lease", SECONDS)
        job = site.submit("lost", "env | grep TOKEN")
        site.until(job, "BurstBufferState=staged-in")
        service.ask("DELETE", f"/v1/leases/{leases(service)[-1].id}")
        # as if that was long ago
        file = site.lab.folder / "run" / "private" / "qpu" / str(job)
        file.write_text(re.sub("^# [0-9]+", "# 0", file.read_text()))
        end.touch()
        site.start_again(job)
        output = site.output(job)
        assert len(leases(service)) == 3
        assert leases(service)[-1].id in output


def test_the_tasks_of_an_array_have_a_lease_each(site: Site) -> None:
    with site.serving("array") as service:
        site.submit("array", "true", "--array=1-3")
        site.lab.wait_for(
            lambda: len(leases(service)) == 3
            and all(lease.closed for lease in leases(service)),
            "three leases",
            SECONDS,
        )


def test_jobs_that_ask_together_start_one_after_the_other(site: Site) -> None:
    with site.serving("together") as service:
        service.ask("POST", "/v1/device/close", {"message": "new laser"})
        jobs = [site.submit("together", "true") for _ in range(4)]
        for job in jobs:
            site.until(job, "AdminComment=together: .*new laser")
        # of another job's, whose end would be seen only when this one ends
        assert [
            pipes for pipes in site.pipes("together") if {*pipes.values()} - {1}
        ] == []
        service.ask("POST", "/v1/device/open", {})
        for job in jobs:
            site.output(job)
        assert len(leases(service)) == 4


def test_a_step_without_a_script_waits_as_well(site: Site) -> None:
    with site.serving("srun") as service:
        output = site.as_user("srun", *_asking("srun"), "env")
        (lease,) = leases(service)
        assert f"srun_QRMI_JOB_ACQUISITION_TOKEN={lease.id}" in output.splitlines()


def test_slurm_and_the_service_account_for_the_same(site: Site) -> None:
    with site.serving("account") as service:
        end = site.folder / "ends"
        job = site.submit("account", f"until [ -e {end} ]; do sleep 0.1; done")
        site.until(job, "JobState=RUNNING")
        (lease,) = leases(service)
        for number in range(2):
            body: dict[str, JSON] = {
                "problem": example_bqm(),
                "parameters": {"num_reads": 100},
                "idempotency_key": str(number),
            }
            service.ask("POST", "/v1/jobs", body, lease=lease.id)
            service.until(lease.id, "Completed", number)
        end.touch()
        show = ("sacct", "-X", "-n", "-P", "-j", str(job), "-o", "Account,AdminComment")
        site.lab.wait_for(
            lambda: "qpu_seconds" in site.lab.output(*show), "an account", SECONDS
        )
        account, comment = site.lab.output(*show).split("|")
        figures = dict(word.split("=") for word in comment.split())
        assert figures["resource_id"] == "account"
        report = service.ask("GET", "/v1/accounting?by=slurm-account").json()
        (row,) = (row for row in listing(report["rows"]) if isinstance(row, dict))
        assert (row["slurm_account"], row["jobs"]) == (account, int(figures["jobs"]))
        assert float(figures["qpu_seconds"]) == pytest.approx(row["qpu_seconds"])
        assert float(figures["qpu_seconds"]) > 0


def test_slurmrestd_answers_those_who_have_a_token(site: Site) -> None:
    token = site.lab.output("scontrol", "token").partition("=")[2]
    url = f"unix:{site.lab.folder}/run/rest"
    headers = {"X-SLURM-USER-NAME": getpass.getuser(), "X-SLURM-USER-TOKEN": token}
    ping = "/slurm/v0.0.38/ping"
    until(lambda: Client(url, headers).request("GET", ping).status == 200, ping)
    wrong = {**headers, "X-SLURM-USER-TOKEN": "none"}
    assert Client(url, wrong).request("GET", ping).status != 200


def test_a_job_that_declares_too_much_is_refused(site: Site) -> None:
    with pytest.raises(LabError) as error:
        site.submit("large", "true", "--comment=from me, qpu-qubits=101")
    expected = "the job declares 101 qubits, QPU large has at most 100"
    assert expected in str(error.value)

"""A site's plugins for Slurm: any job with ``--gres=qpu`` waits until it has a lease."""

from __future__ import annotations

import getpass
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sf_quantum.connectors.slurm.transport.slurmrestd import VERSIONS
from sf_quantum.files import JSON, listing
from sf_quantum.net.transport import Client
from sf_quantum.planning.traces import sacct
from sf_quantum.qpu.leasing.burst.folder import Folder, Held, Why
from sf_quantum.qpu.sfq.service_client import RETRY_SECONDS
from tests.support import lab_site, lab_supervisor
from tests.support.lab_cluster import LabError
from tests.support.lab_conf import FIRST
from tests.support.plugin_site import USER, Site, asking, leases, plugin_site
from tests.support.projects import Project
from tests.support.service import example_bqm
from tests.support.suspending import suspended
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.process


@pytest.fixture
def own_site(site: Site, tmp_path: Path) -> Iterator[Site]:
    """A site whose controller may be killed; one that tests share would lose their jobs."""
    with plugin_site(tmp_path) as made:
        yield made


def test_a_job_waits_for_its_lease_and_has_it_with_its_nodes(site: Site) -> None:
    with site.serving("waits") as service:
        other = service.acquire()
        job = site.submit("waits", "env", f"--qos={lab_site.QOS}")
        site.until(job, "AdminComment=waits: 1 of 1 leases are held *\n")
        site.until(job, "JobState=PENDING Reason=BurstBufferStageIn")
        assert "RunTime=00:00:00" in site.shown(job)
        service.ask("DELETE", f"/v1/leases/{other}")
        output = site.output(job)
        _, lease = leases(service)
        assert (lease.user, lease.slurm_job_id) == (USER, str(job))
        assert lease.slurm_cluster == FIRST
        assert (lease.slurm_account, lease.partition) == ("physics", "quantum")
        assert lease.job_class == "production"
        for line in (
            "QRMI_JOB_QPU_RESOURCES=waits",
            "QRMI_JOB_QPU_TYPES=sfq",
            f"waits_QRMI_JOB_ACQUISITION_TOKEN={lease.id}",
            f"waits_SFQ_URL=unix:{site.socket('waits')}",
            f"QRMI_JOB_ID={job}",
        ):
            assert line in output.splitlines()
        site.lab.wait_for(lambda: not service.queue.leases.held, "its end", SECONDS)
        assert leases(service)[-1].reason == "released"


def test_the_option_asks_for_a_qpu_and_its_gres(site: Site) -> None:
    conf = f"export SLURM_CONF={site.folder}/slurm.conf"
    others = "srun --qpu=option true; sbatch --partition=quantum --wrap true"
    with site.serving("option") as service:
        words = ("sbatch", "--parsable", "--partition=quantum", "--qpu=option")
        bounds = ("--qpu-seconds=30", "--qpu-shots=500", "--qpu-qubits=40")
        script = f"env; {conf}; {others}"
        job = int(site.as_user(*words, *bounds, "--wrap", script))
        output = site.output(job)
        (lease,) = leases(service)
        assert f"option_QRMI_JOB_ACQUISITION_TOKEN={lease.id}" in output.splitlines()
        told = (lease.max_qpu_seconds, lease.max_shots, lease.max_qubits)
        assert told == (30, 500, 40)
        shown = site.shown(job)
        assert re.search("TresPerNode=gres[:/]qpu:option:1", shown)
        directive = re.search("BurstBuffer=#QPU (.*)", shown)
        assert directive
        assert set(directive[1].split()) >= {"pool=option", "seconds=30", "shots=500"}
        step, other = output.splitlines()[-2:]
        expected = "--qpu: the lease is that of the job, which has begun"
        assert step == f"srun: error: {expected}"
        # what a job submits is not for the QPU that it has itself
        assert "BurstBuffer=" not in site.shown(int(other.split()[-1]))


def test_a_script_of_one_line_gets_its_directive(site: Site) -> None:
    script = site.folder / "line.sh"
    script.write_text("#!/bin/true")
    # without a name, the gres is that of the default QPU
    words = ("--parsable", "--hold", "--partition=quantum", "--gres=qpu:1")
    job = site.as_user("sbatch", *words, str(script))
    shown = site.shown(int(job))
    assert "BurstBuffer=#QPU pool=first" in shown
    assert re.search("TresPerNode=gres[:/]qpu:first:1", shown)
    site.lab.output("scancel", job)


def test_a_component_of_a_heterogeneous_job_asks_alone(site: Site) -> None:
    words = ("sbatch", "--parsable", "--hold", "--partition=quantum", "--qpu=option")
    other = ("--hold", "--partition=compute", "--wrap", "true")
    job = site.as_user(*words, ":", *other)
    own, its = re.split("(?m)^JobId=", site.shown(int(job)))[1:]
    assert "BurstBuffer=#QPU pool=option" in own
    assert "BurstBuffer=" not in its
    site.lab.output("scancel", job)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--qpu=a.b", "--qpu: expected the name of a QPU, not 'a.b'"),
        ("--qpu=none", "there is no QPU none"),
        (
            "--qpu=large --qpu-shots=1.5",
            "--qpu-shots: expected a whole number of at least 1, not '1.5'",
        ),
        (
            "--qpu=large --qpu-seconds=0",
            "--qpu-seconds: expected a number of seconds above 0, such as 30 or 1.5, "
            "not '0'",
        ),
        ("--qpu-shots=5", "--qpu-shots: the job asks for no QPU, add --qpu=NAME"),
        (
            "--qpu=large --qpu-qubits=101",
            "the job declares 101 qubits, QPU large has at most 100",
        ),
        (
            "--qpu=large --comment=qpu-qubits=101",
            "the job declares 101 qubits, QPU large has at most 100",
        ),
        (
            "--qpu=large --comment=qpu-shots=many",
            "qpu-shots: expected a whole number above 0, not 'many'",
        ),
        (
            "--qpu=large --comment=qpu-bits=5",
            "qpu-bits: expected qpu-seconds, qpu-shots or qpu-qubits",
        ),
        ("--qpu=large --gres=qpu:lost:1", "--qpu=large: --gres names QPU lost"),
        (
            "--gres=qpu:large:1,qpu:lost:1",
            "--gres asks for the QPUs large and lost, a job gets the lease of one",
        ),
    ],
)
def test_what_a_job_cannot_have_is_refused(
    site: Site, words: str, expected: str
) -> None:
    with pytest.raises(LabError) as error:
        site.as_user("sbatch", "--partition=quantum", *words.split(), "--wrap", "true")
    told = str(error.value).partition("sbatch: error: ")[2].splitlines()[0]
    assert told.removeprefix("burst_buffer/lua: ") == expected


@pytest.mark.parametrize(
    "directives",
    [
        # Slurm would not count it in `asking`
        "#QPU pool=large",
        "#QPU\tpool=large capacity=1",
        "#QPU pool=large capacity=1\n#QPU pool=first capacity=1",
        "#QPU pool=large capacity=1 pool=first",
        "#QPU pool=large capacity=1 shots=-5",
        "#QPU pool=large capacity=1 qubits=1.5",
        f"#QPU pool=large capacity=1 seconds={'9' * 400}",
    ],
)
def test_only_a_directive_as_the_plugin_would_write_it_is_taken(
    site: Site, directives: str
) -> None:
    script = site.folder / "own.sh"
    script.write_text(f"#!/bin/sh\n{directives}\n")
    with pytest.raises(LabError, match="expected one line #QPU pool=NAME capacity=1"):
        site.as_user("sbatch", "--hold", "--partition=quantum", str(script))


def test_a_service_of_streamflow_names_its_qpu(site: Site) -> None:
    """Slurm has the option, and so the lease: nothing asks for another one on the node."""
    if not site.can_run(sys.executable):
        pytest.skip(f"{USER} cannot read the Python of the tests")
    folder = site.folder / "workflow"
    folder.mkdir()
    folder.chmod(0o777)
    quantum: JSON = {"partition": "quantum", "qpu": ["workflow"]}
    target: JSON = {"deployment": "cluster", "service": "quantum"}
    project = Project(folder, folder)
    project.deployment("host", "local")
    project.deployment(
        *("cluster", "sfq.slurm"),
        wraps="host",
        qrmiConfig=str(site.folder / "qrmi_config.json"),
        services={"quantum": quantum},
    )
    project.solve("solve", "cluster")
    workflow: JSON = {
        "type": "cwl",
        "config": {"file": "main.cwl"},
        "bindings": [{"step": "/solve", "target": target}],
    }
    project.extra["workflows"] = {"test": workflow}
    project.write()
    with site.serving("workflow") as service:
        run = ("streamflow", "run", f"{folder}/streamflow.yml")
        site.as_user("env", f"TMPDIR={folder}", *run)
        (lease,) = leases(service)
        assert lease.user == USER
        (job,) = service.queue.store.jobs.latest(lease=lease.id)
        assert job.state == "Completed"


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


def test_a_job_that_loses_its_lease_unstarted_gets_another(
    site: Site,
) -> None:
    with site.serving("lost", vqpus=2) as service:
        end = site.folder / "end"
        # has all gres of the QPU on its node
        site.submit(
            *("lost", f"until [ -e {end} ]; do sleep 0.1; done"),
            *("--gres=qpu:lost:4", "--nodelist=q1"),
        )
        site.lab.wait_for(lambda: len(leases(service)) == 1, "a lease", SECONDS)
        job = site.submit("lost", "env | grep TOKEN", "--nodelist=q1")
        site.until(job, "BurstBufferState=staged-in")
        service.ask("DELETE", f"/v1/leases/{leases(service)[-1].id}")
        # as if that was a while ago
        file = site.state / str(job)
        was = f"# {time.time() - 11:.0f}"
        file.write_text(re.sub("^# [0-9]+", was, file.read_text()))
        end.touch()
        # it is queued again when it is to start, or has lost its lease before
        site.until(job, "JobState=(COMPLETED|PENDING [^$]*BurstBufferState=complete)")
        site.lab.run("scontrol", "update", f"JobId={job}", "StartTime=now")
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
        # in the order of Slurm's queue
        assert [lease.slurm_job_id for lease in leases(service)] == [*map(str, jobs)]


def test_what_cannot_start_has_no_lease_and_no_place(site: Site) -> None:
    with site.serving("impossible") as service:
        wrong = ("--mem=900G", "--exclude=q[1-2]", "--gres=qpu:impossible:9")
        # more than there are places
        jobs = [site.submit("impossible", "true", word) for word in 3 * wrong]
        site.output(site.submit("impossible", "true"))
        assert len(leases(service)) == 1
        for job in jobs:
            site.until(job, "AdminComment=impossible: Slurm cannot start it: Requested")
        first, *others = map(str, jobs)
        site.lab.output("scontrol", "update", f"JobId={first}", "MinMemoryNode=100")
        site.output(jobs[0])
        assert len(leases(service)) == 2
        site.lab.output("scancel", *others)


def test_a_lease_without_nodes_goes_to_the_next_job(site: Site) -> None:
    with site.serving("nodes") as service:
        end = site.folder / "nodes"
        # has no lease, but all of the node
        other = site.lab.submit(
            *(f"--uid={USER}", f"--chdir={site.folder}", "--output=/dev/null"),
            *("--partition=quantum", "--nodelist=q1", "--cpus-per-task=16", "--time=9"),
            *("--wrap", f"until [ -e {end} ]; do sleep 0.1; done"),
        )
        site.until(other, "JobState=RUNNING")
        first = site.submit("nodes", "env | grep TOKEN", "--nodelist=q1")
        site.lab.wait_for(lambda: len(leases(service)) == 1, "a lease", SECONDS)
        second = site.submit("nodes", "true", "--nodelist=q2")
        site.output(second)
        end.touch()
        output = site.output(first)
        assert leases(service)[-1].id in output
        order = [lease.slurm_job_id for lease in leases(service)]
        assert order[0] == order[-1] == str(first)
        assert str(second) in order


def test_an_outsider_does_not_take_the_lease_of_a_reservation(site: Site) -> None:
    with site.serving("reserved") as service:
        owner = "games"
        account = lab_site.ACCOUNTS[1]
        site.lab.run("sacctmgr", "-i", "add", "user", owner, f"account={account}")
        create = ("scontrol", "create", "reservation", "reservationname=beam")
        where = (f"accounts={account}", "nodes=q2", "flags=ignore_jobs")
        about = (*where, "starttime=now", "duration=60")
        site.lab.output(*create, *about)
        try:
            outsider = site.submit("reserved", "true", "--nodelist=q2")
            told = "reservation beam holds its nodes until"
            site.until(
                outsider, f"AdminComment=reserved: Slurm cannot start it: {told}"
            )
            options = ("--output=/dev/null", "--reservation=beam")
            own = site.lab.submit(
                *(f"--uid={owner}", f"--account={account}", f"--chdir={site.folder}"),
                *(*asking("reserved"), "--nodelist=q2", *options, "--wrap", "true"),
            )
            site.until(own, "JobState=COMPLETED")
            (lease,) = leases(service)
            assert lease.user == owner
        finally:
            site.lab.output("scontrol", "delete", "reservation=beam")
        site.output(outsider)
        assert len(leases(service)) == 2


def test_one_user_leaves_places_to_others(site: Site) -> None:
    with site.serving("crowded") as service:
        account = f"account={lab_site.ACCOUNTS[0]}"
        site.lab.run("sacctmgr", "-i", "add", "user", "games", account)
        service.ask("POST", "/v1/device/close", {"message": "new laser"})
        jobs = [site.submit("crowded", "true") for _ in range(8)]
        for job in jobs:
            site.until(job, "AdminComment=crowded: .*new laser")
        words = ("--uid=games", f"--chdir={site.folder}", "--output=/dev/null")
        other = site.lab.submit(*words, *asking("crowded"), "--wrap", "true")
        site.until(other, "AdminComment=crowded: .*new laser")
        # the last in Slurm's order
        site.until(jobs[-1], "AdminComment=crowded: others wait, and its user has more")
        service.ask("POST", "/v1/device/open", {})
        for job in jobs:
            site.output(job)
        # nothing orders its end before theirs
        site.until(other, "JobState=COMPLETED")
        assert len(leases(service)) == 9


def test_what_is_killed_is_swept(site: Site) -> None:
    with site.serving("killing", vqpus=2) as service:
        lease = service.acquire()
        service.ask("POST", "/v1/device/close", {"message": "new laser"})
        job = site.submit("killing", "true")
        site.until(job, "AdminComment=killing: .*new laser")
        first = site.asks(job)
        assert first is not None
        first.kill()
        psutil.Process(int((site.state / "watch").read_text())).kill()
        # as of a job whose end nobody has seen
        left = site.state / "99999999"
        token = "killing_QRMI_JOB_ACQUISITION_TOKEN"
        left.write_text(f"# 1 0 0 killing asked\n{token}={lease}\n")
        site.lab.wait_for(lambda: not left.exists(), "a sweep", SECONDS)
        site.lab.wait_for(lambda: site.asks(job) not in (None, first), "more", SECONDS)
        service.ask("POST", "/v1/device/open", {})
        site.output(job)
        assert [one.slurm_job_id for one in leases(service)] == [None, str(job)]


def test_a_job_runs_whose_buffer_the_controller_forgot(own_site: Site) -> None:
    """Jobs and burst buffers are saved apart, and a kill may come between the two."""
    site = own_site
    saved = site.lab.folder / "state"
    with site.serving("halved") as service:
        service.ask("POST", "/v1/device/close", {})
        job = site.submit("halved", "echo ran")
        site.until(job, "BurstBufferState=staging-in")
        scripts = site.script_daemon()
        with suspended(scripts):
            site.lab.output("scancel", str(job))
            site.lab.output("scontrol", "requeue", str(job))
            ending = time.time()
            site.until(job, "JobState=PENDING [^$]*BurstBufferState=teardown")
            site.lab.wait_for(
                lambda: (saved / "job_state").stat().st_mtime > ending + 1,
                "saved",
                SECONDS,
            )
            site.lab.kill_controller()
            scripts.kill()
        for file in saved.glob("burst_buffer*"):
            file.unlink()
        site.lab.start_controller()
        service.ask("POST", "/v1/device/open", {})
        # The watch cancels the job for a moment, to queue it again.
        out = site.folder / f"slurm-{job}.out"
        site.lab.wait_for(out.exists, f"{job} runs", SECONDS)
        assert "ran" in site.output(job)
        site.lab.wait_for(
            lambda: not service.queue.leases.held, "the lease is back", SECONDS
        )


def test_a_job_runs_whose_release_the_controller_forgot(own_site: Site) -> None:
    """Slurm saves its jobs every five seconds, and a kill loses what it did since."""
    site = own_site
    saved, copy = site.lab.folder / "state", site.folder / "copy"
    with site.serving("halved"):
        job = site.submit("halved", "echo ran", "--mem=900G")
        site.until(job, "BurstBufferState=complete")
        assert "Priority=0 " in site.shown(job)
        held = time.time()

        def is_saved() -> bool:
            # Without a change, it is not saved again.
            site.lab.output("scontrol", "update", f"JobId={job}", "Comment=changed")
            return (saved / "job_state").stat().st_mtime > held + 1

        site.lab.wait_for(is_saved, "saved", SECONDS)
        shutil.copytree(saved, copy)
        site.lab.output("scontrol", "update", f"JobId={job}", "MinMemoryNode=100")
        site.until(job, "Priority=[1-9]")
        site.lab.kill_controller()
        shutil.rmtree(saved)
        shutil.copytree(copy, saved)
        site.lab.start_controller()
        site.lab.output("scontrol", "update", f"JobId={job}", "MinMemoryNode=100")
        assert "ran" in site.output(job)


def test_a_job_with_the_id_of_a_forgotten_one_has_a_new_lease(own_site: Site) -> None:
    site = own_site
    with site.serving("halved"):
        with site.lab.forgetting():
            forgotten = site.submit("halved", "env | grep TOKEN; sleep 60")
            site.until(forgotten, "JobState=RUNNING")
            out = site.folder / f"slurm-{forgotten}.out"
            site.lab.wait_for(
                lambda: out.exists() and "TOKEN" in out.read_text(), "a lease", SECONDS
            )
            token = out.read_text()
        job = site.submit("halved", "env | grep TOKEN")
        assert job == forgotten
        assert site.output(job) not in ("", token)


def test_the_lease_of_a_forgotten_job_ends_while_another_has_its_id(
    own_site: Site,
) -> None:
    site = own_site
    with site.serving("halved") as service:
        with site.lab.forgetting():
            forgotten = site.submit("halved", "sleep 60")
            site.until(forgotten, "JobState=RUNNING")
        ends = site.folder / "ends"
        script = f"until [ -e {ends} ]; do sleep 0.1; done"
        job = int(site.as_user("sbatch", "--parsable", "--hold", "--wrap", script))
        assert job == forgotten
        assert len(service.queue.leases.held) == 1
        mark = Held(Why.CANNOT, text="halved: it cannot start", submitted="1000")
        Folder(site.state).hold(job, mark)
        site.lab.wait_for(lambda: not service.queue.leases.held, "its end", SECONDS)
        # Neither the mark nor the account of the forgotten job is the other's.
        assert "Priority=0 " in site.shown(job)
        site.lab.output("scontrol", "release", str(job))
        ends.touch()
        show = ("sacct", "-X", "-n", "-P", "-j", str(job), "-o", "State,AdminComment")
        site.lab.wait_for(
            lambda: "COMPLETED|" in site.lab.output(*show).splitlines(), "it", SECONDS
        )


def test_a_job_waits_for_a_service_that_is_away(own_site: Site) -> None:
    site = own_site
    job = site.submit("halved", "env | grep TOKEN")
    site.until(job, "AdminComment=.*does not answer")
    # Longer than requests that are not repeated for ever are tried.
    time.sleep(RETRY_SECONDS + 3)
    with site.serving("halved"):
        assert "TOKEN" in site.output(job)


def test_a_step_without_a_script_waits_as_well(site: Site) -> None:
    with site.serving("srun") as service:
        output = site.as_user("srun", *asking("srun"), "env")
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
        ended = ("sacct", "-X", "-n", "-P", "-j", str(job), "-o", "AllocTRES")
        assert "gres/qpu=1" in site.lab.output(*ended).split(",")
        account, comment = site.lab.output(*show).split("|")
        figures = dict(word.split("=") for word in comment.split())
        assert figures["resource_id"] == "account"
        report = service.ask("GET", "/v1/accounting?by=slurm-account").json()
        (row,) = (row for row in listing(report["rows"]) if isinstance(row, dict))
        assert (row["slurm_account"], row["jobs"]) == (account, int(figures["jobs"]))
        assert float(figures["qpu_seconds"]) == pytest.approx(row["qpu_seconds"])
        assert float(figures["qpu_seconds"]) > 0


def test_a_plan_reads_the_account(site: Site) -> None:
    def submit(*options: str) -> int:
        limits = ("--time=3", "--partition=compute")
        words = ("sbatch", "--parsable", *limits, *options, "--wrap", "sleep 1")
        return int(site.as_user(*words))

    jobs = [submit(), submit("--begin=now+4")]
    # seconds since the epoch, as on the page
    show = ("env", "SLURM_TIME_FORMAT=%s", *sacct.COMMAND.split(), "--allocations")
    show += ("--jobs", ",".join(map(str, jobs)))
    text = ""

    def over() -> bool:
        nonlocal text
        text = site.lab.output(*show)
        # two jobs after the header, each with an end
        return len(text.splitlines()) == 3 and "|Unknown|" not in text

    site.lab.wait_for(over, "the end of both jobs", SECONDS)
    trace = sacct.parse(text.splitlines(), {"compute": 1}, None)
    assert not trace.left_out
    first, second = trace.jobs
    # it is the first to end, and the record begins with that
    assert (first.submitted, first.nodes, first.seconds) == (0, {"compute": 1}, 1)
    assert (second.nodes, second.estimate) == ({"compute": 1}, 180)
    assert second.seconds >= 1


def test_fair_share_counts_the_qpu(site: Site) -> None:
    """Of two users with the same jobs, the one whose job has the QPU has used more."""
    users = ("bin", "sys")
    account = f"account={lab_site.ACCOUNTS[1]}"
    site.lab.output("sacctmgr", "-i", "add", "user", ",".join(users), account)
    with site.serving("share"):
        # Slurm counts whole seconds
        wrap = ("--output=/dev/null", "--wrap", "sleep 2")
        asked: tuple[list[str], ...] = (asking("share"), ["--partition=quantum"])
        for user, options in zip(users, asked, strict=True):
            uid = f"--uid={user}"
            site.lab.submit(uid, f"--chdir={site.folder}", *options, *wrap)
        show = ("sshare", "-a", "-n", "-P", "-o", "User,RawUsage")

        def used() -> list[int]:
            told = dict(line.split("|") for line in site.lab.output(*show).splitlines())
            return [int(told[user]) for user in users]

        site.lab.wait_for(lambda: all(used()), "their use", SECONDS)
    # a second of a QPU is worth 100 of the CPUs that both have
    with_qpu, without = used()
    assert with_qpu > 20 * without


def test_slurmrestd_answers_those_who_have_a_token(site: Site) -> None:
    token = site.lab.output("scontrol", "token").partition("=")[2]
    url = f"unix:{site.lab.folder}/run/rest"
    headers = {"X-SLURM-USER-NAME": getpass.getuser(), "X-SLURM-USER-TOKEN": token}
    version = "v0.0.42" if lab_supervisor.version() >= (24, 11) else VERSIONS[-1]
    jobs = f"/slurm/{version}/jobs"
    until(lambda: Client(url, headers).request("GET", jobs).status == 200, jobs)
    wrong = {**headers, "X-SLURM-USER-TOKEN": "none"}
    assert Client(url, wrong).request("GET", jobs).status != 200

"""The lab is a Slurm: it runs jobs, loses nodes, and ends with all that it started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.lab import Lab, start
from tests.support import lab_site
from tests.support.folders import ROOT
from tests.support.lab_cluster import Cluster, LabError
from tests.support.lab_conf import SECOND, Options
from tests.support.lab_supervisor import SYSTEM_PATH
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.conftest import StartLab

pytestmark = pytest.mark.process

MAKE = [
    "make",
    "--no-print-directory",
    "-C",
    str(ROOT),
    f"BIN={Path(sys.executable).parent}",
]


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Is in the environment of every process that the test starts, however indirectly."""
    value = uuid.uuid4().hex
    monkeypatch.setenv("SFQ_TEST", value)
    return value


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            own = process.pid == os.getpid()
            if not own and process.environ().get("SFQ_TEST") == mark:
                found.append(process)
    return found


def job(lab: Cluster, tmp_path: Path, script: str, *options: str) -> int:
    output = f"--output={tmp_path}/%j.out"
    return lab.submit(f"--chdir={tmp_path}", output, *options, "--wrap", script)


def lasting(lab: Lab, tmp_path: Path, *options: str) -> int:
    """A job that has started and does not end by itself."""
    id_ = job(lab, tmp_path, f"touch {tmp_path}/started; sleep 1000", *options)
    lab.wait_for((tmp_path / "started").exists, "the job has started")
    return id_


def ended(lab: Cluster, id_: int) -> str:
    """The state in which a job ended, in Slurm's record."""
    lab.wait_for(lambda: id_ in [one.id for one in lab.jobcomp()], "the job ends")
    return next(one.state for one in lab.jobcomp() if one.id == id_)


class TestShared:
    """Beside other tests, on the lab of the whole run."""

    def test_runs_a_job_on_several_nodes(self, lab: Lab, tmp_path: Path) -> None:
        before = time.time()
        id_ = job(lab, tmp_path, "srun -l hostname; exit 3", "-N2", "--job-name=a b")
        assert ended(lab, id_) == "FAILED"
        lines = (tmp_path / f"{id_}.out").read_text().splitlines()
        assert sorted(line.split(":")[0] for line in lines) == ["0", "1"]
        record = next(one for one in lab.jobcomp() if one.id == id_)
        assert (record.name, record.partition, record.nodes) == ("a b", "compute", 2)
        assert (record.exit_code, record.signal) == (3, 0)
        assert before - 1 < record.submitted <= record.started <= record.ended
        assert record.ended < time.time() + 1

    def test_counts_qpus(self, lab: Lab, tmp_path: Path) -> None:
        shown = "scontrol show job --details $SLURM_JOB_ID; echo $HOME"
        id_ = job(lab, tmp_path, shown, "-p", "quantum", "--gres=qpu:1")
        assert ended(lab, id_) == "COMPLETED"
        output = (tmp_path / f"{id_}.out").read_text()
        assert "GRES=qpu:1" in output
        assert output.splitlines()[-1] == os.environ["HOME"]

    def test_refuses_more_qpus_than_there_are(self, lab: Lab, tmp_path: Path) -> None:
        with pytest.raises(LabError, match="Requested node configuration"):
            job(lab, tmp_path, "true", "-p", "quantum", "--gres=qpu:11")

    def test_is_idle_in_the_end(self, lab: Lab, tmp_path: Path) -> None:
        id_ = lasting(lab, tmp_path)
        assert (id_ in lab.jobs(), lab.state(id_)) == (True, "RUNNING")
        lab.output("scancel", str(id_))
        assert ended(lab, id_) == "CANCELLED"
        lab.wait_for(lambda: id_ not in lab.jobs(), "the job leaves the queue")


def test_loses_nodes_and_gets_them_back(start_lab: StartLab, tmp_path: Path) -> None:
    with start_lab(Options(nodes=2, qnodes=0, node_timeout=2)) as lab:
        script = f"srun -N2 sh -c 'touch {tmp_path}/$SLURM_PROCID; sleep 1000'"
        id_ = job(lab, tmp_path, script, "-N2", "--no-requeue")
        for process in "01":
            lab.wait_for((tmp_path / process).exists, "the job has started")
        lab.stop_node("c1")
        assert ended(lab, id_) == "NODE_FAIL"
        lab.wait_for(lambda: lab.nodes()["c1"] == "down*", "c1 is down")
        lab.start_node("c1")
        lab.wait_idle()
        with pytest.raises(LabError, match="cannot start c1"):
            lab.start_node("c1")


def test_jobs_outlive_the_controller(start_lab: StartLab, tmp_path: Path) -> None:
    with start_lab(Options(nodes=1, qnodes=0)) as lab:
        script = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
        id_ = job(lab, tmp_path, script)
        lab.wait_for(lambda: lab.state(id_) == "RUNNING", "the job runs")
        lab.restart_controller()
        assert lab.state(id_) == "RUNNING"
        lab.stop_controller()
        assert lab.run("squeue").returncode != 0
        (tmp_path / "go").touch()
        lab.start_controller()
        assert ended(lab, id_) == "COMPLETED"


def test_forgets_jobs(start_lab: StartLab, tmp_path: Path) -> None:
    with start_lab(Options(nodes=1, qnodes=0, min_job_age=2)) as lab:
        id_ = job(lab, tmp_path, "true")
        assert ended(lab, id_) == "COMPLETED"
        show = ("scontrol", "show", "job", str(id_))
        lab.wait_for(
            lambda: "Invalid job id" in lab.run(*show).stderr, "forgotten", seconds=90
        )


def test_preempts(start_lab: StartLab, tmp_path: Path) -> None:
    with start_lab(Options(nodes=1, qnodes=0, preempt="CANCEL")) as lab:
        id_ = lasting(lab, tmp_path, "--exclusive")
        job(lab, tmp_path, "true", "-p", "urgent")
        assert ended(lab, id_) == "PREEMPTED"


def test_has_spank_plugins_licenses_and_lines_of_ones_own(
    start_lab: StartLab, tmp_path: Path
) -> None:
    if shutil.which("gcc") is None or not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("no SPANK plugin can be built (apt-get install gcc libslurm-dev)")
    plugin = tmp_path / "plugin.so"
    source = """
        #include <slurm/spank.h>
        SPANK_PLUGIN(lab, 1)
        int slurm_spank_init(spank_t sp, int ac, char **av) {
            static struct spank_option option = {"qpu", "name", "a QPU", 1, 0, 0};
            return spank_option_register(sp, &option);
        }
    """
    compile_ = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(plugin)]
    subprocess.run(compile_, input=source, text=True, check=True)
    options = Options(
        qnodes=2,
        licenses="qpu:2",
        spank=(str(plugin),),
        extra=("PartitionName=small Nodes=c1 MaxTime=5", "MinJobAge=17"),
    )
    with start_lab(options) as lab:
        assert "--qpu=name" in lab.output("sbatch", "--help")
        assert "Total=2" in lab.output("scontrol", "show", "license", "qpu")
        assert "MaxTime=00:05:00" in lab.output(
            "scontrol", "show", "partition", "small"
        )
        assert "MinJobAge               = 17 sec" in lab.output(
            "scontrol", "show", "config"
        )
        id_ = job(
            lab, tmp_path, "true", "-p", "quantum", "-N2", "--qpu=a", "-L", "qpu:2"
        )
        assert ended(lab, id_) == "COMPLETED"


def test_site_has_two_clusters_that_form_a_federation(
    start_lab: StartLab, tmp_path: Path
) -> None:
    if lacking := lab_site.missing(SYSTEM_PATH):
        pytest.skip(lacking)
    with start_lab(Options(nodes=1, qnodes=0, site=True)) as lab:
        first = job(lab, tmp_path, "true")
        other = job(lab, tmp_path, "hostname", "-M", SECOND)
        assert first == other == 1
        assert ended(lab, 1) == ended(lab.second, 1) == "COMPLETED"
        lab.federate()
        # The federation sends the job where a node takes jobs, which is the second cluster.
        drain = "update NodeName=ALL State=DRAIN Reason=test"
        lab.output("scontrol", *drain.split())
        sibling = job(lab, tmp_path, "true")
        assert sibling > 1 << 26
        assert ended(lab.second, sibling) == "COMPLETED"


def test_ends_with_all_that_it_started(
    start_lab: StartLab, mark: str, tmp_path: Path
) -> None:
    with start_lab(Options(nodes=1, qnodes=0)) as lab:
        job(lab, tmp_path, "setsid sleep 1001 & sleep 1002")

        def sleeping() -> int:
            return len([one for one in marked(mark) if one.name() == "sleep"])

        lab.wait_for(lambda: sleeping() == 2, "the job sleeps twice")
        run = lab.munge_socket.parent
    assert marked(mark) == []
    assert not run.exists()
    with pytest.raises(LabError, match="no lab runs here"):
        Lab(lab.folder)


@pytest.mark.parametrize("victim", ["user", "supervisor"])
def test_ends_when_what_keeps_it_is_killed(
    slurm: None, victim: str, mark: str, tmp_path: Path
) -> None:
    script = """
        import pathlib, sys
        from tests.lab import Options, start
        lab = start(pathlib.Path(sys.argv[1]), Options(nodes=1, qnodes=0))
        print("up", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", "if 1:" + script, str(tmp_path / "lab")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"up\n"
        above = next(
            p for p in marked(mark) if "tests.support.lab_supervisor" in p.cmdline()
        )
        os.kill(user.pid if victim == "user" else above.pid, signal.SIGKILL)
        user.communicate(b"")
    until(lambda: not marked(mark), "the end of all its processes")
    # what is left of it is no hindrance
    start(tmp_path / "lab", Options(nodes=1, qnodes=0)).end()


def test_says_what_the_daemons_said(slurm: None, mark: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"(?s)slurmctld ended by itself\n.*NoSuchKey"):
        start(tmp_path / "lab", Options(extra=("NoSuchKey=1",)))
    assert marked(mark) == []


def test_clears_no_folder_but_its_own(slurm: None, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(LabError, match="files that are not a lab's"):
        start(tmp_path, Options())


def test_make_starts_and_stops_it(slurm: None, mark: str, tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    # as if this interpreter's environment were the one that make has set up
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for stamp in ("installed-run", "installed"):
        (tmp_path / stamp).touch()

    def make(target: str) -> list[str]:
        variables = [f"VENV={tmp_path}", f"LAB=--folder {folder}"]
        command = ["make", "-s", "-C", str(ROOT), *variables, target]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        return result.stdout.splitlines()

    try:
        said = make("lab")
        assert 2 <= len(said) <= 4
        assert f"export SLURM_CONF={folder}/slurm.conf" in "\n".join(said)
        with closing(Lab(folder)) as lab:
            job(lab, tmp_path, "sleep 1000")
        assert make("lab")[0] == "the lab already runs"
    finally:
        stopped = make("lab-stop")
    assert stopped == [f"{folder}: the lab has ended"]
    assert marked(mark) == []
    assert make("lab-stop") == [f"{folder}: no lab runs here"]

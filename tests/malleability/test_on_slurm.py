"""Programs in a Slurm job that give nodes back around a QPU call, and get others again."""

from __future__ import annotations

import difflib
import getpass
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import StartLab
from tests.lab import Lab
from tests.support.folders import EXAMPLES
from tests.support.lab_conf import Options
from tests.support.service import RunningService, running_service
from tests.support.service_process import SFQ
from tests.support.waiting import SECONDS, until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("measured")]
EXAMPLE = EXAMPLES / "malleable"
# whole nodes, of the four CPUs that the lab has by default
WHOLE = ("--partition=compute", "--cpus-per-task=4", "--ntasks-per-node=1")
PARTS = ("--partition=compute", "--cpus-per-task=1", "--ntasks-per-node=1")


@pytest.fixture
def lab(start_lab: StartLab) -> Iterator[Lab]:
    with start_lab(Options(nodes=3, qnodes=0)) as made:
        yield made
        made.output("scancel", f"--user={getpass.getuser()}")


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


class Program:
    """A batch job on all nodes, which reaches marks and waits at them."""

    def __init__(
        self, lab: Lab, folder: Path, script: str, shape: Sequence[str] = WHOLE
    ) -> None:
        self.lab = lab
        self.folder = folder
        helpers = (
            'mark() { : >"$1"; }',
            'gate() { : >"$1"; until [ -e "$1.go" ]; do sleep 0.02; done; }',
            f'sfq() {{ {SFQ[0]} "$@"; }}',
        )
        (folder / "job.sh").write_text(
            "\n".join(["#!/bin/sh -e", *helpers, script, ""])
        )
        options = ("--nodes=3", "--output=out", f"--chdir={folder}", *shape)
        self.job = lab.submit(*options, str(folder / "job.sh"))

    def reaches(self, mark: str) -> None:
        """Wait until it is at a mark, or has passed it."""

        def found() -> bool:
            if (self.folder / mark).exists():
                return True
            assert self.lab.state(self.job) in ("PENDING", "RUNNING"), self.said
            return False

        until(found, mark)

    def goes_on(self, mark: str) -> None:
        """Let it pass a mark."""
        (self.folder / f"{mark}.go").touch()

    @property
    def said(self) -> str:
        """What it has printed."""
        return (self.folder / "out").read_text()

    def ends(self, state: str = "COMPLETED") -> None:
        """Wait for its end, and that of everything it has allocated."""
        self.lab.wait_for(
            lambda: self.lab.state(self.job)
            not in ("PENDING", "RUNNING", "COMPLETING"),
            "the program to end",
            SECONDS,
        )
        assert self.lab.state(self.job) == state, self.said

    @property
    def nodes(self) -> list[int]:
        """How many nodes each of its jobs holds, its own first."""
        names = f"--name=job.sh,sfq-nodes-{self.job}"
        lines = self.lab.output("squeue", "-h", names, "--states=R", "-o", "%A %D")
        return [int(line.split()[1]) for line in sorted(lines.splitlines())]


def other(lab: Lab, nodes: int) -> int:
    """Submit the job of somebody else."""
    return lab.submit(f"--nodes={nodes}", *WHOLE, "-o/dev/null", "--wrap", "sleep 300")


def until_runs(lab: Lab, job: int) -> None:
    lab.wait_for(lambda: lab.state(job) == "RUNNING", f"{job} to run", SECONDS)


CALLS = """\
lease() { sfq lease --url "$URL" --shrink-to 1 "$@" || echo "failed $?"; . ./sfq-nodes-*/environment.sh; }
where() { $SFQ_SRUN sh -c 'echo "on $SLURMD_NODENAME"' | sort | tr '\\n' ' '; echo "are $SFQ_NUM_NODES"; }
lease -- sh -c ': >called; srun sh -c "echo alone on \\$SLURMD_NODENAME"'
where
gate between
lease --regrow-wait 0 -- sh -c ': >again; until [ -e again.go ]; do sleep 0.02; done'
where
gate fewer
lease -- true
where
"""


def test_nodes_are_lent_during_a_call_and_come_back(
    lab: Lab, service: RunningService, tmp_path: Path
) -> None:
    service.ask("POST", "/v1/device/close", {"message": "helium is low"})
    program = Program(lab, tmp_path, f"URL={service.url}\n{CALLS}")
    # while the QPU is closed, other users' jobs run on its nodes
    lab.wait_for(lambda: program.nodes == [1], "two nodes given back", SECONDS)
    guest = other(lab, 2)
    until_runs(lab, guest)
    assert not (tmp_path / "called").exists()
    service.ask("POST", "/v1/device/open", {})
    program.reaches("called")
    assert lab.state(guest) == "RUNNING"
    lab.output("scancel", str(guest))
    program.reaches("between")
    assert program.nodes == [1, 2]
    assert "alone on c1\n" in program.said
    assert "on c1 on c2 on c3 are 3\n" in program.said
    # after the longest wait, it goes on with the one node that is free, of the two that it wants
    program.goes_on("between")
    program.reaches("again")
    guest = other(lab, 1)
    until_runs(lab, guest)
    program.goes_on("again")
    program.reaches("fewer")
    assert "are 2\n" in program.said
    assert program.nodes == [1, 1]
    lab.output("scancel", str(guest))
    # with the next call, it gets all of them
    program.goes_on("fewer")
    program.ends()
    assert program.said.count("on c1 on c2 on c3 are 3\n") == 2
    assert "failed" not in program.said
    lab.wait_idle(SECONDS)


SHAPES = {
    "parts of nodes": (*PARTS, "--nodes=3"),
    "tasks by their number": (*PARTS[:2], "--ntasks=6", "--cpus-per-task=2"),
    "chosen nodes": (
        *PARTS,
        "--nodelist=c1,c2,c3",
        "--exclusive=user",
        "--job-name=a' b;",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_as_many_nodes_and_tasks_come_back(
    lab: Lab, service: RunningService, tmp_path: Path, shape: str
) -> None:
    calls = CALLS.partition("gate between")[0] + "echo plain $(srun hostname | wc -l)\n"
    program = Program(lab, tmp_path, f"URL={service.url}\n{calls}", SHAPES[shape])
    program.ends()
    tasks = 2 if shape == "tasks by their number" else 1
    nodes = "".join(f"on {node} " * tasks for node in ("c1", "c2", "c3"))
    assert f"{nodes}are 3\n" in program.said
    assert f"plain {tasks}\n" in program.said
    lab.wait_idle(SECONDS)


def test_all_free_nodes_come_after_the_longest_wait(
    start_lab: StartLab, service: RunningService, tmp_path: Path
) -> None:
    where = CALLS.splitlines()[1]
    script = f"""URL={service.url}
sfq lease --url "$URL" --shrink-to 1 --regrow-to 4 --regrow-wait 0 -- true
. ./sfq-nodes-*/environment.sh
{where}
where"""
    with start_lab(Options(nodes=4, qnodes=0)) as lab:
        guest = lab.submit("--nodelist=c4", *WHOLE, "-o/dev/null", "--wrap=sleep 300")
        until_runs(lab, guest)
        program = Program(lab, tmp_path, script, PARTS)
        program.ends()
        lab.output("scancel", str(guest))
    assert "on c1 on c2 on c3 are 3\n" in program.said


def test_tasks_of_an_array_keep_their_own_nodes(
    lab: Lab, service: RunningService, tmp_path: Path
) -> None:
    calls = CALLS.partition("gate between")[0]
    script = f"""cd $(mktemp -d "$PWD/XXX"); exec >>../said; URL={service.url}
{calls}"""
    shape = ("--partition=compute", "--cpus-per-task=1", "--nodes=2", "--array=0-1")
    Program(lab, tmp_path, script, shape)
    lab.wait_idle(SECONDS)
    said = (tmp_path / "said").read_text()
    assert len(re.findall(r"^on c\d on c\d are 2$", said, re.MULTILINE)) == 2


OFFLOAD = """\
import os, signal, subprocess, sys, time
from pathlib import Path
from sf_quantum import qpu

def gate(name):
    Path(name).touch()
    while not Path(f"{name}.go").exists():
        time.sleep(0.02)

with qpu.offload(keep=1, wait_seconds=PATIENCE) as nodes:
    print("kept", *nodes, os.environ["SLURM_NNODES"], flush=True)
    gate("call")
print("has", *nodes, flush=True)
gate("again")
"""


def test_a_killed_program_leaves_no_nodes_to_its_job(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OFFLOAD.replace("PATIENCE", "None"))
    program = Program(
        lab,
        tmp_path,
        f"{sys.executable} program.py & echo $! >pid; wait $! || gate killed",
    )
    program.reaches("call")
    assert program.nodes == [1]
    program.goes_on("call")
    program.reaches("again")
    assert program.nodes == [1, 2]
    assert "kept c1 1\nhas c1 c2 c3\n" in program.said
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    program.reaches("killed")
    # its own job goes on with its node
    lab.wait_for(lambda: program.nodes == [1], "two nodes given back", SECONDS)
    lab.output("scancel", str(program.job))
    lab.wait_idle(SECONDS)


def test_a_cancelled_job_takes_its_further_nodes_with_it(
    lab: Lab, service: RunningService, tmp_path: Path
) -> None:
    call = f"sfq lease --url {service.url} --shrink-to 1 -- true"
    script = f"{call}; gate between; {call.replace('true', 'touch called')}; gate never"
    program = Program(lab, tmp_path, script)
    program.reaches("between")
    assert program.nodes == [1, 2]
    lab.output("scancel", str(program.job))
    program.ends("CANCELLED")
    lab.wait_idle(SECONDS)
    # also while it waits for them
    (tmp_path / "between").unlink()
    program = Program(lab, tmp_path, script)
    program.reaches("between")
    # has the nodes that the program gives back, so that it waits for others
    next_job = other(lab, 2)
    program.goes_on("between")
    program.reaches("called")
    further = f"--name=sfq-nodes-{program.job}"
    lab.wait_for(
        lambda: "PD" in lab.output("squeue", "-h", further, "-o", "%t"),
        "it waits for its nodes",
        SECONDS,
    )
    lab.output("scancel", str(program.job))
    program.ends("CANCELLED")
    until_runs(lab, next_job)
    assert lab.jobs() == [next_job]


def test_the_example_is_malleable_by_one_block(
    lab: Lab, service: RunningService, tmp_path: Path
) -> None:
    rigid, malleable = (
        (EXAMPLE / f"{name}.py").read_text().split('"""', 2)[2].splitlines()
        for name in ("rigid", "malleable")
    )
    changes = difflib.ndiff(rigid, malleable)
    added = [line[2:].strip() for line in changes if line.startswith("+ ")]
    assert [line for line in added if "qpu" in line] == [
        "from sf_quantum import qpu",
        "with qpu.offload(keep=1):",
    ]
    mpi = [shutil.which(f"{name}.mpich") for name in ("mpicxx", "mpiexec")]
    compiler = mpi[0] or shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    words = (compiler, "-O2", "-std=c++17", str(EXAMPLE / "aggregation.cpp"))
    subprocess.run([*words, "-o", str(tmp_path / "aggregation")], check=True)
    launch = mpi[1] or "srun --nodes=1 --ntasks=1"
    command = f"{sys.executable} {EXAMPLE}/malleable.py {service.url} {launch}"
    program = Program(lab, tmp_path, f"PATH={Path(SFQ[0]).parent}:$PATH\n{command}")
    program.ends()
    assert program.said.count("silhouette 0.") >= 1
    ranks = 3 if mpi[1] else 1
    assert f"clustered by {ranks} ranks\niteration 1:" in program.said

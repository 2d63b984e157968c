"""Programs of ``hybrid`` that run in one Slurm job each, the paper's baseline and its malleability.

In each iteration, the program clusters by a step on its nodes, has a lease of the QPU for the
quantum phase, and computes the silhouette. The clustering phase lasts as long as its slowest
method on three nodes; on fewer, the methods of one node run one after the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from tests.benchmarks import slurm_runs
from tests.lab import Lab
from tests.support.service import running_service

PROGRAM = """\
import os, subprocess
from contextlib import nullcontext
from sf_quantum import qpu

run = subprocess.check_call

def cluster():
    nodes = int(os.environ.get("SFQ_NUM_NODES", os.environ["SLURM_JOB_NUM_NODES"]))
    # by the slowest: one method for each node, or what is left on the last one
    seconds = {{3: {longest:g}, 2: {longest:g}, 1: {all:g}}}[nodes]
    run([os.environ.get("SFQ_SRUN", "srun"), "sleep", str(seconds)])

print(os.environ["SLURM_JOB_NUM_NODES"], flush=True)
for _ in range({iterations}):
    cluster()
    with {around}:
        run(["sfq", "lease", "--url", "{url}", "--", "sleep", "{quantum:g}"])
        run(["sleep", "{silhouette:g}"])
"""


@dataclass(frozen=True)
class Phases:
    """Seconds of the phases of an iteration.

    :param clusterings: of each method, the longest first
    """

    clusterings: Sequence[float]
    quantum: float
    silhouette: float
    iterations: int

    @property
    def seconds(self) -> float:
        """Those of all iterations, with each method on a node of its own."""
        once = max(self.clusterings) + self.quantum + self.silhouette
        return self.iterations * once


@dataclass(frozen=True)
class Program:
    """A way to hold the nodes of one Slurm job.

    :param malleable: whether the program gives back all nodes but one around the quantum
        phase and the silhouette, and takes one to three nodes at its start
    """

    malleable: bool

    def run(
        self, lab: Lab, folder: Path, phases: Phases, count: int, stop: Event
    ) -> tuple[float, dict[int, int]]:
        """Run so many programs at once.

        :returns: seconds from the submission of the first to the end of the last, and the
            nodes that each job had at its start
        """
        with running_service() as service:
            text = self._text(phases, service.url, count)
            (folder / "program.py").write_text(text)
            path = f"export PATH={Path(sys.executable).parent}:$PATH"
            nodes = "--nodes=1-3" if self.malleable else "--nodes=3"
            # whole nodes, of four CPUs
            shape = (nodes, "--ntasks-per-node=1", "--cpus-per-task=4")
            jobs = [
                lab.submit(
                    *("--partition=compute", *shape, "--chdir", str(folder)),
                    *(f"--output=log-{n}", "--wrap"),
                    f"{path}; exec {sys.executable} program.py",
                )
                for n in range(count)
            ]
            while set(jobs) & set(lab.jobs()):
                if stop.wait(1):
                    raise slurm_runs.RunError("stopped")
        logs = {job: (folder / f"log-{n}").read_text() for n, job in enumerate(jobs)}
        # The controller forgets jobs that ended long ago.
        states = {job.id: job.state for job in lab.jobcomp()}
        for job, log in logs.items():
            if states[job] != "COMPLETED":
                raise slurm_runs.RunError(log)
        submitted = slurm_runs.moments(lab, slurm_runs.SUBMITTED)
        ended = slurm_runs.moments(lab, slurm_runs.ENDED)
        wall = max(ended[job][0] for job in jobs) - min(submitted[jobs[0]])
        return wall, {job: int(log.split()[0]) for job, log in logs.items()}

    def _text(self, phases: Phases, url: str, count: int) -> str:
        # Of several programs, each waits a second for its nodes and goes on with those free.
        wait_seconds = None if count == 1 else 1
        offload = f"qpu.offload(keep=1, nodes=3, wait_seconds={wait_seconds})"
        return PROGRAM.format(
            longest=max(phases.clusterings),
            all=sum(phases.clusterings),
            iterations=phases.iterations,
            around=offload if self.malleable else "nullcontext()",
            url=url,
            quantum=phases.quantum,
            silhouette=phases.silhouette,
        )


def holds(lab: Lab, first: Mapping[int, int]) -> Iterator[slurm_runs.Hold]:
    """Yield what the jobs of programs held, once all is idle.

    :param first: the nodes that each program's job had at its start
    """
    shrunk = slurm_runs.moments(lab, slurm_runs.SHRUNK)
    for hold in slurm_runs.holds(lab):
        yield hold
        # Slurm's record has the nodes that the job had at its end.
        if given := first.get(hold.job, hold.nodes) - hold.nodes:
            yield replace(hold, nodes=given, ended=shrunk[hold.job][0])

"""Programs that hold their nodes, or give them back around QPU calls: the tables of Rocco et al.

    python -m tests.benchmarks.malleable [--runs 1] [--table I II] [--mode single double]

The phases, the cluster and the modes are those of ``hybrid``, at a tenth of the paper's
seconds. The rows:

- ``rigid``: a program in a Slurm job of three nodes; the paper's baseline. In each of four
  iterations, it clusters by a step on its nodes, has a lease of the QPU for the quantum
  phase, and computes the silhouette.
- ``malleable``: the same program with one line more, ``with qpu.offload(keep=1)`` around
  the quantum phase and the silhouette, as in the paper; its job takes one to three nodes
  at its start.
- ``per-step``: the workflow, by ``hybrid``.

The clustering phase of the programs lasts as long as its slowest method on three nodes; on
fewer, the methods of one node run one after the other. Wall seconds of the programs are
from the submission of the first job to the end of the last; node-seconds are those of the
controller's log, also of the further jobs. In ``double``, the malleable programs wait a
second for their nodes and go on with those that are free. As in ``hybrid``, the QPU has
one quantum phase at a time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from threading import Event

from tests.benchmarks import hybrid, slurm_runs
from tests.benchmarks.hybrid_tables import PAPER, Case
from tests.lab import Lab, running
from tests.support.lab_conf import Options
from tests.support.service import running_service

PROGRAM = """\
import os, subprocess, sys
from sf_quantum import qpu

url, quantum = sys.argv[1:]
run = subprocess.check_call

def cluster():
    nodes = int(os.environ.get("SFQ_NUM_NODES", os.environ["SLURM_JOB_NUM_NODES"]))
    # by the slowest: one method for each node, or what is left on the last one
    seconds = {{3: {longest}, 2: {longest}, 1: {all}}}[nodes]
    run([os.environ.get("SFQ_SRUN", "srun"), "sleep", str(seconds)])

print(os.environ["SLURM_JOB_NUM_NODES"], flush=True)
for _ in range({iterations}):
    cluster()
{offloaded}
"""
CALL = """\
run(["sfq", "lease", "--url", url, "--", "sleep", quantum])
run(["sleep", "{silhouette}"])
"""
SHRUNK = r"sched: _update_job: setting nodes to \S+ for JobId=(\d+)"
ROWS = {
    "rigid": "",
    "malleable": "with qpu.offload(keep=1, nodes=3, patience={patience}):\n",
}
#: seconds to wait for nodes, by mode
PATIENCE = {"single": None, "double": 1}


@dataclass(frozen=True)
class Figures:
    """Wall seconds and classical node-seconds."""

    wall: float
    nodes: float


def program(row: str, mode: str) -> str:
    """Return a row's program."""
    line = ROWS[row].format(patience=PATIENCE[mode])
    call = CALL.format(silhouette=f"{hybrid.SILHOUETTE * hybrid.SCALE:g}")
    indent = "    " if line else ""
    block = line + "".join(f"{indent}{text}\n" for text in call.splitlines())
    return PROGRAM.format(
        longest=max(hybrid.CLUSTERINGS) * hybrid.SCALE,
        all=sum(hybrid.CLUSTERINGS) * hybrid.SCALE,
        iterations=hybrid.ITERATIONS,
        offloaded="".join(f"    {text}\n" for text in block.splitlines()),
    )


def measure(case: Case) -> Figures:
    """Run a case on a lab of its own."""
    if case.row not in ROWS:
        setting = hybrid.Setting(Options(), 0, 0, hybrid.ITERATIONS, None)
        found = hybrid.measure(case, setting, Event())
        return Figures(found.wall, found.nodes)
    with (
        tempfile.TemporaryDirectory(prefix="sfq-malleable-") as name,
        running(Path(name) / "lab", Options()) as lab,
        running_service() as service,
    ):
        folder = Path(name)
        (folder / "program.py").write_text(program(case.row, case.mode))
        seconds = hybrid.QUANTUM[case.experiment] * hybrid.SCALE
        words = f"{sys.executable} program.py {service.url} {seconds:g}"
        path = f"export PATH={Path(sys.executable).parent}:$PATH"
        # whole nodes, of four CPUs
        nodes = "--nodes=1-3" if ROWS[case.row] else "--nodes=3"
        shape = (nodes, "--ntasks-per-node=1", "--cpus-per-task=4")
        jobs = [
            lab.submit(
                *("--partition=compute", *shape, "--chdir", name),
                *(f"--output=log-{n}", "--wrap", f"{path}; exec {words}"),
            )
            for n in range(hybrid.MODES[case.mode])
        ]
        lab.wait_for(lambda: not set(jobs) & set(lab.jobs()), "the end", 600)
        if failed := [n for n, job in enumerate(jobs) if lab.state(job) != "COMPLETED"]:
            raise slurm_runs.RunError((folder / f"log-{failed[0]}").read_text())
        first = [(folder / f"log-{n}").read_text().split()[0] for n in range(len(jobs))]
        return held(lab, dict(zip(jobs, map(int, first), strict=True)))


def held(lab: Lab, jobs: Mapping[int, int]) -> Figures:
    """Return the figures of programs from the controller's log, once all is idle.

    :param jobs: the programs', and how many nodes each had at its start
    """
    lab.wait_idle()
    started = slurm_runs.moments(lab, slurm_runs.STARTED)
    ended = slurm_runs.moments(lab, slurm_runs.ENDED)
    shrunk = slurm_runs.moments(lab, SHRUNK)
    further = {job.id: job.nodes for job in lab.jobcomp() if job.id not in jobs}
    seconds = 0.0
    for job, (start, *_) in started.items():
        if job in jobs:
            # one node once it has been shrunk
            end = ended[job][0]
            before = min([*shrunk.get(job, []), end]) - start
            seconds += (jobs[job] - 1) * before + end - start
        else:
            seconds += further[job] * (ended[job][0] - start)
    first = slurm_runs.submissions(lab)[0]
    return Figures(max(ended[job][0] for job in jobs) - first, seconds)


def table(results: dict[Case, Figures]) -> list[str]:
    """Format the figures as lines of Markdown, with the paper's ratios beside ours."""
    lines = [
        "| table | row | wall s | node-s | wall ratio (paper) | node-s ratio (paper) |",
        "|---|---|---|---|---|---|",
    ]
    paper = ("rigid", "per-step", "malleable")
    for experiment, mode, row in dict.fromkeys(
        (case.experiment, case.mode, case.row) for case in results
    ):
        own, base = (
            [f for c, f in results.items() if (c.experiment, c.mode, c.row) == key]
            for key in ((experiment, mode, row), (experiment, mode, "rigid"))
        )
        cells = []
        for index, kind in enumerate(("wall", "nodes")):
            values = PAPER[experiment, mode]
            theirs = values[paper.index(row)][index] / values[0][index]
            ours = mean(getattr(f, kind) for f in own) / mean(
                getattr(f, kind) for f in base
            )
            cells.append(f"{ours:.3f} ({theirs:.3f})")
        wall, nodes = mean(f.wall for f in own), mean(f.nodes for f in own)
        lines.append(
            f"| {experiment}, {mode} | {row} | {wall:.1f} | {nodes:.1f} | "
            f"{' | '.join(cells)} |"
        )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side")
    parser.add_argument("--table", nargs="+", choices=("I", "II"), default=["I", "II"])
    modes = [*hybrid.MODES]
    parser.add_argument("--mode", nargs="+", choices=modes, default=modes)
    args = parser.parse_args()
    slurm_runs.heed_sigterm()
    rows = [*ROWS, "per-step"]
    cases = [
        Case(*key, run)
        for key in product(args.table, args.mode, rows)
        for run in range(args.runs)
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = dict(zip(cases, pool.map(measure, cases), strict=True))
    print("\n".join(table(results)))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()

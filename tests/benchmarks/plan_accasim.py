"""The queue of `sfq plan` against AccaSim, on traces in the Standard Workload Format.

    python -m tests.benchmarks.plan_accasim --accasim PYTHON [--jobs 3000] [--seeds 3]

PYTHON is a Python 3.11 that has AccaSim (`pip install accasim`; MIT licence), which this project
neither needs nor imports. Each trace is synthetic and has ``--jobs`` jobs on 128 nodes. AccaSim's
dispatchers are its own `fifo` and `easy`, and `easy, kept`, whose reservation is kept and renewed
(`accasim_run.py`).

A row of the table, in Markdown, has the mean wait and the mean bounded slowdown (run times below
10 s count as 10 s), of AccaSim and of `sfq plan`, as the mean over the traces, and the largest
difference on one trace. Both are computed here from the times at which jobs started: AccaSim's own
slowdown is not bounded. *same* is the share of jobs that start in the same second in both.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import simpy

from sf_quantum.planning.experiment import SHORT_SECONDS
from sf_quantum.planning.simulation.cluster import Cluster, Scheduling, Usage
from sf_quantum.planning.simulation.qpu import Process
from sf_quantum.planning.traces import swf
from sf_quantum.planning.traces.node_trace import NodeJob
from tests.benchmarks import traces
from tests.benchmarks.traces import Synthetic

_NODES = 128
_PARTITION = "compute"
_HEADER = (
    "estimates",
    "AccaSim's dispatcher",
    "wait, AccaSim",
    "`sfq plan`",
    "largest difference",
    "slowdown, AccaSim",
    "`sfq plan`",
    "largest difference",
    "same",
)
_RUNNER = Path(__file__).with_name("accasim_run.py")
_FIFO = Scheduling(backfill_seconds=math.inf, limit_seconds=0)
_EASY = Scheduling(limit_seconds=0, depth=100_000)
_DISPATCHERS = {"fifo": _FIFO, "easy": _EASY, "easy, kept": _EASY}


@dataclass(frozen=True)
class Figures:
    """Means over the jobs of a trace; the wait is in seconds."""

    wait: float
    slowdown: float


def simulate(jobs: Sequence[NodeJob], scheduling: Scheduling) -> list[float]:
    """Return the time at which each job starts in the queue of `sfq plan`."""
    env = simpy.Environment()
    cluster = Cluster(env, {_PARTITION: _NODES}, scheduling=scheduling)
    started = [math.nan] * len(jobs)

    def run(number: int, job: NodeJob) -> Process:
        yield env.timeout(job.submitted)
        allocation = cluster.request(job.nodes, job.estimate, Usage())
        yield allocation.granted
        started[number] = env.now
        yield env.timeout(job.seconds)
        cluster.release(allocation)

    for number, job in enumerate(jobs):
        env.process(run(number, job))
    env.run()
    return started


def accasim(python: Path, dispatcher: str, file: Path, jobs: int) -> list[float]:
    """Return the time at which each job starts in AccaSim."""
    command = [str(python), str(_RUNNER), dispatcher, str(file), str(_NODES)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    starts: Mapping[str, float] = json.loads(done.stdout)
    return [starts[str(number)] for number in range(1, jobs + 1)]


def figures(jobs: Sequence[NodeJob], started: Sequence[float]) -> Figures:
    pairs = [*zip(jobs, started, strict=True)]
    return Figures(
        wait=fmean(start - job.submitted for job, start in pairs),
        slowdown=fmean(
            max(
                1.0,
                (start - job.submitted + job.seconds) / max(job.seconds, SHORT_SECONDS),
            )
            for job, start in pairs
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accasim", type=Path, required=True, metavar="PYTHON")
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--load", type=float, default=0.75)
    args = parser.parse_args()
    _print_row(*_HEADER)
    _print_row(*["---"] * len(_HEADER))
    for margin in (1.0, 5.0):
        for dispatcher in _DISPATCHERS:
            if (margin, dispatcher) == (5.0, "fifo"):
                continue  # it does not read estimates
            row = compare(args, margin, dispatcher)
            shown = "exact" if margin == 1 else f"up to {margin:g} times the run time"
            _print_row(shown, dispatcher, *row)


def _print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def compare(args: argparse.Namespace, margin: float, dispatcher: str) -> list[str]:
    """Run both on the same traces."""
    theirs, ours, same = [], [], []
    with tempfile.TemporaryDirectory(prefix="sfq-accasim-") as folder:
        file = Path(folder) / "trace.swf"
        for seed in range(args.seeds):
            settings = Synthetic(
                jobs=args.jobs,
                nodes=_NODES,
                most=64,
                seconds=1800,
                spread=1.5,
                longest=86400,
                load=args.load,
                margin=margin,
                seed=seed,
            )
            file.write_text(traces.write(settings))
            jobs = swf.read(file, _PARTITION, _NODES).jobs
            started = accasim(args.accasim, dispatcher, file, args.jobs)
            mine = simulate(jobs, _DISPATCHERS[dispatcher])
            theirs.append(figures(jobs, started))
            ours.append(figures(jobs, mine))
            same += [a == b for a, b in zip(started, mine, strict=True)]
    return [
        *_cells([one.wait for one in theirs], [one.wait for one in ours], "s"),
        *_cells([one.slowdown for one in theirs], [one.slowdown for one in ours], ""),
        f"{100 * fmean(same):.1f} %",
    ]


def _cells(theirs: Sequence[float], ours: Sequence[float], unit: str) -> list[str]:
    largest = max(
        (mine / other - 1 for mine, other in zip(ours, theirs, strict=True)), key=abs
    )
    means = (f"{fmean(values):,.5g} {unit}".strip() for values in (theirs, ours))
    return [*means, f"{100 * largest:+.2f} %"]


if __name__ == "__main__":
    main()

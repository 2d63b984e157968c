"""How long planning takes, and how close it comes to the tables of Rocco et al. (QCE 2025).

    python -m tests.benchmarks.planning [--jobs 10000] [--repetitions 3]

- speed: one repetition of each strategy, with a cluster of 1,000 nodes, 10 QPUs, one
  hybrid application for ten jobs of others, and the peak memory of the process. It is
  repeated with half and with a quarter of the jobs; ``growth`` is the exponent of the
  time's growth with the number of jobs.
- tables: both workloads, one and two at once, with the phases that
  ``examples/planning/paper.yml`` derives from one run of table II alone, and the shape of
  each of the paper's programs.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from sf_quantum.files import JSON
from sf_quantum.planning import experiment, random_draws
from sf_quantum.planning.experiment import Simulation
from sf_quantum.planning.simulation.strategies import (
    CoScheduled,
    Elastic,
    PerStep,
    Strategy,
)
from sf_quantum.planning.workloads import reading
from sf_quantum.planning.workloads.workload import Workload
from tests.benchmarks import hybrid
from tests.support.folders import ROOT

NODES, QPUS = 1000, 10
PER_HOUR = 200.0


def large(jobs: int) -> Workload:
    """A cluster at 80 % load: jobs of others, and a tenth as many applications."""
    each = jobs // 10 // QPUS
    phases = [
        {"nodes": 8, "seconds": 600, "spread": 0.5},
        {"seconds": 60, "spread": 0.3, "jobs": 2},
        {"nodes": 2, "seconds": 300, "spread": 0.5},
    ]
    return Workload.model_validate(
        {
            "partitions": {"compute": {"nodes": NODES}},
            "qpus": {f"q{number}": {"setup_seconds": 5} for number in range(QPUS)},
            "applications": {
                f"a{number}": {
                    "count": each,
                    "per_hour": PER_HOUR / 10 / QPUS,
                    "repeats": 4,
                    "phases": [
                        phases[0],
                        {**phases[1], "qpu": f"q{number}"},
                        phases[2],
                    ],
                }
                for number in range(QPUS)
            },
            "background": {
                "jobs": [
                    {
                        "per_hour": PER_HOUR,
                        "nodes": 1,
                        "most_nodes": 64,
                        "seconds": 377,  # 680 nodes on average; the applications take 120
                        "spread": 1.5,
                    }
                ],
                "warm_up_seconds": 3600,
            },
        }
    )


class Speed(NamedTuple):
    """Of one repetition; memory is the peak of the process."""

    seconds: float
    megabytes: float
    jobs_of_others: int


def measure(jobs: int, strategy: int) -> Speed:
    """Simulate one repetition in this process."""
    workload = large(jobs)
    began = time.process_time()
    applications = random_draws.applications(workload, 0)
    simulation = Simulation(
        workload, workload.strategies[strategy], 0, applications, []
    )
    simulation.run()
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Speed(seconds, peak, len(simulation.others.waits))


def in_process(jobs: int, strategy: int) -> Speed:
    """Simulate in a process of its own, whose memory is measured."""
    words = [sys.executable, "-m", "tests.benchmarks.planning", "--jobs", str(jobs)]
    command = [*words, "--strategy", str(strategy)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Speed(*json.loads(done.stdout))


def speeds(jobs: int, repetitions: int) -> None:
    sizes = [jobs // 4, jobs // 2, jobs]
    header = ["strategy", *(f"{size} jobs" for size in sizes), "growth", "memory"]
    print(*header, sep=" | ")
    for index, strategy in enumerate(large(jobs).strategies):
        found = {
            size: [in_process(size, index) for _ in range(repetitions)]
            for size in sizes
        }
        times = [median(one.seconds for one in found[size]) for size in sizes]
        growth = math.log(times[-1] / times[0]) / math.log(sizes[-1] / sizes[0])
        peak = max(one.megabytes for one in found[jobs])
        cells = [strategy.name, *(f"{seconds:.2f} s" for seconds in times)]
        print(*cells, f"{growth:.2f}", f"{peak:.0f} MB", sep=" | ")


# wall time and node-seconds of all runs, by the seconds of the quantum phase and the runs:
# baseline, workflow, malleability
TABLES = {
    (120.0, 1): [(1019.58, 3058.74), (1057.80, 1161.20), (1029.06, 1647.75)],
    (120.0, 2): [(2038.43, 6115.30), (1226.00, 2324.00), (1127.65, 2817.73)],
    (0.5, 1): [(539.44, 1618.33), (569.00, 1148.00), (549.60, 1168.29)],
    (0.5, 2): [(1076.98, 3230.95), (1089.00, 2324.00), (648.61, 1622.63)],
}


class Program(NamedTuple):
    """One of the paper's three, as ``sfq plan`` has it.

    :param column: in :data:`TABLES`
    :param cluster: keys of the clustering phase
    :param most_jobs: of all runs on classical nodes at once
    """

    name: str
    column: int
    strategy: Strategy
    cluster: Mapping[str, JSON]
    most_jobs: int | None = None


_LONGEST = 76.2
_ONE_JOB: Mapping[str, JSON] = {"tasks": 1, "nodes": 3}
# lengths of the methods: the longest follows from table II, the shorter ones are those of
# `hybrid`
_METHODS: Mapping[str, JSON] = {
    **{"tasks": 1, "seconds": None},
    "task_seconds": [_LONGEST, *hybrid.CLUSTERINGS[1:]],
}
PROGRAMS = (
    Program("baseline, `co-scheduled`", 0, CoScheduled(), _ONE_JOB),
    Program("workflow, `per-step`", 1, PerStep(), _ONE_JOB),
    Program("workflow, `per-step`, one job at a time", 1, PerStep(), _ONE_JOB, 1),
    # it gives nodes back when the quantum phase begins, and not before
    Program(
        "malleability, `elastic` with `keep: 1`",
        *(2, Elastic(keep=1, max=3, idle=1e6), _METHODS),
    ),
)


def tables() -> None:
    paper = reading.load(ROOT / "examples/planning/paper.yml")
    runs = [f"{seconds:g} s, {runs}" for seconds, runs in TABLES]
    print("program, strategy", *runs, sep=" | ")
    for program in PROGRAMS:
        shown = [_misses(paper, program, *key) for key in TABLES]
        print(program.name, *shown, sep=" | ")


def _misses(paper: Workload, program: Program, seconds: float, runs: int) -> str:
    """Compare wall time and node-seconds with those of the paper.

    :param seconds: of the quantum phase
    """
    (name, settings), *_ = paper.applications.items()
    cluster, solve, score = settings.phases
    phases = [
        cluster.model_copy(update=dict(program.cluster)),
        solve.model_copy(update={"seconds": seconds}),
        score,
    ]
    compute = paper.partitions["compute"]
    workload = paper.model_copy(
        update={
            "applications": {
                name: settings.model_copy(update={"phases": phases, "count": runs})
            },
            "partitions": {
                **paper.partitions,
                "compute": compute.model_copy(update={"most_jobs": program.most_jobs}),
            },
        }
    )
    result = experiment.run(workload, program.strategy, [])
    if isinstance(result, str):
        raise SystemExit(result)
    wall, held = TABLES[seconds, runs][program.column]
    errors = (
        result.mean("makespan") / wall - 1,
        result.mean("node-seconds") * runs / held - 1,
    )
    return ", ".join(f"{100 * error:+.1f} %" for error in errors)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--strategy", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.strategy is not None:
        print(json.dumps(measure(args.jobs, args.strategy)))
        return
    tables()
    print()
    speeds(args.jobs, args.repetitions)


if __name__ == "__main__":
    main()

"""What `sfq plan` predicts, against a Slurm of 200 nodes that runs the same jobs.

    python -m tests.benchmarks.plan_slurm [--nodes 200] [--jobs 1950] [--only NUMBER]

A slurmctld and a slurmd for each node run on this machine, with licences for vQPUs. The jobs
sleep, so that hundreds run side by side. Their run times and estimates are those of a synthetic
trace in the Standard Workload Format, and of hybrid applications that `sfq plan` draws; the
submissions follow their times. In Slurm an application is

- `co-scheduled`: one job with a licence, for all its phases;
- `per-step`: a job for each phase, submitted when the one before it has ended; those of quantum
  phases have a licence.

The QPU is a lock, which a job holds while its quantum phase takes. Slurm is configured as EASY
backfilling (`bf_job_part_count_reserve=1`) with a pass every second. The prediction is made
before each run. It knows the workload, `bf_interval`, and how long single jobs take to start and
to end in the same Slurm before there is any load.

A row of the table, in Markdown, has the prediction, the measurement and their difference, all times
in seconds: *wall* and *wait* are means of the applications, *node-seconds* those of one
application, *others-wait* the mean of the trace's jobs that start before the last application
ends. A second row, *afterwards*, is a prediction that knows how long jobs took to start and to end
in the run: the difference to the first is that of a machine with other load. ``nice -n -10`` makes
it smaller.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

from sf_quantum.planning import random_draws
from sf_quantum.planning.experiment import Simulation
from sf_quantum.planning.simulation.application import (
    Application,
    ClassicalStep,
    QuantumStep,
)
from sf_quantum.planning.simulation.strategies import CoScheduled, Strategy
from sf_quantum.planning.traces.node_trace import NodeTrace
from sf_quantum.planning.workloads import reading
from sf_quantum.planning.workloads.workload import Workload
from tests.benchmarks import traces
from tests.benchmarks.slurm_runs import ENDED, STARTED, heed_sigterm, moments
from tests.benchmarks.traces import Synthetic
from tests.lab import Lab, running
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing

_PARTITION = "compute"  # the lab's own
_BACKFILL_SECONDS = 1
# slurmctld looks once per second whether its queue needs a pass, with batch_sched_delay=0
_QUEUE_SECONDS = 1
_POLL_SECONDS = 0.05
_SUBMITTED = r"_slurm_rpc_submit_batch_job: JobId=(\d+) "
_MEASURES = ("makespan", "wall", "wait", "node-seconds", "others-wait")
_STRATEGIES: list[dict[str, str | int]] = [
    {"type": "co-scheduled"},
    {"type": "co-scheduled", "vqpus": 8},
    {"type": "per-step"},
]


@dataclass(frozen=True)
class Overheads:
    """What Slurm takes for a job without any load, in seconds.

    :param job: to submit it, and to tell of its end
    :param running: for which it runs beyond the run time of its script
    :param completing: until its nodes are free
    """

    job: float
    running: float
    completing: float


@dataclass(frozen=True)
class Job:
    """A submitted job, as the driver sees it.

    :param ended: is set when Slurm's record has the job
    """

    id: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Cluster:
    """The lab's Slurm; times are in seconds since ``began``.

    :param qpu: a file, whose lock is the QPU
    :param late: how late the driver submitted each job
    """

    lab: Lab
    qpu: Path
    began: float = 0.0
    late: list[float] = field(default_factory=list)
    _jobs: dict[int, Job] = field(default_factory=dict)
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def submit(
        self, script: str, nodes: int, limit: float, *, licence: bool = False
    ) -> Job:
        """Submit a job, after all that were to be submitted before."""
        words = [f"--nodes={nodes}", f"--time={math.ceil(limit / 60 - 1e-9)}"]
        words += ["--licenses=qpu:1"] if licence else []
        words += ["--parsable", "--output=/dev/null", f"--wrap={script}"]
        due = time.time()
        async with self._order:
            process = await asyncio.create_subprocess_exec(
                "sbatch",
                *words,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **self.lab.environment},
            )
            told, _ = await process.communicate()
        self.late.append(time.time() - due)
        if process.returncode:
            raise SystemExit(f"sbatch: exit code {process.returncode}")
        return self._job(int(told))

    def _job(self, number: int) -> Job:
        return self._jobs.setdefault(number, Job(number))

    async def until(self, seconds: float) -> None:
        """Wait for a time of the workload."""
        await asyncio.sleep(self.began + seconds - time.time())

    async def follow(self) -> None:
        """Tell of the jobs that end, as Slurm writes its record."""
        rest = ""
        record = self.lab.folder / "jobcomp"
        record.touch()
        with record.open() as file:
            while True:
                *lines, rest = (rest + file.read()).split("\n")
                for line in lines:
                    if found := re.match(r"JobId=(\d+) ", line):
                        self._job(int(found[1])).ended.set()
                await asyncio.sleep(_POLL_SECONDS)


async def _with_follower(cluster: Cluster, work: Coroutine[None, None, None]) -> None:
    follower = asyncio.create_task(cluster.follow())
    try:
        await work
    finally:
        follower.cancel()
        with suppress(asyncio.CancelledError):
            await follower


def measure_overheads(cluster: Cluster, jobs: int = 10) -> Overheads:
    """Run jobs one after the other."""
    before, beyond, completing = [], [], []
    lab, seconds, nodes = cluster.lab, 1.0, 8

    async def run() -> None:
        for _ in range(jobs):
            began = time.time()
            job = await cluster.submit(f"exec sleep {seconds}", nodes, 60)
            await job.ended.wait()
            told = time.time()
            await asyncio.to_thread(lab.wait_idle)
            free = time.time()
            started = min(moments(lab, STARTED)[job.id])
            ended = min(moments(lab, ENDED)[job.id])
            submitted = min(moments(lab, _SUBMITTED)[job.id])
            before.append(submitted - began + told - ended)
            beyond.append(ended - started - seconds)
            completing.append(free - ended)

    asyncio.run(_with_follower(cluster, run()))
    return Overheads(median(before), median(beyond), median(completing))


def describe(args: argparse.Namespace, overheads: Overheads) -> dict[str, object]:
    """Return the content of the workload file."""
    phases = [
        {"nodes": 3, "seconds": 10, "spread": 0.3},
        {"qpu": "qpu", "seconds": 1.5, "spread": 0.3},
        {"nodes": 3, "seconds": 6, "spread": 0.3},
    ]
    return {
        "partitions": {_PARTITION: {"nodes": args.nodes}},
        "qpus": {"qpu": {"partition": _PARTITION, "vqpus": 4}},
        "applications": {
            "hybrid": {
                "count": args.applications,
                "per_hour": 3600 * args.applications / args.seconds,
                "repeats": 2,
                "margin": 4,
                "phases": phases,
            }
        },
        "background": {"traces": [{"file": "jobs.swf"}], "warm_up_seconds": 20},
        "overheads": {
            "step_seconds": 0,
            "job_seconds": overheads.job,
            "resume_seconds": 0,
        },
        "scheduling": {
            "queue_seconds": _QUEUE_SECONDS,
            "backfill_seconds": _BACKFILL_SECONDS,
            "depth": 2000,
            "completing_seconds": overheads.running + overheads.completing,
        },
        "strategies": _STRATEGIES,
        "seed": args.seed,
    }


def write_trace(args: argparse.Namespace) -> str:
    return traces.write(
        Synthetic(
            jobs=args.jobs,
            nodes=args.nodes,
            most=16,
            seconds=5,
            spread=0.8,
            longest=40,
            load=args.load,
            margin=20,
            seed=args.seed,
        )
    )


@dataclass
class Run:
    """A strategy's run.

    :param of_applications: the ids of the jobs of each application, in the order of arrival
    :param of_trace: those of the trace's jobs, in its order
    """

    cluster: Cluster
    strategy: Strategy
    of_applications: list[list[int]] = field(default_factory=list)
    of_trace: list[int] = field(default_factory=list)

    async def all(self, applications: Sequence[Application], trace: NodeTrace) -> None:
        """Run everything until the last application ends."""
        self.cluster.began = time.time() + 0.5
        others = asyncio.create_task(self._others(trace))
        try:
            await asyncio.gather(*map(self._application, applications))
        finally:
            others.cancel()
            with suppress(asyncio.CancelledError):
                await others

    async def _others(self, trace: NodeTrace) -> None:
        for job in trace.jobs:
            await self.cluster.until(job.submitted)
            submitted = await self.cluster.submit(
                f"exec sleep {job.seconds}", job.nodes[_PARTITION], job.estimate
            )
            self.of_trace.append(submitted.id)

    async def _application(self, application: Application) -> None:
        ids: list[int] = []
        self.of_applications.append(ids)
        await self.cluster.until(application.arrival)
        if isinstance(self.strategy, CoScheduled):
            await self._co_scheduled(application, ids)
            return
        for step in application.steps:
            await self._job(step, application, ids)

    async def _co_scheduled(self, application: Application, ids: list[int]) -> None:
        held = self.strategy.holds(application)[_PARTITION]
        script = "; ".join(self._script(step) for step in application.steps)
        job = await self.cluster.submit(
            script, held, application.estimate(), licence=True
        )
        ids.append(job.id)
        await job.ended.wait()

    async def _job(
        self,
        step: ClassicalStep | QuantumStep,
        application: Application,
        ids: list[int],
    ) -> None:
        expected = application.margin * step.expected_seconds
        job = await self.cluster.submit(
            self._script(step),
            1 if isinstance(step, QuantumStep) else step.nodes()[_PARTITION],
            max(step.seconds, expected),
            licence=isinstance(step, QuantumStep),
        )
        ids.append(job.id)
        await job.ended.wait()

    def _script(self, step: ClassicalStep | QuantumStep) -> str:
        sleep = f"sleep {step.seconds:.3f}"
        if isinstance(step, QuantumStep):
            return f"flock {self.cluster.qpu} {sleep}"
        return sleep


def measure(run: Run, applications: Sequence[Application]) -> dict[str, float]:
    """Compute the measures of `sfq plan` from the controller's log."""
    lab, began = run.cluster.lab, run.cluster.began
    submitted = moments(lab, _SUBMITTED)
    started, ended = moments(lab, STARTED), moments(lab, ENDED)
    ends = [ended[ids[-1]][-1] for ids in run.of_applications]
    walls = [
        end - began - application.arrival
        for end, application in zip(ends, applications, strict=True)
    ]
    waits = [
        wall - application.seconds
        for wall, application in zip(walls, applications, strict=True)
    ]
    nodes = {job.id: job.nodes for job in lab.jobcomp()}
    held = sum(
        nodes[job] * (ended[job][-1] - started[job][0])
        for ids in run.of_applications
        for job in ids
    )
    others = [
        started[job][0] - submitted[job][0]
        for job in run.of_trace
        if job in started
        and started[job][0] <= max(ends)
        and submitted[job][0] >= began + applications[0].arrival
    ]
    return {
        "makespan": max(ends) - began - applications[0].arrival,
        "wall": fmean(walls),
        "wait": fmean(waits),
        "node-seconds": held / len(applications),
        "others-wait": fmean(others),
    }


def running_beyond(run: Run, trace: NodeTrace) -> float:
    """Return how long jobs of the trace ran beyond the run times of their scripts, on average."""
    started, ended = (moments(run.cluster.lab, one) for one in (STARTED, ENDED))
    return fmean(
        ended[number][-1] - started[number][0] - job.seconds
        for number, job in zip(run.of_trace, trace.jobs, strict=False)
        if number in ended
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1950)
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--applications", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=220)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", type=int, metavar="NUMBER")
    args = parser.parse_args()
    if lacking := missing():
        sys.exit(lacking)
    heed_sigterm()
    with tempfile.TemporaryDirectory(prefix="sfq-plan-slurm-") as name:
        place = Path(name)
        (place / "jobs.swf").write_text(write_trace(args))
        _print_row("strategy", *_MEASURES)
        _print_row(*["---"] * (1 + len(_MEASURES)))
        for number in args.only or range(len(_STRATEGIES)):
            print_comparison(args, place, number)


def print_comparison(args: argparse.Namespace, place: Path, number: int) -> None:
    """Predict a strategy, run it, and print both."""
    folder = place / str(number)
    with running(folder / "lab", options(args, number)) as lab:
        cluster = Cluster(lab, folder / "qpu")
        overheads = measure_overheads(cluster)
        workload, trace = load(args, place, overheads)
        predicted = predict(workload, trace, number)
        applications = random_draws.applications(workload, 0)
        run = Run(cluster, workload.strategies[number])
        load_before = os.getloadavg()
        asyncio.run(_with_follower(cluster, run.all(applications, trace)))
        measured = measure(run, applications)
        _print_comparison(run.strategy.name, predicted, measured)
        loaded = replace(overheads, running=running_beyond(run, trace))
        workload, trace = load(args, place, loaded)
        again = predict(workload, trace, number)
        _print_comparison(f"{run.strategy.name}, afterwards", again, measured)
        late = sorted(cluster.late)
        print(
            f"{run.strategy.name}: {len(late)} jobs, submitted {median(late):.2f} s late, at "
            f"most {late[-1]:.1f} s; load {load_before[0]:.0f} to {os.getloadavg()[0]:.0f}; "
            f"before: {_shown(overheads)}; in the run: {_shown(loaded)}",
            file=sys.stderr,
            flush=True,
        )


def _shown(overheads: Overheads) -> str:
    return ", ".join(f"{name} {value:.2f} s" for name, value in vars(overheads).items())


def _print_comparison(
    name: str, predicted: Mapping[str, float], measured: Mapping[str, float]
) -> None:
    cells = [
        f"{predicted[one]:.1f}, {measured[one]:.1f} "
        f"({100 * (predicted[one] / measured[one] - 1):+.1f} %)"
        for one in _MEASURES
    ]
    _print_row(name, *cells)


def _print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def options(args: argparse.Namespace, number: int) -> Options:
    vqpus = _STRATEGIES[number].get("vqpus", 4)
    parameters = {
        "bf_interval": _BACKFILL_SECONDS,
        "bf_job_part_count_reserve": 1,
        "bf_max_job_test": 2000,
        "bf_resolution": 1,
        "default_queue_depth": 2000,
        "sched_interval": 1,
        "sched_min_interval": 100000,
        "batch_sched_delay": 0,
    }
    words = ",".join(f"{key}={value}" for key, value in parameters.items())
    return Options(
        nodes=args.nodes,
        qnodes=0,
        cpus=1,
        licenses=f"qpu:{vqpus}",
        min_job_age=3600,
        extra=(f"SchedulerParameters={words}", "MaxJobCount=20000"),
    )


def load(
    args: argparse.Namespace, place: Path, overheads: Overheads
) -> tuple[Workload, NodeTrace]:
    file = place / "workload.yml"
    file.write_text(json.dumps(describe(args, overheads)))  # JSON is valid YAML
    workload = reading.load(file)
    (trace,) = reading.recorded(workload, file)
    assert isinstance(trace, NodeTrace)
    return workload, trace


def predict(workload: Workload, trace: NodeTrace, number: int) -> Mapping[str, float]:
    applications = random_draws.applications(workload, 0)
    strategy = workload.strategies[number]
    found = Simulation(workload, strategy, 0, applications, [trace]).run()
    # the clients' partition is that of the classical phases
    held = found["node-seconds"] + found["quantum-node-seconds"]
    return {**found, "node-seconds": held}


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()

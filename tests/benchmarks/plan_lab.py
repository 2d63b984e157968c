"""What ``sfq plan`` predicts for Rocco et al.'s experiment, and what the Slurm lab then takes.

    python -m tests.benchmarks.plan_lab [--jobs 6] [--minutes 18] [--save FILE] [--page FILE]

The cells are those of ``tests.benchmarks.hybrid``: two tables, one workflow and two, and
the workflow on a cluster that others load, each with every allocation strategy of
``sfq.slurm``; a StreamFlow file has the very lines that ``sfq plan`` prints for it. First,
every cell is run once. From these runs, and before it is run again, each cell is
predicted: StreamFlow's and Slurm's overheads are fitted from the journals of the other
cells with one workflow, and the time for which jobs hold nodes beside their work from
Slurm's record of these. The lengths of the phases are those of the commands. Others' jobs
on the loaded cluster are known beforehand, like those of a trace. Then every cell is run
again, as far as the time suffices, and compared.

Wall seconds are from the first driver's first job to the end of the last job, by the
journals, and node-seconds are from Slurm's record.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import product, takewhile
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import NamedTuple

from sf_quantum.files import JSON, mapping
from sf_quantum.files import number as as_number
from sf_quantum.planning import allocation_lines, experiment
from sf_quantum.planning.measured import fitting, sources
from sf_quantum.planning.measured.journals import EarlierRuns
from sf_quantum.planning.simulation.strategies import (
    Elastic,
    PerStep,
    Reserved,
    Strategy,
)
from sf_quantum.planning.traces.node_trace import NodeJob, NodeTrace
from sf_quantum.planning.workloads.workload import Workload
from tests.benchmarks import hybrid, slurm_runs
from tests.benchmarks.hybrid_tables import LOADED
from tests.benchmarks.page import Block, wrapped
from tests.lab import running
from tests.support.journals import Event as JournalEvent
from tests.support.journals import typed
from tests.support.lab_cluster import LabError
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing

NAME = "clustering"
NODES = 3
# the idle time of a tenth of the usual one, as the phases
_IDLE, _MOST = 1.0, NODES
STRATEGIES: dict[str, Strategy] = {
    "reserved": Reserved(),
    "per-step": PerStep(),
    "elastic, ahead": Elastic(idle=_IDLE, max=_MOST, ahead=True),
    "elastic, keep 1, ahead": Elastic(idle=_IDLE, max=_MOST, keep=1, ahead=True),
}
LOAD, SEED = 0.7, 1
# nobody gives a time limit, so Slurm assumes that jobs may take for ever
UNLIMITED = 1e6
#: a difference that is not told as a miss
CLOSE = 0.05


class Cell(NamedTuple):
    """A table of the paper, or the loaded cluster; ``single`` or ``double``."""

    table: str
    mode: str
    strategy: str


@dataclass(frozen=True)
class Figures:
    """Wall seconds, and classical node-seconds of all workflows."""

    wall: float
    nodes: float


@dataclass(frozen=True)
class Measured:
    """A run of a cell.

    :param delay: seconds from the start of the drivers to their first job
    """

    run: hybrid.Run
    delay: float

    @property
    def figures(self) -> Figures:
        found = self.run.figures()
        return Figures(found.wall, found.nodes)


def cells() -> list[Cell]:
    """List the cells, the longest first."""
    tables = product(("I", "II"), ("double", "single"), STRATEGIES)
    loaded = (Cell(LOADED, "single", name) for name in STRATEGIES if name != "reserved")
    return [*loaded, *(Cell(*cell) for cell in tables)]


def workload(
    cell: Cell, fitted: Mapping[str, JSON], arrival_seconds: float = 0.0
) -> Workload:
    """Return the workload of a cell, as a workload file would have it.

    :param fitted: sections that journals tell, see :func:`fit_all`
    """
    quantum = hybrid.SCALE * hybrid.QUANTUM[cell.table]
    queues = mapping(fitted.get("queues"))
    clusterings: list[JSON] = [hybrid.SCALE * one for one in hybrid.CLUSTERINGS]
    return Workload.model_validate(
        {
            "partitions": {
                name: {"nodes": nodes, **mapping(queues.get(name))}
                for name, nodes in (("compute", NODES), ("quantum", 1))
            },
            "qpus": {"qpu": {"partition": "quantum"}},
            "applications": {
                NAME: {
                    "count": hybrid.MODES[cell.mode],
                    "at_seconds": arrival_seconds,
                    "repeats": hybrid.ITERATIONS,
                    "limit_seconds": UNLIMITED,
                    "phases": [
                        {"step": "/iterate/cluster", "task_seconds": clusterings},
                        {"step": "/iterate/solve", "qpu": "qpu", "seconds": quantum},
                        {
                            "step": "/iterate/score",
                            "seconds": hybrid.SCALE * hybrid.SILHOUETTE,
                        },
                    ],
                }
            },
            "overheads": fitted.get("overheads", {}),
            # bf_interval of the lab
            "scheduling": {"backfill_seconds": 1},
        }
    )


def measure(cell: Cell, number: int, stop: Event) -> Measured:
    """Run a cell on a lab of its own.

    :param number: of the run, which decides on the jobs of others
    """
    loaded = cell.table == LOADED
    with (
        tempfile.TemporaryDirectory(prefix="sfq-plan-") as folder,
        running(Path(folder) / "lab", Options()) as lab,
    ):
        files = [
            _write(Path(folder) / str(one), cell)
            for one in range(hybrid.MODES[cell.mode])
        ]
        with hybrid.others(lab, LOAD, SEED + number) if loaded else nullcontext():
            began = time.time()
            journals = slurm_runs.drive(lab, files, stop)
        run = hybrid.Run(journals, slurm_runs.holds(lab))
    first = min(
        as_number(event["time"])
        for events in journals
        for event in events
        if event["event"] == "job"
    )
    return Measured(run, first - began)


def _write(folder: Path, cell: Cell) -> Path:
    """Write a StreamFlow file with the lines that ``sfq plan`` prints."""
    lines = allocation_lines.config(workload(cell, {}), STRATEGIES[cell.strategy], NAME)
    services = {name: dict(mapping(keys)) for name, keys in _services(lines)}
    # as in the paper, jobs do not share nodes
    services["compute"]["exclusive"] = True
    # the lab's QPU is a gres without a service
    del services["qpu"]["qpu"]
    services["qpu"] |= {"nodes": "1", "gres": "qpu:1"}
    quantum = hybrid.SCALE * hybrid.QUANTUM[cell.table]
    return slurm_runs.write(
        folder,
        hybrid.CWL,
        {
            "clusterings": [f"{hybrid.SCALE * one:g}" for one in hybrid.CLUSTERINGS],
            "quantum": f"sleep {quantum:g}",
            "silhouette": f"{hybrid.SCALE * hybrid.SILHOUETTE:g}",
            "iterations": hybrid.ITERATIONS,
        },
        "sfq.slurm",
        {**lines, "services": {**services}},
        {
            "/iterate/cluster": "compute",
            "/iterate/solve": "qpu",
            "/iterate/score": "compute",
        },
    )


def _services(lines: Mapping[str, JSON]) -> Iterator[tuple[str, JSON]]:
    yield from mapping(lines["services"]).items()


def predict(cell: Cell, known: Mapping[Cell, Measured], number: int) -> Figures:
    """Predict a run of a cell from runs of others.

    :param known: of which this cell is not used
    :param number: of the run to predict, see :func:`measure`
    """
    others = {name: one for name, one in known.items() if name != cell}
    fitted = fit_all([one.run for name, one in others.items() if _alone(name)])
    recorded, arrival = [], 0.0
    if cell.table == LOADED:
        delay = fmean(one.delay for one in others.values())
        arrival = hybrid.SCALE * hybrid.LEAD_SECONDS + delay
        held = mapping(fitted["overheads"])["job_held_seconds"]
        recorded = [_others(number, as_number(held))]
    planned = workload(cell, fitted, arrival)
    result = experiment.run(planned, STRATEGIES[cell.strategy], recorded)
    if isinstance(result, str):
        raise SystemExit(f"{cell}: {result}")
    runs = hybrid.MODES[cell.mode]
    return Figures(result.mean("makespan"), runs * result.mean("node-seconds"))


def _alone(cell: Cell) -> bool:
    """Whether no job of the cell waits for nodes that another job has."""
    return cell.mode == "single" and cell.table != LOADED


def _others(number: int, held: float) -> NodeTrace:
    """Return the jobs of others, which hold their nodes a little longer than they run."""
    drawn = takewhile(
        lambda job: job.at < 1000, hybrid.others_jobs(LOAD, SEED + number)
    )
    return NodeTrace(
        [
            NodeJob(job.at, {"compute": job.nodes}, job.seconds + held, UNLIMITED)
            for job in drawn
        ]
    )


def fit_all(runs: Sequence[hybrid.Run]) -> dict[str, JSON]:
    """Fit overheads, and for how long requests of each partition are pending.

    Nobody else was there: what was pending waited for Slurm's next look at its queue.
    """
    events = [events for one in runs for events in one.journals]
    fit = fitting.fit(EarlierRuns([[*typed(run)] for run in events]))
    if fit is None:
        raise SystemExit("no journal of another cell has a job on Slurm")
    jobs: list[float] = []
    allocations: list[float] = []
    for one in runs:
        jobs += _held_by_jobs(one)
        allocations += _held_by_allocations(one)
    resume = fit.overheads["resume"].seconds if allocations else 0.0
    queues: dict[str, JSON] = {
        name: {"queue_seconds": one.seconds, "queue_spread": one.spread}
        for name, one in fit.queues.items()
    }
    overheads: dict[str, JSON] = {
        **sources.overheads(fit),
        "job_held_seconds": max(0.0, fmean(jobs or [0.0])),
        "allocation_held_seconds": max(0.0, fmean(allocations or [0.0]) - resume),
    }
    return {"overheads": overheads, "queues": queues}


def _held_by_jobs(run: hybrid.Run) -> Iterator[float]:
    """For how long the jobs of steps had their nodes, beside their work."""
    held = {one.job: one.ended - one.started for one in run.held}
    for event in _slurm_jobs(run):
        if event["strategy"] == "per-step":
            ended, started = (as_number(event[key]) for key in ("ended", "started"))
            yield held[int(str(event["slurm_job"]))] - (ended - started)


def _held_by_allocations(run: hybrid.Run) -> Iterator[float]:
    """How long after its grant the first job of an allocation began that was waiting for it."""
    granted = {one.job: one.started for one in run.held}
    first: dict[int, JournalEvent] = {}
    for event in sorted(_slurm_jobs(run), key=lambda one: as_number(one["started"])):
        if event["strategy"] != "per-step":
            allocation = str(event["allocation"]).partition("+")[0]
            first.setdefault(int(allocation), event)
    for number, event in first.items():
        at = granted[number]
        if as_number(event["submitted"]) < at:
            yield as_number(event["started"]) - at


def _slurm_jobs(run: hybrid.Run) -> Iterator[JournalEvent]:
    for events in run.journals:
        yield from (event for event in events if event["event"] == "slurm")


def measure_all(
    chosen: Sequence[Cell], number: int, jobs: int, until: float
) -> dict[Cell, Measured]:
    """Run cells side by side, and leave out what fails or would begin too late."""
    stop = Event()

    def one(cell: Cell) -> Measured | str:
        if time.monotonic() > until:
            return "left out: the time is over"
        try:
            found = measure(cell, number, stop)
        except (slurm_runs.RunError, LabError) as error:
            return f"failed: {error}"
        print(*cell, asdict(found.figures), file=sys.stderr, flush=True)
        return found

    found: dict[Cell, Measured] = {}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for cell, result in zip(chosen, pool.map(one, chosen), strict=True):
                if isinstance(result, str):
                    print(*cell, result, file=sys.stderr, flush=True)
                else:
                    found[cell] = result
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return found


@dataclass(frozen=True)
class Comparison:
    """A prediction, the run before it, and the one after it."""

    cell: Cell
    predicted: Figures
    before: Figures
    after: Figures

    @property
    def misses(self) -> tuple[float, float]:
        """The differences of the prediction to the run, relative to this."""
        return (
            self.predicted.wall / self.after.wall - 1,
            self.predicted.nodes / self.after.nodes - 1,
        )

    @property
    def spreads(self) -> tuple[float, float]:
        """The standard deviations of both runs, relative to their means."""
        return (
            _spread(self.before.wall, self.after.wall),
            _spread(self.before.nodes, self.after.nodes),
        )


def report(found: Sequence[Comparison], load: float) -> list[str]:
    """Format the comparisons as lines of Markdown."""
    misses = [abs(miss) for one in found for miss in one.misses]
    unloaded = [one for one in found if one.cell.table != LOADED]
    close = sum(max(map(abs, one.misses)) <= CLOSE for one in unloaded)
    text = (
        "Each cell was predicted before its run, from an earlier run of the others. Of "
        f"{len(unloaded)} cells without load of others, {close} are within {100 * CLOSE:g} % in "
        f"both; the largest difference of all is {100 * max(misses):.1f} %. The machine's load "
        f"average at the beginning was {load:.1f}. *spread* is the standard deviation of both "
        "runs of the cell, relative to their mean."
    )
    return [
        *wrapped(text),
        "",
        "| table, workflows | strategy | wall: predicted, run [s] | difference, spread "
        "| node-seconds: predicted, run | difference, spread |",
        "|---|---|---|---|---|---|",
        *map(_row, in_order(found)),
    ]


def in_order(found: Sequence[Comparison]) -> list[Comparison]:
    """Sort comparisons as the strategies are compared in a table."""
    return sorted(found, key=lambda one: _order(one.cell))


def place(cell: Cell) -> str:
    """Name the table of a cell, and how many workflows run."""
    loaded = cell.table == LOADED
    return cell.table if loaded else f"{cell.table}, {hybrid.MODES[cell.mode]}"


def _order(cell: Cell) -> tuple[bool, str, bool, int]:
    loaded, double = cell.table == LOADED, cell.mode == "double"
    return loaded, cell.table, double, [*STRATEGIES].index(cell.strategy)


def _row(one: Comparison) -> str:
    wall, nodes = one.misses
    wall_spread, nodes_spread = one.spreads
    return (
        f"| {place(one.cell)} | {one.cell.strategy} "
        f"| {one.predicted.wall:.1f}, {one.after.wall:.1f} "
        f"| {100 * wall:+.1f} %, {100 * wall_spread:.1f} % "
        f"| {one.predicted.nodes:.1f}, {one.after.nodes:.1f} "
        f"| {100 * nodes:+.1f} %, {100 * nodes_spread:.1f} % |"
    )


def _spread(before: float, after: float) -> float:
    """The standard deviation of two runs, relative to their mean."""
    return math.sqrt(2) * abs(before - after) / (before + after)


def main() -> None:
    """Run, predict, run again, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=6, help="cells side by side")
    parser.add_argument("--minutes", type=float, default=18, help="begin none later")
    parser.add_argument("--save", type=Path, help="a file for all figures, as JSON")
    parser.add_argument("--page", type=Path, help="a page with a block for the table")
    args = parser.parse_args()
    block = Block(args.page, "plan_lab") if args.page else None
    if lacking := missing():
        sys.exit(lacking)
    slurm_runs.heed_sigterm()
    load = os.getloadavg()[0]
    # a run takes two minutes and a half at most
    until = time.monotonic() + 60 * (args.minutes - 2.5)
    known = measure_all(cells(), 0, args.jobs, until)
    predicted = {cell: predict(cell, known, 1) for cell in known}
    for cell, figures in predicted.items():
        print("predicted:", *cell, asdict(figures), file=sys.stderr, flush=True)
    again = measure_all([*known], 1, args.jobs, until)
    found = [
        Comparison(cell, predicted[cell], known[cell].figures, one.figures)
        for cell, one in again.items()
    ]
    if not found:
        sys.exit("no cell was run twice")
    if args.save:
        content = [asdict(one) for one in found]
        args.save.write_text(json.dumps(content, indent=1) + "\n")
    lines = report(found, load)
    print(*lines, sep="\n")
    if block:
        block.write(lines)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()

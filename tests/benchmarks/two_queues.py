"""What it costs to wait for a QPU with nodes in hand: one hybrid program, every way to run it.

    python -m tests.benchmarks.two_queues [--runs 5] [--jobs 6] [--scale 0.2]
    python -m tests.benchmarks.two_queues --queues file --queue-file waits.csv
    python -m tests.benchmarks.two_queues --cancellations 200

The program runs five times ``nodes, circuit, nodes``: each phase on nodes takes 20 s of
all its cores, and each circuit 3 s at a vendor, after a wait in the vendor's queue. The
same draws of that wait meet every way, side by side in one run. All of it is slept, scaled
by ``--scale``; the figures are divided by it again, other than CPU seconds and memory.

- ``plain``: one batch job holds its nodes throughout, and each circuit queues.
- ``session``: the same job opens a session of the vendor; only the first circuit queues.
- ``heterogeneous``: ``plain`` with a core of the quantum partition as second component.
- ``scout``: as flux-quantum does it. A job of one core opens the session and has a warm-up
  circuit wait in the queue; then it releases the job with the nodes, which was held, into
  the session, and keeps its core until that job ends.
- ``slurm``: StreamFlow's own connector; each phase and each circuit is a job, that of a
  circuit on one core of the quantum partition.
- ``per-step``, ``elastic``, ``ahead``, ``reserved``: ``sfq.slurm`` with that allocation, and
  the circuits through ``sfq.rest`` and a QPU service in front of the vendor, on no node.
- ``candidate``: ``per-step``, with each circuit on the QPU or, for 25 s on the nodes, by a
  classical method, whichever is expected to end first.
- ``malleable``: ``plain`` on up to four nodes, of which the job gives back all but one for
  each circuit (``qpu.offload(keep=1)``).
- ``per-step, session``: the service keeps the vendor's session from circuit to circuit.
- ``site plugins``: ``plain`` by ``sbatch --qpu``; the plugins of ``deployments/slurm`` acquire
  the job's lease of the QPU service before the job has nodes, on which its circuits queue.
- ``site plugins, session``: the same, and the service keeps the vendor's session.

The distributions of the wait: constant 0, 10, 30 and 60 s; ``heavy``, log-normal with a
median of 10 s and a mean of 31 s; ``file``, the quantiles of a column of seconds in a CSV
file, such as ``avg_qpu_wait_s`` of the results of converged-computing/quantum-braket.

Core-seconds are from Slurm's accounting (sacct: allocated CPUs, start and end), whose whole
seconds are refined by the controller's log, which must agree with them. *useful* is what
the phases on nodes take. *helpers* are the CPU seconds of the driver with the programs that
it starts, and of the QPU service during the run, and the largest memory of all of them.
The first result counts from the first job that is submitted; the driver's start before it
is *start-up*. Nodes, cores and the vendor are stood in: Slurm counts cores that the lab
does not have, and Acme's machine (``tests/support/vendor.py``) sleeps.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from threading import Event

import psutil

from tests.benchmarks import hybrid, slurm_runs, two_queues_plan
from tests.benchmarks.page import Block, wrapped
from tests.benchmarks.two_queues_cancel import (
    cancel_at_moments,
    cancel_at_random,
    full_node,
    moments,
)
from tests.benchmarks.two_queues_plan import Known
from tests.benchmarks.two_queues_trial import (
    CIRCUIT_SECONDS,
    CIRCUITS,
    CONSTANT,
    PARTITION,
    PHASE_SECONDS,
    PLAIN,
    Cell,
    Figures,
    Setting,
    Trial,
    add_user,
    read_waits,
    with_qpus,
)
from tests.benchmarks.two_queues_ways import WAYS, Leased, cpu_seconds
from tests.lab import Lab, running
from tests.support import plugin_site
from tests.support.lab_supervisor import missing


def measure(
    lab: Lab, folder: Path, setting: Setting, cell: Cell, stop: Event
) -> tuple[Figures, Known | None]:
    """Run a cell in a folder of its own.

    :returns: the figures, and what is known of it for predictions of others
    """
    folder.mkdir()
    with Trial(lab, folder, folder.name, cell, setting) as trial:
        figures = WAYS[cell.way].run(trial, stop)
        if not cell.queue.isdecimal():
            return figures, None
        held = [
            slurm_runs.Hold(one.job, one.name, PARTITION, 1, one.started, one.ended)
            for one in trial.jobs
        ]
        run = hybrid.Run([trial.journal], held) if trial.journal else None
        scale = setting.scale
        nodes = figures.held * scale / cell.cores
        wait, wall = float(cell.queue) * scale, figures.makespan * scale
        return figures, Known(cell.way, wait, wall, nodes, run)


def cells(
    queues: Sequence[str], cores: Sequence[int], ways: Sequence[str], run: int
) -> list[Cell]:
    """List the cells of a run, those that wait longest first, no way always first."""
    turn = run % len(ways)
    turned = [*ways[turn:], *ways[:turn]]
    keys = product(reversed(queues), cores, turned)
    return [Cell(queue, size, way, run) for queue, size, way in keys]


def report(results: Mapping[Cell, Figures]) -> list[str]:
    """Format the figures as lines of Markdown: medians, with the least and the most."""
    lines = [
        "| wait, cores | way | core-s | of useful | of plain | waiting | helpers: CPU s, MiB "
        "| first result [s] | makespan [s] |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    keys = dict.fromkeys((one.queue, one.cores, one.way) for one in results)
    for queue, cores, way in sorted(keys, key=_order):
        own = {
            cell.run: figures
            for cell, figures in results.items()
            if (cell.queue, cell.cores, cell.way) == (queue, cores, way)
        }
        ratios = [
            figures.held / plain.held
            for run, figures in own.items()
            if (plain := results.get(Cell(queue, cores, PLAIN, run)))
        ]
        every = [*own.values()]
        helpers = "-"
        if any(one.cpu + one.service for one in every):
            helpers = f"{median(one.cpu + one.service for one in every):.1f}, "
            helpers += f"{median(one.mib for one in every):.0f}"
        cells = (
            *(f"{queue}, {cores}", way),
            _spread([one.held for one in every], 0),
            f"{median(one.held / one.useful for one in every):.3f}",
            _spread(ratios, 2) if ratios else "-",
            _spread([one.held - one.useful for one in every], 0),
            *(helpers, _spread([one.first for one in every], 1)),
            _spread([one.makespan for one in every], 0),
        )
        lines.append(f"| {' | '.join(cells)} |")
    held, whole = (
        sum(getattr(one, name) for one in results.values())
        for name in ("held", "whole")
    )
    starts = [one.startup for one in results.values() if one.startup]
    text = (
        f"sacct prints whole seconds: from these, the core-seconds of all cells add up to "
        f"{100 * whole / held:.1f} % of the table's sum."
    )
    if starts:
        text += (
            f" A driver submits its first job {median(starts):.1f} ({min(starts):.1f} to "
            f"{max(starts):.1f}) s of wall-clock time after its start."
        )
    return [*lines, "", *wrapped(text)]


def _order(key: tuple[str, int, str]) -> tuple[int, str, int, int]:
    queue, cores, way = key
    length = int(queue) if queue.isdecimal() else sys.maxsize
    return length, queue, cores, [*WAYS].index(way)


def _spread(values: Sequence[float], digits: int) -> str:
    middle, low, high = (f"{one(values):,.{digits}f}" for one in (median, min, max))
    return middle if low == high else f"{middle} ({low} to {high})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--runs", type=int, default=5)
    add("--jobs", type=int, default=6, help="cells side by side")
    add("--scale", type=float, default=0.2, help="real seconds of one second")
    add("--queues", nargs="+", default=[*CONSTANT], help="a number, heavy, file")
    add("--cores", nargs="+", type=int, default=[4])
    add("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    add("--seed", type=int, default=1, help="of the waits")
    add("--queue-file", type=Path, help="CSV file, for the queue named file")
    add("--column", default="avg_qpu_wait_s", help="of that file: seconds")
    add("--cancellations", type=int, help="cancel so many runs at random moments")
    add("--moments", action="store_true", help="cancel each way at four moments")
    add("--json", type=Path, help="a file for all figures")
    add("--page", type=Path, help="a page with a block for the table")
    add("--block", default="two_queues", help="its name; _plan follows for sfq plan's")
    args = parser.parse_args()
    if "file" in args.queues and args.queue_file is None:
        parser.error("--queues file: needs --queue-file")
    for queue in args.queues:
        if queue not in ("heavy", "file") and not queue.isdecimal():
            parser.error(f"--queues {queue}: expected whole seconds, heavy or file")
    return args


def main() -> None:
    """Print the table."""
    args = _arguments()
    if lacking := missing():
        sys.exit(lacking)
    slurm_runs.heed_sigterm()
    # a shell starts what is in its background with this ignored, also by drivers
    signal.signal(signal.SIGINT, signal.default_int_handler)
    waits = read_waits(args.queue_file, args.column) if args.queue_file else []
    setting = Setting(args.scale, args.seed, waits)
    chosen = [
        cell
        for run in range(args.runs)
        for cell in cells(args.queues, args.cores, args.ways, run)
    ]
    named = [(f"c{number}", cell.way) for number, cell in enumerate(chosen)]
    if args.moments:
        named = [(name, way) for name, way, _ in moments(args.ways)]
    leased = [name for name, way in named if isinstance(WAYS[way], Leased)]
    with (
        tempfile.TemporaryDirectory(prefix="sfq-tq-") as made,
        running(Path(made) / "lab", with_qpus(Path(made), leased)) as lab,
    ):
        folder = Path(made)
        if leased:
            add_user(lab)
        if args.moments or args.cancellations:
            with full_node(lab):
                if args.moments:
                    lines = cancel_at_moments(
                        lab, folder, setting, args.ways, args.jobs
                    )
                else:
                    number = args.cancellations
                    lines = cancel_at_random(lab, folder, setting, number, args.jobs)
            blocks = {args.block: lines}
        else:
            blocks = _run(lab, folder, setting, chosen, args)
    for name, lines in blocks.items():
        print(*lines, "", sep="\n")
        if args.page:
            Block(args.page, name).write(lines)


def _run(
    lab: Lab,
    folder: Path,
    setting: Setting,
    chosen: Sequence[Cell],
    args: argparse.Namespace,
) -> dict[str, list[str]]:
    """Run all cells; the lines of each block of the page."""
    numbers = {cell: number for number, cell in enumerate(chosen)}
    known: list[Known] = []

    def work(cell: Cell, stop: Event) -> Figures:
        own = folder / f"c{numbers[cell]}"
        figures, run = measure(lab, own, setting, cell, stop)
        known.extend([run] if run else [])
        return figures

    load = os.getloadavg()[0]
    results = hybrid.measure_all(chosen, args.jobs, work)
    if args.json:
        found = [asdict(cell) | asdict(one) for cell, one in results.items()]
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    text = (
        f"The load average was {load:.0f} before, and {os.getloadavg()[0]:.0f} after."
    )
    if leased := sum(isinstance(WAYS[cell.way], Leased) for cell in chosen):
        text += (
            f" For {leased} jobs, the site's plugins used {_plugin_seconds(lab):.0f} CPU "
            "seconds on the controller's host."
        )
    blocks = {args.block: [*report(results), *wrapped(text)]}
    program = two_queues_plan.Program(
        PHASE_SECONDS * args.scale, CIRCUIT_SECONDS * args.scale, CIRCUITS
    )
    if lines := two_queues_plan.table(program, known, args.scale):
        blocks[f"{args.block}_plan"] = lines
    return blocks


def _plugin_seconds(lab: Lab) -> float:
    """Return the CPU seconds of all that the plugins have run on the controller's host."""
    watch = re.match(r"\d+", (plugin_site.state(lab) / "watch").read_text())
    processes = [plugin_site.script_daemon(lab)]
    processes += [psutil.Process(int(watch[0]))] if watch else []
    return sum(map(cpu_seconds, processes))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()

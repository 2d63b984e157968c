"""What cancellations of the ways of ``two_queues`` leave behind."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal, TypeVar, get_args

from tests.benchmarks import slurm_runs
from tests.benchmarks.two_queues_trial import (
    CIRCUIT_SECONDS,
    CIRCUITS,
    FULL,
    PARTITION,
    PHASE_SECONDS,
    Cell,
    Setting,
    Trial,
)
from tests.benchmarks.two_queues_ways import WAYS, Flow
from tests.lab import Lab
from tests.support.waiting import until

T = TypeVar("T")
R = TypeVar("R")
Moment = Literal[
    "job pending", "job running", "queued at the vendor", "running at the vendor"
]
MOMENTS: tuple[Moment, ...] = get_args(Moment)
#: before the first job of a driver
START_SECONDS = 2.0
#: of drivers; the first is the user's Ctrl-C
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
#: after a cancellation, until what is there is left over
SETTLE_SECONDS, LATE_SECONDS = 60.0, 3.0


def cancelled(
    trial: Trial, kill: signal.Signals, when: Callable[[], bool]
) -> dict[str, int]:
    """Start a trial, cancel it, and count what is left of it.

    :param when: whether it is time
    """
    way = WAYS[trial.cell.way]
    if isinstance(way, Flow):
        _, driver = way.start(trial)
        with driver:
            until(lambda: when() or driver.poll() is not None, "the moment")
            driver.send_signal(kill)
    else:
        jobs = way.start(trial)
        until(when, "the moment")
        trial.lab.run("scancel", *map(str, jobs))
    with suppress(TimeoutError):
        until(lambda: not any(trial.leftovers().values()), "the end", SETTLE_SECONDS)
    # a request that was under way may arrive late
    time.sleep(LATE_SECONDS)
    return trial.leftovers()


def is_moment(trial: Trial, moment: Moment) -> bool:
    """Whether a trial is at a moment."""
    if moment.endswith("vendor"):
        phase = "waiting" if moment.startswith("queued") else "running"
        return phase in trial.vendor_phases()
    state = moment.removeprefix("job ").upper()
    partition = f"--partition={trial.partition}"
    return any(
        trial.owns(name) and own == state
        for name, own in map(
            partial(str.rsplit, maxsplit=1),
            trial.lab.output("squeue", "-h", partition, "-o", "%j %T").splitlines(),
        )
    )


def moments(ways: Sequence[str]) -> list[tuple[str, str, Moment]]:
    """List the trials of ways at all moments: name, way and moment."""
    keys = enumerate(product(ways, MOMENTS))
    return [(f"m{number}", way, moment) for number, (way, moment) in keys]


def cancel_at_moments(
    lab: Lab, folder: Path, setting: Setting, ways: Sequence[str], jobs: int
) -> list[str]:
    """Cancel each way at each moment, and return the table of what is left."""

    def one(name: str, way: str, moment: Moment) -> dict[str, int]:
        own = folder / name
        own.mkdir()
        with Trial(lab, own, own.name, Cell("30", 4, way, 0), setting) as trial:
            # what is at the vendor stays there, unless somebody cancels it
            if moment == "queued at the vendor":
                trial.vendor.set(queue_seconds=[3600.0])
            elif moment == "running at the vendor":
                trial.vendor.set(queue_seconds=[], setup=3600e6)
            elif moment == "job pending":
                trial.partition = FULL
            return cancelled(trial, SIGNALS[0], lambda: is_moment(trial, moment))

    trials = moments(ways)
    results = _all(jobs, lambda trial: one(*trial), trials)
    keys = [(way, moment) for _, way, moment in trials]
    found = dict(zip(keys, results, strict=True))
    lines = [f"| way | {' | '.join(MOMENTS)} |", f"|---{'|---' * len(MOMENTS)}|"]
    for way in ways:
        cells = (_left(found[way, moment]) for moment in MOMENTS)
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def cancel_at_random(
    lab: Lab, folder: Path, setting: Setting, number: int, jobs: int
) -> list[str]:
    """Cancel our ways at random moments, and return what is left."""
    ours = [
        name
        for name, way in WAYS.items()
        if isinstance(way, Flow) and way.connector == "sfq.slurm"
    ]
    longest = setting.scale * CIRCUITS * (2 * PHASE_SECONDS + CIRCUIT_SECONDS + 30)

    def one(index: int) -> dict[str, int]:
        draws = random.Random(f"{setting.seed} cancel {index}")
        own = folder / f"r{index}"
        own.mkdir()
        cell = Cell("30", 4, ours[index % len(ours)], index)
        with Trial(lab, own, own.name, cell, setting) as trial:
            # a part of them waits for nodes in vain
            trial.partition = FULL if draws.random() < 0.1 else PARTITION
            kill, at = draws.choice(SIGNALS), time.monotonic() + draws.uniform(
                0, longest
            )
            left = cancelled(trial, kill, lambda: time.monotonic() > at)
        if any(left.values()):
            print(cell, kill.name, _left(left), file=sys.stderr, flush=True)
        return left

    found = _all(jobs, one, range(number))
    leaked = sum(any(left.values()) for left in found)
    names = lab.output("squeue", "-h", "-o", "%j").splitlines()
    late = len(names) - names.count(slurm_runs.OTHERS)
    return [
        f"Of {number} cancellations at random moments, {leaked} left something behind. At "
        f"the end, Slurm had {late} of their jobs."
    ]


def _all(jobs: int, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Do all items, some of them in parallel, and begin none after an error."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            return [*pool.map(work, items)]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _left(left: Mapping[str, int]) -> str:
    found = (
        f"{count} {what.removesuffix('s') if count == 1 else what}"
        for what, count in left.items()
        if count
    )
    return ", ".join(found) or "0"


@contextmanager
def full_node(lab: Lab) -> Iterator[None]:
    """Keep the node of the partition ``full`` from everybody."""
    words = ("--exclusive", "--output=/dev/null", "--chdir=/", "--wrap", "sleep 86400")
    job = lab.submit(f"--partition={FULL}", f"--job-name={slurm_runs.OTHERS}", *words)
    lab.wait_for(lambda: lab.state(job) == "RUNNING", "the full node")
    try:
        yield
    finally:
        lab.run("scancel", str(job))

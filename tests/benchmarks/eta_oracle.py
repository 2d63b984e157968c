"""The best possible forecast, by an oracle that knows everything but the future.

A simulated clock runs the same jobs in the order of the QPU's queue (by class; a
production job pre-empts a lower one, which begins again). At each submission the oracle
knows every pending job with its exact time, and the distribution of later jobs: their
true rates, the true distribution of their times and, optionally, how many are still to
come. It simulates some futures of the queue, and of their waits forecasts the one with
the least mean relative error: their median, weighted by the reciprocals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from sf_quantum.service.domain.jobs import CLASSES, JobClass

FUTURES = 100


class Coming(NamedTuple):
    """A job before its submission.

    :param rank: of its class, 0 being the highest
    :param seconds: on the device
    """

    when: float
    rank: int
    seconds: float


@dataclass
class Running:
    """The job on the device; it begins again if pre-empted."""

    rank: int
    seconds: float
    left: float


@dataclass
class Waiting:
    """The queue that an oracle sees when a job joins it.

    :param before: by class, the seconds of the pending jobs, the first job last
    :param to_come: number of later jobs
    """

    rank: int
    running: Running | None
    before: list[list[float]]
    to_come: int


@dataclass(frozen=True)
class Law:
    """The distribution of jobs.

    :param rates: per second, by class
    :param seconds: a sample of their times
    """

    rates: Sequence[float]
    seconds: Sequence[float]

    def future(self, line: Waiting, draws: random.Random, *, ends: bool) -> float:
        """Simulate one future of a queue.

        :param ends: whether the stream ends with the jobs to come
        :returns: the seconds until the job that joined starts
        """
        total, cumulated = sum(self.rates), [*accumulate(self.rates)]
        lanes = [[*lane] for lane in line.before]
        running = Running(**vars(line.running)) if line.running else None
        now, to_come = 0.0, line.to_come if ends else math.inf
        coming = draws.expovariate(total)
        while True:
            if running is None:
                rank = next((r for r, lane in enumerate(lanes) if lane), None)
                if rank is None:
                    return now
                seconds = lanes[rank].pop()
                running = Running(rank, seconds, seconds)
            if to_come <= 0 or coming >= running.left:
                now, coming = now + running.left, coming - running.left
                running = None
                continue
            now, running.left, to_come = (
                now + coming,
                running.left - coming,
                to_come - 1,
            )
            (rank,) = draws.choices(range(len(CLASSES)), cum_weights=cumulated)
            coming = draws.expovariate(total)
            if rank < line.rank:
                lanes[rank].insert(0, draws.choice(self.seconds))
            if rank == 0 < running.rank:
                if running.rank <= line.rank:
                    lanes[running.rank].append(running.seconds)
                running = None


def play(jobs: Sequence[Coming]) -> tuple[list[Waiting], list[float]]:
    """Simulate jobs.

    :returns: for each job, the queue that it joined, and how long it waited
    """
    lanes: list[list[int]] = [[] for _ in CLASSES]
    seen, waits = list[Waiting](), [math.nan] * len(jobs)
    now, number, left = 0.0, -1, 0.0  # of the running job; -1: none
    while len(seen) < len(jobs) or number >= 0 or any(lanes):
        if number < 0 and any(lanes):
            number = next(lane for lane in lanes if lane).pop(0)
            left = jobs[number].seconds
            if math.isnan(waits[number]):
                waits[number] = now - jobs[number].when
        until = jobs[len(seen)].when - now if len(seen) < len(jobs) else math.inf
        if number >= 0 and left <= until:
            now, number = now + left, -1
            continue
        new = len(seen)
        now, left, rank = now + until, left - until, jobs[new].rank
        if number >= 0 and rank == 0 < jobs[number].rank:
            lanes[jobs[number].rank].insert(0, number)
            number = -1
        seen.append(
            Waiting(
                rank,
                (
                    Running(jobs[number].rank, jobs[number].seconds, left)
                    if number >= 0
                    else None
                ),
                [[jobs[n].seconds for n in lane[::-1]] for lane in lanes[: rank + 1]],
                len(jobs) - new - 1,
            )
        )
        lanes[rank].append(new)
    return seen, waits


def errors(
    jobs: Sequence[Coming], law: Law, least: float, *, after: int, ends: bool
) -> list[float]:
    """Return the relative errors of the oracle: |forecast - true| / true.

    :param least: the shortest wait that counts
    :param after: number of first jobs that do not count
    """
    draws, found = random.Random(1), []
    for line, true in [*zip(*play(jobs), strict=True)][after:]:
        if true > least:
            futures = [law.future(line, draws, ends=ends) for _ in range(FUTURES)]
            found.append(abs(_told(futures) - true) / true)
    return found


def higher_load(rates: Mapping[JobClass, float], mean_seconds: float) -> float:
    """Return the share of the device's time that classes above the lowest take."""
    return sum(rates[name] for name in CLASSES[:-1]) * mean_seconds


def _told(waits: Sequence[float]) -> float:
    ordered = sorted(max(wait, 1e-9) for wait in waits)
    sums = [*accumulate(1 / wait for wait in ordered)]
    return next(w for w, s in zip(ordered, sums, strict=True) if s >= sums[-1] / 2)

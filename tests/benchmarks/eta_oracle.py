"""What the best forecast could tell: one that knows all but the future.

A clock of its own plays the same jobs in the order of the QPU's queue (classes, and a
production job pre-empts a lower one, which begins again). At each submission the oracle
knows every job in the line with its exact time, and by which laws others come: their
true rates, their times' true distribution and, if asked to, how many are still to come.
It plays some futures of the line, and tells of the waits in them the one with the least
mean relative error: their median, each weighted by its reciprocal.
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
    """A job on its way.

    :param rank: of its class, 0 being the highest
    :param seconds: on the device
    """

    when: float
    rank: int
    seconds: float


@dataclass
class Running:
    """The job on the device; pre-empted, it begins again."""

    rank: int
    seconds: float
    left: float


@dataclass
class Waiting:
    """What an oracle sees of the line when a job joins it.

    :param before: per class what waits, seconds, the first one last
    :param to_come: jobs yet to come
    """

    rank: int
    running: Running | None
    before: list[list[float]]
    to_come: int


@dataclass(frozen=True)
class Law:
    """By which jobs come.

    :param rates: per second, by class
    :param seconds: a sample of their times
    """

    rates: Sequence[float]
    seconds: Sequence[float]

    def future(self, line: Waiting, draws: random.Random, *, ends: bool) -> float:
        """Play one future of a line.

        :param ends: let no more come than are to come
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
    """Play what happens to jobs.

    :returns: of each what was seen when it came, and how long it waited
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
    """Say how wrong the oracle is about jobs: |told - true| / true.

    :param least: the shortest wait that counts
    :param after: how many jobs are not counted, the first ones
    """
    draws, found = random.Random(1), []
    for line, true in [*zip(*play(jobs), strict=True)][after:]:
        if true > least:
            futures = [law.future(line, draws, ends=ends) for _ in range(FUTURES)]
            found.append(abs(_told(futures) - true) / true)
    return found


def higher_load(rates: Mapping[JobClass, float], mean_seconds: float) -> float:
    """Tell how much of the device's time goes before the lowest class."""
    return sum(rates[name] for name in CLASSES[:-1]) * mean_seconds


def _told(waits: Sequence[float]) -> float:
    ordered = sorted(max(wait, 1e-9) for wait in waits)
    sums = [*accumulate(1 / wait for wait in ordered)]
    return next(w for w, s in zip(ordered, sums, strict=True) if s >= sums[-1] / 2)

"""The accuracy of the service's forecasts of when a job starts.

    python -m tests.benchmarks.eta [--jobs 400] [--time-scale 0.004] [--seeds 5]

An emulated superconducting QPU (10 s and more per job) gets jobs of 10 to 20,000 shots,
10 % production, 30 % test, 60 % development, or 40 and 60 % of the two lower classes,
without pre-emption; its clock runs faster by the time scale. From the first hundred
jobs the service learns the device's pace. Of each later job two kinds of ETAs are compared
with the true time until it started (for the first time, if it was pre-empted): the one at
its submission, and those while it was pending, every five mean jobs. The error of an ETA is
|forecast - true| / true. If the true time is less than one mean job's, the ratio would mean
little: those errors are not counted, but printed in units of a mean job.

``burst`` submits all jobs at once and then requests the ETAs. The other streams submit
jobs at random times (Poisson), at 80, 120 and 500 % of the device's capacity, so that
jobs of a higher class keep arriving while a lower one waits. For comparison, an oracle
that knows the true rates and times forecasts the same jobs (eta_oracle.py): ``endless``
assumes an endless stream, as the service must; ``ending`` knows the last job. The
oracle's jobs take their modelled time. The service's jobs take some milliseconds more
on the host, so the true load exceeds the nominal one, by less the slower the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path
from statistics import fmean, mean, median, quantiles
from typing import NamedTuple

from sf_quantum.service.device.emulated import Device
from sf_quantum.service.device.technologies import TECHNOLOGIES
from sf_quantum.service.domain.jobs import (
    RANKS,
    Identity,
    Job,
    JobClass,
    LeaseRequest,
    Submission,
)
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store.store import Store
from tests.benchmarks import eta_oracle
from tests.service import example_bqm

TECHNOLOGY = "superconducting"
LESSONS = 100
LOADS = {"burst": None, "80%": 0.8, "120%": 1.2, "500%": 5.0}
MIXES: Mapping[str, Mapping[JobClass, float]] = {
    "pre-emption": {
        "production": 0.1,
        "quality": 0.0,
        "test": 0.3,
        "development": 0.6,
    },
    "no pre-emption": {
        "production": 0.0,
        "quality": 0.0,
        "test": 0.4,
        "development": 0.6,
    },
}
ASKED_AGAIN_JOBS = 5
WHO = Identity("ann", admin=True)


class PlannedJob(NamedTuple):
    """A job, and the pause before its submission."""

    job_class: JobClass
    shots: int
    pause_seconds: float


class Watched(Store):
    """Records the first start of each job."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.started: dict[int, float] = {}

    def start(self, number: int) -> Future[Job]:
        """See :meth:`Store.start`."""
        self.started.setdefault(number, time.monotonic())
        return super().start(number)


class Answer(NamedTuple):
    """An ETA, and when it was requested."""

    job: Job
    eta: float
    when: float


class Comparison(NamedTuple):
    """The forecast for a job, and the true time, in seconds."""

    job_class: JobClass
    eta: float
    true: float


def seconds_of(jobs: list[PlannedJob], scale: float) -> list[float]:
    """Return how long jobs take."""
    timing = TECHNOLOGIES[TECHNOLOGY].timing
    return [timing.job_seconds(job.shots) * scale for job in jobs]


def draw(
    jobs: int,
    load: float | None,
    mix: Mapping[JobClass, float],
    scale: float,
    seed: int,
) -> list[PlannedJob]:
    """Draw jobs; without a load, all jobs after the learning phase come at once."""
    draws = random.Random(seed)
    shots = [round(10 ** draws.uniform(1, 4.3)) for _ in range(jobs)]
    each = mean(map(TECHNOLOGIES[TECHNOLOGY].timing.job_seconds, shots)) * scale
    names = draws.choices([*mix], [*mix.values()], k=jobs)
    pauses = [draws.expovariate(load / each) if load else 0.0 for _ in range(jobs)]
    return [PlannedJob(*job) for job in zip(names, shots, pauses, strict=True)]


class Session:
    """Jobs submitted to a service, and its forecasts for them."""

    def __init__(self, queue: JobQueue, store: Watched) -> None:
        self._queue = queue
        self._started = store.started
        self.made: list[Answer] = []
        self.again: list[Answer] = []

    def ask(self, job: Job) -> Answer:
        """Request the ETA of a pending job."""
        forecast = self._queue.forecast(job)
        eta = forecast.eta_seconds if forecast is not None else None
        return Answer(job, eta or 0.0, time.monotonic())

    async def submit(self, jobs: list[PlannedJob]) -> None:
        """Submit jobs, each after its pause, and request their ETAs."""
        leases = {
            name: (
                await self._queue.leases.acquire(WHO, LeaseRequest(job_class=name))
            ).id
            for name in RANKS
        }
        telling = []
        for number, job in enumerate(jobs, len(self.made)):
            if job.pause_seconds:
                await asyncio.sleep(job.pause_seconds)
            parameters = {"num_reads": job.shots, "num_sweeps": 1}
            asked = Submission("problem", example_bqm(), parameters, str(number))
            submitting = self._queue.submit(WHO, leases[job.job_class], asked)
            telling.append(asyncio.create_task(self._told(submitting)))
        for one in telling:
            await one

    async def over(self) -> None:
        """Wait until all jobs are over."""
        for one in self.made:
            while not (await self._queue.wait(WHO, one.job.id, 60)).final:
                pass

    async def keep_asking(self, pause_seconds: float) -> None:
        """Request the ETAs of all pending jobs at intervals, until cancelled."""
        while True:
            await asyncio.sleep(pause_seconds)
            waiting = [one.job for one in self.made[LESSONS:]]
            self.again += [
                self.ask(job) for job in waiting if job.number not in self._started
            ]

    def compare(self, answers: list[Answer]) -> list[Comparison]:
        """Pair the forecasts with the true times."""
        return [
            Comparison(
                one.job.job_class, one.eta, self._started[one.job.number] - one.when
            )
            for one in answers
            if self._started[one.job.number] > one.when  # else it had started already
        ]

    async def _told(self, submitting: Coroutine[None, None, tuple[Job, bool]]) -> None:
        self.made.append(self.ask((await submitting)[0]))


async def measure(
    jobs: list[PlannedJob], scale: float
) -> tuple[list[Comparison], list[Comparison]]:
    """Let jobs run.

    :returns: the forecasts for those after the learning phase, at submission and later
    """
    each = mean(seconds_of(jobs, scale))
    with tempfile.TemporaryDirectory(prefix="sfq-eta-") as folder:
        store = Watched(Path(folder) / "service.sqlite")
        device = Device(technology=TECHNOLOGY, time_scale=scale, seed=1)
        queue = JobQueue(store, device, ServiceSettings(vqpus=10))
        queue.start()
        session = Session(queue, store)
        asking = asyncio.create_task(session.keep_asking(ASKED_AGAIN_JOBS * each))
        at_once = not any(job.pause_seconds for job in jobs)
        await session.submit(jobs[:LESSONS])
        if at_once:
            await session.over()
        await session.submit(jobs[LESSONS:])
        told = session.made[LESSONS:]
        if at_once:
            told = [session.ask(one.job) for one in told]
        await session.over()
        asking.cancel()
        queue.request_stop()
        await queue.stopped()
        store.close()
    return session.compare(told), session.compare(session.again)


def oracles(
    jobs: list[PlannedJob], load: float, mix: Mapping[JobClass, float], scale: float
) -> dict[str, float]:
    """Return the oracles' median errors."""
    seconds = seconds_of(jobs, scale)
    each = mean(seconds)
    whens = accumulate(job.pause_seconds for job in jobs)
    coming = [
        eta_oracle.Coming(when, RANKS[job.job_class], length)
        for when, job, length in zip(whens, jobs, seconds, strict=True)
    ]
    rates = {name: mix[name] * load / each for name in RANKS}
    law = eta_oracle.Law([*rates.values()], seconds)
    found = {}
    for name in ("endless", "ending"):
        # else jobs of the lowest class would wait for ever
        if name == "ending" or eta_oracle.higher_load(rates, each) < 0.9:
            ends = name == "ending"
            wrong = eta_oracle.errors(coming, law, each, after=LESSONS, ends=ends)
            found[name] = median(wrong)
    return found


def summary(told: list[Comparison], least: float) -> dict[str, float]:
    """Sum up the errors.

    :param least: the time of a mean job, and the shortest wait that counts
    """
    far = [one for one in told if one.true > least]
    errors = [abs(one.eta - one.true) / one.true for one in far]
    short = [abs(one.eta - one.true) / least for one in told if one.true <= least]
    return {
        "jobs": len(errors),
        "median": median(errors),
        "ninth_decile": quantiles(errors, n=10)[-1],
        "bias": median((one.eta - one.true) / one.true for one in far),
        "not_counted": len(short),
        "their_median_in_jobs": median(short) if short else 0.0,
    }


def case(
    load: float | None, mix: Mapping[JobClass, float], args: argparse.Namespace
) -> list[dict[str, dict[str, float]]]:
    """Measure one kind of stream, once per seed."""
    scale, runs = args.time_scale, []
    for seed in range(args.seed, args.seed + args.seeds):
        jobs = draw(args.jobs + LESSONS, load, mix, scale, seed)
        least = mean(seconds_of(jobs, scale))
        told, again = asyncio.run(measure(jobs, scale))
        run = {"told": summary(told, least), "again": summary(again, least)}
        for job_class in mix:
            own = [one for one in told if one.job_class == job_class]
            if sum(one.true > least for one in own) > 10:
                run[job_class] = summary(own, least)
        if load is not None and not args.no_oracle:
            for name, error in oracles(jobs, load, mix, scale).items():
                run[name] = {"median": error}
        runs.append(run)
    return runs


def show(name: str, runs: list[dict[str, dict[str, float]]]) -> None:
    """Print a case's medians: mean, best and worst over the seeds."""
    print(f"{name}:")
    for key in runs[0]:
        found = [run[key] for run in runs if key in run]
        medians = [one["median"] for one in found]
        line = (
            f"  {key:12} {fmean(medians):6.1%}  ({min(medians):.1%}-{max(medians):.1%})"
        )
        if "jobs" in found[0]:
            mean_of = {k: fmean(one[k] for one in found) for k in found[0]}
            line += (
                "  bias {bias:+6.1%}, nine in ten below {ninth_decile:4.0%}, "
                "{jobs:.0f} ETAs, {not_counted:.0f} short waits wrong by "
                "{their_median_in_jobs:.2f} jobs"
            ).format(**mean_of)
        print(line, flush=True)


def main() -> None:
    """Print a table, or with ``--json`` an object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=400, help="beside the lessons")
    parser.add_argument("--time-scale", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=LOADS, action="append")
    parser.add_argument("--mix", choices=MIXES, action="append")
    parser.add_argument("--no-oracle", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {}
    for mix in args.mix or MIXES:
        for load in args.only or LOADS:
            name = f"{load}, {mix}"
            results[name] = case(LOADS[load], MIXES[mix], args)
            if not args.json:
                show(name, results[name])
    if args.json:
        json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()

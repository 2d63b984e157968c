"""The accuracy of the service's forecasts of when a job starts.

    python -m tests.benchmarks.eta [--wrong 0.3] [--factor 10] [--policy classes ...]
    python -m tests.benchmarks.eta --service [--seeds 1] [--jobs 150]

The error of an ETA is (told - true) / true, in the time until the job started for the
first time. If the true time is less than one mean job's, the ratio would mean little:
those errors are not counted. The first hundred jobs are the service's lessons, and not
counted either.

By default, tenants with leases, hints and rounds are simulated (eta_tenants.py), at
several loads, under each policy: a share of the leases has hints that are wrong by a
factor, up or down alike. Printed for each class are the median of the absolute errors of
the ETAs told at submission, mean over the seeds and the worst seed; over all seeds, the
quartiles of the signed errors, the shares told more than a quarter too early and too
late, the highest ratio of told to true time, and the number of ETAs.

``--service`` measures the service itself, without hints. An emulated superconducting QPU
(10 s and more per job) gets jobs of 10 to 20,000 shots, 10 % production, 30 % test, 60 %
development, or 40 and 60 % of the two lower classes, without pre-emption; its clock runs
faster by the time scale. Two kinds of ETAs are compared: the one at the job's submission,
and those while it was pending, every five mean jobs. The errors of short waits are
printed in units of a mean job.

``burst`` submits all jobs at once and then requests the ETAs. The other streams submit
jobs at random times (Poisson), at 80, 120 and 500 % of the device's capacity, so that
jobs of a higher class keep arriving while a lower one waits. For comparison, an oracle
that knows the true rates and times forecasts the same jobs (eta_oracle.py): ``endless``
assumes an endless stream, as the service must; ``ending`` knows the last job. The
oracle's jobs take their modelled time. The service's jobs take some milliseconds more
on the host, so the true load exceeds the nominal one, by less the slower the clock. After
a pre-emption, a process starts, which takes some tenths of a second: a clock much faster
than 0.03 measures the host.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path
from statistics import fmean, mean, median, quantiles
from typing import NamedTuple

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
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
from sf_quantum.service.scheduling.policies import names
from sf_quantum.service.store.progress import Progress
from sf_quantum.service.store.store import Store
from tests.benchmarks import eta_oracle, eta_tenants
from tests.support.service import example_bqm

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
    "much production": {
        "production": 0.3,
        "quality": 0.0,
        "test": 0.3,
        "development": 0.4,
    },
}
ASKED_AGAIN_JOBS = 5
WHO = Identity("ann", admin=True)


class PlannedJob(NamedTuple):
    """A job, and the pause before its submission."""

    job_class: JobClass
    shots: int
    pause_seconds: float


class Watched(Progress):
    """Records the first start of each job."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, store.clock)
        self.started: dict[int, float] = {}

    def start(self, number: int, seconds_ago: float = 0.0) -> Future[Job]:
        """See :meth:`.Progress.start`."""
        self.started.setdefault(number, time.monotonic())
        return super().start(number, seconds_ago)


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

    def __init__(self, queue: JobQueue, progress: Watched) -> None:
        self._queue = queue
        self._started = progress.started
        self.made: list[Answer] = []
        self.again: list[Answer] = []

    def ask(self, job: Job) -> Answer:
        """Request the ETA of a pending job."""
        forecast = self._queue.forecasts.of(job)
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
        store = Store(Path(folder) / "service.sqlite")
        store.progress = progress = Watched(store)
        device = EmulatedDevice(technology=TECHNOLOGY, time_scale=scale, seed=1)
        queue = JobQueue(store, device, ServiceSettings(vqpus=10))
        queue.start()
        session = Session(queue, progress)
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


def tenants_case(
    policy: str, load: float, mix: Mapping[JobClass, float], args: argparse.Namespace
) -> dict[JobClass, dict[str, float]]:
    """Simulate tenants, once per seed, and sum up the errors of each class."""
    hints = eta_tenants.Hints(args.wrong, args.factor)
    runs = defaultdict[JobClass, list[list[float]]](list)
    for seed in range(args.seed, args.seed + args.seeds):
        tenants = eta_tenants.draw(args.tenants, load, mix, hints, seed)
        least = mean(seconds for one in tenants for seconds, _ in one.jobs)
        told = eta_tenants.Simulation(policy, tenants, args.vqpus, seed).run()
        errors = defaultdict[JobClass, list[float]](list)
        for one in told[LESSONS:]:
            if one.true > least:
                errors[one.job_class].append((one.eta - one.true) / one.true)
        for job_class, found in errors.items():
            runs[job_class].append(found)
    return {name: signed(runs[name]) for name in mix if sum(map(len, runs[name])) > 10}


def signed(runs: list[list[float]]) -> dict[str, float]:
    """Sum up signed errors of several runs."""
    all_ = [error for errors in runs for error in errors]
    lower, middle, upper = quantiles(all_, n=4)
    # of runs with too few ETAs, the median is none
    medians = [median(map(abs, errors)) for errors in runs if len(errors) > 5]
    medians = medians or [median(map(abs, all_))]
    return {
        "median": fmean(medians),
        "worst": max(medians),
        "lower_quartile": lower,
        "middle": middle,
        "upper_quartile": upper,
        "early": mean(error < -0.25 for error in all_),
        "late": mean(error > 0.25 for error in all_),
        "longest": 1 + max(all_),
        "etas": len(all_),
    }


def show_tenants(found: Mapping[JobClass, dict[str, float]]) -> None:
    """Print one line per class."""
    for job_class, one in found.items():
        print(
            (
                f"  {job_class:12}" + "{median:6.1%}, at most {worst:4.0%}; signed "
                "{lower_quartile:+5.0%} {middle:+5.0%} {upper_quartile:+5.0%}; "
                "early {early:4.0%}, late {late:4.0%}, at most {longest:4.1f} times; "
                "{etas:5.0f} ETAs"
            ).format(**one),
            flush=True,
        )


def simulate_tenants(args: argparse.Namespace) -> dict[str, JSON]:
    """Measure all policies, mixes and loads, and print them unless as JSON."""
    results: dict[str, JSON] = {}
    for policy in args.policy or names():
        for mix in args.mix or MIXES:
            for load in args.load:
                name = f"{policy}, {mix}, {load:.0%}"
                found = tenants_case(policy, load, MIXES[mix], args)
                results[name] = {key: {**one} for key, one in found.items()}
                if not args.json:
                    print(f"{name}:")
                    show_tenants(found)
    return results


def measure_service(args: argparse.Namespace) -> dict[str, JSON]:
    """Measure all streams and mixes, and print them unless as JSON."""
    results: dict[str, JSON] = {}
    for mix in args.mix or [*MIXES][:2]:
        for load in args.only or LOADS:
            name = f"{load}, {mix}"
            runs = case(LOADS[load], MIXES[mix], args)
            results[name] = [{key: {**one} for key, one in run.items()} for run in runs]
            if not args.json:
                show(name, runs)
    return results


def main() -> None:
    """Print a table, or with ``--json`` an object."""
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--service", action="store_true", help="measure the service, without hints")
    add("--mix", choices=MIXES, action="append")
    add("--seed", type=int, default=1, help="the first one")
    add("--seeds", type=int, default=5)
    add("--json", action="store_true")
    add("--wrong", type=float, default=0.3, help="share of leases with wrong hints")
    add("--factor", type=float, default=10.0, help="by which these hints are wrong")
    add("--policy", choices=names(), action="append")
    add("--load", type=float, nargs="+", default=[0.5, 0.8, 1.2, 2.0, 5.0])
    add("--tenants", type=int, default=250)
    add("--vqpus", type=int, default=100)
    add("--jobs", type=int, default=150, help="of --service, beside the lessons")
    add("--time-scale", type=float, default=0.03, help="of --service")
    add("--only", choices=LOADS, action="append", help="streams of --service")
    add("--no-oracle", action="store_true", help="of --service")
    args = parser.parse_args()
    results = measure_service(args) if args.service else simulate_tenants(args)
    if args.json:
        json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()

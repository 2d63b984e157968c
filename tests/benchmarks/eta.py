"""How well the service tells when a job will start.

    python tests/benchmarks/eta.py [--jobs 400] [--time-scale 0.002] [--seed 1]

An emulated superconducting QPU (10 s and more per job) gets jobs of 10 to 20,000 shots,
10 % production, 30 % test, 60 % development, from ten leases; its clock runs faster by
the time scale. The first hundred jobs teach the service the machine's pace. Of each job
after them the ETA told at its submission is compared with the time until it started (for the
first time, if it was pre-empted). The error of a job is |told - true| / true. Jobs that started within one mean job's time are not counted: for
them there is nothing to tell, and the division would mean little; their absolute errors
are printed in mean jobs.

``burst`` submits all jobs at once, and asks for the ETAs then; ``stream`` submits them at random moments (Poisson),
at 80 % of what the device can do, so that jobs of a higher class keep arriving while a
lower one waits; ``overload`` does so at 120 %, ``ramp`` at 500 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from statistics import mean, median, quantiles
from typing import NamedTuple

from sf_quantum.service.auth import Identity
from sf_quantum.service.device import TECHNOLOGIES, Device
from sf_quantum.service.queue import JobQueue
from sf_quantum.service.records import Job, JobClass, LeaseRequest, Submission
from sf_quantum.service.settings import ServiceSettings
from sf_quantum.service.store import Store
from sf_quantum.service.testing import example_bqm

TECHNOLOGY = "superconducting"
LESSONS = 100
LOADS = {"burst": None, "stream": 0.8, "overload": 1.2, "ramp": 5.0}
CLASSES: dict[JobClass, float] = {"production": 0.1, "test": 0.3, "development": 0.6}
WHO = Identity("ann", admin=True)


class Asked(NamedTuple):
    """A job, and how long after the one before it is submitted."""

    job_class: JobClass
    shots: int
    pause_seconds: float


class Watched(Store):
    """Remembers when each job started first, and when each ETA was told."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.started: dict[int, float] = {}

    def start(self, number: int) -> Future[Job]:
        """See :meth:`Store.start`."""
        self.started.setdefault(number, time.monotonic())
        return super().start(number)


class Told(NamedTuple):
    """What was told of a job, and what was true, in seconds."""

    job_class: JobClass
    eta: float
    true: float


def draw(jobs: int, load: float | None, scale: float, seed: int) -> list[Asked]:
    """Draw jobs; without a load they come all at once, after the lessons."""
    draws = random.Random(seed)
    shots = [round(10 ** draws.uniform(1, 4.3)) for _ in range(jobs)]
    each = mean(map(TECHNOLOGIES[TECHNOLOGY].job_seconds, shots)) * scale
    names = draws.choices([*CLASSES], [*CLASSES.values()], k=jobs)
    pauses = [draws.expovariate(load / each) if load else 0.0 for _ in range(jobs)]
    return [Asked(*job) for job in zip(names, shots, pauses, strict=True)]


async def measure(jobs: list[Asked], scale: float) -> list[Told]:
    """Let jobs run, and say of those after the lessons what was told and true."""
    with tempfile.TemporaryDirectory(prefix="sfq-eta-") as folder:
        store = Watched(Path(folder) / "service.sqlite")
        device = Device(technology=TECHNOLOGY, time_scale=scale, seed=1)
        queue = JobQueue(store, device, ServiceSettings(vqpus=10))
        queue.start()
        lessons, rest = jobs[:LESSONS], jobs[LESSONS:]
        at_once = not any(job.pause_seconds for job in jobs)
        learned = await submit(queue, lessons)
        if at_once:
            await over(queue, learned)
        made = [*learned, *await submit(queue, rest, first=LESSONS)]
        told = made[LESSONS:]
        if at_once:
            told = [ask(queue, one.job) for one in told]
        await over(queue, made)
        queue.request_stop()
        await queue.stopped()
        store.close()
    started = store.started
    return [
        Told(one.job.job_class, one.eta, started[one.job.number] - one.when)
        for one in told
        if started[one.job.number] > one.when  # else it had started already
    ]


class Answer(NamedTuple):
    """An ETA, and when it was told."""

    job: Job
    eta: float
    when: float


def ask(queue: JobQueue, job: Job) -> Answer:
    """Ask for the ETA of a job that waits."""
    forecast = queue.forecast(job)
    eta = forecast.eta_seconds if forecast is not None else None
    return Answer(job, eta or 0.0, time.monotonic())


async def submit(queue: JobQueue, jobs: list[Asked], first: int = 0) -> list[Answer]:
    """Submit jobs, each after its pause, and ask for their ETAs."""
    leases = {
        name: (await queue.leases.acquire(WHO, LeaseRequest(job_class=name))).id
        for name in CLASSES
    }
    made = []
    for number, job in enumerate(jobs, first):
        if job.pause_seconds:
            await asyncio.sleep(job.pause_seconds)
        parameters = {"num_reads": job.shots, "num_sweeps": 1}
        asked = Submission("problem", example_bqm(), parameters, str(number))
        submitting = queue.submit(WHO, leases[job.job_class], asked)
        made.append(asyncio.create_task(_told(queue, submitting)))
    return [await one for one in made]


async def _told(
    queue: JobQueue, submitting: Coroutine[None, None, tuple[Job, bool]]
) -> Answer:
    return ask(queue, (await submitting)[0])


async def over(queue: JobQueue, made: list[Answer]) -> None:
    """Wait until jobs are over."""
    for one in made:
        while not (await queue.wait(WHO, one.job.id, 60)).final:
            pass


def summary(told: list[Told], least: float) -> dict[str, float]:
    """Sum up the errors.

    :param least: the mean job's time, and the shortest wait that counts
    """
    errors = sorted(
        abs(one.eta - one.true) / one.true for one in told if one.true > least
    )
    short = [abs(one.eta - one.true) / least for one in told if one.true <= least]
    return {
        "jobs": len(errors),
        "median": median(errors),
        "ninth_decile": quantiles(errors, n=10)[-1],
        "not_counted": len(short),
        "their_median_in_jobs": median(short) if short else 0.0,
    }


def main() -> None:
    """Print a table, or with ``--json`` an object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=400, help="beside the lessons")
    parser.add_argument("--time-scale", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=LOADS, action="append")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {}
    for name in args.only or LOADS:
        jobs = draw(args.jobs + LESSONS, LOADS[name], args.time_scale, args.seed)
        seconds = [TECHNOLOGIES[TECHNOLOGY].job_seconds(job.shots) for job in jobs]
        told = asyncio.run(measure(jobs, args.time_scale))
        least = mean(seconds) * args.time_scale
        results[name] = summary(told, least)
        for job_class in CLASSES:
            own = [one for one in told if one.job_class == job_class]
            if sum(one.true > least for one in own) > 1:
                results[f"{name}, {job_class}"] = summary(own, least)
    if args.json:
        json.dump(results, sys.stdout)
        return
    for name, figures in results.items():
        print(
            f"{name:24} {figures['jobs']:4.0f} jobs: median error "
            f"{figures['median']:6.1%}, nine in ten below {figures['ninth_decile']:6.1%}; "
            f"{figures['not_counted']:3.0f} short waits, median error "
            f"{figures['their_median_in_jobs']:.2f} jobs"
        )


if __name__ == "__main__":
    main()

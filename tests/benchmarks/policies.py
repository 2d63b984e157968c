"""Two hundred tenants on one QPU, under each scheduling policy.

    python -m tests.benchmarks.policies [--tenants 200] [--rounds 3] [--vqpus 200 8]

Tenants of the patterns of Wennersteen et al. (2025), table 1, work in rounds: a job on the
QPU, then a computation beside it. A: ten minutes on the QPU, one beside it; B: two minutes and more
than an hour; C: five and five; mixed: a third of each. Lengths vary by half. Each
tenant acquires a lease, with its pattern and the expected time as hints, and releases
it after its last round. One in twenty is of class production, with short jobs and no
project; the others are of class development, in four projects with shares of 4, 3, 2
and 1 tenths.

The benchmark runs the service's own queue, policy, leases, store and emulated device
(neutral atoms), whose clock, like the computations, is compressed by ``--time-scale``.
The service's own time between two jobs is not compressed, so the utilisation printed is
a lower bound. The policies run in parallel, each in its own process.

With as many vQPUs as tenants, all have a lease at once, and the policy orders jobs;
with fewer it orders lease requests too. Printed per policy:

- wait: from a job's submission to its first start, mean, in minutes of the QPU's clock
- lease: from the request of a lease to its grant, mean, in minutes
- makespan, in hours, and utilisation: overall, and while a job waits
- shares: the largest deviation of a project from its share, in percentage points, while
all
  four have pending jobs (only if all tenants have leases)
- lower: the maximum number of lower-class attempts on the device while a production job
  waited; 1 is the attempt that it pre-empted
- ETA: the median of |forecast - true| / true at submission, for waits above a mean job
- idle users: those without a finished job when half of all jobs are over
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from pydantic import Field

from sf_quantum.protocol.tasks import Outcome, Task
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.jobs import (
    Identity,
    JobClass,
    LeaseRequest,
    Pattern,
    Submission,
)
from sf_quantum.service.domain.settings import PolicyChoice, ServiceSettings, Shares
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.scheduling.policies import names
from sf_quantum.service.store.store import Store
from tests.support.service import example_bqm

TECHNOLOGY = "neutral-atom"
TENTHS = {"p4": 4, "p3": 3, "p2": 2, "p1": 1}
# seconds on the QPU, of which two minutes are set-up, and beside it
ROUNDS: Mapping[Pattern, tuple[float, float]] = {
    "qc-heavy": (600, 60),
    "cc-heavy": (150, 4200),
    "balanced": (300, 300),
}
MIXES: Mapping[str, tuple[Pattern, ...]] = {
    "A": ("qc-heavy",),
    "B": ("cc-heavy",),
    "C": ("balanced",),
    "mixed": ("qc-heavy", "cc-heavy", "balanced"),
}
PRODUCTION_IN = 20


class Tenant(NamedTuple):
    """A tenant, with each round's seconds on the QPU and beside it."""

    user: str
    project: str | None
    job_class: JobClass
    pattern: Pattern
    rounds: tuple[tuple[int, float], ...]


def draw(mix: str, tenants: int, rounds: int, seed: int) -> list[Tenant]:
    """Draw the tenants of a mix, the same for every policy."""
    draws = random.Random(f"{mix} {seed}")
    made = []
    for number in range(tenants):
        production = number % PRODUCTION_IN == 0
        pattern = "cc-heavy" if production else draws.choice(MIXES[mix])
        qpu, beside = ROUNDS[pattern]
        lengths = tuple(
            (
                round(qpu * draws.uniform(0.5, 1.5)) - 120,
                beside * draws.uniform(0.5, 1.5),
            )
            for _ in range(rounds)
        )
        lengths = tuple((max(1, shots), beside) for shots, beside in lengths)
        project = None if production else [*TENTHS][number % len(TENTHS)]
        job_class: JobClass = "production" if production else "development"
        made.append(Tenant(f"u{number:03}", project, job_class, pattern, lengths))
    return made


@dataclass
class Lived:
    """The history of a job; times are monotonic seconds."""

    tenant: Tenant
    submitted: float
    eta: float | None = None
    attempts: list[tuple[float, float, float]] = field(default_factory=list)


class Watched(EmulatedDevice):
    """Records when each job was on the device, and its seconds on the device's clock."""

    attempts: dict[int, list[tuple[float, float, float]]] = Field(default_factory=dict)

    def run(self, task: Task, stop: threading.Event) -> Outcome:
        """See :meth:`EmulatedDevice.run`."""
        begin = time.monotonic()
        outcome = super().run(task, stop)
        span = begin, time.monotonic(), outcome.qpu_seconds or 0.0
        self.attempts.setdefault(task.number, []).append(span)
        return outcome


class Session:
    """Tenants at work."""

    def __init__(self, queue: JobQueue, scale: float) -> None:
        self._queue = queue
        self._scale = scale
        self.jobs: dict[int, Lived] = {}
        self.lease_waits: list[float] = []

    async def work(self, tenant: Tenant) -> None:
        """Acquire a lease, do all rounds, and release it."""
        who = Identity(tenant.user, admin=False)
        expected = sum(120 + shots for shots, _ in tenant.rounds)
        request = LeaseRequest(
            job_class=tenant.job_class,
            pattern=tenant.pattern,
            expected_seconds=expected,
            project=tenant.project,
        )
        asked = time.monotonic()
        lease = await self._queue.leases.acquire(who, request, 3600)
        self.lease_waits.append(time.monotonic() - asked)
        for number, (shots, beside) in enumerate(tenant.rounds):
            parameters = {"num_reads": shots, "num_sweeps": 1}
            key = f"{tenant.user} {number}"
            job = Submission("problem", example_bqm(), parameters, key)
            made, _ = await self._queue.submit(who, lease.id, job)
            lived = self.jobs[made.number] = Lived(tenant, time.monotonic())
            if (forecast := self._queue.forecasts.of(made)) is not None:
                lived.eta = forecast.eta_seconds
            while not (await self._queue.wait(who, made.id, 60)).final:
                pass
            await asyncio.sleep(beside * self._scale)
        await self._queue.leases.release(who, lease.id)


async def measure(
    policy: str, tenants: list[Tenant], vqpus: int, scale: float
) -> dict[str, float]:
    """Run the tenants under a policy."""
    settings = ServiceSettings(
        vqpus=vqpus,
        policy=PolicyChoice(policy),
        shares=Shares(projects=TENTHS),
        user_projects={one.user: [one.project] for one in tenants if one.project},
    )
    with tempfile.TemporaryDirectory(prefix="sfq-policies-") as folder:
        store = Store(Path(folder) / "service.sqlite")
        device = Watched(technology=TECHNOLOGY, time_scale=scale, seed=1)
        queue = JobQueue(store, device, settings)
        queue.start()
        session = Session(queue, scale)
        begin = time.monotonic()
        await asyncio.gather(*(session.work(one) for one in tenants))
        span = begin, time.monotonic()
        queue.request_stop()
        await queue.stopped()
        store.close()
    for number, job in session.jobs.items():
        job.attempts = device.attempts[number]
    jobs = [*session.jobs.values()]
    figures = summary(jobs, span, scale)
    figures["lease_minutes"] = fmean(session.lease_waits) / scale / 60
    if vqpus >= len(tenants):
        figures["shares_points"] = share_error(jobs)
    return figures


def summary(
    jobs: list[Lived], span: tuple[float, float], scale: float
) -> dict[str, float]:
    """Summarize the jobs' histories."""
    each = fmean(end - begin for job in jobs for begin, end, _ in job.attempts)
    waits = [job.attempts[0][0] - job.submitted for job in jobs]
    told = [(job.eta, wait) for job, wait in zip(jobs, waits, strict=True)]
    errors = [
        abs(eta - wait) / wait for eta, wait in told if eta is not None and wait > each
    ]
    waiting, busy = waiting_and_busy(jobs)
    total = sum(end - begin for job in jobs for begin, end, _ in job.attempts)
    makespan = span[1] - span[0]
    return {
        "jobs": len(jobs),
        "wait_minutes": fmean(waits) / scale / 60,
        "makespan_hours": makespan / scale / 3600,
        "utilisation": total / makespan,
        "utilisation_while_work_waits": busy / waiting if waiting else 1.0,
        "lower_attempts": max(lower_attempts(jobs), default=0),
        "eta_error": median(errors) if errors else 0.0,
        "etas": len(errors),
        "idle_users": idle_users(jobs),
        "gap_milliseconds": 1e3 * (waiting - busy) / len(jobs),
    }


def waiting_and_busy(jobs: list[Lived]) -> tuple[float, float]:
    """Add up the seconds in which a job waits, and of these the device is busy."""
    changes = []
    for job in jobs:
        since = job.submitted
        for begin, end, _ in job.attempts:
            changes += [(since, 1, 0), (max(since, begin), -1, 1), (end, 0, -1)]
            since = end
    last = waits = works = 0.0
    waiting = busy = 0.0
    for when, more_wait, more_work in sorted(changes):
        if waits > 0:
            waiting += when - last
            busy += when - last if works > 0 else 0.0
        last, waits, works = when, waits + more_wait, works + more_work
    return waiting, busy


def lower_attempts(jobs: list[Lived]) -> Iterator[int]:
    """Count, for each production job, the lower attempts during its wait."""
    lower = [
        (begin, end)
        for job in jobs
        if job.tenant.job_class != "production"
        for begin, end, _ in job.attempts
    ]
    for job in jobs:
        if job.tenant.job_class == "production":
            begin, end = job.submitted, job.attempts[0][0]
            yield sum(begin < after and before < end for before, after in lower)


def share_error(jobs: list[Lived]) -> float:
    """Return a project's largest deviation from its share, while all projects wait."""
    last: defaultdict[str, float] = defaultdict(float)
    for job in jobs:
        if job.tenant.project is not None:
            start = job.attempts[0][0]
            last[job.tenant.project] = max(last[job.tenant.project], start)
    until = min(last.values())
    used: Counter[str] = Counter()
    for job in jobs:
        for _, end, seconds in job.attempts:
            if end <= until and job.tenant.project is not None:
                used[job.tenant.project] += seconds  # type: ignore[assignment]
    total = sum(used.values())
    return max(
        abs(100 * used[name] / total - 10 * tenths) for name, tenths in TENTHS.items()
    )


def idle_users(jobs: list[Lived]) -> int:
    """Count the users without a finished job when half of all jobs are over."""
    ends = sorted(job.attempts[-1][1] for job in jobs)
    half = ends[len(ends) // 2]
    users = {job.tenant.user for job in jobs}
    return len(users - {j.tenant.user for j in jobs if j.attempts[-1][1] <= half})


def case(args: argparse.Namespace, policy: str) -> dict[str, dict[str, float]]:
    """Measure one policy in every mix."""
    found = {}
    for vqpus in args.vqpus:
        for mix in args.mix or MIXES:
            tenants = draw(mix, args.tenants, args.rounds, args.seed)
            work = measure(policy, tenants, vqpus, args.time_scale)
            found[f"{mix}, {vqpus} vQPUs"] = asyncio.run(work)
    return found


def each_in_its_own(policies: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Run the policies in parallel, each in its own process."""
    command = [sys.executable, "-m", "tests.benchmarks.policies", *sys.argv[1:]]
    running = {
        name: subprocess.Popen(
            [*command, "--json", "--policy", name, "--here"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in policies
    }
    found = {}
    for process in running.values():
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(process.returncode)
        found.update(json.loads(output))
    return found


HEAD = "policy      wait   lease  makespan  util.  while w.  shares  lower  ETA    idle  gap"


def show(found: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print a table per mix."""
    for mix in next(iter(found.values())):
        print(f"\n{mix}\n{HEAD}")
        for policy, cases in found.items():
            one = cases[mix]
            shares = one.get("shares_points")
            shown = "-" if shares is None else f"{shares:.1f}"
            print(
                f"{policy:10}{one['wait_minutes']:6.0f}{one['lease_minutes']:8.0f}"
                f"{one['makespan_hours']:10.1f}{one['utilisation']:7.1%}"
                f"{one['utilisation_while_work_waits']:10.1%}{shown:>8}"
                f"{one['lower_attempts']:7.0f}{one['eta_error']:7.1%}"
                f"{one['idle_users']:6.0f}{one['gap_milliseconds']:5.1f} ms"
            )


def main() -> None:
    """Print tables, or with ``--json`` an object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tenants", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vqpus", type=int, nargs="+", default=[200, 8])
    parser.add_argument("--time-scale", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mix", choices=MIXES, action="append")
    parser.add_argument("--policy", choices=names(), action="append")
    parser.add_argument("--here", action="store_true", help="in this process")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # FIFO first: the others are compared with it
    policies = sorted(args.policy or names(), key=lambda name: (name != "fifo", name))
    if args.here or len(policies) == 1:
        found = {policy: case(args, policy) for policy in policies}
    else:
        found = each_in_its_own(policies)
    if args.json:
        json.dump(found, sys.stdout)
    else:
        show(found)


if __name__ == "__main__":
    main()

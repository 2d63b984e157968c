"""Tenants with leases, hints and jobs in rounds, on a clock of their own.

The service's own pending jobs, policies and estimator, without its event loop, database
and device: what takes a QPU weeks is simulated within seconds, and does not depend on the
load of the host. Tenants come at random times (Poisson). Each acquires a lease with its
class, pattern and expected seconds, submits its jobs one after the other, with a
computation after each, or all at once, and releases the lease.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import fmean
from typing import NamedTuple

from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES
from sf_quantum.service.domain.jobs import (
    RANKS,
    JobClass,
    Lease,
    LeaseRequest,
    Pattern,
)
from sf_quantum.service.domain.settings import Shares
from sf_quantum.service.scheduling.estimator import Estimator
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies import make
from sf_quantum.service.scheduling.work import PendingJob

# seconds beside the QPU after each job, relative to the job
BESIDE: Mapping[Pattern, float] = {"qc-heavy": 1 / 9, "balanced": 1.0, "cc-heavy": 9.0}
TENTHS = {"p0": 4, "p1": 3, "p2": 2, "p3": 1}
USERS = 20
# most jobs of a tenant
JOBS = 5
# share of the tenants that submit all their jobs at once
AT_ONCE = 0.1
# logarithmic error of a hint that is right, and of a run time, standard deviation
HINT_ERROR, RUN_ERROR = 0.2, 0.02


class Tenant(NamedTuple):
    """A lease and its jobs.

    :param comes: when it requests the lease
    :param hint: its expected seconds on the QPU
    :param jobs: of each, the seconds on the QPU, and those beside it that follow
    """

    number: int
    comes: float
    user: str
    project: str
    job_class: JobClass
    pattern: Pattern
    at_once: bool
    hint: float
    jobs: tuple[tuple[float, float], ...]


class Hints(NamedTuple):
    """How good hints are: the share of leases with wrong ones, and by which factor."""

    wrong: float
    factor: float


def draw(
    tenants: int, load: float, mix: Mapping[JobClass, float], hints: Hints, seed: int
) -> list[Tenant]:
    """Draw tenants, the same whatever the hints."""
    draws, wrongs = random.Random(seed), random.Random(f"hints {seed}")
    timing = TECHNOLOGIES["neutral-atom"].timing
    drawn: list[tuple[Pattern, tuple[tuple[float, float], ...]]] = []
    for _ in range(tenants):
        pattern = draws.choice([*BESIDE])
        rounds = []
        for _ in range(draws.randint(1, JOBS)):
            seconds = timing.job_seconds(round(10 ** draws.uniform(1, 3.23)))
            beside = BESIDE[pattern] * seconds * draws.uniform(0.5, 1.5)
            rounds.append((seconds, beside))
        drawn.append((pattern, tuple(rounds)))
    each = fmean(sum(seconds for seconds, _ in jobs) for _, jobs in drawn)
    made, now = [], 0.0
    for number, (pattern, jobs) in enumerate(drawn):
        now += draws.expovariate(load / each)
        user = draws.randrange(USERS)
        (job_class,) = draws.choices([*mix], [*mix.values()])
        hint = sum(seconds for seconds, _ in jobs)
        hint *= math.exp(wrongs.gauss(0.0, HINT_ERROR))
        if wrongs.random() < hints.wrong:
            hint *= wrongs.choice((hints.factor, 1 / hints.factor))
        made.append(
            Tenant(
                number=number,
                comes=now,
                user=f"u{user:02}",
                project=f"p{user % len(TENTHS)}",
                job_class=job_class,
                pattern=pattern,
                at_once=draws.random() < AT_ONCE,
                hint=hint,
                jobs=jobs,
            )
        )
    return made


class Told(NamedTuple):
    """What a job was told at its submission, and the true wait, in seconds."""

    job_class: JobClass
    eta: float
    true: float


@dataclass
class _Waiting:
    """A request for a lease; see :class:`~.policies.base.PendingLease`."""

    tenant: Tenant
    user: str
    request: LeaseRequest
    passed: int = 0


@dataclass
class _Held:
    """A tenant with a lease, and what is left of its jobs."""

    tenant: Tenant
    lease: Lease
    begun: int = 0
    left: int = 0


@dataclass
class _Submitted:
    """A job, its lease, and what it was told."""

    held: _Held
    beside: float
    submitted: float
    eta: float
    started: float | None = None


@dataclass
class Simulation:
    """One QPU and its tenants."""

    policy_name: str
    tenants: list[Tenant]
    vqpus: int
    seed: int = 1
    now: float = 0.0

    def __post_init__(self) -> None:
        shares, clock = Shares(projects=TENTHS), lambda: self.now
        self.policy = make(self.policy_name, {}, shares, clock)
        self.pending = PendingJobs(self.policy)
        self.estimator = Estimator(self.policy, clock)
        self._draws = random.Random(f"run times {self.seed}")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._numbers = count(1)
        self._jobs: dict[int, _Submitted] = {}
        self._waiting: list[_Waiting] = []
        self._held: list[_Held] = []
        self._running: PendingJob | None = None
        self._attempt = 0

    def run(self) -> list[Told]:
        """Simulate until all jobs are over; return what they were told, in order."""
        for tenant in self.tenants:
            self._at(tenant.comes, partial(self._ask, tenant))
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        return [
            Told(job.held.tenant.job_class, job.eta, job.started - job.submitted)
            for job in self._jobs.values()
            if job.started is not None
        ]

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    def _ask(self, tenant: Tenant) -> None:
        request = LeaseRequest(
            job_class=tenant.job_class,
            pattern=tenant.pattern,
            expected_seconds=tenant.hint,
            project=tenant.project,
        )
        self._waiting.append(_Waiting(tenant, tenant.user, request))
        self._grant()

    def _grant(self) -> None:
        while self._waiting and len(self._held) < self.vqpus:
            rank = min(RANKS[one.tenant.job_class] for one in self._waiting)
            first = [w for w in self._waiting if RANKS[w.tenant.job_class] == rank]
            index = self.policy.choose_request(
                first, [held.lease for held in self._held]
            )
            for passed in first[:index]:
                passed.passed += 1
            self._waiting.remove(first[index])
            self._lease(first[index].tenant)

    def _lease(self, tenant: Tenant) -> None:
        lease = Lease(
            id=f"{tenant.number}",
            user=tenant.user,
            job_class=tenant.job_class,
            pattern=tenant.pattern,
            expected_seconds=tenant.hint,
            project=tenant.project,
            opened=self.now,
        )
        held = _Held(tenant, lease, left=len(tenant.jobs))
        self._held.append(held)
        self.policy.leased(lease)
        self.estimator.held.add(lease)
        for _ in range(len(tenant.jobs) if tenant.at_once else 1):
            self._submit(held)

    def _submit(self, held: _Held) -> None:
        seconds, beside = held.tenant.jobs[held.begun]
        held.begun += 1
        lease = held.lease
        job = PendingJob(
            number=next(self._numbers),
            id="",
            user=lease.user,
            lease=lease.id,
            job_class=lease.job_class,
            kind="problem",
            seconds=seconds,
            qpu_seconds=seconds,
            submitted=self.now,
            project=lease.project,
            pattern=lease.pattern,
        )
        self.estimator.submitted(job)
        self.pending.add(job)
        ahead = self.pending.work_ahead(job, self.estimator.held)
        _, eta = self.estimator.wait(job, *ahead)
        self._jobs[job.number] = _Submitted(held, beside, self.now, eta)
        running = self._running
        if running is None:
            self._start()
        elif (first := self.pending.first()) and self.policy.preempts(first, running):
            self._end(running, completed=False)

    def _start(self) -> None:
        self._running = job = self.pending.pop()
        if job is None:
            return
        submitted = self._jobs[job.number]
        if submitted.started is None:
            submitted.started = self.now
        self.estimator.began(job)
        self.policy.began(job)
        self._attempt = attempt = self._attempt + 1
        seconds = job.seconds * math.exp(self._draws.gauss(0.0, RUN_ERROR))

        def over() -> None:
            if self._attempt == attempt:
                self._end(job, completed=True)

        self._at(self.now + seconds, over)

    def _end(self, job: PendingJob, *, completed: bool) -> None:
        self._attempt += 1
        self.estimator.ended(job, completed=completed)
        self.policy.ended(job, job.qpu_seconds if completed else 0.0)
        if completed:
            submitted = self._jobs[job.number]
            self._at(self.now + submitted.beside, partial(self._go_on, submitted.held))
        else:
            self.pending.add(job)
        self._start()

    def _go_on(self, held: _Held) -> None:
        held.left -= 1
        if held.begun < len(held.tenant.jobs):
            self._submit(held)
        elif not held.left:
            self._held.remove(held)
            self.policy.released(held.lease)
            self.estimator.held.remove(held.lease.id)
            self._grant()

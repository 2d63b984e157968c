"""The random part of a workload: runs of applications, and the load of others.

Each source has its own stream of random numbers, which depends on the repetition but not on
the strategy, so strategies are compared on the same draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, cast

from sf_quantum.errors import InputError
from sf_quantum.planning.simulation.application import (
    Application,
    ClassicalStep,
    QuantumStep,
    Step,
    Task,
    draw,
)
from sf_quantum.planning.simulation.cluster import Usage
from sf_quantum.planning.simulation.qpu import Process
from sf_quantum.planning.simulation.site import Site
from sf_quantum.planning.traces.node_trace import NodeTrace
from sf_quantum.planning.traces.qpu import QpuJob, QpuLoad
from sf_quantum.planning.workloads.quantities import MOST_JOBS
from sf_quantum.planning.workloads.workload import (
    HOUR,
    ApplicationSettings,
    Background,
    BackgroundJobs,
    BackgroundQuantum,
    Phase,
    Workload,
    qpu_job_seconds,
)
from sf_quantum.service.domain.jobs import Lease, LeaseRequest

#: recorded jobs of others, with times from the start of the simulation
Load: TypeAlias = NodeTrace | QpuLoad


def applications(workload: Workload, repetition: int) -> list[Application]:
    """Draw all runs of all applications, in the order of submission."""
    runs = []
    for name, settings in workload.applications.items():
        stream = f"{workload.seed} {repetition} {name}"
        arrivals = _arrivals(settings, workload.warm_up_seconds, stream)
        for number, arrival in enumerate(arrivals):
            draws = random.Random(f"{stream} {number}")
            steps = _steps(workload, settings, draws)
            expected = sum(
                step.expected_qpu_seconds
                for step in steps
                if isinstance(step, QuantumStep)
            )
            lease = LeaseRequest(
                job_class=settings.job_class,
                project=settings.project,
                pattern=settings.pattern,
                expected_seconds=expected or None,
            )
            user = f"{name}-{number % settings.users}"
            margin, limit = settings.margin, settings.limit_seconds
            runs.append(Application(user, arrival, steps, margin, lease, name, limit))
    return sorted(runs, key=lambda run: run.arrival)


def _arrivals(
    settings: ApplicationSettings, warm_up: float, stream: str
) -> Iterator[float]:
    draws = random.Random(f"{stream} arrivals")
    now = warm_up + settings.at_seconds
    for _ in range(settings.count):
        yield now
        if settings.per_hour is not None:
            now += draws.expovariate(settings.per_hour / HOUR)


def _steps(
    workload: Workload, settings: ApplicationSettings, draws: random.Random
) -> list[Step]:
    repeats = max(1, round(draw(draws, settings.repeats, settings.repeats_spread)))
    takes_part = {"first": 0, "last": repeats - 1}
    return [
        _step(workload, phase, phase.step or str(index), draws)
        for number in range(repeats)
        for index, phase in enumerate(settings.phases)
        if phase.only is None or number == takes_part[phase.only]
    ]


def _step(workload: Workload, phase: Phase, name: str, draws: random.Random) -> Step:
    """Draw the times of one pass through a phase."""
    if phase.qpu is None:
        partition = phase.partition or workload.first_partition
        tasks = [
            Task(
                partition=partition,
                nodes=phase.nodes,
                least=phase.least or phase.nodes,
                seconds=draw(draws, mean, phase.spread),
                expected_seconds=mean,
            )
            for mean in phase.task_times()
        ]
        at_once = workload.partitions[partition].most_jobs
        return ClassicalStep(tuple(tasks), name, phase.host_seconds, at_once)
    qpu = workload.qpus[phase.qpu]
    mean = qpu_job_seconds(qpu, phase)
    shots = mean - qpu.setup_seconds
    jobs = [
        min(qpu.setup_seconds + draw(draws, shots, phase.spread), qpu.longest_job())
        for _ in range(phase.jobs)
    ]
    return QuantumStep(
        qpu=phase.qpu,
        partition=qpu.partition,
        jobs=tuple(jobs),
        expected_qpu_seconds=mean * phase.jobs,
        off_qpu_seconds=qpu.latency_seconds + phase.between_seconds,
        name=name,
        host_seconds=phase.host_seconds,
        nodes=phase.nodes,
    )


class Others:
    """The load of others, and the waits of their jobs on nodes."""

    def __init__(self, workload: Workload, repetition: int, site: Site) -> None:
        self._workload = workload
        self._site = site
        self._stream = f"{workload.seed} {repetition} background"
        #: wait and run time of each job that has started after the warm-up
        self.waits: list[tuple[float, float]] = []
        self._jobs = 0

    def start(self, recorded: Sequence[Load]) -> None:
        """Start all sources of load."""
        background = self._workload.background or Background()
        env = self._site.env
        for index, jobs in enumerate(background.jobs):
            env.process(self._poisson_jobs(jobs, f"jobs {index}"))
        for index, quantum in enumerate(background.quantum):
            env.process(self._poisson_quantum(quantum, f"quantum {index}"))
        for load in recorded:
            if isinstance(load, NodeTrace):
                env.process(self._recorded_jobs(load))
            else:
                for lease in load.leases:
                    env.process(self._recorded_lease(load.qpu, lease))

    def _count(self) -> None:
        """Count a job of others.

        :raises InputError: if there are so many jobs that the simulation would hardly end
        """
        self._jobs += 1
        if self._jobs > MOST_JOBS:
            hours = self._site.env.now / HOUR
            raise InputError(
                f"background: others submit more than {MOST_JOBS:,} jobs in {hours:,.0f} "
                "h, until the applications end: give them lower rates, or the "
                "applications less to do or to wait for"
            )

    def _poisson_jobs(self, jobs: BackgroundJobs, stream: str) -> Process:
        env, draws = self._site.env, random.Random(f"{self._stream} {stream}")
        partition = jobs.partition or self._workload.first_partition
        most = jobs.most_nodes or jobs.nodes
        while True:
            yield env.timeout(draws.expovariate(jobs.per_hour / HOUR))
            seconds = draw(draws, jobs.seconds, jobs.spread)
            nodes = draws.randint(jobs.nodes, most)
            estimate = max(seconds, jobs.limit_seconds or seconds * jobs.margin)
            self._count()
            env.process(self._job({partition: nodes}, seconds, estimate))

    def _recorded_jobs(self, trace: NodeTrace) -> Process:
        env = self._site.env
        for job in trace.jobs:
            yield env.timeout(job.submitted - env.now)
            env.process(self._job(job.nodes, job.seconds, job.estimate))

    def _job(
        self, nodes: Mapping[str, int], seconds: float, estimate: float
    ) -> Process:
        env, cluster = self._site.env, self._site.cluster
        submitted = env.now
        allocation = cluster.request(nodes, estimate, Usage())
        yield allocation.granted
        if submitted >= self._workload.warm_up_seconds:
            self.waits.append((env.now - submitted, seconds))
        yield env.timeout(seconds)
        cluster.release(allocation)

    def _poisson_quantum(self, jobs: BackgroundQuantum, stream: str) -> Process:
        env, draws = self._site.env, random.Random(f"{self._stream} {stream}")
        qpu = jobs.qpu or self._workload.first_qpu
        while True:
            yield env.timeout(draws.expovariate(jobs.per_hour / HOUR))
            seconds = draw(draws, jobs.seconds, jobs.spread)
            seconds = min(seconds, self._workload.qpus[qpu].longest_job())
            self._count()
            env.process(self._qpu_job(qpu, jobs, seconds))

    def _qpu_job(self, qpu: str, jobs: BackgroundQuantum, seconds: float) -> Process:
        service = self._site.qpus[qpu]
        request = LeaseRequest(
            job_class=jobs.job_class, project=jobs.project, expected_seconds=seconds
        )
        granted = service.acquire(jobs.user, request)
        yield granted
        lease = cast("Lease", granted.value)
        yield service.submit(lease, seconds)
        service.release(lease)

    def _recorded_lease(self, qpu: str, jobs: Sequence[QpuJob]) -> Process:
        """Hold a lease from the first submission of its jobs to the end of the last job."""
        env, service = self._site.env, self._site.qpus[qpu]
        first = jobs[0]
        yield env.timeout(first.submitted)
        request = LeaseRequest(
            job_class=first.job_class,
            project=first.project,
            expected_seconds=sum(job.device_seconds for job in jobs),
        )
        granted = service.acquire(first.user or "others", request)
        yield granted
        lease = cast("Lease", granted.value)
        over = []
        for job in jobs:
            yield env.timeout(max(0.0, job.submitted - env.now))
            over.append(service.submit(lease, job.device_seconds))
        yield env.all_of(over)
        service.release(lease)

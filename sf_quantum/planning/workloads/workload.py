"""The workload file: a site, hybrid applications, other load, and strategies to compare."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from sf_quantum.planning.simulation.cluster import Scheduling
from sf_quantum.planning.simulation.site import Overheads, QueueWait
from sf_quantum.planning.simulation.strategies import (
    CoScheduled,
    Elastic,
    PerStep,
    Reserved,
    Strategy,
)
from sf_quantum.planning.workloads.quantities import (
    Amount,
    Count,
    Duration,
    Margin,
    PerHour,
    Period,
    Seconds,
    Spread,
)
from sf_quantum.service.domain.jobs import Pattern, UserClass
from sf_quantum.service.domain.settings import ByName, Shares
from sf_quantum.validation import Section

HOUR = 3600.0
MOST_REPETITIONS = 10_000
# Time for which the background load runs before the applications begin.
WARM_UP = 4 * HOUR


class Partition(Section):
    """The nodes of a Slurm partition.

    :param nodes: number of nodes
    :param watts: power of a node that computes, in watts
    :param idle_watts: power of a node that is held without computing, in watts
    :param price: price of a node-hour
    :param queue_seconds: mean time for which a request is pending because of jobs that are
        not simulated; it does not depend on the size of the request
    :param queue_spread: standard deviation of that time, relative to its mean
    :param most_jobs: maximum number of workflows' jobs that are in Slurm or run in an
        allocation at the same time, like ``maxConcurrentJobs`` of a driver that runs all
        workflows; ``None`` for no limit
    """

    nodes: Count
    most_jobs: Count | None = None
    queue_seconds: Seconds = 0.0
    queue_spread: Spread = 1.0
    watts: Amount = 0.0
    idle_watts: Amount = 0.0
    price: Amount = 0.0

    def queue(self) -> QueueWait:
        """Return the time for which requests wait because of jobs that are not simulated."""
        return QueueWait(self.queue_seconds, self.queue_spread)


class Policy(Section):
    """The scheduling policy of a QPU service, with its options as additional keys.

    :param type: name of the policy
    """

    model_config = ConfigDict(extra="allow")

    type: str = "classes"


class Calibration(Section):
    """A pause after which the device is calibrated.

    :param every_seconds: time from the end of one calibration to the beginning of the
        next
    :param seconds: duration of the pause
    """

    every_seconds: Duration
    seconds: Duration


class Maintenance(Section):
    """A maintenance window, in which no job runs; drawn jobs always fit between two windows.

    :param at_seconds: time from the start of the simulation to the start of the window
    :param seconds: duration of the window
    :param every_seconds: time from the beginning of one window to the beginning of the next;
        ``None`` for a single window
    """

    at_seconds: Seconds
    seconds: Duration
    every_seconds: Duration | None = None


class Failures(Section):
    """Failures of the device; after a failure, the interrupted job runs again.

    :param between_seconds: mean time from a repair to the next failure
    :param repair_seconds: time from a failure until the device runs jobs again
    """

    between_seconds: Period
    repair_seconds: Seconds


class Qpu(Section):
    """A QPU behind a QPU service.

    :param partition: partition of the nodes on which the clients of quantum steps run;
        ``None`` if the clients run on the driver's host
    :param vqpus: number of leases that may be held at the same time
    :param policy: scheduling policy: its ``type``, and its options as additional keys
    :param shares: shares of projects and users, for policies that use them
    :param setup_seconds: time of each job on the device before its shots
    :param shot_seconds: time of each shot
    :param latency_seconds: latency of the network and the service, for each job
    :param calibration: pauses in which the device is calibrated
    :param maintenance: windows in which no job runs
    :param failures: failures of the device; ``None`` for no failures
    :param price: price of an hour of QPU time
    :param lease_price: price of an hour in which a lease is held
    """

    partition: str | None = None
    vqpus: Count = 1
    policy: Policy = Policy()
    shares: Shares = Shares()
    setup_seconds: Seconds = 0.0
    shot_seconds: Duration | None = None
    latency_seconds: Seconds = 0.0
    calibration: Calibration | None = None
    maintenance: list[Maintenance] = Field(default_factory=list)
    failures: Failures | None = None
    price: Amount = 0.0
    lease_price: Amount = 0.0

    def longest_job(self) -> float:
        """Return the seconds between two maintenance windows: longer jobs never run."""
        periods = [
            window.every_seconds - window.seconds
            for window in self.maintenance
            if window.every_seconds is not None
        ]
        return min(periods, default=math.inf)


class Phase(Section):
    """A phase of an application, on nodes or, with ``qpu``, on a QPU.

    :param step: step of the workflow, with its name in the StreamFlow file
    :param seconds: time of each task, or of each QPU job without its set-up; a phase on
        a QPU may have ``shots`` instead
    :param task_seconds: time of each task, instead of ``seconds`` and ``tasks``
    :param spread: standard deviation of the time, relative to its mean
    :param partition: partition of the nodes; by default the first one
    :param nodes: number of nodes of each task, or of a QPU's client that runs on nodes
    :param least: minimum number of nodes of a task, which then takes proportionally longer;
        used only by ``elastic``
    :param tasks: number of tasks that run in parallel, each as a job
    :param qpu: the QPU of the phase
    :param shots: shots of each QPU job
    :param jobs: number of QPU jobs, which run in sequence
    :param between_seconds: time of computation off the QPU, before each QPU job
    :param host_seconds: time of computation on the driver's host, before the phase
    :param only: the only pass through the phases that includes this phase; by default, all
        passes include the phase
    """

    step: str | None = None
    seconds: Duration | None = None
    task_seconds: Annotated[list[Duration], Field(min_length=1)] | None = None
    spread: Spread = 0.0
    partition: str | None = None
    nodes: Count = 1
    least: Count | None = None
    tasks: Count = 1
    qpu: str | None = None
    shots: Count | None = None
    jobs: Count = 1
    between_seconds: Seconds = 0.0
    host_seconds: Seconds = 0.0
    only: Literal["first", "last"] | None = None

    def task_times(self) -> list[float]:
        """List the mean time of each task."""
        return self.task_seconds or [self.seconds or 0.0] * self.tasks

    def passes(self, repeats: int) -> int:
        """Count the passes that include the phase."""
        return repeats if self.only is None else 1


class ApplicationSettings(Section):
    """A hybrid application, which alternates between phases on nodes and on QPUs.

    :param phases: phases of the application, in order
    :param count: number of runs
    :param at_seconds: submission of the first run, after the warm-up
    :param per_hour: mean rate at which the other runs are submitted, by a Poisson process;
        by default, all runs are submitted at the same time
    :param repeats: number of passes through all phases in each run
    :param repeats_spread: standard deviation of ``repeats``, relative to the mean
    :param margin: the user's estimates of times, relative to the times' means
    :param limit_seconds: time limit of all jobs, instead of estimates by ``margin``, such as a
        partition's default; at least the time of the job or, with ``reserved`` and
        ``elastic``, of the whole application
    :param users: number of users who submit the runs in turn
    :param project: project of the application's leases
    :param job_class: job class of the application's leases
    :param pattern: hint of the application's leases
    """

    phases: Annotated[list[Phase], Field(min_length=1)]
    count: Count = 1
    at_seconds: Seconds = 0.0
    per_hour: PerHour | None = None
    repeats: Count = 1
    repeats_spread: Spread = 0.0
    margin: Margin = 2.0
    limit_seconds: Duration | None = None
    users: Count = 1
    project: str | None = None
    job_class: UserClass = "development"
    pattern: Pattern | None = None


class BackgroundJobs(Section):
    """Jobs of others on nodes, submitted by a Poisson process.

    :param partition: partition of the jobs; by default the first one
    :param per_hour: mean number of jobs per hour
    :param nodes: number of nodes of the smallest jobs
    :param most_nodes: number of nodes of the largest jobs; sizes are uniformly
        distributed
    :param seconds: mean run time
    :param spread: standard deviation of the run time, relative to its mean
    :param margin: the users' estimates, relative to the run times
    :param limit_seconds: time limit of all jobs, instead of estimates by ``margin``; at least
        the run time
    """

    partition: str | None = None
    per_hour: PerHour
    nodes: Count = 1
    most_nodes: Count | None = None
    seconds: Duration
    spread: Spread = 1.0
    margin: Margin = 2.0
    limit_seconds: Duration | None = None

    @property
    def mean_nodes(self) -> float:
        return (self.nodes + (self.most_nodes or self.nodes)) / 2


class BackgroundQuantum(Section):
    """QPU jobs of others, submitted by a Poisson process, each with its own lease.

    :param qpu: QPU of the jobs; by default the first one
    :param per_hour: mean number of jobs per hour
    :param seconds: mean time of a job on the device
    :param spread: standard deviation of the time, relative to its mean
    :param user: user who submits the jobs
    :param project: project of the jobs' leases
    :param job_class: job class of the jobs' leases
    """

    qpu: str | None = None
    per_hour: PerHour
    seconds: Duration
    spread: Spread = 1.0
    user: str = "others"
    project: str | None = None
    job_class: UserClass = "development"


class Trace(Section):
    """Jobs of others on nodes, as recorded on a cluster.

    :param file: path of the trace, relative to the workload file
    :param format: ``swf``, the Standard Workload Format, or ``sacct``, what ``sacct
        --parsable2`` prints
    :param partition: partition on which all jobs run; by default the first one or,
        with ``sacct``, the partition that each job names
    :param from_seconds: start of the simulation, in seconds after the first submission of the
        trace or, with ``sacct``, after the first end of a job; jobs that are left out are
        ignored
    """

    file: str
    format: Literal["swf", "sacct"] = "swf"
    partition: str | None = None
    from_seconds: Seconds = 0.0


class QuantumTrace(Section):
    """QPU jobs of others, from a trace that ``sfq usage --trace`` wrote.

    As in the trace, jobs run in leases, each of which lasts from its first to its last job.

    :param file: path of the trace, relative to the workload file
    :param qpu: QPU of the jobs; by default the first one
    :param from_seconds: time of the trace at which the simulation starts, counted from its
        first submission
    """

    file: str
    qpu: str | None = None
    from_seconds: Seconds = 0.0


class QuantumUsage(Section):
    """QPU jobs of others, from a report of ``sfq usage --json``.

    Each row of the report becomes a Poisson process with the row's mean rate and time.

    :param file: path of the report, relative to the workload file
    :param qpu: QPU of the jobs; by default the first one
    :param spread: standard deviation of the times, relative to their mean
    """

    file: str
    qpu: str | None = None
    spread: Spread = 1.0


class Background(Section):
    """The load of others, which is the same with each strategy.

    :param jobs: jobs on nodes
    :param quantum: jobs on QPUs
    :param traces: jobs on nodes, as recorded on a cluster
    :param quantum_traces: jobs on QPUs, as recorded by QPU services
    :param quantum_usage: jobs on QPUs, from reports of QPU services
    :param warm_up_seconds: time before the applications are submitted
    """

    jobs: list[BackgroundJobs] = Field(default_factory=list)
    quantum: list[BackgroundQuantum] = Field(default_factory=list)
    traces: list[Trace] = Field(default_factory=list)
    quantum_traces: list[QuantumTrace] = Field(default_factory=list)
    quantum_usage: list[QuantumUsage] = Field(default_factory=list)
    warm_up_seconds: Seconds = WARM_UP


def _strategies() -> list[Strategy]:
    return [
        CoScheduled(),
        Reserved(),
        PerStep(),
        Elastic(),
        Elastic(keep=1),
        Elastic(keep=1, ahead=True),
    ]


class Workload(Section):
    """The workload file.

    :param partitions: the cluster's partitions, by name
    :param qpus: the QPUs, by name
    :param applications: the hybrid applications, by name
    :param background: the load of others, which is the same with each strategy
    :param overheads: times that StreamFlow and Slurm take
    :param scheduling: how Slurm's controller schedules jobs
    :param strategies: strategies to compare; by default one of each kind, and two variants of
        ``elastic``
    :param repetitions: number of simulations with each strategy, each with its own draws
    :param seed: seed of all random numbers
    """

    partitions: Annotated[ByName[Partition], Field(min_length=1)]
    qpus: ByName[Qpu] = Field(default_factory=dict)
    applications: Annotated[ByName[ApplicationSettings], Field(min_length=1)]
    background: Background | None = None
    overheads: Overheads = Overheads()
    scheduling: Scheduling = Scheduling()
    strategies: Annotated[list[Strategy], Field(min_length=1)] = Field(
        default_factory=_strategies
    )
    repetitions: Annotated[int, Field(ge=2, le=MOST_REPETITIONS)] = 10
    seed: int = 1

    @property
    def first_partition(self) -> str:
        return next(iter(self.partitions))

    @property
    def first_qpu(self) -> str:
        return next(iter(self.qpus))

    @property
    def warm_up_seconds(self) -> float:
        return self.background.warm_up_seconds if self.background else 0.0


def qpu_job_seconds(qpu: Qpu, phase: Phase) -> float:
    """Return the mean time of a phase's QPU jobs on the device."""
    if phase.seconds is not None:
        return qpu.setup_seconds + phase.seconds
    return qpu.setup_seconds + (phase.shots or 0) * (qpu.shot_seconds or 0.0)

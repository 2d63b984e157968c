"""The resource usage of a run, from its journal: nodes, waiting times, QPU seconds.

Node-seconds are defined as in Rocco et al. (QCE 2025), section IV.A: the sum, over intervals,
of the nodes held times the interval's length, on the classical partitions. Node-seconds on
quantum partitions are computed separately in the same way.

Times are epoch seconds; the times of allocations come from Slurm, in whole seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from sf_quantum.files import JSON
from sf_quantum.journal.events import (
    Allocation,
    Event,
    Qpu,
    Run,
    Slurm,
    SlurmEvent,
)
from sf_quantum.reporting.aligned import align
from sf_quantum.text import plural, rounded

HEADER = (
    "Slurm job, service, strategy, nodes, requested, granted, released, waited, "
    "node-seconds, jobs"
).split(", ")
NUMBERS = HEADER[3:-1]
COMPLETED = "COMPLETED"
# statuses after which an allocation holds nodes
HOLDING = ("granted", "resized")
# whether partitions are quantum, by the key in JSON
QUANTUM = {"classical": False, "quantum": True}
_E = TypeVar("_E", bound=SlurmEvent)


@dataclass(frozen=True)
class Hold:
    """Nodes held during an interval."""

    start: float
    end: float
    nodes: int

    @property
    def node_seconds(self) -> float:
        return self.nodes * (self.end - self.start)


@dataclass
class AllocationUsage:
    """The usage of an allocation, or of a component of a heterogeneous allocation.

    :param slurm_cluster: cluster of the Slurm job; empty if unknown
    :param requested: time of the request; None if the journal lacks it
    :param granted: time of the first grant; None without a grant
    :param released: time of the last release; None if the journal ends before
    :param waited: seconds in Slurm's queue, including waits after requeues
    :param requeues: number of times that Slurm requeued the allocation
    :param unended: whether the allocation was still held at the end of the journal; its nodes
        are then counted up to this time
    :param holds: intervals in which the allocation was held, contiguous except for requeues
    """

    allocation: str
    slurm_job: str
    deployment: str
    service: str
    strategy: str
    partition: str
    quantum: bool
    job: str | None
    slurm_cluster: str = ""
    node_list: str | None = None
    requested: float | None = None
    granted: float | None = None
    released: float | None = None
    waited: float = 0.0
    requeues: int = 0
    unended: bool = False
    holds: list[Hold] = field(default_factory=list)

    @property
    def node_seconds(self) -> float:
        return sum(hold.node_seconds for hold in self.holds)

    def to_json(self) -> dict[str, JSON]:
        """Return all fields and the node-seconds."""
        return {**asdict(self), "node_seconds": self.node_seconds}


@dataclass(frozen=True)
class ServiceUsage:
    """The usage of a service with one strategy."""

    deployment: str
    service: str
    strategy: str
    quantum: bool
    allocations: int
    waited: float
    node_seconds: float


@dataclass
class RunUsage:
    """The usage of one or several runs.

    :param workflow: names of the run's workflows
    :param started: first time in the journal
    :param ended: last time in the journal
    :param allocations: usage of the allocations, in the order of their requests
    :param jobs: the ``slurm`` events: one for each attempt of a job on Slurm
    :param qpu_seconds: QPU seconds by QPU and QPU job, so that no QPU job is counted twice
    """

    workflow: str
    started: float
    ended: float
    allocations: list[AllocationUsage]
    jobs: list[Slurm]
    qpu_seconds: dict[tuple[str, str | None], float]

    def node_seconds(self, *, quantum: bool = False) -> float:
        """Return the node-seconds on the quantum or the classical partitions."""
        return sum(a.node_seconds for a in self.allocations if a.quantum == quantum)

    def nodes(self, *, quantum: bool = False) -> list[tuple[float, int]]:
        """Return the nodes held over time, on the quantum or the classical partitions.

        :returns: each time of a change, with the number of nodes after the change; the last
            number is 0
        """
        changes: Counter[float] = Counter()
        for hold in [
            h for a in self.allocations if a.quantum == quantum for h in a.holds
        ]:
            changes[hold.start] += hold.nodes
            changes[hold.end] -= hold.nodes
        steps, nodes = [], 0
        for time in sorted(time for time, change in changes.items() if change):
            nodes += changes[time]
            steps.append((time, nodes))
        return steps

    def services(self) -> list[ServiceUsage]:
        """Return the usage by service and strategy, in the order of requests."""
        groups = defaultdict(list)
        for a in self.allocations:
            groups[a.deployment, a.service, a.strategy, a.quantum].append(a)
        return [
            ServiceUsage(
                *key,
                allocations=len(group),
                waited=sum(a.waited for a in group),
                node_seconds=sum(a.node_seconds for a in group),
            )
            for key, group in groups.items()
        ]

    def to_json(self) -> dict[str, JSON]:
        """Return the usage as JSON: sums, step functions, allocations and Slurm jobs."""
        nodes = {name: self.nodes(quantum=value) for name, value in QUANTUM.items()}
        return {
            "started": self.started,
            "ended": self.ended,
            "node_seconds": {
                name: self.node_seconds(quantum=value)
                for name, value in QUANTUM.items()
            },
            "qpu_seconds": sum(self.qpu_seconds.values()),
            "nodes": {name: [[*s] for s in steps] for name, steps in nodes.items()},
            "services": [asdict(service) for service in self.services()],
            "allocations": [a.to_json() for a in self.allocations],
            "slurm_jobs": [asdict(job) for job in self.jobs],
        }


def measure(events: Iterable[Event]) -> RunUsage:
    """Return the usage of a run; unended allocations are counted up to the last event."""
    events = list(events)
    changes = [event for event in events if isinstance(event, Allocation)]
    qpu_jobs = [event for event in events if isinstance(event, Qpu)]
    times = [event.time for event in events] + [event.at for event in changes]
    ended = max(times, default=0.0)
    histories = _by_allocation(changes)
    in_order = sorted(histories.values(), key=_first_time)
    allocations = [_allocation(history, ended) for history in in_order]
    return RunUsage(
        workflow=_workflow(events),
        started=min(times, default=0.0),
        ended=ended,
        allocations=allocations,
        jobs=[event for event in events if isinstance(event, Slurm)],
        qpu_seconds={
            (event.qpu, event.qpu_job): event.qpu_seconds or 0.0
            # of several values reported for a QPU job, the largest is used
            for event in sorted(qpu_jobs, key=lambda one: one.qpu_seconds or 0.0)
        },
    )


def together(runs: Collection[RunUsage]) -> RunUsage:
    """Return the usage of one or more runs, from the first start to the last end."""
    return RunUsage(
        workflow=", ".join(run.workflow for run in runs),
        started=min(run.started for run in runs),
        ended=max(run.ended for run in runs),
        allocations=[a for run in runs for a in run.allocations],
        jobs=[job for run in runs for job in run.jobs],
        qpu_seconds=dict(
            # sorted, since a run that recovered a QPU job may not know its seconds
            sorted(
                (job for run in runs for job in run.qpu_seconds.items()),
                key=lambda job: job[1],
            )
        ),
    )


def _by_allocation(events: Iterable[_E]) -> dict[tuple[str, str], list[_E]]:
    groups = defaultdict(list)
    for event in events:
        groups[event.deployment, event.allocation].append(event)
    return groups


def _allocation(history: list[Allocation], ended: float) -> AllocationUsage:
    """Return the usage of one allocation from its events."""
    first, last = history[0], history[-1]
    times = {event.status: event.at for event in reversed(history)}
    lists = [event.node_list for event in history if event.node_list]
    # The cluster of a job in a federation is known only when the job runs.
    clusters = (event.slurm_cluster for event in reversed(history))
    allocation = AllocationUsage(
        allocation=first.allocation,
        slurm_job=first.slurm_job,
        deployment=first.deployment,
        service=first.service or "",
        strategy=first.strategy,
        partition=first.partition or "",
        quantum=first.quantum,
        job=first.job,
        slurm_cluster=next(filter(None, clusters), ""),
        node_list=lists[-1] if lists else None,
        requested=times.get("requested"),
        granted=times.get("granted"),
        released=last.at if last.status == "released" else None,
        unended=last.status in HOLDING,
    )
    for event, following in zip(history, [*history[1:], None], strict=True):
        # Slurm rounds times down, so a grant may seem to precede its request
        end = ended if following is None else max(event.at, following.at)
        if event.status in HOLDING:
            allocation.holds.append(Hold(event.at, end, event.nodes))
        elif event.status == "requested":
            allocation.waited += end - event.at
        elif following is not None and following.status == "granted":
            allocation.waited += end - event.at
            allocation.requeues += 1
    return allocation


def _first_time(history: list[Allocation]) -> float:
    return min(event.at for event in history)


def _workflow(events: list[Event]) -> str:
    run = next((event for event in events if isinstance(event, Run)), None)
    if run is not None and run.workflows:
        return ", ".join(run.workflows)
    return Path((run and run.file) or "run").stem


def table(usage: RunUsage) -> str:
    """Return a table of any allocations, with times since the run's start, and totals."""
    if not usage.allocations:
        return ""
    jobs = _by_allocation(usage.jobs)
    rows = [
        _cells(a, jobs.get((a.deployment, a.allocation), []), usage)
        for a in usage.allocations
    ]
    lines = [*align([HEADER, *rows], NUMBERS), "", totals(usage)]
    if unended := ", ".join(a.allocation for a in usage.allocations if a.unended):
        lines.append(
            f"still held at the journal's last event and counted up to it: {unended}"
        )
    return "\n".join(lines)


def totals(usage: RunUsage) -> str:
    """Return one line with the numbers of allocations and jobs, and the sums of times."""
    failed = sum(job.state != COMPLETED for job in usage.jobs)
    return (
        f"{plural(len(usage.allocations), 'allocation')}, "
        f"{plural(len(usage.jobs), 'job')} on Slurm ({failed} not completed); "
        f"node-seconds: classical {usage.node_seconds():.1f}, "
        f"quantum {usage.node_seconds(quantum=True):.1f}; "
        f"QPU {rounded(sum(usage.qpu_seconds.values()))} s; "
        f"waited {sum(a.waited for a in usage.allocations):.1f} s"
    )


def overall(runs: Collection[RunUsage]) -> str:
    """Return one line with the totals and the duration of several runs."""
    all_ = together(runs)
    period = f"{all_.ended - all_.started:.1f} s from first to last event"
    return f"{plural(len(runs), 'run')}, {period}: {totals(all_)}"


def _cells(a: AllocationUsage, jobs: list[Slurm], usage: RunUsage) -> tuple[str, ...]:
    sizes = {hold.nodes for hold in a.holds} or {0}
    return (
        a.allocation,
        "/".join(filter(None, (a.deployment, a.service))),
        a.strategy,
        "-".join(map(str, sorted({min(sizes), max(sizes)}))),
        _after(usage.started, a.requested),
        _after(usage.started, a.granted),
        "held" if a.unended else _after(usage.started, a.released),
        f"{a.waited:.1f} s",
        f"{a.node_seconds:.1f}",
        _jobs(a, jobs),
    )


def _after(start: float, time: float | None) -> str:
    return "-" if time is None else f"{time - start:.1f} s"


def _jobs(a: AllocationUsage, jobs: list[Slurm]) -> str:
    # Slurm's record also has requeues that were too short for the polls of the queue.
    requeues = max([a.requeues, *(job.restarts for job in jobs)])
    requeued = f", requeues: {requeues}" if requeues else ""
    if len(jobs) == 1:
        return f"{jobs[0].job} {jobs[0].state}{requeued}"
    failed = sum(job.state != COMPLETED for job in jobs)
    if jobs:
        unsuccessful = f", {failed} not completed" if failed else ""
        return f"{plural(len(jobs), 'job')}{unsuccessful}{requeued}"
    return (a.job or "-") + requeued

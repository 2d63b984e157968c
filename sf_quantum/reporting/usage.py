"""What a run held, from its journal alone: nodes over time, waits and QPU seconds.

Node-seconds are those of Rocco et al. (QCE 2025), section IV.A: the sum, over intervals,
of the nodes held times the interval's length, on the classical partitions. Those of the
quantum partitions are counted the same way and apart.

Times are epoch seconds. An allocation's are Slurm's own, in whole seconds, and in the order
in which the journal has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sf_quantum.files import JSON
from sf_quantum.journal import Event

HOLDING = ("granted", "resized")


@dataclass(frozen=True)
class Hold:
    """Nodes held from one time to another."""

    start: float
    end: float
    nodes: int

    @property
    def node_seconds(self) -> float:
        """Nodes times seconds."""
        return self.nodes * (self.end - self.start)


@dataclass
class Allocation:
    """One allocation, or one component of a heterogeneous one.

    :param requested: when it was asked for, None if the journal does not say
    :param granted: for the first time, None if it never was
    :param released: for the last time, None if the journal ends before
    :param waited: seconds in Slurm's queue, those after a requeue included
    :param requeues: how often Slurm took it back and granted it again
    :param unended: it was held when the journal ended, and is counted up to there
    :param holds: without gaps, except where Slurm requeued it
    """

    allocation: str
    slurm_job: str
    deployment: str
    service: str
    strategy: str
    partition: str
    quantum: bool
    job: str | None
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
        """Of all its holds."""
        return sum(hold.node_seconds for hold in self.holds)

    def to_json(self) -> dict[str, JSON]:
        """The allocation for ``--json``.

        :returns: every field, and the node-seconds
        """
        return {**asdict(self), "node_seconds": self.node_seconds}


@dataclass(frozen=True)
class Share:
    """What one service held with one strategy."""

    deployment: str
    service: str
    strategy: str
    quantum: bool
    allocations: int
    waited: float
    node_seconds: float


@dataclass
class Usage:
    """What one run, or several, held.

    :param workflow: what the run's workflows are called
    :param started: the first time that the journal knows
    :param ended: the last one
    :param allocations: in the order in which they were asked for
    :param jobs: the ``slurm`` events: one for each attempt of a job that went to Slurm
    :param qpu_seconds: by QPU and its job, so that one found again counts once
    """

    workflow: str
    started: float
    ended: float
    allocations: list[Allocation]
    jobs: list[Event]
    qpu_seconds: dict[tuple[str, str], float]

    def node_seconds(self, *, quantum: bool = False) -> float:
        """The node-seconds of one side.

        :param quantum: of the quantum partitions, instead of the classical ones
        """
        return sum(a.node_seconds for a in self.allocations if a.quantum == quantum)

    def nodes(self, *, quantum: bool = False) -> list[tuple[float, int]]:
        """The nodes held over time, as a step function.

        :param quantum: of the quantum partitions, instead of the classical ones
        :returns: each time at which the number changes, and the number from then on; the
            last one is 0
        """
        changes: Counter[float] = Counter()
        for allocation in self.allocations:
            if allocation.quantum == quantum:
                for hold in allocation.holds:
                    changes[hold.start] += hold.nodes
                    changes[hold.end] -= hold.nodes
        steps, nodes = [], 0
        for time in sorted(time for time, change in changes.items() if change):
            nodes += changes[time]
            steps.append((time, nodes))
        return steps

    def shares(self) -> list[Share]:
        """The allocations by service and strategy.

        :returns: in the order in which they were first asked for
        """
        groups: dict[tuple[str, str, str, bool], list[Allocation]] = {}
        for a in self.allocations:
            key = a.deployment, a.service, a.strategy, a.quantum
            groups.setdefault(key, []).append(a)
        return [
            Share(
                *key,
                allocations=len(group),
                waited=sum(a.waited for a in group),
                node_seconds=sum(a.node_seconds for a in group),
            )
            for key, group in groups.items()
        ]

    def to_json(self) -> dict[str, JSON]:
        """The usage for ``--json``.

        :returns: allocations, attempts of jobs on Slurm, sums and step functions
        """
        return {
            "started": self.started,
            "ended": self.ended,
            "node_seconds": {
                "classical": self.node_seconds(),
                "quantum": self.node_seconds(quantum=True),
            },
            "qpu_seconds": sum(self.qpu_seconds.values()),
            "nodes": {
                "classical": [[*step] for step in self.nodes()],
                "quantum": [[*step] for step in self.nodes(quantum=True)],
            },
            "services": [asdict(share) for share in self.shares()],
            "allocations": [a.to_json() for a in self.allocations],
            "slurm_jobs": [
                {key: value for key, value in job.items() if key != "event"}
                for job in self.jobs
            ],
        }


def measure(events: Iterable[Event]) -> Usage:
    """What a run held.

    :param events: of its journal
    :returns: what is still held at the last of them is counted up to there
    """
    events = list(events)
    times = [_number(event["time"]) for event in events]
    times += [_number(event["at"]) for event in events if "at" in event]
    ended = max(times, default=0.0)
    histories: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if event["event"] == "allocation":
            key = str(event["deployment"]), str(event["allocation"])
            histories.setdefault(key, []).append(event)
    allocations = [_allocation(history, ended) for history in histories.values()]
    allocations.sort(key=_since)
    return Usage(
        workflow=_workflow(events),
        started=min(times, default=0.0),
        ended=ended,
        allocations=allocations,
        jobs=[event for event in events if event["event"] == "slurm"],
        qpu_seconds={
            (str(event.get("qpu")), str(event.get("qpu_job"))): _number(
                event.get("qpu_seconds")
            )
            for event in events
            if event["event"] == "qpu"
        },
    )


def together(runs: Sequence[Usage]) -> Usage:
    """Several runs as one, for their sums.

    :param runs: at least one
    :returns: from the first one's start to the last one's end
    """
    return Usage(
        workflow=", ".join(run.workflow for run in runs),
        started=min(run.started for run in runs),
        ended=max(run.ended for run in runs),
        allocations=[a for run in runs for a in run.allocations],
        jobs=[job for run in runs for job in run.jobs],
        qpu_seconds={job: s for run in runs for job, s in run.qpu_seconds.items()},
    )


def _allocation(history: list[Event], ended: float) -> Allocation:
    allocation = _identity(history)
    for event, following in zip(history, [*history[1:], None], strict=True):
        status, at = str(event["status"]), _at(event)
        # Slurm rounds down, so that it may seem to grant before it was asked
        end = ended if following is None else max(at, _at(following))
        if status in HOLDING:
            allocation.holds.append(Hold(at, end, _nodes(event)))
        elif status == "requested":
            allocation.waited += end - at
        elif following is not None and following["status"] == "granted":
            allocation.waited += end - at
            allocation.requeues += 1
    return allocation


def _identity(history: list[Event]) -> Allocation:
    first, last = history[0], history[-1]
    lists = [str(event["node_list"]) for event in history if event["node_list"]]
    return Allocation(
        allocation=str(first["allocation"]),
        slurm_job=str(first["slurm_job"]),
        deployment=str(first["deployment"]),
        service=_text(first["service"]) or "",
        strategy=str(first["strategy"]),
        partition=_text(first["partition"]) or "",
        quantum=first["quantum"] is True,
        job=_text(first["job"]),
        node_list=lists[-1] if lists else None,
        requested=_first(history, "requested"),
        granted=_first(history, "granted"),
        released=_at(last) if last["status"] == "released" else None,
        unended=last["status"] in HOLDING,
    )


def _first(history: list[Event], status: str) -> float | None:
    return next((_at(event) for event in history if event["status"] == status), None)


def _since(allocation: Allocation) -> float:
    times = (allocation.requested, allocation.granted, allocation.released)
    return min(time for time in times if time is not None)


def _workflow(events: list[Event]) -> str:
    run = next((event for event in events if event["event"] == "run"), {})
    names = run.get("workflows")
    if isinstance(names, list) and names:
        return ", ".join(map(str, names))
    return Path(str(run.get("file") or "run")).stem


def _at(event: Event) -> float:
    return _number(event["at"])


def _nodes(event: Event) -> int:
    return int(_number(event["nodes"]))


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _text(value: JSON) -> str | None:
    return value if isinstance(value, str) else None

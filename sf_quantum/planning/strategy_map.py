"""The map of winning strategies, for varied ratios of phases and varied load."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.planning.comparison import Comparison, Objective, compare
from sf_quantum.planning.simulation.strategies import Strategy
from sf_quantum.planning.workloads.reading import conflicts
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

#: ratios of quantum to classical time, for every application
RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
#: the share of the nodes, and of the QPUs' time, that others keep busy
LOADS = (0.0, 0.25, 0.5, 0.75, 0.9)
# Run time of others' jobs on nodes, and the inverse of the largest share of the nodes that
# one job may request. Both are used only if the workload has no such jobs.
OTHERS_SECONDS = 1800.0
OTHERS_SHARE = 4


@dataclass(frozen=True)
class Cell:
    """A point of the map.

    :param comparison: comparison at this point, if any
    :param why: why there is no comparison; ``None`` with a comparison, or if time ran out
    """

    ratio: float
    load: float
    comparison: Comparison | None = None
    why: str | None = None

    @property
    def as_good(self) -> Sequence[Strategy]:
        """The best strategies and any that may be as good, in the workload's order."""
        if self.comparison is None:
            return ()
        best = self.comparison.recommended.as_good
        return [one.strategy for one in self.comparison.results if one in best]

    @property
    def lead(self) -> float | None:
        """The relative additional cost of the next strategy that is not as good."""
        if self.comparison is None:
            return None
        recommended, best = self.comparison.recommended, self.as_good
        worse = [
            other.relative(recommended.best, recommended.objective).mean
            for other in recommended.others
            if other.strategy not in best
        ]
        return min(worse, default=None)

    def to_json(self) -> dict[str, JSON]:
        return {
            "ratio": self.ratio,
            "load": self.load,
            "as_good": [one.name for one in self.as_good],
            "lead": self.lead,
            "recommended": (
                self.comparison.recommended.to_json() if self.comparison else None
            ),
            "why": self.why,
        }


def cells(workload: Workload, objective: Objective, seconds: float) -> Iterator[Cell]:
    """Simulate the map point by point, by increasing load.

    :param seconds: time after which the remaining points are not simulated
    :raises InputError: if the workload cannot be varied
    """
    check(workload)
    ends = time.monotonic() + seconds
    for load in LOADS:
        for ratio in RATIOS:
            if time.monotonic() >= ends:
                yield Cell(ratio, load)
            else:
                yield cell(workload, objective, ratio, load)


def check(workload: Workload) -> None:
    """Check that ratio and load can be varied.

    :raises InputError: if an application has phases of only one kind, or the load of
        others comes from a trace
    """
    for name, application in workload.applications.items():
        for what, seconds in zip(
            ("nodes", "a QPU"), _seconds(workload, application), strict=True
        ):
            if not seconds:
                raise InputError(
                    f"applications.{name}: no time on {what}, so that there is no ratio "
                    "of quantum to classical time to vary"
                )
    background = workload.background or Background()
    if background.traces or background.quantum_traces:
        raise InputError(
            "background: the load of a trace cannot be varied; describe it with jobs, "
            "quantum or quantum_usage"
        )


def cell(workload: Workload, objective: Objective, ratio: float, load: float) -> Cell:
    """Simulate a point of the map."""
    changed = varied(workload, ratio, load)
    if impossible := next(conflicts(changed), None):
        return Cell(ratio, load, why=impossible[2])
    try:
        return Cell(ratio, load, compare(changed, (), objective))
    except InputError as error:
        return Cell(ratio, load, why=str(error))


def varied(workload: Workload, ratio: float, load: float) -> Workload:
    """Return the workload with another ratio of its phases, and another load of others.

    The total time of each application's phases, without waits, remains the same. The rates
    of others' jobs are multiplied. If the workload has no such jobs, jobs of half an hour on
    up to a quarter of the nodes are added, and QPU jobs like the applications' jobs.
    Waits because of jobs that are not simulated are omitted.
    """
    applications = {
        name: _with_ratio(workload, application, ratio)
        for name, application in workload.applications.items()
    }
    # the seconds of phases now include the set-up
    qpus = {
        name: qpu.model_copy(update={"setup_seconds": 0.0})
        for name, qpu in workload.qpus.items()
    }
    # no waits because of jobs that are not simulated
    partitions = {
        name: partition.model_copy(update={"queue_seconds": 0.0})
        for name, partition in workload.partitions.items()
    }
    scaled = workload.model_copy(
        update={"applications": applications, "qpus": qpus, "partitions": partitions}
    )
    background = workload.background or Background()
    more = background.model_copy(
        update={"jobs": _jobs(scaled, load), "quantum": _quantum(scaled, load)}
    )
    return scaled.model_copy(update={"background": more})


def _seconds(
    workload: Workload, application: ApplicationSettings
) -> tuple[float, float]:
    """Return the time on nodes and on QPUs of one run, without waits."""
    classical = quantum = 0.0
    for phase in application.phases:
        passes = phase.passes(application.repeats)
        if phase.qpu is None:
            classical += passes * max(phase.task_times())
        else:
            seconds = qpu_job_seconds(workload.qpus[phase.qpu], phase)
            quantum += passes * phase.jobs * seconds
    return classical, quantum


def _with_ratio(
    workload: Workload, application: ApplicationSettings, ratio: float
) -> ApplicationSettings:
    """Scale the phases of an application to a ratio of quantum to classical time."""
    classical, quantum = _seconds(workload, application)
    both = classical + quantum
    for_nodes = both / (1 + ratio) / classical
    for_qpus = both * ratio / (1 + ratio) / quantum

    def phase(one: Phase) -> Phase:
        if one.task_seconds is not None:
            times = [seconds * for_nodes for seconds in one.task_seconds]
            return one.model_copy(update={"task_seconds": times})
        if one.qpu is None:
            return one.model_copy(update={"seconds": (one.seconds or 0.0) * for_nodes})
        seconds = qpu_job_seconds(workload.qpus[one.qpu], one) * for_qpus
        return one.model_copy(update={"seconds": seconds, "shots": None})

    phases = [phase(one) for one in application.phases]
    return application.model_copy(update={"phases": phases})


def _jobs(workload: Workload, load: float) -> list[BackgroundJobs]:
    """Return others' jobs on nodes, unchanged in partitions without classical phases."""
    first = workload.first_partition
    present = workload.background.jobs if workload.background else []
    used = {
        phase.partition or first
        for application in workload.applications.values()
        for phase in application.phases
        if phase.qpu is None
    }
    jobs = [one for one in present if (one.partition or first) not in used]
    for name in sorted(used) if load else ():
        nodes = workload.partitions[name].nodes
        mix = [one for one in present if (one.partition or first) == name] or [
            BackgroundJobs(
                partition=name,
                per_hour=1.0,
                most_nodes=max(1, nodes // OTHERS_SHARE),
                seconds=OTHERS_SECONDS,
            )
        ]
        busy = sum(one.per_hour * one.mean_nodes * one.seconds / HOUR for one in mix)
        jobs += [
            one.model_copy(update={"per_hour": one.per_hour * load * nodes / busy})
            for one in mix
        ]
    return jobs


def _quantum(workload: Workload, load: float) -> list[BackgroundQuantum]:
    """Return others' QPU jobs, unchanged on QPUs that no application uses."""
    present = workload.background.quantum if workload.background else []
    phases = [
        phase
        for application in workload.applications.values()
        for phase in application.phases
        if phase.qpu is not None
    ]
    used = {phase.qpu for phase in phases if phase.qpu is not None}
    jobs = [one for one in present if (one.qpu or workload.first_qpu) not in used]
    for name in sorted(used) if load else ():
        same_qpu = [phase for phase in phases if phase.qpu == name]
        mean = sum(one.jobs * (one.seconds or 0.0) for one in same_qpu) / sum(
            one.jobs for one in same_qpu
        )
        mix = [one for one in present if (one.qpu or workload.first_qpu) == name] or [
            BackgroundQuantum(qpu=name, per_hour=1.0, seconds=mean)
        ]
        busy = sum(one.per_hour * one.seconds / HOUR for one in mix)
        jobs += [
            one.model_copy(update={"per_hour": one.per_hour * load / busy})
            for one in mix
        ]
    return jobs

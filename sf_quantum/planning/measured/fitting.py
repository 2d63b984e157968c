"""Phases and overheads, fitted from the journals of earlier runs.

A *group* is all jobs of a step in one iteration of its loop. The time from the end of a group
to the start of the next is StreamFlow's overhead. Slurm's overhead is the time to submit a
job, to start it on free nodes, and to report its end. If Slurm listed a job as pending with a
reason, the job has waited for nodes, and its wait is not part of the overhead. If Slurm has
requeued a job, neither overhead nor wait is known, since the job had already run before its
last start.

All times are in seconds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median, pstdev, pvariance
from typing import NamedTuple

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.journal import events
from sf_quantum.journal.events import Event
from sf_quantum.planning.measured.journals import EarlierRuns
from sf_quantum.reporting.attempts import JobAttempt, collect

# squeue(1) gives these reasons while Slurm has not considered a job, so it does not wait for
# nodes
_UNCONSIDERED = {"None", "Prolog"}
# Slurm's times may be whole seconds
_SECOND = 1.0
# a shorter time is not distinguished from no time
_LEAST_SECONDS = 0.001


@dataclass(frozen=True)
class Sample:
    """The mean and the spread of measured times.

    :param spread: standard deviation relative to the mean
    :param number: number of measurements
    """

    seconds: float
    spread: float
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample | None:
        """Summarise measured times; ``None`` if there are none."""
        if not values:
            return None
        mean = max(fmean(values), 0.0)
        spread = pstdev(values) / mean if mean > _LEAST_SECONDS else 0.0
        return cls(mean, spread, len(values))


@dataclass(frozen=True)
class FittedPhase:
    """A step, with mean values from earlier runs.

    :param target: deployment and service, as the StreamFlow file names them
    :param task_seconds: mean time of each task, or of each QPU job
    :param spread: standard deviation of the times, relative to their means
    :param nodes: number of nodes of each task
    :param qpu: ``None`` for a step on nodes
    :param qpu_jobs: number of QPU jobs in each run of the step
    :param between_seconds: computation off the QPU before each QPU job, in seconds
    :param host_seconds: computation on the driver's host before the phase, in seconds
    :param only: ``first`` for a step before the loop, ``last`` for a step after it
    :param number: number of runs of the step
    """

    step: str
    target: tuple[str, str]
    partition: str | None
    task_seconds: Sequence[float]
    spread: float
    nodes: int
    qpu: str | None
    qpu_jobs: int
    between_seconds: float
    host_seconds: float
    only: str | None
    number: int

    def keys(self) -> dict[str, JSON]:
        """Return the measured keys of a phase, as in a workload file."""
        first, *more = map(_rounded, self.task_seconds)
        times: dict[str, JSON] = (
            {"task_seconds": [first, *more]} if more else {"seconds": first}
        )
        if self.qpu is not None:
            between = _rounded(self.between_seconds)
            times |= {"jobs": self.qpu_jobs, "between_seconds": between}
        return {
            **times,
            "spread": _rounded(self.spread),
            "host_seconds": _rounded(self.host_seconds),
        }


@dataclass(frozen=True)
class Fit:
    """The values fitted to earlier runs.

    :param phases: the steps, in the order of the phases
    :param repeats: iterations of the loop in each run
    :param overheads: measured overheads, by the name of the field of
        :class:`~sf_quantum.planning.simulation.site.Overheads` without its suffix ``_seconds``
    :param queues: the time that a request waits for nodes, by partition
    :param runs: number of runs
    :param side_by_side: steps that ran concurrently, but are consecutive phases in the fit
    """

    phases: Sequence[FittedPhase]
    repeats: Sample
    overheads: Mapping[str, Sample]
    queues: Mapping[str, Sample]
    runs: int
    side_by_side: Sequence[str] = ()


class _SlurmJob(NamedTuple):
    """A job that has run on nodes of an allocation.

    :param allocation: deployment and name of the allocation
    """

    allocation: tuple[str, str]
    strategy: str
    submitted: float
    started: float
    ended: float


@dataclass
class _Job:
    """The last attempt of a job, which completed.

    :param arrived: time when the driver submitted the job to Slurm, or started it elsewhere
    :param ran: seconds of the job's work
    :param noticed: time when the driver noticed the job's end
    :param slurm: Slurm job, if one has run
    """

    attempt: JobAttempt
    target: tuple[str, str]
    arrived: float
    ran: float
    noticed: float
    slurm: _SlurmJob | None


@dataclass
class _Group:
    """The jobs of a step in one iteration, in the order of their indices."""

    step: str
    iteration: tuple[int, ...]
    jobs: list[_Job] = field(default_factory=list)

    @property
    def arrived(self) -> float:
        return min(job.arrived for job in self.jobs)

    @property
    def ended(self) -> float:
        return max(job.noticed for job in self.jobs)

    @property
    def at_first_try(self) -> bool:
        return all(job.attempt.attempt == 1 for job in self.jobs)

    @property
    def on_host(self) -> bool:
        """Whether the group ran on neither nodes of Slurm nor a QPU."""
        return all(job.slurm is None and not job.attempt.qpu_jobs for job in self.jobs)


@dataclass
class _Run:
    """The groups of a run, in the order in which they began."""

    groups: list[_Group]
    allocations: Mapping[tuple[str, str], _Allocation]


@dataclass
class _Allocation:
    """An allocation as its events describe it.

    :param requeued: whether Slurm has taken the allocation's nodes and granted others
    :param pending_reason: reason with which Slurm listed the allocation as pending, if any
    """

    partition: str
    quantum: bool
    requeued: bool
    requested: float = math.nan
    granted: float = math.nan
    released: float = math.nan
    nodes: int = 1
    pending_reason: str | None = None

    @property
    def waited(self) -> bool:
        """Whether the allocation was pending for lack of nodes."""
        reason = self.pending_reason
        return reason is not None and reason not in _UNCONSIDERED

    @property
    def pending(self) -> float:
        return max(0.0, self.granted - self.requested)


def fit(runs: EarlierRuns) -> Fit | None:
    """Fit phases and overheads; return ``None`` if no run has a step on nodes or a QPU.

    :param runs: completed runs; runs without usable events are counted in ``runs.left_out``
    :raises InputError: if a loop is inside another
    """
    read = []
    for of_run in runs.events:
        run = _run(of_run)
        if all(group.on_host for group in run.groups):
            runs.left_out["without steps on Slurm or a QPU"] += 1
        else:
            read.append(run)
    if not read:
        return None
    overheads = _overheads(read)
    repeats = [_repeats(run) for run in read]
    counted = Sample.of([float(one) for one in repeats])
    assert counted is not None
    return Fit(
        phases=_phases(read),
        repeats=counted,
        overheads=overheads,
        queues=_queues(read),
        runs=len(read),
        side_by_side=sorted({step for run in read for step in _overlaps(run)}),
    )


def _run(run: Sequence[Event]) -> _Run:
    """Group the completed jobs of a run by step and iteration."""
    slurm = {one.job: one for one in run if isinstance(one, events.Slurm)}
    targets = {
        (one.step, one.tag): (one.deployment or "", one.service or "")
        for one in run
        if isinstance(one, events.Job) and one.status == "completed"
    }
    groups: dict[tuple[str, tuple[int, ...]], _Group] = {}
    latest = {one.job: one for one in collect(run)}
    for attempt in latest.values():
        if attempt.status != "completed" or attempt.started is None:
            continue
        step = f"/{attempt.step}"
        key = step, _numbers(attempt)[: attempt.loops]
        target = targets.get((step, attempt.tag), ("", ""))
        job = _job(attempt, target, slurm.get(attempt.job))
        groups.setdefault(key, _Group(*key)).jobs.append(job)
    for group in groups.values():
        group.jobs.sort(key=lambda job: _numbers(job.attempt))
    ordered = sorted(groups.values(), key=lambda group: group.arrived)
    return _Run(ordered, _allocations(run))


def _numbers(attempt: JobAttempt) -> tuple[int, ...]:
    """Return the numbers in a job's tag: of its iterations, then of its scatters."""
    return tuple(map(int, attempt.tag.split(".")[1:]))


def _job(
    attempt: JobAttempt, target: tuple[str, str], event: events.Slurm | None
) -> _Job:
    """Read the times of a job, from Slurm's times if it ran there."""
    started, ended = attempt.started or 0.0, attempt.ended or 0.0
    if event is None or event.started is None or event.ended is None:
        return _Job(attempt, target, started, attempt.ran or 0.0, ended, None)
    waited = max((one.lease_seconds for one in attempt.qpu_jobs), default=0.0)
    slurm = _SlurmJob(
        (event.deployment, event.allocation),
        event.strategy,
        event.submitted,
        event.started,
        event.ended,
    )
    ran = max(0.0, slurm.ended - slurm.started - waited)
    return _Job(attempt, target, slurm.submitted, ran, event.time, slurm)


def _allocations(run: Sequence[Event]) -> dict[tuple[str, str], _Allocation]:
    allocations: dict[tuple[str, str], _Allocation] = {}
    # The queue may never have been queried during the first run of a restarted job.
    restarted = {
        (event.deployment, event.allocation)
        for event in run
        if isinstance(event, events.Slurm) and event.restarts
    }
    for event in run:
        if not isinstance(event, events.Allocation):
            continue
        key = event.deployment, event.allocation
        allocation = allocations.setdefault(
            key, _Allocation(event.partition or "", event.quantum, key in restarted)
        )
        if event.status == "requested":
            allocation.requested = event.at
        elif event.status == "granted":
            allocation.granted = event.at
            allocation.nodes = max(allocation.nodes, event.nodes)
        elif event.status == "released":
            allocation.released = event.at
        allocation.pending_reason = event.pending_reason
    return allocations


def _allocation(run: _Run, job: _Job) -> _Allocation | None:
    return None if job.slurm is None else run.allocations.get(job.slurm.allocation)


def _repeats(run: _Run) -> int:
    """Count the iterations of a run's loop; 1 without a loop."""
    iterations = {group.iteration for group in run.groups}
    if any(len(one) > 1 for one in iterations):
        raise InputError(
            "the journals have a loop inside another, which cannot be planned from them; "
            "describe its phases in a workload file"
        )
    return max(1, len(iterations - {()}))


def _overheads(runs: Sequence[_Run]) -> dict[str, Sample]:
    """Fit the overheads that were measured."""
    steps: list[float] = []
    jobs: list[float] = []
    allocations: list[float] = []
    resumes: list[float] = []
    held: list[float] = []
    for run in runs:
        steps += _step_overheads(run)
        for job in (job for group in run.groups for job in group.jobs):
            kind, seconds = _slurm_overhead(run, job)
            if kind == "job":
                jobs.append(seconds)
            elif kind == "allocation":
                allocations.append(seconds)
            elif kind == "resume":
                resumes.append(seconds)
            held += _held_overhead(run, job)
    # the time of an allocation includes the start of its first job, which is subtracted
    resumed = fmean(resumes) if resumes else 0.0
    allocations = [max(0.0, seconds - resumed) for seconds in allocations]
    samples = {
        name: Sample.of(values)
        for name, values in (
            *(("step", steps), ("job", jobs), ("resume", resumes)),
            *(("job_held", held), ("allocation", allocations)),
        )
    }
    return {name: sample for name, sample in samples.items() if sample is not None}


def _step_overheads(run: _Run) -> Iterator[float]:
    for before, after in pairwise(run.groups):
        gap = after.arrived - before.ended
        # overlapping steps have no gap; after a retry, the gap would include failed attempts
        if gap >= 0 and before.at_first_try and after.at_first_try:
            yield gap


def _slurm_overhead(run: _Run, job: _Job) -> tuple[str, float]:
    """Return the kind of a job's overhead, empty if unknown, and its seconds."""
    allocation = _allocation(run, job)
    if allocation is None or job.slurm is None or job.attempt.attempt > 1:
        return "", 0.0
    if allocation.requeued:
        return "", 0.0
    slurm = job.slurm
    seconds = max(0.0, slurm.started - slurm.submitted)
    seconds += max(0.0, job.noticed - slurm.ended)
    # the allocation was already requested for an earlier job
    if allocation.requested + _SECOND < slurm.submitted:
        held = allocation.granted <= slurm.submitted
        return ("resume" if held else ""), seconds
    if allocation.waited:
        return "", 0.0
    return ("job" if slurm.strategy == "per-step" else "allocation"), seconds


def _held_overhead(run: _Run, job: _Job) -> Iterator[float]:
    """Yield the seconds for which a job held its nodes without using them, if known."""
    allocation = _allocation(run, job)
    if allocation is None or job.slurm is None or job.slurm.strategy != "per-step":
        return
    if allocation.requeued:
        return
    ran = job.slurm.ended - job.slurm.started
    seconds = allocation.released - allocation.granted - ran
    if not math.isnan(seconds):
        yield max(0.0, seconds)


def _queues(runs: Sequence[_Run]) -> dict[str, Sample]:
    """Fit the waits for nodes, excluding the time that Slurm takes to grant free nodes."""
    waits: dict[str, list[float]] = defaultdict(list)
    for one in (one for run in runs for one in run.allocations.values()):
        if not math.isnan(one.pending) and not one.requeued:
            waits[one.partition].append(one.pending if one.waited else 0.0)
    samples = {name: Sample.of(values) for name, values in waits.items()}
    return {name: one for name, one in samples.items() if one is not None}


def _overlaps(run: _Run) -> Iterator[str]:
    """Yield the steps that ran at the same time as the step before or after them."""
    for before, after in pairwise(run.groups):
        if after.arrived < before.ended - _SECOND and before.step != after.step:
            yield before.step
            yield after.step


def _phases(runs: Sequence[_Run]) -> list[FittedPhase]:
    """Fit each step that ran on nodes or on a QPU, in the order of the latest run."""
    groups: dict[str, list[tuple[_Run, _Group]]] = defaultdict(list)
    hosts: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        host_seconds = 0.0
        for before, group in pairwise([None, *run.groups]):
            assert group is not None
            if group.on_host:
                gap = 0.0 if before is None else group.arrived - before.ended
                host_seconds += max(0.0, gap) + max(0.0, group.ended - group.arrived)
                continue
            groups[group.step].append((run, group))
            hosts[group.step].append(host_seconds)
            host_seconds = 0.0
    looped = {step for step, of_step in groups.items() if of_step[0][1].iteration}
    before_loop = True
    phases = []
    for step, of_step in groups.items():
        before_loop = before_loop and step not in looped
        only = None
        if looped and step not in looped:
            only = "first" if before_loop else "last"
        phases.append(_phase(step, of_step, fmean(hosts[step]), only))
    return phases


def _phase(
    step: str,
    groups: Sequence[tuple[_Run, _Group]],
    host_seconds: float,
    only: str | None,
) -> FittedPhase:
    """Fit a step to its groups in all runs."""
    runs = [(run, job) for run, group in groups for job in group.jobs]
    held = [one for run, job in runs if (one := _allocation(run, job)) is not None]
    qpu_jobs = [event for _, job in runs for event in job.attempt.qpu_jobs]
    target, _ = Counter(job.target for _, job in runs).most_common(1)[0]
    partition = held[0].partition if held else None
    between = 0.0
    qpu = None
    if qpu_jobs:
        qpu = qpu_jobs[0].qpu
        times, between, spread = _qpu_times([job for _, job in runs])
    else:
        if held and held[0].quantum:
            qpu = partition or target[1]
        times, spread = _task_times([group for _, group in groups], together=bool(qpu))
    return FittedPhase(
        step=step,
        target=target,
        partition=partition,
        task_seconds=times,
        spread=spread,
        nodes=round(median(one.nodes for one in held)) if held else 1,
        qpu=qpu,
        qpu_jobs=max(1, round(len(qpu_jobs or runs) / len(groups))),
        between_seconds=between,
        host_seconds=host_seconds,
        only=only,
        number=len(groups),
    )


def _task_times(
    groups: Sequence[_Group], *, together: bool
) -> tuple[list[float], float]:
    """Return the mean time of each task of a step, and the spread around the means.

    :param together: whether the tasks run one at a time, so they share one mean
    """
    rows = [[max(job.ran, _LEAST_SECONDS) for job in group.jobs] for group in groups]
    tasks = {len(row) for row in rows}
    if len(tasks) > 1 or together:
        # if the number of tasks varies, tasks of different groups do not correspond
        sample = Sample.of([seconds for row in rows for seconds in row])
        assert sample is not None
        number = 1 if together else round(fmean(map(len, rows)))
        return [sample.seconds] * number, sample.spread
    columns = [*zip(*rows, strict=True)]
    means = [fmean(column) for column in columns]
    # The spread is relative to the means of all tasks together, so that short tasks do not
    # have a larger weight.
    variances = (pvariance(column) for column in columns)
    squares = (mean * mean for mean in means)
    return means, math.sqrt(sum(variances) / sum(squares))


def _qpu_times(jobs: Sequence[_Job]) -> tuple[list[float], float, float]:
    """Return the mean QPU time of a QPU job, the mean time off the QPU, and the spread."""
    times: list[float] = []
    beside = 0.0
    for job in jobs:
        waited = 0.0
        own_times = []
        for event in job.attempt.qpu_jobs:
            own_times.append(event.qpu_seconds or event.ran_seconds or 0.0)
            waited += event.queued_seconds or 0.0
        beside += max(0.0, job.ran - waited - sum(own_times))
        times += own_times
    sample = Sample.of([max(seconds, _LEAST_SECONDS) for seconds in times])
    assert sample is not None
    return [sample.seconds], beside / len(times), sample.spread


def _rounded(value: float) -> float:
    """Round to the accuracy of measurements."""
    return float(f"{value:.4g}")

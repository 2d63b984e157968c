"""Reads a workload file, and reports all errors in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from sf_quantum import yaml
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath
from sf_quantum.planning.random_draws import Load
from sf_quantum.planning.simulation.site import licence
from sf_quantum.planning.simulation.strategies import Elastic
from sf_quantum.planning.traces import qpu as qpu_traces
from sf_quantum.planning.traces import sacct, swf, usage
from sf_quantum.planning.traces.bounded_files import no_job
from sf_quantum.planning.traces.node_trace import NodeTrace
from sf_quantum.planning.traces.qpu import QpuTrace
from sf_quantum.planning.workloads.quantities import MOST_JOBS
from sf_quantum.planning.workloads.workload import (
    HOUR,
    ApplicationSettings,
    Background,
    BackgroundJobs,
    Phase,
    Qpu,
    Trace,
    Workload,
    qpu_job_seconds,
)
from sf_quantum.service.scheduling.policies import make
from sf_quantum.text import unknown
from sf_quantum.validation import (
    ValidationErrors,
    dotted,
    validated,
)


def load(path: Path) -> Workload:
    """Read and check a workload file.

    :raises InputError: if the file does not exist, or is not YAML
    :raises ValidationErrors: if the content is invalid; the error lists all errors, each with
        its key
    """
    return checked(yaml.read(path, "workload"), path)


def checked(content: JSON, path: Path) -> Workload:
    """Check the content of a workload file.

    :param path: name of the file, for messages
    :raises ValidationErrors: if the content is invalid; the error lists all errors, each with
        its key
    """

    def name(key: KeyPath, value: JSON) -> str:
        shown = "" if value is None or isinstance(value, dict | list) else f" {value!r}"
        # the path of an error in a strategy contains the strategy's type
        if key[:1] == ("strategies",) and len(key) > 2:
            key = (*key[:2], *key[3:])
        return f"{path}: {dotted(key)}{shown}" if key else str(path)

    workload = validated(Workload, content, name)
    problems = [*_conflicts(workload)]
    if not problems:
        workload = _with_usage(workload, path)
        problems = [*_loads(workload)]
    if problems:
        raise ValidationErrors(
            [f"{name(key, value)}: {why}" for key, value, why in problems]
        )
    return workload


def recorded(workload: Workload, path: Path) -> list[Load]:
    """Read the traces that a workload file names.

    :raises InputError: if a trace cannot be read, or has no job
    """
    background = workload.background or Background()
    loads: list[Load] = []
    for one in background.traces:
        all_jobs = _node_trace(workload, one, path.parent / one.file)
        jobs = all_jobs.starting(one.from_seconds)
        loads.append(jobs)
        ends = (job.submitted + job.seconds for job in jobs.jobs)
        _check_ends(jobs.file, one.from_seconds, ends, workload)
    for each in background.quantum_traces:
        file, name = path.parent / each.file, each.qpu or workload.first_qpu
        trace = qpu_traces.read(file)
        _leave_out_endless(trace, workload.qpus[name], name)
        if not trace.jobs:
            raise no_job(file, "a trace of QPU jobs", trace.left_out)
        load = qpu_traces.load(trace, name, each.from_seconds)
        loads.append(load)
        over = (
            job.submitted + job.device_seconds for lease in load.leases for job in lease
        )
        _check_ends(load.file, each.from_seconds, over, workload)
    return loads


def _check_ends(
    file: str, from_seconds: float, ends: Iterable[float], workload: Workload
) -> None:
    """Reject a trace that ends before the applications begin.

    :param ends: ends of the trace's jobs if no job waits, in seconds after the
        simulation's start
    """
    last = max(ends, default=None)
    if last is None:
        raise InputError(
            f"{file}: no job is queued from {from_seconds:g} s on; begin earlier"
        )
    begin = min(one.at_seconds for one in workload.applications.values())
    begin += workload.warm_up_seconds
    if last <= begin:
        raise InputError(
            f"{file}: its jobs are over {last:g} s after the start, and the applications "
            f"begin at {begin:g} s; give a longer trace, or less warm_up_seconds"
        )


def _node_trace(workload: Workload, settings: Trace, file: Path) -> NodeTrace:
    nodes = {name: one.nodes for name, one in workload.partitions.items()}
    if settings.format == "sacct":
        return sacct.read(file, nodes, settings.partition)
    partition = settings.partition or workload.first_partition
    return swf.read(file, partition, nodes[partition])


def _leave_out_endless(trace: QpuTrace, qpu: Qpu, name: str) -> None:
    kept = []
    for job in trace.jobs:
        if why := _never_runs(qpu, name, job.device_seconds):
            trace.left_out[why] += 1
        else:
            kept.append(job)
    trace.jobs = kept


def _with_usage(workload: Workload, path: Path) -> Workload:
    """Add the load from reports to the load in the file.

    :raises InputError: if a report cannot be read, or has jobs that would hardly ever end
    """
    if (background := workload.background) is None:
        return workload
    quantum = [*background.quantum]
    for report in background.quantum_usage:
        name, file = report.qpu or workload.first_qpu, path.parent / report.file
        for jobs in usage.read(file, name, report.spread):
            if why := _never_runs(workload.qpus[name], name, jobs.seconds):
                raise InputError(f"{file}: jobs of {jobs.user}, on average: {why}")
            quantum.append(jobs)
    more = background.model_copy(update={"quantum": quantum})
    return workload.model_copy(update={"background": more})


def conflicts(workload: Workload) -> Iterator[_Conflict]:
    """Find conflicts in a modified workload; yield key, value and reason of each."""
    yield from _conflicts(workload)
    yield from _loads(workload)


_Conflict = tuple[KeyPath, JSON, str]


def _conflicts(workload: Workload) -> Iterator[_Conflict]:
    """Find conflicts between several keys."""
    unknown_names = [*_unknown_names(workload)]
    yield from unknown_names
    if unknown_names:
        return
    for name, qpu in workload.qpus.items():
        try:
            make(qpu.policy.type, qpu.policy.model_extra or {}, qpu.shares, lambda: 0.0)
        except InputError as error:
            yield ("qpus", name, "policy"), None, str(error)
    for name, application in workload.applications.items():
        for index, phase in enumerate(application.phases):
            for key, value, why in _phase_conflicts(workload, phase):
                yield ("applications", name, "phases", index, *key), value, why
    yield from _double_limits(workload)
    yield from _job_counts(workload)
    yield from _job_sizes(workload)


def _double_limits(workload: Workload) -> Iterator[_Conflict]:
    background = workload.background or Background()
    given: list[tuple[KeyPath, ApplicationSettings | BackgroundJobs]] = [
        (("applications", name), one) for name, one in workload.applications.items()
    ]
    given += [
        (("background", "jobs", index), one)
        for index, one in enumerate(background.jobs)
    ]
    for key, one in given:
        if one.limit_seconds is not None and "margin" in one.model_fields_set:
            yield key, None, "expected either margin or limit_seconds"


def _job_counts(workload: Workload) -> Iterator[_Conflict]:
    """Check that the applications have no more jobs than can be simulated."""
    jobs = {
        name: application.count
        * sum(
            phase.passes(application.repeats)
            * (
                phase.jobs
                if phase.qpu
                else len(phase.task_seconds or ()) or phase.tasks
            )
            for phase in application.phases
        )
        for name, application in workload.applications.items()
    }
    if (all_ := sum(jobs.values())) > MOST_JOBS:
        yield (
            ("applications", max(jobs, key=jobs.__getitem__)),
            None,
            f"the applications have {all_:,} tasks and QPU jobs; at most "
            f"{MOST_JOBS:,} can be simulated",
        )


def _unknown_names(workload: Workload) -> Iterator[_Conflict]:
    for key, name in _partition_names(workload):
        if name is not None and name not in workload.partitions:
            yield key, None, unknown("partition", name, [*workload.partitions])
    for key, name in _qpu_names(workload):
        if name is not None and name not in workload.qpus:
            yield key, None, unknown("QPU", name, [*workload.qpus])
    yield from _counted_names(workload)
    yield from _strategy_conflicts(workload)
    background = workload.background
    of_qpus = {*Background.model_fields} - {"jobs", "traces", "warm_up_seconds"}
    for given in sorted(of_qpus & background.model_fields_set if background else ()):
        if not workload.qpus:
            yield ("background", given), None, "there are no qpus"


def _counted_names(workload: Workload) -> Iterator[_Conflict]:
    for name in workload.qpus:
        if (taken := licence(name)) in workload.partitions:
            why = f"the vQPUs of {name} are counted by this name; choose another one"
            yield ("partitions", taken), None, why


def _strategy_conflicts(workload: Workload) -> Iterator[_Conflict]:
    for index, one in enumerate(workload.strategies):
        if isinstance(one, Elastic) and one.max is not None and one.keep > one.max:
            key: KeyPath = ("strategies", index, one.type, "keep")
            yield key, one.keep, f"more than max, {one.max}"
    names = [one.name for one in workload.strategies]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield ("strategies", index), None, f"{name} is there already"


def _partition_names(workload: Workload) -> Iterator[tuple[KeyPath, str | None]]:
    for name, qpu in workload.qpus.items():
        yield ("qpus", name, "partition"), qpu.partition
    for key, phase in _phases(workload):
        yield (*key, "partition"), phase.partition
    background = workload.background or Background()
    for index, jobs in enumerate(background.jobs):
        yield ("background", "jobs", index, "partition"), jobs.partition
    for index, trace in enumerate(background.traces):
        yield ("background", "traces", index, "partition"), trace.partition


def _qpu_names(workload: Workload) -> Iterator[tuple[KeyPath, str | None]]:
    for key, phase in _phases(workload):
        yield (*key, "qpu"), phase.qpu
    background = workload.background or Background()
    for index, jobs in enumerate(background.quantum):
        yield ("background", "quantum", index, "qpu"), jobs.qpu
    for index, trace in enumerate(background.quantum_traces):
        yield ("background", "quantum_traces", index, "qpu"), trace.qpu
    for index, report in enumerate(background.quantum_usage):
        yield ("background", "quantum_usage", index, "qpu"), report.qpu


def _phases(workload: Workload) -> Iterator[tuple[KeyPath, Phase]]:
    for name, application in workload.applications.items():
        for index, phase in enumerate(application.phases):
            yield ("applications", name, "phases", index), phase


_QUANTUM_KEYS = ("shots", "jobs", "between_seconds")
_CLASSICAL_KEYS = ("partition", "least", "tasks", "task_seconds")


def _phase_conflicts(workload: Workload, phase: Phase) -> Iterator[_Conflict]:
    if phase.qpu is None:
        yield from _classical_conflicts(workload, phase)
    else:
        yield from _quantum_conflicts(workload.qpus[phase.qpu], phase.qpu, phase)
        yield from _client_conflicts(workload, workload.qpus[phase.qpu], phase)


def _classical_conflicts(workload: Workload, phase: Phase) -> Iterator[_Conflict]:
    for key in phase.model_fields_set & {*_QUANTUM_KEYS}:
        yield (key,), None, "only for phases on a QPU, which name their qpu"
    if phase.task_seconds is not None:
        for key in phase.model_fields_set & {"seconds", "tasks"}:
            yield (key,), None, "task_seconds has those of each task"
    elif phase.seconds is None:
        yield ("seconds",), None, "missing"
    partition = phase.partition or workload.first_partition
    available = workload.partitions[partition].nodes
    if phase.nodes > available:
        yield ("nodes",), phase.nodes, f"partition {partition} has {available}"
    if (phase.least or 1) > phase.nodes:
        yield ("least",), phase.least, f"more than nodes, {phase.nodes}"


def _quantum_conflicts(qpu: Qpu, name: str, phase: Phase) -> Iterator[_Conflict]:
    for key in phase.model_fields_set & {*_CLASSICAL_KEYS}:
        yield (key,), None, "only for phases on nodes, which name no qpu"
    if (phase.seconds is None) == (phase.shots is None):
        yield (), None, "expected either seconds or shots"
    elif phase.shots is not None and qpu.shot_seconds is None:
        yield ("shots",), phase.shots, f"{name} has no shot_seconds"
    elif why := _never_runs(qpu, name, qpu_job_seconds(qpu, phase)):
        yield (), None, why


def _client_conflicts(
    workload: Workload, qpu: Qpu, phase: Phase
) -> Iterator[_Conflict]:
    """Check that a QPU's client requests no more nodes than its partition has."""
    if "nodes" not in phase.model_fields_set:
        return
    if qpu.partition is None:
        why = "the QPU has no partition, so its client runs on the driver's host"
        yield ("nodes",), None, why
    elif phase.nodes > (there := workload.partitions[qpu.partition].nodes):
        yield ("nodes",), phase.nodes, f"partition {qpu.partition} has {there}"


def _never_runs(qpu: Qpu, name: str, seconds: float) -> str | None:
    """Explain why jobs of a mean time on the device would hardly ever end."""
    if seconds > qpu.longest_job():
        return f"longer than the time between two maintenance windows of {name}"
    if qpu.failures is not None and seconds > qpu.failures.between_seconds:
        return f"longer than the mean time between two failures of {name}"
    return None


def _job_sizes(workload: Workload) -> Iterator[_Conflict]:
    background = workload.background or Background()
    for index, jobs in enumerate(background.jobs):
        partition = jobs.partition or workload.first_partition
        available, most = workload.partitions[partition].nodes, jobs.most_nodes
        key = "nodes" if most is None else "most_nodes"
        nodes = jobs.nodes if most is None else most
        if nodes > available:
            why = f"partition {partition} has {available}"
            yield ("background", "jobs", index, key), nodes, why
        if most is not None and most < jobs.nodes:
            why = f"fewer than nodes, {jobs.nodes}"
            yield ("background", "jobs", index, key), most, why

    for index, quantum in enumerate(background.quantum):
        name = quantum.qpu or workload.first_qpu
        if problem := _never_runs(workload.qpus[name], name, quantum.seconds):
            yield ("background", "quantum", index, "seconds"), quantum.seconds, problem


def _loads(workload: Workload) -> Iterator[_Conflict]:
    """Find load that exceeds the nodes or QPUs, so that queues would grow without limit.

    Runs of applications that are all submitted at the same time are excluded: they end.
    """
    background = workload.background or Background()
    for name, partition in workload.partitions.items():
        nodes = _application_load(workload, partition=name) + sum(
            jobs.per_hour * jobs.mean_nodes * jobs.seconds / HOUR
            for jobs in background.jobs
            if (jobs.partition or workload.first_partition) == name
        )
        if nodes >= partition.nodes:
            yield (
                ("partitions", name, "nodes"),
                partition.nodes,
                f"the applications and the jobs of others need {nodes:.4g} on average",
            )
    for name, qpu in workload.qpus.items():
        busy = _application_load(workload, qpu=name) + sum(
            jobs.per_hour * jobs.seconds / HOUR
            for jobs in background.quantum
            if (jobs.qpu or workload.first_qpu) == name
        )
        if busy >= (available := _available(qpu)):
            yield (
                ("qpus", name),
                None,
                f"the applications and others need {busy * HOUR:.4g} s of QPU time per "
                f"hour, and there are {available * HOUR:.4g}",
            )


def _application_load(
    workload: Workload, *, partition: str | None = None, qpu: str | None = None
) -> float:
    """Return the mean number of nodes, or of QPUs, that applications keep busy."""
    load = 0.0
    for application in workload.applications.values():
        if application.per_hour is None or application.count == 1:
            continue
        seconds = sum(
            phase.passes(application.repeats)
            * (
                phase.nodes * sum(phase.task_times())
                if phase.qpu is None
                else phase.jobs * qpu_job_seconds(workload.qpus[phase.qpu], phase)
            )
            for phase in application.phases
            if phase.qpu == qpu
            and (qpu or (phase.partition or workload.first_partition) == partition)
        )
        load += application.per_hour * seconds / HOUR
    return load


def _available(qpu: Qpu) -> float:
    """Return the fraction of time in which a QPU can run jobs."""
    available = 1.0
    if (calibration := qpu.calibration) is not None:
        every, seconds = calibration.every_seconds, calibration.seconds
        available *= every / (every + seconds)
    if (failures := qpu.failures) is not None:
        between, repair = failures.between_seconds, failures.repair_seconds
        available *= between / (between + repair)
    for window in qpu.maintenance:
        if window.every_seconds is not None:
            available *= max(0.0, 1 - window.seconds / window.every_seconds)
    return available

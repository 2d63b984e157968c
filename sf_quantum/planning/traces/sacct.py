"""Jobs of a cluster, from the output of Slurm's ``sacct --parsable2``.

A record is complete once it has an end. For a requeued job, ``--duplicates`` prints a record
for each run, and each run held nodes; a job that was cancelled before its start held no nodes.
For a resized job, ``--duplicates`` prints a record for each size; its submission is the change
of size, and its run time is counted from the job's start. The elements of an array are jobs;
the components of a heterogeneous job, such as ``7+0`` and ``7+1``, are one request; steps are
parts of their jobs. A job that was held, or that waited for other jobs, is in the queue from
the time when it was eligible.

``sacct --starttime`` prints the jobs that ended after a time, so a trace is complete from the
first end on. Jobs that were pending or running at the first end are in the queue from the
beginning; the running jobs run for the rest of their time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sf_quantum.planning.traces import bounded_files
from sf_quantum.planning.traces.node_trace import NodeJob, NodeTrace
from sf_quantum.slurm.accounting import TRACE_FIELDS, TRACE_OPTIONAL
from sf_quantum.slurm.counts import count

#: the fields that are read; the last two may be missing, and the file may have other fields
FIELDS = (*TRACE_FIELDS, *TRACE_OPTIONAL)
COMMAND = f"sacct --parsable2 --format={','.join(FIELDS)}"
# With more digits, for example from SLURM_TIME_FORMAT=%Y%m%d%H%M%S, the number is not seconds.
_SECONDS = re.compile(r"\d{1,11}", re.ASCII)
# run time that Slurm's backfilling assumes for a job without a time limit
_YEAR = 365 * 86400.0
# Texts that mean no time limit here; sacct does not print the limit of a partition.
_UNLIMITED = ("UNLIMITED", "Partition_Limit")
# Resolution of the times that Slurm prints.
_RESOLUTION_SECONDS = 1.0


class _Record(NamedTuple):
    """A record, with nodes of one partition.

    :param job: id of the job
    :param request: key of a heterogeneous job, the same in all its components; else empty
    :param submitted: submission or last change of size, in seconds since the epoch
    :param queued: time from which the job could start, in seconds since the epoch
    :param ended: end of the job, in seconds since the epoch
    """

    job: str
    request: tuple[str, ...]
    submitted: float
    queued: float
    ended: float
    partition: str
    nodes: int
    seconds: float
    estimate: float


def read(path: Path, partitions: Mapping[str, int], partition: str | None) -> NodeTrace:
    """Read the output of ``sacct``; the first end of a job is at time 0.

    :param partitions: nodes by partition; larger jobs are left out
    :param partition: partition in which all jobs run; with ``None``, each job runs in the
        partition that it names, and jobs of other partitions are left out
    :raises InputError: if the file cannot be read, or no job is left
    """
    parse_ = partial(parse, partitions=partitions, partition=partition)
    return bounded_files.read(path, "sacct --parsable2", parse_)


def parse(
    lines: Iterable[str], partitions: Mapping[str, int], partition: str | None
) -> NodeTrace:
    """Read the lines; see :func:`read`.

    :raises ValueError: if the lines have no header of ``sacct``
    """
    rows = iter(lines)
    names = next(rows, "").strip().split("|")
    if missing := [name for name in TRACE_FIELDS if name not in names]:
        raise ValueError(
            f"line 1: no {', '.join(missing)} in the header; expected what "
            f"'{COMMAND}' prints"
        )
    parsed = NodeTrace()
    requests: dict[tuple[str | int, ...], list[_Record]] = {}
    read_before: set[tuple[str, float, float]] = set()
    for number, line in enumerate(rows):
        record = _record(line.rstrip("\r\n").split("|"), names, partition)
        if record is None:
            continue
        if isinstance(record, str):
            parsed.left_out[record] += 1
        elif (key := (record.job, record.submitted, record.ended)) in read_before:
            # outputs of two successive periods both contain jobs that ran across the border
            parsed.left_out["printed twice"] += 1
        elif record.partition not in partitions:
            parsed.left_out["in partitions that the workload does not have"] += 1
        else:
            read_before.add(key)
            requests.setdefault(record.request or (number,), []).append(record)
    fitting: list[list[_Record]] = []
    for components in requests.values():
        if why := _too_large(_nodes_of(components), partitions):
            parsed.left_out[why] += 1
        else:
            fitting.append(components)
    begin = min((_ended(one) for one in fitting), default=0.0)
    # Jobs that were running when the trace begins come first: they have their nodes
    # immediately.
    fitting.sort(key=lambda one: (_started(one) >= begin, _queued(one)))
    parsed.jobs += [_job(components, begin) for components in fitting]
    parsed.sort()
    return parsed


def _record(
    words: Sequence[str], names: Sequence[str], partition: str | None
) -> _Record | str | None:
    """Return a line's record, or why it is left out; ``None`` if the line is not of a job."""
    if not any(words):
        return None
    if len(words) != len(names):
        return f"without {len(names)} fields"
    fields = dict(zip(names, words, strict=True))
    job, plus, component = fields["JobID"].partition("+")
    if "." in (component or job):
        return None
    if (submitted := _time(fields["Submit"])) is None:
        return "without submission"
    if (ended := _time(fields["End"])) is None:
        return "not over"
    if math.isnan(submitted) or math.isnan(ended):
        return "at a time that the end of summer time repeats (SLURM_TIME_FORMAT=%s)"
    elapsed = _number(fields["ElapsedRaw"])
    # since the last change of size
    if (seconds := min(elapsed, ended - submitted)) <= 0:
        return "without run time"
    if not (nodes := count(fields["NNodes"])):
        return "without nodes"
    limit = _limit(fields.get("TimelimitRaw", "")) - (elapsed - seconds)
    return _Record(
        fields["JobID"],
        (job, fields["Submit"]) if plus else (),
        submitted,
        max(submitted, _time(fields.get("Eligible", "")) or 0.0),
        ended,
        partition or fields["Partition"],
        nodes,
        seconds,
        max(seconds, limit),
    )


def _job(components: Sequence[_Record], begin: float) -> NodeJob:
    """Make a job from the components of a request, without the time before ``begin``."""
    ran = max(0.0, begin - _started(components))
    seconds = max(_RESOLUTION_SECONDS, _seconds(components) - ran)
    estimate = max(one.estimate for one in components) - ran
    return NodeJob(
        max(0.0, _queued(components) - begin),
        _nodes_of(components),
        seconds,
        max(seconds, estimate),
    )


def _queued(components: Sequence[_Record]) -> float:
    """Return when all components are eligible, since all are granted at the same time."""
    return max(one.queued for one in components)


def _started(components: Sequence[_Record]) -> float:
    return _ended(components) - _seconds(components)


def _ended(components: Sequence[_Record]) -> float:
    return max(one.ended for one in components)


def _seconds(components: Sequence[_Record]) -> float:
    return max(one.seconds for one in components)


def _nodes_of(components: Sequence[_Record]) -> dict[str, int]:
    nodes: dict[str, int] = {}
    for one in components:
        nodes[one.partition] = nodes.get(one.partition, 0) + one.nodes
    return nodes


def _too_large(
    requested: Mapping[str, int], partitions: Mapping[str, int]
) -> str | None:
    for name, nodes in requested.items():
        if nodes > partitions[name]:
            return f"larger than {partitions[name]} nodes"
    return None


def _time(text: str) -> float | None:
    """Read seconds since the epoch, or a local time in the format of ``sacct``.

    :returns: NaN for a local time that the end of summer time repeats
    """
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
        seconds = moment.timestamp()
        is_unique = moment.replace(fold=1).timestamp() == seconds
    except (ValueError, OverflowError):  # the text is Unknown or None
        return None
    return seconds if is_unique else math.nan


def _number(text: str) -> float:
    return float(text) if _SECONDS.fullmatch(text) else 0.0


def _limit(minutes: str) -> float:
    return _YEAR if minutes in _UNLIMITED else 60 * _number(minutes)

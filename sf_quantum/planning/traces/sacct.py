"""Jobs of a cluster as Slurm's ``sacct --parsable2`` prints them.

A record is over once it has an end. Of a requeued job, ``--duplicates`` prints a record
for each time it ran, and each of them held nodes; a job that was cancelled before it
started held none. The elements of an array are jobs; the components of a heterogeneous
job, such as ``7+0`` and ``7+1``, are one request; steps are parts of their jobs. A job that
is held, or that waits for others, is in the queue from when it is eligible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sf_quantum.planning.traces import trace
from sf_quantum.planning.traces.trace import NodeJob, NodeTrace

_REQUIRED = ("JobID", "Partition", "Submit", "End", "ElapsedRaw", "NNodes")
#: the fields that are read, of which the last two may be missing; there may be others
FIELDS = (*_REQUIRED, "Eligible", "TimelimitRaw")
COMMAND = f"sacct --parsable2 --format={','.join(FIELDS)}"
# whole numbers of nodes that 1024 divides are shortened, unless there is --noconvert
_COUNT = re.compile(r"(\d{1,9})([KM]?)", re.ASCII)
_SECONDS = re.compile(r"\d{1,15}", re.ASCII)
# what Slurm's backfilling takes for no time limit
_YEAR = 365 * 86400.0
# that of a partition is not known here
_UNLIMITED = ("UNLIMITED", "Partition_Limit")
_UNITS = {"": 1, "K": 1024, "M": 1024**2}


class _Record(NamedTuple):
    """A record, with nodes of one partition.

    :param request: what the components of a heterogeneous job have in common; else empty
    :param queued: since when it could start, in seconds since the epoch
    """

    request: tuple[str, ...]
    queued: float
    partition: str
    nodes: int
    seconds: float
    estimate: float


def read(path: Path, partitions: Mapping[str, int], partition: str | None) -> NodeTrace:
    """Read what ``sacct`` printed; the first job is queued at 0.

    :param partitions: nodes by partition; larger jobs are left out
    :param partition: on which all jobs run; ``None``: each on that of its name, and
        those of other partitions are left out
    :raises InputError: if it cannot be read, or no job is left
    """
    parse_ = partial(parse, partitions=partitions, partition=partition)
    return trace.read(path, "sacct --parsable2", parse_)


def parse(
    lines: Iterable[str], partitions: Mapping[str, int], partition: str | None
) -> NodeTrace:
    """Read the lines; see :func:`read`.

    :raises ValueError: if they have no header of ``sacct``
    """
    rows = iter(lines)
    names = next(rows, "").strip().split("|")
    if missing := [name for name in _REQUIRED if name not in names]:
        raise ValueError(
            f"line 1: no {', '.join(missing)} in the header; expected what "
            f"'{COMMAND}' prints"
        )
    found = NodeTrace()
    requests: dict[tuple[str | int, ...], list[_Record]] = {}
    for number, line in enumerate(rows):
        record = _record(line.rstrip("\n").split("|"), names, partition)
        if record is None:
            continue
        if isinstance(record, str):
            found.left_out[record] += 1
        elif record.partition not in partitions:
            found.left_out["in partitions that the workload does not have"] += 1
        else:
            requests.setdefault(record.request or (number,), []).append(record)
    for job in map(_job, requests.values()):
        if why := _too_large(job, partitions):
            found.left_out[why] += 1
        else:
            found.jobs.append(job)
    found.sort()
    return found.starting(found.jobs[0].submitted) if found.jobs else found


def _record(
    words: Sequence[str], names: Sequence[str], partition: str | None
) -> _Record | str | None:
    """Read a line: a record, or why it is left out; ``None`` if it is no job's."""
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
    if _time(fields["End"]) is None:
        return "not over"
    if not (seconds := _number(fields["ElapsedRaw"])):
        return "without run time"
    if not (nodes := _nodes(fields["NNodes"])):
        return "without nodes"
    limit = _limit(fields.get("TimelimitRaw", ""))
    return _Record(
        (job, fields["Submit"]) if plus else (),
        max(submitted, _time(fields.get("Eligible", "")) or 0.0),
        partition or fields["Partition"],
        nodes,
        seconds,
        max(seconds, limit),
    )


def _job(components: Sequence[_Record]) -> NodeJob:
    nodes: dict[str, int] = {}
    for one in components:
        nodes[one.partition] = nodes.get(one.partition, 0) + one.nodes
    return NodeJob(
        min(one.queued for one in components),
        nodes,
        max(one.seconds for one in components),
        max(one.estimate for one in components),
    )


def _too_large(job: NodeJob, partitions: Mapping[str, int]) -> str | None:
    for name, nodes in job.nodes.items():
        if nodes > partitions[name]:
            return f"larger than {partitions[name]} nodes"
    return None


def _time(text: str) -> float | None:
    """Read seconds since the epoch, or a local time as ``sacct`` prints it."""
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):  # as of Unknown and None
        return None


def _number(text: str) -> float:
    return float(text) if _SECONDS.fullmatch(text) else 0.0


def _limit(minutes: str) -> float:
    return _YEAR if minutes in _UNLIMITED else 60 * _number(minutes)


def _nodes(text: str) -> int:
    count = _COUNT.fullmatch(text)
    return int(count[1]) * _UNITS[count[2]] if count else 0

"""Traces of jobs in the Standard Workload Format.

See D. G. Feitelson's Parallel Workloads Archive: comments begin with ``;``, in the header
followed by a label such as ``MaxNodes:``; each job is a line of 18 numbers, where -1 means
unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from sf_quantum.planning.traces import bounded_files
from sf_quantum.planning.traces.node_trace import NodeJob, NodeTrace

COLUMNS = 18
# maximum processors per node; a header with more is damaged
_MOST_PER_NODE = 1_000_000
# statuses of the parts of a checkpointed job, which its first line describes as a whole
_PARTS = (2, 3, 4)
_LABEL = re.compile(r";\s*([A-Za-z]+)\s*:\s*(.*)")


def read(path: Path, partition: str, nodes: int) -> NodeTrace:
    """Read a trace for a partition; the first job that is kept is submitted at time 0.

    In the file, its time may be later, if the trace was cut or counts from another time.

    :param nodes: number of nodes of the partition; larger jobs are left out
    :raises InputError: if the file cannot be read, or no job is left
    """
    return bounded_files.read(
        path,
        "a trace in the Standard Workload Format",
        partial(parse, partition=partition, nodes=nodes),
    )


def parse(lines: Iterable[str], partition: str, nodes: int) -> NodeTrace:
    """Read the lines of a trace; see :func:`read`."""
    parsed = NodeTrace()
    header: dict[str, str] = {}
    for line in lines:
        text = line.strip()
        if text.startswith(";"):
            if label := _LABEL.match(text):
                header.setdefault(label[1], label[2])
        elif text:
            job = _job(text.split(), _processors_per_node(header), partition, nodes)
            if isinstance(job, str):
                parsed.left_out[job] += 1
            else:
                parsed.jobs.append(job)
    parsed.sort()
    return parsed.starting(parsed.jobs[0].submitted) if parsed.jobs else parsed


def _processors_per_node(header: Mapping[str, str]) -> int:
    """Return the quotient of ``MaxProcs`` and ``MaxNodes`` in the header; 1 without them."""
    try:
        nodes, processors = (
            int(header[name].split()[0]) for name in ("MaxNodes", "MaxProcs")
        )
    except (KeyError, ValueError, IndexError):
        return 1
    return min(max(1, processors // nodes), _MOST_PER_NODE) if nodes > 0 else 1


def _job(words: list[str], per_node: int, partition: str, nodes: int) -> NodeJob | str:
    """Read a job's line, or return why the job is left out."""
    if len(words) != COLUMNS:
        return f"without {COLUMNS} columns"
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return "not numbers"
    if numbers[10] in _PARTS:
        return "as parts of other jobs"
    submitted, seconds = numbers[1], numbers[3]
    processors = numbers[4] if numbers[4] > 0 else numbers[7]
    if not 0 <= submitted < float("inf"):
        return "without submission"
    if not 0 < seconds < float("inf"):
        return "without run time"
    if not 0 < processors < float("inf"):
        return "without processors"
    needed = math.ceil(processors / per_node)
    if needed > nodes:
        return f"larger than {nodes} nodes"
    requested = numbers[8] if seconds < numbers[8] < float("inf") else seconds
    return NodeJob(submitted, {partition: needed}, seconds, requested)

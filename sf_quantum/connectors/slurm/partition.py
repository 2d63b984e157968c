"""A partition's queue as Slurm lists it, for a forecast of a job's wait.

Slurm is queried once for processors and once for jobs; the number of listed jobs is limited.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.files import JSON
from sf_quantum.slurm import squeue
from sf_quantum.slurm.counts import limit_seconds
from sf_quantum.slurm.partitions import PROCESSORS_FORMAT, processors

#: largest number of jobs in a partition for a forecast; queues with more are not simulated
MOST_JOBS = 1000
# time limit of each of Slurm's commands
PATIENCE_SECONDS = 5
# Reasons of pending jobs that delay other jobs. Jobs that are held, that wait for another job
# or that have reached a limit do not.
_DELAYING_REASONS = {"None", "Priority", "Resources", ""}
# value in squeue(1) for a job that does not share its nodes with others
_EXCLUSIVE = "NO"
# line between the output for processors and the output for jobs
_SEPARATOR = "jobs:"


class NoForecast(Exception):
    """The wait in a partition cannot be predicted.

    The text is the reason, to follow the target's name in a message.
    """


@dataclass(frozen=True)
class JobInQueue:
    """A job of a partition.

    :param seconds: time limit of the job; for a running job, the time left
    """

    processors: int
    seconds: float


@dataclass
class PartitionQueue:
    """The processors and the jobs of a partition.

    :param idle: number of processors without a job
    :param per_node: number of processors of the smallest node
    :param exclusive: whether each job gets whole nodes
    :param pending: pending jobs, highest priority first
    """

    idle: int = 0
    per_node: int = 0
    exclusive: bool = False
    running: list[JobInQueue] = field(default_factory=list)
    pending: list[JobInQueue] = field(default_factory=list)

    def request(self, service: SlurmService) -> JobInQueue:
        """Return the request of a service's job."""
        options = service.options
        nodes = _first_number(options.get("nodes"))
        each = _first_number(options.get("ntasksPerNode"))
        tasks = nodes * each
        if options.get("ntasks"):
            tasks = _first_number(options["ntasks"])
            nodes = min(nodes, tasks)
            # Slurm allocates as many nodes as the tasks need. On each node, 22.05 allocates
            # processors for `ntasksPerNode` tasks; 24.11 allocates only `ntasks` in total.
            if options.get("ntasksPerNode"):
                each = min(each, tasks)
                nodes = max(nodes, math.ceil(tasks / each))
                tasks = nodes * each
        processors = tasks * _first_number(options.get("cpusPerTask"))
        if self.exclusive or options.get("exclusive"):
            nodes = max(nodes, math.ceil(processors / self.per_node))
            processors = nodes * self.per_node
        return JobInQueue(processors, service.seconds or math.inf)


def command(partition: str) -> str:
    """Return the shell command whose output :func:`read` reads."""
    name = shlex.quote(partition)
    # One line more than the limit is printed, which shows that there are too many jobs.
    return (
        f"plain timeout {PATIENCE_SECONDS} sinfo --noheader --partition={name} "
        f"--format='{PROCESSORS_FORMAT}' && echo {_SEPARATOR} && "
        f"{{ plain timeout {PATIENCE_SECONDS} squeue --noheader --array --partition={name} "
        "--states=RUNNING,SUSPENDED,COMPLETING,PENDING --sort=-p,i "
        f"--format='{squeue.PARTITION_FORMAT}' || echo failed; }} | head -n {MOST_JOBS + 1}"
    )


def read(text: str) -> PartitionQueue:
    """Read the output of :func:`command`.

    :raises NoForecast: if the output is malformed, or has too many jobs
    """
    nodes, separator, jobs = text.partition(f"{_SEPARATOR}\n" if "\n" in text else "")
    if not separator and text.rstrip().endswith(_SEPARATOR):
        nodes, jobs = text.rstrip().removesuffix(_SEPARATOR), ""
    queue = PartitionQueue()
    try:
        for line in nodes.split():
            row = processors(line)
            queue.idle += row.idle
            queue.per_node = min(queue.per_node or row.per_node, row.per_node)
            queue.exclusive = queue.exclusive or row.shared == "EXCLUSIVE"
        lines = [*filter(None, jobs.splitlines())]
        if len(lines) > MOST_JOBS:
            raise NoForecast(f"has more than {MOST_JOBS} jobs in its partition")
        for state, job in _jobs(lines, queue.per_node):
            (queue.pending if state == "PENDING" else queue.running).append(job)
    except (ValueError, IndexError) as error:
        raise NoForecast("cannot be predicted: sinfo or squeue failed") from error
    if not queue.per_node:
        raise NoForecast("cannot be predicted: its partition has no nodes")
    return queue


def _jobs(lines: list[str], per_node: int) -> Iterator[tuple[str, JobInQueue]]:
    """Yield each job that delays others, with its state."""
    for line in lines:
        row = squeue.partition_job(line)
        processors, pending = row.processors, row.state == "PENDING"
        if pending and row.shared == _EXCLUSIVE:
            processors = max(processors, row.nodes * per_node)
        if pending and row.reason.strip("()") not in _DELAYING_REASONS:
            continue
        yield row.state, JobInQueue(processors, _seconds_left(row))


def _seconds_left(row: squeue.PartitionJob) -> float:
    """Return the time left until a job's time limit; for a pending job, the whole limit."""
    if row.state == "COMPLETING":
        return 0.0
    seconds = limit_seconds(row.left)
    if seconds is None:
        # The text is INVALID. A running job with a limit has reached it, and ends soon; any
        # other job has no limit, or a very long one.
        is_over = row.state != "PENDING" and limit_seconds(row.limit) is not None
        seconds = 0.0 if is_over else math.inf
    return seconds


def _first_number(value: JSON) -> int:
    match = re.match(r"\d+", "" if value is None else str(value))
    return max(1, int(match[0])) if match else 1


def named(options: Mapping[str, JSON]) -> str:
    """Return the partition that the options of a service name.

    :raises NoForecast: if they name no partition, or several partitions, which have separate
        queues
    """
    name = str(options.get("partition") or "")
    if not name or "," in name:
        raise NoForecast("names no partition, or several")
    return name

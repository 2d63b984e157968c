"""The formats and rows of ``squeue``.

Each row is one line of columns between ``|``. A free text (a comment, a reason) is in the last
column only, so it may contain the separator. ``squeue --json`` is not used: in 22.05, it
ignores ``--jobs`` and ``--states``, and its output is much larger (docs/reference/figures.md).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from sf_quantum.slurm import ids, tres
from sf_quantum.slurm.counts import epoch, wait_status
from sf_quantum.slurm.states import ENDED, REVOKED

# The fields of jobs that a driver follows, in the order of QueueRow, which lacks the second.
_FIELDS = (
    "ArrayJobID JobArrayID State Reason StartTime EndTime NumNodes NodeList exit_code "
    "RestartCnt Comment".split()
)
#: the value of ``--Format`` for :func:`read`; the colon without a size makes a column as wide
#: as its value
FORMAT = ",".join(f"{name}:|" for name in _FIELDS)
_CLUSTER_LINE = "CLUSTER: "

#: the value of ``--Format`` for :func:`site_jobs`; see :class:`Rows`
SITE_FORMAT = (
    "JobID:.12|,JobArrayID:.80|,State:.20|,Reason:.60|,UserID:.12|,PriorityLong:.24|,"
    "BurstBufferState:.24|,BatchFlag:.4|,Requeue:.4|,SubmitTime:.20|,RestartCnt:.8|,"
    "BurstBuffer:.200"
)
#: the value of ``--Format`` for :func:`gated_jobs`; see :class:`Rows`
GATE_FORMAT = ",".join(
    f"{name}:|"
    for name in (
        "ArrayJobID State Reason EligibleTime Dependency UserName SubmitTime RestartCnt "
        "Comment"
    ).split()
)
#: the value of ``--Format`` for :func:`job_details`; see :class:`Rows`. An array has a line for each task
DETAILS_FORMAT = ",".join(
    f"{name}:|"
    for name in (
        "JobID JobArrayID ArrayJobID ArrayTaskID UserName UserID Partition Account QOS "
        "PriorityLong SubmitTime RestartCnt"
    ).split()
)
#: the value of ``--format`` for :func:`tasks`
TASKS_FORMAT = "%K|%Q|%r"
#: the value of ``--format`` for :func:`request`
REQUEST_FORMAT = "%u|%P|%a|%b|%W"
#: the value of ``--format`` for :func:`license_jobs`
LICENSES_FORMAT = "%A|%T|%W"
#: the value of ``--format`` for :func:`allocations`
ALLOCATIONS_FORMAT = "%A %N"
#: the value of ``--format`` for :func:`steps`
STEPS_FORMAT = "%i %N"
#: the value of ``--format`` for :func:`partition_job`
PARTITION_FORMAT = "%T|%C|%D|%h|%L|%l|%r"

_NUMBERED_STEP = re.compile(r"^ *(\d+(?:_\d+)?\.\d+) (\S+)", re.MULTILINE)


class Rows:
    """Rows that begin with a secret, so that no text of a user can pass for one.

    The comment, the account or the burst buffer of a job may contain newlines, which squeue
    prints as they are. The command is run with ``SLURM_TIME_FORMAT=%s``.

    :param format_: the value of ``--Format`` without the secret; its first separator is ``|``
    """

    def __init__(self, format_: str) -> None:
        self._secret = f"|{secrets.token_hex(8)}|"
        #: the value of ``--Format``
        self.format = format_.replace("|", self._secret, 1)

    def split(self, output: str) -> Iterator[str]:
        """Yield the rows of an output, without the secret."""
        begins = re.compile(rf"^[^|\n]*{re.escape(self._secret)}", re.MULTILINE)
        starts = [match.start() for match in begins.finditer(output)]
        for start, end in pairwise([*starts, len(output) + 1]):
            yield output[start : end - 1].replace(self._secret, "|", 1)


@dataclass(frozen=True)
class QueueRow:
    """The current state of a job that a driver follows. Times are epoch seconds.

    :param job: the job id; for a task of an array, the id of the array
    :param ended: time at which it ended or, for a running job, its time limit expires
    :param status: exit status as in wait(2), once the job has ended; None if Slurm does
        not report it
    :param restarts: how many times Slurm has requeued the job
    :param comment: text that distinguishes a job from another with the same id
    """

    job: str
    state: str
    reason: str
    started: float | None
    ended: float | None
    nodes: int
    node_list: str
    status: int | None = None
    restarts: int = 0
    comment: str = ""

    @property
    def over(self) -> bool:
        """Whether the state is final."""
        return self.state in ENDED

    @property
    def lasts(self) -> bool:
        """Whether the job runs, or will run (again)."""
        return not self.over and self.state != "COMPLETING"

    @property
    def freed(self) -> bool:
        """Whether the nodes are free or being freed, and Slurm knows since when."""
        return not self.lasts and self.ended is not None


@dataclass(frozen=True)
class Queue:
    """The output of ``squeue`` with :data:`FORMAT`.

    :param clusters: clusters that have answered; if several are named, Slurm silently omits
        the others. The empty name is the login node's own cluster
    """

    clusters: frozenset[str]
    # Rows by job number, each with its cluster and the id of its array task.
    _lines: Mapping[str, Sequence[tuple[str, str, QueueRow]]]

    def rows(self, job: str) -> list[QueueRow] | None:
        """Return the rows of a job, one per task; None if they do not show its state."""
        tasks = [
            (task, row)
            for cluster, task, row in self._lines.get(ids.number(job), ())
            if ids.is_federated(job) or cluster == ids.cluster(job)
        ]
        return without_siblings(tasks, lambda row: row.state)


def read(text: str, named: bool = False) -> Queue:
    """Read the output of ``squeue`` with :data:`FORMAT`.

    :param named: whether clusters were named: a line with its name precedes each one's rows
    """
    clusters, cluster = set() if named else {""}, ""
    lines: dict[str, list[tuple[str, str, QueueRow]]] = {}
    # splitlines() would be wrong: a comment may contain other line separators
    for line in text.split("\n"):
        if line.startswith(_CLUSTER_LINE):
            cluster = line.removeprefix(_CLUSTER_LINE).strip()
            clusters.add(cluster)
        words = line.split("|", len(_FIELDS) - 1)
        if len(words) == len(_FIELDS) and words[0].isdigit():
            lines.setdefault(words[0], []).append((cluster, words[1], _row(words)))
    return Queue(frozenset(clusters), lines)


def _row(words: Sequence[str]) -> QueueRow:
    job, _, state, reason, started, ended, nodes, node_list, *rest = words
    status, restarts, comment = rest
    return QueueRow(
        job,
        state,
        reason,
        epoch(started),
        epoch(ended),
        int(nodes) if nodes.isdigit() else 0,
        node_list,
        wait_status(status),
        int(restarts) if restarts.isdigit() else 0,
        comment.removesuffix("|"),
    )


Found = TypeVar("Found")


def without_siblings(
    entries: Iterable[tuple[str, Found]], state: Callable[[Found], str]
) -> list[Found] | None:
    """Choose the valid row or record of each task of a job.

    Each cluster of a federation has a row for a job; all are revoked except the row of the
    cluster that runs it. A job that was cancelled on its first cluster may run on another.

    :param entries: id of the task, and row or record
    :returns: None if all rows of a task are revoked
    """
    tasks: dict[str, list[Found]] = {}
    for task, one in entries:
        tasks.setdefault(task, []).append(one)
    counting = []
    for siblings in tasks.values():
        rank = {"PENDING": 1, **dict.fromkeys(ENDED, 2), REVOKED: 3}
        first = min(siblings, key=lambda one: rank.get(state(one), 0))
        if state(first) == REVOKED:
            return None
        counting.append(first)
    return counting


@dataclass(frozen=True)
class QueuedJob:
    """A job in the queue of a site that lends QPUs through a burst buffer.

    :param name: id in Slurm's commands, such as ``7``, or ``7_1`` for a task of an array
    :param buffer: the state of its burst buffer, such as ``staged-in``
    :param requeues: whether Slurm may requeue it; ``None`` for a job without a script, which
        cannot be requeued
    :param pool: the QPU that it requests
    :param submitted: see :func:`submission`
    """

    id: int
    name: str
    state: str
    reason: str
    uid: int
    priority: int
    buffer: str
    requeues: bool | None
    pool: str
    submitted: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of the order in which Slurm considers jobs."""
        return -self.priority, self.id


def site_jobs(rows: Iterable[str]) -> dict[int, QueuedJob]:
    """Read the rows of ``squeue`` with :data:`SITE_FORMAT`, by id."""
    jobs = {}
    for row in rows:
        columns = [column.strip() for column in row.split("|", 11)]
        columns += [""] * (12 - len(columns))
        id_, name, state, reason, uid, priority, buffer, *flags, directive = columns
        if not (id_.isdecimal() and uid.isdecimal() and priority.isdecimal()):
            continue
        pool = re.search(r"pool=(\w+)", directive)
        jobs[int(id_)] = QueuedJob(
            *(int(id_), name, state, reason, int(uid), int(priority), buffer),
            (flags[1] == "1") if flags[0] == "1" else None,
            pool[1] if pool else "",
            submission(*flags[2:]),
        )
    return jobs


@dataclass(frozen=True)
class GatedJob:
    """A job, or all tasks of an array, that may wait for a lease.

    :param state: ``PENDING`` if no task has nodes
    :param eligible: earliest start in epoch seconds; None if it is unknown
    :param submitted: see :func:`submission`
    """

    id: int
    state: str
    reason: str
    eligible: float | None
    dependency: str
    user: str
    comment: str
    submitted: str = ""

    @property
    def held(self) -> bool:
        """Whether its user, not an administrator, holds the job."""
        return (self.state, self.reason) == ("PENDING", "JobHeldUser")

    @property
    def held_by_admin(self) -> bool:
        """Whether an administrator holds it; a job that runs may be held, too."""
        return self.reason == "JobHeldAdmin"

    @property
    def may_start(self) -> bool:
        """Whether the job waits neither for another job nor for its earliest start."""
        is_due = self.eligible is None or self.eligible <= time.time()
        return is_due and self.dependency in ("", "(null)")


def gated_jobs(rows: Iterable[str]) -> dict[int, GatedJob]:
    """Read the rows of ``squeue`` with :data:`GATE_FORMAT`, by id."""
    jobs: dict[int, GatedJob] = {}
    for row in rows:
        columns = [column.strip() for column in row.split("|", 8)]
        if len(columns) < 9 or not columns[0].isdecimal():
            continue
        id_, state, reason, eligible, dependency, user, *times, comment = columns
        fields = dependency, user, comment.removesuffix("|"), submission(*times)
        job = GatedJob(int(id_), state, reason, epoch(eligible), *fields)
        if (task := jobs.get(job.id)) is None:
            jobs[job.id] = job
            continue
        # The task of an array that has nodes stands for all of them.
        stands = job if task.state == "PENDING" else task
        submitted = task.submitted or job.submitted
        jobs[job.id] = replace(stands, submitted=submitted)
    return jobs


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command of Slurm, without what would change its output.

    ``SQUEUE_STATES`` and the like hide jobs, ``SLURM_CLUSTERS`` lists those of others.
    """
    kept = {
        name: value
        for name, value in variables.items()
        if not re.match(r"SQUEUE_|SCONTROL_|SACCT_|SLURM_CLUSTERS$", name)
    }
    # The site's language and time zone change neither messages nor times.
    return {**kept, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}


def submission(time_: str, restarts: str) -> str:
    """Return the time at which a job was submitted, in epoch seconds.

    :param time_: the column ``SubmitTime``
    :param restarts: the column ``RestartCnt``
    :returns: empty if Slurm has queued the job again, which replaces that time
    """
    return time_ if time_.isdecimal() and restarts == "0" else ""


@dataclass(frozen=True)
class JobDetails:
    """The owner and the rank of a job, as :data:`DETAILS_FORMAT` lists them.

    :param name: id in Slurm's commands, such as ``7``, or ``7_1`` for a task of an array
    :param array: the id of its array
    :param task: its index in the array; ``N/A`` for a job that is not in one
    :param partitions: separated by commas
    :param submitted: see :func:`submission`
    """

    name: str
    array: str
    task: str
    user: str
    uid: str
    partitions: str
    account: str
    qos: str
    priority: str
    submitted: str


def job_details(rows: Iterable[str], job: str) -> JobDetails | None:
    """Find a job in the rows of ``squeue`` with :data:`DETAILS_FORMAT`."""
    for row in rows:
        number, *columns = (column.strip() for column in row.split("|"))
        # squeue ends a row with the separator, too
        if number == job and len(columns) == DETAILS_FORMAT.count("|"):
            *fields, submitted, restarts, _ = columns
            fields.append(submission(submitted, restarts))
            return JobDetails(*fields)
    return None


@dataclass(frozen=True)
class PendingTask:
    """A pending task of an array."""

    index: int
    priority: str
    reason: str


def tasks(text: str) -> Iterator[PendingTask]:
    """Read the output of ``squeue --array`` with :data:`TASKS_FORMAT`."""
    for line in text.split("\n"):
        match line.split("|", 2):
            case [index, priority, reason] if index.isdecimal():
                yield PendingTask(int(index), priority, reason)


@dataclass(frozen=True)
class JobRequest:
    """What a user's job requested, with the units of each gres and licence."""

    user: str
    partition: str
    account: str
    units: Mapping[str, int]


def request(text: str) -> JobRequest | None:
    """Read the first line of ``squeue`` with :data:`REQUEST_FORMAT`.

    An array has a line for each task; all tasks have the same request.
    """
    match [word.strip() for word in text.partition("\n")[0].split("|")]:
        case [user, partition, account, gres, licences]:
            sums = tres.units(gres)
            for name, number in tres.units(licences).items():
                sums[name] = sums.get(name, 0) + number
            return JobRequest(user, partition, account, sums)
    return None


def license_jobs(text: str) -> dict[int, str]:
    """Read the licences that each job holds, as :data:`LICENSES_FORMAT` lists them."""
    lines = (line.split("|", 2) for line in text.split("\n"))
    return {
        int(words[0]): words[2].strip()
        for words in lines
        if len(words) == 3 and words[0].isdecimal() and words[1] != "PENDING"
    }


def allocations(text: str) -> list[tuple[str, str]]:
    """Read ids of jobs and expressions of nodes, as :data:`ALLOCATIONS_FORMAT` lists them."""
    lines = (line.split(maxsplit=1) for line in text.split("\n"))
    return [(words[0], words[1].strip()) for words in lines if len(words) == 2]


def steps(text: str) -> list[tuple[str, str]]:
    """Read ids of steps and expressions of nodes, as :data:`STEPS_FORMAT` lists them.

    The batch script and the like, whose steps have no number, are left out.
    """
    return _NUMBERED_STEP.findall(text)


@dataclass(frozen=True)
class PartitionJob:
    """A job of a partition, as :data:`PARTITION_FORMAT` lists it.

    :param processors: number of its processors; for a pending job, the least that it
        requests
    :param shared: ``NO`` for a job whose nodes are not shared with others, squeue(1)
    :param left: time left until its time limit, as squeue prints it: ``INVALID`` if it is
        negative or more than a year
    :param limit: its time limit, as squeue prints it
    """

    state: str
    processors: int
    nodes: int
    shared: str
    left: str
    limit: str
    reason: str


def partition_job(line: str) -> PartitionJob:
    """Read a line of ``squeue`` with :data:`PARTITION_FORMAT`.

    :raises ValueError: if the line is malformed
    """
    state, processors, nodes, shared, left, limit, reason = line.split("|", 6)
    numbers = int(processors), int(nodes)
    return PartitionJob(state, *numbers, shared, left, limit, reason)

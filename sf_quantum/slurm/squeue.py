"""The formats and rows of ``squeue``.

Each row is one line of columns that ``|`` separates. Only the last column has free text (a
comment, a reason), so the text may contain the separator. ``squeue --json`` is not used: in
22.05, it ignores ``--jobs`` and ``--states``, and its output is much larger
(docs/reference/figures.md).
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

# The fields of jobs that a driver follows, in the order of QueueRow's attributes; JobArrayID,
# which tells an array's tasks apart, is not an attribute.
_FIELDS = (
    "ArrayJobID JobArrayID State Reason StartTime EndTime NumNodes NodeList exit_code "
    "RestartCnt Comment".split()
)
#: the value of ``--Format`` for :func:`read`; a colon without a width makes a column as wide
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
#: the value of ``--Format`` for :func:`job_details`; see :class:`Rows`. An array has a row for
#: each task
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
    """Rows whose first separator is a secret, so that a user's text cannot imitate a row.

    The comment, the account or the burst buffer of a job may contain newlines, which squeue
    prints unchanged. Callers run squeue with ``SLURM_TIME_FORMAT=%s``.

    :param format_: the value of ``--Format``; its first ``|`` is replaced with the secret
    """

    def __init__(self, format_: str) -> None:
        self._secret = f"|{secrets.token_hex(8)}|"
        #: the value of ``--Format`` with the secret
        self.format = format_.replace("|", self._secret, 1)

    def split(self, output: str) -> Iterator[str]:
        """Yield the rows of the output, with ``|`` in place of the secret."""
        begins = re.compile(rf"^[^|\n]*{re.escape(self._secret)}", re.MULTILINE)
        starts = [match.start() for match in begins.finditer(output)]
        for start, end in pairwise([*starts, len(output) + 1]):
            yield output[start : end - 1].replace(self._secret, "|", 1)


@dataclass(frozen=True)
class QueueRow:
    """The current state of a job that a driver follows. Times are epoch seconds.

    :param job: the job id; for a task of an array, the id of the array
    :param ended: time at which the job ended or, for a running job, its time limit expires
    :param status: exit status as in wait(2), once the job has ended; ``None`` if Slurm does
        not report the status
    :param restarts: number of times that Slurm has requeued the job
    :param comment: the job's comment, which distinguishes jobs that had the same id
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
        """Whether the nodes are free or being freed, and Slurm reports when the job ended."""
        return not self.lasts and self.ended is not None


@dataclass(frozen=True)
class Queue:
    """The output of ``squeue`` with :data:`FORMAT`.

    :param clusters: clusters that have answered: if several clusters are named, Slurm
        silently omits clusters that do not answer. The empty name is the login node's cluster
    """

    clusters: frozenset[str]
    # Rows by job number, each with its cluster and the id of the array's task.
    _lines: Mapping[str, Sequence[tuple[str, str, QueueRow]]]

    def rows(self, job: str) -> list[QueueRow] | None:
        """Return the rows of a job, one per task; ``None`` if they do not show its state."""
        tasks = [
            (task, row)
            for cluster, task, row in self._lines.get(ids.number(job), ())
            if ids.is_federated(job) or cluster == ids.cluster(job)
        ]
        return without_siblings(tasks, lambda row: row.state)


def read(text: str, named: bool = False) -> Queue:
    """Read the output of ``squeue`` with :data:`FORMAT`.

    :param named: whether clusters were named; a line with the cluster's name then precedes
        the rows of each cluster
    """
    clusters, cluster = set() if named else {""}, ""
    lines: dict[str, list[tuple[str, str, QueueRow]]] = {}
    # splitlines() would also split at other line separators, which a comment may contain.
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

    Each cluster of a federation has a row for a job. All rows are revoked except the row of
    the cluster that runs the job. A job that was cancelled on one cluster may run on another.

    :param entries: pairs of a task's id and a row or record
    :returns: ``None`` if all rows of a task are revoked
    """
    tasks: dict[str, list[Found]] = {}
    for task, entry in entries:
        tasks.setdefault(task, []).append(entry)
    valid = []
    for siblings in tasks.values():
        rank = {"PENDING": 1, **dict.fromkeys(ENDED, 2), REVOKED: 3}
        first = min(siblings, key=lambda entry: rank.get(state(entry), 0))
        if state(first) == REVOKED:
            return None
        valid.append(first)
    return valid


@dataclass(frozen=True)
class QueuedJob:
    """A job in the queue of a site that leases QPUs to jobs through burst buffers.

    :param name: id in Slurm's commands, such as ``7``, or ``7_1`` for a task of an array
    :param buffer: state of the job's burst buffer, such as ``staged-in``
    :param requeues: whether Slurm may requeue the job; ``None`` for a job without a batch
        script, which Slurm cannot requeue
    :param pool: pool of burst buffers, which is the QPU that the job requests
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
    """A job, or an array with all its tasks, that may wait for a lease.

    :param state: state of the job; for an array, ``PENDING`` if no task has nodes
    :param eligible: earliest start in epoch seconds; ``None`` if unknown
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
        """Whether the job is pending and held by its user, not by an administrator."""
        return (self.state, self.reason) == ("PENDING", "JobHeldUser")

    @property
    def held_by_admin(self) -> bool:
        """Whether an administrator holds the job; even a running job may be held."""
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
        # A task that has nodes represents its whole array.
        representative = job if task.state == "PENDING" else task
        submitted = task.submitted or job.submitted
        jobs[job.id] = replace(representative, submitted=submitted)
    return jobs


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm's commands, without variables that change the output.

    ``SQUEUE_STATES`` and the like hide jobs; ``SLURM_CLUSTERS`` selects other clusters.
    """
    kept = {
        name: value
        for name, value in variables.items()
        if not re.match(r"SQUEUE_|SCONTROL_|SACCT_|SLURM_CLUSTERS$", name)
    }
    # These values keep messages and times independent of the site's language and time zone.
    return {**kept, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}


def submission(time_: str, restarts: str) -> str:
    """Return the time at which a job was submitted, in epoch seconds.

    :param time_: the column ``SubmitTime``
    :param restarts: the column ``RestartCnt``
    :returns: epoch seconds as text; empty if Slurm has requeued the job, since Slurm then
        replaces the time of submission
    """
    return time_ if time_.isdecimal() and restarts == "0" else ""


@dataclass(frozen=True)
class JobDetails:
    """The owner and the rank of a job, as :data:`DETAILS_FORMAT` lists them.

    :param name: id in Slurm's commands, such as ``7``, or ``7_1`` for a task of an array
    :param array: id of the job's array
    :param task: index of the task in its array; ``N/A`` for a job outside arrays
    :param partitions: names of partitions, separated by commas
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
        # squeue also ends each row with the separator
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
    """A user's request for a job, with the units of each gres and licence."""

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
    """Read each started job's licences, as :data:`LICENSES_FORMAT` lists them."""
    lines = (line.split("|", 2) for line in text.split("\n"))
    return {
        int(words[0]): words[2].strip()
        for words in lines
        if len(words) == 3 and words[0].isdecimal() and words[1] != "PENDING"
    }


def allocations(text: str) -> list[tuple[str, str]]:
    """Read job ids and node expressions, as :data:`ALLOCATIONS_FORMAT` lists them."""
    lines = (line.split(maxsplit=1) for line in text.split("\n"))
    return [(words[0], words[1].strip()) for words in lines if len(words) == 2]


def steps(text: str) -> list[tuple[str, str]]:
    """Read step ids and node expressions, as :data:`STEPS_FORMAT` lists them.

    Steps without a number, such as the batch script's step, are left out.
    """
    return _NUMBERED_STEP.findall(text)


@dataclass(frozen=True)
class PartitionJob:
    """A job of a partition, as :data:`PARTITION_FORMAT` lists it.

    :param processors: number of the job's processors; for a pending job, the minimum that
        the job requests
    :param shared: ``NO`` for a job that shares no nodes with other jobs; see ``%h`` in
        squeue(1)
    :param left: time left until the time limit, as squeue prints it: ``INVALID`` if negative
        or more than a year
    :param limit: the time limit, as squeue prints it
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

"""The commands that query Slurm about a driver's jobs, and the outcome of a job."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sf_quantum.connectors.exit_codes import ExitCodes
from sf_quantum.connectors.slurm.scripts import UNKNOWN, JobMark
from sf_quantum.slurm import accounting, ids, records, squeue
from sf_quantum.slurm.accounting import AccountingRow
from sf_quantum.slurm.records import NO_COMMENT, JobRecord
from sf_quantum.slurm.squeue import QueueRow
from sf_quantum.slurm.states import ENDED

#: state of a job that Slurm no longer knows, and that left no mark
LOST = "LOST"
# Reasons why a job is pending that persist even if other jobs end, from squeue(1), "JOB REASON
# CODES", and slurm_string.c.
_HOPELESS = re.compile(
    "AccountNotAllowed|BadConstraints|DependencyNeverSatisfied|InvalidAccount|InvalidQOS|"
    "JobHeldAdmin|JobHeldUser|JobHoldMaxRequeue|JobLaunchFailure|NodeDown|"
    "launch.failed.requeued.held|user.env.retrieval.failed.requeued.held|"
    "PartitionConfig|PartitionDown|PartitionInactive|PartitionNodeLimit|PartitionTimeLimit|"
    r"QOSNotAllowed|QOSMin\w+|(Assoc|QOS)Max\w*PerJob(Limit)?|"
    "ReqNodeNotAvail|ReservationDeleted"
)
# Errors of sbatch(1) after which a retry may succeed: errors from slurm_errno.c and errno(3)
# about MUNGE, and about a controller that is down, starting, busy or full; and limits on the
# number of pending jobs, which sbatch prints before it rejects a job.
_TEMPORARY = re.compile(
    "unable to contact slurm controller|socket timed out|zero bytes were transmitted|"
    "communication connection failure|connection (refused|reset|timed out)|"
    "resource temporarily unavailable|temporarily unable to accept|temporarily disabled|"
    "transport endpoint is not connected|no route to host|host is unreachable|broken pipe|"
    "unable to create job record, try again|standby mode|"
    "protocol authentication error|munge encode failed|"
    # errors that --clusters adds
    "problem talking to the database|can't be reached now|" r"submitjobs?\w*limit",
    re.IGNORECASE,
)
# text in such an error which shows that the error is not temporary
_NO_CLUSTER = re.compile("No cluster .* known by database")
# errors of srun(1) that the nodes cause, not the job (slurm_errno.c)
_NODE_TROUBLE = re.compile(
    "launch failed|node (not responding|failure)|nodes? .*(down|not available)|"
    "communication connection failure|connection refused|no route to host",
    re.IGNORECASE,
)
# Time limit of Slurm's commands, which block while the controller is down.
PATIENCE_SECONDS = 60
_JOB_ID = re.compile(rf"^({ids.PATTERN})$", re.MULTILINE)


class EndReason(StrEnum):
    """Reasons for the end of a job that this plugin infers if Slurm reports none."""

    NEVER_BEGAN = "there is no sign that its script began"
    FORGOTTEN = "Slurm no longer knows it, and it left no exit code"
    UNRECORDED = "Slurm has lost its record of it, and it left no exit code"
    NO_EXIT_CODE = "it left no exit code"
    ALLOCATION_ENDED = "its allocation ended by itself"


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended or, if it has not ended, its state. Times are epoch seconds.

    :param state: Slurm's job state, or :data:`LOST`
    :param reason: Slurm's reason, or an :class:`EndReason`
    :param signal: number of the signal that ended the job; 0 if none did
    :param started: start of the job; ``None`` if it never ran
    :param restarts: number of times that Slurm has requeued the job
    :param output: output of the job, once it has been read, unless it is in a file; for a
        failed job, the outcome and the last lines of its errors
    :param comment: the job's comment in Slurm, which distinguishes jobs that had the same id
    """

    slurm_job: str
    state: str
    reason: str = ""
    exit_code: int = 0
    signal: int = 0
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    output: str = ""
    comment: str = field(default="", compare=False)

    @classmethod
    def of_mark(cls, slurm_job: str, mark: JobMark) -> JobOutcome:
        """Return the outcome according to the mark of the job's script."""
        return cls(
            slurm_job,
            "FAILED" if mark.exit_code else "COMPLETED",
            exit_code=mark.exit_code or 0,
            started=mark.started,
            ended=mark.ended,
        )

    @classmethod
    def of_row(cls, row: QueueRow) -> JobOutcome | None:
        """Return the outcome according to ``squeue``; ``None`` without an exit status."""
        if row.status is None:
            return None
        return cls(
            row.job,
            row.state,
            row.reason.replace(" ", "_"),  # as scontrol prints it
            exit_code=row.status >> 8,
            signal=row.status & 0x7F,
            started=row.started,
            ended=row.ended,
            restarts=row.restarts,
            comment=row.comment,
        )

    @property
    def good(self) -> bool:
        return (self.state, self.exit_code, self.signal) == ("COMPLETED", 0, 0)

    @property
    def plain(self) -> bool:
        """Whether the script ended by itself, so that only its exit code matters."""
        return self.state in ("COMPLETED", "FAILED") and self.signal == 0

    def is_success(self, codes: ExitCodes) -> bool:
        """Return whether the job has succeeded according to the exit codes of its tool."""
        # Slurm may report a failure without an exit code.
        has_status = self.good or (self.plain and self.exit_code != 0)
        return has_status and codes.is_success(self.exit_code)

    def is_later_run(self, ended: float | None) -> bool:
        """Return whether this outcome is from a run after the run that ended at ``ended``."""
        if self.restarts == 0 or ended is None:
            return False
        return self.started is None or self.state == "PENDING" or self.started >= ended

    def sentence(self) -> str:
        """Return the outcome as text, for a message."""
        words = [f"Slurm job {ids.words(self.slurm_job)} is {self.state}"]
        # The signal is named below; in slurmrestd of 24.11, the reason does not name it.
        reason = re.sub("^RaisedSignal:.*", "RaisedSignal", self.reason)
        if reason not in ("", "None", self.state):
            words.append(f"({reason})")
        signal_number = self.signal or (
            self.exit_code - 128 if self.exit_code > 128 else 0
        )
        how = [f"exit code {self.exit_code}"] if self.exit_code or self.plain else []
        if signal_number:
            is_signal = signal_number in {*signal.Signals}
            name = signal.Signals(signal_number).name if is_signal else "unknown"
            how.append(f"signal {signal_number} ({name})")
        if how:
            words.append(f"with {' and '.join(how)}")
        if self.started is not None and self.ended is not None:
            words.append(f"after {max(0.0, self.ended - self.started):.0f} s")
        if self.restarts:
            words.append(f"in run {self.restarts + 1}")
        return " ".join(words)


def is_hopeless(reason: str) -> bool:
    """Return whether a job that is pending for this reason will probably never start."""
    return _HOPELESS.fullmatch(reason.strip("()").split(",")[0]) is not None


def submitted_job(text: str, code: int) -> str | None:
    """Return the id of a submitted job; ``None`` if the submission failed."""
    match = _JOB_ID.search(text) if code == 0 else None
    return None if match is None else match[1]


def is_temporary(text: str, code: int) -> bool:
    """Return whether a command that failed may succeed if it is run again."""
    if _NO_CLUSTER.search(text):
        return False
    return code == UNKNOWN or _TEMPORARY.search(text) is not None


def is_node_trouble(text: str) -> bool:
    """Return whether ``srun`` failed because of the nodes."""
    return _NODE_TROUBLE.search(text) is not None


def in_one_line(text: str) -> str:
    """Return an error message of Slurm on one line, without the prefixes."""
    lines = [line.removeprefix("sbatch: ") for line in text.splitlines()]
    words = [" ".join(line.removeprefix("error: ").split()) for line in lines]
    return "; ".join(line for line in words if line) or "no message"


def scontrol(text: str, job: str) -> list[JobOutcome]:
    """Read the output of :func:`scontrol_command` about a job, or the tasks of an array."""
    return [
        replace(
            _outcome(record, ids.cluster(job)),
            restarts=record.restarts,
            comment=record.comment,
        )
        for record in records.read(text)
        if ids.number(job) in (record.job, record.array)
    ]


def sacct(text: str, job: str) -> list[JobOutcome]:
    """Read the output of :func:`sacct_command`: one outcome for each task that has ended."""
    # If no controller knows a job any more, its record may show RUNNING for ever.
    return [
        _outcome(row, ids.cluster(job))
        for row in accounting.read(text)
        if row.state in ENDED
    ]


def _outcome(record: JobRecord | AccountingRow, cluster: str) -> JobOutcome:
    """Return the outcome from the fields that both kinds of records have."""
    return JobOutcome(
        ids.of(record.job, cluster),
        record.state,
        record.reason,
        exit_code=record.exit_code,
        signal=record.signal,
        started=record.started,
        ended=record.ended,
        comment=NO_COMMENT,
    )


def is_foreign(comment: str, job_comment: str) -> bool:
    """Return whether a job is another than the job that was submitted with ``job_comment``.

    A controller that was killed may have lost the jobs of its last seconds, and then reuses
    their ids. Other comments are accepted, since a site may change comments.
    """
    ours = comment.startswith("sfq:")
    return comment == NO_COMMENT or (ours and not comment.startswith(job_comment))


def at(clusters: str, *jobs: str) -> str:
    """Return the option with which a command of Slurm queries clusters, after a space.

    :param clusters: names of clusters, separated by commas; empty for the login node's own
        cluster
    :param jobs: ids of the jobs in the query; if a job is federated, another cluster may run
        it
    """
    if clusters:
        return f" -M {clusters}"
    return " --sibling" if any(map(ids.is_federated, jobs)) else ""


def squeue_command(jobs: Collection[str], clusters: str = "") -> str:
    """Return the ``squeue`` command for jobs; for ``clusters`` see :func:`at`."""
    numbers = [*dict.fromkeys(map(ids.number, jobs))]
    # If clusters are named, a header with the cluster's name must precede each one's rows.
    header = "" if clusters else " --noheader"
    # A single id is an error on clusters that do not know it, so it is listed twice.
    numbers *= 2 if clusters and len(numbers) == 1 else 1
    # Without --user, Slurm would send the jobs of all users if --jobs lists several jobs.
    return (
        f"plain env SLURM_TIME_FORMAT=%s timeout {PATIENCE_SECONDS} squeue{at(clusters, *jobs)}"
        f"{header} --states=all --user=\"$(id -un)\" --jobs={','.join(numbers)} --Format='{squeue.FORMAT}'"
    )


def scontrol_command(
    job: str, patience_seconds: float = PATIENCE_SECONDS, cluster: str = ""
) -> str:
    """Return the ``scontrol`` command for a job; for ``cluster`` see :func:`at`."""
    return (
        f"plain env SLURM_TIME_FORMAT=%s timeout {patience_seconds:g} "
        f"scontrol{at(cluster, job)} --oneliner show job {ids.number(job)}"
    )


def next_job_command(cluster: str) -> str:
    """Return the command that prints the id of the next job."""
    return f"plain timeout {PATIENCE_SECONDS} scontrol{at(cluster)} show config"


def sacct_command(job: str, clusters: str = "") -> str:
    """Return the ``sacct`` command for a job; for ``clusters`` see :func:`at`."""
    where = at(clusters) or (" --federation" if ids.is_federated(job) else "")
    return (
        f"plain env SLURM_TIME_FORMAT=%s timeout {PATIENCE_SECONDS} sacct --noheader "
        f"--parsable2 --allocations{where} --jobs={ids.number(job)} "
        f"--format={','.join(accounting.FIELDS)}"
    )


def is_forgotten(text: str) -> bool:
    """Return whether Slurm reports that it does not know the job."""
    return "Invalid job id" in text


def worst(outcomes: list[JobOutcome], codes: ExitCodes) -> JobOutcome:
    """Return an array's outcome: its first failure, or its first outcome that is not good.

    :param codes: exit codes of the tool; an outcome that is not good may be a success
    """
    return min(outcomes, key=lambda outcome: (outcome.is_success(codes), outcome.good))

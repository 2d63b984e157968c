"""The commands that query Slurm, parsers of their output, and the outcome of a job."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sf_quantum.connectors.slurm.scripts import UNKNOWN, JobMark

# squeue(1), "JOB STATE CODES": no other state is final
ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "TIMEOUT".split()
)
# states that are not final, with nodes and without: squeue(1) and sacct(1) up to 25.05
RUNNING = frozenset(
    "COMPLETING RESIZING RUNNING SIGNALING STAGE_OUT STOPPED SUSPENDED".split()
)
QUEUED = frozenset(
    "CONFIGURING EXPEDITING PENDING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD "
    "RESV_DEL_HOLD SPECIAL_EXIT".split()
)
#: the state of a job that Slurm no longer knows and that left no mark
LOST = "LOST"
# squeue(1), "JOB REASON CODES", and further ones from slurm_string.c: reasons that persist
# even if other jobs end
_HOPELESS = re.compile(
    "AccountNotAllowed|BadConstraints|DependencyNeverSatisfied|InvalidAccount|InvalidQOS|"
    "JobHeldAdmin|JobHeldUser|JobHoldMaxRequeue|JobLaunchFailure|NodeDown|"
    "launch.failed.requeued.held|user.env.retrieval.failed.requeued.held|"
    "PartitionDown|PartitionInactive|PartitionNodeLimit|PartitionTimeLimit|"
    r"QOSNotAllowed|QOSMin\w+|(Assoc|QOS)Max\w*PerJob(Limit)?|"
    "ReqNodeNotAvail|ReservationDeleted"
)
# errors of sbatch(1) after which a retry may succeed: from slurm_errno.c and errno(3),
# for a controller that is down, starting, busy or full, and for MUNGE; and the limits on
# the number of pending jobs, which sbatch prints before it rejects a job
_TEMPORARY = re.compile(
    "unable to contact slurm controller|socket timed out|zero bytes were transmitted|"
    "communication connection failure|connection (refused|reset|timed out)|"
    "resource temporarily unavailable|temporarily unable to accept|temporarily disabled|"
    "transport endpoint is not connected|no route to host|host is unreachable|broken pipe|"
    "unable to create job record, try again|standby mode|"
    "protocol authentication error|munge encode failed|"
    r"submitjobs?\w*limit",
    re.IGNORECASE,
)
# errors of srun(1) caused by the nodes and not by the job: slurm_errno.c
_NODE_TROUBLE = re.compile(
    "launch failed|node (not responding|failure)|nodes? .*(down|not available)|"
    "communication connection failure|connection refused|no route to host",
    re.IGNORECASE,
)
# Slurm's commands block while the controller is down
PATIENCE_SECONDS = 60
# of squeue, in the order of QueueRow; %i is not kept
_FIELDS = "%F|%i|%T|%r|%S|%e|%D|%N|%k"
_NO_COMMENT = "(null)"
# of sacct, and what scontrol calls them
_SACCT_FIELDS = {
    "JobID": "JobId",
    "State": "JobState",
    "Reason": "Reason",
    "ExitCode": "ExitCode",
    "Start": "StartTime",
    "End": "EndTime",
}
NEXT_JOB_COMMAND = f"plain timeout {PATIENCE_SECONDS} scontrol show config"
_JOB_ID = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)


class EndReason(StrEnum):
    """Why a job ended, where this plugin infers the reason and Slurm gives none."""

    NEVER_BEGAN = "there is no sign that its script began"
    FORGOTTEN = "Slurm no longer knows it, and it left no exit code"
    UNRECORDED = "Slurm has lost its record of it, and it left no exit code"
    NO_EXIT_CODE = "it left no exit code"
    ALLOCATION_ENDED = "its allocation ended by itself"


@dataclass(frozen=True)
class QueueRow:
    """A line of ``squeue``: the current state of a job. Times are epoch seconds.

    :param job: the job id; for a task of an array, the id of the array
    :param ended: for a running job, when its time limit expires
    :param comment: by which a job is told from another that has its id
    """

    job: str
    state: str
    reason: str
    started: float | None
    ended: float | None
    nodes: int
    node_list: str
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
class JobOutcome:
    """How a job ended, or its state if it has not. Times are epoch seconds.

    :param state: Slurm's job state, or :data:`LOST`
    :param reason: Slurm's reason, or an :class:`EndReason`
    :param signal: the number of the signal that ended the job, 0 for none
    :param started: None if the job never ran
    :param restarts: how many times Slurm has requeued the job
    :param output: once it was read: the output unless it went to a file; for a failed job,
        the outcome and the last lines of its errors
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

    @classmethod
    def of_mark(cls, slurm_job: str, mark: JobMark) -> JobOutcome:
        """The outcome according to the mark of the job's script."""
        return cls(
            slurm_job,
            "FAILED" if mark.exit_code else "COMPLETED",
            exit_code=mark.exit_code or 0,
            started=mark.started,
            ended=mark.ended,
        )

    @property
    def good(self) -> bool:
        return (self.state, self.exit_code, self.signal) == ("COMPLETED", 0, 0)

    @property
    def plain(self) -> bool:
        """Whether the script ended by itself, so that its exit code is the whole result."""
        return self.state in ("COMPLETED", "FAILED") and self.signal == 0

    def is_later_run(self, ended: float | None) -> bool:
        """Whether this outcome is of a run after the one that ended at ``ended``."""
        if self.restarts == 0 or ended is None:
            return False
        return self.started is None or self.state == "PENDING" or self.started >= ended

    def sentence(self) -> str:
        """The outcome as text, for a message."""
        words = [f"Slurm job {self.slurm_job} is {self.state}"]
        if self.reason not in ("", "None", self.state):
            words.append(f"({self.reason})")
        by = self.signal or (self.exit_code - 128 if self.exit_code > 128 else 0)
        how = [f"exit code {self.exit_code}"] if self.exit_code or self.plain else []
        if by:
            known = by in {*signal.Signals}
            name = signal.Signals(by).name if known else "unknown"
            how.append(f"signal {by} ({name})")
        if how:
            words.append(f"with {' and '.join(how)}")
        if self.started is not None and self.ended is not None:
            words.append(f"after {max(0.0, self.ended - self.started):.0f} s")
        if self.restarts:
            words.append(f"in run {self.restarts + 1}")
        return " ".join(words)


def is_hopeless(reason: str) -> bool:
    """Whether a job that is pending for this reason will probably never start."""
    return _HOPELESS.fullmatch(reason.strip("()").split(",")[0]) is not None


def submitted_job(text: str, code: int) -> str | None:
    """The id of a submitted job, None if the submission failed."""
    found = _JOB_ID.search(text) if code == 0 else None
    return None if found is None else found[1]


def is_temporary(text: str, code: int) -> bool:
    """Whether a command that failed may succeed on a retry."""
    return code == UNKNOWN or _TEMPORARY.search(text) is not None


def is_node_trouble(text: str) -> bool:
    """Whether ``srun`` failed because of the nodes."""
    return _NODE_TROUBLE.search(text) is not None


def in_one_line(text: str) -> str:
    """An error message of Slurm in one line, without the prefixes."""
    lines = [line.removeprefix("sbatch: ") for line in text.splitlines()]
    words = [" ".join(line.removeprefix("error: ").split()) for line in lines]
    return "; ".join(line for line in words if line) or "no message"


def squeue(text: str) -> dict[str, list[QueueRow]]:
    """Read the output of :func:`squeue_command`, by job id; an array may have several."""
    rows: dict[str, list[QueueRow]] = {}
    for line in text.splitlines():
        words = line.split("|", 8)
        if len(words) >= 8 and words[0].isdigit():
            job, _, state, reason, started, ended, nodes, node_list, *comment = words
            count = int(nodes) if nodes.isdigit() else 0
            times = _epoch(started), _epoch(ended)
            own = comment[0] if comment else ""
            row = QueueRow(job, state, reason, *times, count, node_list, own)
            rows.setdefault(job, []).append(row)
    return rows


def scontrol(text: str, job: str, comment: str = "") -> list[JobOutcome]:
    """Read what :func:`scontrol_command` prints about a job, or the tasks of an array.

    :param comment: that of the job, without which the job is another
    """
    records = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in text.splitlines()]
    return [
        _outcome(record)
        for record in records
        if "JobState" in record
        and job in (record.get("JobId"), record.get("ArrayJobId"))
        and not (comment and is_foreign(record.get("Comment", _NO_COMMENT), comment))
    ]


def sacct(text: str) -> list[JobOutcome]:
    """Read the output of :func:`sacct_command`, one outcome for each job that has ended."""
    lines = [line.split("|") for line in text.splitlines()]
    outcomes = [
        _outcome(dict(zip(_SACCT_FIELDS.values(), words, strict=True)))
        for words in lines
        if len(words) == len(_SACCT_FIELDS) and re.match(r"\d", words[0])
    ]
    # without a controller that knows the job, its record may stay at RUNNING for ever
    return [one for one in outcomes if one.state in ENDED]


def is_foreign(comment: str, own: str) -> bool:
    """Whether a job is another than the one submitted with the comment ``own``.

    A controller that was killed may have lost the jobs of its last seconds, and gives their
    ids to others. A site may have changed the comment.
    """
    ours = comment.startswith("sfq:")
    return comment == _NO_COMMENT or (ours and not comment.startswith(own))


def next_job(text: str) -> int | None:
    """The id of the next job, in the output of :data:`NEXT_JOB_COMMAND`."""
    found = re.search(r"^NEXT_JOB_ID *= *(\d+)", text, re.MULTILINE)
    return None if found is None else int(found[1])


def unknown_states(states: Iterable[str]) -> str:
    """The states that are not in Slurm's manual pages, as text; empty if there are none."""
    return ", ".join(sorted({*states} - ENDED - RUNNING - QUEUED))


def squeue_command(ids: str) -> str:
    """The ``squeue`` command for job ids separated by commas."""
    # without --user, Slurm sends the jobs of all users if --jobs lists more than one
    return (
        f"plain env SLURM_TIME_FORMAT=%s timeout {PATIENCE_SECONDS} squeue --noheader "
        f"--states=all --user=\"$(id -un)\" --jobs={ids} --format='{_FIELDS}'"
    )


def scontrol_command(job: str, patience_seconds: float = PATIENCE_SECONDS) -> str:
    return (
        f"plain env SLURM_TIME_FORMAT=%s timeout {patience_seconds:g} "
        f"scontrol --oneliner show job {job}"
    )


def sacct_command(job: str) -> str:
    """The ``sacct`` command for a job, for clusters with accounting."""
    return (
        f"plain env SLURM_TIME_FORMAT=%s timeout {PATIENCE_SECONDS} sacct --noheader "
        f"--parsable2 --allocations --jobs={job} --format={','.join(_SACCT_FIELDS)}"
    )


def is_forgotten(text: str) -> bool:
    """Whether Slurm reports that it does not know the job."""
    return "Invalid job id" in text


def worst(outcomes: list[JobOutcome]) -> JobOutcome:
    """The outcome of an array: the first failure, if there is one."""
    return next((one for one in outcomes if not one.good), outcomes[0])


def _outcome(record: Mapping[str, str]) -> JobOutcome:
    code, _, number = record.get("ExitCode", "0:0").partition(":")
    return JobOutcome(
        record["JobId"],
        record["JobState"].split()[0],  # sacct may print "CANCELLED by 1000"
        record.get("Reason", ""),
        exit_code=int(code),
        signal=int(number or 0),
        started=_epoch(record.get("StartTime", "")),
        ended=_epoch(record.get("EndTime", "")),
        restarts=int(record.get("Restarts", 0)),
    )


def _epoch(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+", text) else None

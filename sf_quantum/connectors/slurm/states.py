"""What Slurm says of a job, and what that means for a step."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

# squeue(1), "JOB STATE CODES": every other state is one that a job leaves again
ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "TIMEOUT".split()
)
# squeue(1), "JOB REASON CODES", and those of slurm_string.c that it leaves out: what no
# other job's end can change
_HOPELESS = re.compile(
    "AccountNotAllowed|BadConstraints|DependencyNeverSatisfied|InvalidAccount|InvalidQOS|"
    "JobHeldAdmin|JobHeldUser|JobHoldMaxRequeue|JobLaunchFailure|NodeDown|"
    "launch.failed.requeued.held|user.env.retrieval.failed.requeued.held|"
    "PartitionDown|PartitionInactive|PartitionNodeLimit|PartitionTimeLimit|"
    r"QOSNotAllowed|QOSMin\w+|(Assoc|QOS)Max\w*PerJob(Limit)?|"
    "ReqNodeNotAvail|ReservationDeleted"
)
#: a job that Slurm does not know any more and that left nothing behind
LOST = "LOST"
# a controller that is down holds up its clients
PATIENCE_SECONDS = 60
FIELDS = "%F|%i|%T|%r|%S|%e|%D|%N"


@dataclass(frozen=True)
class Row:
    """A line of ``squeue``: a job as it is now.

    :param job: its id; of a task of an array, the array's
    :param nodes: how many it has, or asks for
    """

    job: str
    state: str
    reason: str
    started: float | None
    ended: float | None
    nodes: int
    node_list: str

    @property
    def over(self) -> bool:
        """Whether it will not run (again)."""
        return self.state in ENDED

    @property
    def freed(self) -> bool:
        """Whether its nodes are as good as free, and Slurm knows since when."""
        return (self.over or self.state == "COMPLETING") and self.ended is not None


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    :param slurm_job: its id
    :param exit_code: of its script
    :param number: of the signal that ended it, 0 for none
    :param started: epoch seconds, None if it never ran
    """

    slurm_job: str
    state: str
    reason: str = ""
    exit_code: int = 0
    number: int = 0
    started: float | None = None
    ended: float | None = None
    restarts: int = 0

    @property
    def good(self) -> bool:
        """Only this is success."""
        return (self.state, self.exit_code, self.number) == ("COMPLETED", 0, 0)

    @property
    def plain(self) -> bool:
        """Whether its script ended by itself, with an exit code that tells all."""
        return self.state in ("COMPLETED", "FAILED") and self.number == 0

    def is_later_run(self, ended: float | None) -> bool:
        """Whether Slurm has the job run again after a run that ended then."""
        if self.restarts == 0 or ended is None:
            return False
        return self.started is None or self.state == "PENDING" or self.started >= ended

    def sentence(self) -> str:
        """What Slurm says, for a message."""
        words = [f"Slurm job {self.slurm_job} is {self.state}"]
        if self.reason not in ("", "None", self.state):
            words.append(f"({self.reason})")
        by = self.number or (self.exit_code - 128 if self.exit_code > 128 else 0)
        how = []
        if self.exit_code or self.plain:
            how.append(f"exit code {self.exit_code}")
        if by:
            how.append(f"signal {by} ({_signal_name(by)})")
        if how:
            words.append(f"with {' and '.join(how)}")
        if self.started is not None and self.ended is not None:
            words.append(f"after {max(0.0, self.ended - self.started):.0f} s")
        if self.restarts:
            words.append(f"in run {self.restarts + 1}")
        return " ".join(words)


def hopeless(reason: str) -> bool:
    """Whether what keeps a job waiting will not pass by itself.

    :param reason: in Slurm's words, with what it says after a comma
    """
    return _HOPELESS.fullmatch(reason.strip("()").split(",")[0]) is not None


def rows(text: str) -> dict[str, list[Row]]:
    """Read what ``squeue`` printed with the format :data:`FIELDS`.

    :param text: its output
    :returns: the rows by job; more than one for an array
    """
    found: dict[str, list[Row]] = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) == 8 and words[0].isdigit():
            job, _, state, reason, started, ended, nodes, node_list = words
            row = Row(
                *(job, state, reason, _epoch(started), _epoch(ended)),
                *(int(nodes) if nodes.isdigit() else 0, node_list),
            )
            found.setdefault(job, []).append(row)
    return found


def lasts(rows: list[Row]) -> bool:
    """Whether some of a job that nobody waits for runs, or will."""
    return any(not row.over and row.state != "COMPLETING" for row in rows)


def shown(text: str, job: str | None = None) -> list[Outcome]:
    """Read what ``scontrol --oneliner show job`` printed.

    :param text: its output
    :param job: only this one, or the tasks of this array
    :returns: one for each job, array task or component; those still active as well
    """
    records = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in text.splitlines()]
    return [
        _shown(record)
        for record in records
        if "JobState" in record
        and job in (None, record.get("JobId"), record.get("ArrayJobId"))
    ]


def _shown(record: Mapping[str, str]) -> Outcome:
    code, _, number = record.get("ExitCode", "0:0").partition(":")
    state = record["JobState"]
    return Outcome(
        record["JobId"],
        state,
        record.get("Reason", ""),
        int(code),
        int(number or 0),
        _epoch(record.get("StartTime", "")),
        _epoch(record.get("EndTime", "")),
        int(record.get("Restarts", 0)),
    )


def accounted(text: str) -> list[Outcome]:
    """Read what ``sacct`` printed with the format of :func:`accounting`.

    :param text: its output
    :returns: one for each job
    """
    found = []
    for line in text.splitlines():
        words = line.split("|")
        if len(words) == 6 and re.match(r"\d", words[0]):
            code, _, number = words[3].partition(":")
            state = words[1].split()[0]  # "CANCELLED by 1000"
            found.append(
                Outcome(
                    *(words[0], state, words[2], int(code), int(number or 0)),
                    *(_epoch(words[4]), _epoch(words[5])),
                )
            )
    return found


def accounting(job: str) -> str:
    """The command that asks the accounting, where there is one, for a job."""
    return (
        f"SLURM_TIME_FORMAT=%s timeout {PATIENCE_SECONDS} sacct --noheader --parsable2 --allocations "
        f"--jobs={job} --format=JobID,State,Reason,ExitCode,Start,End"
    )


def worst(outcomes: list[Outcome]) -> Outcome:
    """The outcome of an array: the first that is no success."""
    return next((one for one in outcomes if not one.good), outcomes[0])


def _epoch(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+", text) else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"

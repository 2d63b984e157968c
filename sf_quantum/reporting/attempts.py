"""The attempts of a run's jobs, built from its journal event by event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from sf_quantum.files import JSON, mapping, parse_json
from sf_quantum.journal import HOUSEKEEPING, events
from sf_quantum.journal.events import Event
from sf_quantum.journal.failures import remedy, why
from sf_quantum.text import plural

# the status of a job that was waiting or running when its driver was killed
LOST = "lost"
# shortest wait that is mentioned
SHOWN_SECONDS = 1.0
RUNNING, REUSED = "running", "reused"
SKIPPED = "skipped"
ENDS = ("completed", REUSED, "failed", "cancelled", SKIPPED, "recovery")


@dataclass
class JobAttempt:
    """One attempt of one job.

    Times are epoch seconds.

    :param tag: 0, then the numbers of the iterations and the scatter indices, all from 0
    :param loops: number of loops around the job's step; their iterations come first in the tag
    :param asked: time at which the job began to wait for a location
    :param target: deployment and service
    :param why: the targets chosen for a quantum candidate, and the reason
    :param quantum: whether these targets are quantum; ``None`` if the job is not a candidate
    :param brief: why these targets are not of the preferred kind, in a few words
    :param trouble: whether the reason is that a QPU has failed or does not reply
    :param mixed: the filter's rule for jobs on both kinds of targets: refuse, warn or allow
    :param qpus: quantum targets of the job's binding, as far as a decision has listed them
    :param waits: seconds of the waits after the job had a location, by awaited resource
    :param pending: begin of each wait that has not ended, by awaited resource
    :param exit_code: exit code of a failed command
    :param error: last lines of a failed attempt's errors
    :param reused_from: the earlier run whose outputs were reused, if the job was not run
    :param requeues: number of times that Slurm requeued the job, such as after a node's loss
    :param again: why a job of an earlier run is run again, and the name of this earlier run
    """

    step: str
    tag: str
    loops: int
    attempt: int
    asked: float
    location: str = ""
    started: float | None = None
    ended: float | None = None
    status: str = "waiting"
    output: str | None = None
    score: float | None = None
    target: str = ""
    why: str = ""
    quantum: bool | None = None
    brief: str = ""
    trouble: bool = False
    mixed: str = ""
    qpus: list[str] = field(default_factory=list)
    qpu_jobs: list[events.Qpu] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    exit_code: int | None = None
    error: str = ""
    reused_from: str | None = None
    requeues: int = 0
    again: str = ""

    @property
    def job(self) -> str:
        """Name of the job, as in the journal and in StreamFlow's log: its step and its tag."""
        return f"/{self.step}/{self.tag}"

    @property
    def waited(self) -> float | None:
        """Seconds of waiting for a location, for nodes and for leases."""
        if self.started is None:
            return None
        return self.started - self.asked + sum(self.waits.values())

    @property
    def began(self) -> float | None:
        """The time at which all waits had ended."""
        if self.started is None:
            return None
        began = self.started + sum(self.waits.values())
        return began if self.ended is None else min(began, self.ended)

    @property
    def ran(self) -> float | None:
        """Seconds from the start to the end, without the waits."""
        if self.began is None or self.ended is None:
            return None
        return self.ended - self.began

    @property
    def qpu_seconds(self) -> float | None:
        """QPU seconds of the attempt's QPU jobs; None if unknown for any QPU job."""
        seconds = [one.qpu_seconds for one in self.qpu_jobs]
        known = [one for one in seconds if one is not None]
        return sum(known) if len(known) == len(seconds) else None

    @property
    def remedy(self) -> str:
        """The remedy for a failure; empty if unknown."""
        failed = self.status == "failed"
        return remedy(self.exit_code, self.error, self.location) if failed else ""

    @property
    def remarks(self) -> str:
        """One line with the decision, waits, requeues and reuse, but without the failure."""
        waits = [
            f"waited {seconds:.1f} s for {what}"
            for what, seconds in self.waits.items()
            if seconds >= SHOWN_SECONDS
        ]
        recovered = sum(bool(event.found) for event in self.qpu_jobs)
        again = (
            [f"{plural(recovered, 'QPU job')} found again, not paid twice"]
            if recovered
            else []
        )
        reused = [f"from run {self.reused_from}"] if self.status == REUSED else []
        if self.again:
            again.append(f"run again: {self.again}")
        requeued = [self.requeued] if self.requeued else []
        parts = [self.why, *waits, *requeued, *again, *reused]
        return "; ".join(filter(None, parts))

    @property
    def requeued(self) -> str:
        """Text about the number of requeues by Slurm; empty without a requeue."""
        return f"requeued by Slurm, run {self.requeues + 1}" if self.requeues else ""

    @property
    def failure(self) -> str:
        """The exit code and the last error, in one line; empty without a failure."""
        if self.status != "failed":
            return ""
        code = "" if self.exit_code is None else f"exit code {self.exit_code}"
        return ": ".join(filter(None, (code, why(self.exit_code, self.error))))

    @property
    def decision(self) -> str:
        """One line with the decision on a quantum candidate, and its reason."""
        return f"{self.job} on {self.why}"

    def to_json(self) -> dict[str, JSON]:
        """Return all fields, the job's name, the two durations, and the remedy."""
        return {
            "job": self.job,
            **asdict(self),
            "qpu_jobs": [event.to_json() for event in self.qpu_jobs],
            "waited": self.waited,
            "ran": self.ran,
            "remedy": self.remedy,
        }

    @property
    def state(self) -> str:
        """The status, or ``waiting`` if the job waits although it has a location."""
        return "waiting" if self.pending and self.status == RUNNING else self.status

    def got(self, what: str, at: float) -> None:
        """Record the end of a wait, whether or not the job got the resource."""
        if (since := self.pending.pop(what, None)) is not None:
            # after a requeue, a job waits for nodes again
            before = self.waits.get(what, 0.0) if what == "nodes" else 0.0
            _wait(self, what, before + at - since)

    def update(self, event: events.Job) -> None:
        """Apply a change of the job's status."""
        status = event.status
        if status == "rollback":  # the attempt has ended with its previous status
            return
        self.output = event.output or self.output
        self.location = _location(event) or self.location
        self.target = event.target or self.target
        if status == RUNNING:
            self.started = event.time
        elif status in ENDS:
            self.ended = self.ended or event.time
            for what in [*self.pending]:
                self.got(what, self.ended)
            if status == REUSED:
                self.started = self.ended
        # the recovery of an attempt means that the attempt failed; the retry is a new attempt
        self.status = "failed" if status == "recovery" else status
        if status in ("completed", REUSED):
            self.score = _score(self.output)


@dataclass
class _OwnNodes:
    """The grant and release of an attempt's own nodes.

    :param taken: seconds for which the attempt had nodes that a requeue took away
    :param waited_before: seconds of waiting for QPUs before the submission to Slurm
    """

    granted: float | None = None
    released: float | None = None
    taken: float = 0.0
    waited_before: float = 0.0

    def update(self, event: Wait) -> None:
        """Apply the event of a wait; a second grant means that Slurm requeued the job."""
        if isinstance(event, events.Lease | events.Start):
            self.waited_before += event.seconds if event.status != "waiting" else 0.0
        elif not isinstance(event, events.Allocation):
            return
        elif event.status == "released":
            self.released = event.at
        elif event.status == "granted":
            if self.granted is not None and self.released is not None:
                self.taken += max(0.0, self.released - self.granted)
            self.granted, self.released = event.at, None


Wait: TypeAlias = events.Lease | events.Start | events.Nodes | events.Allocation
_OfJob: TypeAlias = (
    Wait | events.Qpu | events.Slurm | events.Failure | events.Reuse | events.Decision
)


class AttemptLog:
    """The attempts of a run, built event by event."""

    def __init__(self) -> None:
        self.all: list[JobAttempt] = []
        self._latest: dict[str, JobAttempt] = {}
        # The nodes of the latest attempts, by job.
        self._nodes: dict[str, _OwnNodes] = {}
        # The latest attempt that has a QPU job, and the job's event, by QPU and job id.
        self._qpu_jobs: dict[tuple[str, str], tuple[JobAttempt, events.Qpu]] = {}

    def add(self, event: Event) -> JobAttempt | None:
        """Add an event of the journal, and return the attempt that changed, if any."""
        if isinstance(event, events.Job):
            if event.step.endswith(HOUSEKEEPING):
                return None
            attempt = self._attempt(event)
            attempt.update(event)
            return attempt
        if not isinstance(event, _OfJob) or event.job not in self._latest:
            return None
        latest = self._latest[event.job]
        match event:
            case events.Qpu():
                self._add_qpu_job(latest, event)
                # Every QPU job under the lease reports the same wait for the lease.
                _wait(latest, f"a lease of {event.qpu}", event.lease_seconds)
            case events.Slurm():
                latest.requeues = event.restarts
                _waited_for_nodes(latest, event, self._nodes[latest.job])
            case events.Failure():
                latest.exit_code, latest.error = event.exit_code, event.error
            case events.Reuse():
                _take_over(latest, event)
                return latest
            case events.Decision():
                _decided(latest, event)
                return latest
            case _:
                self._nodes[latest.job].update(event)
                return _waited(latest, event)
        return None

    def _add_qpu_job(self, attempt: JobAttempt, event: events.Qpu) -> None:
        """Add a QPU job; a recovered QPU job is included only in the latest attempt."""
        if event.qpu_job is not None:
            key = event.qpu, event.qpu_job
            if before := self._qpu_jobs.get(key):
                holder, same = before
                holder.qpu_jobs.remove(same)
                most = max(same, event, key=lambda one: one.qpu_seconds or 0.0)
                event = replace(event, qpu_seconds=most.qpu_seconds, found=True)
            self._qpu_jobs[key] = attempt, event
        attempt.qpu_jobs.append(event)

    def _attempt(self, event: events.Job) -> JobAttempt:
        latest = self._latest.get(event.job)
        if latest is not None and latest.attempt == event.attempt:
            return latest
        attempt = JobAttempt(
            step=event.step.removeprefix("/"),
            tag=event.tag,
            loops=event.loops,
            attempt=event.attempt,
            asked=event.time,
        )
        self._latest[event.job] = attempt
        self._nodes[attempt.job] = _OwnNodes()
        self.all.append(attempt)
        return attempt


def collect(run: Iterable[Event]) -> list[JobAttempt]:
    """Return the attempts of a run's jobs, in the order in which they were scheduled."""
    attempts = AttemptLog()
    for event in run:
        attempts.add(event)
    return attempts.all


def mark_lost(rows: list[JobAttempt]) -> None:
    """Mark the attempts that had not ended when the driver ended."""
    for row in rows:
        if row.ended is None:
            row.status = LOST


def _location(event: events.Job) -> str:
    if event.deployment is None:
        return ""
    # StreamFlow appends slurmctld to the name of the host from which it submits. The host is
    # omitted if it is this host, whose name is a placeholder, or if it has the deployment's
    # name.
    hosts = [name.removesuffix("/slurmctld") for name in event.locations]
    others = [name for name in hosts if name not in ("__LOCAL__", event.deployment)]
    parts = filter(None, [event.deployment, event.service, ",".join(others)])
    return "/".join(parts).replace("__LOCAL__", "local")


def _score(output: str | None) -> float | None:
    try:
        content = parse_json(Path(output or "", "cwl.output.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None  # no score, or the folder is on another host
    score = mapping(content).get("score")
    return float(score) if isinstance(score, int | float) else None


def _wait(row: JobAttempt, what: str, seconds: float) -> None:
    if seconds > 0:
        row.waits[what] = max(row.waits.get(what, 0.0), seconds)


def _waited_for_nodes(row: JobAttempt, event: events.Slurm, nodes: _OwnNodes) -> None:
    """Record the waits before the start of an ended job, from Slurm's times."""
    if row.started is not None:
        submission = event.submitted - row.started - nodes.waited_before
        _wait(row, "its submission", submission)
    if event.started is None:
        row.got("nodes", event.time)
        return
    # Slurm's times are used, since a poll may see the grant only after the job's end.
    row.pending.pop("nodes", None)
    row.waits.pop("nodes", None)
    _wait(row, "nodes", event.started - event.submitted - nodes.taken)


def _take_over(row: JobAttempt, event: events.Reuse) -> None:
    """Record the earlier run whose result is reused, or why no result is reused."""
    row.reused_from = event.run or None
    if row.reused_from is None:
        of_run = f" (run {event.latest})" if event.latest else ""
        row.again = f"{event.reason}{of_run}"


def _decided(row: JobAttempt, event: events.Decision) -> None:
    """Apply a decision on a quantum candidate."""
    row.why = f"{' or '.join(event.targets)}: {event.reason}"
    row.quantum = event.quantum
    row.brief = event.brief
    row.trouble = event.trouble
    row.mixed = event.mixed
    row.qpus = event.qpus


def _waited(row: JobAttempt, event: Wait) -> JobAttempt | None:
    """Apply the begin or end of a wait; return ``None`` if the event changes nothing."""
    name, at = "nodes", event.time
    match event:
        case events.Lease():
            name = f"a lease of {event.qpu}"
        case events.Start():
            name = f"the start of {event.qpu}"
        case events.Allocation():
            at = event.at
    if event.status in ("waiting", "requested"):
        row.pending.setdefault(name, at)
        return row
    waited = name in row.pending
    if waited and not isinstance(event, events.Allocation):
        del row.pending[name]
        _wait(row, name, event.seconds)
    else:
        row.got(name, at)
    return row if waited else None

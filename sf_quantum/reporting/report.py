"""The attempts of a run's jobs, from its journal: as data, as a table, as a live log."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TextIO, TypeAlias

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping, parse_json
from sf_quantum.journal import (
    ADVICE,
    DIRECTORY,
    HOUSEKEEPING,
    SCHEDULER,
    elsewhere,
    events,
    newest,
)
from sf_quantum.journal.events import Event
from sf_quantum.journal.failures import described, remedy, why
from sf_quantum.reporting.columns import align
from sf_quantum.text import escaped, plural, rounded

WHY = "why"
HEADER = [*"job location waited ran attempt status score".split(), WHY]
NUMBERS = ("waited", "ran", "attempt", "score")
# the status of a job that was waiting or running when its driver was killed
LOST = "lost"
# a wait is mentioned from this on
SHOWN_SECONDS = 1.0
# Address of a host, which some locations have in place of a name.
_ADDRESS = re.compile(r"[\d.:]+|.*:.*:.*")
ERASE = "\r\x1b[K"
RUNNING, REUSED = "running", "reused"
#: how a run has ended, by its status
WORDS = {
    "cancelled": "was stopped before its end",
    LOST: "ended without its last event: its driver was killed, or the disk was full",
    RUNNING: "in progress",
}
NO_REASON = "no reason is recorded: see StreamFlow's log, in the folder of the outputs"
SKIPPED = "skipped"
ENDS = ("completed", REUSED, "failed", "cancelled", SKIPPED, "recovery")


@dataclass
class JobAttempt:
    """One attempt of one job.

    Times are epoch seconds.

    :param tag: 0, and the number of each iteration and scatter index, all from 0
    :param loops: the number of loops around its step, whose iterations the tag has first
    :param asked: time at which the job began to wait for a location
    :param target: deployment and service
    :param why: the targets chosen for a quantum candidate, and the reason
    :param quantum: whether these are quantum; ``None`` for a job that is no candidate
    :param brief: why these are not of the preferred kind, in a few words
    :param trouble: whether that is because a QPU has failed or does not answer
    :param mixed: what its filter says of jobs on both kinds: refuse, warn or allow
    :param qpus: the quantum targets of its binding, as far as a decision has listed them
    :param waits: seconds that it waited with its location, by what it waited for
    :param pending: the time since which it waits, by what it waits for now
    :param exit_code: exit code of a failed command
    :param error: the last lines of a failed attempt's errors
    :param reused_from: the earlier run whose outputs are the job's, which was not run
    :param requeues: how often Slurm took it from its nodes, as when one was lost
    :param again: why a job that an earlier run had started is run again, and which run
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
        """Its name, as in the journal and in StreamFlow's log: its step and its tag."""
        return f"/{self.step}/{self.tag}"

    @property
    def waited(self) -> float | None:
        """Seconds of waiting for a location, for nodes and for leases."""
        if self.started is None:
            return None
        return self.started - self.asked + sum(self.waits.values())

    @property
    def began(self) -> float | None:
        """The time at which it had all that it waited for."""
        if self.started is None:
            return None
        began = self.started + sum(self.waits.values())
        return began if self.ended is None else min(began, self.ended)

    @property
    def ran(self) -> float | None:
        """Seconds from the start to the end, without those of waiting."""
        if self.began is None or self.ended is None:
            return None
        return self.ended - self.began

    @property
    def qpu_seconds(self) -> float | None:
        """QPU seconds of its QPU jobs; None if those of one are not known."""
        seconds = [one.qpu_seconds for one in self.qpu_jobs]
        known = [one for one in seconds if one is not None]
        return sum(known) if len(known) == len(seconds) else None

    @property
    def remedy(self) -> str:
        """What to do about a failure, if that is known."""
        failed = self.status == "failed"
        return remedy(self.exit_code, self.error, self.location) if failed else ""

    @property
    def remarks(self) -> str:
        """What there is to know about it, except its failure, in one line."""
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
        """How often Slurm ran it anew; empty if it did not."""
        return f"requeued by Slurm, run {self.requeues + 1}" if self.requeues else ""

    @property
    def failure(self) -> str:
        """Its exit code and its last error, in one line; empty if it has not failed."""
        if self.status != "failed":
            return ""
        code = "" if self.exit_code is None else f"exit code {self.exit_code}"
        return ": ".join(filter(None, (code, why(self.exit_code, self.error))))

    @property
    def decision(self) -> str:
        """One line with the decision on a quantum candidate, and its reason."""
        return f"{self.job} on {self.why}"

    def to_json(self) -> dict[str, JSON]:
        """All fields, its name, the two durations, and the remedy."""
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
        """Its status; a job that has a location may still wait there."""
        return "waiting" if self.pending and self.status == RUNNING else self.status

    def got(self, what: str, at: float) -> None:
        """Count the wait for something that it has got, or waits for no longer."""
        if (since := self.pending.pop(what, None)) is not None:
            # nodes that are taken away are waited for again
            before = self.waits.get(what, 0.0) if what == "nodes" else 0.0
            _wait(self, what, before + at - since)

    def update(self, event: events.Job) -> None:
        """Apply a change of the job's status."""
        status = event.status
        if status == "rollback":  # the attempt has ended with the status before
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
        # the recovery of an attempt means that it failed; the retry is another attempt
        self.status = "failed" if status == "recovery" else status
        if status in ("completed", REUSED):
            self.score = _score(self.output)


@dataclass
class _OwnNodes:
    """The nodes that are an attempt's own.

    :param taken: seconds for which it had nodes that a requeue took away
    :param waited_before: seconds of waiting for QPUs before it was submitted
    """

    granted: float | None = None
    released: float | None = None
    taken: float = 0.0
    waited_before: float = 0.0

    def update(self, event: _Wait) -> None:
        """Apply the event of a wait; an allocation that is granted again was requeued."""
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


_Wait: TypeAlias = events.Lease | events.Start | events.Nodes | events.Allocation
_Warned: TypeAlias = events.Overrun | events.RunWarning
_OfJob: TypeAlias = (
    _Wait | events.Qpu | events.Slurm | events.Failure | events.Reuse | events.Decision
)


class _AttemptLog:
    """The attempts of a run, built event by event."""

    def __init__(self) -> None:
        self.all: list[JobAttempt] = []
        self._latest: dict[str, JobAttempt] = {}
        # The nodes of the latest attempts, by job.
        self._nodes: dict[str, _OwnNodes] = {}
        # The latest attempt with a QPU job, and its event, by QPU and id there.
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
                # The wait is one, repeated with each of the QPU jobs under its lease
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
        """Add a QPU job; one that is found again is the latest attempt's alone."""
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
    """The attempts of a run's jobs, in the order in which they were scheduled."""
    attempts = _AttemptLog()
    for event in run:
        attempts.add(event)
    return attempts.all


def locate(where: str | Path) -> Path:
    """Find the newest journal of a StreamFlow file or folder.

    :param where: a StreamFlow file, a folder that has journals or ``.streamflow/sfq``, or
        a journal, which is returned itself
    :raises InputError: if there is none
    """
    where, file = Path(where), None
    if where.is_dir():
        folders = [where / DIRECTORY, where]
    elif where.suffix in (".yml", ".yaml"):
        file = where.resolve()
        folders = [file.parent / _directory(_scheduler(where))]
    else:
        return where
    for folder in folders:
        if (journal := newest(folder, file)) is not None:
            return journal
    others = elsewhere(folders[0], file) if file is not None else ""
    raise InputError(
        f"{where}: no run is recorded in {folders[0]}{others}; "
        "name a journal, or run a StreamFlow file that has the scheduler sfq.journal"
    )


def journals_of(file: Path) -> Path:
    """The folder of the journals of a StreamFlow file's runs.

    :raises InputError: if they have none
    """
    scheduler = _scheduler(file)
    if scheduler.get("type") != SCHEDULER:
        raise InputError(f"{file}: its runs have no journal; {ADVICE}")
    return file.resolve().parent / _directory(scheduler)


def mark_lost(rows: list[JobAttempt]) -> None:
    """Mark the attempts that had not ended when the driver ended."""
    for row in rows:
        if row.ended is None:
            row.status = LOST


def table(
    rows: list[JobAttempt],
    status: str = "",
    reason: str = "",
    warned: Iterable[_Warned] = (),
) -> str:
    """Return a table of a run's attempts, and how the run has ended.

    :param status: status of the run; empty to leave its end out
    :param reason: why the run failed, if no job is the cause
    :param warned: what the run warns of
    """
    text = align(_without_empty(rows, [""] * len(rows)), right=NUMBERS)
    if notes := _notes(rows):
        text += ["", *notes]
    why = [*failures(rows), *filter(None, [escaped(reason)])]
    if status == "failed" and not why:
        why = [NO_REASON]
    warnings = map(warning, warned)
    last = [*candidates(rows), *warnings, conclusion(status, rows)]
    return "\n".join([*text, "", *why, *last])


def warning(event: _Warned) -> str:
    """One line for a warning, or a budget that a run has exceeded."""
    return escaped(f"warning: {event}")


def conclusion(status: str, rows: list[JobAttempt]) -> str:
    """One line that says in words how a run has ended, with its totals."""
    return ": ".join(filter(None, (_ended(status), totals(rows))))


def _ended(status: str) -> str:
    return status and f"run {WORDS.get(status, status)}"


def cells(rows: list[JobAttempt]) -> list[tuple[str, ...]]:
    """The cells of the table, its header first, without columns that are empty."""
    return _without_empty(rows, _whys(rows))


def _without_empty(rows: list[JobAttempt], whys: list[str]) -> list[tuple[str, ...]]:
    short = _short_names({row.location for row in rows})
    texts = (
        _cells(row, short.get(row.location, ""), text)
        for row, text in zip(rows, whys, strict=True)
    )
    columns = zip(HEADER, *texts, strict=True)
    shown = [c for c in columns if c[0] not in ("score", WHY) or any(c[1:])]
    return list(zip(*shown, strict=True))


def failures(rows: list[JobAttempt]) -> list[str]:
    """The errors of the jobs whose last attempt has failed, and what to do about them."""
    return [
        described(row.job, row.location, row.exit_code, row.error, [""])
        for row in _failed(rows)
    ]


def reason(end: events.End | None, rows: list[JobAttempt]) -> str:
    """Why a run has failed, unless its failed jobs say it; empty if they do.

    :param end: its last event; ``None`` if there is none
    """
    if end is None or end.job in {row.job for row in _failed(rows)}:
        return ""
    return end.reason or ""


def _failed(rows: list[JobAttempt]) -> list[JobAttempt]:
    """The last attempts of the jobs whose last attempt has failed."""
    last = {row.job: row for row in rows}
    return [row for row in last.values() if row.status == "failed"]


def candidates(rows: list[JobAttempt]) -> list[str]:
    """One line for each quantum candidate: how many of its jobs ran where, and why.

    ``solve: 4 on qpu, 2 on host (QPU closed)``. It begins with ``warning:`` if its jobs ran
    on targets of both kinds, unless the filter allows that, or if none ran on a QPU, since
    one had failed or did not answer.
    """
    last = {row.job: row for row in rows}
    steps: dict[str, list[JobAttempt]] = {}
    for row in last.values():
        steps.setdefault(row.step, []).append(row)
    return [
        _candidate(step, jobs)
        for step, jobs in steps.items()
        if any(row.quantum is not None for row in jobs)
    ]


def _candidate(step: str, jobs: list[JobAttempt]) -> str:
    done = [row for row in jobs if row.status == "completed"]
    parts = []
    for target in dict.fromkeys(row.target for row in done):
        there = [row for row in done if row.target == target]
        why = Counter(row.brief for row in there if row.brief)
        if len(why) == 1 and why.total() == len(there):
            reasons = f" ({next(iter(why))})"
        else:
            counted_reasons = [f"{number} {brief}" for brief, number in why.items()]
            reasons = f" ({'; '.join(counted_reasons)})" if why else ""
        parts.append(f"{len(there)} on {target}{reasons}")
    others = Counter(
        f"{row.status} from {row.target}" if row.status == REUSED else row.status
        for row in jobs
        if row.status != "completed"
    )
    parts += [f"{number} {status}" for status, number in others.items()]
    line = f"{step}: {', '.join(parts)}"
    # a reused job has no decision of its own
    qpus = {name for row in jobs for name in row.qpus}
    ended = [row for row in jobs if row.status in ("completed", REUSED)]
    kinds = {
        row.target in qpus if row.status == REUSED else row.quantum for row in ended
    }
    if len(kinds - {None}) > 1 and any(row.mixed == "warn" for row in jobs):
        return f"warning: {line}; results of QPUs and of classical targets are mixed"
    if kinds == {False} and any(row.trouble for row in ended):
        return f"warning: {line}; no result is of a QPU"
    return line


def totals(rows: list[JobAttempt]) -> str:
    """One line with the numbers of jobs, retries and QPU jobs, and the times."""
    # the journal has skipped jobs at its end
    begun = [row for row in rows if row.status != SKIPPED]
    ends = [row.ended for row in begun if row.ended is not None]
    elapsed = max(ends) - min(row.asked for row in begun) if ends else 0.0
    retried = sum(row.attempt > 1 for row in rows)
    taken = sum(row.status == REUSED for row in rows)
    reused = f"{taken} of them reused, " if taken else ""
    if skipped := len(rows) - len(begun):
        reused += f"{skipped} of them skipped (when), "
    jobs = [event for row in rows for event in row.qpu_jobs]
    reported = [event for event in jobs if event.qpu_job is not None]
    silent = sorted({event.qpu for event in jobs if event.qpu_job is None})
    unknown = f" (not reported by {', '.join(silent)})" if silent else ""
    used = sum(event.qpu_seconds or 0.0 for event in reported)
    cost = f" ({rounded(used)} s on the QPU)" if used else ""
    found = sum(event.found is True for event in reported)
    again = f", {found} of them found again" if found else ""
    return (
        f"{plural(len(rows) - retried, 'job')}, {reused}{plural(retried, 'retry')}, "
        f"{plural(len(reported), 'QPU job')}{again}{cost}{unknown}; "
        f"{elapsed:.1f} s elapsed, "
        f"waited {sum(row.waited or 0 for row in rows):.1f} s, "
        f"ran {sum(row.ran or 0 for row in rows):.1f} s"
    )


def progress(run: Iterable[Event]) -> Iterator[str]:
    """One line for each start or end of a job, each decision, and the end of the run.

    Jobs that are reused one after another get one line for each of their steps.
    """
    attempts = _AttemptLog()
    reused: list[JobAttempt] = []
    warned: set[str] = set()
    # StreamFlow may tell the end of an attempt several times
    reported: set[tuple[str, int, str]] = set()
    for event in run:
        row = attempts.add(event)
        if isinstance(event, _Warned) and str(event) not in warned:
            warned.add(str(event))
            yield warning(event)
        if row is not None and isinstance(event, events.Job):
            change = (row.job, row.attempt, row.status)
            if change in reported:
                continue
            reported.add(change)
            if row.status in (REUSED, SKIPPED):
                reused.append(row)
                continue
        text = "" if row is None else _change(row, event)
        if text or isinstance(event, events.End):
            yield from _reused(reused)
            reused.clear()
        if text:
            yield text
        if isinstance(event, events.End):
            for text in failures(attempts.all):
                yield from text.splitlines()
            yield from reason(event, attempts.all).splitlines()
            yield from candidates(attempts.all)
            yield conclusion(event.status, attempts.all)
            return
    yield from _reused(reused)
    yield conclusion(LOST, attempts.all)


def _reused(rows: Iterable[JobAttempt]) -> Iterator[str]:
    """One line for the jobs of each step that were not run."""
    steps: dict[tuple[str, str | None], list[JobAttempt]] = {}
    for row in rows:
        steps.setdefault((row.step, row.reused_from), []).append(row)
    for (step, run), jobs in steps.items():
        if len(jobs) == 1:
            yield _line(jobs[0])
            continue
        if run is None:
            yield f"{SKIPPED:9} {step}: {plural(len(jobs), 'job')} (when)"
            continue
        targets = Counter(row.target for row in jobs)
        where = ", ".join(f"{number} on {name}" for name, number in targets.items())
        yield f"{REUSED:9} {step}: {plural(len(jobs), 'job')} ({where}) from run {run}"


class LiveProgress:
    """Writes the progress of a run; on a terminal, the last line lists the running jobs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._running: dict[str, str] = {}

    def show(self, text: str) -> None:
        """Write a line of :func:`progress`, which must be escaped."""
        status, _, job = text.partition(" ")
        name, write = job.strip().partition(" ")[0], self._stream.write
        if self._live and status == RUNNING:
            self._running[name] = job.strip()
        else:
            self._running.pop(name, None)
            write(f"{ERASE if self._live else ''}{text}\n")
        if self._live:
            width = shutil.get_terminal_size().columns - len("running: ") - 1
            jobs = "; ".join(self._running.values())[:width]
            write(f"{ERASE}running: {jobs}" if jobs else ERASE)
        self._stream.flush()


def print_progress(run: Iterable[Event], stream: TextIO) -> None:
    """Print the progress of a run."""
    live = LiveProgress(stream)
    for line in progress(run):
        live.show(escaped(line))


def _change(row: JobAttempt, event: Event) -> str:
    """One line with what an event has changed for a job; empty if it is not worth one."""
    job = row.job
    match event:
        case events.Decision():
            return f"decided   {row.decision}"
        case events.Lease(status="waiting"):
            return f"waiting   {job} for {event.qpu}: {event.reason}"
        case events.Start(status="waiting"):
            return f"waiting   {job} for {event.qpu}: it is being started"
        case events.Nodes(status="waiting") | events.Allocation(status="requested"):
            return f"waiting   {job} for nodes of {row.target or row.location}"
        case events.Reuse() if row.reused_from is None:
            return f"again     {job}: {row.again}"
        case events.Job() if event.status in (RUNNING, *ENDS):
            return _line(row)
        case _ if isinstance(event, _Wait) and row.state == RUNNING:
            return _line(row)
    return ""


def _line(row: JobAttempt) -> str:
    parts = [f"{row.status:9}", row.job]
    if row.location:
        parts.append(f"on {row.location}")
    if row.attempt > 1:
        parts.append(f"(attempt {row.attempt})")
    if row.status == SKIPPED:
        parts.append("(when)")
    if row.status == REUSED:
        parts.append(f"from run {row.reused_from}")
    elif row.waited is not None and row.ran is not None:
        parts.append(f"in {row.ran:.1f} s (waited {row.waited:.1f} s)")
    if row.requeued and row.ended is not None:
        parts.append(f"({row.requeued})")
    if row.qpu_jobs and row.ended is not None:
        parts.append(f"with {_qpu_jobs(row)}")
    if row.score is not None:
        parts.append(f"score {row.score:.4f}")
    return " ".join(parts)


def _qpu_jobs(row: JobAttempt) -> str:
    """The number of QPU jobs of an attempt, and what they cost, if that is known."""
    jobs = plural(len(row.qpu_jobs), "QPU job")
    seconds = row.qpu_seconds
    return jobs if seconds is None else f"{jobs} ({rounded(seconds)} s on the QPU)"


def _location(event: events.Job) -> str:
    if event.deployment is None:
        return ""
    # StreamFlow adds slurmctld to the name of the host from which it submits. That host is left
    # out if it is this one, whose name is a placeholder, or if it repeats the deployment's.
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


def _short_names(locations: Collection[str]) -> dict[str, str]:
    """Cut the hosts' names in locations to as many labels as distinguish all of them."""
    parts = {one: [*one.split("/")[:-1], one.split("/")[-1]] for one in locations}
    hosts = {host for names in parts.values() for host in names[-1].split(",")}
    named = {host for host in hosts if "." in host and not _ADDRESS.fullmatch(host)}
    labels = max((host.count(".") + 1 for host in named), default=1)
    for count in range(1, labels + 1):
        cut = {host: ".".join(host.split(".")[:count]) for host in named}
        if len({*cut.values()} | (hosts - named)) == len(hosts):
            break
    return (
        {
            one: "/".join(
                [*names[:-1], ",".join(cut.get(h, h) for h in names[-1].split(","))]
            )
            for one, names in parts.items()
        }
        if named
        else {one: one for one in locations}
    )


def _whys(rows: list[JobAttempt]) -> list[str]:
    """What there is to know about each attempt, except the failures that end a job."""
    last = {(row.job, row.attempt) for row in _failed(rows)}
    failures = ("" if (row.job, row.attempt) in last else row.failure for row in rows)
    return [
        "; ".join(filter(None, (row.remarks, failure)))
        for row, failure in zip(rows, failures, strict=True)
    ]


def _notes(rows: list[JobAttempt]) -> list[str]:
    """One line for each text of the column ``why``, which is too long for a terminal."""
    jobs: dict[str, list[str]] = {}
    for row, text in zip(rows, _whys(rows), strict=True):
        attempt = f" (attempt {row.attempt})" if row.attempt > 1 else ""
        jobs.setdefault(text, []).append(f"{row.job}{attempt}")
    jobs.pop("", None)
    return [escaped(f"{_first(names)}: {text}") for text, names in jobs.items()]


def _first(names: list[str]) -> str:
    first, *others = names
    return f"{first} and {plural(len(others), 'other')}" if others else first


def _cells(row: JobAttempt, location: str, text: str) -> tuple[str, ...]:
    return (
        row.job,
        location or "-",
        _seconds(row.waited),
        _seconds(row.ran),
        str(row.attempt),
        row.state,
        "" if row.score is None else f"{row.score:.4f}",
        text,
    )


def _wait(row: JobAttempt, what: str, seconds: float) -> None:
    if seconds > 0:
        row.waits[what] = max(row.waits.get(what, 0.0), seconds)


def _waited_for_nodes(row: JobAttempt, event: events.Slurm, nodes: _OwnNodes) -> None:
    """Apply the waits before the start that Slurm has of a job, which has ended."""
    if row.started is not None:
        submission = event.submitted - row.started - nodes.waited_before
        _wait(row, "its submission", submission)
    if event.started is None:
        row.got("nodes", event.time)
        return
    # The time of the request would not do: a poll may see the grant after the job's end
    row.pending.pop("nodes", None)
    row.waits.pop("nodes", None)
    _wait(row, "nodes", event.started - event.submitted - nodes.taken)


def _take_over(row: JobAttempt, event: events.Reuse) -> None:
    """Apply that an earlier run's result is used, or why it is not."""
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


def _waited(row: JobAttempt, event: _Wait) -> JobAttempt | None:
    """Apply the begin or the end of a wait; ``None`` if it tells nothing new."""
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


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _scheduler(file: Path) -> dict[str, JSON]:
    from sf_quantum import yaml  # slow, and only needed for a StreamFlow file

    try:
        content = mapping(yaml.parse(file.read_text("utf-8")).content)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except (yaml.NotYamlError, UnicodeDecodeError):
        return {}
    return mapping(mapping(content.get("scheduling")).get("scheduler"))


def _directory(scheduler: dict[str, JSON]) -> str:
    return str(mapping(scheduler.get("config")).get("directory", DIRECTORY))

"""The attempts of a run's jobs, from its journal: as data, as a table, as a live log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.journal import DIRECTORY, HOUSEKEEPING, Event, newest, number
from sf_quantum.reporting.columns import align
from sf_quantum.text import escaped

HEADER = "step iteration location waited ran attempt status score why".split()
# the status of a job that was waiting or running when its driver was killed
LOST = "lost"
ERASE = "\r\x1b[K"
RUNNING, ENDS = "running", ("completed", "failed", "cancelled", "skipped", "recovery")


@dataclass
class JobAttempt:
    """One attempt of one job.

    Times are epoch seconds. Iterations and scatter indices count from 1, in tags from 0.

    :param asked: time at which the job began to wait for a location
    :param why: the targets chosen for a quantum candidate, and the reason
    """

    step: str
    tag: str
    iteration: list[int]
    index: list[int]
    attempt: int
    asked: float
    location: str = ""
    started: float | None = None
    ended: float | None = None
    status: str = "waiting"
    output: str | None = None
    score: float | None = None
    why: str = ""
    qpu_jobs: list[Event] = field(default_factory=list)

    @property
    def waited(self) -> float | None:
        """Seconds from the request of a location to the start."""
        return None if self.started is None else self.started - self.asked

    @property
    def ran(self) -> float | None:
        """Seconds from the start to the end."""
        if self.started is None or self.ended is None:
            return None
        return self.ended - self.started

    @property
    def round(self) -> str:
        """Iteration and scatter index: ``2``, ``2#1`` or, outside loops, ``#1``."""
        iteration, index = (".".join(map(str, n)) for n in (self.iteration, self.index))
        return f"{iteration}#{index}" if index else iteration

    @property
    def decision(self) -> str:
        """One line with the decision on a quantum candidate, and its reason."""
        return " ".join(filter(None, (self.step, self.round, "on", self.why)))

    def to_json(self) -> dict[str, JSON]:
        """All fields and the two durations."""
        return {**asdict(self), "waited": self.waited, "ran": self.ran}

    def update(self, event: Event) -> None:
        """Apply a change of the job's status."""
        status = str(event["status"])
        if status == "rollback":  # the attempt has ended with the status before
            return
        self.output = str(event["output"]) if event["output"] else self.output
        self.location = _location(event) or self.location
        if status == RUNNING:
            self.started = number(event["time"])
        elif status in ENDS:
            self.ended = self.ended or number(event["time"])
        # the recovery of an attempt means that it failed; the retry is another attempt
        self.status = "failed" if status == "recovery" else status
        if status == "completed":
            self.score = _score(self.output)


class _AttemptLog:
    """The attempts of a run, built event by event."""

    def __init__(self) -> None:
        self.all: list[JobAttempt] = []
        self._latest: dict[str, JobAttempt] = {}

    def add(self, event: Event) -> JobAttempt | None:
        """Add an event of the journal, and return the attempt that changed, if any."""
        kind = event["event"]
        if kind == "job" and not str(event["step"]).endswith(HOUSEKEEPING):
            attempt = self._attempt(event)
            attempt.update(event)
            return attempt
        latest = self._latest.get(str(event.get("job")))
        if kind == "qpu" and latest is not None:
            latest.qpu_jobs.append(event)
        elif kind == "decision" and latest is not None:
            targets = " or ".join(map(str, listing(event["targets"])))
            latest.why = f"{targets}: {event['reason']}"
            return latest
        return None

    def _attempt(self, event: Event) -> JobAttempt:
        job, count = str(event["job"]), int(number(event["attempt"]))
        latest = self._latest.get(job)
        if latest is not None and latest.attempt == count:
            return latest
        indices = [int(part) + 1 for part in str(event["tag"]).split(".")[1:]]
        loops = int(number(event["loops"]))
        attempt = JobAttempt(
            step=str(event["step"]).removeprefix("/"),
            tag=str(event["tag"]),
            iteration=indices[:loops],
            index=indices[loops:],
            attempt=count,
            asked=number(event["time"]),
        )
        self._latest[job] = attempt
        self.all.append(attempt)
        return attempt


def collect(events: Iterable[Event]) -> list[JobAttempt]:
    """The attempts of a run's jobs, in the order in which they were scheduled."""
    attempts = _AttemptLog()
    for event in events:
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
        folders = [file.parent / _configured(where)]
    else:
        return where
    for folder in folders:
        if (journal := newest(folder, file)) is not None:
            return journal
    raise InputError(
        f"{where}: no run is recorded in {folders[0]}; "
        "name a journal, or run a StreamFlow file that has the scheduler sfq.journal"
    )


def mark_lost(rows: list[JobAttempt]) -> None:
    """Mark the attempts that had not ended when the driver ended."""
    for row in rows:
        if row.ended is None:
            row.status = LOST


def table(rows: list[JobAttempt]) -> str:
    """A table of the attempts of a run, and the totals."""
    columns = zip(HEADER, *map(_cells, rows), strict=True)
    shown = [c for c in columns if c[0] not in ("score", "why") or any(c[1:])]
    lines = list(zip(*shown, strict=True))
    text = align(lines, right=("waited", "ran", "attempt", "score"))
    return "\n".join([*text, "", totals(rows)])


def totals(rows: list[JobAttempt]) -> str:
    """One line with the numbers of jobs, retries and QPU jobs, and the times."""
    ends = [row.ended for row in rows if row.ended is not None]
    elapsed = max(ends) - min(row.asked for row in rows) if ends else 0.0
    retried = sum(row.attempt > 1 for row in rows)
    events = [event for row in rows for event in row.qpu_jobs]
    known = [event for event in events if event.get("qpu_job") is not None]
    silent = sorted({str(event.get("qpu")) for event in events if event not in known})
    unknown = f" (not reported by {', '.join(silent)})" if silent else ""
    return (
        f"{len(rows) - retried} jobs, {retried} retries, "
        f"{len(known)} QPU jobs{unknown}; "
        f"{elapsed:.1f} s elapsed, "
        f"waited {sum(row.waited or 0 for row in rows):.1f} s, "
        f"ran {sum(row.ran or 0 for row in rows):.1f} s"
    )


def progress(events: Iterable[Event]) -> Iterator[str]:
    """One line for each start or end of a job, each decision, and the end of the run."""
    attempts = _AttemptLog()
    for event in events:
        row = attempts.add(event)
        if row is not None and event["event"] == "decision":
            yield f"decided   {row.decision}"
        elif row is not None and event["status"] in (RUNNING, *ENDS):
            yield _line(row)
        elif event["event"] == "end":
            yield f"run {event['status']}: {totals(attempts.all)}"
            return
    yield f"the driver has ended: {totals(attempts.all)}"


def print_progress(events: Iterable[Event], stream: TextIO) -> None:
    """Print the progress of a run; on a terminal, the last line lists the running jobs."""
    live = stream.isatty()
    running: dict[str, str] = {}
    for text in map(escaped, progress(events)):
        status, _, job = text.partition(" ")
        name = " ".join(job.split()[:2])
        if live and status == RUNNING:
            running[name] = job.strip()
        else:
            running.pop(name, None)
            stream.write(f"{ERASE if live else ''}{text}\n")
        if live:
            width = shutil.get_terminal_size().columns - len("running: ") - 1
            jobs = "; ".join(running.values())[:width]
            stream.write(f"{ERASE}running: {jobs}" if jobs else ERASE)
        stream.flush()


def _line(row: JobAttempt) -> str:
    parts = [f"{row.status:9}", row.step, row.round, f"on {row.location}"]
    if row.attempt > 1:
        parts.append(f"(attempt {row.attempt})")
    if row.waited is not None and row.ran is not None:
        parts.append(f"in {row.ran:.1f} s (waited {row.waited:.1f} s)")
    if row.score is not None:
        parts.append(f"score {row.score:.4f}")
    return " ".join(filter(None, parts))


def _location(event: Event) -> str:
    names = event["locations"]
    if event["deployment"] is None or not isinstance(names, list):
        return ""
    # without names that repeat the deployment's, and without StreamFlow's placeholder
    others = [str(n) for n in names if n not in ("__LOCAL__", event["deployment"])]
    parts = [event["deployment"], event["service"], ",".join(others)]
    return "/".join(str(part) for part in parts if part).replace("__LOCAL__", "local")


def _score(output: str | None) -> float | None:
    try:
        content = json.loads(Path(output or "", "cwl.output.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None  # no score, or the folder is on another host
    score = mapping(content).get("score")
    return float(score) if isinstance(score, int | float) else None


def _cells(row: JobAttempt) -> tuple[str, ...]:
    return (
        row.step,
        row.round or "-",
        row.location or "-",
        _seconds(row.waited),
        _seconds(row.ran),
        str(row.attempt),
        row.status,
        "" if row.score is None else f"{row.score:.4f}",
        row.why,
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _configured(file: Path) -> Path:
    import yaml  # slow, and only needed for a StreamFlow file

    try:
        content = yaml.safe_load(file.read_text("utf-8"))
        return Path(content["scheduling"]["scheduler"]["config"]["directory"])
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, KeyError, TypeError):
        return Path(DIRECTORY)

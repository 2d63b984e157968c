"""A run's journal as rows, a table, lines as it happens, and a picture."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.journal import DIRECTORY, HOUSEKEEPING, Event, newest
from sf_quantum.reporting.columns import align

HEADER = (
    "step",
    "iteration",
    "location",
    "waited",
    "ran",
    "attempt",
    "status",
    "score",
    "why",
)
#: the status of a job that was waiting or running when its driver was killed
LOST = "lost"
ERASE = "\r\x1b[K"
RUNNING, ENDS = "running", ("completed", "failed", "cancelled", "skipped", "recovery")


@dataclass
class Row:
    """One attempt of one job.

    Times are epoch seconds, None if it never came to it; iteration and scatter index
    count from 1, as a person does, where the tag counts from 0.

    :param why: of a quantum candidate, where it went, and why
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
        """Seconds from asking for a place to running there."""
        return None if self.started is None else self.started - self.asked

    @property
    def ran(self) -> float | None:
        """Seconds from running to the end."""
        if self.started is None or self.ended is None:
            return None
        return self.ended - self.started

    @property
    def round(self) -> str:
        """Iteration and scatter index: ``2``, ``2#1`` or, outside loops, ``#1``."""
        iteration, index = (".".join(map(str, n)) for n in (self.iteration, self.index))
        return f"{iteration}#{index}" if index else iteration

    def to_json(self) -> dict[str, JSON]:
        """The row for ``--json``.

        :returns: every field, and the two durations
        """
        return {**asdict(self), "waited": self.waited, "ran": self.ran}


class Rows:
    """The rows of a run, built event by event."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._latest: dict[str, Row] = {}

    def add(self, event: Event) -> Row | None:
        """Take one event in.

        :param event: of the journal
        :returns: the row that changed, if one did
        """
        if event["event"] in ("qpu", "decision"):
            row = self._latest.get(str(event["job"]))
            if row is not None and event["event"] == "qpu":
                row.qpu_jobs.append(event)
            elif row is not None:
                row.why = f"{_targets(event)}: {event['reason']}"
                return row
            return None
        if event["event"] != "job" or str(event["step"]).endswith(HOUSEKEEPING):
            return None
        row = self._row(event)
        _update(row, event)
        return row

    def _row(self, event: Event) -> Row:
        job, attempt = str(event["job"]), _integer(event["attempt"])
        row = self._latest.get(job)
        if row is None or row.attempt != attempt:
            numbers = [int(part) + 1 for part in str(event["tag"]).split(".")[1:]]
            loops = _integer(event["loops"])
            row = Row(
                step=str(event["step"]).removeprefix("/"),
                tag=str(event["tag"]),
                iteration=numbers[:loops],
                index=numbers[loops:],
                attempt=attempt,
                asked=_number(event["time"]),
            )
            self._latest[job] = row
            self.rows.append(row)
        return row


def collect(events: Iterable[Event]) -> list[Row]:
    """The rows of a run.

    :param events: of the journal
    :returns: one row for each attempt of each job, in the order in which they asked
    """
    rows = Rows()
    for event in events:
        rows.add(event)
    return rows.rows


def locate(where: str | Path) -> Path:
    """The journal that a person means.

    :param where: a journal, a StreamFlow file, or a folder: that of the journals, or one
        with ``.streamflow/sfq`` in it
    :returns: the journal itself, or the newest: of the StreamFlow file, or of the folder
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
        if (found := newest(folder, file)) is not None:
            return found
    raise InputError(
        f"{where}: no run is recorded in {folders[0]}; "
        "name a journal, or run a StreamFlow file that has the scheduler sfq.journal"
    )


def close(rows: list[Row]) -> None:
    """Mark as lost what a driver that is gone left unfinished."""
    for row in rows:
        if row.ended is None:
            row.status = LOST


def table(rows: list[Row]) -> str:
    """The rows in columns, then totals.

    :param rows: of one run
    :returns: several lines
    """
    cells = [_cells(row) for row in rows]
    shown = [
        i
        for i, name in enumerate(HEADER)
        if name not in ("score", "why") or any(line[i] for line in cells)
    ]
    lines = [[line[i] for i in shown] for line in (HEADER, *cells)]
    text = align(lines, right=("waited", "ran", "attempt", "score"))
    return "\n".join([*text, "", totals(rows)])


def totals(rows: list[Row]) -> str:
    """One line about the whole run.

    :param rows: of one run
    :returns: jobs, attempts, elapsed, waited, ran, QPU jobs and who does not tell them
    """
    ends = [row.ended for row in rows if row.ended is not None]
    elapsed = max(ends) - min(row.asked for row in rows) if ends else 0.0
    retried = sum(row.attempt > 1 for row in rows)
    told = [job for row in rows for job in row.qpu_jobs]
    known = [job for job in told if job.get("qpu_job") is not None]
    silent = sorted({str(job.get("qpu")) for job in told if job not in known})
    untold = f" (not told by {', '.join(silent)})" if silent else ""
    return (
        f"{len(rows) - retried} jobs, {retried} further attempts, "
        f"{len(known)} QPU jobs{untold}; "
        f"{elapsed:.1f} s from first to last, "
        f"waited {sum(row.waited or 0 for row in rows):.1f} s, "
        f"ran {sum(row.ran or 0 for row in rows):.1f} s"
    )


def narrate(events: Iterable[Event]) -> Iterator[str]:
    """What happens, as it happens: a line when a job starts, and one when it ends.

    And one when it is decided where a quantum candidate goes.

    :param events: :func:`sf_quantum.journal.follow` of a run that goes on, or
        :func:`sf_quantum.journal.read`
    :returns: the lines
    """
    rows = Rows()
    for event in events:
        row = rows.add(event)
        if row is not None and event["event"] == "decision":
            yield " ".join(
                filter(None, ("decided  ", row.step, row.round, "on", row.why))
            )
        elif row is not None and event["status"] in (RUNNING, *ENDS):
            yield line(row)
        elif event["event"] == "end":
            yield f"run {event['status']}: {totals(rows.rows)}"
            return
    yield f"the driver is gone: {totals(rows.rows)}"


def show(events: Iterable[Event], stream: TextIO) -> None:
    """Print what happens: plain lines, or on a terminal the ends over a line of progress.

    :param events: as in :func:`narrate`
    :param stream: standard output or error
    """
    live = stream.isatty()
    running: dict[str, str] = {}
    for text in narrate(events):
        status, _, what = text.partition(" ")
        job = " ".join(what.split()[:2])
        if live and status == RUNNING:
            running[job] = what.strip()
        else:
            running.pop(job, None)
            stream.write(f"{ERASE if live else ''}{text}\n")
        if live:
            progress = "; ".join(running.values())[: _columns() - len("running: ") - 1]
            stream.write(f"{ERASE}running: {progress}" if progress else ERASE)
        stream.flush()


def line(row: Row) -> str:
    """A row as one line of a run that goes on.

    :param row: a job that has started or ended
    :returns: what, which round, where, and how long or which score
    """
    parts = [f"{row.status:9}", row.step, row.round, f"on {row.location}"]
    if row.attempt > 1:
        parts.append(f"(attempt {row.attempt})")
    if row.waited is not None and row.ran is not None:
        parts.append(f"in {row.ran:.1f} s (waited {row.waited:.1f} s)")
    if row.score is not None:
        parts.append(f"score {row.score:.4f}")
    return " ".join(filter(None, parts))


def _update(row: Row, event: Event) -> None:
    status = str(event["status"])
    if status == "rollback":  # what came before it says how the attempt ended
        return
    row.output = str(event["output"]) if event["output"] else row.output
    row.location = _location(event) or row.location
    if status == RUNNING:
        row.started = _number(event["time"])
    elif status in ENDS:
        row.ended = row.ended or _number(event["time"])
    # an attempt that is recovered from has failed; the next one has a row of its own
    row.status = "failed" if status == "recovery" else status
    if status == "completed":
        row.score = _score(row.output)


def _location(event: Event) -> str:
    names = event["locations"]
    if event["deployment"] is None or not isinstance(names, list):
        return ""
    # a location named after its deployment is told once, and one without a name not at all
    others = [str(n) for n in names if n not in ("__LOCAL__", event["deployment"])]
    parts = [event["deployment"], event["service"], ",".join(others)]
    return "/".join(str(part) for part in parts if part).replace("__LOCAL__", "local")


def _targets(event: Event) -> str:
    targets = event["targets"]
    return " or ".join(map(str, targets)) if isinstance(targets, list) else ""


def _score(output: str | None) -> float | None:
    try:
        content = json.loads(Path(output or "", "cwl.output.json").read_text("utf-8"))
    except (OSError, ValueError):
        return (
            None  # most steps have no score, and the folder may be on another machine
        )
    score = content.get("score") if isinstance(content, dict) else None
    return float(score) if isinstance(score, int | float) else None


def _cells(row: Row) -> tuple[str, ...]:
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
    import yaml  # only a StreamFlow file needs it, and it takes time to import

    try:
        content = yaml.safe_load(file.read_text("utf-8"))
        return Path(content["scheduling"]["scheduler"]["config"]["directory"])
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, KeyError, TypeError):
        return Path(DIRECTORY)


def _columns() -> int:
    return shutil.get_terminal_size().columns


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _integer(value: JSON) -> int:
    return value if isinstance(value, int) else 0

"""The progress of a run as lines, written while it runs or from its journal."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TextIO

from sf_quantum.journal import events
from sf_quantum.journal.events import Event
from sf_quantum.reporting import report
from sf_quantum.reporting.attempts import (
    ENDS,
    LOST,
    REUSED,
    RUNNING,
    SKIPPED,
    AttemptLog,
    JobAttempt,
    Wait,
)
from sf_quantum.text import escaped, plural, rounded

ERASE = "\r\x1b[K"


def progress_lines(run: Iterable[Event]) -> Iterator[str]:
    """Yield a line for each start or end of a job, each decision, and the end of the run.

    Consecutive reused or skipped jobs of a step get a common line.
    """
    attempts = AttemptLog()
    reused: list[JobAttempt] = []
    warned: set[str] = set()
    # StreamFlow may report the end of an attempt several times
    reported: set[tuple[str, int, str]] = set()
    for event in run:
        row = attempts.add(event)
        if isinstance(event, report.Warned) and str(event) not in warned:
            warned.add(str(event))
            yield report.warning(event)
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
            for text in report.failures(attempts.all):
                yield from text.splitlines()
            yield from report.reason(event, attempts.all).splitlines()
            yield from report.candidates(attempts.all)
            yield report.conclusion(event.status, attempts.all)
            return
    yield from _reused(reused)
    yield report.conclusion(LOST, attempts.all)


def _reused(rows: Iterable[JobAttempt]) -> Iterator[str]:
    """Yield one line per step for the jobs that were not run."""
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
        """Write a line of :func:`progress_lines`, which must already be escaped."""
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
    for line in progress_lines(run):
        live.show(escaped(line))


def _change(row: JobAttempt, event: Event) -> str:
    """Return one line on the change of a job by an event; empty for changes not shown."""
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
        case _ if isinstance(event, Wait) and row.state == RUNNING:
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
    """Describe the number of an attempt's QPU jobs, and their QPU seconds, if known."""
    jobs = plural(len(row.qpu_jobs), "QPU job")
    seconds = row.qpu_seconds
    return jobs if seconds is None else f"{jobs} ({rounded(seconds)} s on the QPU)"

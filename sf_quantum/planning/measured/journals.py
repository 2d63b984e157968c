"""Selects the journals of earlier runs to which a plan is fitted, and counts the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum import journal
from sf_quantum.errors import InputError
from sf_quantum.journal import DIRECTORY
from sf_quantum.journal.events import Event, Run

#: maximum number of runs that are used; the latest runs are chosen
LATEST_RUNS = 20
#: larger journals are left out
LARGEST_BYTES = 64_000_000
SUFFIX = ".jsonl"


@dataclass
class EarlierRuns:
    """Completed runs, the latest first.

    :param events: events of each run
    :param left_out: number of journals that were left out, by reason
    """

    events: list[list[Event]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def described_left_out(self) -> str:
        """Return the counts of omitted journals as text; empty if none was omitted."""
        return ", ".join(f"{count} {why}" for why, count in self.left_out.most_common())


def read(paths: Sequence[Path], file: Path | None = None) -> EarlierRuns:
    """Read journals.

    :param paths: journals, or folders whose journals are read
    :param file: resolved path of the StreamFlow file; runs of other files are left out
    :raises InputError: if a path is missing, or names a file that is not a journal
    """
    runs = EarlierRuns()
    for path in _latest_first(paths):
        if len(runs.events) == LATEST_RUNS:
            runs.left_out[f"older than the latest {LATEST_RUNS}"] += 1
            continue
        # a file that the user names must be a journal
        run = _completed_run(path, file, strict=path in paths)
        if isinstance(run, str):
            runs.left_out[run] += 1
        else:
            runs.events.append(run)
    return runs


def _latest_first(paths: Sequence[Path]) -> list[Path]:
    files = {one.resolve(): one for path in paths for one in _files(path)}
    # the names begin with the start time
    return sorted(files.values(), key=lambda one: one.name, reverse=True)


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    folder = path / DIRECTORY
    yield from (folder if folder.is_dir() else path).glob(f"*{SUFFIX}")


def _completed_run(path: Path, file: Path | None, *, strict: bool) -> list[Event] | str:
    """Return the events of a run, or why the run is left out."""
    try:
        size = path.stat().st_size
        if size == 0:
            return "empty"
        if size > LARGEST_BYTES:
            return f"larger than {LARGEST_BYTES // 1_000_000} MB"
        events = journal.read(path)
    except (InputError, OSError) as error:
        if not strict:
            return "not journals"
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: {error.strerror}; expected a journal, or a folder of journals"
        ) from error
    if not events:
        return "empty"
    begin, end = events[0], journal.status(events)
    if file is not None and not (isinstance(begin, Run) and begin.file == str(file)):
        return "of other files"
    if not end:
        return "without an end"
    return events if end == "completed" else "of runs that did not complete"

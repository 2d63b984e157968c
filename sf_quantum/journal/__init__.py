"""The journal of a run: where jobs ran and waited, and which resources they held.

There is one JSON-lines file per run with one event per line, each with ``time`` (epoch
seconds) and ``event``, its kind; the reference of the journal lists the other fields. Only
``events.parse`` and ``Journal.write`` handle JSON: in the program, each kind of event has a
class in ``sf_quantum.journal.events``.

``events`` defines the kinds of events. ``scheduler`` is a scheduler for StreamFlow that writes
the journal: ``run_record`` records jobs, ``steps`` reads the steps of a run, and ``reuse``
records the results of jobs and reuses results of earlier runs (``results`` reads these,
``fingerprints`` digests their dependencies, ``contents`` digests folders). ``feasibility``
finds jobs that no location can run, ``standstill`` ends runs that cannot continue;
``run_failure`` determines why a run has failed, and ``failures`` describes why a job has
failed.

The driver holds a lock on the file, so that a reader can distinguish a run in progress from
an interrupted run without relying on a process id. This module must not import StreamFlow,
so that ``sfq report`` starts fast.

Imports: connectors.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import cannot_read, cannot_write
from sf_quantum.journal.events import (
    DamagedError,
    End,
    Event,
    Job,
    Run,
    RunWarning,
    parse,
)

#: type of the scheduler that writes journals, and the advice to set it in a StreamFlow file
SCHEDULER = "sfq.journal"
ADVICE = f"add scheduling: {{scheduler: {{type: {SCHEDULER}, config: {{}}}}}}"
DIRECTORY = ".streamflow/sfq"
#: the file next to the journals that a resuming run locks while it starts
LOCK = "resume.lock"
POLL_SECONDS = 0.1
#: the variable with which `sfq run --resume` makes the driver resume
RESUME = "SFQ_RESUME"
#: the variable with which `sfq run` passes its process id to the driver
COMMAND = "SFQ_RUN_PID"
#: message in StreamFlow's log before it writes an output of the workflow
WRITING = "WRITING output"
#: suffixes of steps that StreamFlow itself adds; few of these steps get a final status
HOUSEKEEPING = ("-injector", "-collector")

logger = logging.getLogger(__name__)
# StreamFlow's logger
_streamflow = logging.getLogger("streamflow")


class EarlierRun(NamedTuple):
    """An earlier run of the same StreamFlow file.

    :param is_open: whether the run is still in progress, so no other run resumes it
    :param is_resumed: whether the following run reuses results of earlier runs
    """

    path: Path
    events: list[Event]
    is_open: bool
    is_resumed: bool


class Journal:
    """The writer of a journal.

    :param directory: folder of the journals; created if it is missing
    :param resumes: whether the run reuses results of earlier runs of its file
    :raises InputError: if the folder is not writable
    """

    def __init__(self, directory: str | Path, *, resumes: bool = False) -> None:
        self.resumes = resumes
        #: the StreamFlow file of the run
        self.file = Path()
        #: functions that are awaited before the last event, because they may write events
        self.before_end: list[Callable[[], Awaitable[None]]] = []
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self.path, self._file = _create(Path(directory))
        except OSError as error:
            raise _unwritable(error) from error
        self.run = self.path.stem
        self._size = 0
        self._closed = False
        # on file systems without locks, readers wait for the event "end"
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def start(self, file: str, workflows: list[str], versions: dict[str, str]) -> None:
        """Write the first event, and make this the :func:`current` journal."""
        self.file = Path(file)
        self.write(
            Run(
                run=self.run,
                file=file,
                pid=os.getpid(),
                host=socket.gethostname(),
                workflows=workflows,
                versions={**versions},
                resumes=self.resumes,
            )
        )
        _runs.append(self)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    @property
    def log(self) -> Path:
        """The file next to the journal for tracebacks of the run."""
        return self.path.with_suffix(".log")

    @property
    def origin(self) -> str:
        """An id that this run shares with exactly the runs that it resumes."""
        return f"{socket.gethostname()}:{self.first.resolve()}"

    @cached_property
    def first(self) -> Path:
        """The journal of the first run in the series that this run resumes, or its own.

        A run of a StreamFlow file resumes the run before it if this was killed or stopped,
        and with ``resumes`` also if it failed, but not if it completed.
        """
        origin = self.path
        for run in self.predecessors():
            if run.is_open:
                continue
            end = status(run.events)
            if end not in ("", "cancelled") and not (
                run.is_resumed and end == "failed"
            ):
                break
            origin = run.path
        return origin

    def predecessors(self) -> Iterator[EarlierRun]:
        """Yield the runs of :meth:`earlier` whose journals can be read."""
        resumes = self.resumes
        for path in self.earlier():
            with suppress(InputError, OSError):
                run = EarlierRun(path, read(path), is_open(path), resumes)
                yield run
                if not run.is_open:
                    begin = run.events[0]
                    resumes = isinstance(begin, Run) and begin.resumes

    def earlier(self) -> Iterator[Path]:
        """Yield the journals of earlier runs of the same StreamFlow file, latest first."""
        journals = latest_first(self.path.parent, self.file)
        return (path for path in journals if path.name < self.path.name)

    def write(self, event: Event) -> None:
        """Append an event; log a warning if this fails.

        After :meth:`close`, nothing is written.
        """
        if self._closed:
            return
        data = f"{json.dumps(event.to_json())}\n".encode()
        try:
            # a single call, so that readers see only whole lines
            if os.write(self._file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += len(data)
        except OSError as error:
            logger.warning("%s: event lost: %s", self.path, error.strerror)
            with suppress(OSError):  # a partial line would damage the next line
                os.ftruncate(self._file, self._size)

    def close(self) -> None:
        """Close the file: the run has ended."""
        if not self._closed:
            self._closed = True
            with suppress(ValueError):
                _runs.remove(self)
            os.close(self._file)


def _create(directory: Path) -> tuple[Path, int]:
    """Create a file with a unique name from the time and the process id."""
    while True:
        now = time.time()
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
        name = f"{started}.{int(now % 1 * 1000):03}Z-{os.getpid()}.jsonl"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        try:
            return directory / name, os.open(directory / name, flags, 0o644)
        except FileExistsError:
            time.sleep(0.001)  # another run of this process has this millisecond


def _unwritable(error: OSError) -> QuantumError:
    if isinstance(found := cannot_write(Path(error.filename), error), InputError):
        return InputError(
            f"{error.filename}: the journal cannot be written: {error.strerror}; "
            "name a writable folder as the scheduler's `directory`"
        )
    return found


# a connector has no reference to its run; a driver process has one run at a time
_runs: list[Journal] = []


def current() -> Journal | None:
    """Return the journal of the run that this process drives, if any."""
    return _runs[-1] if _runs else None


def warn(text: str) -> None:
    """Write a warning about the run's results, cost or end to the log and the journal."""
    _streamflow.warning(text)
    if (journal := current()) is not None:
        journal.write(RunWarning(text=text))


class Warnings:
    """Warnings of one part of a run, such as a filter; each warning is shown once.

    :param shown: texts or reasons of warnings that have been shown before
    """

    def __init__(self, shown: Iterable[str] = ()) -> None:
        self._shown = {*shown}

    def warn(self, text: str, *, is_recorded: bool = False) -> None:
        """Warn like :func:`warn`, unless the text has been shown.

        :param is_recorded: whether another event of the journal contains the warning, so that
            the warning is only logged
        """
        if self._is_new(text):
            (_streamflow.warning if is_recorded else warn)(text)

    def warn_of(self, reason: str, text: str, level: int = logging.WARNING) -> None:
        """Warn like :func:`warn` if the reason is new; otherwise only log the text.

        :param level: level of the log entry if the reason is not new
        """
        if self._is_new(reason):
            warn(text)
        else:
            _streamflow.log(level, text)

    def _is_new(self, reason: str) -> bool:
        is_new = reason not in self._shown
        self._shown.add(reason)
        return is_new


def read(path: str | Path) -> list[Event]:
    """Return all events of a run in order, without damaged and repeated lines.

    A last line that lacks only its line break is also read.

    :raises InputError: if the file is missing or not a journal
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise cannot_read(path, "a run's journal", error) from error
    *lines, rest = data.split(b"\n")
    events = [*_events(path, [*lines, rest] if _is_whole(rest) else lines)]
    if not events:
        raise _no_journal(path)
    return events


def status(events: Iterable[Event]) -> str:
    """Return the final status of a run; empty if the run has not ended or was killed."""
    ends = [event.status for event in events if isinstance(event, End)]
    return ends[-1] if ends else ""


def follow(path: str | Path) -> Iterator[Event]:
    """Yield the events as they are written, until the end of the run or of its driver.

    :raises InputError: if the file is missing or not a journal
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, after the last event
    except OSError as error:
        raise cannot_read(path, "a run's journal", error) from error
    with file:
        for event in _events(path, _followed(path, file)):
            yield event
            if isinstance(event, End):
                return


def _followed(path: str | Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a journal as they are written, until the end of its driver."""
    rest, begun, locked = b"", False, False
    while True:
        alive = is_open(path)  # checked before the read, so that no event is missed
        while (part := file.readline()).endswith(b"\n"):
            yield (rest + part).removesuffix(b"\n")
            rest, begun = b"", True
        rest += part
        if not alive and (begun or locked):
            if _is_whole(rest):
                yield rest
            return
        locked = True  # the driver has locked even a new file by the end of the pause
        time.sleep(POLL_SECONDS)


def is_open(path: str | Path) -> bool:
    """Return whether the driver that writes a journal is alive; always true without locks."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@contextmanager
def resuming(directory: Path, file: Path) -> Iterator[None]:
    """Lock a file's journals while a run starts to resume; others wait or are rejected.

    :param directory: folder of the journals; created if it is missing
    :param file: the StreamFlow file, resolved
    :raises InputError: if a run of the file is still running, or the folder is not
        writable
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # The file is opened for writing, since NFS would not lock it otherwise.
        lock = os.open(directory / LOCK, os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritable(error) from error
    try:
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        refuse_ongoing(directory, file)
        yield
    finally:
        os.close(lock)


def refuse_ongoing(directory: str | Path, file: Path) -> None:
    """Reject a resumption while a run of the same StreamFlow file is still running.

    :param directory: folder of the journals
    :param file: the StreamFlow file, resolved
    :raises InputError: if a run of the file is still running
    """
    for path in latest_first(Path(directory), file):
        if is_open(path):
            raise InputError(
                f"{file}: its run {path.stem} goes on; resume it when it has ended"
            )


def newest(directory: str | Path, file: Path | None = None) -> Path | None:
    """Return the journal of the latest run.

    :param directory: folder of the journals
    :param file: consider only runs of this StreamFlow file, resolved
    """
    return next(latest_first(Path(directory), file), None)


def latest_first(directory: Path, file: Path | None) -> Iterator[Path]:
    """Yield the journals in a folder, or only of one StreamFlow file, latest first."""
    # the names begin with the start time
    paths = sorted(directory.glob("*.jsonl"), reverse=True)
    return (path for path in paths if file is None or _is_of(path, file))


def elsewhere(directory: str | Path, file: Path) -> str:
    """Return a hint for a message if a folder only has journals of other files.

    Runs and results belong to the path of their file, so a StreamFlow file that was moved or
    copied has none. The hint is empty if the folder has no journal.
    """
    files = map(_file, latest_first(Path(directory), None))
    other = next(filter(None, files), None)
    if other is None:
        return ""
    moved = (
        " (was its folder moved or copied?)" if Path(other).name == file.name else ""
    )
    return f", only of {other}{moved}"


def _is_of(path: Path, file: Path) -> bool:
    return _file(path) == str(file)


def _file(path: Path) -> str | None:
    """Return the StreamFlow file of a journal's run; None if the path is not a journal."""
    try:
        with open(path, "rb") as journal:
            line = journal.readline()
        event = _event(path, 1, line)
    except (InputError, OSError):
        return None
    return event.file if isinstance(event, Run) else None


def await_new(
    directory: str | Path, pid: int, existing: set[Path], alive: Callable[[], bool]
) -> Path | None:
    """Wait for the journal of a run that is about to start.

    :param pid: process id of the driver
    :param existing: journals that already existed before the start
    :param alive: function that returns whether the driver is alive
    :returns: None if the driver ended without a journal
    """
    while True:
        running = alive()  # checked before the search, so that no journal is missed
        new = set(Path(directory).glob(f"*-{pid}.jsonl")) - existing
        if new or not running:
            return max(new, default=None)
        time.sleep(POLL_SECONDS)


def read_on(path: str | Path, offset: int) -> tuple[list[Event], int]:
    """Return the events after a position in the journal of a run in progress.

    :param offset: number of bytes that have been read
    :returns: the events, and the position after the last whole line
    :raises OSError: if the file cannot be read
    """
    with open(path, "rb") as file:
        file.seek(offset)
        lines = file.read().split(b"\n")[:-1]
    # the line number at an offset is unknown
    parsed = (_event(path, None, line) for line in lines)
    events = [event for event in parsed if event is not None]
    return events, offset + sum(len(line) + 1 for line in lines)


def _is_whole(rest: bytes) -> bool:
    """Return whether the last line lacks only its line break, as after a copy or an edit."""
    try:
        parse(rest)
    except DamagedError:
        return False
    return True


def _events(path: str | Path, lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of the lines of a journal, without repeated lines.

    Every event has its own time, so equal lines are copies.
    """
    seen: set[bytes] = set()
    repeats = False
    for at, line in enumerate(lines, start=1):
        event = _event(path, at, line)
        if event is None:
            continue
        if line not in seen:
            seen.add(line)
            yield event
        elif not repeats:
            repeats = True
            text = "%s, line %d: repeats an earlier line; such lines are left out"
            logger.warning(text, path, at)


def _event(path: str | Path, line_number: int | None, line: bytes) -> Event | None:
    """Return the event of a line; ``None``, with a warning, for a damaged line.

    :raises InputError: if the first line shows that the file is not a journal
    """
    event = None
    try:
        event = parse(line)
        kind, why = type(event), ""
    except DamagedError as error:
        kind, why = error.kind, str(error)
    # if the disk was full, the event of the run may be missing
    if line_number == 1 and kind not in (Run, Job):
        raise _no_journal(path)
    if event is None:
        where = "" if line_number is None else f", line {line_number}"
        logger.warning("%s%s: %s; the line is left out", path, where, why)
    return event


def _no_journal(path: str | Path) -> InputError:
    return InputError(
        f"{path}, line 1: not an event of a run's journal; "
        "name a file written by the scheduler sfq.journal"
    )

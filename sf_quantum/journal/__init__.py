"""The journal of a run: where jobs ran and waited, and what they held.

There is one JSON-lines file per run with one event per line, each with ``time`` (epoch
seconds) and ``event``, its kind; the reference of the journal lists the other fields. Only
``events.parse`` and ``Journal.write`` handle JSON: inside, an event is an object of the class
of its kind in ``sf_quantum.journal.events``.

``events`` defines the kinds of events. ``scheduler`` is a scheduler for StreamFlow that writes
the journal: ``run_record`` records jobs, ``steps`` reads the steps of a run, and ``reuse``
records the results of jobs and reuses results of earlier runs (``results`` reads these,
``fingerprints`` digests what they depend on, ``contents`` digests folders). ``feasibility``
finds jobs that can run nowhere, ``standstill`` ends runs that cannot continue; ``run_failure``
determines why a run has failed, and ``failures`` describes why a job has failed.

The driver holds a lock on the file, so that a reader can distinguish a run in progress from
an interrupted one without relying on a process id. This module must not import StreamFlow,
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

#: the scheduler that writes journals, and the advice to select it in a StreamFlow file
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
#: StreamFlow's message in its log before it writes an output of the workflow
WRITING = "WRITING output"
#: suffixes of the steps that StreamFlow adds; few of these get a final status
HOUSEKEEPING = ("-injector", "-collector")

logger = logging.getLogger(__name__)
# StreamFlow's logger
_streamflow = logging.getLogger("streamflow")


class EarlierRun(NamedTuple):
    """An earlier run of the same StreamFlow file.

    :param is_open: whether the run is still in progress, so no other run resumes it
    :param is_resumed: whether the run after it reuses results of earlier runs
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
        # without file locks, readers wait for "end"
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
        """The journal of the first run that this one resumes, or its own journal.

        The next run of a StreamFlow file resumes a run that was killed or stopped, and with
        ``resumes`` also a run that failed, but not a run that completed.
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
        """The runs of :meth:`earlier` whose journals can be read."""
        resumes = self.resumes
        for path in self.earlier():
            with suppress(InputError, OSError):
                run = EarlierRun(path, read(path), is_open(path), resumes)
                yield run
                if not run.is_open:
                    begin = run.events[0]
                    resumes = isinstance(begin, Run) and begin.resumes

    def earlier(self) -> Iterator[Path]:
        """The journals of earlier runs of the same StreamFlow file, the latest first."""
        journals = latest_first(self.path.parent, self.file)
        return (path for path in journals if path.name < self.path.name)

    def write(self, event: Event) -> None:
        """Append an event.

        If this fails, a warning is logged. After :meth:`close`, nothing is written.
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
            with suppress(OSError):  # a partial line would damage the next one
                os.ftruncate(self._file, self._size)

    def close(self) -> None:
        """Close the file: the run has ended."""
        if not self._closed:
            self._closed = True
            with suppress(ValueError):
                _runs.remove(self)
            os.close(self._file)


def _create(directory: Path) -> tuple[Path, int]:
    """Create a file named after the time and the process, which may drive several runs."""
    while True:
        now = time.time()
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
        name = f"{started}.{int(now % 1 * 1000):03}Z-{os.getpid()}.jsonl"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        try:
            return directory / name, os.open(directory / name, flags, 0o644)
        except FileExistsError:
            time.sleep(0.001)  # another run of this process began in this millisecond


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
    """The journal of the run that this process drives, if it has one."""
    return _runs[-1] if _runs else None


def warn(text: str) -> None:
    """Write a warning about the run's results, cost or end to its log and its journal."""
    _streamflow.warning(text)
    if (journal := current()) is not None:
        journal.write(RunWarning(text=text))


class Warnings:
    """Warnings of one part of a run, such as a filter; the run shows each once.

    :param shown: texts or reasons of warnings that need not be shown again
    """

    def __init__(self, shown: Iterable[str] = ()) -> None:
        self._shown = {*shown}

    def warn(self, text: str, *, is_recorded: bool = False) -> None:
        """Warn like :func:`warn`, unless the text has been shown.

        :param is_recorded: whether another event of the journal contains the warning, so it
            is only logged
        """
        if self._is_new(text):
            (_streamflow.warning if is_recorded else warn)(text)

    def warn_of(self, reason: str, text: str, level: int = logging.WARNING) -> None:
        """Warn like :func:`warn` if the reason is new; else only log the text.

        :param level: the level in the log if the reason is not new
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
    """All events of a run in order, without lines that are damaged or repeated.

    A last line that lacks only its line break is read.

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
    """The final status of a run; empty if it has not ended, or was killed."""
    ends = [event.status for event in events if isinstance(event, End)]
    return ends[-1] if ends else ""


def follow(path: str | Path) -> Iterator[Event]:
    """The events as they are written, until the end of the run or of its driver.

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
    """The lines of a journal as they are written, until the end of its driver."""
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
        locked = True  # a file that was just created is locked after the pause
        time.sleep(POLL_SECONDS)


def is_open(path: str | Path) -> bool:
    """Whether the driver that writes a journal is alive; always true without locks."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@contextmanager
def resuming(directory: Path, file: Path) -> Iterator[None]:
    """Start to resume a run; during the block, no other run of the file can resume.

    :param directory: folder of the journals; created if it is missing
    :param file: the StreamFlow file, resolved
    :raises InputError: if a run of the file is still running, or the folder is not
        writable
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # The file is opened for writing: NFS would not lock it otherwise.
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
    """Refuse to resume while a run of the same StreamFlow file is still running.

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
    """The journals in a folder, or only those of one StreamFlow file; see :func:`newest`."""
    # the names begin with the start time
    paths = sorted(directory.glob("*.jsonl"), reverse=True)
    return (path for path in paths if file is None or _is_of(path, file))


def elsewhere(directory: str | Path, file: Path) -> str:
    """Say whose runs a folder of journals has if it has none of ``file``, for a message.

    Runs and results belong to the path of their file: a folder that was moved or copied has
    none. Empty if there is no journal.
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
    """The StreamFlow file of a journal's run; None if the path is not a journal."""
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
    :param existing: the journals that existed before
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
    """The events after a position in the journal of a run in progress.

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
    """Whether the last line lacks only its line break, as after a copy or an edit."""
    try:
        parse(rest)
    except DamagedError:
        return False
    return True


def _events(path: str | Path, lines: Iterable[bytes]) -> Iterator[Event]:
    """The events of the lines of a journal; of equal lines, only the first.

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
    """The event of a line; ``None`` for a damaged line, after a warning.

    :raises InputError: if it is the first line of a file that is not a journal
    """
    event = None
    try:
        event = parse(line)
        kind, why = type(event), ""
    except DamagedError as error:
        kind, why = error.kind, str(error)
    # after a full disk, the event of the run may be missing
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

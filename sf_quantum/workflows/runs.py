"""Runs of StreamFlow files: each by a StreamFlow in a process of its own."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TypeAlias

from sf_quantum import journal
from sf_quantum.errors import InputError, QuantumError
from sf_quantum.reporting import report
from sf_quantum.reporting.runs import Report, Run
from sf_quantum.text import escaped
from sf_quantum.workflows.checks import refuse_problems

LOG = "streamflow.log"
KEPT_LOGS = 9
OUTDIR = Path("results")
# how a run without a last event, or with one, has ended
_ENDS = {"": "was killed", "cancelled": "was stopped"}
# lines of StreamFlow's own message, if a run has not begun
_LAST_LINES = 5
_PR_SET_PDEATHSIG = 1  # prctl(2)
#: gets each line about the progress of a run; characters that a terminal acts on are escaped
Progress: TypeAlias = Callable[[str], None]


class RunFailed(QuantumError):
    """A run that has not completed, or not begun.

    :param lines: the reasons
    :param run: its journal; ``None`` if it has not begun
    """

    def __init__(self, lines: list[str], run: Run | None = None) -> None:
        super().__init__(" ".join(line.strip() for line in lines))
        self.lines = lines
        self.run = run


def run(
    file: str | Path,
    *,
    outdir: str | Path = OUTDIR,
    resume: bool = False,
    progress: Progress = lambda line: None,
    debug: bool = False,
) -> Run:
    """Check a StreamFlow file, and run it to its end.

    Interrupted, by Ctrl-C or a notebook's "interrupt", the run ends: its steps and QPU jobs
    are cancelled. It also ends with this process.

    :param outdir: folder of the outputs and of StreamFlow's log, ``streamflow.log``; the logs
        of the nine runs before it are kept as ``streamflow.log.1`` and so on
    :param resume: reuse what earlier runs of the file have completed, where nothing that it
        depends on has changed
    :param progress: called with a line whenever a job waits, starts or ends, such as ``print``
    :param debug: StreamFlow logs what it does in detail
    :raises InputError: if the file has a problem, or its runs no journal, or if the run to
        resume goes on; nothing has run then
    :raises RunFailed: if the run does not complete
    """
    file, outdir = Path(file), Path(outdir)
    for qpu, why in refuse_problems(file).silent.items():
        progress(escaped(f"{qpu} {why}"))
    journals = report.journals_of(file)
    environment = dict(os.environ)
    if resume:
        progress(escaped(_resumed(file, journals)))
        environment[journal.RESUME] = "1"
    log = outdir / LOG
    try:
        outdir.mkdir(parents=True, exist_ok=True)
        RotatingFileHandler(log, backupCount=KEPT_LOGS, delay=True).doRollover()
        output = log.open("wb")
    except OSError as error:
        raise _unwritable(outdir, error.strerror) from error
    known = set(journals.glob("*.jsonl"))
    with output:
        driver = subprocess.Popen(
            _command(file, outdir, debug),
            stdout=output,
            stderr=output,
            env=environment,
            # Ctrl-C reaches this process alone, which passes it on once
            process_group=0,
            preexec_fn=_ends_with_parent(),
        )
    try:
        path = journal.await_new(
            journals, driver.pid, known, lambda: driver.poll() is None
        )
        if path is not None:
            for line in report.progress(journal.follow(path)):
                progress(escaped(line))
        driver.wait()
    except BaseException:
        driver.send_signal(signal.SIGINT)
        with suppress(Exception):  # it may be the reason
            progress("interrupted: the steps and their QPU jobs are cancelled")
        _await_end(driver)
        raise
    if path is None:
        if resume:  # another one may have begun since
            journal.refuse_ongoing(journals, file.resolve())
        # before the first step: the end of StreamFlow's own message
        lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        lines.append(f"the run has not begun; log: {log}")
        raise RunFailed([*map(escaped, lines)])
    done = Run(path)
    if lines := _reasons(driver.returncode, done.report()):
        raise RunFailed(lines, done)
    return done


def refuse_unwritable(outdir: Path) -> None:
    """Refuse a folder of outputs that a run could not create or write to.

    :raises InputError: if it could not
    """
    places = (outdir, *outdir.absolute().parents)
    try:
        there = next(path for path in places if path.exists())
    except OSError as error:
        raise _unwritable(outdir, error.strerror) from error
    if not there.is_dir():
        raise _unwritable(outdir, os.strerror(errno.ENOTDIR))
    if not os.access(there, os.W_OK | os.X_OK):
        raise _unwritable(outdir, os.strerror(errno.EACCES))


def _unwritable(outdir: Path, why: str | None) -> InputError:
    return InputError(f"{outdir}: cannot be written: {why}; name an --outdir")


def _reasons(exit_code: int, told: Report) -> list[str]:
    """Why a run has not completed, if it has not; the progress has the failures already.

    A journal that a full disk has cut short has no end.
    """
    if exit_code == 0 and told.status != "failed":
        return []
    lines = [line for one in told.failures for line in one.splitlines()]
    return [*map(escaped, lines or [f"run {told.status}"])]


def _resumed(file: Path, journals: Path) -> str:
    """Say in one line which run is resumed.

    :raises InputError: if it goes on
    """
    path = journal.newest(journals, file.resolve())
    if path is None:
        return f"nothing to resume: no run of {file} is recorded, so it runs as a whole"
    journal.refuse_ongoing(journals, file.resolve())
    end = journal.status(journal.read(path))
    if end == "completed":
        return (
            f"nothing to resume: run {path.stem} completed; "
            "only what has changed since runs again"
        )
    return f"resuming run {path.stem}, which {_ENDS.get(end, end)}"


def _command(file: Path, outdir: Path, debug: bool) -> list[str | Path]:
    # of this installation, whatever is on the PATH
    streamflow = Path(sys.executable).with_name("streamflow")
    options = ["--debug"] if debug else []
    return [streamflow, "run", file, "--outdir", outdir, *options]


def _await_end(driver: subprocess.Popen[bytes]) -> None:
    """Wait for a driver that was stopped, also if the user is impatient."""
    while driver.returncode is None:
        with suppress(KeyboardInterrupt):
            driver.wait()


def _ends_with_parent() -> Callable[[], None]:
    """A child's hook: it is stopped as by Ctrl-C if its parent is killed."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()
    number = ctypes.c_ulong(signal.SIGINT)

    def bind() -> None:
        # a shell ignores it for what it runs in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it has been killed already
            os.kill(os.getpid(), signal.SIGINT)

    return bind

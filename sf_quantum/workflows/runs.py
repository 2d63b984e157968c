"""Runs of StreamFlow files: each in a separate process of StreamFlow."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TypeAlias

from sf_quantum import journal
from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import exists
from sf_quantum.journal.events import End
from sf_quantum.journal.failures import remedy
from sf_quantum.reporting import attempts, outputs, report
from sf_quantum.reporting.progress import progress_lines
from sf_quantum.reporting.runs import Report, Run
from sf_quantum.text import escaped
from sf_quantum.workflows.driver import begun
from sf_quantum.workflows.locks import refuse_sharing

# StreamFlow's log in the folder of outputs, and the number of previous logs that are kept
LOG = "streamflow.log"
KEPT_LOGS = 9
OUTDIR = Path("results")
# A message in StreamFlow's log: its level, and its text up to the next message.
_MESSAGE = re.compile(
    r"^\d{4}-\d\d-\d\d [\d:.,]+ (\w+) +(.*?)(?=^\d{4}-\d\d-\d\d [\d:.,]+ |\Z)",
    re.DOTALL | re.MULTILINE,
)
# Longest line that is shown on a terminal.
_LINE_CHARACTERS = 1000
# StreamFlow's last message in the log of a failed run
FAILED = "FAILED Workflow execution"
# number of characters at the end of a log that are searched for the reason of a failure
_LOG_CHARACTERS = 100_000
#: function that is called with each line about the progress of a run; control characters are
#: escaped
Progress: TypeAlias = Callable[[str], None]


class RunFailed(QuantumError):
    """A run has not completed, or has not begun.

    :param lines: lines with the reasons
    :param run: the run as its journal shows it; ``None`` if the run has not begun
    """

    def __init__(self, lines: list[str], run: Run | None = None) -> None:
        super().__init__(" ".join(line.strip() for line in lines))
        self._lines = lines
        self.run = run

    @property
    def lines(self) -> list[str]:
        return self._lines


def run(
    file: str | Path,
    *,
    outdir: str | Path = OUTDIR,
    resume: bool = False,
    progress: Progress = lambda line: None,
    debug: bool = False,
) -> Run:
    """Check a StreamFlow file, and run it to its end.

    Ctrl-C, or a notebook's "interrupt", ends the run, and cancels its steps and QPU jobs. The
    run also ends if this process ends.

    :param outdir: folder of the outputs and of StreamFlow's log, ``streamflow.log``; the logs
        of the previous nine runs are kept as ``streamflow.log.1`` and so on
    :param resume: whether to reuse results of earlier runs of the file, unless anything on
        which the results depend has changed
    :param progress: function, such as ``print``, that is called with a line when the check
        begins, and whenever a job waits, starts or ends
    :param debug: whether StreamFlow logs details
    :raises InputError: before any step runs, if the file has a problem, its runs write no
        journal, the run to resume is still running, the folder cannot be written, or another
        run uses the folder or the database
    :raises RunFailed: if the run does not complete
    """
    file, outdir = Path(file), Path(outdir)
    log, environment = outdir / LOG, {}
    with ExitStack() as stack:
        driver = begun()
        try:
            progress(escaped(f"checking  {file}"))
            for line in driver.check(file).warnings():
                progress(escaped(line))
            journals = report.journals_of(file)
            if resume:
                progress(escaped(_resume_line(file, journals)))
                environment[journal.RESUME] = "1"
            environment[journal.COMMAND] = str(os.getpid())
            locks = stack.enter_context(refuse_sharing(file, outdir))
            _make_log(outdir)
        except BaseException:
            driver.dismiss()
            raise
        path, existing = None, set(journals.glob("*.jsonl"))
        process = driver.process
        options = ["--debug"] if debug else []
        arguments = ["run", str(file), "--outdir", str(outdir), *options]
        try:
            driver.begin(arguments, environment, log, locks)
            path = journal.await_new(
                journals, process.pid, existing, lambda: process.poll() is None
            )
            if path is not None:
                for text in progress_lines(journal.follow(path)):
                    progress(escaped(text))
            process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            with suppress(Exception):  # progress() may have raised the error
                _report_interrupt(path, progress)
            _await_end(process)
            raise
    if path is None:
        if resume:  # another run may have begun since the check above
            journal.refuse_ongoing(journals, file.resolve())
        raise _failure_before_begin(process.returncode, log)
    _report_left_over(log, progress)
    done = Run(path)
    if lines := _reasons(process.returncode, done.report(), log, progress):
        raise RunFailed(lines, done)
    return done


def _failure_before_begin(exit_code: int, log: Path) -> RunFailed:
    lines = [_last_error(exit_code, log)]
    if hint := remedy(None, lines[0], "this machine"):
        lines.append(f"remedy: {hint}")
    lines.append(f"the run has not begun; log: {log}")
    return RunFailed([*map(escaped, lines)])


def _report_left_over(log: Path, progress: Progress) -> None:
    if left := outputs.left_over(log):
        progress(escaped(left))


def _make_log(outdir: Path) -> None:
    """Make the folder of the outputs with an empty log, and keep the previous logs."""
    log = outdir / LOG
    try:
        outdir.mkdir(parents=True, exist_ok=True)
        RotatingFileHandler(log, backupCount=KEPT_LOGS, delay=True).doRollover()
        log.write_bytes(b"")
    except OSError as error:
        raise _unwritable(outdir, error.strerror) from error


def refuse_unwritable(outdir: Path) -> None:
    """Check that a run could create the folder of outputs, or write to it.

    :raises InputError: if a run could not do so
    """
    places = (outdir, *outdir.absolute().parents)
    try:
        existing = next(path for path in places if exists(path))
    except OSError as error:
        raise _unwritable(outdir, error.strerror) from error
    if not existing.is_dir():
        raise _unwritable(outdir, os.strerror(errno.ENOTDIR))
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _unwritable(outdir, os.strerror(errno.EACCES))


def _unwritable(outdir: Path, why: str | None) -> InputError:
    return InputError(f"{outdir}: cannot be written: {why}; name an --outdir")


def _reasons(
    exit_code: int, report: Report, log: Path, progress: Progress
) -> list[str]:
    """Return why a run has not completed; empty if it has completed.

    :param progress: function that is called with the reason if the journal lacks it
    """
    if exit_code == 0 and report.status != "failed":
        return []
    lines = [line for failure in report.failures for line in failure.splitlines()]
    if not lines and report.status != "cancelled":
        lines = [_last_error(exit_code, log)]
        progress(escaped(lines[0]))
    return [*map(escaped, lines or [f"run {report.status}"])]


def _last_error(exit_code: int, log: Path) -> str:
    """Return one line with the signal or the last error that ended a driver.

    :param exit_code: the driver's exit code; the negative number of a signal that ended it
    """
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        memory = ", as the system does when memory runs out" if exit_code == -9 else ""
        return f"StreamFlow was ended by {name}{memory}"
    text = log.read_text(errors="replace")[-_LOG_CHARACTERS:]
    errors = [
        message
        for level, message in _MESSAGE.findall(text)
        if level in ("ERROR", "CRITICAL") and not message.startswith(FAILED)
    ]
    lines = [
        raw_line.strip()
        for raw_line in (errors or [text])[-1].splitlines()
        if raw_line.strip()
    ]
    if errors and not any(line.startswith("Traceback") for line in lines):
        return " ".join(lines)[:_LINE_CHARACTERS]
    why = lines[-1] if lines else "no reason given"
    return f"StreamFlow ended with exit code {exit_code}: {why[:_LINE_CHARACTERS]}"


def _resume_line(file: Path, journals: Path) -> str:
    """Return a line with the run to resume, or with the reason why there is none.

    :raises InputError: if the run to resume is still running
    """
    path = journal.newest(journals, file.resolve())
    if path is None:
        where = f"{journals} has no run of {file}"
        others = journal.elsewhere(journals, file.resolve())
        return f"nothing to resume: {where}{others}; it runs as a whole"
    journal.refuse_ongoing(journals, file.resolve())
    events = journal.read(path)
    end = journal.status(events)
    if end == "completed":
        return (
            f"nothing to resume: run {path.stem} completed; its valid results are reused, "
            "`again` says why a job runs again, and a budget includes what was spent"
        )
    last = events[-1]
    why = (isinstance(last, End) and last.reason) or ""
    words = report.WORDS.get(end or attempts.LOST, end)
    return f"resuming run {path.stem}, which {words}{f': {why}' if why else ''}"


def _report_interrupt(path: Path | None, progress: Progress) -> None:
    """Report that steps are cancelled, unless the journal shows that the run has ended."""
    if path is None or not journal.status(journal.read(path)):
        progress("interrupted: the steps and their QPU jobs are cancelled")


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait until an interrupted driver ends, even if the user interrupts again."""
    while process.returncode is None:
        with suppress(KeyboardInterrupt):
            process.wait()

"""Shortening of the engine's errors on the terminal, and a log for their tracebacks."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary

from streamflow.core.exception import (
    UnrecoverableWorkflowException,
    WorkflowException,
)
from streamflow.core.workflow import Job, Step
from streamflow.log_handler import logger

from sf_quantum.journal.failures import message_lines, without_script

# Number of latest errors that are remembered: StreamFlow logs an error in several places, with
# other errors in between.
REMEMBERED = 64


# the engine's message that a run has failed, which states neither reason nor place
FAILED = "FAILED Workflow execution"


@dataclass(frozen=True)
class StepError:
    """An error in a step of the engine, which has several steps for each step in CWL.

    :param job: name of the job in which the error occurred; empty outside of jobs
    """

    step: str
    job: str
    message: str


class OneLineException(UnrecoverableWorkflowException):
    """An error whose message is sufficient for the user, without a traceback."""


class TracebackFilter(logging.Filter):
    """Shortens the errors that StreamFlow logs, except with ``--debug``.

    An expected failure, or a :class:`OneLineException`, becomes one line. In a run with the
    scheduler ``sfq.journal``, any other error is reduced to its message, and its traceback is
    written to the file :attr:`log`.
    """

    def __init__(self) -> None:
        super().__init__()
        #: whether errors are reduced to their messages
        self.shortens = False
        #: the file for tracebacks, once a job has begun
        self.log: Path | None = None
        #: text that replaces StreamFlow's message that a run has failed
        self.conclusion = ""
        #: the errors of the engine's steps so far, in order
        self.step_errors: dict[StepError, None] = {}
        self._summaries: dict[str, tuple[int, str]] = {}
        self._reported: set[str] = set()
        self._seen_errors: deque[BaseException] = deque(maxlen=REMEMBERED)
        self._latest_messages: WeakKeyDictionary[asyncio.Task[object], str] = (
            WeakKeyDictionary()
        )

    def expect(self, level: int, job: str, summary: str) -> None:
        """Set the summary that replaces the next log message about a job's failure."""
        self._summaries[job] = (level, summary)

    def forget(self, job: str) -> None:
        """Forget the errors of a job that is attempted again."""
        for error in [
            step_error for step_error in self.step_errors if step_error.job == job
        ]:
            del self.step_errors[error]

    def latest(self) -> str:
        """Return the message of the latest error that the current task has logged."""
        task = asyncio.current_task()
        return self._latest_messages.get(task, "") if task is not None else ""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None and isinstance(record.msg, BaseException):
            error = record.msg
        if error is not None:
            self._remember(error)
        if logger.isEnabledFor(logging.DEBUG):
            return True
        job = next(
            (job for job in self._summaries if _contains_name(str(error), job)), None
        )
        if job is not None and record.exc_info and isinstance(error, WorkflowException):
            record.levelno, record.msg = self._summaries.pop(job)
            record.levelname = logging.getLevelName(record.levelno)
        elif isinstance(error, OneLineException):
            record.msg = str(error)
            if record.msg in self._reported:
                return False
            self._reported.add(record.msg)
        elif error is None or not self.shortens:
            return True
        elif not self._shorten(record, error):
            return False
        record.args = record.exc_info = record.exc_text = None
        return True

    def _remember(self, error: BaseException) -> None:
        """Keep the message of an error, both by task and by step."""
        with suppress(RuntimeError):  # outside of an event loop
            if (task := asyncio.current_task()) is not None:
                self._latest_messages[task] = _message(error)
        step = None if isinstance(error, asyncio.CancelledError) else _locate(error)
        if step is not None:
            self.step_errors[step] = None

    def _shorten(self, record: logging.LogRecord, error: BaseException) -> bool:
        """Reduce an error to its message; return whether the message should be shown."""
        if any(error is seen for seen in self._seen_errors):
            return False
        self._seen_errors.append(error)
        if self.log is not None:
            with suppress(OSError), self.log.open("a", encoding="utf-8") as file:
                file.write("".join(traceback.format_exception(error)))
        if str(error) == FAILED and self.conclusion:
            record.msg, self.conclusion = self.conclusion, ""
            return True
        record.msg = message_lines(_message(error))
        return not isinstance(error, asyncio.CancelledError)


def _message(error: BaseException) -> str:
    """Return the message of an error; if it is empty, the message of its cause."""
    cause = str(error.__cause__ or "")
    return without_script(str(error) or cause or type(error).__name__)


def _locate(error: BaseException) -> StepError | None:
    """Return the step and the job in which an error was raised; ``None`` outside of steps."""
    step, job = "", ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner, subject = frame.f_locals.get("self"), frame.f_locals.get("job")
        if not step and isinstance(owner, Step):
            step = owner.name
        if not job and isinstance(subject, Job):
            job = subject.name
    return StepError(step, job, _message(error)) if step else None


def _contains_name(text: str, job: str) -> bool:
    """Return whether a text contains the name of a job, and not only within a longer name."""
    return re.search(rf"(?<![\w/.-]){re.escape(job)}(?![\w/-]|\.\w)", text) is not None


@cache
def traceback_filter() -> TracebackFilter:
    """Return the filter of this process; the first call adds it to StreamFlow's logger.

    The filter is also added to asyncio's logger, for errors of tasks that StreamFlow leaves
    behind when a run fails.
    """
    instance = TracebackFilter()
    for filtered in (logger, logging.getLogger("asyncio")):
        filtered.addFilter(instance)
    return instance

"""Errors on the terminal in a few lines, and the engine's tracebacks in a log."""

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

# StreamFlow logs an error at several places, with other errors in between
REMEMBERED = 64


# the engine's report that a run has failed, which says neither why nor where
FAILED = "FAILED Workflow execution"


@dataclass(frozen=True)
class StepError:
    """An error of a step of the engine, which has several steps for each step of CWL.

    :param job: the job in which the error occurred; empty outside of jobs
    """

    step: str
    job: str
    message: str


class OneLineException(UnrecoverableWorkflowException):
    """An error whose message says all that a user needs."""


class TracebackFilter(logging.Filter):
    """Shortens the errors that StreamFlow logs, except with ``--debug``.

    An expected failure, or a :class:`OneLineException`, becomes one line. In a run of
    ``sfq.journal``, any other error is reduced to its message, and its traceback is written
    to the file :attr:`log`.
    """

    def __init__(self) -> None:
        super().__init__()
        #: whether errors are reduced to their messages
        self.shortens = False
        #: the file for tracebacks, once a job has begun
        self.log: Path | None = None
        #: text that replaces StreamFlow's report that a run has failed
        self.conclusion = ""
        #: the errors of the engine's steps so far, in order
        self.step_errors: dict[StepError, None] = {}
        self._summaries: dict[str, tuple[int, str]] = {}
        self._reported: set[str] = set()
        self._seen: deque[BaseException] = deque(maxlen=REMEMBERED)
        self._latest: WeakKeyDictionary[asyncio.Task[object], str] = WeakKeyDictionary()

    def expect(self, level: int, job: str, summary: str) -> None:
        """Set the summary that replaces the next report of a job's failure."""
        self._summaries[job] = (level, summary)

    def forget(self, job: str) -> None:
        """Forget the errors of a job, which is attempted again."""
        for error in [one for one in self.step_errors if one.job == job]:
            del self.step_errors[error]

    def latest(self) -> str:
        """The message of the latest error that the current task has logged."""
        task = asyncio.current_task()
        return self._latest.get(task, "") if task is not None else ""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None and isinstance(record.msg, BaseException):
            error = record.msg
        if error is not None:
            self._remember(error)
        if logger.isEnabledFor(logging.DEBUG):
            return True
        job = next((job for job in self._summaries if _names(str(error), job)), None)
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
        """Keep the message of an error, by its task and by its step."""
        with suppress(RuntimeError):  # outside of an event loop
            if (task := asyncio.current_task()) is not None:
                self._latest[task] = _message(error)
        step = None if isinstance(error, asyncio.CancelledError) else _located(error)
        if step is not None:
            self.step_errors[step] = None

    def _shorten(self, record: logging.LogRecord, error: BaseException) -> bool:
        """Reduce an error to its message, and return whether it is to be shown."""
        if any(error is one for one in self._seen):
            return False
        self._seen.append(error)
        if self.log is not None:
            with suppress(OSError), self.log.open("a", encoding="utf-8") as file:
                file.write("".join(traceback.format_exception(error)))
        if str(error) == FAILED and self.conclusion:
            record.msg, self.conclusion = self.conclusion, ""
            return True
        record.msg = message_lines(_message(error))
        return not isinstance(error, asyncio.CancelledError)


def _message(error: BaseException) -> str:
    """The message of an error, or else of its cause."""
    cause = str(error.__cause__ or "")
    return without_script(str(error) or cause or type(error).__name__)


def _located(error: BaseException) -> StepError | None:
    """The step and the job in which an error was raised; ``None`` outside of steps."""
    step, job = "", ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner, subject = frame.f_locals.get("self"), frame.f_locals.get("job")
        if not step and isinstance(owner, Step):
            step = owner.name
        if not job and isinstance(subject, Job):
            job = subject.name
    return StepError(step, job, _message(error)) if step else None


def _names(text: str, job: str) -> bool:
    """Whether a text contains the name of a job, not as part of a longer name."""
    return re.search(rf"(?<![\w/.-]){re.escape(job)}(?![\w/-]|\.\w)", text) is not None


@cache
def traceback_filter() -> TracebackFilter:
    """The filter of this process, which the first call adds to StreamFlow's logger.

    It is also added to asyncio's logger, for errors of tasks that StreamFlow leaves when a
    run fails.
    """
    instance = TracebackFilter()
    for one in (logger, logging.getLogger("asyncio")):
        one.addFilter(instance)
    return instance

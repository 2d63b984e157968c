"""One line for a failed job, where StreamFlow's log would have a traceback."""

from __future__ import annotations

import logging
import re
from functools import cache

from streamflow.core.exception import (
    UnrecoverableWorkflowException,
    WorkflowException,
)
from streamflow.log_handler import logger


class OneLineException(UnrecoverableWorkflowException):
    """Its message says all that a user needs."""


class TracebackFilter(logging.Filter):
    """Replaces StreamFlow's report of a failed attempt by one line, except with ``--debug``.

    It does so for an expected failure, and for every :class:`OneLineException`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._summaries: dict[str, tuple[int, str]] = {}
        self._reported: set[str] = set()

    def expect(self, level: int, job: str, summary: str) -> None:
        """Set the summary that replaces the next report of a job's failure."""
        self._summaries[job] = (level, summary)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if logger.isEnabledFor(logging.DEBUG):
            return True
        job = next((job for job in self._summaries if _names(str(error), job)), None)
        if job is not None and isinstance(error, WorkflowException):
            record.levelno, record.msg = self._summaries.pop(job)
            record.levelname = logging.getLevelName(record.levelno)
        elif isinstance(error or record.msg, OneLineException):
            record.msg = str(error or record.msg)
            if record.msg in self._reported:  # StreamFlow logs it at several places
                return False
            self._reported.add(record.msg)
        else:
            return True
        record.args = record.exc_info = record.exc_text = None
        return True


def _names(text: str, job: str) -> bool:
    """Whether a text contains the name of a job, not as part of a longer name."""
    return re.search(rf"(?<![\w/.-]){re.escape(job)}(?![\w/-]|\.\w)", text) is not None


@cache
def traceback_filter() -> TracebackFilter:
    """The filter of this process, which the first call adds to StreamFlow's logger."""
    instance = TracebackFilter()
    logger.addFilter(instance)
    return instance

"""One log line for a failed attempt, instead of StreamFlow's traceback."""

from __future__ import annotations

import logging
import re
from functools import cache

from streamflow.core.exception import WorkflowException
from streamflow.log_handler import logger

LONGEST = 300


class TracebackFilter(logging.Filter):
    """Replaces StreamFlow's report of a failed attempt, except with ``--debug``."""

    def __init__(self) -> None:
        super().__init__()
        self._summaries: dict[str, tuple[int, str]] = {}

    def expect(self, level: int, job: str, summary: str) -> None:
        """Set the summary that replaces the next report of a job's failure."""
        self._summaries[job] = (level, summary)

    def filter(self, record: logging.LogRecord) -> bool:
        """See :meth:`logging.Filter.filter`."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, WorkflowException) or logger.isEnabledFor(
            logging.DEBUG
        ):
            return True
        job = next((job for job in self._summaries if _names(str(error), job)), None)
        if job is not None:
            record.levelno, record.msg = self._summaries.pop(job)
            record.levelname = logging.getLevelName(record.levelno)
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


def last_line(output: str) -> str:
    """The last line of a command's output, where its error message is expected."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (lines[-1] if lines else "no error message")[:LONGEST]

"""One line for a failure that is understood, where StreamFlow prints a traceback."""

from __future__ import annotations

import logging
import re
from functools import cache

from streamflow.core.exception import WorkflowException
from streamflow.log_handler import logger

MOST = 300


class OneLine(logging.Filter):
    """Rewrites StreamFlow's report of an attempt that failed.

    With ``--debug`` the traceback stays.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sentences: dict[str, tuple[int, str]] = {}

    def expect(self, level: int, job: str, sentence: str) -> None:
        """Take note that a job has failed, and what is to be said of it instead."""
        self._sentences[job] = (level, sentence)

    def filter(self, record: logging.LogRecord) -> bool:
        """See :meth:`logging.Filter.filter`."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, WorkflowException) or _debugging():
            return True
        said = str(error)
        job = next((job for job in self._sentences if _names(said, job)), None)
        if job is not None:
            record.levelno, record.msg = self._sentences.pop(job)
            record.levelname = logging.getLevelName(record.levelno)
            record.args = record.exc_info = record.exc_text = None
        return True


def _names(text: str, job: str) -> bool:
    """Whether a text names a job, and not one whose name is longer."""
    return re.search(rf"(?<![\w/.-]){re.escape(job)}(?![\w/-]|\.\w)", text) is not None


@cache
def one_line() -> OneLine:
    """The filter of this process, put into StreamFlow's logger by the first call."""
    made = OneLine()
    logger.addFilter(made)
    return made


def words(output: str) -> str:
    """What a command said last, which is its error, on one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (lines[-1] if lines else "no word of why")[:MOST]


def _debugging() -> bool:
    return logger.isEnabledFor(logging.DEBUG)

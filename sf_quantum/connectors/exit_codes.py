"""Which exit statuses of a job's command are a success, as the job's CWL tool declares.

StreamFlow does not pass these codes to the connector that runs the command, nor to those that
observe its end, so they are kept in the context of the task that executes the job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class ExitCodes:
    """``successCodes`` and ``permanentFailCodes`` of a tool.

    As in StreamFlow, 0 is a success unless it is a code of a failure.
    """

    success: Collection[int] = ()
    failure: Collection[int] = ()


_OF_CWL = ExitCodes()
_codes: ContextVar[ExitCodes] = ContextVar("exit codes", default=_OF_CWL)


@contextmanager
def of_job(codes: ExitCodes) -> Iterator[None]:
    """Let the exit codes apply to the job that the current task executes."""
    token = _codes.set(codes)
    try:
        yield
    finally:
        _codes.reset(token)


def is_success(status: int | None) -> bool:
    """Whether the job of this task succeeds with an exit status; ``None`` is no status."""
    codes = _codes.get()
    return status not in codes.failure and status in (0, *codes.success)

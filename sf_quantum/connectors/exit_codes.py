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

    def is_success(self, status: int | None) -> bool:
        """Whether an exit status is a success; ``None`` is no status."""
        return status not in self.failure and status in (0, *self.success)


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


def current() -> ExitCodes:
    """The exit codes that apply to the job of this task."""
    return _codes.get()


def is_success(status: int | None) -> bool:
    """Whether the job of this task succeeds with an exit status; ``None`` is no status."""
    return current().is_success(status)

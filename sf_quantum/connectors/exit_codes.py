"""The exit codes with which a job's command succeeds or fails, as its CWL tool declares.

StreamFlow passes these codes neither to the connector that runs the command, nor to observers
of the command's end. So they are kept in the context of the task that executes the job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class ExitCodes:
    """``successCodes`` and ``permanentFailCodes`` of a tool.

    As in StreamFlow, 0 is a success unless it is one of the failure codes.
    """

    success: Collection[int] = ()
    failure: Collection[int] = ()

    def is_success(self, status: int | None) -> bool:
        """Return whether an exit status is a success; ``None``, a missing status, is not."""
        return status not in self.failure and status in (0, *self.success)


_CWL_DEFAULT = ExitCodes()
_codes: ContextVar[ExitCodes] = ContextVar("exit codes", default=_CWL_DEFAULT)


@contextmanager
def of_job(codes: ExitCodes) -> Iterator[None]:
    """Let the exit codes apply to the job that the current task executes."""
    token = _codes.set(codes)
    try:
        yield
    finally:
        _codes.reset(token)


def current() -> ExitCodes:
    """Return the exit codes that apply to the job of this task."""
    return _codes.get()


def is_success(status: int | None) -> bool:
    """Return whether an exit status is a success of this task's job; ``None`` is not."""
    return current().is_success(status)

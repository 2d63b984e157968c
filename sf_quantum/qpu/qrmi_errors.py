"""The errors of the package ``qrmi``, all of which are ``RuntimeError``, as ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sf_quantum.errors import InputError, QpuError
from sf_quantum.qpu import NoLease

# errors that no second try will cure, by their names in the package
_OURS = (
    "AuthenticationFailedError",
    "ConfigError",
    "EnvVarNotSetError",
    "InvalidInputError",
    "ResourceNotFoundError",
    "UnsupportedFunctionError",
    "UnsupportedPayloadError",
    "UnsupportedResourceTypeError",
)
_GONE = ("ResourceNotFoundError", "TaskNotFoundError")
# how its clients word what they were answered
_STATUS = re.compile(r"(?:[Ss]tatus:?|body:) (\d{3})\b")
_CONFLICT, _NOT_FOUND = 409, 404
_BUSY = (408, 425, 429)


@contextmanager
def ours(who: str, *, leasing: bool = False, gone: bool = False) -> Iterator[None]:
    """Turn an error of QRMI into one of ours.

    :param who: the QPU, for the message
    :param leasing: a conflict means that there is no lease now
    :param gone: what is not there any more is no error
    :raises InputError: if trying again is no use
    :raises QpuError: if it may be
    """
    try:
        yield
    except RuntimeError as error:
        name = type(error).__name__
        status = _status(error)
        if gone and (name in _GONE or status == _NOT_FOUND):
            return
        text = f"{who}: {_line(error)}"
        if status == _CONFLICT:
            raise (NoLease if leasing else QpuError)(text) from error
        refused = 400 <= status < 500 and status not in _BUSY
        if refused or name in _OURS:
            raise InputError(text) from error
        raise QpuError(text) from error


def _status(error: RuntimeError) -> int:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def _line(error: RuntimeError) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__

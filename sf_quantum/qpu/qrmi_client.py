"""The client of the package ``qrmi``: its types, its errors and its tasks."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

from sf_quantum.errors import InputError, QpuError
from sf_quantum.qpu import OVER, AuthenticationError, NoLease

POLL_SECONDS = 0.5
# class names of errors that a retry does not cure
_REFUSALS = (
    "ConfigError",
    "EnvVarNotSetError",
    "InvalidInputError",
    "ResourceNotFoundError",
    "UnsupportedFunctionError",
    "UnsupportedPayloadError",
    "UnsupportedResourceTypeError",
)
_GONE = ("ResourceNotFoundError", "TaskNotFoundError")
# the status of an HTTP answer in the messages of its clients
_STATUS = re.compile(r"(?:[Ss]tatus:?|body:) (\d{3})\b")
_UNAUTHORIZED, _NOT_FOUND, _CONFLICT = 401, 404, 409
_BUSY = (408, 425, 429)


class Text(Protocol):
    """An answer of QRMI's."""

    value: str


class Payload(Protocol):
    """What a task runs; it is only passed on."""


class TaskStatus(Protocol):
    """A state of QRMI's; its ``str`` ends with the state's name."""


class _Capacity(Protocol):
    max_slots: int | None
    available_slots: int | None


class ResourceStatus(Protocol):
    """The status of a resource."""

    status: TaskStatus
    status_reason: str | None
    busy: bool | None
    capacity: _Capacity | None
    pending_job_count: int | None


class Tasks(Protocol):
    """The methods of ``qrmi.QuantumResource``, which has no type hints, for tasks."""

    def target(self) -> Text: ...
    def task_start(self, payload: Payload) -> str: ...
    def task_status(self, task: str) -> TaskStatus: ...
    def task_stop(self, task: str) -> None: ...
    def task_logs(self, task: str) -> str: ...
    def task_result(self, task: str) -> Text: ...


class QrmiClient(Tasks, Protocol):
    """Its methods for status and leases as well."""

    def status(self) -> ResourceStatus: ...
    def acquire(self) -> str: ...
    def release(self, token: str) -> None: ...


@contextmanager
def errors(who: str, *, leasing: bool = False, gone: bool = False) -> Iterator[None]:
    """Convert the errors of QRMI, all of which are ``RuntimeError``, into ours.

    :param who: the QPU, for the message
    :param leasing: a conflict means that no lease is free
    :param gone: ignore that something no longer exists
    :raises InputError: if a retry is useless
    :raises QpuError: if a retry may succeed
    """
    try:
        yield
    except RuntimeError as error:
        name = type(error).__name__
        found = _STATUS.search(str(error))
        status = int(found[1]) if found else 0
        if gone and (name in _GONE or status == _NOT_FOUND):
            return
        text = f"{who}: {' '.join(str(error).split())[:300] or name}"
        if status == _CONFLICT:
            raise (NoLease if leasing else QpuError)(text) from error
        if status == _UNAUTHORIZED or name == "AuthenticationFailedError":
            raise AuthenticationError(text) from error
        if name in _REFUSALS or (400 <= status < 500 and status not in _BUSY):
            raise InputError(text) from error
        raise QpuError(text) from error


def state(status: TaskStatus) -> str:
    """The name of a state."""
    return str(status).rpartition(".")[2]


def run(client: Tasks, payload: Payload, who: str) -> tuple[str, dict[str, float]]:
    """Run a task; interrupted, it is stopped on the QPU.

    :param who: the QPU, for errors
    :returns: its result, and the timing by the local clock; the time on the QPU ends when
        the task is seen to be completed
    :raises QpuError: if the task fails
    :raises RuntimeError: QRMI's own errors
    """
    submitted = started = time.monotonic()
    task = client.task_start(payload)
    try:
        while (now := state(client.task_status(task))) not in OVER:
            if now == "Queued":
                started = time.monotonic()
            time.sleep(POLL_SECONDS)
    except BaseException:
        with suppress(RuntimeError):
            client.task_stop(task)
        raise
    seconds = time.monotonic() - started
    if now != "Completed":
        why = " ".join(client.task_logs(task).split())[:300]
        raise QpuError(f"{who}: the task ended {now}: {why or 'no reason given'}")
    timing = {
        "queued_seconds": started - submitted,
        "qpu_seconds": seconds,
        "seconds": seconds,
    }
    return client.task_result(task).value, timing


def counts(
    client: Tasks, payload: Payload, who: str
) -> tuple[Mapping[str, int], dict[str, float]]:
    """Run a task, see :func:`run`.

    :returns: how often each bit string was read, and the timing
    :raises QpuError: if the task fails, or its result is something else
    :raises RuntimeError: QRMI's own errors
    """
    result, timing = run(client, payload, who)
    try:
        counter = json.loads(result)["counter"]
        found = {str(bits): int(count) for bits, count in counter.items()}
        if all({*bits} <= {"0", "1"} for bits in found):
            return found, timing
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise QpuError(f"{who}: its answer has no counts of bit strings")

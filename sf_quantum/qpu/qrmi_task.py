"""A task on a QPU that QRMI reaches, from its start to its counts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from sf_quantum.errors import QpuError
from sf_quantum.qpu import OVER

POLL_SECONDS = 0.5


class Text(Protocol):
    """An answer of QRMI's."""

    value: str


class Payload(Protocol):
    """What a task is made of; it is only passed on."""


class Status(Protocol):
    """A word of QRMI's, as its ``str`` ends."""


class Tasks(Protocol):
    """What is used of ``qrmi.QuantumResource`` to run a task; it has no types itself."""

    def task_start(self, payload: Payload) -> str: ...
    def task_status(self, task: str) -> Status: ...
    def task_stop(self, task: str) -> None: ...
    def task_logs(self, task: str) -> str: ...
    def task_result(self, task: str) -> Text: ...


class Machine(Tasks, Protocol):
    """The same, and what it tells of itself."""

    def target(self) -> Text: ...


def counts(
    client: Tasks, payload: Payload, who: str
) -> tuple[Mapping[str, int], dict[str, float]]:
    """Run a task, see :func:`finished`.

    :returns: how often each bit string was read, and the timing
    :raises QpuError: if the task fails, or its answer is none
    :raises RuntimeError: QRMI's own errors
    """
    answer, timing = finished(client, payload, who)
    return _counts(answer, who), timing


def finished(client: Tasks, payload: Payload, who: str) -> tuple[str, dict[str, float]]:
    """Run a task; interrupted, it is stopped on the QPU.

    :param who: the QPU, for errors
    :returns: its answer, and the timing, by this clock: what is called the time on the
        QPU ends when its answer "completed" is seen
    :raises QpuError: if the task fails
    :raises RuntimeError: QRMI's own errors
    """
    submitted = started = time.monotonic()
    task = client.task_start(payload)
    try:
        while (word := _word(client.task_status(task))) not in OVER:
            if word == "Queued":
                started = time.monotonic()
            time.sleep(POLL_SECONDS)
    except BaseException:
        with suppress(RuntimeError):
            client.task_stop(task)
        raise
    seconds = time.monotonic() - started
    if word != "Completed":
        why = " ".join(client.task_logs(task).split())[:300]
        raise QpuError(f"{who}: the task ended {word}: {why or 'no reason given'}")
    timing = {
        "queued_seconds": started - submitted,
        "qpu_seconds": seconds,
        "seconds": seconds,
    }
    return client.task_result(task).value, timing


def _word(status: Status) -> str:
    return str(status).rpartition(".")[2]


def _counts(result: str, who: str) -> dict[str, int]:
    try:
        counter = json.loads(result)["counter"]
        found = {str(word): int(count) for word, count in counter.items()}
        if all({*word} <= {"0", "1"} for word in found):
            return found
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise QpuError(f"{who}: its answer has no counts of bit strings")

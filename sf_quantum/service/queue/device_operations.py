"""Does what operators ask of a device: between two jobs, and with a record of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.device.operations import Operation
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store import audit

Shown = Mapping[str, JSON]
# of a text that somebody sent, in the record: it is kept for ever
KEPT_LETTERS = 200


def find(queue: JobQueue, name: str) -> Operation[Device]:
    """Find an operation of the device.

    :raises Refused: 404
    """
    for operation in queue.device.controls:
        if operation.name == name:
            return operation
    raise Refused(404, f"the device has no operation {name!r}")


def rehearse(
    queue: JobQueue, operation: Operation[Device], given: Mapping[str, JSON]
) -> tuple[Shown, Shown]:
    """Tell what an operation would do now.

    :returns: the settings that it changes as they are, and as they would be
    :raises Refused: 422, naming the parameter
    """
    try:
        values = operation.values(given)
    except FieldError as error:
        raise Refused(422, error.detail, error.field) from error
    device = queue.device
    return operation.shown(device), operation.shown(operation.change(device, values))


async def run(
    queue: JobQueue,
    user: str,
    operation: Operation[Device],
    given: Mapping[str, JSON],
    wait_seconds: float,
) -> tuple[Shown, Shown]:
    """Do it when no job runs: at once, or when the one that runs has ended.

    On the disk when it takes effect; what is refused is written down as well.

    :param wait_seconds: how long to wait for the job that runs, at most
    :returns: the settings that it changes as they were, and as they are
    :raises Refused: 422, naming the parameter; 409 if the QPU must be drained first, or
        a job runs for longer
    """
    try:
        rehearse(queue, operation, given)
        async with asyncio.timeout(wait_seconds):
            await queue.between_jobs.acquire()
    except (Refused, TimeoutError) as error:
        words = "a job runs still; try again, wait for longer, or drain the QPU"
        refused = error if isinstance(error, Refused) else Refused(409, words)
        await _record(queue, user, operation, given, refused)
        raise refused from error
    try:
        return await _run(queue, user, operation, given)
    finally:
        queue.between_jobs.release()


async def _run(
    queue: JobQueue, user: str, operation: Operation[Device], given: Mapping[str, JSON]
) -> tuple[Shown, Shown]:
    if operation.drained and queue.availability.is_open:
        refused = Refused(409, "the QPU must be drained first")
        await _record(queue, user, operation, given, refused)
        raise refused
    device = queue.device
    changed = operation.change(device, operation.values(given))
    changed = changed.model_copy(update={"changed": device.clock()})
    old, new = operation.shown(device), operation.shown(changed)
    entry = audit.AuditEntry(user, operation.name, given, old, new)
    await audit.append(queue.store, entry)
    queue.replace_device(changed)
    return old, new


async def _record(
    queue: JobQueue,
    user: str,
    operation: Operation[Device],
    given: Mapping[str, JSON],
    refused: Refused,
) -> None:
    old = operation.shown(queue.device)
    outcome = _cut(f"refused: {refused.field or operation.name}: {refused.detail}")
    asked = _known(operation, given)
    entry = audit.AuditEntry(user, operation.name, asked, old, old, outcome)
    await audit.append(queue.store, entry)


def _known(operation: Operation[Device], given: Mapping[str, JSON]) -> Shown:
    """Keep what an operation could have meant, however much was sent."""
    return {
        one.name: _cut(value) if isinstance(value, str) else value
        for one in operation.parameters
        if one.name in given and not isinstance(value := given[one.name], dict | list)
    }


def _cut(text: str) -> str:
    return text if len(text) <= KEPT_LETTERS else f"{text[:KEPT_LETTERS]}..."

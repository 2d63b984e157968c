"""Runs the device's own operations, each between two jobs and with an audit entry."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.operations import Operation
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store import audit

Shown = Mapping[str, JSON]
# maximum length of a text in the audit; audit entries are never deleted
MAX_TEXT = 200


def find(queue: JobQueue, name: str) -> Operation[Device]:
    """Find an operation of the device, or refuse with 404."""
    for operation in queue.device.controls:
        if operation.name == name:
            return operation
    raise Refused(404, f"the device has no operation {name!r}")


def preview(
    queue: JobQueue, operation: Operation[Device], given: Mapping[str, JSON]
) -> tuple[Shown, Shown]:
    """Return the settings that an operation changes: before, and after the operation."""
    try:
        values = operation.values(given)
    except FieldError as error:
        raise Refused(422, error.detail, error.field) from error
    device = queue.device
    return operation.settings(device), operation.settings(
        operation.change(device, values)
    )


async def run(
    queue: JobQueue,
    user: str,
    operation: Operation[Device],
    given: Mapping[str, JSON],
    wait_seconds: float,
) -> tuple[Shown, Shown]:
    """Run an operation while no job runs: immediately, or when the running job has ended.

    The audit entry is on disk before the operation takes effect; a refusal is also recorded.

    :param given: parameters in the request
    :param wait_seconds: longest wait for the running job
    :returns: the settings that the operation changes: before, and after the operation
    :raises Refused: 422, with the field, if a parameter is invalid; 409 if the QPU must be
        drained first, or the running job takes longer than ``wait_seconds``
    """
    try:
        preview(queue, operation, given)
        try:
            async with asyncio.timeout(wait_seconds):
                await queue.device_lock.acquire()
        except TimeoutError as error:
            detail = "a job still runs; try again, wait for longer, or drain the QPU"
            raise Refused(409, detail) from error
        try:
            return await _run(queue, user, operation, given)
        finally:
            queue.device_lock.release()
    except Refused as error:
        old = operation.settings(queue.device)
        outcome = _cut(f"refused: {error.field or operation.name}: {error.detail}")
        # unknown parameters and nested values are left out of the audit, since requests may
        # be large
        parameters: dict[str, JSON] = {
            one.name: _cut(value) if isinstance(value, str) else value
            for one in operation.parameters
            if one.name in given
            and not isinstance(value := given[one.name], dict | list)
        }
        entry = audit.AuditEntry(user, operation.name, parameters, old, old, outcome)
        await audit.append(queue.store, entry)
        raise


async def _run(
    queue: JobQueue, user: str, operation: Operation[Device], given: Mapping[str, JSON]
) -> tuple[Shown, Shown]:
    if operation.drained and queue.availability.is_open:
        raise Refused(409, "the QPU must be drained first")
    device = queue.device
    changed = operation.change(device, operation.values(given))
    old, new = operation.settings(device), operation.settings(changed)
    entry = audit.AuditEntry(user, operation.name, given, old, new)
    await audit.append(queue.store, entry)
    queue.jobs.replace_device(changed)
    return old, new


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."

"""``/v1``: operations on the device, maintenance windows, and the audit of admins' actions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field, JsonValue

from sf_quantum.service.dialects.common import (
    ADMINS_ONLY,
    EVERYWHERE,
    Admin,
    Queue,
    Who,
    refusal,
)
from sf_quantum.service.dialects.v1.device import DeviceAnswer, show
from sf_quantum.service.dialects.v1.models import Moment, Strict
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.queue.upkeep import device_operations
from sf_quantum.service.store import audit

router = APIRouter(prefix="/v1", tags=["admin"], responses=EVERYWHERE)


class ParameterAnswer(Strict):
    """A number that an operation sets, and its bounds on this device."""

    name: str
    what: str
    unit: str = Field(description="Empty for a factor or a probability.")
    least: float
    most: float


class OperationAnswer(Strict):
    """An operation on the device."""

    name: str
    what: str
    parameters: list[ParameterAnswer] = Field(
        description="Parameters that are left out remain unchanged."
    )
    drained: bool = Field(description="Whether the QPU must be drained first.")
    now: dict[str, JsonValue] = Field(
        description="The present values of the settings that the operation changes."
    )


class OperationBody(Strict):
    """The parameters of an operation."""

    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    dry_run: bool = Field(
        default=False,
        description="Check the operation and show its effect without applying it.",
    )
    wait: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="Seconds to wait for the running job to end.",
    )


class OutcomeAnswer(Strict):
    """The settings that an operation changed, or would change."""

    operation: str
    dry_run: bool
    old: dict[str, JsonValue]
    new: dict[str, JsonValue]


class AuditAnswer(Strict):
    """An action of an admin, even if it was refused; times are seconds since the epoch."""

    number: int
    time: float
    user: str
    action: str
    parameters: dict[str, JsonValue]
    old: dict[str, JsonValue]
    new: dict[str, JsonValue]
    outcome: str = Field(description="`done`, or why the action was not done.")


class MaintenanceBody(Strict):
    """A period in which the QPU accepts no jobs; times are seconds since the epoch."""

    starts: Moment | None = Field(
        description="Start of the window; null cancels the window that has no end."
    )
    ends: Moment | None = Field(
        default=None,
        description="End of the window; null: the window lasts until the QPU is "
        "opened.",
    )
    message: str = Field(default="", max_length=1000)


class WindowAnswer(Strict):
    """A maintenance window; times are seconds since the epoch."""

    id: int
    starts: float
    ends: float | None = Field(
        description="End of the window; null: the window lasts until the QPU is "
        "opened."
    )
    message: str


class MaintenanceAnswer(DeviceAnswer):
    """The device, and its maintenance windows."""

    windows: list[WindowAnswer]


@router.get(
    "/admin/operations",
    summary="List the operations on the device",
    responses={403: ADMINS_ONLY},
)
async def operations(queue: Queue, _: Admin) -> list[OperationAnswer]:
    """List each operation with its parameters, their bounds and the current settings."""
    return [
        OperationAnswer(
            name=operation.name,
            what=operation.what,
            parameters=[ParameterAnswer(**vars(item)) for item in operation.parameters],
            drained=operation.drained,
            now=dict(operation.settings(queue.device)),
        )
        for operation in queue.device.controls
    ]


@router.post(
    "/admin/operations/{name}",
    summary="Run an operation on the device",
    responses={
        403: ADMINS_ONLY,
        404: refusal("No such operation."),
        409: refusal("The QPU must be drained first, or a job is still running."),
    },
)
async def run(
    name: str, body: OperationBody, queue: Queue, who: Admin
) -> OutcomeAnswer:
    """Run an operation between two jobs, so that no job sees the settings change.

    The new settings apply until another operation changes them or the service starts again.
    """
    operation = device_operations.find(queue, name)
    if body.dry_run:
        old, new = device_operations.preview(queue, operation, body.parameters)
    else:
        old, new = await device_operations.run(
            queue, who.user, operation, body.parameters, body.wait
        )
    return OutcomeAnswer(
        operation=name, dry_run=body.dry_run, old=dict(old), new=dict(new)
    )


@router.get(
    "/admin/audit", summary="List admins' actions", responses={403: ADMINS_ONLY}
)
def audited(
    queue: Queue,
    _: Admin,
    limit: Annotated[int, Query(gt=0, le=1000)] = 100,
    before: Annotated[
        int | None,
        Query(ge=0, le=2**62, description="List only entries with lower numbers."),
    ] = None,
) -> list[AuditAnswer]:
    """List the latest entries, newest first; entries are never changed or removed."""
    entries = audit.entries(queue.store, limit, before)
    return [AuditAnswer(**vars(entry)) for entry in entries]


@router.get("/device/maintenance", summary="List maintenance windows")
async def maintenance(queue: Queue, _: Who) -> list[WindowAnswer]:
    """List the windows that have not ended, by start."""
    return [WindowAnswer(**vars(window)) for window in queue.availability.windows]


@router.post(
    "/device/maintenance",
    summary="Announce maintenance",
    responses={
        403: ADMINS_ONLY,
        409: refusal("The window overlaps with another window."),
    },
)
async def announce(
    body: MaintenanceBody, queue: Queue, who: Admin
) -> MaintenanceAnswer:
    """Announce a maintenance window: the QPU is drained at its start and opened at its end.

    A job that is not expected to end before the window does not start; shorter jobs may run
    ahead of this job. A window without an end lasts until the QPU is opened. There is at most
    one such window; a new such window replaces it. Windows survive a restart of the service.
    """
    if body.starts is None:
        if body.ends is not None:
            raise Refused(422, "expected null, as `starts` is", "ends")
        windows = queue.availability.windows
        endless = [window for window in windows if window.ends is None]
        await queue.availability.cancel_windows(who.user, endless)
    else:
        await queue.availability.announce(
            who.user, body.starts, body.ends, body.message
        )
    return MaintenanceAnswer(
        **show(queue).model_dump(by_alias=True), windows=await maintenance(queue, who)
    )


@router.delete(
    "/device/maintenance/{window_id}",
    summary="Cancel maintenance",
    responses={403: ADMINS_ONLY, 404: refusal("No such window.")},
)
async def take_back(window_id: int, queue: Queue, who: Admin) -> WindowAnswer:
    """Cancel a window, or end it early."""
    for window in queue.availability.windows:
        if window.id == window_id:
            await queue.availability.cancel_windows(who.user, [window])
            return WindowAnswer(**vars(window))
    raise Refused(404, "no such window")

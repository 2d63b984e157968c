"""``/v1``: what admins set on the device, maintenance, and the record of both."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import Field, JsonValue

from sf_quantum.service.api.v1.device import show
from sf_quantum.service.api.v1.models import DeviceAnswer, Strict
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.device.operations import Operation
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.http.dependencies import Admin, Queue, Who, refusals
from sf_quantum.service.queue import device_operations
from sf_quantum.service.queue.availability import MaintenanceWindow
from sf_quantum.service.store import audit
from sf_quantum.service.store.audit import StoredEntry

router = APIRouter(prefix="/v1", tags=["admin"])
_FORBIDDEN = "Only admins may."
# the last second that a date can be told of
_NEVER = 253_402_300_799
Moment = Annotated[float, Field(ge=0, le=_NEVER, allow_inf_nan=False)]


class ParameterAnswer(Strict):
    """A number that an operation sets, and its bounds here."""

    name: str
    what: str
    unit: str = Field(description="Empty for a factor or a probability.")
    least: float
    most: float


class OperationAnswer(Strict):
    """One thing that can be done to the device."""

    name: str
    what: str
    parameters: list[ParameterAnswer] = Field(
        description="Those that are not given stay as they are."
    )
    drained: bool = Field(description="Whether the QPU must be drained first.")
    now: dict[str, JsonValue] = Field(description="The settings that it changes.")


class OperationBody(Strict):
    """What to set."""

    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    dry_run: bool = Field(default=False, description="Check and tell, change nothing.")
    wait: float = Field(
        default=10.0, ge=0, le=3600, description="Seconds, for the job that runs."
    )


class OutcomeAnswer(Strict):
    """What an operation changed, or would."""

    operation: str
    dry_run: bool
    old: dict[str, JsonValue]
    new: dict[str, JsonValue]


class AuditAnswer(Strict):
    """What an admin did, or was refused; time is seconds since the epoch."""

    number: int
    time: float
    user: str
    action: str
    parameters: dict[str, JsonValue]
    old: dict[str, JsonValue]
    new: dict[str, JsonValue]
    outcome: str = Field(description="`done`, or why it was not.")

    @classmethod
    def of(cls, kept: StoredEntry) -> Self:
        """Show an entry."""
        return cls(number=kept.number, time=kept.time, **asdict(kept.entry))


class MaintenanceBody(Strict):
    """When the QPU will take no jobs; times are seconds since the epoch."""

    starts: Moment | None = Field(
        description="Null takes an announcement without an end back."
    )
    ends: Moment | None = Field(
        default=None, description="Null: when the QPU is opened."
    )
    message: str = Field(default="", max_length=1000)


class WindowAnswer(Strict):
    """A maintenance window; times are seconds since the epoch."""

    id: int
    starts: float
    ends: float | None = Field(description="Null: when the QPU is opened.")
    message: str


class MaintenanceAnswer(DeviceAnswer):
    """The device, and all the maintenance that is announced."""

    windows: list[WindowAnswer]


@router.get(
    "/admin/operations",
    summary="List what can be set on the device",
    responses=refusals({403: _FORBIDDEN}),
)
async def operations(queue: Queue, _: Admin) -> list[OperationAnswer]:
    """Tell each operation's parameters with their bounds, and the settings now."""
    return [_operation(one, queue) for one in queue.device.controls]


@router.post(
    "/admin/operations/{name}",
    summary="Set something on the device",
    responses=refusals(
        {
            403: _FORBIDDEN,
            404: "No such operation.",
            409: "The QPU must be drained first, or a job runs still.",
        }
    ),
)
async def run(
    name: str, body: OperationBody, queue: Queue, who: Admin
) -> OutcomeAnswer:
    """Run a named operation between two jobs: each has all of the old settings or all
    of the new.

    What is set holds until it is set again or the service is started again.
    """
    operation = device_operations.find(queue, name)
    if body.dry_run:
        old, new = device_operations.rehearse(queue, operation, body.parameters)
    else:
        old, new = await device_operations.run(
            queue, who.user, operation, body.parameters, body.wait
        )
    return OutcomeAnswer(
        operation=name, dry_run=body.dry_run, old=dict(old), new=dict(new)
    )


@router.get(
    "/admin/audit",
    summary="List what admins did",
    responses=refusals({403: _FORBIDDEN}),
)
def audited(
    queue: Queue,
    _: Admin,
    limit: Annotated[int, Query(gt=0, le=1000)] = 100,
    before: Annotated[
        int | None, Query(ge=0, le=2**62, description="Only lower numbers.")
    ] = None,
) -> list[AuditAnswer]:
    """List the latest entries, the latest first; none is ever changed or removed."""
    return [AuditAnswer.of(kept) for kept in audit.entries(queue.store, limit, before)]


@router.get("/device/maintenance", summary="List maintenance windows")
async def maintenance(queue: Queue, _: Who) -> list[WindowAnswer]:
    """List the windows that are not over, in the order of their starts."""
    return [_window(window) for window in queue.availability.windows]


@router.post(
    "/device/maintenance",
    summary="Announce maintenance",
    responses=refusals({403: _FORBIDDEN, 409: "It overlaps with another window."}),
)
async def announce(
    body: MaintenanceBody, queue: Queue, who: Admin
) -> MaintenanceAnswer:
    """Announce a window: at its start the QPU is drained, at its end it takes jobs.

    No job starts that is expected to end after the start; a shorter one goes before it.
    A window without an end ends when the QPU is opened, and there is one at most: the
    next takes its place. Windows stay over a restart of the service.
    """
    if body.starts is None:
        if body.ends is not None:
            raise Refused(422, "expected null, as `starts` is", "ends")
        endless = [
            window for window in queue.availability.windows if window.ends is None
        ]
        await queue.availability.cancel_windows(who.user, endless)
    else:
        await queue.availability.announce(
            who.user, body.starts, body.ends, body.message
        )
    windows = [_window(window) for window in queue.availability.windows]
    return MaintenanceAnswer(**show(queue).model_dump(by_alias=True), windows=windows)


@router.delete(
    "/device/maintenance/{window_id}",
    summary="Take maintenance back",
    responses=refusals({403: _FORBIDDEN, 404: "No such window."}),
)
async def take_back(window_id: int, queue: Queue, who: Admin) -> WindowAnswer:
    """Take a window back, or end it early."""
    for window in queue.availability.windows:
        if window.id == window_id:
            await queue.availability.cancel_windows(who.user, [window])
            return _window(window)
    raise Refused(404, "no such window")


def _operation(operation: Operation[Device], queue: Queue) -> OperationAnswer:
    return OperationAnswer(
        name=operation.name,
        what=operation.what,
        parameters=[ParameterAnswer(**asdict(one)) for one in operation.parameters],
        drained=operation.drained,
        now=dict(operation.shown(queue.device)),
    )


def _window(window: MaintenanceWindow) -> WindowAnswer:
    return WindowAnswer(**asdict(window))

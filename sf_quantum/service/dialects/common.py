"""Parts that the dialects' routes share: dependencies, refusals, the QPU's status, times."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

from fastapi import Depends, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from sf_quantum.protocol.leases import LEASE_HEADER
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import get_sender
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.text import LAST_SECOND

LONGEST_WAIT_SECONDS = 60.0
# earliest time that is a valid date, in seconds since the epoch
FIRST_SECOND = datetime.min.replace(tzinfo=UTC).timestamp()


# coroutines, since FastAPI would run plain functions in threads
async def _queue(request: Request) -> JobQueue:
    queue: JobQueue = request.app.state.queue
    return queue


async def _caller(request: Request) -> Identity:
    return get_sender(request)


async def _admin(who: Who) -> Identity:
    if not who.admin:
        raise Refused(403, "only admins may do this")
    return who


Queue = Annotated[JobQueue, Depends(_queue)]
Who = Annotated[Identity, Depends(_caller)]
Admin = Annotated[Identity, Depends(_admin)]
LeaseId: TypeAlias = Annotated[
    str | None,
    Header(alias=LEASE_HEADER, description="The id of a lease that is held."),
]
KnownEtag: TypeAlias = Annotated[
    str | None,
    Header(
        alias="if-none-match",
        description="The ETag of the last answer, if there was one.",
    ),
]


class Refusal(BaseModel):
    """Why a request was refused."""

    model_config = ConfigDict(extra="forbid")

    detail: str = Field(description="The reason, in one sentence.")
    field: str | None = Field(default=None, description="The field that is wrong.")


def refusal(description: str) -> dict[str, type[Refusal] | str]:
    """Describe refusals with one HTTP status for the OpenAPI document."""
    return {"model": Refusal, "description": description}


ADMINS_ONLY = refusal("Only admins may do this.")
EVERYWHERE: dict[int | str, dict[str, type[Refusal] | str]] = {
    401: refusal("No credential, or an invalid one."),
    413: refusal("The body is too large."),
    422: refusal("A field is wrong."),
    429: refusal("Too many requests."),
    503: refusal("The service is being stopped, or cannot work."),
}


def utc(seconds: float) -> datetime:
    """Convert seconds since the epoch into a time with a zone, UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def since_epoch(time: datetime | None) -> float | None:
    """Convert a time into seconds since the epoch.

    A time without a zone is read as UTC. A time that is not a valid date in UTC is replaced
    by the first or the last valid time.
    """
    if time is None:
        return None
    seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return min(max(seconds, FIRST_SECOND), LAST_SECOND)


def qpu_status(queue: JobQueue) -> Literal["online", "draining", "closed", "offline"]:
    """Return the QPU's status; ``offline`` if the service or the device cannot run jobs."""
    if queue.failure:
        return "offline"
    status = queue.availability.status
    if status != "open":
        return status
    return "offline" if queue.availability.device_reason else "online"


def qpu_reason(queue: JobQueue) -> str:
    """Return why the QPU accepts no work; empty if it accepts work."""
    return queue.failure or queue.availability.reason


def conditional(
    client_etag: str | None, content: bytes, media_type: str, headers: Mapping[str, str]
) -> Response:
    """Make a response with an ETag, or with 304 if the client already has the content.

    :param client_etag: ETag of the content that the client has
    """
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**headers, "ETag": etag}
    if client_etag == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)

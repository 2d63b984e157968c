"""Dependencies of all dialects' routes: the queue and the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.http.auth import Forbidden, get_sender
from sf_quantum.service.queue.job_queue import JobQueue


class Refusal(BaseModel):
    """Why a request was refused."""

    model_config = ConfigDict(extra="forbid")

    detail: str = Field(description="One sentence.")
    field: str | None = Field(default=None, description="The field that is wrong.")


async def queue_of(request: Request) -> JobQueue:
    """Return the queue that the application serves."""
    queue: JobQueue = request.app.state.queue
    return queue


async def caller(request: Request) -> Identity:
    """Return the caller.

    :raises AuthError: if the request has no valid credential
    """
    return get_sender(request)


async def _admin(who: Who) -> Identity:
    if not who.admin:
        raise Forbidden("only admins may do this")
    return who


Queue = Annotated[JobQueue, Depends(queue_of)]
Who = Annotated[Identity, Depends(caller)]
Admin = Annotated[Identity, Depends(_admin)]


def refusals(
    descriptions: Mapping[int, str],
) -> dict[int | str, dict[str, type[Refusal] | str]]:
    """Describe the statuses of refusals for the OpenAPI document."""
    return {
        status: {"model": Refusal, "description": description}
        for status, description in descriptions.items()
    }


ADMINS_ONLY = "Only admins may do this."
EVERYWHERE = refusals(
    {
        401: "No credential, or an invalid one.",
        413: "The body is too large.",
        422: "A field is wrong.",
        429: "Too many requests.",
        503: "The service is being stopped, or cannot work.",
    }
)

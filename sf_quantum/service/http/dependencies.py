"""What routes of every dialect ask for: the queue, and who is calling."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.http.auth import Authenticate, Forbidden
from sf_quantum.service.queue.job_queue import JobQueue


class Refusal(BaseModel):
    """Why a request was refused."""

    model_config = ConfigDict(extra="forbid")

    detail: str = Field(description="One sentence.")
    field: str | None = Field(default=None, description="The field that is wrong.")


async def queue_of(request: Request) -> JobQueue:
    """Find the queue."""
    queue: JobQueue = request.app.state.queue
    return queue


async def caller(request: Request) -> Identity:
    """Find out who is calling.

    :raises AuthError: if that cannot be said
    """
    authenticate: Authenticate = request.app.state.authenticate
    return authenticate(request)


async def _admin(who: Who) -> Identity:
    if not who.admin:
        raise Forbidden("only admins may")
    return who


Queue = Annotated[JobQueue, Depends(queue_of)]
Who = Annotated[Identity, Depends(caller)]
Admin = Annotated[Identity, Depends(_admin)]


def refusals(**statuses: str) -> dict[int | str, dict[str, type[Refusal] | str]]:
    """Describe statuses, named ``_404`` and so on, for the OpenAPI document."""
    return {
        int(status[1:]): {"model": Refusal, "description": words}
        for status, words in statuses.items()
    }


EVERYWHERE = refusals(
    _401="No credential, or none that holds.",
    _413="The body is too large.",
    _422="A field is wrong.",
    _429="Too many requests.",
    _503="The service is being stopped, or cannot work.",
)

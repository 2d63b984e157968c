"""The page ``GET /``, and what it asks for every other second.

It is a file for each of HTML, CSS and JavaScript in the folder ``page``, sent as they are.
The page asks nobody but this service, and shows what others wrote as text only; its
Content-Security-Policy holds the browser to both.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response

from sf_quantum.service.api.page.activity import Activity
from sf_quantum.service.api.page.models import ActivityAnswer
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.http.auth import (
    MUNGE_HEADER,
    TOKEN_HEADER,
    Unauthorized,
    get_sender,
)

CREDENTIALS = ("Authorization", TOKEN_HEADER, MUNGE_HEADER)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "page.svg": "image/svg+xml",
}

router = APIRouter()
IfNoneMatch = Annotated[
    str | None, Header(description="The ETag of the last answer, if there was one.")
]


async def _activity(request: Request) -> Activity:
    activity: Activity = request.app.state.activity
    return activity


async def _viewer(request: Request) -> Identity | None:
    """Find out who looks; nobody has to say.

    :raises AuthError: if there is a credential that does not hold
    """
    try:
        return get_sender(request)
    except Unauthorized:
        if any(name in request.headers for name in CREDENTIALS):
            raise
        return None


@router.get(
    "/v1/activity",
    tags=["device"],
    summary="Tell what goes on, as the page shows it",
    response_model=ActivityAnswer,
    responses={304: {"description": "It is as the ETag says."}},
)
async def activity(
    activity: Annotated[Activity, Depends(_activity)],
    who: Annotated[Identity | None, Depends(_viewer)],
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Tell device, line, leases, utilisation and calibration, at most a second old.

    Without a credential, jobs and leases are told as counts; with one, also the caller's
    own, and to admins everybody's.
    """
    view = await activity.view(who)
    headers = {
        "Cache-Control": "private, no-cache",
        "ETag": view.etag,
        "Vary": ", ".join(CREDENTIALS),
    }
    if if_none_match == view.etag:
        return Response(status_code=304, headers=headers)
    return Response(view.body, media_type="application/json", headers=headers)


@router.get("/", include_in_schema=False)
async def page(if_none_match: IfNoneMatch = None) -> Response:
    """Send the page."""
    return _file("index.html", if_none_match)


@router.get("/page.{kind}", include_in_schema=False)
async def part(kind: str, if_none_match: IfNoneMatch = None) -> Response:
    """Send what the page is made of."""
    name = f"page.{kind}"
    if name not in _TYPES:
        raise Refused(404, "not found")
    return _file(name, if_none_match)


def _file(name: str, known: str | None) -> Response:
    content, etag = _read(name)
    headers = {**_HEADERS, "ETag": etag}
    if known == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name], headers=headers)


@cache
def _read(name: str) -> tuple[bytes, str]:
    content = (resources.files(__package__) / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'

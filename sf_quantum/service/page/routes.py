"""The page ``GET /``, and the activity that the page requests every two seconds.

The page's HTML, CSS and JavaScript are files next to this module, which are sent unchanged.
The page contacts no other host, and shows users' input only as text; its
Content-Security-Policy makes the browser enforce both.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from fastapi import APIRouter, Request, Response

from sf_quantum.service.dialects.common import EVERYWHERE, KnownEtag, conditional
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.http.auth import (
    MUNGE_HEADER,
    TOKEN_HEADER,
    Unauthorized,
    get_sender,
)
from sf_quantum.service.page.activity import Activity, ActivityAnswer

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
    "charts.js": "text/javascript",
    "page.svg": "image/svg+xml",
}

router = APIRouter(responses=EVERYWHERE)


@router.get(
    "/v1/activity",
    tags=["device"],
    summary="Show the activity, as the page does",
    response_model=ActivityAnswer,
    responses={304: {"description": "Not changed since the answer with the ETag."}},
)
async def activity(request: Request, if_none_match: KnownEtag = None) -> Response:
    """Show device, queue, leases, utilisation and calibration, at most a second old.

    Without a credential, jobs and leases are only counted. With a credential, the caller's
    own jobs and leases are shown, and to admins the jobs and leases of all users.
    """
    who = None
    try:
        who = get_sender(request)
    except Unauthorized:
        # a credential is not needed, but must be valid if it is sent
        if any(name in request.headers for name in CREDENTIALS):
            raise
    activity: Activity = request.app.state.activity
    content = await activity.answer(who)
    headers = {"Cache-Control": "private, no-cache", "Vary": ", ".join(CREDENTIALS)}
    return conditional(if_none_match, content, "application/json", headers)


@router.get("/", include_in_schema=False)
@router.get("/page.{kind}", include_in_schema=False)
@router.get("/charts.js", include_in_schema=False)
async def page(request: Request, if_none_match: KnownEtag = None) -> Response:
    """Send the page, or a part of it."""
    name = request.url.path.removeprefix("/") or "index.html"
    if name not in _TYPES:
        raise Refused(404, "not found")
    return conditional(if_none_match, _read(name), _TYPES[name], _HEADERS)


@cache
def _read(name: str) -> bytes:
    return (resources.files(__package__) / name).read_bytes()

"""Refusals in the form of IQM's API: status, code and message."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.http.guard import request_id

# fields in the path or the query; IQM has a separate code for errors in them
PARAMETERS = ("use_timeslot", "tag", "wait_until_terminal", "timeout_seconds")
# IQM's codes for refusals of parts that all dialects share, by HTTP status
_CODES = {
    400: "invalid_job_payload",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
    413: "request_payload_too_large",
    429: "rate_limit_exceeded",
}


class Coded(Refused):
    """A refusal with one of IQM's codes."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(status, detail)
        self.code = code


def refused(request: Request, error: Refused) -> Response:
    """Write a refusal in IQM's form, with status 400 for every invalid request."""
    status = 400 if error.status == 422 else error.status
    code = _CODES.get(status, "internal_error")
    if isinstance(error, Coded):
        code = error.code
    elif status == 400 and error.field in PARAMETERS:
        code = "invalid_input"
    message = f"{error.field}: {error.detail}" if error.field else error.detail
    content = {
        "error_code": code,
        "message": message,
        "request_id": request_id(request),
    }
    return JSONResponse(content, status, error.headers)

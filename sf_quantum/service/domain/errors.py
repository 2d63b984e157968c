"""The error of a refused request, in any dialect."""

from __future__ import annotations

from collections.abc import Mapping


class Refused(Exception):
    """A request is refused.

    :param status: HTTP status of the response
    :param detail: one sentence without secrets
    :param field: name of the request's invalid field
    :param headers: further headers of the response
    """

    def __init__(
        self,
        status: int,
        detail: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.headers = dict(headers or {})

"""A request that is refused, in whatever dialect it came."""

from __future__ import annotations

from collections.abc import Mapping


class Refused(Exception):
    """What the caller asked for is not done, and why.

    :param status: of HTTP
    :param detail: one sentence without anything secret
    :param field: the field of the request that is wrong, where it is one
    :param headers: of the answer, beyond those of its body
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

"""The error of a refused request, in any dialect."""

from __future__ import annotations

from collections.abc import Mapping

from sf_quantum.text import shortened

# Maximum length of ``detail`` and of ``field``, in characters. Both may quote user input,
# which the event loop escapes for the response; the response can then be several times as
# large as the input.
MAX_CHARACTERS = 1000


class Refused(Exception):
    """A request is refused.

    :param status: HTTP status of the response
    :param detail: one sentence without secrets; a long one is shortened in the middle
    :param field: name of the request's invalid field, shortened likewise
    :param headers: further headers of the response
    """

    def __init__(
        self,
        status: int,
        detail: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.detail = _shorten(detail)
        super().__init__(self.detail)
        self.status = status
        self.field = None if field is None else _shorten(field)
        self.headers = dict(headers or {})


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else shortened(text, MAX_CHARACTERS)

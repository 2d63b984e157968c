"""The credentials of clients of our QPU service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Credentials:
    """The credentials of a client, and the time for which it retries.

    :param token_file: file with the bearer token
    :param munge: whether to send a MUNGE credential with each request, or ``munged``'s socket
    :param retry_seconds: time for which a request without an answer is retried; ``None``
        for the time that a restart of the service may take
    """

    token_file: str | None = None
    munge: str | bool = False
    retry_seconds: float | None = None

    @property
    def name(self) -> str | None:
        """The credential that identifies the user, in messages."""
        if self.token_file is not None:
            return f"token file {self.token_file}"
        return "MUNGE credential" if self.munge else None

    def munge_header(self) -> Mapping[str, str]:
        """Make a new header for each request, since a credential is accepted only once."""
        if not self.munge:
            return {}
        # The import loads ctypes and libmunge, which most clients do not need.
        from sf_quantum.net import munge

        socket = self.munge if isinstance(self.munge, str) else None
        return {"X-Munge-Cred": munge.encode(socket)}

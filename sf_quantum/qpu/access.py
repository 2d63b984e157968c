"""Requests to our QPU service: who asks, what is asked again, what a refusal means."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, cannot_read
from sf_quantum.net.transport import Answer, Client, Unreachable

LEASE_HEADER = "X-SFQ-Lease"
# a service that is being restarted is back in less
PATIENCE_SECONDS = 15.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 3.0
# what trying again may cure: a service that is busy, closed, or behind a proxy alone
BUSY = (408, 425, 429, 502, 503, 504)


@dataclass(frozen=True)
class Credentials:
    """Who asks, and how long they bear it when nobody answers.

    :param token_file: a file with the bearer token that the service asks for
    :param munge: make a MUNGE credential for each request: True, or ``munged``'s socket
    :param patience_seconds: for how long a request that got no answer is tried again;
        ``None`` for as long as a restart of the service may take
    """

    token_file: str | None = None
    munge: str | bool = False
    patience_seconds: float | None = None

    def client(self, url: str, lease: str | None = None) -> Client:
        """Make a client that sends these credentials.

        :param lease: sent along, on the job's side
        :raises InputError: if the URL or the token is wrong
        """
        headers = {}
        if self.token_file is not None:
            headers["Authorization"] = f"Bearer {_read_token(self.token_file)}"
        if lease is not None:
            headers[LEASE_HEADER] = lease
        return Client(url, headers, self._credential if self.munge else None)

    def _credential(self) -> Mapping[str, str]:
        # ctypes and libmunge are only loaded where they are needed
        from sf_quantum.net import munge

        # a credential holds once, so each request has its own
        socket = self.munge if isinstance(self.munge, str) else None
        return {"X-Munge-Cred": munge.encode(socket)}


class Access:
    """One service, and what is to be done when it does not answer as it should.

    :param who: names the QPU, in errors
    :param patience_key: what sets the patience, if anything does
    :param under_lease: requests are those of a job that was given a lease, so that the
        lease's end, or a service that has forgotten it, is no fault of the job's
    """

    def __init__(
        self,
        client: Client,
        who: str,
        patience_seconds: float | None,
        patience_key: str | None = None,
        *,
        under_lease: bool = False,
    ) -> None:
        self.url = client.url
        self.who = f"{who} at {client.url}"
        self._client = client
        self._patience_seconds = patience_seconds
        self._patience_key = patience_key
        self._under_lease = under_lease

    def ask(
        self, method: str, path: str, body: Mapping[str, JSON] | None = None
    ) -> Answer:
        """Send a request, again if need be, and expect it to be granted.

        :raises InputError: if it is refused
        :raises QpuError: if the service is in trouble
        """
        return self.checked(self.retrying(method, path, body))

    def retrying(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        *,
        timeout_seconds: float = 10.0,
    ) -> Answer:
        """Send a request that may arrive twice, with growing pauses until it is answered.

        :returns: the answer, whatever it says
        :raises QpuError: if none came in time
        """
        deadline, pause_seconds = None, FIRST_PAUSE_SECONDS
        while True:
            failure = None
            try:
                answer = self.once(method, path, body, timeout_seconds=timeout_seconds)
                if answer.status not in BUSY:
                    return answer
            except QpuError as error:
                failure = error
            # not from the request, which may have waited for long before that
            deadline = deadline or time.monotonic() + self._patience
            left = deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(pause_seconds, left))
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        if failure is not None:
            raise QpuError(f"{failure}{self._tried()}") from failure
        return answer

    def once(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        *,
        timeout_seconds: float = 10.0,
    ) -> Answer:
        """Send a request once.

        :returns: the answer, whatever it says
        :raises QpuError: if none came
        """
        try:
            return self._client.request(
                method, path, body, timeout_seconds=timeout_seconds
            )
        except Unreachable as error:
            raise QpuError(f"{self.who} does not answer: {error}") from error

    def checked(self, answer: Answer) -> Answer:
        """Expect a request to be granted.

        :raises InputError: if it was refused
        :raises QpuError: if the service is in trouble, or the lease is over
        """
        if answer.status < 400:
            return answer
        if answer.status >= 500 or answer.status in BUSY:
            raise QpuError(f"{self.who} is in trouble: {words(answer)}")
        refusal = f"{self.who} refuses: {words(answer)}"
        if self._under_lease and _is_lost(answer):
            raise QpuError(refusal)
        raise InputError(refusal)

    def text(self, content: Mapping[str, JSON], key: str) -> str:
        """Read a text that every answer of this kind has.

        :raises QpuError: if it is not there
        """
        value = content.get(key)
        if not isinstance(value, str):
            raise QpuError(f"{self.who}: its answer has no {key!r}, is it sfq serve?")
        return value

    @property
    def _patience(self) -> float:
        known = self._patience_seconds
        return PATIENCE_SECONDS if known is None else known

    def _tried(self) -> str:
        how = f", which {self._patience_key} sets" if self._patience_key else ""
        return f" (tried for {self._patience:g} s{how})" if self._patience else ""


def words(answer: Answer) -> str:
    """Say in the service's own words why it refuses."""
    content = answer.json()
    detail = content.get("detail") or f"HTTP status {answer.status}"
    field = content.get("field")
    return f"{field}: {detail}" if field else str(detail)


def _is_lost(answer: Answer) -> bool:
    """Whether the service lets the lease serve no more, or knows not what it gave."""
    over = answer.status == 403 and answer.json().get("field") == LEASE_HEADER
    return over or answer.status == 404


def _read_token(path: str) -> str:
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, "token", error) from error
    if not token:
        raise InputError(f"{path}: empty; expected a token")
    return token

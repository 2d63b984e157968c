"""The client of our QPU service's HTTP interface, for commands and QPUs."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from sf_quantum import backoff, structs
from sf_quantum.deadline import Deadline
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client, KeptClient, Response, Unreachable
from sf_quantum.protocol.bounds import ANSWER_BYTES
from sf_quantum.protocol.leases import LEASE_HEADER
from sf_quantum.protocol.tasks import LeaseLost
from sf_quantum.qpu import AuthenticationError
from sf_quantum.qpu.configuration import read_token
from sf_quantum.qpu.sfq import service_variables
from sf_quantum.qpu.sfq.credentials import Credentials
from sf_quantum.structs import WrongValue
from sf_quantum.text import shortened

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
# a restarted service is back within this time
RETRY_SECONDS = 15.0
# The replacement of the service's tokens file takes less than this time; if the file is
# unreadable for longer, an operator must act.
TOKENS_SECONDS = 2.0
REQUEST_SECONDS = 10.0
# Time limit for a job or a result of tens of megabytes, whose transfer and reading take long.
LARGE_SECONDS = 90.0
# statuses after which another attempt may succeed: the service is busy or closed, or a
# proxy answers for it; `backoff` defines the pauses
BUSY = (408, 425, 429, 502, 503, 504)


class ServiceClient:
    """Sends requests to one service, with retries, and raises errors for rejected requests.

    :param qpu: name of the QPU in error messages
    :param lease: lease of the requests, on the job's side; if it has ended or is unknown,
        the error is a ``QpuError``, since this is not the job's mistake
    """

    def __init__(
        self, url: str, qpu: str, credentials: Credentials, lease: str | None = None
    ) -> None:
        headers = {} if lease is None else {LEASE_HEADER: lease}
        self._credentials = credentials
        self._token: str | None = None
        if credentials.token_file is not None:
            self._token = read_token(credentials.token_file)
        # only a job, which may send many requests in sequence, keeps its connection
        kind = Client if lease is None else KeptClient
        self._client = kind(url, headers, self._credential)
        #: sends another client's request with this client's lease and credential
        self.exchange = self._client.exchange
        self.url = self._client.url
        self.name = f"QPU {qpu!r} at {self.url}"
        retry = credentials.retry_seconds
        self._retry_seconds = RETRY_SECONDS if retry is None else retry
        self._under_lease = lease is not None
        # Messages name the job's variable that sets the retry time.
        variable = f", which {qpu}_{service_variables.PATIENCE} sets"
        self._retry_setting = variable if self._under_lease else ""

    def _credential(self) -> Mapping[str, str]:
        if (file := self._credentials.token_file) is not None:
            # the file may have been replaced, and may be missing for a moment
            with suppress(InputError):
                self._token = read_token(file)
        token = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return {**token, **self._credentials.munge_header()}

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | bytes | None = None,
        *,
        timeout_seconds: float = REQUEST_SECONDS,
        retry: bool = False,
        expected: Collection[int] = (),
        most_bytes: int = ANSWER_BYTES,
    ) -> Response:
        """Send a request once or, with ``retry``, until it is answered.

        :param retry: whether to repeat the request, which must then be idempotent
        :param expected: error statuses that the caller handles
        :param most_bytes: largest answer in bytes
        :raises Unreachable: if there is no answer in time
        :raises AuthenticationError: if the user is not accepted, or lacks the right
        :raises LeaseLost: if the lease has ended
        :raises InputError: if the request is rejected for another reason
        :raises QpuError: if the service is busy or fails, or if a proxy answers for it
        """
        retry_seconds = self._retry_seconds if retry else 0.0
        deadline = None
        for pause in backoff.REQUEST.pauses():
            failure, asked_seconds = None, 0.0
            try:
                response = self._client.request(
                    method,
                    path,
                    body,
                    timeout_seconds=timeout_seconds,
                    most_bytes=most_bytes,
                )
                if response.status not in BUSY:
                    break
                asked_seconds = response.retry_seconds or 0.0
            except Unreachable as error:
                failure = error
            # The time limit starts at the first failure, since a request may
            # legitimately take long.
            if failure is None and response.json().get("field") == "Authorization":
                retry_seconds = min(retry_seconds, TOKENS_SECONDS)
                if deadline is not None and deadline.left > retry_seconds:
                    deadline = None
            deadline = deadline or Deadline(retry_seconds)
            if deadline.left <= 0:
                break
            time.sleep(min(max(pause, asked_seconds), deadline.left))
        if failure is not None:
            message = f"{self.name} does not answer: {failure}"
            if retry_seconds:
                message += f" (tried for {retry_seconds:g} s{self._retry_setting})"
            raise Unreachable(message, sent=failure.sent) from failure
        if response.status >= 400 and response.status not in expected:
            raise self._error(response)
        return response

    def _error(self, response: Response) -> QuantumError:
        status = response.status
        if status >= 500 or status in BUSY:
            return QpuError(f"{self.name} is in trouble: {refusal(response)}")
        message = f"{self.name} refuses: {refusal(response)}"
        ended = status == 403 and response.json().get("field") == LEASE_HEADER
        if status == 401 or (status == 403 and not ended):
            by = self._credentials.name
            if by is None and response.json().get("field") == "Authorization":
                by = "--token-file, or tokenFile of a deployment, names a file with it"
            return AuthenticationError(f"{message} ({by})" if by else message)
        if ended:
            return LeaseLost(message)
        if self._under_lease and status == 404:
            return QpuError(message)
        return InputError(message)

    def text(self, content: Mapping[str, JSON], key: str) -> str:
        """Read a text that the answer must contain."""
        value = content.get(key)
        if not isinstance(value, str):
            raise QpuError(f"{self.name}: its answer has no {key!r}, is it sfq serve?")
        return value


def read_answer(who: str, kind: type[T], answer: JSON, what: str) -> T:
    """Read an answer of a service as a dataclass.

    :param who: name of the service
    :param what: expected kind of the answer, such as ``a job``
    :raises QpuError: if the answer is of another kind
    """
    try:
        return structs.read(kind, answer)
    except WrongValue as error:
        message = f"{who}: its answer is not {what}, is it sfq serve? {error}"
        raise QpuError(message) from error


def refusal(response: Response) -> str:
    """Return the service's reason for rejecting a request."""
    content = response.json()
    detail = content.get("detail") or f"HTTP status {response.status}"
    field = content.get("field")
    return shortened(f"{field}: {detail}" if field else str(detail))

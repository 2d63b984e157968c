"""Requests to a vendor's REST API, for clients of QPUs, with checked answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client, Response, Unreachable
from sf_quantum.protocol.bounds import ANSWER_BYTES
from sf_quantum.protocol.tasks import (
    LeaseLost,
    NotAccepted,
    Task,
    UnknownJob,
    WrongAnswer,
)
from sf_quantum.qpu import AuthenticationError
from sf_quantum.text import shortened

# Time limit of a request for a result, which may be large.
RESULT_SECONDS = 90.0
T = TypeVar("T")


class RestApi:
    """A vendor's REST API; raises the errors that :class:`~sf_quantum.qpu.Qpu` documents.

    :param qpu: name of the QPU in messages
    :param nothing_done: statuses after which a submission has certainly created no job, and
        another attempt may succeed; no proxy may send such a status after a submission
    :param its_own: statuses that mean this only if the answer contains ``code``; otherwise a
        proxy has answered, and the vendor may have created the job
    :param reason: field of an error answer that contains the reason
    :param code: field that only the vendor's own error answers have
    """

    def __init__(
        self,
        qpu: str,
        client: Client,
        *,
        nothing_done: Collection[int] = (429,),
        its_own: Collection[int] = (),
        reason: str = "error",
        code: str = "",
    ) -> None:
        self._name = f"QPU {qpu!r}"
        self._client = client
        self._nothing_done = nothing_done
        self._its_own = its_own
        self._reason = reason
        self._code = code

    def get(self, expected: type[T], path: str, *, result_of: Task | None = None) -> T:
        """Get an answer of a type that pydantic can check; see :meth:`send`.

        :raises QpuError: if the request fails, or the answer is of another type
        """
        return self.checked(expected, self.send("GET", path, result_of=result_of))

    def checked(self, expected: type[T], response: Response) -> T:
        """Parse an answer of a type that pydantic can check.

        ``NaN`` and infinities are read as ``null``: they are neither JSON nor valid numbers.

        :raises QpuError: if the answer is of another type
        """
        body = response.body
        with suppress(ValueError):  # the next check reports a body that is not JSON
            body = to_json(from_json(body), inf_nan_mode="null")
        try:
            return TypeAdapter(expected).validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "it"
            text = f"{self._name}: malformed answer: {where}: {first['msg']}"
            raise WrongAnswer(text, body.decode(errors="replace")) from error

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        *,
        expected: Collection[int] = (),
        result_of: Task | None = None,
    ) -> Response:
        """Send a request, without repeating it.

        An answer may have 8 MiB and take ten seconds; the result of a job may be as large as
        its shots allow, and take longer.

        :param expected: error statuses that the caller handles
        :param result_of: task whose result is requested
        :raises NotAccepted: if the request certainly had no effect, and may succeed later
        :raises LeaseLost: if the lease of the request has ended (410)
        :raises UnknownJob: if the path does not exist (404)
        :raises AuthenticationError: if the user is rejected (401, 403)
        :raises InputError: if the request is rejected for another reason
        :raises QpuError: if there is no answer, or the service fails
        """
        try:
            if result_of is None:
                request = partial(self._client.request, most_bytes=ANSWER_BYTES)
            else:
                request = partial(
                    self._client.request,
                    timeout_seconds=RESULT_SECONDS,
                    most_bytes=result_of.result_bytes,
                )
            response = request(method, path, body)
        except Unreachable as error:
            kind = QpuError if error.sent else NotAccepted
            raise kind(f"{self._name} does not answer: {error}") from error
        if 200 <= response.status < 300 or response.status in expected:
            return response
        raise self._refusal(response)

    def reason(self, response: Response) -> str:
        """Return a message with the vendor's reason for rejecting a request."""
        reason = response.json().get(self._reason) or f"HTTP status {response.status}"
        return f"{self._name}: {shortened(str(reason))}"

    def _refusal(self, response: Response) -> QpuError | InputError:
        status, text = response.status, self.reason(response)
        has_own_code = status in self._its_own and response.json().get(self._code)
        if has_own_code or status in self._nothing_done:
            return NotAccepted(text, response.retry_seconds)
        if status in self._its_own:
            return QpuError(text)
        if status in (401, 403):
            return AuthenticationError(text)
        if status == 404:
            return UnknownJob(text)
        if status == 410:
            return LeaseLost(text)
        return InputError(text) if 400 <= status < 500 else QpuError(text)

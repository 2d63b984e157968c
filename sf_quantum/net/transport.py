"""HTTP over TCP, TLS or a Unix socket with only the standard library.

Commands on compute nodes use this module, as importing requests or aiohttp would take longer
than their jobs.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import select
import socket
import ssl
import stat
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import ClassVar
from urllib.parse import urlsplit

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, mapping, parse_json
from sf_quantum.net import bounded_answers
from sf_quantum.protocol.bounds import RESULT_BYTES

# sun_path of <sys/un.h> has 108 bytes, including the final zero
SOCKET_PATH_BYTES = 107
# Longest wait before a retry; if a service requests a longer wait, retry after a day.
MOST_RETRY_SECONDS = 86400.0
# Longest wait for each step of a handshake that finds out whether a service speaks TLS.
PROBE_SECONDS = 2.0
# Reasons that versions of OpenSSL give for a plain answer in place of a handshake.
NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


class Unreachable(QpuError):
    """A request without an answer, or with an answer that cannot be read.

    :param sent: whether the service may have received the request
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Unsendable(InputError):
    """A request that cannot be sent: its headers are invalid, or the service is untrusted."""


@dataclass(frozen=True)
class Response:
    """The status and body of a service's answer.

    :param retry_seconds: wait that the service requests before a retry (``Retry-After``)
    """

    status: int
    body: bytes
    retry_seconds: float | None = None

    def json(self) -> dict[str, JSON]:
        """Parse the body as a JSON object; any other body yields an empty object."""
        with suppress(ValueError):
            return mapping(parse_json(self.body))
        return {}


class _TlsConnection(bounded_answers.Timed, http.client.HTTPSConnection):
    """A connection with TLS."""


class Client:
    """A client of one service; threads may share it, as each request opens a connection.

    :class:`KeptClient` keeps its connection for the next request.

    :param url: ``unix:/path.sock``, ``http://127.0.0.1:port`` or ``https://...``
    :param headers: headers of every request
    :param credential: function that is called for each request and returns further headers
    :param most_bytes: largest answer in bytes; a request may set a lower limit. By default
        ``RESULT_BYTES``
    :param plain: whether to allow plain HTTP to another machine, as a vendor's client would
    :raises InputError: if the URL has another form, if it is plain HTTP to another machine
        and this is not allowed, or if a header is not printable ASCII
    """

    _end: ClassVar[Mapping[str, str]] = {"Connection": "close"}

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        credential: Callable[[], Mapping[str, str]] = dict,
        *,
        most_bytes: int | None = None,
        plain: bool = False,
    ) -> None:
        self.url = url
        self._headers = {**headers, **self._end}
        self._credential = credential
        self._most_bytes = RESULT_BYTES if most_bytes is None else most_bytes
        _check_headers(headers)
        self._socket = _socket_path(url)
        self._base = _base("http://localhost" if self._socket else url, plain)
        self._kind: type[http.client.HTTPConnection]
        self._kind = _TlsConnection if self._base[0] else bounded_answers.Timed

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | bytes | None = None,
        *,
        timeout_seconds: float = 10.0,
        most_bytes: int | None = None,
    ) -> Response:
        """Send one request and return its response, regardless of the status.

        :param body: JSON
        :param timeout_seconds: time limit for sending the request, and then for receiving
            the whole answer
        :param most_bytes: largest answer in bytes, if below the client's limit
        :raises Unreachable: if the connection fails, or the answer is late, too large, or a
            redirect
        :raises Unsendable: if only one side uses TLS, the service's certificate cannot be
            verified, a header is not printable ASCII, or the credential cannot be read
        """
        headers = {} if body is None else {"Content-Type": "application/json"}
        if isinstance(body, Mapping):
            body = json.dumps(body, allow_nan=False).encode()
        status, received, answer = self.exchange(
            method, path, body, headers, timeout_seconds, most_bytes=most_bytes
        )
        wait = retry_seconds(received["Retry-After"], received["Date"])
        return Response(status, answer, wait)

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_seconds: float,
        *,
        most_bytes: int | None = None,
    ) -> tuple[int, Message, bytes]:
        """Send one request with its own and the client's headers; see :meth:`request`.

        :returns: status, headers and body of the answer
        """
        try:
            headers = {**headers, **self._headers, **self._credential()}
        except InputError as error:
            raise Unsendable(str(error)) from error
        _check_headers(headers)
        most = min(most_bytes or self._most_bytes, self._most_bytes)
        host, prefix = self._base[1], self._base[3]
        connection = self._connection(timeout_seconds)
        sent, reusable = False, False
        try:
            if connection.sock is None:
                self._connect(connection)
            sent = True
            connection.request(method, prefix + path, body, headers)
            with connection.getresponse() as response:
                answer = bounded_answers.body(response, most)
                reusable = not response.will_close
                _refuse_redirect(response)
                return response.status, response.headers, answer
        except TimeoutError as error:
            text = f"no answer within {timeout_seconds:g} s"
            raise Unreachable(text, sent=sent) from error
        except ssl.SSLCertVerificationError as error:
            raise Unsendable(
                f"{self.url}: the certificate cannot be verified: "
                f"{error.verify_message.rstrip('.').lower()}; SSL_CERT_FILE names the "
                "authorities to trust"
            ) from error
        except ssl.SSLError as error:
            if error.reason not in NO_TLS:
                raise Unreachable(_reason(error), sent=sent) from error
            right = "only services on this machine may be without it"
            if is_loopback(host):
                right = f"use http:{self.url.partition(':')[2]}"
            raise Unsendable(f"{self.url}: speaks no TLS; {right}") from error
        except (OSError, http.client.HTTPException) as error:
            if sent and self._speaks_tls(timeout_seconds):
                right = f"use https:{self.url.partition(':')[2]}"
                raise Unsendable(f"{self.url}: speaks TLS only; {right}") from error
            raise Unreachable(_reason(error), sent=sent) from error
        finally:
            self._finish(connection, reusable=reusable)

    def _speaks_tls(self, timeout_seconds: float) -> bool:
        """Return whether the service completes a TLS handshake, when plain HTTP failed."""
        tls, host, port, _ = self._base
        if tls or self._socket is not None:
            return False
        # No request is sent, so the service's certificate need not be trusted.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        seconds = min(timeout_seconds, PROBE_SECONDS)
        try:
            with (
                socket.create_connection((host, port), seconds) as plain,
                context.wrap_socket(plain, server_hostname=host),
            ):
                return True
        except (OSError, ValueError):
            return False

    def _connection(self, timeout_seconds: float) -> http.client.HTTPConnection:
        _, host, port, _ = self._base
        return self._kind(host, port, timeout=timeout_seconds)

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        if self._socket is None:
            connection.connect()
            return
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(connection.timeout)
        connection.sock.connect(self._socket)

    def _finish(
        self, connection: http.client.HTTPConnection, *, reusable: bool
    ) -> None:
        connection.close()


class KeptClient(Client):
    """A client that keeps its connection for the next request, for loops of jobs."""

    _end: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        credential: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        # Idle connections, each with the id of the process that opened it: a forked process
        # inherits its parent's connections, but must not use them.
        self._idle: deque[tuple[int, http.client.HTTPConnection]] = deque()
        super().__init__(url, headers, credential)

    def __del__(self) -> None:
        for _, connection in self._idle:
            connection.close()

    def __deepcopy__(self, _: object) -> KeptClient:
        """Return a client with its own connections; needed as PennyLane copies backends."""
        copied = copy(self)
        copied._idle = deque()
        return copied

    def _connection(self, timeout_seconds: float) -> http.client.HTTPConnection:
        """Return an idle connection that is still open, or a new one."""
        with suppress(IndexError):
            while True:
                process, connection = self._idle.pop()
                if (
                    process == os.getpid()
                    and connection.sock
                    and _open(connection.sock)
                ):
                    connection.sock.settimeout(timeout_seconds)
                    return connection
                connection.close()
        return super()._connection(timeout_seconds)

    def _finish(
        self, connection: http.client.HTTPConnection, *, reusable: bool
    ) -> None:
        if reusable and not self._idle:
            self._idle.append((os.getpid(), connection))
        else:
            connection.close()


def _open(idle: socket.socket) -> bool:
    """Return whether the service has kept an idle connection open."""
    return not select.select([idle], [], [], 0)[0]


def _refuse_redirect(response: http.client.HTTPResponse) -> None:
    if response.status in bounded_answers.REDIRECTS:
        # After these redirects, the request is to be sent again, so it has had no effect.
        sent = response.status not in bounded_answers.UNDONE_REDIRECTS
        raise Unreachable(
            bounded_answers.elsewhere(response.headers["Location"]), sent=sent
        )


def retry_seconds(retry_after: str | None, date: str | None) -> float | None:
    """Return the wait in seconds that an answer requests; ``None`` if it requests none.

    :param retry_after: header ``Retry-After`` (RFC 9110, 10.2.3): seconds, or a date
    :param date: header ``Date``, the service's wall-clock time
    """
    value = (retry_after or "").strip()
    if value.isdecimal():
        return min(float(value), MOST_RETRY_SECONDS)
    with suppress(ValueError, TypeError):
        retry_at = parsedate_to_datetime(value)
        now = parsedate_to_datetime(date or "")
        return min(max(0.0, (retry_at - now).total_seconds()), MOST_RETRY_SECONDS)
    return None


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            # The value is not shown, as it may be a credential.
            raise Unsendable(f"{name}: the value is not printable ASCII")


def _socket_path(url: str) -> str | None:
    """Return the path in a URL that begins with ``unix:``; ``None`` for other URLs.

    :raises InputError: if the path is not valid for a socket
    """
    if not url.startswith("unix:"):
        return None
    path = url.removeprefix("unix:")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    if not path.startswith("/"):
        raise InputError(f"{url}: expected an absolute path, unix:/folder/name.sock")
    if len(path.encode()) > SOCKET_PATH_BYTES:
        most = f"at most {SOCKET_PATH_BYTES} bytes"
        raise InputError(f"{url}: a socket's path has {most}")
    # A missing socket is not an error: the service may create it later.
    with suppress(OSError, ValueError):
        mode = os.stat(path).st_mode
        if not stat.S_ISSOCK(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a file"
            raise InputError(f"{url}: it is {kind}, not the socket of a service")
    return path


def _base(url: str, plain: bool) -> tuple[bool, str, int, str]:
    """Return whether TLS is used, the host, the port, and the prefix of all paths.

    :raises InputError: if the URL is invalid
    """
    shown = _without_password(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        why = "it is not a URL" if "@" in url else str(error)  # the error may quote it
        raise InputError(f"{shown}: {why}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            f"{shown}: expected unix:/path.sock, http://127.0.0.1:PORT or https://HOST"
        )
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise InputError(f"{shown}: its port is not a number from 1 to 65535")
    if any(char.isspace() or not char.isprintable() for char in url):
        raise InputError(f"{shown}: there is a space or a control character in it")
    if parts.query or parts.fragment:
        raise InputError(
            f"{shown}: it has a query or a fragment; write the part before"
        )
    if parts.username is not None:
        raise InputError(f"{shown}: a user or password in a URL is not sent; remove it")
    if parts.scheme == "http" and not (plain or is_loopback(parts.hostname)):
        raise InputError(f"{shown}: http is for this machine only; use https")
    tls = parts.scheme == "https"
    return tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/")


def _without_password(text: str) -> str:
    """Return a URL for a message, without the user and password before an ``@``."""
    before, slashes, after = text.partition("//")
    return f"{before}{slashes}{after.rpartition('@')[2]}"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reason(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection was closed without an answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__

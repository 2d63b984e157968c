"""Answers of services that may be slow, endless or too large: bounded in time and size.

A socket's time limit applies to each of its calls, so an answer that arrives byte by byte
could last forever. :class:`WholeAnswer` applies the limit to the whole answer, for all
clients that are built on :mod:`http.client`, such as urllib3.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from collections.abc import Iterable

# Largest total size of status lines and headers, including those of answers "100 Continue".
HEAD_BYTES = 256 * 1024
# Largest number of bytes per read.
PART_BYTES = 64 * 1024
# An answer is large if it has more bytes than this. A process reads this number of large
# answers concurrently; reading another answer pauses when it becomes large.
LARGE_BYTES = 1024 * 1024
LARGE_AT_ONCE = 2
_large_answers = threading.BoundedSemaphore(LARGE_AT_ONCE)
#: HTTP statuses of redirects
REDIRECTS = (300, 301, 302, 303, 307, 308)
# After these redirects, a request has certainly had no effect (RFC 9110, 15.4.8 and 15.4.9).
UNDONE_REDIRECTS = (307, 308)


def content_length(header: str | None) -> int | None:
    """Read a ``Content-Length`` (RFC 9110, 8.6): 0 if missing, ``None`` if malformed.

    Any number of leading zeros is valid, but Python's ``int`` reads at most 4,300 digits.
    """
    digits = (header or "").lstrip("0") or "0"
    return int(digits) if digits.isdecimal() and len(digits) <= 20 else None


class TooLarge(OSError):
    """An answer exceeds its size limit."""


class _Reader(io.RawIOBase):
    """Reads a socket; the socket's time limit applies to all reads together."""

    def __init__(self, sock: socket.socket) -> None:
        seconds = sock.gettimeout()
        self._sock = sock
        self._deadline = None if seconds is None else time.monotonic() + seconds
        # http.client may close the connection before the answer is read; the file keeps the
        # socket open.
        self._file = sock.makefile("rb", 0)
        #: bytes that may still be read
        self.left: int | None = HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        if self._deadline is not None:
            if (seconds := self._deadline - time.monotonic()) <= 0:
                raise TimeoutError("timed out")
            self._sock.settimeout(seconds)
        if self.left is None:
            return self._file.readinto(buffer)
        if self.left <= 0:
            raise TooLarge(f"its headers have more than {HEAD_BYTES:,} bytes")
        read = self._file.readinto(buffer[: self.left])
        self.left -= read or 0
        return read

    def close(self) -> None:
        self._file.close()
        super().close()


class _Socket:
    """Takes the place of a socket in a response, which only calls ``makefile``."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


class WholeAnswer(http.client.HTTPResponse):
    """A response with one time limit for the whole answer, and a size limit for its head."""

    def __init__(
        self,
        sock: socket.socket,
        debuglevel: int = 0,
        method: str | None = None,
        url: str | None = None,
    ) -> None:
        self._reader = _Reader(sock)
        sock_ = _Socket(self._reader)
        super().__init__(sock_, debuglevel, method, url)  # type: ignore[arg-type]

    def begin(self) -> None:
        super().begin()
        self._reader.left = None


class Timed(http.client.HTTPConnection):
    """A connection whose time limit applies to a whole request, then to a whole answer.

    Subclasses name this class as a base before the class of the connection.
    """

    response_class = WholeAnswer

    # The parameter is untyped: typeshed's type is a long union.
    def send(self, data) -> None:  # type: ignore[no-untyped-def]
        """Send a part of a request within the limit, which TLS would apply to each record."""
        if self.sock is None:
            self.connect()
        if not isinstance(data, bytes | bytearray):
            super().send(data)
            return
        seconds = self.sock.gettimeout()
        until = None if seconds is None else time.monotonic() + seconds
        left = memoryview(data)
        while left:
            if until is not None:
                if (rest := until - time.monotonic()) <= 0:
                    raise TimeoutError("timed out")
                self.sock.settimeout(rest)
            left = left[self.sock.send(left) :]
        self.sock.settimeout(seconds)


def body(response: http.client.HTTPResponse, most_bytes: int) -> bytes:
    """Read the body of a response; see :func:`whole`.

    :raises http.client.HTTPException: if the connection ends before the body does
    """
    if (response.length or 0) > most_bytes:
        raise too_large(most_bytes)
    at_once = min(PART_BYTES, most_bytes + 1)
    read = whole(iter(lambda: response.read(at_once), b""), most_bytes)
    if response.length:  # the number of bytes still missing
        raise http.client.IncompleteRead(b"", response.length)
    return read


def whole(parts: Iterable[bytes], most_bytes: int) -> bytes:
    """Join the small parts of an answer as they arrive.

    A process reads at most :data:`LARGE_AT_ONCE` large answers concurrently, regardless of
    what vendors send. Further large answers wait until one of these ends, at the latest at
    the time limit of its request.

    :raises TooLarge: as soon as the answer exceeds ``most_bytes``
    """
    read, large = io.BytesIO(), False  # getvalue() makes no copy
    try:
        for part in parts:
            read.write(part)
            if read.tell() > most_bytes:
                raise too_large(most_bytes)
            if read.tell() > LARGE_BYTES and not large:
                large = _large_answers.acquire()
    finally:
        if large:
            _large_answers.release()
    return read.getvalue()


def too_large(most_bytes: int) -> TooLarge:
    """Return the error for an answer of more than ``most_bytes``."""
    return TooLarge(f"the answer has more than {most_bytes:,} bytes")


def elsewhere(location: str | None) -> str:
    """Return a one-line message about a redirect.

    No client of sf_quantum follows redirects, since the headers may contain credentials.
    """
    # The query of the URL is left out, as it may contain a credential.
    place = (location or "").partition("?")[0]
    shown = "".join(c for c in place if c.isprintable())[:200] or "nowhere"
    return f"it redirects to {shown}, and no redirect is followed: correct the URL"

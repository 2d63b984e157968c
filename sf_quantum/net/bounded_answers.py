"""Answers of services that may be slow, endless or too large: bounded in time and size.

A socket's time limit applies to each of its calls, so an answer that drips in would never
end. :class:`WholeAnswer` applies the limit to the whole answer, for all clients that are
built on :mod:`http.client`, as urllib3 is.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from collections.abc import Iterable

# Largest size of status lines and headers, including those of all answers "100 Continue".
HEAD_BYTES = 256 * 1024
# Largest number of bytes per read.
PART_BYTES = 64 * 1024
# Bytes above which an answer is large, and number of large answers that a process reads
# concurrently: the others wait when they have reached that size.
LARGE_BYTES = 1024 * 1024
LARGE_AT_ONCE = 2
_large = threading.BoundedSemaphore(LARGE_AT_ONCE)
#: statuses of redirects
REDIRECTS = (300, 301, 302, 303, 307, 308)
# Redirects of requests that have certainly had no effect (RFC 9110, 15.4.8 and 15.4.9).
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
    """Reads a socket until a deadline, which the socket's time limit sets."""

    def __init__(self, sock: socket.socket) -> None:
        seconds = sock.gettimeout()
        self._sock = sock
        self._until = None if seconds is None else time.monotonic() + seconds
        # the file keeps the connection open if it is closed before its answer is read
        self._file = sock.makefile("rb", 0)
        #: bytes that may still be read
        self.left: int | None = HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        if self._until is not None:
            if (seconds := self._until - time.monotonic()) <= 0:
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
    """A socket for a response, which only calls its ``makefile``."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


class WholeAnswer(http.client.HTTPResponse):
    """A response whose time limit applies to all of it, and whose head is bounded."""

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

    A subclass names it before the kind of connection among its bases.
    """

    response_class = WholeAnswer

    # The parameter is untyped: typeshed's type is a union of everything that can be
    # sent.
    def send(self, data) -> None:  # type: ignore[no-untyped-def]
        """Send a part of a request; TLS alone would apply the time limit to each record."""
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

    :raises http.client.HTTPException: if the connection ends before the body
    """
    if (response.length or 0) > most_bytes:
        raise too_large(most_bytes)
    at_once = min(PART_BYTES, most_bytes + 1)
    read = whole(iter(lambda: response.read(at_once), b""), most_bytes)
    if response.length:  # the number of bytes still to come
        raise http.client.IncompleteRead(b"", response.length)
    return read


def whole(parts: Iterable[bytes], most_bytes: int) -> bytes:
    """Join the small parts of an answer as they arrive.

    A process reads at most :data:`LARGE_AT_ONCE` large answers concurrently, regardless of
    what a vendor sends. Other large answers wait at most for a request's time limit, which
    ends the answers being read.

    :raises TooLarge: as soon as the answer exceeds ``most_bytes``
    """
    read, large = io.BytesIO(), False  # getvalue() makes no copy
    try:
        for part in parts:
            read.write(part)
            if read.tell() > most_bytes:
                raise too_large(most_bytes)
            if read.tell() > LARGE_BYTES and not large:
                large = _large.acquire()
    finally:
        if large:
            _large.release()
    return read.getvalue()


def too_large(most_bytes: int) -> TooLarge:
    """Return the error for an answer of more than ``most_bytes``."""
    return TooLarge(f"the answer has more than {most_bytes:,} bytes")


def elsewhere(location: str | None) -> str:
    """Return a one-line message about a redirect.

    No client of sf_quantum follows redirects: a credential in a header of any name would be
    sent along.
    """
    # The query is left out, as it may contain a credential.
    place = (location or "").partition("?")[0]
    shown = "".join(c for c in place if c.isprintable())[:200] or "nowhere"
    return f"it redirects to {shown}, and no redirect is followed: correct the URL"

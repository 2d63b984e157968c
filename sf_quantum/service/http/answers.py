"""Responses ("answers") that clients are reading: small parts in memory, the rest on disk.

A client may read slowly, or not at all. Each part of an answer is sent once the connection
has accepted the previous part. Large answers that were made in memory are stored in files
without names, which disappear at the end of this process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import IO

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sf_quantum.service.domain.errors import Refused

# maximum size of a part of an answer; a smaller answer stays in memory
PART_BYTES = 128 * 1024
# Maximum total size of the stored answers of one user, and of all users. A single answer may
# be larger.
USER_BYTES, ALL_BYTES = 128 * 2**20, 1024 * 2**20
RETRY_SECONDS = 5
logger = logging.getLogger(__name__)


class PartsResponse(Response):
    """An answer whose parts are read from disk when the client is ready for them.

    :param size: size of the body in bytes
    :param read: reads a number of bytes (the second argument) from an offset (the first);
        called in another thread
    :param gone: refusal that is sent instead if nothing can be read any more
    """

    def __init__(
        self,
        size: int,
        read: Callable[[int, int], bytes],
        media_type: str,
        gone: Refused,
    ) -> None:
        super().__init__(media_type=media_type)
        self.headers["Content-Length"] = str(size)
        self._size = size
        self._read = read
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer.

        :raises Refused: if the answer was deleted before its first part was read
        """
        first = [await asyncio.to_thread(self._read, 0, min(PART_BYTES, self._size))]
        if self._size and not first[0]:
            raise self._gone

        def read(at: int, most: int) -> bytes:
            return first.pop() if first else self._read(at, most)

        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        await send_parts(self._size, read, send)


async def send_parts(size: int, read: Callable[[int, int], bytes], send: Send) -> None:
    """Send the body of an answer; each part once the client has accepted the previous part."""
    sent = 0
    while sent < size or not size:
        part = await asyncio.to_thread(read, sent, min(PART_BYTES, size - sent))
        sent += len(part)
        has_more = sent < size
        if (
            has_more and not part
        ):  # deleted meanwhile: the connection ends before the end of the answer
            logger.warning("an answer was deleted while it was sent")
            return
        await send({"type": "http.response.body", "body": part, "more_body": has_more})
        if not has_more:
            return


class Answers:
    """The answers that are stored until clients have read them.

    :param folder: folder of the files; ``None``: the system's folder for temporary files
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._of_user = Counter[str]()

    def check(self, user: str, more: int = 0) -> None:
        """Refuse a request if too many bytes of earlier answers are unread.

        :param more: size of the answer to the request in bytes
        :raises Refused: 429 if the user's unread answers are too large, 503 if those of all
            users are too large
        """
        user_bytes, total_bytes = self._of_user[user], self._of_user.total()
        retry = {"Retry-After": f"{RETRY_SECONDS}", "Connection": "close"}
        if user_bytes and user_bytes + more > USER_BYTES:
            detail = (
                f"{user_bytes >> 20} MiB of answers are not read yet: read them first"
            )
            raise Refused(429, detail, headers=retry)
        if total_bytes and total_bytes + more > ALL_BYTES:
            detail = "too many answers are not read by their clients yet"
            raise Refused(503, detail, headers=retry)

    async def send(self, user: str, whole: Whole, send: Send) -> None:
        """Send a complete answer; a large answer is first stored on disk, to free its memory.

        :raises Refused: see :meth:`check`; 503 if the answer cannot be stored
        """
        size = len(whole.body)
        if size <= PART_BYTES:
            await send(whole.start)
            await send({"type": "http.response.body", "body": whole.body})
            return
        self.check(user, size)
        async with self._store_on_disk(user, whole) as file:
            await send(whole.start)
            await send_parts(
                size, lambda at, most: os.pread(file.fileno(), most, at), send
            )

    @asynccontextmanager
    async def _store_on_disk(self, user: str, whole: Whole) -> AsyncIterator[IO[bytes]]:
        size = len(whole.body)
        self._of_user[user] += size
        try:
            with await asyncio.to_thread(self._write, whole) as file:
                yield file
        finally:
            self._of_user[user] -= size
            if not self._of_user[user]:
                del self._of_user[user]

    def _write(self, whole: Whole) -> IO[bytes]:
        try:
            with ExitStack() as stack:
                file = stack.enter_context(tempfile.TemporaryFile(dir=self._folder))
                file.write(whole.body)
                file.flush()
                stack.pop_all()  # the file stays open
        except OSError as error:
            detail = f"the answer cannot be stored: {error.strerror or error}"
            retry = {"Retry-After": f"{RETRY_SECONDS}"}
            raise Refused(503, detail, headers=retry) from error
        whole.body = b""
        return file


class Whole:
    """Keeps an answer in one piece until its route has ended; passes on a streamed answer.

    The memory of the body cannot be freed earlier, since the running route refers to it.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._streams = False
        self.start: Message = {}
        self.body = b""

    @property
    def complete(self) -> bool:
        """Whether a whole answer is kept, and has to be sent."""
        return bool(self.start) and not self._streams

    async def take(self, message: Message) -> None:
        """Handle a message that the route sends."""
        if message["type"] == "http.response.start":
            self.start = message
        elif self._streams or message.get("more_body"):
            if not self._streams:
                self._streams = True
                await self._send(self.start)
            await self._send(message)
        else:
            self.body = message.get("body", b"")

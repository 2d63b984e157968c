"""Bodies that are compressed with gzip."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable

from sf_quantum.service.domain.errors import Refused
from sf_quantum.threads import in_thread

# value of zlib's wbits for the gzip format with the largest window
_GZIP_FORMAT = 31


async def decompressed(
    body: bytes, most: int, at_once: int, turn: Callable[[], Awaitable[None]]
) -> bytes:
    """Decompress a body; a large body is decompressed in another thread.

    :param most: maximum number of bytes of the decompressed body
    :param at_once: maximum number of bytes that are decompressed without another thread
    :param turn: waits for the turn of a large body
    :raises Refused: 400 if the body is not complete gzip, 413 if it is too large
    """
    decompressor = zlib.decompressobj(_GZIP_FORMAT)
    try:
        decoded = decompressor.decompress(body, min(most, at_once) + 1)
        if len(decoded) > at_once and len(decoded) <= most:
            await turn()
            rest = decompressor.unconsumed_tail
            decoded += await asyncio.wrap_future(
                in_thread(
                    lambda: decompressor.decompress(rest, most + 1 - len(decoded))
                )
            )
    except zlib.error as error:
        raise Refused(400, "the body is not in the format of gzip") from error
    if len(decoded) > most:
        raise Refused(413, f"the body has more than {most} bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise Refused(400, "the body is not one complete file of gzip")
    return decoded

"""Messages between the service and its processes: a JSON object, and a text of any size.

A text is sent in pieces. Python holds its global lock while it copies, encodes or decodes a
string, and on a busy machine, the thread may lose the processor meanwhile. With a copy of
20 MB, the event loop would wait for both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TypeAlias

from sf_quantum.files import JSON, mapping

Message: TypeAlias = tuple[dict[str, JSON], str]
#: maximum characters of a piece
PIECE = 1 << 18


def send(connection: Connection, head: Mapping[str, JSON], *texts: str) -> None:
    """Send a message; blocks.

    :param texts: parts of its text
    :raises ConnectionError: if the other end is closed
    """
    connection.send_bytes(json.dumps(head).encode())
    for text in texts:
        for start in range(0, len(text), PIECE):
            connection.send_bytes(text[start : start + PIECE].encode())
    connection.send_bytes(b"")


def receive(connection: Connection) -> Message:
    """Receive a message; blocks.

    :raises EOFError: if the other end is closed
    """
    head = mapping(json.loads(connection.recv_bytes()))
    pieces = iter(connection.recv_bytes, b"")
    return head, "".join(piece.decode() for piece in pieces)

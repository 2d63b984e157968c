"""Messages between the service and its processes: JSON objects, and texts of any size.

A text is sent in pieces. Python holds its global lock while it copies, encodes or decodes a
string, and on a busy machine the thread may lose the processor meanwhile. With a text of
20 MB in one piece, the event loop would wait for the copy and for the thread to resume.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, TypeVar

from sf_quantum import structs
from sf_quantum.files import JSON

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
#: maximum characters of a piece
PIECE = 1 << 18


@dataclass(frozen=True)
class Request:
    """A call of a function of :mod:`.program`.

    :param limits: fields of :class:`.ComputeLimits`
    """

    call: str
    arguments: dict[str, JSON]
    limits: dict[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    :param last: whether the process now ends
    :param error: why there is no result
    :param info: what is known about the result
    """

    last: bool
    error: str | None = None
    info: dict[str, JSON] = field(default_factory=dict)


def send(connection: Connection, head: DataclassInstance, *texts: str) -> None:
    """Send a message; blocks.

    :param texts: parts of the message's text
    :raises ConnectionError: if the other end is closed
    """
    connection.send_bytes(json.dumps(vars(head)).encode())
    for text in texts:
        for start in range(0, len(text), PIECE):
            connection.send_bytes(text[start : start + PIECE].encode())
    connection.send_bytes(b"")


def receive(connection: Connection, kind: type[T]) -> tuple[T, str]:
    """Receive a message of a kind; blocks.

    :raises EOFError: if the other end is closed
    """
    head = structs.read(kind, json.loads(connection.recv_bytes()))
    pieces = iter(connection.recv_bytes, b"")
    return head, "".join(piece.decode() for piece in pieces)

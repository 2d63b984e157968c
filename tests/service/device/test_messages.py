"""Texts of any size between the service and its processes."""

from __future__ import annotations

from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from sf_quantum.service.device.processes import messages
from sf_quantum.service.device.processes.messages import Request
from sf_quantum.threads import in_thread

REQUEST = Request("run", {"seed": 1}, {"cpu_seconds": 5})
MESSAGES = [
    (),
    ("",),
    ("one", "", "other"),
    ("x" * messages.PIECE,),
    # characters of several bytes each, of which no piece has a part
    ("a" + "ä€\U0001f600" * messages.PIECE, "\n"),
]


@pytest.mark.parametrize("texts", MESSAGES, ids=range(len(MESSAGES)))
def test_a_text_arrives_as_it_was_sent(texts: tuple[str, ...]) -> None:
    ours, its = Pipe()
    sending = in_thread(lambda: messages.send(ours, REQUEST, *texts))
    assert messages.receive(its, Request) == (REQUEST, "".join(texts))
    sending.result()


def test_no_piece_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = Pipe()
    sizes = []
    receive = Connection.recv_bytes

    def received(self: Connection) -> bytes:
        sizes.append(len(piece := receive(self)))
        return piece

    monkeypatch.setattr(Connection, "recv_bytes", received)
    text = "x" * (5 * messages.PIECE + 1)
    sending = in_thread(lambda: messages.send(ours, REQUEST, text))
    assert messages.receive(its, Request) == (REQUEST, text)
    sending.result()
    assert max(sizes) == messages.PIECE


def test_an_end_that_is_closed_in_a_text_is_told() -> None:
    ours, its = Pipe()
    ours.send_bytes(b'{"call": "run", "arguments": {}}')
    ours.send_bytes(b"cut sh")
    ours.close()
    with pytest.raises(EOFError):
        messages.receive(its, Request)

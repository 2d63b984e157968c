"""A service that gives prepared replies, right or wrong."""

from __future__ import annotations

import json
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TypeAlias

from sf_quantum.files import JSON

Content: TypeAlias = "JSON | Mapping[str, JSON]"
# a status, a content and perhaps further headers
Reply: TypeAlias = tuple[int, Content] | tuple[int, Content, dict[str, str]] | None


class Scripted(HTTPServer):
    """Gives one reply after the other, a text as it is and other content as JSON.

    ``None`` closes the connection without a reply.
    """

    def __init__(self, replies: list[Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: Iterator[Reply] = iter(replies)
        self.keys: list[str] = []
        self.bodies: list[dict[str, JSON]] = []
        self.credentials: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


Serve: TypeAlias = Callable[[list[Reply]], Scripted]


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def _reply(self) -> None:
        self.server.credentials.append(self.headers.get("X-Munge-Cred"))
        length = int(self.headers.get("Content-Length", 0))
        if length:
            body = json.loads(self.rfile.read(length))
            self.server.bodies.append(body)
            if isinstance(body, dict):
                self.server.keys.append(body.get("idempotency_key", ""))
        reply = next(self.server.replies, None)
        if reply is not None:
            status, text, *further = reply
            content = (text if isinstance(text, str) else json.dumps(text)).encode()
            headers = {"Content-Length": str(len(content))}
            self.send_response(status)
            for name, value in ChainMap(*further, headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _reply

    def log_message(self, *_: str) -> None:
        pass


@contextmanager
def scripted_server(replies: list[Reply]) -> Iterator[Scripted]:
    """Serve in a thread."""
    with Scripted(replies) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

"""An IQM Server whose account books timeslots, in front of our service's IQM API.

It answers as IQM's OpenAPI document says: a list of the timeslots that are booked, and a refusal
of jobs for them if there are none. Our service gets every job without them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

from tests.support.waiting import SECONDS


@dataclass
class TimeslotServer:
    """The server.

    :param service: URL of the service that has the QPU
    :ivar booked: begin and end of each timeslot, in seconds since the epoch
    :ivar submissions: the queries of the submissions, oldest first
    :ivar ranges: the queries of the requests for timeslots
    """

    service: str
    url: str = ""
    booked: Sequence[tuple[float, float]] = ()
    submissions: list[dict[str, list[str]]] = field(default_factory=list)
    ranges: list[dict[str, list[str]]] = field(default_factory=list)

    def answer(
        self, method: str, target: str, body: bytes, authorization: str
    ) -> tuple[int, bytes]:
        """Answer a request itself, or with the service's answer."""
        parts = urlsplit(target)
        query = parse_qs(parts.query)
        if parts.path.endswith("/timeslots"):
            self.ranges.append(query)
            slots = [_slot(*times) for times in self.booked]
            listed = {"available_slots": [], "booked_slots": slots, "queue_length": 0}
            return 200, json.dumps(listed).encode()
        if method == "POST" and parts.path.endswith("/circuit"):
            self.submissions.append(query)
            if query["use_timeslot"] == ["true"] and not self.booked:
                code, message = "no_booked_timeslots", "No timeslots are booked"
                refusal = {"error_code": code, "message": message, "request_id": "1"}
                return 403, json.dumps(refusal).encode()
            target = target.replace("use_timeslot=true", "use_timeslot=false")
        headers = {"Authorization": authorization, "Content-Type": "application/json"}
        data = body if method == "POST" else None
        request = Request(self.service + target, data, headers, method=method)
        try:
            with urlopen(request, timeout=SECONDS) as response:
                return response.status, response.read()
        except HTTPError as error:
            return error.code, error.read()


def _slot(begin: float, end: float) -> dict[str, str]:
    start, stop = (datetime.fromtimestamp(one, UTC).isoformat() for one in (begin, end))
    return {"reference": start, "start": start, "end": stop, "price": "1.00"}


@contextmanager
def timeslot_server(service: str) -> Iterator[TimeslotServer]:
    """Run the server on a port of its own."""
    server = TimeslotServer(service)

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            authorization = self.headers.get("Authorization", "")
            status, content = server.answer(
                self.command, self.path, body, authorization
            )
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = reply

        def log_message(self, *_: str) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        server.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()

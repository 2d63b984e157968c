"""A stand-in for Acme, the vendor of ``examples/new-qpu``: it misbehaves on command, and counts.

It runs in a thread (:class:`Vendor`), or as a process that can be killed and started again
(:class:`VendorProcess`). What it has promised is in a database in its folder. Its jobs run
one at a time and are really sampled::

    with Vendor(tmp_path) as vendor:
        monkeypatch.syspath_prepend(vendor.site())  # or the PYTHONPATH of a process
        driver = qpu.load("acme").from_config("one", vendor.config)
        vendor.fault("cut after", method="POST", path="/jobs")
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from tests.support.folders import ROOT
from tests.support.vendor_machine import (
    KEY,
    Answer,
    Count,
    Fate,
    Fault,
    Machine,
    Trouble,
)
from tests.support.waiting import SECONDS, until

EXAMPLE = ROOT / "examples/new-qpu"


class Handler(BaseHTTPRequestHandler):
    """Acme's REST API, and the path of commands."""

    def handle_one_request(self) -> None:
        """Take any method."""
        self.raw_requestline = self.rfile.readline(65537)
        # whoever asks may go at any time
        with suppress(ConnectionError):
            if self.raw_requestline and self.parse_request():
                size = int(self.headers.get("Content-Length") or 0)
                self.take(self.rfile.read(size))
        self.close_connection = True

    @property
    def machine(self) -> Machine:
        return cast("Server", self.server).machine

    def take(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        if parts.path.startswith("/command/"):
            name = parts.path.removeprefix("/command/")
            self.send(200, self.machine.command(name, json.loads(body)))
            return
        self.machine.pause(self.machine.settings.latency_seconds)
        trouble = self.machine.trouble(self.command, parts.path)
        if trouble is not None and not self.befall_before(trouble):
            return
        key, path = self.headers.get("X-Acme-Key"), parts.path.strip("/").split("/")
        answer = self.machine.answer(key, self.command, path, parts.query, body)
        if trouble is None or self.befall_after(trouble, answer):
            self.send(*answer)

    def befall_before(self, trouble: Trouble) -> bool:
        """Have a fault befall a request; whether it goes on."""
        match trouble.kind:
            case "busy":
                self.send(429, {"error": "too many requests"}, trouble)
            case "error":
                self.send(500, {"error": "an internal error"})
            case "late":
                self.machine.wait()
        return trouble.kind not in ("busy", "error", "cut")

    def befall_after(self, trouble: Trouble, answer: Answer) -> bool:
        """Have a fault befall the answer; whether it is sent."""
        match trouble.kind:
            case "error after":
                self.send(500, {"error": "an internal error"})
            case "cut amid":
                self.begin(answer[0], 1000)
                self.wfile.write(b"{")
            case "late answer":
                self.machine.wait()
            case "large":
                self.begin(200)
                for _ in range(0, trouble.size, 2**16):
                    self.wfile.write(b" " * 2**16)
            case "answer":
                self.begin(200, len(trouble.body))
                self.wfile.write(trouble.body.encode())
        return trouble.kind in ("late", "late answer")

    def begin(self, status: int, length: int | None = None) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def send(self, status: int, content: JSON, trouble: Trouble | None = None) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        if trouble is not None and (seconds := trouble.retry_after) is not None:
            date = formatdate(self._now() + seconds, usegmt=True)
            self.send_header("Retry-After", date if trouble.as_date else f"{seconds:g}")
        elif status == 429 and trouble is None:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _now(self) -> float:
        return time.time() + self.machine.settings.skew_seconds

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self._now(), usegmt=True)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Acme's service."""

    # as many as connect at once
    request_queue_size = 128
    # requests end before the machine does
    daemon_threads = False

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.machine = Machine(folder)


class Control:
    """The commands to a vendor, and what it has counted.

    :param folder: of its state; it is made
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.port = 0
        self.key_file = folder / "acme.key"
        self.key_file.write_text(f"{KEY}\n")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def config(self) -> dict[str, JSON]:
        """The configuration of a QPU of the type ``acme``."""
        return {"url": self.url, "keyFile": str(self.key_file)}

    def site(self) -> str:
        """Make a folder for ``sys.path`` in which the type ``acme`` is installed."""
        project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
        site = self.folder / "site"
        made = site / f"acme_qpu-{project['version']}.dist-info"
        made.mkdir(parents=True, exist_ok=True)
        about = f"Name: {project['name']}\nVersion: {project['version']}\n"
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\n{about}")
        ((group, entries),) = project["entry-points"].items()
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (made / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        with suppress(FileExistsError):
            (site / "acme_qpu.py").symlink_to(EXAMPLE / "acme_qpu.py")
        return str(site)

    def command(self, name: str, **arguments: JSON) -> JSON:
        """Have it do something; see :meth:`Machine.command`."""
        client = Client(self.url, {})
        answer = client.request(
            "POST", f"/command/{name}", arguments, timeout_seconds=SECONDS
        )
        assert answer.status == 200, f"{name}: {answer}"
        result: JSON = json.loads(answer.body)
        return result

    def set(self, **settings: JSON) -> None:
        """Change :class:`~tests.support.vendor_machine.Settings`."""
        self.command("set", **settings)

    def fault(self, kind: Fault, path: str = "", **more: JSON) -> None:
        """Have a fault befall the next request, or several.

        :param path: what the path of the request begins with
        :param more: see :class:`~tests.support.vendor_machine.Trouble`
        """
        self.command("fault", kind=kind, path=path, **more)

    def let_through(self) -> None:
        """End the wait of all requests that are late."""
        self.command("let_through")

    def until_late(self, number: int = 1) -> None:
        """Wait until a total number of requests have been late."""
        until(lambda: self.seen("late") >= number, f"{number} requests are late")

    def seen(self, what: Literal["late", "requests", "booked"]) -> int:
        """How many requests there have been since the start, or bookings there are now."""
        return cast("dict[str, int]", self.command("seen"))[what]

    def next_jobs(self, *fates: Fate) -> None:
        """Decide what becomes of the next jobs that it accepts."""
        self.command("next_jobs", fates=[*fates])

    def vanish(self, tag: str) -> None:
        """Forget a job, which does not run any more."""
        self.command("vanish", tag=tag)

    def end_bookings(self) -> None:
        """End all bookings, as an operator does; the jobs go on."""
        self.command("end_bookings")

    def counts(self) -> dict[str, Count]:
        """What it has done, by tag."""
        return TypeAdapter(dict[str, Count]).validate_python(self.command("counts"))

    def until(self, tag: str, phase: str) -> None:
        """Wait until the only job of a tag is in a phase."""
        until(lambda: self._phases(tag) == [phase], f"{tag} is {phase}")

    def _phases(self, tag: str) -> list[str]:
        known = self.counts()
        return known[tag].phases if tag in known else []


class Vendor(Control):
    """The vendor in a thread."""

    def __enter__(self) -> Self:
        self._server = Server(self.folder, self.port)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.machine.stop()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.machine.close()


class VendorProcess(Control):
    """The vendor as a process, which ends with the one that has started it."""

    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, again at the same port, and go on with its jobs."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.vendor", self.folder, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """Kill it with SIGKILL, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def main() -> None:
    folder, port = sys.argv[1:]
    server = Server(Path(folder), int(port))
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    # until whoever has started it ends
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()

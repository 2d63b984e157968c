"""A slurmrestd of a test's own in front of a lab, and what may come between."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sf_quantum.files import JSON
from tests.lab import Lab
from tests.support import lab_site
from tests.support.waiting import SECONDS, until


class Rest:
    """The daemon, which may be killed and started again, and the token for it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self.folder = folder
        self.token = folder / "token"
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> JSON:
        """The key of the deployment."""
        return {"url": f"unix:{self.folder}/rest", "tokenFile": str(self.token)}

    def renew(self, seconds: int = 600) -> None:
        """Write a token with a lifetime."""
        said = self._lab.output("scontrol", "token", f"lifespan={seconds}")
        beside = self.folder / "new"
        beside.touch(0o600)
        beside.write_text(said)
        beside.rename(self.token)

    def start(self) -> None:
        """Start it, and wait until it listens."""
        path = self.folder / "rest"
        path.unlink(missing_ok=True)
        environment = lab_site.environment(lab_site.REST, self.folder)
        with open(self.folder / "log", "wb") as log:
            self._daemon = daemon = subprocess.Popen(
                lab_site.slurmrestd(path),
                env={**os.environ, **self._lab.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        ready = "slurmrestd listens, or has ended"
        until(lambda: path.exists() or daemon.poll() is not None, ready, SECONDS)
        assert path.exists(), (self.folder / "log").read_text()

    def kill(self) -> None:
        """Kill it."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
            self._daemon = None

    @contextmanager
    def losing_an_answer(self) -> Iterator[JSON]:
        """Lose the first answer to a submission on its way back; gives the key."""
        path = self.folder / "losing"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            relay = _Relay(listening, self.folder / "rest")
            relay.start()
            try:
                yield {"url": f"unix:{path}", "tokenFile": str(self.token)}
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                relay.join()
                path.unlink()
        assert relay.lost


class _Relay(threading.Thread):
    """Passes requests on, one connection after the other, each with one request."""

    def __init__(self, listening: socket.socket, target: Path) -> None:
        super().__init__()
        self._listening = listening
        self._target = target
        self.lost = False

    def run(self) -> None:
        with suppress(OSError):  # until it does not listen any more
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(OSError):
                    self._pass(connection)

    def _pass(self, connection: socket.socket) -> None:
        request = _message(connection)
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._target))
            server.sendall(request)
            answer = _message(server)
        if request.startswith(b"POST") and not self.lost:
            self.lost = True
            return
        connection.sendall(answer)


def _message(connection: socket.socket) -> bytes:
    text = b""
    while b"\r\n\r\n" not in text:
        text += connection.recv(65536)
        assert text
    head, _, body = text.partition(b"\r\n\r\n")
    lines = head.lower().splitlines()
    (length,) = [int(x[15:]) for x in lines if x.startswith(b"content-length:")] or [0]
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def rest(lab: Lab) -> Iterator[Rest]:
    """Run slurmrestd, with a token that lasts."""
    folder = Path(tempfile.mkdtemp(prefix="sfq-"))
    made = Rest(lab, folder)
    made.renew()
    made.start()
    try:
        yield made
    finally:
        made.kill()
        shutil.rmtree(folder)

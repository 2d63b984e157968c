"""A service with MUNGE, and the stock client of QRMI that asks it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sf_quantum.files import JSON, mapping
from sf_quantum.net import munge
from sf_quantum.net.transport import Client, Response
from tests.support import devices, forking
from tests.support.folders import DATA
from tests.support.service_process import until_ready
from tests.support.waiting import SECONDS, until

SFQ = [
    sys.executable,
    "-c",
    "import sys; from sf_quantum.cli import main; sys.exit(main())",
]


NAME = "local_qpu"


SEQUENCE = (DATA / "sequence.json").read_text()


# The default socket of MUNGE, for one process and its children: a mount of their own
# hides this machine's, if it has one.
OWN_SOCKET = (
    "mount -t tmpfs none /run && mkdir /run/munge && "
    'ln -s "$0" /run/munge/munge.socket.2 && exec "$@"'
)


@pytest.fixture(scope="module")
def alone(munge_socket: Path) -> list[str]:
    """What a command begins with whose MUNGE is the tests' own."""
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    unshare = ["unshare", "--mount"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    prefix = [*unshare, "sh", "-c", OWN_SOCKET, str(munge_socket)]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"]).returncode:
        pytest.skip("no mount namespaces here (unshare --mount)")
    return prefix


class Stock:
    """The client, with the environment of a job that the SPANK plugin prepares."""

    def __init__(self, alone: list[str], url: str, uid: int, job: str) -> None:
        self.process = subprocess.Popen(
            [*alone, sys.executable, str(Path(__file__).parent / "qrmi_client.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                f"{NAME}_QRMI_WARDEN_URL": url,
                # a refusal is what it is
                f"{NAME}_QRMI_PASQAL_RETRIES_DISABLED": "true",
                "QRMI_JOB_UID": str(uid),
                "QRMI_JOB_ID": job,
            },
        )

    def send(self, *call: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, str]:
        assert self.process.stdout is not None
        told: dict[str, str] = json.loads(self.process.stdout.readline())
        return told

    def __call__(self, *call: str) -> str:
        self.send(*call)
        return self.answer()["ok"]

    def error(self, *call: str) -> str:
        self.send(*call)
        return self.answer()["error"]

    def until(self, task: str, *words: str) -> str:
        def reached() -> str:
            word = self("task_status", task)
            return word if word in words else ""

        return until(reached, f"task {task} is {' or '.join(words)}")


class Service:
    """A service, and requests to it with a fresh credential each."""

    def __init__(self, url: str, socket: Path, alone: list[str]) -> None:
        self.url = url
        self.socket = socket
        self._alone = alone
        self._clients: list[Stock] = []

    def stock(self, uid: int = 0, job: str = "12") -> Stock:
        self._clients.append(Stock(self._alone, self.url, uid, job))
        return self._clients[-1]

    def credential(self, uid: int) -> str:
        if uid == os.geteuid():
            return munge.encode(str(self.socket))
        # the command, since this Python may not be another user's to run
        command = ["munge", "--no-input", f"--socket={self.socket}"]
        done = subprocess.run(command, user=uid, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, JSON] | None = None,
        *,
        uid: int | None = None,
        **headers: str,
    ) -> Response:
        uid = os.geteuid() if uid is None else uid
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent["X-Munge-Cred"] = self.credential(uid)
        return Client(self.url, sent).request(
            method, path, body, timeout_seconds=SECONDS
        )

    def close(self) -> None:
        for client in self._clients:
            with client.process:
                client.process.kill()


@contextmanager
def serving(config: dict[str, JSON], folder: Path) -> Iterator[str]:
    path = folder / "qpu-service.yml"
    read, write = os.pipe()
    with (
        open(read) as output,
        devices.configured(mapping(config["device"]), folder / "vendor") as over,
    ):
        path.write_text(json.dumps({**config, "device": over.device}))
        words = ["sfq", "serve", "--config", str(path)]
        environment = {**os.environ, **over.environment}
        process = forking.Command(words, folder, environment, write, 2)
        os.close(write)
        try:
            url = json.loads(output.readline())["url"]
            until_ready(url)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0

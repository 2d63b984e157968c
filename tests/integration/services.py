"""The QPU service as a process of its own, which can be killed and started again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.service.http import auth
from tests import devices, forking
from tests.forking import Command
from tests.service import example_bqm

OCCUPIED = "occupied"
# options of the emulated device
EMULATED = ("--time-scale", "--qubits", "--noise", "--seed", "--technology", "--faults")
SFQ = [str(Path(sys.executable).parent / "sfq")]


def only_by_qrmi(folder: Path) -> Path:
    """Write a site's file with a QPU that only the package qrmi reaches, and so needs it."""
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    entry: JSON = {
        "name": "cold",
        "type": "iqm-server",  # whose leases its client grants by itself
        "environment": {
            "QRMI_IQM_ISA_ENDPOINT": "http://127.0.0.1:1",
            "QRMI_IQM_ISA_TOKEN": "its own",
        },
    }
    file = folder / "qrmi_config.json"
    file.write_text(json.dumps({"resources": [entry]}))
    return file


def _split(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split options into those of a service and those of its emulated device."""
    split: tuple[list[str], list[str]] = [], []
    for name, value in zip(options[::2], options[1::2], strict=True):
        split[name in EMULATED].extend((name, value))
    return split


class QpuService:
    """``sfq serve`` with its state in a folder, and its operator.

    If ``sfq`` was chosen as the device, another one behind it has the emulated device.

    :param options: of ``sfq serve``
    """

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._vendor: Vendor | None = None
        if devices.chosen == "sfq":
            own, behind = _split(options)
            options = (*own,)
            self._vendor = Vendor(folder / "vendor", *behind)
        self._options = ["--state", str(folder / "state"), *options]
        self._process: Command | None = None
        self._headers: dict[str, str] = {}
        self.url = ""

    def with_tokens(self, user: str) -> str:
        """Ask for bearer tokens, and give a user one.

        :returns: the file with the user's token
        """
        made = {user: auth.new_token(), "operator": auth.new_token()}
        tokens = self._folder / "tokens.yml"
        tokens.touch(0o600)
        entries = [auth.entry(u, made[u], admin=u == "operator") for u in made]
        tokens.write_text(json.dumps(entries))
        self._options += ["--auth", "token", "--tokens", str(tokens)]
        self._headers = {"Authorization": f"Bearer {made['operator']}"}
        file = self._folder / "qpu.token"
        file.touch(0o600)
        file.write_text(f"{made[user]}\n")
        return str(file)

    def start(self) -> None:
        """Start the service, again under the same URL."""
        if self._vendor is not None and not self._vendor.url:
            self._options += ["--config", self._vendor.in_front()]
        elif self._vendor is not None:
            self._vendor.start()
        if self.url:
            self._options += ["--port", self.url.rpartition(":")[2]]
        output, theirs = os.pipe()
        with open(output) as told, open(self._folder / "log", "ab") as log:
            words = ["sfq", "serve", *self._options]
            self._process = forking.start(
                words, Path.cwd(), os.environ, theirs, log.fileno()
            )
            os.close(theirs)
            line = told.readline()
        assert line, (self._folder / "log").read_text()
        self.url = json.loads(line)["url"]

    def children(self) -> list[psutil.Process]:
        """The processes that the service has started."""
        assert self._process is not None
        return psutil.Process(self._process.pid).children()

    def kill(self) -> None:
        """End the service with no chance to do anything."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._vendor is not None:
            self._vendor.kill()

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, JSON] | None = None,
        lease: str = "",
    ) -> JSON:
        """Send a request as the operator."""
        headers = {**self._headers, **({"X-SFQ-Lease": lease} if lease else {})}
        answer = Client(self.url, headers).request(method, path, body)
        assert answer.status < 400, answer
        content: JSON = json.loads(answer.body)
        return content

    def lease(self) -> str:
        """Take a lease."""
        lease = self.ask("POST", "/v1/leases", {"job": "of the test"})
        assert isinstance(lease, dict)
        return str(lease["id"])

    def occupy(self, shots: int = 100_000) -> str:
        """Keep the device busy until the lease is released.

        :returns: the lease
        """
        lease = self.lease()
        self.ask(
            "POST",
            "/v1/jobs",
            {
                "problem": example_bqm(),
                "parameters": {"num_reads": shots},
                "idempotency_key": f"{OCCUPIED}-{lease}",
            },
            lease,
        )
        return lease

    def release(self, lease: str) -> None:
        """Give a lease back, and cancel its jobs."""
        self.ask("DELETE", f"/v1/leases/{lease}")

    def held(self) -> list[str]:
        """What the leases that are held are for."""
        leases = self.ask("GET", "/v1/leases")
        assert isinstance(leases, list)
        return [str(lease["job"]) for lease in leases if isinstance(lease, dict)]

    def jobs(self) -> list[str]:
        """The states of all jobs, less those that occupy the device."""
        return [state for key, state in self._jobs() if not key.startswith(OCCUPIED)]

    def occupants(self) -> list[str]:
        """The states of the jobs that occupy the device."""
        return [state for key, state in self._jobs() if key.startswith(OCCUPIED)]

    def _jobs(self) -> list[tuple[str, str]]:
        jobs = self.ask("GET", "/v1/jobs")
        assert isinstance(jobs, list)
        told = [job for job in jobs if isinstance(job, dict)]
        return [(str(job["idempotency_key"]), str(job["state"])) for job in told]


class Vendor(QpuService):
    """The service behind another."""

    def __init__(self, folder: Path, *options: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(devices, "chosen", "emulated")
            super().__init__(folder, *options)

    def in_front(self) -> str:
        """Start it; the configuration of the service in front of it."""
        token = self.with_tokens("front")
        self.start()
        config: JSON = {"url": self.url, "tokenFile": token}
        device: JSON = {
            **{"type": "qpu", "qpu": "sfq", "name": "emulator", "config": config},
            **{"poll_seconds": 0.05, "refresh_seconds": 0.2, "ahead": 0},
        }
        file = self._folder / "front.yml"
        file.write_text(json.dumps({"device": device}))
        return str(file)

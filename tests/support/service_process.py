"""The QPU service as a process of its own, which can be killed and started again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from sf_quantum.files import JSON, mapping
from sf_quantum.net.transport import Client
from sf_quantum.service.http.tokens import new_token, token_entry
from tests.support import devices, forking
from tests.support.forking import Command
from tests.support.service import example_bqm
from tests.support.waiting import until

OCCUPIED = "occupied"
# options without a value
FLAGS = ("--until-eof",)
# options of the emulated device whose values are words, and the others
WORDS = ("--name", "--technology", "--topology")
EMULATED = ("--time-scale", "--qubits", "--noise", "--seed", "--faults")
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


@contextmanager
def over_device(
    options: Sequence[str], folder: Path
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Have ``sfq serve`` drive the device that was chosen; see ``tests/support/devices.py``.

    :param options: of the command; those of the emulated device are for the vendor's then
    :param folder: for the state of the vendor, which goes on whatever becomes of the service
    :returns: the options, and more variables of its environment
    """
    if devices.chosen == "emulated":
        yield [*options], {}
        return
    own: list[str] = []
    config: dict[str, JSON] = {}
    emulated: dict[str, JSON] = {}
    words = iter(options)
    for name in words:
        if name in FLAGS:
            own.append(name)
        elif name == "--config":
            config = yaml.safe_load(Path(next(words)).read_text())
            emulated |= mapping(config.pop("device", {}))
        elif name in (*WORDS, *EMULATED):
            value = next(words)
            key = name.removeprefix("--").replace("-", "_")
            emulated[key] = value if name in WORDS else json.loads(value)
        else:
            own += [name, next(words)]
    folder.mkdir(exist_ok=True)
    with devices.configured(emulated, folder / "vendor") as made:
        file = folder / "front.yml"
        file.write_text(json.dumps({**config, "device": made.device}))
        yield [*own, "--config", str(file)], made.environment


def until_ready(url: str) -> None:
    """Wait until a service takes work, which one with a vendor does once it has answered."""
    client = Client(url, {})
    until(
        lambda: client.request("GET", "/v1/health/ready").status == 200,
        "a service that takes work",
    )


class QpuService:
    """``sfq serve`` with its state in a folder, and its operator.

    If another device than the emulated one was chosen, its vendor is behind it.

    :param options: of ``sfq serve``
    """

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._vendor = ExitStack()
        self._environment: dict[str, str] = {}
        self._options = ["--state", str(folder / "state"), *options]
        self._process: Command | None = None
        self._headers: dict[str, str] = {}
        self.url = ""

    def with_tokens(self, user: str) -> str:
        """Ask for bearer tokens, and give a user one.

        :returns: the file with the user's token
        """
        made = {user: new_token(), "operator": new_token()}
        tokens = self._folder / "tokens.yml"
        tokens.touch(0o600)
        entries = [token_entry(u, made[u], admin=u == "operator") for u in made]
        tokens.write_text(json.dumps(entries))
        self._options += ["--auth", "token", "--tokens", str(tokens)]
        self._headers = {"Authorization": f"Bearer {made['operator']}"}
        file = self._folder / "qpu.token"
        file.touch(0o600)
        file.write_text(f"{made[user]}\n")
        return str(file)

    def start(self) -> None:
        """Start the service, again under the same URL."""
        if not self.url:
            over = over_device(self._options, self._folder / "device")
            self._options, self._environment = self._vendor.enter_context(over)
        if self.url:
            self._options += ["--port", self.url.rpartition(":")[2]]
        output, theirs = os.pipe()
        with open(output) as told, open(self._folder / "log", "ab") as log:
            words = ["sfq", "serve", *self._options]
            self._process = forking.Command(
                words,
                Path.cwd(),
                {**os.environ, **self._environment},
                theirs,
                log.fileno(),
            )
            os.close(theirs)
            line = told.readline()
        assert line, (self._folder / "log").read_text()
        self.url = json.loads(line)["url"]
        if devices.chosen != "emulated":
            until_ready(self.url)

    def children(self) -> list[psutil.Process]:
        """The processes that the service has started."""
        assert self._process is not None
        return psutil.Process(self._process.pid).children()

    def kill(self) -> None:
        """End the service with no chance to do anything; its vendor goes on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        """End the service and its vendor."""
        self.kill()
        self._vendor.close()

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

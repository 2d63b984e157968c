"""A run over SSH outlasts its certificate, and a connection that breaks after it."""

from __future__ import annotations

import asyncio
import getpass
import logging
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.connectors.slurm.transport import login
from sf_quantum.connectors.ssh import RenewingSSHConnector
from sf_quantum.files import JSON
from tests.lab import Lab
from tests.support.slurm_jobs import cluster
from tests.support.sshd import sshd
from tests.support.waiting import SECONDS, until_async

pytestmark = pytest.mark.process

SERVICES: dict[str, JSON] = {"node": {"partition": "compute", "ntasks": 1}}


class Server:
    """An SSH server in front of the lab, and a key with a certificate for it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.key = folder / "short"
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", ""]
        subprocess.run([*keygen, "-f", self.key], check=True)
        words = ["ssh-keygen", "-q", "-s", folder / "ca", "-I", "test"]
        words += ["-n", getpass.getuser(), "-V", "-1m:+8s", f"{self.key}.pub"]
        #: signs a certificate for eight seconds
        self.sign = shlex.join(map(str, words))

    def renew(self) -> None:
        subprocess.run(self.sign, shell=True, check=True)

    def connector(self, renew: str | None) -> RenewingSSHConnector:
        make: Callable[..., RenewingSSHConnector] = RenewingSSHConnector
        return make(
            "host",
            str(self.folder),
            renewCommand=renew,
            nodes=[f"127.0.0.1:{self.port}"],
            username=getpass.getuser(),
            sshKey=str(self.key),
            checkHostKey=False,
            retries=2,
            retryDelay=1,
        )

    def is_refused(self) -> bool:
        """Whether the server does not accept the certificate any more."""
        options = ["-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null"]
        options += ["-oBatchMode=yes", "-oIdentitiesOnly=yes"]
        where = ["-i", str(self.key), "-p", str(self.port), "127.0.0.1"]
        words = ["ssh", *options, *where, "true"]
        done = subprocess.run(words, capture_output=True, text=True)
        # not a connection that failed otherwise, and would not fail again
        return "Permission denied" in done.stderr

    def disconnect(self) -> None:
        """Break all connections."""
        for process in psutil.Process().children():
            with suppress(psutil.Error):  # it has just ended
                if process.name().startswith("sshd"):
                    process.kill()


@pytest.fixture
def server(lab: Lab, tmp_path: Path) -> Iterator[Server]:
    with sshd(tmp_path / "sshd", lab.environment) as port:
        yield Server(tmp_path / "sshd", port)


@asynccontextmanager
async def _disconnected(
    lab: Lab, folder: Path, server: Server, renew: str | None
) -> AsyncIterator[None]:
    """Run a job whose connection breaks when its certificate has expired."""
    go = folder / "go"
    inner = server.connector(renew)
    async with cluster(lab, folder, inner, services=SERVICES) as made:
        waits = f"until [ -e {go} ]; do sleep 0.1; done; echo ended"
        job = asyncio.create_task(made.run(waits, "node"))
        try:
            await made.running()
            await until_async(server.is_refused, "the certificate expires")
            server.disconnect()
            yield
            go.touch()
            assert await job == ("ended", 0)
        finally:
            go.touch()
            if not job.done():
                # which the job's end waits for
                await asyncio.to_thread(server.renew)
                job.cancel()
                await asyncio.wait([job], timeout=SECONDS)
    await inner.undeploy(False)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(0.3, 0.3))
    monkeypatch.setattr(login, "_warned", {})


async def test_a_run_waits_for_a_certificate(
    lab: Lab, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(server.renew)
    with caplog.at_level(logging.WARNING, "streamflow"):
        async with _disconnected(lab, tmp_path, server, None):
            text = "Deployment host waits for new credentials for 127.0.0.1:"
            # more often than StreamFlow would try
            await until_async(lambda: caplog.text.count(text) > 3, text)
            assert "Permission denied" in caplog.text
            await asyncio.to_thread(server.renew)


async def test_a_command_renews_the_certificate(
    lab: Lab, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = tmp_path / "away"
    command = f"[ ! -e {away} ] || {{ echo no login >&2; exit 3; }}; {server.sign}"
    with caplog.at_level(logging.WARNING, "streamflow"):
        async with _disconnected(lab, tmp_path, server, f"{command}; touch {away}"):
            text = "renewCommand failed with exit code 3: no login"
            await until_async(lambda: text in caplog.text, text)
            away.unlink()


@pytest.mark.parametrize("shell", ["csh", "fish"])
async def test_steps_run_with_any_login_shell(
    lab: Lab, tmp_path: Path, shell: str
) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"no {shell} here (apt-get install {shell})")
    with sshd(tmp_path / "sshd", lab.environment, program) as port:
        server = Server(tmp_path / "sshd", port)
        await asyncio.to_thread(server.renew)
        inner = server.connector(None)
        async with cluster(lab, tmp_path, inner, services=SERVICES) as made:
            text = "it's \\\\ 50%! $HOME `x`"
            asked = f"printf '%s\\n' {shlex.quote(text)}; echo two >&2"
            assert await made.run(asked, "node") == (f"{text}\ntwo", 0)
            job = asyncio.create_task(made.run("sleep 1000", "node"))
            await made.running()
            job.cancel()
            await made.submitted(0)
        await inner.undeploy(False)


async def test_a_key_that_was_never_accepted_is_refused(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    inner = server.connector("echo no agent >&2; exit 1")
    with pytest.raises(Exception, match="no more available contexts"):
        await inner.get_available_locations()
    await inner.undeploy(False)
    assert "renewCommand failed with exit code 1: no agent" in caplog.text

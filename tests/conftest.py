"""What tests of every kind share."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sf_quantum.errors import QpuError
from sf_quantum.qpu import munge

StartMunged = Callable[..., Path]


@contextmanager
def _running(folder: Path, key: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    socket = folder / "s"
    options = {
        "key-file": key,
        "socket": socket,
        "pid-file": folder / "pid",
        "seed-file": folder / "seed",
    }
    program = shutil.which("munged", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None
    # its warnings are about folders that others may write to, as /tmp
    command = [program, "--force", "--foreground"]
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(
            [*command, *(f"--{name}={path}" for name, path in options.items())],
            env={**os.environ, **environment},
            stderr=log,
        ) as process,
    ):
        try:
            _wait_for(socket, folder / "log")
            yield socket
        finally:
            process.terminate()


def _wait_for(socket: Path, log: Path) -> None:
    deadline = time.monotonic() + 5
    while True:
        try:
            munge.encode(str(socket))
        except QpuError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.005)
        else:
            return


@pytest.fixture(scope="session")
def start_munged() -> Iterator[StartMunged]:
    """Starts MUNGE daemons that share one key; each says where its socket is."""
    if shutil.which("munged", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("munged is not installed (apt-get install munge)")
    with ExitStack() as stack:
        # a short path, for the socket, which every user may pass to
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sfq-")))
        folder.chmod(0o755)
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))

        def start(name: str, environment: Mapping[str, str] | None = None) -> Path:
            own = folder / name
            own.mkdir(mode=0o755)
            return stack.enter_context(_running(own, key, environment or {}))

        yield start


@pytest.fixture(scope="session")
def munge_socket(start_munged: StartMunged) -> Path:
    """The socket of a MUNGE daemon."""
    return start_munged("munged")

"""A real sshd on loopback, for whoever has its key."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SSHD = Path("/usr/sbin/sshd")


@contextmanager
def sshd(
    folder: Path, environment: Mapping[str, str], shell: str | None = None
) -> Iterator[int]:
    """Serve SSH, one process a connection, on a port the kernel chose.

    :param folder: made for its files; ``user`` in it is the key it lets in, and ``ca`` signs
        the certificates that it lets in
    :param environment: of the sessions
    :param shell: runs the commands as a login shell does, instead of the user's own
    :returns: the port
    """
    if not SSHD.exists():
        pytest.skip("no sshd here (apt-get install openssh-server)")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # it refuses to start without it
    folder.mkdir(mode=0o700)
    for name in ("host", "user", "ca"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
            check=True,
        )
    # not that of whoever runs the tests, whose .bashrc a session reads (bash(1), "Invocation")
    site = {"HOME": str(folder), **environment}
    # only the first SetEnv counts (sshd_config(5))
    variables = " ".join(f"{key}={value}" for key, value in site.items())
    (folder / "config").write_text(
        f"HostKey {folder}/host\n"
        f"AuthorizedKeysFile {folder}/user.pub\n"
        f"TrustedUserCAKeys {folder}/ca.pub\n"
        "StrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        f"SetEnv {variables}\n"
        + (f'ForceCommand exec {shell} -c "$SSH_ORIGINAL_COMMAND"\n' if shell else "")
    )
    served: list[subprocess.Popen[bytes]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, folder, served))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    for process in served:
        process.terminate()
        process.wait()


def _serve(
    listener: socket.socket, folder: Path, served: list[subprocess.Popen[bytes]]
) -> None:
    with suppress(OSError):  # the listener is shut down
        while True:
            connection, _ = listener.accept()
            with connection, open(folder / "log", "ab") as log:
                served.append(
                    subprocess.Popen(
                        [SSHD, "-i", "-e", "-f", folder / "config"],
                        stdin=connection.fileno(),
                        stdout=connection.fileno(),
                        stderr=log,
                    )
                )

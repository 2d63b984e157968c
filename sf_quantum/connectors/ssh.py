"""``sfq.ssh``: StreamFlow's SSH connector for keys and certificates that expire.

A connection outlives the certificate with which it was opened, but a new connection needs a
valid certificate. asyncssh reads the files of a key for each connection, so it suffices to
renew the files before each connection. StreamFlow itself gives up a host after ``retries``
refused connections.

StreamFlow writes its commands for a POSIX shell, but a host passes them to the user's login
shell, which may be csh.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files

import asyncssh
from streamflow.deployment.connector.ssh import SSHConfig, SSHConnector, SSHContext
from streamflow.log_handler import logger

from sf_quantum import backoff
from sf_quantum.files import JSON

COMMAND_SECONDS = 30.0
# Characters that are escaped: csh could not read them, or csh or printf would expand them.
_ESCAPED = re.compile(r"""['"!$`\\%\n]""")
# Linux limits each argument of a program to 128 KiB (MAX_ARG_STRLEN, execve(2)).
_ARGUMENT_BYTES = 131_000


def for_any_shell(command: str) -> str:
    """Wrap a command so that ``sh`` runs it, regardless of the login shell.

    Within single quotes, csh ends a word at a newline and expands ``!``, so such characters
    become octal escapes of printf(1). A command that would become too long is returned
    unchanged.

    >>> for_any_shell("echo a; echo b!")
    'sh -c \'eval "$(printf "echo a; echo b\\041")"\''
    """
    text = _ESCAPED.sub(lambda match: f"\\{ord(match[0]):03o}", command)
    wrapped = f"""sh -c 'eval "$(printf "{text}")"'"""
    return wrapped if len(wrapped.encode()) < _ARGUMENT_BYTES else command


class _NotRenewed(ConnectionError):
    """``renewCommand`` has failed; StreamFlow treats this error like a refused connection."""


@dataclass
class Renewal:
    """How the credentials of a deployment are renewed.

    :param command: shell command that renews the credentials; ``None`` if there is none
    :param connected: whether a host has accepted the credentials at least once
    """

    deployment: str
    command: str | None
    connected: bool = False

    async def run(self) -> None:
        """Run the command, if there is one.

        :raises _NotRenewed: if the command fails
        """
        if self.command is None:
            return
        # A file, since a pipe would stay open while a process that the command started runs.
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_shell(
                self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
            )
            try:
                async with asyncio.timeout(COMMAND_SECONDS):
                    code = await process.wait()
            except TimeoutError:
                text = f"renewCommand took over {COMMAND_SECONDS:g} s"
                raise _NotRenewed(text) from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        if code:
            last = lines[-1] if lines else "it printed no error"
            raise _NotRenewed(f"renewCommand failed with exit code {code}: {last}")


class _Connection:
    """A connection for StreamFlow to a host with any login shell."""

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        self._connection = connection
        self.is_closed = connection.is_closed

    async def create_process(
        self, command: str, **options: JSON
    ) -> asyncssh.SSHClientProcess[str]:
        return await self._connection.create_process(for_any_shell(command), **options)


class _Context(SSHContext):
    """Opens the connections to a host, each with renewed credentials."""

    def __init__(
        self,
        streamflow_config_dir: str,
        config: SSHConfig,
        max_concurrent_sessions: int,
        *,
        renewal: Renewal,
    ) -> None:
        super().__init__(streamflow_config_dir, config, max_concurrent_sessions)
        self._host = config
        self._renewal = renewal

    async def _get_connection(
        self, config: SSHConfig | None
    ) -> asyncssh.SSHClientConnection | None:
        """Connect with renewed credentials; if they are refused, wait for new ones."""
        if config is not self._host:  # a connection to the host's tunnel
            return await super()._get_connection(config)
        for pause in backoff.CLUSTER.pauses():
            try:
                await self._renewal.run()
                connection = await super()._get_connection(config)
            except (asyncssh.PermissionDenied, _NotRenewed) as error:
                # Credentials that were never accepted are probably a mistake.
                if not self._renewal.connected:
                    raise
                logger.warning(
                    f"Deployment {self._renewal.deployment} waits for new credentials "
                    f"for {config.hostname}, next attempt in {pause:.1f} s: {error}"
                )
                await asyncio.sleep(pause)
            else:
                self._renewal.connected = True
                return connection
        raise AssertionError

    async def get_connection(self) -> _Connection:  # type: ignore[override]
        return _Connection(await super().get_connection())


class RenewingSSHConnector(SSHConnector):
    """StreamFlow's SSH connector, with renewal of credentials, and for any login shell.

    In addition to the parameters of StreamFlow's connector, there is:

    :param renewCommand: shell command that renews the key's files before each connection
    """

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        renewCommand: str | None = None,
        **stock: JSON,
    ) -> None:
        initialise: Callable[..., None] = super().__init__
        initialise(deployment_name, config_dir, **stock)
        renewal = Renewal(deployment_name, renewCommand)
        self._cls_context = partial(_Context, renewal=renewal)  # type: ignore[assignment]

    @classmethod
    def get_schema(cls) -> str:
        return files(__package__).joinpath("schemas", "ssh.json").read_text("utf-8")

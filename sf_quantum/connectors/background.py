"""The QPU service in the background of a location, for as long as the driver lives."""

from __future__ import annotations

import asyncio
import os
import posixpath
import shlex
import shutil
import tempfile
import time
import uuid
from contextlib import AsyncExitStack

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.connector.ssh import SSHConnector

from sf_quantum.connectors import guardian, ssh
from sf_quantum.connectors.leases import LeasePool, QpuUnavailable
from sf_quantum.qpu.access import Credentials
from sf_quantum.qpu.sfq import SfqQpu

POLL_SECONDS = 0.1
START_SECONDS = 20.0
# nobody starts this service again, so a job that waits for it must not wait long
JOB_PATIENCE_SECONDS = 0.8
STOP_SECONDS = 5.0
# sun_path of <sys/un.h> has 108 bytes, for the folder of temporary files and ours in it
TEMPORARY_BYTES = 72
NOT_FOUND = "127"

# The shell keeps the folder until its own input ends, so that a service that could not
# start leaves its reason to be read there.
SCRIPT = """\
umask 077
mkdir {folder} || exit
{command} 2>{folder}/log
echo $? >{folder}/status
cat >/dev/null
rm -rf {folder}"""
# bounded, since it goes on where it runs when the driver no longer waits for it
WAIT_GONE = """\
n=0; while test -d {folder} && test $n -lt 50; do sleep 0.1; n=$((n + 1)); done"""


class BackgroundService:
    """``sfq serve`` on a location, which ends when its standard input does.

    So it ends with the driver, however that ends, and when an SSH connection drops.

    :param connector: of the location, local or SSH
    :param location: where the service runs
    :param name: of the QPU
    :param options: of ``sfq serve``, beyond the name and where it keeps its things
    """

    def __init__(
        self,
        connector: Connector,
        location: ExecutionLocation,
        name: str,
        options: list[str],
    ) -> None:
        self._connector = connector
        self._location = location
        self._name = name
        self._options = options
        self._folder = _fresh_folder("/tmp")
        if not isinstance(connector, SSHConnector):
            self._folder = _fresh_folder(tempfile.gettempdir())
        self.socket = f"{self._folder}/socket"
        self._stack = AsyncExitStack()

    def qpu(self) -> SfqQpu:
        """The service's QPU, as a job on its host reaches it."""
        return _qpu(self._name, self.socket, JOB_PATIENCE_SECONDS)

    async def start(self) -> LeasePool:
        """Start the service and wait until it answers.

        :returns: what gives its leases
        :raises WorkflowExecutionException: if it does not answer in time; says why
        """
        await self._launch()
        socket = self.socket
        if isinstance(self._connector, SSHConnector):
            socket = await self._forward(self._connector)
        leases = LeasePool(_qpu(self._name, socket, 0.0))
        deadline = time.monotonic() + START_SECONDS
        while not await _answers(leases):
            await self._check(time.monotonic() > deadline)
            await asyncio.sleep(POLL_SECONDS)
        self._stack.push_async_callback(leases.close)
        return leases

    async def stop(self) -> None:
        """Close the service's input and wait, not for ever, until it has ended."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._stack.aclose()
                # over SSH closing does not wait for the end; the folder goes last
                await self._shell(WAIT_GONE.format(folder=self._folder))
        except TimeoutError:
            pass  # the guardian ends what is left when the driver does

    async def _launch(self) -> None:
        if not isinstance(self._connector, SSHConnector):
            guardian.current().remove(self._folder)
        command = ["sfq", "serve", "--name", self._name, "--socket", self.socket]
        command += ["--state", f"{self._folder}/state", "--until-eof", *self._options]
        script = SCRIPT.format(folder=self._folder, command=shlex.join(command))
        # what the connectors take for words they join and split again, or let a shell do it
        writer = await self._connector.get_stream_writer(
            ["sh", "-c", shlex.quote(script)], self._location
        )
        await self._stack.enter_async_context(writer)

    async def _forward(self, connector: SSHConnector) -> str:
        """A socket on this machine that leads to the service's on the host."""
        folder = _fresh_folder(tempfile.gettempdir())
        guardian.current().remove(folder)
        os.mkdir(folder, mode=0o700)
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        local = f"{folder}/socket"
        await self._stack.enter_async_context(
            ssh.forwarded(connector, self._location.name, self.socket, local)
        )
        return local

    async def _check(self, late: bool) -> None:
        """Raise if waiting any longer is no use."""
        told = await self._shell(
            f"test ! -e {self._folder}/status || "
            f"{{ cat {self._folder}/status; tail -n 1 {self._folder}/log; }}"
        )
        status, _, words = told.partition("\n")
        if status == NOT_FOUND:
            reason = f"`sfq` is not on the PATH of {self._location}; install sf-quantum there"
        elif status:
            reason = words or f"it ended with status {status}"
        elif late:
            reason = f"no answer within {START_SECONDS:g} s"
        else:
            return
        raise WorkflowExecutionException(
            f"The service of QPU {self._name} did not start: {reason}."
        )

    async def _shell(self, command: str) -> str:
        result = await self._connector.run(
            self._location, [command], capture_output=True
        )
        return result[0].strip() if result else ""


def _qpu(name: str, socket: str, patience_seconds: float) -> SfqQpu:
    credentials = Credentials(patience_seconds=patience_seconds)
    return SfqQpu(name, f"unix:{socket}", credentials=credentials)


async def _answers(leases: LeasePool) -> bool:
    try:
        await leases.status()
    except QpuUnavailable:
        return False
    return True


def _fresh_folder(parent: str) -> str:
    """A short name that nobody can foresee; whoever makes the folder fails if it exists."""
    if len(os.fsencode(parent)) > TEMPORARY_BYTES:
        parent = "/tmp"
    return posixpath.join(parent, f"sfq-{uuid.uuid4().hex[:16]}")

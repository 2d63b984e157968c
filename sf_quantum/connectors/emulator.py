"""``sfq.emulator``: a location with an emulated QPU, behind its own ``sfq serve``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import posixpath
import shlex
import shutil
import tempfile
import uuid
from collections.abc import Mapping, MutableMapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.connector.ssh import SSHConnector
from streamflow.log_handler import logger

from sf_quantum.connectors import guardian
from sf_quantum.connectors.quantum.leases import LeasePool, QpuUnavailable
from sf_quantum.connectors.quantum.location import QuantumConnector, variable
from sf_quantum.deadline import Deadline
from sf_quantum.files import JSON, number
from sf_quantum.protocol.run_times import TIMINGS
from sf_quantum.qpu import JobSize, Qpu, QpuStatus
from sf_quantum.qpu.sfq.credentials import Credentials
from sf_quantum.qpu.sfq.service_qpu import SfqQpu

# pause between two checks of a starting service
POLL_SECONDS = 0.1
# Two limits on a starting service: it uses some CPU time at least once within this time, even
# on a busy host, and it uses no more CPU time than this in total.
START_SECONDS = 60.0
# clock ticks per second in /proc (USER_HZ of Linux)
TICKS = 100
# how long a job retries its requests; short, as a service that has ended is not restarted
JOB_RETRY_SECONDS = 0.8
# longest wait for the end of a service
STOP_SECONDS = 5.0
# Longest path of a temporary folder: a socket's path has 108 bytes (sun_path of <sys/un.h>),
# which includes the service's folder in the temporary folder.
TEMPORARY_BYTES = 72
# the shell's exit code for an unknown command
NOT_FOUND = "127"
# Text before the status of the service. Over SSH, messages of the login shell's start-up files
# may come first.
ENDED = "sfq ended with "

# The shell keeps the folder until the shell's own input ends, so that the error message of a
# service that failed to start can be read from the folder.
SCRIPT = """\
umask 077
mkdir {folder} || exit
sh -c 'echo $$ >"$0"; exec "$@"' {folder}/pid {command} 2>{folder}/log
echo $? >{folder}/status
cat >/dev/null
rm -rf {folder}"""
# A service that has ended is not killed, since another process may have its id by then.
KILL = "test -e {folder}/status || kill $(cat {folder}/pid) 2>&1"
# The loop is bounded, since it keeps running even when the driver stops waiting for it.
WAIT_GONE = """\
n=0; while test -d {folder} && test $n -lt 50; do sleep 0.1; n=$((n + 1)); done"""


class EmulatorConnector(QuantumConnector):
    """Runs a QPU service with an emulated QPU for as long as it is deployed.

    The parameters are the keys of the configuration; see ``schemas/emulator.json``.
    """

    schema = "schemas/emulator.json"
    # a job that has just ended may not have released its lease yet
    lease_wait_seconds = 20.0

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        connector: Connector,
        service: str | None,
        technology: str = "annealer",
        timeScale: float = 0,
        vqpus: int = 1,
        qubits: int | None = None,
        topology: str | None = None,
        noise: float = 0,
        seed: int | None = None,
        faults: MutableMapping[str, float] | None = None,
        clients: bool = False,
        transferBufferSize: int = 2**16,
    ) -> None:
        super().__init__(
            deployment_name, config_dir, connector, service, transferBufferSize
        )
        self._slots = vqpus
        self._clients = clients
        self._options = {
            "--technology": technology,
            "--time-scale": timeScale,
            "--vqpus": vqpus,
            "--qubits": qubits,
            "--topology": topology,
            "--noise": noise,
            "--seed": seed,
            "--faults": json.dumps(dict(faults)) if faults else None,
        }
        self._background: BackgroundService | None = None

    async def deploy(self, external: bool) -> None:
        """Start the service, without waiting for it."""
        await super().deploy(external)
        self._access = asyncio.create_task(self._start())

    async def undeploy(self, external: bool) -> None:
        """Release every lease, and stop the service."""
        # The service is stopped even if a lease cannot be released.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._stop)
            await super().undeploy(external)

    async def _stop(self) -> None:
        """Stop the service, even while it is starting."""
        try:
            if self._access is not None:
                self._access.cancel()
                await asyncio.wait([self._access])
                if not self._access.cancelled():
                    self._access.exception()  # marked as retrieved; the jobs raise it
        finally:
            if self._background is not None:
                await self._background.stop()

    @classmethod
    def _undeployed_status(
        cls,
        name: str,
        config: Mapping[str, JSON],
        folder: Path,
        size: JobSize | None = None,
    ) -> QpuStatus:
        """Return the status that a new service would have."""
        # A new service will be idle, and its device is known. The estimated times are needed
        # for jobs with a budget.
        technology = str(config.get("technology", "annealer"))
        timing, charge = TIMINGS.get(technology), None
        if size is not None and timing is not None:
            charge = timing.job_seconds(size.reads)
        return QpuStatus(
            name=variable(name),
            technology=technology,
            online=True,
            reason="",
            qubits=int(number(config.get("qubits"))),
            vqpus=int(number(config.get("vqpus", 1))),
            leases=0,
            queue_length=0,
            eta_seconds=0.0,
            position=0,
            job_qpu_seconds=charge,
            job_run_seconds=(
                None if charge is None else charge * number(config.get("timeScale"))
            ),
        )

    def _job_client(self, pool: LeasePool) -> Qpu:
        # A job uses the service's own socket; the driver may use a forwarded socket.
        return self._background.job_client() if self._background else pool.qpu

    async def _start(self) -> LeasePool:
        """Start the service, and return the pool that acquires its leases."""
        inner = await self._inner()
        given = {key: str(v) for key, v in self._options.items() if v is not None}
        self._background = BackgroundService(
            self.connector, inner.location, self.qpu, list(chain(*given.items()))
        )
        pool = await self._background.start()
        if logger.isEnabledFor(logging.INFO):
            technology = self._options["--technology"]
            logger.info(f"QPU {self.qpu} ({technology}) is ready on {inner}")
        return pool


@dataclass(eq=False)
class BackgroundService:
    """``sfq serve`` on a location, local or SSH.

    The service ends when its standard input is closed, so it also ends if the driver ends in
    any way, or if an SSH connection drops.

    :param name: name of the QPU
    :param options: options of ``sfq serve``, without the name and the paths
    """

    connector: Connector
    location: ExecutionLocation
    name: str
    options: list[str]

    def __post_init__(self) -> None:
        is_ssh = isinstance(self.connector, SSHConnector)
        self._folder = _new_folder_name("/tmp" if is_ssh else tempfile.gettempdir())
        self.socket = f"{self._folder}/socket"
        self._stack = AsyncExitStack()
        self._is_ready = False

    def job_client(self) -> SfqQpu:
        """Return a client of the service for a job on the service's host."""
        return self._client(self.socket, JOB_RETRY_SECONDS)

    async def start(self) -> LeasePool:
        """Start the service, and wait until it answers.

        :raises WorkflowExecutionException: if the service ends early, or does not become
            ready; the message has the reason
        """
        await self._launch()
        socket = self.socket
        if isinstance(self.connector, SSHConnector):
            socket = await self._forward(self.connector)
        pool = LeasePool(self._client(socket, 0.0))
        deadline, used = Deadline(START_SECONDS), 0.0
        while True:
            with suppress(QpuUnavailable):
                await pool.status()
                break
            late = deadline.left <= 0
            if late and used < (now := await self._cpu_seconds()) <= START_SECONDS:
                # the host is busy, but the service has made progress
                deadline, used, late = Deadline(START_SECONDS), now, False
            await self._check(late=late)
            await asyncio.sleep(POLL_SECONDS)
        self._is_ready = True
        self._stack.push_async_callback(pool.close)
        return pool

    async def stop(self) -> None:
        """Close the service's input, and wait for its end, within a time limit."""
        # After the limit, the guardian ends the service.
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                try:
                    if not self._is_ready:
                        # During its imports, the service does not notice the end of its input.
                        await self._shell(KILL.format(folder=self._folder))
                finally:
                    await self._stack.aclose()
                # Over SSH, closing does not wait for the service's end. The removal of the
                # folder is the script's last action.
                await self._shell(WAIT_GONE.format(folder=self._folder))

    def _client(self, socket: str, retry_seconds: float) -> SfqQpu:
        credentials = Credentials(retry_seconds=retry_seconds)
        return SfqQpu(self.name, f"unix:{socket}", credentials=credentials)

    async def _launch(self) -> None:
        """Run the script that starts the service; even if cancelled, wait until it has run."""
        if not isinstance(self.connector, SSHConnector):
            guardian.current().remove(self._folder)
        command = ["sfq", "serve", "--name", self.name, "--socket", self.socket]
        command += ["--state", f"{self._folder}/state", "--until-eof", *self.options]
        script = SCRIPT.format(folder=self._folder, command=shlex.join(command))
        running = asyncio.ensure_future(self._run(script))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            # If the start were cancelled midway, the process would wait for the end of its
            # input, which nothing would close.
            with suppress(Exception):
                await asyncio.shield(running)
            raise

    async def _run(self, script: str) -> None:
        # The connectors join the words, and a shell splits them again: the script is quoted.
        writer = await self.connector.get_stream_writer(
            ["sh", "-c", shlex.quote(script)], self.location
        )
        await self._stack.enter_async_context(writer)

    async def _forward(self, connector: SSHConnector) -> str:
        """Create a socket on this machine that is forwarded to the service's socket."""
        folder = _new_folder_name(tempfile.gettempdir())
        guardian.current().remove(folder)
        os.mkdir(folder, mode=0o700)
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # StreamFlow 0.2.0rc3 has no public access to its SSH connections. The connection on
        # which the service was started is used, so that the forwarding ends with the service.
        # With a lazy deployment, ``connector`` is a proxy.
        deployed: SSHConnector = getattr(connector, "_connector", connector)
        context = deployed.ssh_context_factories[self.location.name]._contexts[0]
        connection = await context.get_connection()
        local = f"{folder}/socket"
        listener = await connection.forward_local_path(local, self.socket)
        self._stack.push_async_callback(listener.wait_closed)
        self._stack.callback(listener.close)
        return local

    async def _check(self, *, late: bool) -> None:
        """Raise an error if the service has ended, or is late."""
        output = await self._shell(
            f"test ! -s {self._folder}/status || {{ printf '{ENDED}'; "
            f"cat {self._folder}/status; tail -n 1 {self._folder}/log; }}"
        )
        status, _, message = output.partition(ENDED)[2].partition("\n")
        if status == NOT_FOUND:
            reason = (
                f"`sfq` is not on the PATH of {self.location}; install sf-quantum there"
            )
        elif status:
            reason = message or f"it ended with status {status}"
        elif late:
            reason = (
                f"no answer, and it has used no CPU time for {START_SECONDS:g} s, or "
                "more than that in total"
            )
        else:
            return
        raise WorkflowExecutionException(
            f"The service of QPU {self.name} did not start: {reason}."
        )

    async def _cpu_seconds(self) -> float:
        """Read the CPU time of the service; 0 on hosts without /proc."""
        folder = self._folder
        # The second field is a name in parentheses, which may contain spaces.
        stat = await self._shell(f"cat /proc/$(cat {folder}/pid)/stat 2>/dev/null")
        fields = stat.rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / TICKS if len(fields) > 12 else 0.0

    async def _shell(self, command: str) -> str:
        result = await self.connector.run(self.location, [command], capture_output=True)
        return result[0].strip() if result else ""


def _new_folder_name(parent: str) -> str:
    """Return a short, unpredictable path; the caller's ``mkdir`` fails if the path exists."""
    if len(os.fsencode(parent)) > TEMPORARY_BYTES:
        parent = "/tmp"
    return posixpath.join(parent, f"sfq-{uuid.uuid4().hex[:16]}")

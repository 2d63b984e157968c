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

POLL_SECONDS = 0.1
# A starting service uses CPU time at least once within this time, however busy its host is,
# and needs no more CPU time than this in total.
START_SECONDS = 60.0
# USER_HZ of Linux
TICKS = 100
# short, since a service that has ended is not restarted
JOB_RETRY_SECONDS = 0.8
STOP_SECONDS = 5.0
# sun_path of <sys/un.h> has 108 bytes, for the temporary folder and the service's in it
TEMPORARY_BYTES = 72
NOT_FOUND = "127"
# precedes the status of the service; over SSH, messages of the login shell's start-up files
# come first
ENDED = "sfq ended with "

# The shell keeps the folder until its own input ends, so that the error message of a
# service that could not start can be read there.
SCRIPT = """\
umask 077
mkdir {folder} || exit
sh -c 'echo $$ >"$0"; exec "$@"' {folder}/pid {command} 2>{folder}/log
echo $? >{folder}/status
cat >/dev/null
rm -rf {folder}"""
# only if the service has not ended, as another process may then have its id
KILL = "test -e {folder}/status || kill $(cat {folder}/pid) 2>&1"
# bounded, since this command keeps running after the driver stops waiting for it
WAIT_GONE = """\
n=0; while test -d {folder} && test $n -lt 50; do sleep 0.1; n=$((n + 1)); done"""


class EmulatorConnector(QuantumConnector):
    """Runs a QPU service with an emulated QPU for as long as it is deployed.

    The parameters are the keys of the configuration; see ``schemas/emulator.json``.
    """

    schema = "schemas/emulator.json"
    # a step that has just ended may not have released its lease yet
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
        """Release every lease and stop the service."""
        # the service is stopped even if a lease cannot be released
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._stop)
            await super().undeploy(external)

    async def _stop(self) -> None:
        try:
            if self._access is not None:
                self._access.cancel()
                await asyncio.wait([self._access])
                if not self._access.cancelled():
                    self._access.exception()  # raised by the jobs, if any
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
        # A new service is idle, and its device is known: a job with a budget needs its price.
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
        # a job uses the service's own socket, while the driver may use a forwarded one
        return self._background.job_client() if self._background else pool.qpu

    async def _start(self) -> LeasePool:
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

    The service ends when its standard input is closed, so also if the driver ends in any way
    or an SSH connection drops.

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
        """Make the client of the service for a job on its host."""
        return self._client(self.socket, JOB_RETRY_SECONDS)

    async def start(self) -> LeasePool:
        """Start the service and wait until it answers.

        :raises WorkflowExecutionException: if it ends early or does not become ready; the
            message says why
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
                # the host is busy and slow, but the service makes progress
                deadline, used, late = Deadline(START_SECONDS), now, False
            await self._check(late=late)
            await asyncio.sleep(POLL_SECONDS)
        self._is_ready = True
        self._stack.push_async_callback(pool.close)
        return pool

    async def stop(self) -> None:
        """Close the service's input and wait for its end, within a limit."""
        # after the limit, the guardian ends the service
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                try:
                    if not self._is_ready:
                        # the service would notice the end of its input only after its imports
                        await self._shell(KILL.format(folder=self._folder))
                finally:
                    await self._stack.aclose()
                # over SSH, closing does not wait for the end: the folder is removed last
                await self._shell(WAIT_GONE.format(folder=self._folder))

    def _client(self, socket: str, retry_seconds: float) -> SfqQpu:
        credentials = Credentials(retry_seconds=retry_seconds)
        return SfqQpu(self.name, f"unix:{socket}", credentials=credentials)

    async def _launch(self) -> None:
        if not isinstance(self.connector, SSHConnector):
            guardian.current().remove(self._folder)
        command = ["sfq", "serve", "--name", self.name, "--socket", self.socket]
        command += ["--state", f"{self._folder}/state", "--until-eof", *self.options]
        script = SCRIPT.format(folder=self._folder, command=shlex.join(command))
        running = asyncio.ensure_future(self._run(script))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            # A process whose start was cancelled would wait for the end of its input.
            with suppress(Exception):
                await asyncio.shield(running)
            raise

    async def _run(self, script: str) -> None:
        # the connectors join the words and let a shell split them again
        writer = await self.connector.get_stream_writer(
            ["sh", "-c", shlex.quote(script)], self.location
        )
        await self._stack.enter_async_context(writer)

    async def _forward(self, connector: SSHConnector) -> str:
        """Make a socket on this machine that is forwarded to the service's socket."""
        folder = _new_folder_name(tempfile.gettempdir())
        guardian.current().remove(folder)
        os.mkdir(folder, mode=0o700)
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # StreamFlow 0.2.0rc3 has no public access to its SSH connections. This uses the
        # connection on which the service was started, so that both end together. With a lazy
        # deployment, ``connector`` is a proxy.
        deployed: SSHConnector = getattr(connector, "_connector", connector)
        context = deployed.ssh_context_factories[self.location.name]._contexts[0]
        connection = await context.get_connection()
        local = f"{folder}/socket"
        listener = await connection.forward_local_path(local, self.socket)
        self._stack.push_async_callback(listener.wait_closed)
        self._stack.callback(listener.close)
        return local

    async def _check(self, *, late: bool) -> None:
        """Raise if the service has ended, or is late."""
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
        # after the name, which is in parentheses, comes the third field
        stat = await self._shell(f"cat /proc/$(cat {folder}/pid)/stat 2>/dev/null")
        fields = stat.rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / TICKS if len(fields) > 12 else 0.0

    async def _shell(self, command: str) -> str:
        result = await self.connector.run(self.location, [command], capture_output=True)
        return result[0].strip() if result else ""


def _new_folder_name(parent: str) -> str:
    """Make up a short, unpredictable path, for a ``mkdir`` that fails if the path exists."""
    if len(os.fsencode(parent)) > TEMPORARY_BYTES:
        parent = "/tmp"
    return posixpath.join(parent, f"sfq-{uuid.uuid4().hex[:16]}")

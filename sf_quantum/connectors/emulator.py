"""``sfq.emulator``: a location with an emulated QPU, behind our own QPU service."""

from __future__ import annotations

import asyncio
import json
import logging
import posixpath
import re
import shlex
import uuid
from collections.abc import MutableMapping, MutableSequence
from dataclasses import dataclass
from importlib.resources import files

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation
from streamflow.log_handler import logger

from sf_quantum import journal
from sf_quantum.connectors.background import BackgroundService
from sf_quantum.connectors.leases import LeaseClient, ServiceGone
from sf_quantum.connectors.wrapper import LocationWrapper
from sf_quantum.files import JSON

QPU_TYPE = "sfq"


class EmulatorConnector(LocationWrapper):
    """Starts the service, gives each job a lease, and sees that the job uses it.

    The parameters are the configuration's; see ``schemas/emulator.json``.
    """

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
        seed: int | None = None,
        faults: MutableMapping[str, float] | None = None,
        transferBufferSize: int = 2**16,
    ) -> None:
        super().__init__(
            deployment_name, config_dir, connector, service, transferBufferSize
        )
        self.technology = technology
        self.timeScale = timeScale
        self.vqpus = vqpus
        self.qubits = qubits
        self.seed = seed
        self.faults = faults
        # shell variables start with the QPU's name
        self.qpu = re.sub(r"\W|^(?=\d)", "_", deployment_name, flags=re.ASCII)
        self._starting: asyncio.Task[LeaseClient] | None = None
        self._background: BackgroundService | None = None
        self._url = ""
        self._calibration: JSON = None
        self._held: dict[str, _Held] = {}

    async def deploy(self, external: bool) -> None:
        """Start the service, without waiting for it.

        :raises WorkflowDefinitionException: if the inner deployment cannot be wrapped
        """
        await super().deploy(external)
        self._starting = asyncio.create_task(self._start())

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        """The QPU's location, which runs as many jobs at once as there are virtual QPUs.

        :returns: the one location
        :raises WorkflowDefinitionException: if a service is asked for
        """
        self._refuse_service(service)
        name = self.deployment_name
        return {name: self._location(name, self.vqpus, await self._inner())}

    @classmethod
    def get_schema(cls) -> str:
        """What ``config`` may hold.

        :returns: the JSON Schema
        """
        return files(__package__).joinpath("schemas/emulator.json").read_text("utf-8")

    async def run(
        self,
        location: ExecutionLocation,
        command: MutableSequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        stdin: int | str | None = None,
        stdout: int | str = asyncio.subprocess.STDOUT,
        stderr: int | str = asyncio.subprocess.STDOUT,
        capture_output: bool = False,
        timeout: int | None = None,  # noqa: ASYNC109 - StreamFlow's signature
        job_name: str | None = None,
    ) -> tuple[str, int] | None:
        """Run a command, and a job under a lease.

        :raises WorkflowExecutionException: if the service is not there or the job
            succeeded without its QPU
        """
        if job_name is None:
            return await super().run(
                location,
                command,
                environment,
                workdir,
                stdin,
                stdout,
                stderr,
                capture_output,
                timeout,
            )
        if self._starting is None:
            raise WorkflowExecutionException(f"QPU {self.qpu} is not deployed.")
        # one job's cancellation must not stop the service of the others
        client = await asyncio.shield(self._starting)
        lease = await client.acquire(job_name)
        # its name is seen in `ps` and in logs: nothing of the lease is in it
        file = posixpath.join(workdir or "/tmp", f".sfq-{uuid.uuid4().hex}")
        self._held[lease] = _Held(client, job_name, location, file)
        try:
            await self._hand_over(lease)
            result = await super().run(
                location,
                [f". {shlex.quote(file)} && rm -f {shlex.quote(file)} &&", *command],
                environment,
                workdir,
                stdin,
                stdout,
                stderr,
                capture_output,
                timeout,
                job_name,
            )
        finally:
            taken_away = lease not in self._held
            used = await self._release(lease)
        if taken_away:  # by undeploy, which ended the QPU job under this one
            raise asyncio.CancelledError
        if result is not None and result[1] == 0 and not used:
            raise WorkflowExecutionException(self._unused(job_name, used))
        return result

    async def undeploy(self, external: bool) -> None:
        """Give every lease back and stop the service."""
        for lease in list(self._held):
            await self._release(lease)
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
            if not self._starting.cancelled():
                self._starting.exception()  # the jobs, if any, have been told of it
        if self._background is not None:
            await self._background.stop()

    async def _start(self) -> LeaseClient:
        inner = await self._inner()
        self._background = BackgroundService(
            self.connector, inner.location, self.qpu, self._options()
        )
        self._url = f"unix:{self._background.socket}"
        client = await self._background.start()
        self._calibration = await client.calibration()
        if logger.isEnabledFor(logging.INFO):
            logger.info(f"QPU {self.qpu} ({self.technology}) is ready on {inner}")
        return client

    def _options(self) -> list[str]:
        options: list[tuple[str, str | float | None]] = [
            ("--technology", self.technology),
            ("--time-scale", self.timeScale),
            ("--vqpus", self.vqpus),
            ("--qubits", self.qubits),
            ("--seed", self.seed),
            ("--faults", json.dumps(dict(self.faults)) if self.faults else None),
        ]
        given = [(key, str(value)) for key, value in options if value is not None]
        return [word for option in given for word in option]

    async def _hand_over(self, lease: str) -> None:
        """Tell the job about its QPU (Contract 3), in a file that only it can read.

        Its content goes through a pipe: not on a command line, nor in any log.
        """
        held = self._held[lease]
        variables = {
            "QRMI_JOB_QPU_RESOURCES": self.qpu,
            "QRMI_JOB_QPU_TYPES": QPU_TYPE,
            "QRMI_JOB_ID": held.job,
            f"{self.qpu}_SFQ_URL": self._url,
            f"{self.qpu}_QRMI_JOB_ACQUISITION_TOKEN": lease,
        }
        lines = [
            f"export {key}={shlex.quote(value)}" for key, value in variables.items()
        ]
        lines.append('export QRMI_JOB_UID="$(id -u)"')
        script = f"umask 077; cat > {shlex.quote(held.file)}"
        writer = await self.get_stream_writer(
            ["sh", "-c", shlex.quote(script)], held.location
        )
        async with writer as stream:
            await stream.write("\n".join([*lines, ""]).encode())

    async def _release(self, lease: str) -> bool | None:
        """Give a lease back, once, and keep account of its QPU jobs.

        :returns: whether it had any; None if the service cannot tell any more
        """
        held = self._held.pop(lease, None)
        if held is None:
            return None
        await super().run(held.location, ["rm", "-f", shlex.quote(held.file)])
        try:
            jobs = await held.client.release(lease)
        except ServiceGone as error:
            if logger.isEnabledFor(logging.WARNING):
                logger.warning(f"Lease of job {held.job} was not given back: {error}")
            return None
        record = journal.current()
        if record is not None:
            for job in jobs:
                record.write("qpu", **self._account(held.job, job))
        return bool(jobs)

    def _unused(self, job: str, used: bool | None) -> str:
        if used is None:
            return (
                f"Job {job} ended well but the service of QPU {self.qpu} ended before it, "
                "so nobody knows whether its result is the QPU's."
            )
        return (
            f"Job {job} ended well but never used QPU {self.qpu}, so its result is not "
            "the QPU's: let it solve with `sfq solve --sampler auto`, or bind its step "
            "to a classical location."
        )

    def _account(self, job: str, qpu_job: dict[str, JSON]) -> dict[str, JSON]:
        submitted, started = qpu_job.get("submitted"), qpu_job.get("started")
        queued = None
        if isinstance(submitted, float) and isinstance(started, float):
            queued = started - submitted
        return {
            "job": job,
            "qpu": self.qpu,
            "technology": self.technology,
            "qpu_job": qpu_job.get("id"),
            "state": qpu_job.get("state"),
            "queued_seconds": queued,
            "ran_seconds": qpu_job.get("seconds"),
            "qpu_seconds": qpu_job.get("qpu_seconds"),
            "calibration": self._calibration,
        }


@dataclass(frozen=True)
class _Held:
    """A lease, the job that has it and the file that tells the job."""

    client: LeaseClient
    job: str
    location: ExecutionLocation
    file: str

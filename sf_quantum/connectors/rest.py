"""``sfq.rest``: a location with a QPU behind a service, over any other location."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, MutableMapping
from importlib.resources import files
from pathlib import Path

from streamflow.core.deployment import Connector
from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowExecutionException,
)
from streamflow.core.scheduling import AvailableLocation
from streamflow.log_handler import logger

from sf_quantum import backoff
from sf_quantum.connectors import guardian
from sf_quantum.connectors.leases import ClientConfig, LeasePool, QpuUnavailable
from sf_quantum.connectors.quantum import QuantumConnector, variable
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu, QpuStatus, selection

# the keys of the configuration that are the client's, and those of them that are paths
CLIENT = (
    *("url", "tokenFile", "munge", "qrmiConfig", "resource"),
    *("class", "project", "expectedSeconds", "pattern"),
)
PATHS = ("tokenFile", "qrmiConfig")


class RestConnector(QuantumConnector):
    """Takes leases of a QPU that is there already, for jobs of the inner location.

    The parameters are the configuration's; see ``schemas/rest.json``.

    :param reserved: the key ``class``, which is a word of Python's
    """

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        connector: Connector,
        service: str | None,
        url: str | None = None,
        tokenFile: str | None = None,
        munge: bool | str = False,
        type: str = "sfq",
        qrmiConfig: str | None = None,
        resource: str | None = None,
        vqpus: int = 1,
        lease: str = "job",
        idle: float = 600,
        wait: float | None = None,
        project: str | None = None,
        expectedSeconds: float | None = None,
        pattern: str | None = None,
        transferBufferSize: int = 2**16,
        **reserved: str,
    ) -> None:
        super().__init__(
            deployment_name, config_dir, connector, service, transferBufferSize
        )
        self.type = type
        self.vqpus = vqpus
        self.lease_wait_seconds = wait
        self._keep_seconds = idle if lease == "run" else 0.0
        config: dict[str, JSON] = {
            "url": url,
            "tokenFile": tokenFile,
            "munge": munge,
            "qrmiConfig": qrmiConfig,
            "resource": resource,
            "class": reserved.get("class"),
            "project": project,
            "expectedSeconds": expectedSeconds,
            "pattern": pattern,
        }
        folder = Path(config_dir)
        # as StreamFlow gives it where `lazy` is false
        self._config = _told(config, folder.parent if folder.is_file() else folder)
        self._places = vqpus
        self._leases: LeasePool | None = None
        self._asking: asyncio.Task[None] | None = None

    async def deploy(self, external: bool) -> None:
        """Check the configuration; the QPU is asked how it is, and not waited for.

        :raises WorkflowDefinitionException: if the configuration is wrong
        """
        guardian.current()
        try:
            client = selection.client(self.type, self.qpu, self._config)
            problem = client.problem()
        except InputError as error:
            problem = str(error)
        if problem is not None:
            raise WorkflowDefinitionException(
                f"Deployment {self.deployment_name}: {problem}"
            )
        guarded = ClientConfig(self.type, self._config)
        self._leases = LeasePool(client, guarded, keep_seconds=self._keep_seconds)
        self._asking = asyncio.create_task(self._ask(self._leases))

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        """The inner locations, with as many places together as there are virtual QPUs.

        :returns: those that have a place
        :raises WorkflowDefinitionException: if a service is asked for
        :raises WorkflowExecutionException: if there is no inner location
        """
        self._refuse_service(service)
        found = await self.connector.get_available_locations(service=self.service)
        inner = list(found.values())
        if not inner:
            raise WorkflowExecutionException(
                f"Deployment {self.deployment_name}: deployment "
                f"{self.connector.deployment_name}, which it wraps, has no location to "
                "run jobs on."
            )
        share, rest = divmod(self._places, len(inner))
        places = [share + (number < rest) for number in range(len(inner))]
        names = [location.name for location in inner]
        if len(inner) == 1:
            names = [self.deployment_name]
        return {
            name: self._location(name, slots, location)
            for name, slots, location in zip(names, places, inner, strict=True)
            if slots > 0
        }

    @classmethod
    def get_schema(cls) -> str:
        """What ``config`` may hold.

        :returns: the JSON Schema
        """
        return files(__package__).joinpath("schemas/rest.json").read_text("utf-8")

    async def undeploy(self, external: bool) -> None:
        """Give every lease back."""
        if self._asking is not None:
            self._asking.cancel()
        try:
            await super().undeploy(external)
        finally:
            if self._leases is not None:
                await self._leases.close()

    @classmethod
    def undeployed_status(
        cls, name: str, config: Mapping[str, JSON], folder: Path
    ) -> QpuStatus:
        """See :meth:`QuantumConnector.undeployed_status`."""
        type_ = str(config.get("type", "sfq"))
        return selection.client(type_, variable(name), _told(config, folder)).status()

    def client(self) -> Qpu | None:
        """See :meth:`QuantumConnector.client`."""
        return self._leases.qpu if self._leases is not None else None

    async def _pool(self) -> LeasePool:
        if self._leases is None:
            raise WorkflowExecutionException(f"QPU {self.qpu} is not deployed.")
        return self._leases

    def _job_client(self) -> Qpu:
        if self._leases is None:
            raise WorkflowExecutionException(f"QPU {self.qpu} is not deployed.")
        return self._leases.qpu

    def _update(self, status: QpuStatus) -> None:
        self._places = max(1, status.vqpus)

    async def _ask(self, leases: LeasePool) -> None:
        """Learn how many virtual QPUs there are, as soon as the QPU answers."""
        for pause in backoff.LEASE.pauses():
            try:
                status = await leases.status()
                break
            except QpuUnavailable as error:
                if logger.isEnabledFor(logging.WARNING):
                    logger.warning(f"{error}; jobs wait for it.")
            await asyncio.sleep(pause)
        self._update(status)
        if logger.isEnabledFor(logging.INFO):
            state = "online" if status.online else f"not online: {status.reason}"
            logger.info(f"QPU {self.qpu} ({status.technology}) is {state}")


def _told(config: Mapping[str, JSON], folder: Path) -> dict[str, JSON]:
    """What of a deployment's configuration the QPU's client is told, paths absolute."""
    told = {key: config[key] for key in CLIENT if config.get(key) not in (None, False)}
    for key in PATHS:
        if isinstance(path := told.get(key), str):
            told[key] = str((folder / Path(path).expanduser()).absolute())
    return told

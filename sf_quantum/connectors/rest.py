"""``sfq.rest``: a location with a QPU behind a service, over any other location."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from streamflow.core.deployment import Connector
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.log_handler import logger

from sf_quantum import backoff
from sf_quantum.connectors import guardian
from sf_quantum.connectors.leases import LeasePool, QpuUnavailable
from sf_quantum.connectors.quantum import QuantumConnector, variable
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import AuthenticationError, QpuStatus, selection

# configuration keys that are passed to the client, and which of them are paths
CLIENT = (
    "url tokenFile munge qrmiConfig resource class project expectedSeconds pattern"
).split()
PATHS = ("tokenFile", "qrmiConfig")


class RestConnector(QuantumConnector):
    """Acquires leases of an existing QPU, for jobs of the inner location.

    The parameters are the configuration's; see ``schemas/rest.json``.

    :param reserved: the key ``class``, a reserved word of Python
    """

    schema = "rest.json"

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
        # with `lazy: false`, StreamFlow passes the path of its file
        folder = folder.parent if folder.is_file() else folder
        self._config = _client_config(config, folder)
        self._slots = vqpus
        self._first_status: asyncio.Task[None] | None = None

    async def deploy(self, external: bool) -> None:
        """Check the configuration, and request the QPU's status without waiting for it.

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
        pool = LeasePool(client, self._config, keep_seconds=self._keep_seconds)
        self._access = asyncio.get_running_loop().create_future()
        self._access.set_result(pool)
        self._first_status = asyncio.create_task(self._ask_status(pool))

    async def undeploy(self, external: bool) -> None:
        if self._first_status is not None:
            self._first_status.cancel()
        try:
            await super().undeploy(external)
        finally:
            if self._access is not None:
                await self._access.result().close()

    @classmethod
    def _undeployed_status(
        cls, name: str, config: Mapping[str, JSON], folder: Path
    ) -> QpuStatus:
        type_ = str(config.get("type", "sfq"))
        client = selection.client(type_, variable(name), _client_config(config, folder))
        return client.status()

    async def _ask_status(self, pool: LeasePool) -> None:
        """Request the QPU's status, and so its number of vQPUs, until it answers."""
        for pause in backoff.LEASE.pauses():
            try:
                status = await pool.status()
                break
            except QpuUnavailable as error:
                if isinstance(error.__cause__, AuthenticationError):
                    logger.error(str(error))
                    return
                if logger.isEnabledFor(logging.WARNING):
                    logger.warning(f"{error}; jobs wait for it.")
            await asyncio.sleep(pause)
        self._slots = max(1, status.vqpus)
        if logger.isEnabledFor(logging.INFO):
            state = "online" if status.online else f"not online: {status.reason}"
            logger.info(f"QPU {self.qpu} ({status.technology}) is {state}")


def _client_config(config: Mapping[str, JSON], folder: Path) -> dict[str, JSON]:
    """Select the client's part of a configuration, with absolute paths."""
    own = {key: config[key] for key in CLIENT if config.get(key) not in (None, False)}
    for key in PATHS:
        if isinstance(path := own.get(key), str):
            own[key] = str((folder / Path(path).expanduser()).absolute())
    return own

"""``sfq.rest``: any location, with a QPU behind a service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from streamflow.core.deployment import Connector
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.log_handler import logger

from sf_quantum import backoff, qpu
from sf_quantum.connectors import guardian
from sf_quantum.connectors.quantum.leases import LeasePool, QpuUnavailable
from sf_quantum.connectors.quantum.location import QuantumConnector, variable
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, socket_in
from sf_quantum.protocol.leases import LeaseHints, latest_start
from sf_quantum.qpu import (
    AuthenticationError,
    JobSize,
    Qpu,
    QpuStatus,
    selection,
)

# configuration keys that are not passed to the QPU's client
CONNECTOR = frozenset(
    "type vqpus lease idle wait latestStart priority reservation clients "
    "transferBufferSize".split()
)
# the key munge and its default
NO_MUNGE = ("munge", False)
# keys that name files, for all kinds of QPUs
FILES = ("tokenFile", "qrmiConfig")


class RestConnector(QuantumConnector):
    """Acquires leases of an existing QPU for jobs on the inner location.

    The parameters are the keys of the configuration; see ``schemas/rest.json``.

    :param others: the key ``class``, which is a reserved word of Python, and keys of a site's
        own kind of QPU
    """

    schema = "schemas/rest.json"

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
        latestStart: str | None = None,
        priority: int | None = None,
        reservation: str | None = None,
        clients: bool = False,
        transferBufferSize: int = 2**16,
        **others: JSON,
    ) -> None:
        super().__init__(
            deployment_name, config_dir, connector, service, transferBufferSize
        )
        self.type = type
        self.lease_wait_seconds = wait
        self._keep_seconds = idle if lease == "run" else 0.0
        self._config: dict[str, JSON] = {
            "url": url,
            "tokenFile": tokenFile,
            "munge": munge,
            "qrmiConfig": qrmiConfig,
            "resource": resource,
            "project": project,
            "expectedSeconds": expectedSeconds,
            "pattern": pattern,
            "latestStart": latestStart,
            "priority": priority,
            "reservation": reservation,
            "clients": clients,
            **others,
        }
        folder = Path(config_dir)
        # With `lazy: false`, StreamFlow passes the path of its file instead of the folder.
        self._folder = folder.parent if folder.is_file() else folder
        self._slots = vqpus
        self._clients = clients
        self._first_status: asyncio.Task[None] | None = None

    async def deploy(self, external: bool) -> None:
        """Check the configuration, and request the QPU's status without waiting for it.

        :raises WorkflowDefinitionException: if the configuration is wrong
        """
        guardian.current()
        try:
            config = _client_config(self.type, self._config, self._folder)
            self.lease_hints = _hints(self.type, self._config)
            client = selection.client(self.type, self.qpu, config)
            problem = client.problem()
        except InputError as error:
            problem = str(error)
        if problem is not None:
            raise WorkflowDefinitionException(
                f"Deployment {self.deployment_name}: {problem}"
            )
        pool = LeasePool(client, config, keep_seconds=self._keep_seconds)
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
        cls,
        name: str,
        config: Mapping[str, JSON],
        folder: Path,
        size: JobSize | None = None,
    ) -> QpuStatus:
        return cls.client(name, config, folder).with_job_size(size).status()

    @classmethod
    def client(cls, name: str, config: Mapping[str, JSON], folder: Path) -> Qpu:
        """Return the client of a deployment's QPU.

        :param folder: base of relative paths in the configuration
        :raises InputError: if the configuration is wrong
        """
        type_ = str(config.get("type", "sfq"))
        client_config = _client_config(type_, config, folder)
        return selection.client(type_, variable(name), client_config)

    async def _ask_status(self, pool: LeasePool) -> None:
        """Query the QPU's status until it answers, and set the number of slots."""
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


def _client_config(
    type_: str, config: Mapping[str, JSON], folder: Path
) -> dict[str, JSON]:
    """Return the client's part of a configuration, with absolute paths.

    :raises InputError: if a hint for leases is wrong, or if ``clients`` is set for a kind of
        QPU other than ``sfq``: SDKs' clients find such QPUs in their own variables anyway
    """
    if config.get("clients") and type_ != selection.SFQ:
        raise InputError(
            f"clients: for QPUs of type {selection.SFQ}; the clients of SDKs find one of "
            f"type {type_} by the variables that it has"
        )
    _hints(type_, config)
    client_config: dict[str, JSON] = {
        key: value
        for key, value in config.items()
        # Kinds of QPU that cannot authenticate with MUNGE do not accept the key munge.
        if key not in CONNECTOR and value is not None and (key, value) != NO_MUNGE
    }
    for key in (*FILES, *qpu.load(type_).files):
        if isinstance(path := client_config.get(key), str):
            client_config[key] = str((folder / Path(path).expanduser()).absolute())
    if isinstance(url := client_config.get("url"), str):
        client_config["url"] = socket_in(url, folder)
    return client_config


def _hints(type_: str, config: Mapping[str, JSON]) -> LeaseHints:
    """Read the hints for leases, see :meth:`.Qpu.with_hints`.

    :raises InputError: if ``latestStart`` is not a time, or this kind of QPU would ignore a
        hint
    """
    text = config.get("latestStart")
    hints = LeaseHints.read(config, None if text is None else latest_start(text))
    if (problem := qpu.load(type_).hint_problem(hints)) is not None:
        raise InputError(problem)
    return hints

"""``sfq.emulator``: a location with an emulated QPU, behind our own QPU service."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, MutableMapping
from contextlib import AsyncExitStack
from importlib.resources import files
from pathlib import Path

from streamflow.core.deployment import Connector
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation
from streamflow.log_handler import logger

from sf_quantum.connectors.background import BackgroundService
from sf_quantum.connectors.leases import LeasePool
from sf_quantum.connectors.quantum import QuantumConnector, variable
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu, QpuStatus
from sf_quantum.qpu.sfq import SfqQpu


class EmulatorConnector(QuantumConnector):
    """Starts the service; the rest is as with any other QPU.

    The parameters are the configuration's; see ``schemas/emulator.json``.
    """

    # a step that has just ended may still be giving its lease back
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
        transferBufferSize: int = 2**16,
    ) -> None:
        super().__init__(
            deployment_name, config_dir, connector, service, transferBufferSize
        )
        self.technology = technology
        self.timeScale = timeScale
        self.vqpus = vqpus
        self.qubits = qubits
        self.topology = topology
        self.noise = noise
        self.seed = seed
        self.faults = faults
        self._starting: asyncio.Task[LeasePool] | None = None
        self._background: BackgroundService | None = None

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

    async def undeploy(self, external: bool) -> None:
        """Give every lease back and stop the service."""
        # the service is stopped whatever becomes of the leases
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._stop)
            stack.push_async_callback(self._stop_starting)
            await super().undeploy(external)

    async def _stop_starting(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
            if not self._starting.cancelled():
                self._starting.exception()  # the jobs, if any, have been told of it

    async def _stop(self) -> None:
        if self._background is not None:
            await self._background.stop()

    @classmethod
    def undeployed_status(
        cls, name: str, config: Mapping[str, JSON], folder: Path
    ) -> QpuStatus:
        """See :meth:`QuantumConnector.undeployed_status`; no job uses it before."""
        return QpuStatus(
            name=variable(name),
            technology=str(config.get("technology", "annealer")),
            online=True,
            reason="",
            qubits=_whole(config, "qubits", 0),
            vqpus=_whole(config, "vqpus", 1),
            leases=0,
            queue_length=0,
            eta_seconds=0.0,
            position=0,
        )

    def client(self) -> Qpu | None:
        """See :meth:`QuantumConnector.client`."""
        starting = self._starting
        if starting is None or not starting.done() or starting.cancelled():
            return None
        if (error := starting.exception()) is not None:
            raise QpuError(str(error)) from error
        return starting.result().qpu

    async def _pool(self) -> LeasePool:
        if self._starting is None:
            raise WorkflowExecutionException(f"QPU {self.qpu} is not deployed.")
        # one job's cancellation must not stop the service of the others
        return await asyncio.shield(self._starting)

    def _job_client(self) -> SfqQpu:
        if self._background is None:
            raise WorkflowExecutionException(f"QPU {self.qpu} is not deployed.")
        return self._background.qpu()

    async def _start(self) -> LeasePool:
        inner = await self._inner()
        self._background = BackgroundService(
            self.connector, inner.location, self.qpu, self._options()
        )
        leases = await self._background.start()
        if logger.isEnabledFor(logging.INFO):
            logger.info(f"QPU {self.qpu} ({self.technology}) is ready on {inner}")
        return leases

    def _options(self) -> list[str]:
        options: list[tuple[str, str | float | None]] = [
            ("--technology", self.technology),
            ("--time-scale", self.timeScale),
            ("--vqpus", self.vqpus),
            ("--qubits", self.qubits),
            ("--topology", self.topology),
            ("--noise", self.noise),
            ("--seed", self.seed),
            ("--faults", json.dumps(dict(self.faults)) if self.faults else None),
        ]
        given = [(key, str(value)) for key, value in options if value is not None]
        return [word for option in given for word in option]


def _whole(config: Mapping[str, JSON], key: str, default: int) -> int:
    value = config.get(key, default)
    return value if isinstance(value, int) else default
